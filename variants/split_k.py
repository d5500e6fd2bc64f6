"""Fixed split: every tile's K range is cut into the same number of parts, one program a part.

The guess of triton-lang/triton#1393 at what cuBLAS does; the paper's section 3.2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Defect
from common.launcher import Launch

CARD = Card(
    idea="each tile's K range cut into the same number of equal parts, as many as fill one wave",
    position="baseline",
    parent="data_parallel",
    decomposition="split_k",
    fix_up="atomic_add into zeroed C; a plain store when the split is 1",
    kernels=("split_tiles",),
    changed=("split_tiles", "full_tiles"),
    diff_budget=55,
    default=Config(block=(128, 128, 32), num_warps=4, num_stages=3, order="swizzled"),
    tile_orders=("swizzled", "linear"),
    zeroed_output=True,
    defects=(Defect("fp16_rounding", "every peer's atomic add rounds C to fp16; from three peers on the order shows in the bits", "tests/test_defects.py::test_error_grows_with_peers"),),
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


@triton.jit(do_not_specialize=["iters_per_tile", "split"])
def split_tiles(
    a_ptr, b_ptr, c_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    iters_per_tile, split,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC_TYPE: tl.constexpr, SEM: tl.constexpr,
):
    tile = tl.program_id(0) // split
    part = tl.program_id(0) % split
    start = part * (iters_per_tile // split) + tl.minimum(part, iters_per_tile % split)
    stop = (part + 1) * (iters_per_tile // split) + tl.minimum(part + 1, iters_per_tile % split)
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = start * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for _ in range(start, stop):
        accumulator = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), accumulator, out_dtype=ACC_TYPE)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    if split == 1:
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
    else:
        tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)


def launch(task: Launch) -> None:
    """Start one program for each part of each tile."""
    schedule = task.schedule
    task.run(
        split_tiles, schedule.programs,
        task.a, task.b, task.c, *task.sizes, schedule.iters_per_tile, schedule.split,
        **task.blocks, GROUP_M=task.group_m, ACC_TYPE=task.acc_type, SEM=task.config.sem, **task.first_wave_options(),
    )
