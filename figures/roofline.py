"""Achieved TFLOP/s against arithmetic intensity under the roofline, one panel a variant, cuBLAS behind each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common import style
from common.problem import Problem
from common.rows import Run
from figures import source
from figures.intensity import COLUMNS, finish, grid, plain_labels, points, population_handles


def achieved(run: Run, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Arithmetic intensity and achieved TFLOP/s of each problem that the candidate got right."""
    medians = run.medians(label)
    return points(run, {shape: Problem(*shape).flops / microseconds / 1e6 for shape, microseconds in medians.items()})


def draw(results: Path) -> Figure:
    """Raises MissingRun where neither population has a finished run."""
    runs = source.populations(results)
    labels = plain_labels(runs)
    figure, panels = grid(labels)
    peak = source.peak(next(iter(runs.values())).header["device"]["name"])
    for position, (label, axes) in enumerate(zip(labels, panels, strict=True)):
        _panel(axes, runs, label)
        if position + COLUMNS >= len(labels):
            axes.set_xlabel("flop/byte")
        if position % COLUMNS == 0:
            axes.set_ylabel("TFLOP/s")
    if peak:
        low, high = panels[0].get_xlim()
        x = np.geomspace(low, high, 200)
        for axes in panels:
            axes.plot(x, np.minimum(peak.tflops, peak.terabytes * x), color=style.INK, linewidth=1)
            axes.set_xlim(low, high)
    handles = [
        *population_handles(runs),
        Line2D([], [], marker="o", linestyle="none", color=style.PALE, ms=4, label="cuBLAS"),
    ]
    if peak:
        handles.append(
            Line2D([], [], color=style.INK, linewidth=1, label=f"{peak.tflops:g} TFLOP/s, {peak.terabytes:g} TB/s")
        )
    stated = f"Ceilings: {peak.source}." if peak else "No stated peaks are known for this device, so no roof is drawn."
    notes = "; ".join(source.describe(run) for run in runs.values()) + (
        f"\n128x128x32, one program an SM. Bytes: A and B read once, C written once. {stated} "
        "Only right results are drawn."
    )
    return finish(figure, "Achieved throughput against arithmetic intensity, under the roofline", handles, notes)


def _panel(axes: Axes, runs: dict[str, Run], label: str) -> None:
    for run in runs.values():
        axes.scatter(*achieved(run, source.BASELINE), s=3, color=style.PALE, linewidths=0, rasterized=True)
    for _, run, colour, marker in source.looks(runs):
        if source.has(run, label):
            axes.scatter(
                *achieved(run, label), s=3, color=colour, marker=marker, alpha=0.5, linewidths=0, rasterized=True
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid()
