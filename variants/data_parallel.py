"""The tile matmul: one program a tile, swizzled order. What every variant is compared with.

The P = 0 case of triton-lang/triton#1393.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config
from common.launcher import Launch

CARD = Card(
    idea="one program a tile (P = 0), the tile matmul that every variant is compared with",
    position="baseline",
    decomposition="data_parallel",
    fix_up="none: one program a tile",
    kernels=("full_tiles",),
    default=Config(block=(128, 128, 32), num_warps=4, num_stages=3, programs=0, order="swizzled"),
    tile_orders=("swizzled",),
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
def full_tiles(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    tile = tl.program_id(0)
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
    """Start one program a tile."""
    task.run(
        full_tiles, task.schedule.dp_tiles,
        task.a, task.b, task.c, *task.sizes,
        **task.blocks, GROUP_M=task.group_m, ACC_TYPE=task.acc_type, **task.first_wave_options(),
    )
