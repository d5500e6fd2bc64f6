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
ROUNDS = ((1, 1), (1000, 1), (1, 1000))
"""Loads that the default warps and the other warps wait for, one after the other: who of them is done first."""


@gluon.jit
def store_numbers(out_ptr, zeros_ptr, first, rounds, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0], [[0]] if gl.num_ctas() > 1 else [])
    numbers = first + gl.arange(0, BLOCK, layout=layout)
    for _ in range(rounds):
        numbers += gl.load(zeros_ptr + numbers)
    gl.store(out_ptr + numbers, numbers)


@gluon.jit
def shares_nothing(out_ptr, zeros_ptr, default_rounds, other_rounds, BLOCK: gl.constexpr):
    gl.warp_specialize(
        [
            (store_numbers, (out_ptr, zeros_ptr, 0, default_rounds, BLOCK)),
            (store_numbers, (out_ptr, zeros_ptr, BLOCK, other_rounds, BLOCK)),
        ],
        [1],
        [24],
    )


def run() -> bool:
    """A launch for each of CLUSTERS and ROUNDS; whether each int32 element is its own index."""
    right = True
    zeros = torch.zeros(2 * BLOCK, dtype=torch.int32, device="cuda")
    for ctas in CLUSTERS:
        for rounds in ROUNDS:
            out = torch.full_like(zeros, -1)
            shares_nothing[(PROGRAMS,)](out, zeros, *rounds, BLOCK=BLOCK, num_warps=4, num_ctas=ctas)
            right &= bool((out.cpu() == torch.arange(2 * BLOCK, dtype=torch.int32)).all())
    return right
