"""v16's pairs of CTAs with 192 rows as well: a tile of 192x192 for each CTA, as four accumulators."""

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
    idea="192 rows and 192 columns a CTA, as four accumulators: less of A and B from L2 for each multiplication than v16",
    position="beyond the thread",
    parent="v16",
    changed=(
        "load_operands", "mac_loop", "in_register_order", "in_matrix_order", "store_partial", "sum_of_partials", "store_tile",
        "multiply", "persistent_tiles",
    ),
    diff_budget=190,
    language="gluon",
    twin="v09",
    ctas=2,
    decomposition="whole_waves",
    fix_up="v16's, for four accumulators one after the other, behind one counter",
    kernels=("persistent_tiles",),
    default=Config(block=(384, 192, 64), num_warps=8, num_stages=3, order="swizzled"),
    tile_orders=("swizzled",),
    workspace=("counters", "range_partials"),
    lock_lifetime="a counter a shared tile, reset by the last peer to arrive",
    contract=Contract(
        dtypes=("float16", "bfloat16"), divisible=False, layouts="tma", wide_offsets=True,
        architectures=("sm_90",), least_block=(384, 96, 64), three_quarters=("BLOCK_M", "BLOCK_N"),
    ),
)

CONFIGS = (
    Config(block=(384, 192, 64), num_warps=8, num_stages=3, order="swizzled"),
    Config(block=(384, 96, 64), num_warps=4, num_stages=5, order="swizzled"),
)
"""What the kernel is worth launching with. A block is the pair's: each CTA has half of its rows."""


