"""C need not be zeroed: a lock with three states decides who stores and who adds.

Source: triton-lang/triton#1393, comment 6.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Defect
from common.launcher import Launch

CARD = Card(
    idea="a three-state lock a tile: the first to arrive stores, the others wait for it and add; C is not zeroed",
    position="comment 6",
    parent="v04",
    decomposition="always_two_tile",
    fix_up="first to arrive (compare-and-swap 0 to 1) stores and sets 2; the others spin until 2, then atomic_add",
    kernels=("first_wave", "full_tiles"),
    changed=("first_wave", "mac_loop"),
    diff_budget=15,
    default=Config(block=(128, 128, 32), num_warps=4, num_stages=3, full_tiles_warps=4, full_tiles_stages=3, order="swizzled"),
    tile_orders=("swizzled", "linear"),
    waits_for="any",
    workspace=("locks",),
    lock_lifetime="one launch: set to 0 before it, left at 2 for shared tiles",
    claims=("C09",),
    defects=(
        Defect("no_barrier_before_lock", "the lock is set after a tensor store without a CTA barrier of its own: other warps may still be storing", "tests/test_defects.py::test_lock_is_set_without_a_barrier", readings=("source", "triton-3.6")),
        Defect("fp16_rounding", "every peer's atomic add rounds C to fp16; from three peers on the order shows in the bits", "tests/test_defects.py::test_error_grows_with_peers"),
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
def mac_loop(
    a_ptr, b_ptr, c_ptr, locks_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    start, stop, iters_per_tile,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC_TYPE: tl.constexpr, SEM: tl.constexpr,
):
    if start == stop:
        return
    tile = start // iters_per_tile
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.max_contiguous(tl.multiple_of(rows % M, BLOCK_M), BLOCK_M)
    columns = tl.max_contiguous(tl.multiple_of(columns % N, BLOCK_N), BLOCK_N)
    ks = (start % iters_per_tile) * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for _ in range(start, stop):
        accumulator = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), accumulator, out_dtype=ACC_TYPE)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    whole = stop - start == iters_per_tile
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    if whole:
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
    elif tl.atomic_cas(locks_ptr + tile, 0, 1) == 0:
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
        tl.atomic_xchg(locks_ptr + tile, 2)
    else:
        while tl.atomic_cas(locks_ptr + tile, 2, 2) != 2:
            pass
        tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)


@triton.jit(do_not_specialize=["full", "rest", "iters_per_tile"])
def first_wave(
    a_ptr, b_ptr, c_ptr, locks_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    full, rest, iters_per_tile,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC_TYPE: tl.constexpr, SEM: tl.constexpr,
):
    program = tl.program_id(0)
    start = program * full + tl.minimum(program, rest)
    end = (program + 1) * full + tl.minimum(program + 1, rest)
    # The end of a tile that a peer began, one whole tile, the start of a tile that a peer ends: each may be empty.
    second = tl.minimum(tl.cdiv(start, iters_per_tile) * iters_per_tile, end)
    third = tl.minimum(second + iters_per_tile, end)
    mac_loop(
        a_ptr, b_ptr, c_ptr, locks_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        start, second, iters_per_tile, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ACC_TYPE, SEM,
    )
    mac_loop(
        a_ptr, b_ptr, c_ptr, locks_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        second, third, iters_per_tile, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ACC_TYPE, SEM,
    )
    mac_loop(
        a_ptr, b_ptr, c_ptr, locks_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        third, end, iters_per_tile, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, ACC_TYPE, SEM,
    )


@triton.jit(do_not_specialize=["sk_tiles"])
def full_tiles(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    sk_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    tile = tl.program_id(0) + sk_tiles
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.max_contiguous(tl.multiple_of(rows % M, BLOCK_M), BLOCK_M)
    columns = tl.max_contiguous(tl.multiple_of(columns % N, BLOCK_N), BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for _ in range(tl.cdiv(K, BLOCK_K)):
        accumulator = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), accumulator, out_dtype=ACC_TYPE)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    # Computed again instead of kept: rows and columns would hold registers through the whole loop.
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn, accumulator.to(c_ptr.dtype.element_ty))


def launch(task: Launch) -> None:
    """Start the Stream-K programs, then one program for each remaining tile."""
    schedule = task.schedule
    task.run(
        first_wave, schedule.programs if schedule.sk_tiles else 0,
        task.a, task.b, task.c, task.locks, *task.sizes, schedule.full, schedule.rest, schedule.iters_per_tile,
        **task.blocks, GROUP_M=task.group_m, ACC_TYPE=task.acc_type, SEM=task.config.sem, **task.first_wave_options(),
    )
    task.run(
        full_tiles, schedule.dp_tiles,
        task.a, task.b, task.c, *task.sizes, schedule.sk_tiles,
        **task.blocks, GROUP_M=task.group_m, ACC_TYPE=task.acc_type, **task.full_tiles_options(),
    )
