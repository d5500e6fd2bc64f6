"""Time of v00 and of copies of it with one change each: what its loop costs where no tile is shared."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from common import style
from figures import source
from figures.headline import panel

EXPERIMENT = "ablations"


def draw(results: Path) -> Figure:
    """Raises MissingRun where the ablations have no finished run."""
    run = source.require(results, EXPERIMENT)
    problems = list(dict.fromkeys(row.problem for row in run.rows))
    labels = source.labels(run)
    height = 1.9 + 0.25 * len(labels)
    figure, grid = plt.subplots(
        1, len(problems), figsize=(3.4 + 3.1 * len(problems), height), sharey=True, squeeze=False
    )
    for axes, problem in zip(grid[0], problems, strict=True):
        panel(axes, run, problem, labels)
    grid[0][0].set_yticks(range(len(labels)), [label.replace(" 64x64x64", "") for label in labels])
    title = "v00, copies of it with one change each, and v01, at 64x64x64"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1 - 0.1 / height))
    style.small_print(
        figure,
        f"{source.describe(run)}. Dot: median of {run.header['rounds']} samples; bar: its 95 % bootstrap interval; "
        "line: cuBLAS.\nP = tiles: every program does one whole tile, as P = 0 does without a loop over tiles. Without "
        "P: one program an SM, so that tiles are shared. v00_stores_for_atomics is right where none is; not shown "
        "elsewhere.",
    )
    return figure
