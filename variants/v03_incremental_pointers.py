"""Pointers advance in the loop; only a tile change, in an if in the loop, moves rows and columns.

Source: triton-lang/triton#1393, comment 4. A program that touches a third tile loads from wrong places: the launcher refuses it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Contract, Defect
from common.launcher import Launch

CARD = Card(
    idea="pointers advance by BLOCK_K in the loop; a tile change moves rows and columns by the difference to the program's first tile",
    position="comment 4",
    parent="v01",
    decomposition="always_two_tile",
    fix_up="store by a program that did the whole tile, else atomic_add into zeroed C",
    kernels=("first_wave", "full_tiles"),
    changed=("first_wave",),
    diff_budget=35,
    default=Config(block=(128, 128, 32), num_warps=16, num_stages=1, full_tiles_warps=4, full_tiles_stages=3),
    zeroed_output=True,
    contract=Contract(most_tiles=2),
    claims=("C07",),
    defects=(
        Defect("third_tile", "a program that spans three tiles loads the third from wrong places", "tests/test_defects.py::test_third_tile_is_loaded_from_wrong_places"),
        Defect("nan_spread", "resetting by a multiplication with 0 keeps NaN and Inf: they reach the same rows and columns of the program's next tile", "tests/test_defects.py::test_nan_spreads_to_the_next_tile"),
        Defect("fp16_rounding", "every peer's atomic add rounds C to fp16; from three peers on the order shows in the bits", "tests/test_defects.py::test_error_grows_with_peers"),
    ),
)


@triton.jit
def tile_coordinates(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    return tile // tiles_n, tile % tiles_n


@triton.jit(do_not_specialize=["full", "rest", "iters_per_tile"])
def first_wave(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    full, rest, iters_per_tile,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr, SEM: tl.constexpr,
):
    program = tl.program_id(0)
    start = program * full + tl.minimum(program, rest)
    end = (program + 1) * full + tl.minimum(program + 1, rest)
    tile = start // iters_per_tile
    first_m, first_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
    rows = first_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = first_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = (start % iters_per_tile) * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for iteration in range(start, end):
        accumulator = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), accumulator, out_dtype=ACC_TYPE)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        if (iteration + 1) % iters_per_tile == 0:
            tile = iteration // iters_per_tile
            tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
            c_rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
            c_columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
            c_ptrs = c_ptr + c_rows[:, None] * stride_cm + c_columns[None, :] * stride_cn
            if iteration + 1 - iters_per_tile >= start:
                tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
            else:
                tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)
            if iteration != end:
                accumulator *= 0
            # The difference is to the program's first tile, not to the last one: right for one change only.
            tile += 1
            tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
            rows += (tile_m - first_m) * BLOCK_M
            columns += (tile_n - first_n) * BLOCK_N
            ks = tl.arange(0, BLOCK_K)
            a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
            b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    if end % iters_per_tile != 0:
        tile = end // iters_per_tile
        tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
        tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)


@triton.jit(do_not_specialize=["sk_tiles"])
def full_tiles(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    sk_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    tile = tl.program_id(0) + sk_tiles
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
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
        task.a, task.b, task.c, *task.sizes, schedule.full, schedule.rest, schedule.iters_per_tile,
        **task.blocks, ACC_TYPE=task.acc_type, SEM=task.config.sem, **task.first_wave_options(),
    )
    task.run(
        full_tiles, schedule.dp_tiles,
        task.a, task.b, task.c, *task.sizes, schedule.sk_tiles,
        **task.blocks, ACC_TYPE=task.acc_type, **task.full_tiles_options(),
    )
