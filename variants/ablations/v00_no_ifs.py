"""v00 with both `if`s out of the loop: a program writes its tile after the loop.

Right where no program changes tile, as at P = tiles. Claim: triton-lang/triton#1393, opening post.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Contract
from common.launcher import Launch

CARD = Card(
    idea="both ifs leave the loop; right where no program changes tile",
    position="ablation of v00",
    parent="v00",
    reconstructed=True,
    decomposition="always_two_tile",
    fix_up="store by a program that did the whole tile, else atomic_add into zeroed C",
    kernels=("monolithic",),
    changed=("first_wave",),
    diff_budget=30,
    default=Config(block=(64, 64, 64), num_warps=4, num_stages=3),
    zeroed_output=True,
    contract=Contract(most_tiles=1),
    claims=("C02",),
)


@triton.jit
def tile_coordinates(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    return tile // tiles_n, tile % tiles_n


@triton.jit
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
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for iteration in range(start, end):
        tile = iteration // iters_per_tile
        tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        rows = tl.max_contiguous(tl.multiple_of(rows % M, BLOCK_M), BLOCK_M)
        columns = tl.max_contiguous(tl.multiple_of(columns % N, BLOCK_N), BLOCK_N)
        ks = (iteration % iters_per_tile) * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak)
        b = tl.load(b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn)
        accumulator = tl.dot(a, b, accumulator, out_dtype=ACC_TYPE)
    tile = (end - 1) // iters_per_tile
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    if end - start == iters_per_tile:
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
    elif end > start:
        tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)


@triton.jit
def full_tiles(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    programs, sk_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    tile = tl.program_id(0) - programs + sk_tiles
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


@triton.jit(do_not_specialize=["full", "rest", "iters_per_tile", "programs", "sk_tiles"])
def monolithic(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    full, rest, iters_per_tile, programs, sk_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr, SEM: tl.constexpr,
):
    if tl.program_id(0) < programs:
        first_wave(
            a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            full, rest, iters_per_tile, BLOCK_M, BLOCK_N, BLOCK_K, ACC_TYPE, SEM,
        )
    else:
        full_tiles(
            a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            programs, sk_tiles, BLOCK_M, BLOCK_N, BLOCK_K, ACC_TYPE,
        )


def launch(task: Launch) -> None:
    """Start one kernel of P Stream-K programs and one program for each remaining tile."""
    schedule = task.schedule
    programs = schedule.programs if schedule.sk_tiles else 0
    task.run(
        monolithic, programs + schedule.dp_tiles,
        task.a, task.b, task.c, *task.sizes, schedule.full, schedule.rest, schedule.iters_per_tile,
        programs, schedule.sk_tiles,
        **task.blocks, ACC_TYPE=task.acc_type, SEM=task.config.sem, **task.first_wave_options(),
    )
