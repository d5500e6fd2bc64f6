"""v15's pairs, twice: four CTAs in a square share their loads of A along its rows and of B along its columns.

A program is a cluster of two by two CTAs; each has a quarter of the tile. The left two load their rows of A for
themselves and their neighbours to the right, the upper two their columns of B for themselves and those below: every
operand passes L2 once for two CTAs.
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
    idea="a program is four CTAs, two by two: each load of A is multicast along the rows, each load of B along the columns",
    position="beyond the thread",
    parent="v15",
    changed=("load_operands", "mac_loop", "in_register_order", "in_matrix_order", "store_tile", "multiply", "persistent_tiles"),
    diff_budget=60,
    language="gluon",
    twin="v09",
    ctas=4,
    cta_columns=2,
    decomposition="whole_waves",
    fix_up="v15's, by all four CTAs at once, each with its quarter of the tile, behind one counter",
    kernels=("persistent_tiles",),
    default=Config(block=(256, 256, 64), num_warps=8, num_stages=5, order="swizzled"),
    tile_orders=("swizzled",),
    workspace=("counters", "range_partials"),
    lock_lifetime="a counter a shared tile, reset by the last peer to arrive",
    contract=Contract(
        dtypes=("float16", "bfloat16"), divisible=False, layouts="tma", wide_offsets=True,
        architectures=("sm_90",), least_block=(128, 128, 64),
    ),
)

CONFIGS = (
    Config(block=(256, 512, 64), num_warps=8, num_stages=3, order="swizzled"),
    Config(block=(256, 256, 64), num_warps=8, num_stages=5, order="swizzled"),
    Config(block=(256, 256, 64), num_warps=4, num_stages=5, order="swizzled"),
    Config(block=(128, 256, 64), num_warps=4, num_stages=7, order="swizzled"),
    Config(block=(256, 128, 64), num_warps=8, num_stages=7, order="swizzled"),
    Config(block=(128, 128, 64), num_warps=4, num_stages=12, order="swizzled"),
)
"""What the kernel is worth launching with. A block is the cluster's: each CTA has half of its rows and of its columns."""


@gluon.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    group = tile // (GROUP_M * tiles_n)
    inside = tile % (GROUP_M * tiles_n)
    rows = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + inside % rows
    tile_n = inside // rows
    return tile_m, tile_n


