"""Schedules of one of the thread's problems on a whole GPU: 1536x1792x6016 at 128x128x32 on 132 processors."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from common import decomposition, style
from common.decomposition import cdiv
from figures.schedule import Placed, describe, legend, makespan, panel, place, segments

PROBLEM, BLOCK, PROCESSORS = (1536, 1792, 6016), (128, 128, 32), 132
SHAPE = tuple(cdiv(size, block) for size, block in zip(PROBLEM, BLOCK, strict=True))
"""Tiles along M and N, and MAC iterations of a tile."""


def panels() -> dict[str, list[Placed]]:
    """The segments of each panel."""
    schedules = {
        "data-parallel": decomposition.data_parallel(*SHAPE),
        "always two-tile (v00–v07)": decomposition.always_two_tile(*SHAPE, PROCESSORS),
        "optional two-tile (v08), off or on": decomposition.optional_two_tile(*SHAPE, PROCESSORS),
    }
    return {name: place(schedule, PROCESSORS) for name, schedule in schedules.items()}


def table(results: Path) -> list[list[object]]:
    """The segments of the three panels."""
    return segments(panels())


def draw(results: Path) -> Figure:
    """The tile matmul and both decompositions of the thread; needs no measurement."""
    placed = panels()
    limit = max(map(makespan, placed.values())) + 4
    figure, rows = plt.subplots(3, 1, figsize=(9.5, 11.5), sharex=True, height_ratios=(2, 3, 3))
    for axes, (name, pieces) in zip(rows, placed.items(), strict=True):
        panel(axes, pieces, PROCESSORS, limit, numbered=False)
        axes.set_title(describe(name, pieces, PROCESSORS))
    rows[-1].set_xlabel("time in MAC iterations")
    title = f"1536x1792x6016 on 132 processors: {SHAPE[0] * SHAPE[1]} tiles of {SHAPE[2]} MAC iterations"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    legend(figure)
    figure.tight_layout(rect=(0, 0.025, 1, 0.955), h_pad=1.1)
    style.small_print(
        figure,
        "Neighbouring tiles differ in colour; nine colours repeat. Ideal machine: an iteration takes one unit, a "
        "fix-up none; programs start in ascending order. Blocking 128x128x32.",
    )
    return figure
