"""A cluster's barriers release shared memory alone.

Triton puts one before a CTA reads the others' partial sums, one before it writes more of its own in their place, and one
where the kernel ends, so that no CTA leaves while its memory is read. Each releases all that a CTA has stored, which is
a fence for the whole GPU; the last waits until C has reached L2. The CTAs meet in shared memory alone: to publish the
partial sums, a fence restricted to it is enough, and at the end, where they have been added and stored, nothing is left
to order.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from common.card import Card, Config, Contract
from common.cluster_release import release_shared_memory_alone
from common.launcher import Launch
from common.tma import ALIGNMENT, descriptor, is_transposed

CARD = Card(
    idea="the barriers of a cluster release shared memory alone, not all that was stored, which is a fence for the whole GPU",
    position="beyond the thread",
    parent="v11",
    changed=("cluster_tile",),
    diff_budget=10,
    language="gluon",
    decomposition="cluster_ranges",
    fix_up="partial sums are exchanged through distributed shared memory; each CTA of the cluster adds and stores its share of the rows",
    kernels=("cluster_tile",),
    default=Config(block=(64, 128, 64), num_warps=4, num_stages=7, order="swizzled"),
    tile_orders=("swizzled",),
    contract=Contract(
        dtypes=("float16", "bfloat16"), divisible=False, layouts="tma", wide_offsets=True,
        architectures=("sm_90",), least_block=(64, 64, 64),
    ),
)

CONFIGS = (
    Config(block=(128, 256, 64), num_warps=8, num_stages=4, order="swizzled", split=2),
    Config(block=(128, 256, 64), num_warps=8, num_stages=4, order="swizzled", split=4),
    Config(block=(128, 128, 64), num_warps=8, num_stages=6, order="swizzled", split=1),
    Config(block=(128, 128, 64), num_warps=8, num_stages=6, order="swizzled", split=2),
    Config(block=(128, 128, 64), num_warps=8, num_stages=6, order="swizzled", split=4),
    Config(block=(128, 128, 64), num_warps=8, num_stages=6, order="swizzled", split=8),
    Config(block=(64, 128, 64), num_warps=4, num_stages=8, order="swizzled", split=1),
    Config(block=(64, 128, 64), num_warps=4, num_stages=8, order="swizzled", split=2),
    Config(block=(64, 128, 64), num_warps=4, num_stages=8, order="swizzled", split=4),
    Config(block=(64, 128, 64), num_warps=4, num_stages=8, order="swizzled", split=8),
    Config(block=(64, 64, 64), num_warps=4, num_stages=8, order="swizzled", split=1),
    Config(block=(64, 64, 64), num_warps=4, num_stages=8, order="swizzled", split=2),
    Config(block=(64, 64, 64), num_warps=4, num_stages=8, order="swizzled", split=4),
    Config(block=(64, 64, 64), num_warps=4, num_stages=8, order="swizzled", split=8),
)
"""What the kernel is worth launching with. The exchange takes the place of the ring, which is empty by then."""


@gluon.constexpr_function
def shared_along(dimension, ctas, rank=2):
    """A layout's bases for a cluster that divides one dimension of a tensor; -1 for none, all have the same."""
    return [[1 << bit if d == dimension else 0 for d in range(rank)] for bit in range(ctas.bit_length() - 1)]


@gluon.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    group = tile // (GROUP_M * tiles_n)
    inside = tile % (GROUP_M * tiles_n)
    rows = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + inside % rows
    tile_n = inside // rows
    return tile_m, tile_n


