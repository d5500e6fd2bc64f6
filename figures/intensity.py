"""Speed-up over cuBLAS against arithmetic intensity, one panel a variant, with the roofline's ridge."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common import style
from common.problem import Problem
from common.rows import Run
from figures import source
from figures.speedup import limits_of, log_ticks

BINS = 10
COLUMNS = 4


def plain_labels(runs: dict[str, Run]) -> list[str]:
    """One candidate a variant: 128x128x32 and one program an SM, which is what a label without additions means."""
    labels = dict.fromkeys(label for run in runs.values() for label in source.labels(run))
    return [label for label in labels if " " not in label]


def points(run: Run, values: dict[tuple[int, int, int], float]) -> tuple[np.ndarray, np.ndarray]:
    """Arithmetic intensity (flop/byte) and value of each problem."""
    pairs = sorted((Problem(*shape, dtype=run.header["dtype"]).intensity, value) for shape, value in values.items())
    array = np.array(pairs, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def running_median(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians of equally full bins along x (sorted)."""
    chunks = [c for c in np.array_split(np.arange(len(x)), min(BINS, max(1, len(x) // 5))) if len(c)]
    return np.array([np.median(x[c]) for c in chunks]), np.array([np.median(y[c]) for c in chunks])


def grid(labels: list[str], height: float = 2.25) -> tuple[Figure, list[Axes]]:
    """Small multiples with shared axes, a title for each label."""
    rows = -(-len(labels) // COLUMNS)
    columns = min(COLUMNS, len(labels))
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.0 * columns + 0.4, height * rows + 1.3), sharex=True, sharey=True, squeeze=False
    )
    flat = list(axes.flat)
    for unused in flat[len(labels) :]:
        unused.set_visible(False)
    for position, (label, a) in enumerate(zip(labels, flat, strict=False)):
        a.set_title(label, fontsize=9)
        a.tick_params(labelbottom=position + columns >= len(labels))
    return figure, flat[: len(labels)]


def finish(figure: Figure, title: str, handles: list[Line2D], notes: str) -> Figure:
    """Title, legend and small print around small multiples."""
    height = figure.get_figheight()
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.26 / height), ncols=len(handles))
    figure.tight_layout(rect=(0, 0.4 / height, 1, 1 - 0.3 / height))
    style.small_print(figure, notes)
    return figure


def population_handles(runs: dict[str, Run]) -> list[Line2D]:
    """One legend entry a population."""
    return [
        Line2D(
            [], [], marker=marker, linestyle="none", color=colour, ms=4, label=source.POPULATIONS[name].split(":")[0]
        )
        for name, _, colour, marker in source.looks(runs)
    ]


def draw(results: Path) -> Figure:
    """Clouds and running medians of both populations. Raises MissingRun where neither has a finished run."""
    runs = source.populations(results)
    labels = plain_labels(runs)
    figure, panels = grid(labels)
    limits = limits_of(list(runs.values()))
    peak = source.peak(next(iter(runs.values())).header["device"]["name"])
    for position, (label, axes) in enumerate(zip(labels, panels, strict=True)):
        axes.axhline(1, color=style.INK, linewidth=0.8)
        if peak:
            axes.axvline(peak.ridge, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 2)))
        for _, run, colour, marker in source.looks(runs):
            if source.has(run, label):
                _cloud(axes, run, label, colour, marker)
        axes.set_xscale("log")
        log_ticks(axes, "y", limits)
        axes.grid(axis="y")
        if position + COLUMNS >= len(labels):
            axes.set_xlabel("flop/byte")
        if position % COLUMNS == 0:
            axes.set_ylabel("speed-up")
    handles = population_handles(runs)
    handles.append(Line2D([], [], color=style.FAINT, linewidth=1.6, label="line: running median"))
    if peak:
        text = f"roofline's ridge: {peak.ridge:.0f} flop/byte"
        handles.append(Line2D([], [], color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 2)), label=text))
    return finish(figure, "Speed-up over cuBLAS against arithmetic intensity", handles, _notes(runs, labels, peak))


def _cloud(axes: Axes, run: Run, label: str, colour: str, marker: str) -> None:
    x, y = points(run, run.speedups(label))
    axes.scatter(x, y, s=3, color=colour, marker=marker, alpha=0.25, linewidths=0, rasterized=True)
    if len(x):
        axes.plot(*running_median(x, y), color="white", linewidth=3)
        axes.plot(*running_median(x, y), color=colour, linewidth=1.6)


def _notes(runs: dict[str, Run], labels: list[str], peak: source.Peak | None) -> str:
    missing = sum(
        sum(source.left_out(run, label).values()) for run in runs.values() for label in labels if source.has(run, label)
    )
    stated = f"Peaks: {peak.source}." if peak else "No stated peaks are known for this device."
    return (
        "; ".join(source.describe(run) for run in runs.values())
        + f"\n128x128x32, one program an SM. Bytes: A and B read once, C written once. {stated} "
        f"{missing} rows without a right result are left out."
    )