@gluon.constexpr_function
def accumulator_layout(rows, columns, warps):
    """Of two CTAs' accumulator: warps side by side where the rows of one CTA are too few for all of them."""
    down = min(warps, rows // 32)
    return gl.NVMMADistributedLayout([3, 0], [down, warps // down], [16, columns * down // warps, 16], [[1, 0]])


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
    a_up_desc, a_down_desc, b_left_desc, b_right_desc, a_up_ring, a_down_ring, b_left_ring, b_right_ring, full, empty, both_empty,
    tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_up_ring.shape[0]
    UP: gl.constexpr = BLOCK_M // 3 * 2
    LEFT: gl.constexpr = BLOCK_N // 3 * 2
    A_BYTES: gl.constexpr = a_up_desc.nbytes_per_cta + a_down_desc.nbytes_per_cta
    B_BYTES: gl.constexpr = b_left_desc.nbytes_per_cta + b_right_desc.nbytes_per_cta
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
            # The first CTA alone waits here: it writes to both.
            mbarrier.wait(both_empty.index(stage), phase)
            mbarrier.expect(ready, A_BYTES + B_BYTES)
            tma.async_load(a_up_desc, [k, row] if A_TRANSPOSED else [row, k], ready, a_up_ring.index(stage))
            down = row + UP
            tma.async_load(a_down_desc, [k, down] if A_TRANSPOSED else [down, k], ready, a_down_ring.index(stage))
            tma.async_load(b_left_desc, [column, k] if B_TRANSPOSED else [k, column], ready, b_left_ring.index(stage), multicast=True)
            right = column + LEFT
            tma.async_load(b_right_desc, [right, k] if B_TRANSPOSED else [k, right], ready, b_right_ring.index(stage), multicast=True)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def mac_loop(
    up_left, up_right, down_left, down_right, a_up_ring, a_down_ring, b_left_ring, b_right_ring, full, empty, both_empty,
    stage, phase, start, stop, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_up_ring.shape[0]
    # Not `last = stage`: the compiler would take the two for one variable, and `last` for one that the loop leaves alone.
    last = 0
    for iteration in range(start, stop):
        a_up, a_down = a_up_ring.index(stage), a_down_ring.index(stage)
        b_left, b_right = b_left_ring.index(stage), b_right_ring.index(stage)
        if A_TRANSPOSED:
            a_up, a_down = a_up.permute([1, 0]), a_down.permute([1, 0])
        if B_TRANSPOSED:
            b_left, b_right = b_left.permute([1, 0]), b_right.permute([1, 0])
        mbarrier.wait(full.index(stage), phase)
        up_left = warpgroup_mma(a_up, b_left, up_left, use_acc=iteration != start, is_async=True)
        up_right = warpgroup_mma(a_up, b_right, up_right, use_acc=iteration != start, is_async=True)
        down_left = warpgroup_mma(a_down, b_left, down_left, use_acc=iteration != start, is_async=True)
        down_right = warpgroup_mma(a_down, b_right, down_right, use_acc=iteration != start, is_async=True)
        # This iteration's four wgmmas stay in flight; those before have ended, and their stage is free.
        up_left, up_right, down_left, down_right = warpgroup_mma_wait(4, deps=[up_left, up_right, down_left, down_right])
        mbarrier.arrive(empty.index(last), count=1, pred=iteration != start)
        mbarrier.arrive(both_empty.index(last), count=1, pred=iteration != start)
        last = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    up_left, up_right, down_left, down_right = warpgroup_mma_wait(0, deps=[up_left, up_right, down_left, down_right])
    mbarrier.arrive(empty.index(last), count=1)
    mbarrier.arrive(both_empty.index(last), count=1)
    return up_left, up_right, down_left, down_right, stage, phase


@gluon.jit
def in_register_order(accumulator):
    """The accumulator as a vector whose consecutive fours lie in one thread and consecutive threads' fours side by side:
    it is stored in coalesced pieces of 16 bytes a thread without an exchange between threads."""
    BLOCK_M: gl.constexpr = accumulator.shape[0]
    BLOCK_N: gl.constexpr = accumulator.shape[1]
    DOWN: gl.constexpr = min(gl.num_warps(), BLOCK_M // 32)
    ACROSS: gl.constexpr = gl.num_warps() // DOWN
    split = accumulator.reshape([2, BLOCK_M // 32 // DOWN, DOWN, 2, 8, ACROSS, BLOCK_N // 8 // ACROSS, 4, 2])
    return split.permute([0, 1, 6, 5, 2, 4, 7, 3, 8]).reshape([BLOCK_M * BLOCK_N])


@gluon.jit
def in_matrix_order(vector, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    """What `in_register_order` did, undone; no value changes its thread."""
    DOWN: gl.constexpr = min(gl.num_warps(), BLOCK_M // 32)
    ACROSS: gl.constexpr = gl.num_warps() // DOWN
    split = vector.reshape([2, BLOCK_M // 32 // DOWN, BLOCK_N // 8 // ACROSS, ACROSS, DOWN, 8, 4, 2, 2])
    accumulator = split.permute([0, 1, 4, 7, 5, 3, 2, 6, 8]).reshape([BLOCK_M, BLOCK_N])
    return gl.convert_layout(accumulator, LAYOUT, assert_trivial=True)


@gluon.jit
def store_partial(slot, accumulator):
    vector = in_register_order(accumulator)
    gl.store(slot + gl.arange(0, vector.shape[0], layout=vector.type.layout), vector)


@gluon.jit
def sum_of_partials(slot, split, TILE: gl.constexpr, accumulator):
    """The sum of what `store_partial` stored for each range of a tile of TILE elements, in the accumulator's layout."""
    LAYOUT: gl.constexpr = in_register_order(accumulator).type.layout
    elements = gl.arange(0, accumulator.numel, layout=LAYOUT)
    vector = gl.zeros([accumulator.numel], gl.float32, LAYOUT)
    for _ in range(split):
        vector += gl.load(slot + elements, cache_modifier=".cg")
        slot += TILE
    return in_matrix_order(vector, accumulator.shape[0], accumulator.shape[1], accumulator.type.layout)


@gluon.jit
def store_part(accumulator, c_ptr, row, column, M, N, stride_cm, stride_cn):
    BLOCK_M: gl.constexpr = accumulator.shape[0]
    BLOCK_N: gl.constexpr = accumulator.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0], [[1, 0]])
    c = gl.convert_layout(accumulator.to(c_ptr.dtype.element_ty), LAYOUT)
    rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    offsets = rows.to(gl.int64)[:, None] * stride_cm + columns.to(gl.int64)[None, :] * stride_cn
    gl.store(c_ptr + offsets, c, mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def store_tile(
    corners, c_descs, c_ptr, c_tiles, row, column, M, N, stride_cm, stride_cn,
):
    down, right = row + corners[0].shape[0], column + corners[0].shape[1]
    if c_descs[0] is not None:
        # The last tile must have left the shared memory.
        tma.store_wait(0)
        gl.barrier()
        for i in gl.static_range(4):
            c_tiles[i].store(corners[i].to(c_tiles[i].dtype))
        fence_async_shared()
        gl.barrier()
        tma.async_store(c_descs[0], [row, column], c_tiles[0])
        tma.async_store(c_descs[1], [row, right], c_tiles[1])
        tma.async_store(c_descs[2], [down, column], c_tiles[2])
        tma.async_store(c_descs[3], [down, right], c_tiles[3])
    else:
        store_part(corners[0], c_ptr, row, column, M, N, stride_cm, stride_cn)
        store_part(corners[1], c_ptr, row, right, M, N, stride_cm, stride_cn)
        store_part(corners[2], c_ptr, down, column, M, N, stride_cm, stride_cn)
        store_part(corners[3], c_ptr, down, right, M, N, stride_cm, stride_cn)


@gluon.jit
def multiply(
    c_descs, c_ptr, partials_ptr, counters_ptr, a_up_ring, a_down_ring, b_left_ring, b_right_ring, c_tiles, full, empty, both_empty,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    UP: gl.constexpr = BLOCK_M // 3 * 2
    DOWN: gl.constexpr = BLOCK_M // 3
    LEFT: gl.constexpr = BLOCK_N // 3 * 2
    RIGHT: gl.constexpr = BLOCK_N // 3
    TILE: gl.constexpr = BLOCK_M * BLOCK_N
    UP_LEFT: gl.constexpr = accumulator_layout(UP, LEFT, gl.num_warps())
    UP_RIGHT: gl.constexpr = accumulator_layout(UP, RIGHT, gl.num_warps())
    DOWN_LEFT: gl.constexpr = accumulator_layout(DOWN, LEFT, gl.num_warps())
    DOWN_RIGHT: gl.constexpr = accumulator_layout(DOWN, RIGHT, gl.num_warps())
    stage = 0
    phase = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        tile, part, start, stop = unit_of_work(unit, whole_tiles, sk_tiles, split, iters_per_tile)
        up_left = gl.zeros((UP, LEFT), gl.float32, UP_LEFT)
        up_right = gl.zeros((UP, RIGHT), gl.float32, UP_RIGHT)
        down_left = gl.zeros((DOWN, LEFT), gl.float32, DOWN_LEFT)
        down_right = gl.zeros((DOWN, RIGHT), gl.float32, DOWN_RIGHT)
        up_left, up_right, down_left, down_right, stage, phase = mac_loop(
            up_left, up_right, down_left, down_right, a_up_ring, a_down_ring, b_left_ring, b_right_ring, full, empty, both_empty,
            stage, phase, start, stop, A_TRANSPOSED, B_TRANSPOSED,
        )
        last = True
        if unit >= whole_tiles:
            slot = partials_ptr + (tile * split).to(gl.int64) * TILE
            own = slot + part.to(gl.int64) * TILE
            store_partial(own, up_left)
            store_partial(own + UP * LEFT, up_right)
            store_partial(own + UP * BLOCK_N, down_left)
            store_partial(own + UP * BLOCK_N + DOWN * LEFT, down_right)
            # All warps have stored before one thread publishes it; the counter's release covers what the barrier has seen.
            gl.barrier()
            last = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == split - 1
            if last:
                up_left = sum_of_partials(slot, split, TILE, up_left)
                up_right = sum_of_partials(slot + UP * LEFT, split, TILE, up_right)
                down_left = sum_of_partials(slot + UP * BLOCK_N, split, TILE, down_left)
                down_right = sum_of_partials(slot + UP * BLOCK_N + DOWN * LEFT, split, TILE, down_right)
                gl.store(counters_ptr + tile, 0)
        if last:
            tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
            store_tile(
                (up_left, up_right, down_left, down_right), c_descs, c_ptr, c_tiles,
                tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cm, stride_cn,
            )
    if c_descs[0] is not None:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "stride_cm", "stride_cn", "tiles_m", "tiles_n", "units", "whole_tiles", "sk_tiles", "split", "iters_per_tile"])
def persistent_tiles(
    a_up_desc, a_down_desc, b_left_desc, b_right_desc,
    c_up_left_desc, c_up_right_desc, c_down_left_desc, c_down_right_desc, c_ptr, partials_ptr, counters_ptr,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    DTYPE: gl.constexpr = a_up_desc.dtype
    a_up_ring = gl.allocate_shared_memory(DTYPE, [STAGES] + a_up_desc.block_shape, a_up_desc.layout)
    a_down_ring = gl.allocate_shared_memory(DTYPE, [STAGES] + a_down_desc.block_shape, a_down_desc.layout)
    b_left_ring = gl.allocate_shared_memory(DTYPE, [STAGES] + b_left_desc.block_shape, b_left_desc.layout)
    b_right_ring = gl.allocate_shared_memory(DTYPE, [STAGES] + b_right_desc.block_shape, b_right_desc.layout)
    UP: gl.constexpr = BLOCK_M // 3 * 2
    DOWN: gl.constexpr = BLOCK_M // 3
    LEFT: gl.constexpr = BLOCK_N // 3 * 2
    RIGHT: gl.constexpr = BLOCK_N // 3
    UP_LEFT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([UP, LEFT], DTYPE, cga_layout=[[1, 0]])
    UP_RIGHT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([UP, RIGHT], DTYPE, cga_layout=[[1, 0]])
    DOWN_LEFT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DOWN, LEFT], DTYPE, cga_layout=[[1, 0]])
    DOWN_RIGHT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([DOWN, RIGHT], DTYPE, cga_layout=[[1, 0]])
    c_tiles = (
        gl.allocate_shared_memory(DTYPE, [UP, LEFT], UP_LEFT), gl.allocate_shared_memory(DTYPE, [UP, RIGHT], UP_RIGHT),
        gl.allocate_shared_memory(DTYPE, [DOWN, LEFT], DOWN_LEFT), gl.allocate_shared_memory(DTYPE, [DOWN, RIGHT], DOWN_RIGHT),
    )
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    both_empty = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
        mbarrier.init(both_empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (multiply, (
                (c_up_left_desc, c_up_right_desc, c_down_left_desc, c_down_right_desc), c_ptr, partials_ptr, counters_ptr,
                a_up_ring, a_down_ring, b_left_ring, b_right_ring, c_tiles, full, empty, both_empty,
                M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, BLOCK_N, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
            (load_operands, (
                a_up_desc, a_down_desc, b_left_desc, b_right_desc, a_up_ring, a_down_ring, b_left_ring, b_right_ring, full, empty, both_empty,
                tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ],
        [1], [24],
    )


def launch(task: Launch) -> None:
    """Start the persistent programs, two CTAs each; fewer where there is less work than programs."""
    schedule, (block_m, block_n, block_k) = task.schedule, task.config.block
    by_tma = is_transposed(task.c) is False
    # Rows that one CTA has of the upper and of the lower accumulators, and columns of the left and of the right ones.
    heights, widths = (block_m // 3, block_m // 6), (block_n // 3 * 2, block_n // 3)
    task.run(
        persistent_tiles, min(schedule.programs, schedule.units),
        *(descriptor(task.a, (height, block_k), 2, 0) for height in heights),
        *(descriptor(task.b, (block_k, width), 2, None) for width in widths),
        *(descriptor(task.c, (height, width), 2, 0) if by_tma else None for height in heights for width in widths),
        task.c, task.partials, task.counters,
        *task.c.shape, *task.c.stride(), schedule.tiles_m, schedule.tiles_n,
        schedule.units, schedule.dp_tiles, schedule.sk_tiles, schedule.split, schedule.iters_per_tile,
        **task.blocks, GROUP_M=task.group_m, STAGES=task.config.num_stages,
        A_TRANSPOSED=is_transposed(task.a), B_TRANSPOSED=is_transposed(task.b), num_ctas=2, **task.first_wave_options(),
    )
