"""No atomics on C: partial sums go through a scratchpad, and the owner of a tile adds them up.

Reconstructed from the paper (arXiv 2301.03598, section 4) after triton-lang/triton#1393, comment 3, which names it without code.
"""

from __future__ import annotations

import triton
import triton.language as tl

from common.card import Card, Config, Defect
from common.launcher import Launch

CARD = Card(
    idea="a non-owner writes its fp32 partial sum to a scratchpad slot and raises a flag; the owner waits, adds and stores",
    position="comment 3",
    reconstructed=True,
    parent="v01",
    decomposition="always_two_tile",
    fix_up="scratchpad slots and flags; the owner did the tile's first iteration and adds its peers in ascending order",
    kernels=("first_wave", "full_tiles"),
    changed=("first_wave", "mac_loop"),
    diff_budget=80,
    default=Config(block=(128, 128, 32), num_warps=4, num_stages=3, full_tiles_warps=4, full_tiles_stages=3),
    waits_for="higher",
    workspace=("partials", "flags"),
    lock_lifetime="one launch: set to 0 before it, left at 1",
    claims=("C06",),
    defects=(Defect("not_co_resident", "waits for higher programs: hangs where one program alone is resident; the guard is that of v06, stricter than needed", "tests/test_launcher.py::test_more_peers_than_resident_programs_is_refused"),),
)


@triton.jit
def tile_coordinates(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    return tile // tiles_n, tile % tiles_n


@triton.jit
def mac_loop(
    a_ptr, b_ptr, c_ptr, partials_ptr, flags_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    start, stop, full, rest, iters_per_tile,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    program = tl.program_id(0)
    tile = start // iters_per_tile
    tile_m, tile_n = tile_coordinates(tile, M, N, BLOCK_M, BLOCK_N)
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
    slot = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if start % iters_per_tile != 0:
        tl.store(partials_ptr + program * BLOCK_M * BLOCK_N + slot, accumulator)
        # Every warp's part must be stored before one thread raises the flag.
        tl.debug_barrier()
        tl.atomic_xchg(flags_ptr + program, 1)
    else:
        peer = program + 1
        covered = stop
        while covered < (tile + 1) * iters_per_tile:
            while tl.atomic_cas(flags_ptr + peer, 1, 1) != 1:
                pass
            accumulator += tl.load(partials_ptr + peer * BLOCK_M * BLOCK_N + slot)
            peer += 1
            covered = peer * full + tl.minimum(peer, rest)
        c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["full", "rest", "iters_per_tile"])
def first_wave(
    a_ptr, b_ptr, c_ptr, partials_ptr, flags_ptr,
    M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    full, rest, iters_per_tile,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
):
    program = tl.program_id(0)
    start = program * full + tl.minimum(program, rest)
    end = (program + 1) * full + tl.minimum(program + 1, rest)
    while start < end:
        stop = tl.minimum((start // iters_per_tile + 1) * iters_per_tile, end)
        mac_loop(
            a_ptr, b_ptr, c_ptr, partials_ptr, flags_ptr,
            M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            start, stop, full, rest, iters_per_tile, BLOCK_M, BLOCK_N, BLOCK_K, ACC_TYPE,
        )
        start = stop


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
        task.a, task.b, task.c, task.partials, task.flags,
        *task.sizes, schedule.full, schedule.rest, schedule.iters_per_tile,
        **task.blocks, ACC_TYPE=task.acc_type, **task.first_wave_options(),
    )
    task.run(
        full_tiles, schedule.dp_tiles,
        task.a, task.b, task.c, *task.sizes, schedule.sk_tiles,
        **task.blocks, ACC_TYPE=task.acc_type, **task.full_tiles_options(),
    )
