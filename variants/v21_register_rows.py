"""Rows that two accumulators share are read from shared memory once, into registers.

If shared memory gives and takes 128 bytes a clock, a wgmma's operands and what the TMA writes together, a tile of 64 or
128 rows waits for shared memory longer than for the tensor cores. Two accumulators side by side multiply the
same rows of A, which two wgmmas read twice; from registers both take them for nothing. The next rows are read while the
last wgmmas are in flight, so that there are two sets of registers, and two iterations in one.
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
from common.launcher import Launch, is_sum
from common.tma import descriptor, is_transposed

CARD = Card(
    idea="the rows that two accumulators share are read from shared memory once, into registers",
    position="beyond the thread",
    parent="v17",
    rejected="no faster than v17 in any class of shapes, slower where tiles are many",
    changed=("mac_step", "mac_loop"),
    diff_budget=60,
    language="gluon",
    twin="v09",
    decomposition="whole_waves",
    fix_up="v14's",
    kernels=("persistent_tiles",),
    default=Config(block=(128, 160, 64), num_warps=8, num_stages=5, order="swizzled"),
    tile_orders=("swizzled",),
    workspace=("counters", "range_partials"),
    lock_lifetime="a counter a shared tile, reset by the last peer to arrive",
    contract=Contract(
        dtypes=("float16", "bfloat16"), divisible=False, layouts="tma", wide_offsets=True,
        architectures=("sm_90",), least_block=(64, 64, 64), two_powers=True,
    ),
)

CONFIGS = (
    Config(block=(128, 160, 64), num_warps=8, num_stages=5, order="swizzled"),
    Config(block=(128, 96, 64), num_warps=8, num_stages=7, order="swizzled"),
    Config(block=(128, 192, 64), num_warps=8, num_stages=4, order="swizzled"),
    Config(block=(64, 160, 64), num_warps=4, num_stages=6, order="swizzled"),
    Config(block=(64, 192, 64), num_warps=4, num_stages=5, order="swizzled"),
    Config(block=(64, 96, 64), num_warps=4, num_stages=7, order="swizzled"),
    Config(block=(160, 128, 64), num_warps=8, num_stages=5, order="swizzled"),
    Config(block=(192, 128, 64), num_warps=8, num_stages=4, order="swizzled"),
    Config(block=(96, 128, 64), num_warps=8, num_stages=6, order="swizzled"),
    Config(block=(160, 64, 64), num_warps=4, num_stages=6, order="swizzled"),
    Config(block=(192, 64, 64), num_warps=4, num_stages=5, order="swizzled"),
    Config(block=(96, 64, 64), num_warps=4, num_stages=7, order="swizzled"),
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
    a_desc, b_left_desc, b_right_desc, a_ring, b_left_ring, b_right_ring, full, empty,
    tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    LEFT: gl.constexpr = b_left_ring.shape[1] if B_TRANSPOSED else b_left_ring.shape[2]
    BYTES: gl.constexpr = a_desc.nbytes_per_cta + b_left_desc.nbytes_per_cta + b_right_desc.nbytes_per_cta
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
            mbarrier.expect(ready, BYTES)
            tma.async_load(a_desc, [k, row] if A_TRANSPOSED else [row, k], ready, a_ring.index(stage))
            tma.async_load(b_left_desc, [column, k] if B_TRANSPOSED else [k, column], ready, b_left_ring.index(stage))
            right = column + LEFT
            tma.async_load(b_right_desc, [right, k] if B_TRANSPOSED else [k, right], ready, b_right_ring.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def mac_step(
    left, right, a_ring, b_left_ring, b_right_ring, full, stage, phase, use_acc,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    a, b_left, b_right = a_ring.index(stage), b_left_ring.index(stage), b_right_ring.index(stage)
    if A_TRANSPOSED:
        a = a.permute([1, 0])
    if B_TRANSPOSED:
        b_left, b_right = b_left.permute([1, 0]), b_right.permute([1, 0])
    mbarrier.wait(full.index(stage), phase)
    rows = a.load(gl.DotOperandLayout(0, left.type.layout, 2))
    left = warpgroup_mma(rows, b_left, left, use_acc=use_acc, is_async=True)
    rows = gl.convert_layout(rows, gl.DotOperandLayout(0, right.type.layout, 2), assert_trivial=True)
    right = warpgroup_mma(rows, b_right, right, use_acc=use_acc, is_async=True)
    return left, right


@gluon.jit
def mac_loop(
    left, right, a_ring, b_left_ring, b_right_ring, full, empty, stage, phase, start, stop,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):
    STAGES: gl.constexpr = a_ring.shape[0]
    odd = (stop - start) % 2
    if odd == 1:
        left, right = mac_step(
            left, right, a_ring, b_left_ring, b_right_ring, full, stage, phase, False, A_TRANSPOSED, B_TRANSPOSED,
        )
        left, right = warpgroup_mma_wait(0, deps=[left, right])
        mbarrier.arrive(empty.index(stage), count=1)
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    last = 0
    # Two iterations in one: the rows of one may not be written over while its wgmmas may still read them.
    for pair in range((stop - start) // 2):
        for half in gl.static_range(2):
            left, right = mac_step(
                left, right, a_ring, b_left_ring, b_right_ring, full, stage, phase, pair + odd + half != 0, A_TRANSPOSED, B_TRANSPOSED,
            )
            # This iteration's two wgmmas stay in flight; those before have ended, and their stage is free.
            left, right = warpgroup_mma_wait(2, deps=[left, right])
            mbarrier.arrive(empty.index(last), count=1, pred=pair + half != 0)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
    left, right = warpgroup_mma_wait(0, deps=[left, right])
    mbarrier.arrive(empty.index(last), count=1, pred=stop - start != 1)
    return left, right, stage, phase


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
def store_part(accumulator, c_ptr, row, column, M, N, stride_cm, stride_cn):
    BLOCK_M: gl.constexpr = accumulator.shape[0]
    BLOCK_N: gl.constexpr = accumulator.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
    c = gl.convert_layout(accumulator.to(c_ptr.dtype.element_ty), LAYOUT)
    rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    offsets = rows.to(gl.int64)[:, None] * stride_cm + columns.to(gl.int64)[None, :] * stride_cn
    gl.store(c_ptr + offsets, c, mask=(rows < M)[:, None] & (columns < N)[None, :])


@gluon.jit
def store_tile(
    left, right, c_left_desc, c_right_desc, c_ptr, c_left, c_right, row, column, M, N, stride_cm, stride_cn,
    C_TRANSPOSED: gl.constexpr,
):
    LEFT: gl.constexpr = left.shape[1]
    if c_left_desc is not None:
        left, right = left.to(c_left.dtype), right.to(c_right.dtype)
        if C_TRANSPOSED:
            left, right = left.permute([1, 0]), right.permute([1, 0])
        # The last tile must have left the shared memory.
        tma.store_wait(0)
        gl.barrier()
        c_left.store(left)
        c_right.store(right)
        fence_async_shared()
        gl.barrier()
        tma.async_store(c_left_desc, [column, row] if C_TRANSPOSED else [row, column], c_left)
        column += LEFT
        tma.async_store(c_right_desc, [column, row] if C_TRANSPOSED else [row, column], c_right)
    else:
        store_part(left, c_ptr, row, column, M, N, stride_cm, stride_cn)
        store_part(right, c_ptr, row, column + LEFT, M, N, stride_cm, stride_cn)


@gluon.jit
def multiply(
    c_left_desc, c_right_desc, c_ptr, partials_ptr, counters_ptr, a_ring, b_left_ring, b_right_ring, c_left, c_right, full, empty,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, GROUP_M: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, C_TRANSPOSED: gl.constexpr,
):
    BLOCK_N: gl.constexpr = LEFT + RIGHT
    LEFT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, LEFT, 16])
    RIGHT_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, RIGHT, 16])
    stage = 0
    phase = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        tile, part, start, stop = unit_of_work(unit, whole_tiles, sk_tiles, split, iters_per_tile)
        left = gl.zeros((BLOCK_M, LEFT), gl.float32, LEFT_LAYOUT)
        right = gl.zeros((BLOCK_M, RIGHT), gl.float32, RIGHT_LAYOUT)
        left, right, stage, phase = mac_loop(
            left, right, a_ring, b_left_ring, b_right_ring, full, empty, stage, phase, start, stop, A_TRANSPOSED, B_TRANSPOSED,
        )
        last = True
        if unit >= whole_tiles:
            left_vector, right_vector = in_register_order(left), in_register_order(right)
            left_elements = gl.arange(0, BLOCK_M * LEFT, layout=left_vector.type.layout)
            right_elements = BLOCK_M * LEFT + gl.arange(0, BLOCK_M * RIGHT, layout=right_vector.type.layout)
            slot = partials_ptr + (tile * split).to(gl.int64) * (BLOCK_M * BLOCK_N)
            gl.store(slot + part.to(gl.int64) * (BLOCK_M * BLOCK_N) + left_elements, left_vector)
            gl.store(slot + part.to(gl.int64) * (BLOCK_M * BLOCK_N) + right_elements, right_vector)
            # All warps have stored before one thread publishes it; the counter's release covers what the barrier has seen.
            gl.barrier()
            last = gl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == split - 1
            if last:
                left_vector = gl.zeros([BLOCK_M * LEFT], gl.float32, left_vector.type.layout)
                right_vector = gl.zeros([BLOCK_M * RIGHT], gl.float32, right_vector.type.layout)
                for _ in range(split):
                    left_vector += gl.load(slot + left_elements, cache_modifier=".cg")
                    right_vector += gl.load(slot + right_elements, cache_modifier=".cg")
                    slot += BLOCK_M * BLOCK_N
                left = in_matrix_order(left_vector, BLOCK_M, LEFT, LEFT_LAYOUT)
                right = in_matrix_order(right_vector, BLOCK_M, RIGHT, RIGHT_LAYOUT)
                gl.store(counters_ptr + tile, 0)
        if last:
            tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
            store_tile(
                left, right, c_left_desc, c_right_desc, c_ptr, c_left, c_right,
                tile_m * BLOCK_M, tile_n * BLOCK_N, M, N, stride_cm, stride_cn, C_TRANSPOSED,
            )
    if c_left_desc is not None:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "stride_cm", "stride_cn", "tiles_m", "tiles_n", "units", "whole_tiles", "sk_tiles", "split", "iters_per_tile"])
def persistent_tiles(
    a_desc, b_left_desc, b_right_desc, c_left_desc, c_right_desc, c_ptr, partials_ptr, counters_ptr,
    M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
    BLOCK_M: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, C_TRANSPOSED: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_shape, a_desc.layout)
    b_left_ring = gl.allocate_shared_memory(b_left_desc.dtype, [STAGES] + b_left_desc.block_shape, b_left_desc.layout)
    b_right_ring = gl.allocate_shared_memory(b_right_desc.dtype, [STAGES] + b_right_desc.block_shape, b_right_desc.layout)
    DTYPE: gl.constexpr = a_desc.dtype
    LEFT_SHAPE: gl.constexpr = [LEFT, BLOCK_M] if C_TRANSPOSED else [BLOCK_M, LEFT]
    RIGHT_SHAPE: gl.constexpr = [RIGHT, BLOCK_M] if C_TRANSPOSED else [BLOCK_M, RIGHT]
    c_left = gl.allocate_shared_memory(DTYPE, LEFT_SHAPE, gl.NVMMASharedLayout.get_default_for(LEFT_SHAPE, DTYPE))
    c_right = gl.allocate_shared_memory(DTYPE, RIGHT_SHAPE, gl.NVMMASharedLayout.get_default_for(RIGHT_SHAPE, DTYPE))
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (multiply, (
                c_left_desc, c_right_desc, c_ptr, partials_ptr, counters_ptr,
                a_ring, b_left_ring, b_right_ring, c_left, c_right, full, empty,
                M, N, stride_cm, stride_cn, tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, LEFT, RIGHT, GROUP_M, A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED,
            )),
            (load_operands, (
                a_desc, b_left_desc, b_right_desc, a_ring, b_left_ring, b_right_ring, full, empty,
                tiles_m, tiles_n, units, whole_tiles, sk_tiles, split, iters_per_tile,
                BLOCK_M, LEFT + RIGHT, BLOCK_K, GROUP_M, A_TRANSPOSED, B_TRANSPOSED,
            )),
        ],
        [1], [24],
    )


def launch(task: Launch) -> None:
    """Start the persistent programs, for C or for its transpose; fewer where there is less work than programs."""
    schedule, (block_m, block_n, block_k) = task.schedule, task.config.block
    turned = is_sum(block_m)
    first, second, wide, other = (task.b, task.a, block_m, block_n) if turned else (task.a, task.b, block_n, block_m)
    left = 1 << wide.bit_length() - 1
    widths, step = (left, wide - left), -1 if turned else 1
    by_tma = is_transposed(task.c) is not None
    task.run(
        persistent_tiles, min(schedule.programs, schedule.units), descriptor(first, (other, block_k)[::step]),
        *(descriptor(second, (block_k, width)[::step]) for width in widths),
        *(descriptor(task.c, (other, width)[::step]) if by_tma else None for width in widths),
        task.c, task.partials, task.counters,
        *task.c.shape[::step], *task.c.stride()[::step], *(schedule.tiles_m, schedule.tiles_n)[::step],
        schedule.units, schedule.dp_tiles, schedule.sk_tiles, schedule.split, schedule.iters_per_tile,
        BLOCK_M=other, LEFT=left, RIGHT=wide - left, BLOCK_K=block_k, GROUP_M=task.group_m, STAGES=task.config.num_stages,
        A_TRANSPOSED=is_transposed(first) != turned, B_TRANSPOSED=is_transposed(second) != turned,
        C_TRANSPOSED=bool(is_transposed(task.c)) != turned, **task.first_wave_options(),
    )
