"""The time of a launch as a formula: rounds of MAC iterations, units of work, memory, fix-up and the launch itself.

`predict` is what the choice among kernels and the fit of its constants share. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from common.decomposition import WaveSchedule, cdiv
from common.problem import Problem

SHARPNESS = 4.0
"""Exponent of the norm that joins the time of arithmetic and of memory: they overlap, but not where both are equal."""
NOMINAL_TILE = 128 * 128
"""Elements of the tile for which `peer_us` counts."""


@dataclass(frozen=True)
class Constants:
    """What the formula knows of a kernel with one tile on one GPU.

    `launch_us`: an empty launch. `unit_us`: start and end of a unit of work. `step_us`: one MAC iteration of a program
    that has the GPU to itself; `busy_us`: how much longer it takes when all programs run. `terabytes`: bytes of memory
    in TB/s, A and B read once, C written once. `fix_up_us`: putting tiles together at all; `peer_us`: for each K range.
    """

    launch_us: float
    unit_us: float
    step_us: float
    busy_us: float
    terabytes: float
    fix_up_us: float
    peer_us: float


NAMES = tuple(field.name for field in fields(Constants))


@dataclass(frozen=True)
class Work:
    """What a schedule asks of the longest-working program and of the memory.

    `steps`: MAC iterations one after another. `busy_steps`: the same, each times the share of programs that run.
    `units`: units of work one after another. `bytes`: to and from memory. `ranges`: K ranges of a shared tile in
    nominal tiles, 0 where none is shared.
    """

    steps: float
    busy_steps: float
    units: float
    bytes: float
    ranges: float

    @classmethod
    def of(cls, problem: Problem, block: tuple[int, int, int], schedule: WaveSchedule) -> Work:
        programs, iters = schedule.programs, schedule.iters_per_tile
        whole, shared = cdiv(schedule.dp_tiles, programs), cdiv(schedule.sk_tiles * schedule.split, programs)
        longest = cdiv(iters, schedule.split)
        busy = schedule.dp_tiles * iters + schedule.sk_tiles * schedule.split * longest
        return cls(
            steps=whole * iters + shared * longest,
            busy_steps=busy / programs,
            units=whole + shared,
            bytes=problem.min_bytes,
            ranges=schedule.split * block[0] * block[1] / NOMINAL_TILE if schedule.sk_tiles else 0.0,
        )


def table(works: list[Work]) -> np.ndarray:
    """One column a work, rows in the order of `Work`."""
    return np.array([[getattr(work, field.name) for work in works] for field in fields(Work)], dtype=float)


def predict(constants: np.ndarray, works: np.ndarray) -> np.ndarray:
    """Microseconds. `constants`: in the order of NAMES, (7,) or (7, works). `works`: as `table` makes it."""
    launch, unit, step, busy, terabytes, fix_up, peer = constants
    steps, busy_steps, units, moved, ranges = works
    arithmetic = unit * units + step * steps + busy * busy_steps
    memory = moved / terabytes / 1e6
    joined = (arithmetic**SHARPNESS + memory**SHARPNESS) ** (1 / SHARPNESS)
    return launch + joined + (ranges > 0) * fix_up + peer * ranges
