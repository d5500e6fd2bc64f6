"""Where `variants.matmul` wins: geometric mean of the speed-up over cuBLAS by tiles and K, and by class."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from common import style
from common.decomposition import cdiv
from common.population import DEPTHS, TILE, TILES, Shape
from figures import corpus, source

COLUMNS, ROWS = 26, 16
LEAST = 3
"""Shapes that a cell needs to be drawn."""


def cells(speedups: dict[Shape, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges along tiles and K, and the mean binary logarithm of the speed-up in each cell, NaN where few are."""
    tiles = np.array([cdiv(m, TILE) * cdiv(n, TILE) for m, n, _ in speedups], dtype=float)
    depths = np.array([k for _, _, k in speedups], dtype=float)
    logs = np.log2(np.array(list(speedups.values())))
    across = np.geomspace(tiles.min(), tiles.max() * 1.001, COLUMNS + 1)
    up = np.geomspace(depths.min(), depths.max() * 1.001, ROWS + 1)
    count = np.histogram2d(tiles, depths, bins=(across, up))[0]
    total = np.histogram2d(tiles, depths, bins=(across, up), weights=logs)[0]
    mean = np.full_like(total, np.nan)
    np.divide(total, count, out=mean, where=count >= LEAST)
    return across, up, mean.T


def draw(results: Path) -> Figure:
    """Raises MissingRun where no corpus has been measured."""
    runs = corpus.corpora(results)
    figure, grid = plt.subplots(
        len(runs), 2, figsize=(10.4, 3.5 * len(runs) + 0.9), squeeze=False, gridspec_kw={"width_ratios": (1.25, 1)}
    )
    for (left, right), (name, run) in zip(grid, runs.items(), strict=True):
        speedups = run.speedups(corpus.CHOSEN)
        across, up, mean = cells(speedups)
        shades = left.pcolormesh(across, up, mean, cmap="RdBu", norm=CenteredNorm(0, 0.5), rasterized=True)
        bar = figure.colorbar(shades, ax=left, extend="both")
        bar.set_ticks([-0.4, -0.2, 0, 0.2, 0.4], labels=[f"{2**t:.2f}" for t in (-0.4, -0.2, 0, 0.2, 0.4)])
        for bound in TILES:
            left.axvline(bound, color=style.FAINT, linewidth=0.6)
        for bound in DEPTHS:
            left.axhline(bound, color=style.FAINT, linewidth=0.6)
        left.set(xscale="log", yscale="log", xlabel=f"tiles of {TILE}x{TILE}", ylabel="K")
        left.set_title(f"{corpus.CORPORA[name]}, {len(speedups):,} shapes", fontsize=8.5)
        _classes(right, speedups)
    figure.suptitle("Where variants.matmul is faster than cuBLAS (blue)", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    notes = "; ".join(source.describe(run) for run in runs.values())
    style.small_print(figure, f"{notes}\nGeometric means; cells of fewer than {LEAST} shapes are white.")
    return figure


def _classes(axes: Axes, speedups: dict[Shape, float]) -> None:
    """One line a class: its geometric mean with interval, and the numbers beside it."""
    groups = sorted(corpus.by_class(speedups).items(), reverse=True)
    for row, (_, values) in enumerate(groups):
        found = corpus.Summary.of(values)
        axes.plot([found.low, found.high], [row] * 2, color=style.PALETTE[0], linewidth=2)
        axes.plot(found.mean, row, "o", color=style.PALETTE[0], ms=4)
        text = f"{found.mean:.3f}, {found.won:.0%} won of {found.count:,}, worst {found.worst:.2f}"
        axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), fontsize=6.5, va="center")
    axes.axvline(1, color=style.INK, linewidth=0.7)
    axes.set_yticks(range(len(groups)), [corpus.class_name(name) for name, _ in groups], fontsize=7)
    axes.set_xlabel("speed-up over cuBLAS")
    axes.grid(axis="x")
