"""Roofline landscape: achieved TFLOP/s of every shape of the corpus against intensity, a panel a provider."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import style
from figures import corpus, source
from figures.roofline import achieved

PROVIDERS = {source.BASELINE: "torch.matmul (cuBLAS)", corpus.CHOSEN: "variants.matmul"}
BINS = 24


def band(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centres of bins along log x, and the 10 %, 50 % and 90 % quantiles of y in each bin of at least 5."""
    edges = np.geomspace(x.min(), x.max() * 1.0001, BINS + 1)
    place = np.digitize(x, edges) - 1
    full = [i for i in range(BINS) if (place == i).sum() >= 5]
    centres = np.array([np.median(x[place == i]) for i in full])
    return centres, np.array([np.quantile(y[place == i], [0.1, 0.5, 0.9]) for i in full]).reshape(-1, 3).T


def cloud(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """A point a shape, and over it the band and the median of y along x."""
    axes.scatter(x, y, s=1.2, color=style.PALETTE[0], alpha=0.12, linewidths=0, rasterized=True)
    if len(x) >= 5:
        centres, (low, middle, high) = band(x, y)
        axes.fill_between(centres, low, high, color=style.PALETTE[1], alpha=0.25, linewidth=0)
        axes.plot(centres, middle, color=style.PALETTE[3], linewidth=1.6)


def draw(results: Path) -> Figure:
    """Raises MissingRun where no corpus has been measured."""
    runs = corpus.corpora(results)
    figure, grid = plt.subplots(
        len(runs), len(PROVIDERS), figsize=(9.4, 3.1 * len(runs) + 1.1), sharex=True, sharey=True, squeeze=False
    )
    for row, (name, run) in zip(grid, runs.items(), strict=True):
        peak = source.peak(run.header["device"]["name"])
        for axes, (label, title) in zip(row, PROVIDERS.items(), strict=True):
            x, y = achieved(run, label)
            cloud(axes, x, y)
            if peak:
                roof = np.geomspace(x.min(), x.max(), 200)
                axes.plot(roof, np.minimum(peak.tflops, peak.terabytes * roof), color=style.INK, linewidth=1)
            axes.set(xscale="log", yscale="log")
            axes.set_title(f"{title}\n{corpus.CORPORA[name]}, {len(x):,} shapes", fontsize=8.5)
            axes.grid()
        row[0].set_ylabel("TFLOP/s")
    for axes in grid[-1]:
        axes.set_xlabel("flop/byte")
    figure.suptitle("Roofline landscape: red the median, orange the middle 80 %", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    notes = "; ".join(source.describe(run) for run in runs.values())
    style.small_print(figure, f"{notes}\nBytes: A and B read once, C written once. Only right results are drawn.")
    return figure
