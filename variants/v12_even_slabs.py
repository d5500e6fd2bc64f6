"""Even shares in few steps of K: tiles are cut into slabs, and every program does the same number of slabs in a row.

The even share of Stream-K with its cuts rounded to slabs of K. Programs are then at as few places of K at a moment as a
tile has slabs, which keeps the reuse in L2 that an even share to the last iteration loses, and no program idles as many
do where the remaining tiles are cut into equal ranges, one range a program.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from common.card import Card, Config, Contract
from common.launcher import Launch
from common.tma import descriptor, is_transposed

CARD = Card(
    idea="tiles are cut into slabs of K, and every program does the same number of slabs in a row, of two tiles or more",
    position="beyond the thread",
    parent="v10",
    rejected="slower than v10 in every class of shapes, most where tiles are few, and hardly ever the faster of the two",
    changed=("count_segments", "segment", "load_operands", "multiply", "persistent_tiles", "unit_of_work"),
    diff_budget=80,
    language="gluon",
    twin="v09",
    decomposition="even_slabs",
    fix_up="v10's: fp32 partial sums in register order; a counter a tile; the last peer to arrive adds them in the order of K, stores C and resets the counter",
    kernels=("persistent_tiles",),
    default=Config(block=(128, 128, 64), num_warps=8, num_stages=5, order="swizzled"),
    tile_orders=("swizzled",),
    workspace=("counters", "range_partials"),
    lock_lifetime="a counter a shared tile, reset by the last peer to arrive",
    contract=Contract(
        dtypes=("float16", "bfloat16"), divisible=False, layouts="tma", wide_offsets=True,
        architectures=("sm_90",), least_block=(64, 64, 64),
    ),
)

CONFIGS = tuple(
    Config(block=block, num_warps=warps, num_stages=stages, order="swizzled", two_tiles=two_tiles)
    for block, warps, stages in (((128, 256, 64), 8, 3), ((128, 128, 64), 8, 5), ((64, 128, 64), 4, 7))
    for two_tiles in (False, True)
)
"""What the kernel is worth launching with; each leaves room for a tile of C beside the ring."""


@gluon.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    group = tile // (GROUP_M * tiles_n)
    inside = tile % (GROUP_M * tiles_n)
    rows = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + inside % rows
    tile_n = inside // rows
    return tile_m, tile_n


@gluon.jit
def count_segments(whole_tiles, sk_tiles, slabs, share):
    """How many segments this program has: whole tiles first, then those of its share of the slabs."""
    whole = gl.cdiv(gl.maximum(whole_tiles - gl.program_id(0), 0), gl.num_programs(0))
    first = gl.program_id(0) * share
    end = gl.minimum(first + share, sk_tiles * slabs)
    shared = 0
    if first < end:
        shared = (end - 1) // slabs - first // slabs + 1
    return whole, whole + shared


@gluon.jit
def segment(number, whole, sk_tiles, slabs, share, iters_per_tile):
    """A segment's tile, its MAC iterations [start, stop), the tile's peers and this program's number among them."""
    tile, start, stop, part, peers = sk_tiles + gl.program_id(0) + number * gl.num_programs(0), 0, iters_per_tile, 0, 1
    if number >= whole:
        first = gl.program_id(0) * share
        tile = first // slabs + number - whole
        start = gl.maximum(first - tile * slabs, 0) * iters_per_tile // slabs
        stop = gl.minimum(gl.minimum(first + share, sk_tiles * slabs) - tile * slabs, slabs) * iters_per_tile // slabs
        part = gl.program_id(0) - tile * slabs // share
        peers = (tile * slabs + slabs - 1) // share - tile * slabs // share + 1
    return tile, start, stop, part, peers


