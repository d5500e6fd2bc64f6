"""What the choice by a model loses: time of `variants.matmul` over the best candidate measured for the same shape."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from common import style
from common.population import Shape
from common.rows import Run, bootstrap_interval, geometric_mean
from figures import corpus, source

EXPERIMENT = "corpus_regret"


def regrets(run: Run) -> dict[Shape, float]:
    """Chosen over best time for each shape that both have. The best is chosen on the even samples and taken from the
    odd ones, as the other is, so that the least of many noisy medians is not mistaken for a better kernel."""
    best: dict[Shape, tuple[float, float]] = {}
    for label in source.labels(run):
        if label == corpus.CHOSEN:
            continue
        for shape, row in run.by_candidate.get(run.index(label), {}).items():
            if row.status == "ok" and len(row.samples) > 1:
                seen, kept = float(np.median(row.samples[::2])), float(np.median(row.samples[1::2]))
                if shape not in best or seen < best[shape][0]:
                    best[shape] = seen, kept
    chosen = run.by_candidate.get(run.index(corpus.CHOSEN), {})
    return {
        shape: float(np.median(row.samples[1::2])) / best[shape][1]
        for shape, row in chosen.items()
        if row.status == "ok" and len(row.samples) > 1 and shape in best
    }


def draw(results: Path) -> Figure:
    """Raises MissingRun where the experiment has not been measured."""
    run = source.require(results, EXPERIMENT)
    found = regrets(run)
    figure, axes = plt.subplots(figsize=(7.6, 4.6))
    groups = sorted(corpus.by_class(found).items())
    for position, (_, values) in enumerate(groups):
        shares = np.arange(1, len(values) + 1) / len(values)
        colour = style.PALETTE[position // 3 % len(style.PALETTE)]
        line = ("-", "--", ":")[position % 3]
        text = f"{corpus.class_name(groups[position][0])}: {geometric_mean(values):.3f}"
        axes.plot(np.sort(values), shares, line, color=colour, linewidth=1.2, label=text)
    every = list(found.values())
    low, high = bootstrap_interval(every)
    axes.plot(np.sort(every), np.arange(1, len(every) + 1) / len(every), color=style.INK, linewidth=2.2, label="all")
    axes.axvline(1, color=style.INK, linewidth=0.6)
    axes.set(xlabel="time of the choice over the best candidate's", ylabel="share of shapes", ylim=(0, 1.01))
    axes.set_xlim(0.9, max(1.3, float(np.quantile(every, 0.995))))
    axes.grid()
    axes.legend(loc="lower right", fontsize=6.5)
    title = (
        f"Regret of the choice: geometric mean {geometric_mean(every):.3f} [{low:.3f}, {high:.3f}], {len(every)} shapes"
    )
    axes.set_title(title, fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    count = len(source.labels(run)) - 1
    style.small_print(
        figure,
        f"{source.describe(run)}\nBest of {count} candidates, picked on half of the samples and compared on the other.",
    )
    return figure