@gluon.jit
def unit_of_work(unit, whole_tiles, sk_tiles, split, iters_per_tile):
    """A unit's tile, the number of its K range, and its MAC iterations [start, stop). Shared tiles have the lowest numbers."""
    tile, part, start, stop = sk_tiles + unit, 0, 0, iters_per_tile
    if unit >= whole_tiles:
        part = (unit - whole_tiles) // sk_tiles
        tile = (unit - whole_tiles) % sk_tiles
        start = part * (iters_per_tile // split) + gl.minimum(part, iters_per_tile % split)
        stop = (part + 1) * (iters_per_tile // split) + gl.minimum(part + 1, iters_per_tile % split)
    return tile, part, start, stop


@gluon.jit
def load_operands(
    a_desc, b_desc, a_ring, b_ring, full, empty, row_empty, column_empty,
    tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    stage = 0
    # A wait for the phase before the first ends at once: all stages are empty.
    phase = 1
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        tile, _, start, stop = unit_of_work(unit, whole_tiles, sk_tiles, split, iters_per_tile)
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        for iteration in range(start, stop):
            k = iteration * BLOCK_K
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            # Who writes to two waits for both: the left CTAs for their rows, the upper ones for their columns.
            mbarrier.wait(row_empty.index(stage), phase)
            mbarrier.wait(column_empty.index(stage), phase)
            mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [k, row] if A_TRANSPOSED else [row, k], ready, a_ring.index(stage), multicast=True)
            tma.async_load(b_desc, [column, k] if B_TRANSPOSED else [k, column], ready, b_ring.index(stage), multicast=True)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def mac_loop(
    accumulator, a_ring, b_ring, full, empty, row_empty, column_empty, stage, phase, start, stop,
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
        mbarrier.arrive(row_empty.index(last), count=1, pred=iteration != start)
        mbarrier.arrive(column_empty.index(last), count=1, pred=iteration != start)
        last = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    mbarrier.arrive(empty.index(last), count=1)
    mbarrier.arrive(row_empty.index(last), count=1)
    mbarrier.arrive(column_empty.index(last), count=1)
    return accumulator, stage, phase


@gluon.jit
def in_register_order(accumulator):
    """The accumulator as a vector whose consecutive fours lie in one thread and consecutive threads' fours side by side:
    it is stored in coalesced pieces of 16 bytes a thread without an exchange between threads."""
    BLOCK_M: gl.constexpr = accumulator.shape[0]
    BLOCK_N: gl.constexpr = accumulator.shape[1]
    WARPS: gl.constexpr = min(gl.num_warps(), BLOCK_M // 32)
    split = accumulator.reshape([2, BLOCK_M // 32 // WARPS, WARPS, 2, 8, 2, BLOCK_N // 16, 4, 2])
    return split.permute([0, 5, 1, 6, 2, 4, 7, 3, 8]).reshape([BLOCK_M * BLOCK_N])


@gluon.jit
def in_matrix_order(vector, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    """What `in_register_order` did, undone; no value changes its thread."""
    WARPS: gl.constexpr = min(gl.num_warps(), BLOCK_M // 32)
    split = vector.reshape([2, 2, BLOCK_M // 32 // WARPS, BLOCK_N // 16, WARPS, 8, 4, 2, 2])
    accumulator = split.permute([0, 2, 4, 7, 5, 1, 3, 6, 8]).reshape([BLOCK_M, BLOCK_N])
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
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0], [[1, 0], [0, 1]])
        c = gl.convert_layout(accumulator.to(c_tile.dtype), LAYOUT)
        rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
        columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
        offsets = rows.to(gl.int64)[:, None] * stride_cm + columns.to(gl.int64)[None, :] * stride_cn
        gl.store(c_ptr + offsets, c, mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def multiply(
    c_desc, c_ptr, partials_ptr, counters_ptr, a_ring, b_ring, c_tile, full, empty, row_empty, column_empty,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N // 2, 16], [[1, 0], [0, 1]])
    stage = 0
    phase = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        tile, part, start, stop = unit_of_work(unit, whole_tiles, sk_tiles, split, iters_per_tile)
        accumulator = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, LAYOUT)
        accumulator, stage, phase = mac_loop(
            accumulator, a_ring, b_ring, full, empty, row_empty, column_empty, stage, phase, start, stop,
            A_TRANSPOSED, B_TRANSPOSED,
        )
        last = True
        if unit >= whole_tiles:
            vector = in_register_order(accumulator)
            elements = gl.arange(0, BLOCK_M * BLOCK_N, layout=vector.type.layout)
            slot = partials_ptr + (tile * split).to(gl.int64) * (BLOCK_M * BLOCK_N)
            gl.store(slot + part.to(gl.int64) * (BLOCK_M * BLOCK_N) + elements, vector)
            # All warps have stored before one thread publishes it; the counter's release covers what the barrier has seen.
            gl.barrier()
            last = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == split - 1
            if last:
                vector = gl.zeros([BLOCK_M * BLOCK_N], gl.float32, vector.type.layout)
                for _ in range(split):
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


@gluon.jit(do_not_specialize=["M", "N", "stride_cm", "stride_cn", "tiles_m", "tiles_n", "units", "whole_tiles", "sk_tiles", "split", "iters_per_tile"])
def persistent_tiles(
    a_desc, b_desc, c_desc, c_ptr, partials_ptr, counters_ptr,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_shape, b_desc.layout)
    DTYPE: gl.constexpr = a_desc.dtype
    C_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_N], DTYPE, cga_layout=[[1, 0], [0, 1]])
    c_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, BLOCK_N], C_LAYOUT)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    # One barrier for each row of CTAs, in its left one, and one for each column, in its upper one.
    row_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 2], mbarrier.MBarrierLayout([[1], [0]]))
    column_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 2], mbarrier.MBarrierLayout([[0], [1]]))
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
        mbarrier.init(row_empty.index(stage), count=1)
        mbarrier.init(column_empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (multiply, (
                c_desc, c_ptr, partials_ptr, counters_ptr, a_ring, b_ring, c_tile, full, empty, row_empty, column_empty,
                M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, BLOCK_N, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
            (load_operands, (
                a_desc, b_desc, a_ring, b_ring, full, empty, row_empty, column_empty,
                tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ],
        [1], [24],
    )


def launch(task: Launch) -> None:
    """Start the persistent programs, four CTAs each; fewer where there is less work than programs."""
    schedule, (block_m, block_n, block_k) = task.schedule, task.config.block
    by_tma = is_transposed(task.c) is False
    task.run(
        persistent_tiles, min(schedule.programs, schedule.units),
        descriptor(task.a, (block_m // 2, block_k), 4, (0, None)), descriptor(task.b, (block_k, block_n // 2), 4, (None, 1)),
        descriptor(task.c, (block_m // 2, block_n // 2), 4, (0, 1)) if by_tma else None, task.c, task.partials, task.counters,
        *task.c.shape, *task.c.stride(), schedule.tiles_m, schedule.tiles_n,
        schedule.units, schedule.dp_tiles, schedule.sk_tiles, schedule.split, schedule.iters_per_tile,
        **task.blocks, GROUP_M=task.group_m, STAGES=task.config.num_stages,
        A_TRANSPOSED=is_transposed(task.a), B_TRANSPOSED=is_transposed(task.b), num_ctas=4, **task.first_wave_options(),
    )
