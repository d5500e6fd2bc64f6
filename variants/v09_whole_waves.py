"""One persistent kernel that waits for nobody: whole waves of tiles, then the rest in equal K ranges, range by range.

Programs stay in step (at any moment all of them read the same part of K), which keeps A and B in the L2. A shared tile
is put together by the last program to arrive, which adds the partial sums in the order of their ranges: nobody waits,
and the bits do not depend on who came last. Not of the thread; the schedule's cost is what the paper's section 4 calls
quantisation.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Contract
from common.launcher import Launch
from common.tma import is_transposed, plain_descriptor

CARD = Card(
    idea="one persistent kernel: whole waves first, then the remaining tiles in equal K ranges, range by range; the last to arrive adds the partial sums in a fixed order",
    position="beyond the thread",
    parent="v08",
    decomposition="whole_waves",
    fix_up="fp32 partial sums in a workspace; a counter a tile; the last peer to arrive adds them in the order of their ranges, stores C and resets the counter",
    kernels=("persistent_tiles",),
    changed=("kept_inside", "mac_loop", "in_register_order", "in_matrix_order", "store_tile", "persistent_tiles", "first_wave", "full_tiles"),
    diff_budget=220,
    default=Config(block=(128, 128, 64), num_warps=8, num_stages=4, order="swizzled"),
    tile_orders=("swizzled", "linear"),
    workspace=("counters", "range_partials"),
    lock_lifetime="a counter a shared tile, reset by the last peer to arrive",
    contract=Contract(
        dtypes=("float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"),
        divisible=False,
        layouts="any",
        wide_offsets=True,
        epilogue=True,
        tma=True,
        precisions=("ieee", "tf32"),
    ),
)


@triton.jit
def tile_coordinates(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    if GROUP_M == 0:
        tile_m = tile // tiles_n
        tile_n = tile % tiles_n
    else:
        group = tile // (GROUP_M * tiles_n)
        inside = tile % (GROUP_M * tiles_n)
        rows = tl.minimum(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
        tile_m = group * GROUP_M + inside % rows
        tile_n = inside // rows
    return tile_m, tile_n


@triton.jit
def kept_inside(first, size, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """BLOCK indices from `first` on; those past the end are replaced by the last ones inside, so that no load needs a
    mask. Where VECTOR divides the size the replacement keeps groups of VECTOR together, which the hints then say."""
    index = first + tl.arange(0, BLOCK)
    if VECTOR == 1:
        return tl.minimum(index, size - 1)
    group = tl.minimum(index // VECTOR * VECTOR, size - VECTOR)
    return tl.max_contiguous(tl.multiple_of(group + index % VECTOR, VECTOR), VECTOR)


@triton.jit
def mac_loop(
    a_ptr, b_ptr, accumulator, first_row, first_column,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    start, stop,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    VECTOR_M: tl.constexpr, VECTOR_N: tl.constexpr, WHOLE_K: tl.constexpr, OFFSET: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
):
    if TMA:
        # Descriptors instead of pointers: the TMA reads zeros beyond the edges.
        for iteration in range(start, stop):
            k = iteration * BLOCK_K
            a = a_ptr.load([k, first_row]).T if A_TRANSPOSED else a_ptr.load([first_row, k])
            b = b_ptr.load([first_column, k]).T if B_TRANSPOSED else b_ptr.load([k, first_column])
            accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
    else:
        rows = kept_inside(first_row, M, BLOCK_M, VECTOR_M).to(OFFSET)
        columns = kept_inside(first_column, N, BLOCK_N, VECTOR_N).to(OFFSET)
        ks = tl.arange(0, BLOCK_K)
        first_k = tl.cast(start * BLOCK_K, OFFSET)
        a_ptrs = a_ptr + first_k * stride_ak + rows[:, None] * stride_am + ks[None, :].to(OFFSET) * stride_ak
        b_ptrs = b_ptr + first_k * stride_bk + ks[:, None].to(OFFSET) * stride_bk + columns[None, :] * stride_bn
        whole = stop if WHOLE_K else tl.minimum(stop, K // BLOCK_K)
        for _ in range(start, whole):
            accumulator = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
            a_ptrs += BLOCK_K * stride_ak
            b_ptrs += BLOCK_K * stride_bk
        if not WHOLE_K:
            # The mask is here, once a tile, and not in the loop above.
            if whole < stop:
                left = K - whole * BLOCK_K
                a = tl.load(a_ptrs, mask=ks[None, :] < left, other=0.0)
                b = tl.load(b_ptrs, mask=ks[:, None] < left, other=0.0)
                accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, out_dtype=accumulator.dtype)
    return accumulator


@triton.jit
def in_register_order(accumulator, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr):
    """The accumulator as a vector whose consecutive fours lie in one thread and consecutive threads' fours side by
    side, where warps divide the rows as wgmma has them: stored without an exchange between threads. Elsewhere the
    compiler exchanges, and the values are the same."""
    tall: tl.constexpr = min(WARPS, BLOCK_M // 16)
    repeats: tl.constexpr = BLOCK_M // 16 // tall
    split = tl.reshape(accumulator, (repeats, tall, 2, 8, BLOCK_N // 8, 4, 2))
    return tl.reshape(tl.permute(split, (0, 4, 1, 3, 5, 2, 6)), (BLOCK_M * BLOCK_N,))


@triton.jit
def in_matrix_order(vector, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr):
    """What `in_register_order` did, undone."""
    tall: tl.constexpr = min(WARPS, BLOCK_M // 16)
    repeats: tl.constexpr = BLOCK_M // 16 // tall
    split = tl.reshape(vector, (repeats, BLOCK_N // 8, tall, 8, 4, 2, 2))
    return tl.reshape(tl.permute(split, (0, 2, 5, 3, 1, 4, 6)), (BLOCK_M, BLOCK_N))


@triton.jit
def store_tile(
    accumulator, c_ptr, bias_ptr, first_row, first_column, M, N, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OFFSET: tl.constexpr, C_BY_TMA: tl.constexpr, ACTIVATION: tl.constexpr,
):
    rows = first_row + tl.arange(0, BLOCK_M)
    columns = first_column + tl.arange(0, BLOCK_N)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + columns, mask=columns < N, other=0)
        accumulator += bias.to(accumulator.dtype)[None, :]
    if ACTIVATION == "relu":
        accumulator = tl.where(accumulator < 0, 0, accumulator)
    elif ACTIVATION == "gelu":
        accumulator = 0.5 * accumulator * (1.0 + tl.erf(accumulator * 0.7071067811865476))
    elif ACTIVATION == "silu":
        accumulator = accumulator / (1.0 + tl.exp(-accumulator))
    if C_BY_TMA:
        c_ptr.store([first_row, first_column], accumulator.to(c_ptr.dtype))
    else:
        c_ptrs = c_ptr + rows[:, None].to(OFFSET) * stride_cm + columns[None, :].to(OFFSET) * stride_cn
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


@triton.jit(do_not_specialize=["M", "N", "K", "sk_tiles", "split", "iters_per_tile", "units"])
def persistent_tiles(
    a_ptr, b_ptr, c_ptr, bias_ptr, partials_ptr, counters_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    sk_tiles, split, iters_per_tile, units,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, WARPS: tl.constexpr,
    ALIGN_AM: tl.constexpr, ALIGN_AK: tl.constexpr, ALIGN_BK: tl.constexpr, ALIGN_BN: tl.constexpr, ALIGN_CM: tl.constexpr,
    VECTOR_M: tl.constexpr, VECTOR_N: tl.constexpr, WHOLE_K: tl.constexpr, SPLIT: tl.constexpr, OFFSET: tl.constexpr,
    TMA: tl.constexpr, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr, C_BY_TMA: tl.constexpr, FLATTEN: tl.constexpr,
    ACC_TYPE: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
):
    # A multiple that the launcher has checked, written so that the compiler sees it.
    stride_am = stride_am // ALIGN_AM * ALIGN_AM
    stride_ak = stride_ak // ALIGN_AK * ALIGN_AK
    stride_bk = stride_bk // ALIGN_BK * ALIGN_BK
    stride_bn = stride_bn // ALIGN_BN * ALIGN_BN
    stride_cm = stride_cm // ALIGN_CM * ALIGN_CM
    N = N // VECTOR_N * VECTOR_N
    # FLATTEN makes one loop of this and the one inside, so that a tile's loads begin before the last one is stored.
    for unit in tl.range(tl.program_id(0), units - sk_tiles * split, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = tile_coordinates(sk_tiles + unit, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
        accumulator = mac_loop(
            a_ptr, b_ptr, accumulator, tile_m * BLOCK_M, tile_n * BLOCK_N,
            M, N, K, stride_am, stride_ak, stride_bk, stride_bn, 0, iters_per_tile,
            BLOCK_M, BLOCK_N, BLOCK_K, VECTOR_M, VECTOR_N, WHOLE_K, OFFSET, PRECISION, TMA, A_TRANSPOSED, B_TRANSPOSED,
        )
        store_tile(
            accumulator, c_ptr, bias_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N,
            M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, OFFSET, C_BY_TMA, ACTIVATION,
        )
    if SPLIT:
        # All programs come here together: where tiles are shared, the others are whole waves.
        for unit in range(tl.program_id(0), sk_tiles * split, tl.num_programs(0)):
            part = unit // sk_tiles
            tile = unit % sk_tiles
            start = part * (iters_per_tile // split) + tl.minimum(part, iters_per_tile % split)
            stop = (part + 1) * (iters_per_tile // split) + tl.minimum(part + 1, iters_per_tile % split)
            tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
            accumulator = mac_loop(
                a_ptr, b_ptr, accumulator, tile_m * BLOCK_M, tile_n * BLOCK_N,
                M, N, K, stride_am, stride_ak, stride_bk, stride_bn, start, stop,
                BLOCK_M, BLOCK_N, BLOCK_K, VECTOR_M, VECTOR_N, WHOLE_K, OFFSET, PRECISION, TMA, A_TRANSPOSED, B_TRANSPOSED,
            )
            slot = partials_ptr + (tile * split).to(tl.int64) * (BLOCK_M * BLOCK_N)
            elements = tl.arange(0, BLOCK_M * BLOCK_N)
            tl.store(slot + part.to(tl.int64) * (BLOCK_M * BLOCK_N) + elements, in_register_order(accumulator, BLOCK_M, BLOCK_N, WARPS))
            # All warps have stored before one thread publishes it; the counter's release covers what the barrier has seen.
            tl.debug_barrier()
            if tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu") == split - 1:
                total = tl.zeros((BLOCK_M * BLOCK_N,), dtype=ACC_TYPE)
                for _ in range(split):
                    total += tl.load(slot + elements, cache_modifier=".cg")
                    slot += BLOCK_M * BLOCK_N
                store_tile(
                    in_matrix_order(total, BLOCK_M, BLOCK_N, WARPS), c_ptr, bias_ptr, tile_m * BLOCK_M, tile_n * BLOCK_N,
                    M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, OFFSET, C_BY_TMA, ACTIVATION,
                )
                tl.store(counters_ptr + tile, 0)


def launch(task: Launch) -> None:
    """Start the persistent programs; fewer where there is less work than programs."""
    schedule, config = task.schedule, task.config
    block_m, block_n, block_k = config.block
    m, n, k, *strides = task.sizes
    a, b, c, by_tma = task.a, task.b, task.c, config.tma and k > 0
    vector = 16 // task.a.element_size()
    if by_tma:
        strides[:4] = [0] * 4  # in the descriptors; not here, where each kind of stride would be compiled for
    aligned = [vector if stride % vector == 0 else 1 for stride in strides]
    alone = schedule.programs <= task.sms
    # A tile of C that the TMA stores has shared memory of its own, which programs that share an SM do not have.
    c_by_tma = by_tma and alone and is_transposed(c) is False
    if by_tma:
        a, b = plain_descriptor(a, (block_m, block_k)), plain_descriptor(b, (block_k, block_n))
    if c_by_tma:
        c = plain_descriptor(c, (block_m, block_n))
    task.run(
        persistent_tiles, min(schedule.programs, schedule.units),
        a, b, c, task.bias, task.partials, task.counters, m, n, k, *strides,
        schedule.sk_tiles, schedule.split, schedule.iters_per_tile, schedule.units,
        **task.blocks, GROUP_M=task.group_m, WARPS=config.num_warps,
        ALIGN_AM=aligned[0], ALIGN_AK=aligned[1], ALIGN_BK=aligned[2], ALIGN_BN=aligned[3], ALIGN_CM=aligned[4],
        VECTOR_M=vector if m % vector == 0 or by_tma else 1, VECTOR_N=vector if n % vector == 0 else 1,
        WHOLE_K=by_tma or k % block_k == 0, SPLIT=schedule.split > 1, OFFSET=task.offset_type,
        TMA=by_tma, A_TRANSPOSED=bool(by_tma and is_transposed(task.a)), B_TRANSPOSED=bool(by_tma and is_transposed(task.b)),
        C_BY_TMA=c_by_tma, FLATTEN=by_tma and alone,
        ACC_TYPE=task.acc_type, PRECISION=config.precision, ACTIVATION=task.activation or "none", **task.first_wave_options(),
    )