@gluon.jit
def load_operands(
    a_desc, b_desc, a_ring, b_ring, full, empty,
    tiles_m, tiles_n, whole_tiles, sk_tiles, slabs, share, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    stage = 0
    # A wait for the phase before the first ends at once: all stages are empty.
    phase = 1
    whole, segments = count_segments(whole_tiles, sk_tiles, slabs, share)
    for number in range(segments):
        tile, start, stop, _, _ = segment(number, whole, sk_tiles, slabs, share, iters_per_tile)
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        for iteration in range(start, stop):
            k = iteration * BLOCK_K
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
    accumulator, a_ring, b_ring, full, empty, stage, phase, start, stop,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    # Not `last = stage`: the compiler would take the two for one variable, and `last` for one that the loop leaves alone.
    last = 0
    for iteration in range(start, stop):
        a, b = a_ring.index(stage), b_ring.index(stage)
        if A_TRANSPOSED:
            a = a.permute([1, 0])
        if B_TRANSPOSED:
            b = b.permute([1, 0])
        mbarrier.wait(full.index(stage), phase)
        accumulator = warpgroup_mma(a, b, accumulator, use_acc=iteration != start, is_async=True)
        # One wgmma stays in flight; the one before it has ended, and its stage is free.
        accumulator = warpgroup_mma_wait(1, deps=[accumulator])
        mbarrier.arrive(empty.index(last), count=1, pred=iteration != start)
        last = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    mbarrier.arrive(empty.index(last), count=1)
    return accumulator, stage, phase


@gluon.jit
def in_register_order(accumulator):
    """The accumulator as a vector whose consecutive fours lie in one thread and consecutive threads' fours side by side:
    it is stored in coalesced pieces of 16 bytes a thread without an exchange between threads."""
    BLOCK_M: gl.constexpr = accumulator.shape[0]
    BLOCK_N: gl.constexpr = accumulator.shape[1]
    WARPS: gl.constexpr = min(gl.num_warps(), BLOCK_M // 16)
    split = accumulator.reshape([BLOCK_M // 16 // WARPS, WARPS, 2, 8, BLOCK_N // 8, 4, 2])
    return split.permute([0, 4, 1, 3, 5, 2, 6]).reshape([BLOCK_M * BLOCK_N])


@gluon.jit
def in_matrix_order(vector, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    """What `in_register_order` did, undone; no value changes its thread."""
    WARPS: gl.constexpr = min(gl.num_warps(), BLOCK_M // 16)
    split = vector.reshape([BLOCK_M // 16 // WARPS, BLOCK_N // 8, WARPS, 8, 4, 2, 2])
    accumulator = split.permute([0, 2, 5, 3, 1, 4, 6]).reshape([BLOCK_M, BLOCK_N])
    return gl.convert_layout(accumulator, LAYOUT, assert_trivial=True)


@gluon.jit
def store_tile(
    accumulator, c_desc, c_ptr, c_tile, row, column, M, N, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):
    if c_desc is not None:
        # The last tile must have left the shared memory.
        tma.store_wait(0)
        gl.barrier()
        c_tile.store(accumulator.to(c_tile.dtype))
        fence_async_shared()
        gl.barrier()
        tma.async_store(c_desc, [row, column], c_tile)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
        c = gl.convert_layout(accumulator.to(c_tile.dtype), LAYOUT)
        rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
        columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
        offsets = rows.to(gl.int64)[:, None] * stride_cm + columns.to(gl.int64)[None, :] * stride_cn
        gl.store(c_ptr + offsets, c, mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def multiply(
    c_desc, c_ptr, partials_ptr, counters_ptr, a_ring, b_ring, c_tile, full, empty,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, whole_tiles, sk_tiles, slabs, share, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    stage = 0
    phase = 0
    whole, segments = count_segments(whole_tiles, sk_tiles, slabs, share)
    most_peers = (slabs - 1) // share + 2
    for number in range(segments):
        tile, start, stop, part, peers = segment(number, whole, sk_tiles, slabs, share, iters_per_tile)
        accumulator = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
        accumulator, stage, phase = mac_loop(
            accumulator, a_ring, b_ring, full, empty, stage, phase, start, stop, A_TRANSPOSED, B_TRANSPOSED,
        )
        last = True
        if peers > 1:
            vector = in_register_order(accumulator)
            elements = gl.arange(0, BLOCK_M * BLOCK_N, layout=vector.type.layout)
            slot = partials_ptr + (tile * most_peers).to(gl.int64) * (BLOCK_M * BLOCK_N)
            gl.store(slot + part.to(gl.int64) * (BLOCK_M * BLOCK_N) + elements, vector)
            # All warps have stored before one thread publishes it; the counter's release covers what the barrier has seen.
            gl.barrier()
            last = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == peers - 1
            if last:
                vector = gl.zeros([BLOCK_M * BLOCK_N], gl.float32, vector.type.layout)
                for _ in range(peers):
                    vector += gl.load(slot + elements, cache_modifier=".cg")
                    slot += BLOCK_M * BLOCK_N
                accumulator = in_matrix_order(vector, BLOCK_M, BLOCK_N, LAYOUT)
                gl.store(counters_ptr + tile, 0)
        if last:
            tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
            store_tile(
                accumulator, c_desc, c_ptr, c_tile, tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cm, stride_cn,
                BLOCK_M, BLOCK_N,
            )
    if c_desc is not None:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "stride_cm", "stride_cn", "tiles_m", "tiles_n", "whole_tiles", "sk_tiles", "slabs", "share", "iters_per_tile"])
def persistent_tiles(
    a_desc, b_desc, c_desc, c_ptr, partials_ptr, counters_ptr,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, whole_tiles, sk_tiles, slabs, share, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_shape, b_desc.layout)
    DTYPE: gl.constexpr = a_desc.dtype
    C_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_N], DTYPE)
    c_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, BLOCK_N], C_LAYOUT)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (multiply, (
                c_desc, c_ptr, partials_ptr, counters_ptr, a_ring, b_ring, c_tile, full, empty,
                M, N, stride_cm, stride_cn, tiles_m, tiles_n, whole_tiles, sk_tiles, slabs, share, iters_per_tile,
                BLOCK_M, BLOCK_N, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
            (load_operands, (
                a_desc, b_desc, a_ring, b_ring, full, empty,
                tiles_m, tiles_n, whole_tiles, sk_tiles, slabs, share, iters_per_tile,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ],
        [1], [24],
    )


def launch(task: Launch) -> None:
    """Start the persistent programs; fewer where there is less work than programs."""
    schedule, (block_m, block_n, block_k) = task.schedule, task.config.block
    by_tma = is_transposed(task.c) is False
    task.run(
        persistent_tiles, schedule.busy_programs,
        descriptor(task.a, (block_m, block_k)), descriptor(task.b, (block_k, block_n)),
        descriptor(task.c, (block_m, block_n)) if by_tma else None, task.c, task.partials, task.counters,
        *task.c.shape, *task.c.stride(), schedule.tiles_m, schedule.tiles_n,
        schedule.dp_tiles, schedule.sk_tiles, schedule.slabs, schedule.slab_share, schedule.iters_per_tile,
        **task.blocks, GROUP_M=task.group_m, STAGES=task.config.num_stages,
        A_TRANSPOSED=is_transposed(task.a), B_TRANSPOSED=is_transposed(task.b), **task.first_wave_options(),
    )
