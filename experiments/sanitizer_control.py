"""A control for compute-sanitizer: a warp-specialised kernel whose warps share nothing.

What racecheck finds in it is not the kernel's. Triton's default warps write to shared memory which partition the other
warps are to run; a barrier of all warps follows, and the other warps read it.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = 128
PROGRAMS = 264
"""Each stores the same values: racecheck sees a hazard in some of many programs only."""
CLUSTERS = (1, 2)
"""CTAs of a program."""


@gluon.jit
def store_numbers(out_ptr, first: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0], [[0]] if gl.num_ctas() > 1 else [])
    offsets = first + gl.arange(0, BLOCK, layout=layout)
    gl.store(out_ptr + offsets, offsets)


@gluon.jit
def shares_nothing(out_ptr, BLOCK: gl.constexpr):
    gl.warp_specialize(
        [(store_numbers, (out_ptr, 0, BLOCK)), (store_numbers, (out_ptr, BLOCK, BLOCK))],
        [1],
        [24],
    )


def run() -> bool:
    """One launch of CTAs on their own and one of clusters; whether each int32 element is its own index."""
    right = True
    for ctas in CLUSTERS:
        out = torch.full((2 * BLOCK,), -1, dtype=torch.int32, device="cuda")
        shares_nothing[(PROGRAMS,)](out, BLOCK=BLOCK, num_warps=4, num_ctas=ctas)
        right &= bool((out.cpu() == torch.arange(2 * BLOCK, dtype=torch.int32)).all())
    return right
