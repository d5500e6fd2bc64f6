"""`variants.matmul` over cuBLAS on the corpus: the distribution of speed-ups, and speed-up against intensity."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from common import style
from common.rows import Run
from figures import corpus, source
from figures.intensity import points
from figures.landscape import cloud
from figures.speedup import log_ticks

BARS = 80
FINE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5)


def draw(results: Path) -> Figure:
    """Raises MissingRun where no corpus has been measured."""
    runs = corpus.corpora(results)
    figure, grid = plt.subplots(len(runs), 2, figsize=(9.4, 3.0 * len(runs) + 1.2), squeeze=False)
    for row, (name, run) in zip(grid, runs.items(), strict=True):
        speedups = run.speedups(corpus.CHOSEN)
        values = np.array(list(speedups.values()))
        limits = (min(0.7, float(values.min()) / 1.05), max(1.5, float(values.max()) * 1.05))
        _distribution(row[0], run, values, limits)
        row[0].set_title(f"{corpus.CORPORA[name]}\n{corpus.Summary.of(list(values))}", fontsize=8)
        _against_intensity(row[1], run, speedups, limits)
    grid[-1][0].set_xlabel("speed-up over cuBLAS (logarithmic)")
    grid[-1][1].set_xlabel("flop/byte")
    figure.suptitle("variants.matmul over cuBLAS on the whole corpus", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.45 / figure.get_figheight(), 1, 1))
    style.small_print(figure, _notes(runs))
    return figure


def _distribution(axes: Axes, run: Run, values: np.ndarray, limits: tuple[float, float]) -> None:
    bars = np.geomspace(*limits, BARS)
    repeat = source.repeat_label(run)
    if repeat:
        noise = list(run.speedups(repeat).values())
        axes.hist(noise, bins=bars, color=style.PALE, label="cuBLAS against itself")
    axes.hist(values, bins=bars, histtype="step", color=style.PALETTE[0], linewidth=1.4, label="variants.matmul")
    axes.axvline(1, color=style.INK, linewidth=0.7)
    _fine_ticks(axes, "x", limits)
    axes.set_ylabel("shapes")
    axes.legend(loc="upper right")


def _fine_ticks(axes: Axes, which: str, limits: tuple[float, float]) -> None:
    """A logarithmic axis of ratios near 1."""
    log_ticks(axes, which, limits)
    ticks = FINE if limits[1] / limits[0] < 4 else (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
    getattr(axes, f"{which}axis").set_major_locator(FixedLocator([t for t in ticks if limits[0] <= t <= limits[1]]))


def _against_intensity(
    axes: Axes, run: Run, speedups: dict[tuple[int, int, int], float], limits: tuple[float, float]
) -> None:
    x, y = points(run, speedups)
    cloud(axes, x, y)
    peak = source.peak(run.header["device"]["name"])
    if peak:
        axes.axvline(peak.ridge, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.axhline(1, color=style.INK, linewidth=0.7)
    axes.set_xscale("log")
    _fine_ticks(axes, "y", limits)
    axes.set_ylabel("speed-up")
    bound = [value for intensity, value in zip(x, y, strict=True) if intensity > corpus.COMPUTE_BOUND]
    if bound:
        axes.set_title(f"above {corpus.COMPUTE_BOUND} flop/byte\n{corpus.Summary.of(bound)}", fontsize=8)


def _notes(runs: dict[str, Run]) -> str:
    missing = sum(sum(source.left_out(run, corpus.CHOSEN).values()) for run in runs.values())
    return (
        "; ".join(source.describe(run) for run in runs.values())
        + "\nGeometric mean with its 95 % bootstrap interval. Red: median; orange: middle 80 %; dashed: the roofline's "
        f"ridge. {missing} rows without a right result are left out.\n"
        "The constants behind the choice were fitted on other shapes."
    )