@gluon.jit
def load_operands(
    a_desc, b_desc, a_ring, b_ring, full, empty, row, column, steps,
    BLOCK_K: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    stage = 0
    # A wait for the phase before the first ends at once: all stages are empty.
    phase = 1
    for step in range(steps):
        # One step of the cluster: its CTAs take blocks of K that are next to each other.
        k = step * (gl.num_ctas() * BLOCK_K)
        ready = full.index(stage)
        mbarrier.wait(empty.index(stage), phase)
        mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [k, row] if A_TRANSPOSED else [row, k], ready, a_ring.index(stage))
        tma.async_load(b_desc, [column, k] if B_TRANSPOSED else [k, column], ready, b_ring.index(stage))
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def mac_loop(
    a_ring, b_ring, full, empty, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    CTAS: gl.constexpr = gl.num_ctas()
    # To the compiler the CTAs' partial sums lie below each other. Each CTA multiplies what it loaded; that their blocks of
    # B differ is not in the layout, which takes them for copies, and no operation here compares them.
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16], shared_along(0, CTAS))
    A_SHAPE: gl.constexpr = [BLOCK_K, CTAS * BLOCK_M] if A_TRANSPOSED else [CTAS * BLOCK_M, BLOCK_K]
    B_SHAPE: gl.constexpr = [BLOCK_N, BLOCK_K] if B_TRANSPOSED else [BLOCK_K, BLOCK_N]
    A_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2, cga_layout=shared_along(1 if A_TRANSPOSED else 0, CTAS))
    B_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2, cga_layout=shared_along(-1, CTAS))
    accumulator = gl.zeros((CTAS * BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
    stage = 0
    phase = 0
    last = 0
    for step in range(steps):
        a = a_ring.index(stage).reinterpret(a_ring.dtype, A_SHAPE, A_LAYOUT)
        b = b_ring.index(stage).reinterpret(b_ring.dtype, B_SHAPE, B_LAYOUT)
        if A_TRANSPOSED:
            a = a.permute([1, 0])
        if B_TRANSPOSED:
            b = b.permute([1, 0])
        mbarrier.wait(full.index(stage), phase)
        accumulator = warpgroup_mma(a, b, accumulator, use_acc=step != 0, is_async=True)
        # One wgmma stays in flight; the one before it has ended, and its stage is free.
        accumulator = warpgroup_mma_wait(1, deps=[accumulator])
        mbarrier.arrive(empty.index(last), count=1, pred=step != 0)
        last = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    return warpgroup_mma_wait(0, deps=[accumulator])


@release_shared_memory_alone
@gluon.jit(do_not_specialize=["M", "N", "stride_cm", "stride_cn", "tiles_m", "tiles_n", "steps"])
def cluster_tile(
    a_desc, b_desc, c_ptr, M, N, stride_cm, stride_cn, tiles_m, tiles_n, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, C_VECTOR: gl.constexpr,
):
    CTAS: gl.constexpr = gl.num_ctas()
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_shape, b_desc.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    tile_m, tile_n = tile_coordinates(gl.program_id(0), tiles_m, tiles_n, GROUP_M)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    accumulator = gl.warp_specialize(
        [
            (mac_loop, (a_ring, b_ring, full, empty, steps, BLOCK_M, BLOCK_N, BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)),
            (load_operands, (a_desc, b_desc, a_ring, b_ring, full, empty, row, column, steps, BLOCK_K, A_TRANSPOSED, B_TRANSPOSED)),
        ],
        [1], [24],
    )
    # Until now a CTA holds all rows of its own partial sum, from now on its share of the rows of every partial sum.
    SHARES: gl.constexpr = gl.BlockedLayout([CTAS, 1, 4], [1, 2, 16], [1, gl.num_warps(), 1], [2, 1, 0], shared_along(1, CTAS, 3))
    partials = gl.convert_layout(accumulator.reshape([CTAS, BLOCK_M, BLOCK_N]), SHARES)
    c = gl.sum(partials, axis=0).to(a_desc.dtype)
    LAYOUT: gl.constexpr = gl.SliceLayout(0, SHARES)
    rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    # Multiples that the launcher has checked, written so that the compiler sees them.
    N = N // C_VECTOR * C_VECTOR
    stride_cm = stride_cm // C_VECTOR * C_VECTOR
    if C_VECTOR > 1:
        stride_cn = 1
    offsets = rows.to(gl.int64)[:, None] * stride_cm + columns.to(gl.int64)[None, :] * stride_cn
    gl.store(c_ptr + offsets, c, mask=(rows < M)[:, None] & (columns < N)[None, :])


def launch(task: Launch) -> None:
    """Start one cluster a tile."""
    schedule, config, (block_m, block_n, block_k) = task.schedule, task.config, task.config.block
    vector = ALIGNMENT // task.c.element_size()
    vectors = is_transposed(task.c) is False and task.c.shape[1] % vector == 0 and task.c.stride(0) % vector == 0
    task.run(
        cluster_tile, schedule.tiles,
        descriptor(task.a, (block_m, block_k), schedule.split, 1), descriptor(task.b, (block_k, block_n), schedule.split, 0),
        task.c, *task.c.shape, *task.c.stride(), schedule.tiles_m, schedule.tiles_n, -(-schedule.iters_per_tile // schedule.split),
        **task.blocks, GROUP_M=task.group_m, STAGES=config.num_stages,
        A_TRANSPOSED=is_transposed(task.a), B_TRANSPOSED=is_transposed(task.b), C_VECTOR=vector if vectors else 1,
        num_ctas=schedule.split, **task.first_wave_options(),
    )
