"""Speed-up over cuBLAS by candidate as a distribution, one panel a sampled population."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from common import style
from common.rows import Run, bootstrap_interval, geometric_mean
from figures import source

AVERAGE = style.PALETTE[3]
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


def noise(run: Run) -> tuple[float, float, float] | None:
    """cuBLAS against itself: geometric mean and the 2.5 % and 97.5 % quantiles; None where it ran once."""
    repeat = source.repeat_label(run)
    ratios = list(run.speedups(repeat).values()) if repeat else []
    if not ratios:
        return None
    low, high = np.quantile(ratios, [0.025, 0.975])
    return geometric_mean(ratios), float(low), float(high)


def summary(run: Run, label: str) -> str:
    """Geometric mean with its interval, and how many rows are left out and why."""
    values = list(run.speedups(label).values())
    missing = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in source.left_out(run, label).items())
    if not values:
        return f"no result: {missing}"
    low, high = bootstrap_interval(values)
    return f"{geometric_mean(values):.3f} [{low:.3f}, {high:.3f}]" + (f"\n−{missing}" if missing else "")


def log_ticks(axes: Axes, which: str, limits: tuple[float, float]) -> None:
    """A logarithmic axis of ratios with plain numbers."""
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(*limits)
    axis.set_major_locator(FixedLocator([t for t in TICKS if limits[0] <= t <= limits[1]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))


def limits_of(runs: list[Run]) -> tuple[float, float]:
    """Every speed-up that is drawn, with room."""
    values = [v for run in runs for label in source.labels(run) for v in run.speedups(label).values()] or [1.0]
    return min(0.9, min(values) / 1.15), max(1.2, max(values) * 1.15)


def violins(axes: Axes, run: Run, labels: list[str]) -> None:
    """One violin a candidate, quartiles as a bar, the geometric mean as a dot."""
    for position, label in enumerate(labels):
        values = list(run.speedups(label).values()) if source.has(run, label) else []
        if not values:
            continue
        colour = style.colour(source.variant_of(run, label))
        if len(values) > 2 and np.ptp(values) > 0:
            seaborn.violinplot(
                x=values, y=[position] * len(values), orient="h", native_scale=True, log_scale=(True, False), cut=0,
                inner=None, linewidth=0, width=0.85, color=colour, ax=axes, legend=False,
            )  # fmt: skip
        quartiles = np.quantile(values, [0.25, 0.75])
        axes.plot(quartiles, [position] * 2, color=style.INK, linewidth=2.2, solid_capstyle="butt", zorder=3)
        axes.plot(geometric_mean(values), position, "o", color="white", mec=style.INK, mew=0.9, ms=4.5, zorder=4)


def panel(axes: Axes, name: str, run: Run, labels: list[str], limits: tuple[float, float]) -> None:
    """One population: noise floor, violins, the thread's own averages where they belong, and numbers at the right."""
    floor = noise(run)
    if floor:
        axes.axvspan(floor[1], floor[2], color=style.PALE, linewidth=0, zorder=0)
    axes.axvline(1, color=style.INK, linewidth=0.5, zorder=1)
    violins(axes, run, labels)
    if name == "thread_sampled":
        for average in source.thread_averages():
            if average.variant in labels:
                row = labels.index(average.variant)
                axes.plot(average.speedup, row - 0.36, "v", color=AVERAGE, mec="white", mew=0.6, ms=8, zorder=5)
    for row, label in enumerate(labels):
        if source.has(run, label):
            axes.text(
                1.015,
                row,
                summary(run, label),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=6.5,
                linespacing=1.25,
            )
    log_ticks(axes, "x", limits)
    axes.set(xlabel="speed-up over cuBLAS (logarithmic)", ylabel="", ylim=(len(labels) - 0.4, -0.7))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    problems = len({row.problem for row in run.rows})
    axes.set_title(f"{source.POPULATIONS[name]}, {problems} problems", fontsize=9, pad=16)
    axes.text(1.015, 1.0, "geometric mean [95 %]", transform=axes.transAxes, fontsize=7, color=style.FAINT, va="bottom")


def draw(results: Path) -> Figure:
    """Violins of every candidate but cuBLAS. Raises MissingRun where neither population has a finished run."""
    runs = source.populations(results)
    labels = list(dict.fromkeys(label for run in runs.values() for label in source.labels(run)))
    # Inches: 2.5 at the left for names; each panel 3.8 and 2.3 beside it for numbers.
    width, height = 2.5 + 6.1 * len(runs), 2.0 + 0.34 * len(labels)
    margins = {"left": 2.5 / width, "right": 1 - 2.3 / width, "bottom": 1.05 / height, "top": 1 - 0.95 / height}
    figure, grid = plt.subplots(
        1, len(runs), figsize=(width, height), sharey=True, squeeze=False, gridspec_kw=margins | {"wspace": 2.3 / 3.8}
    )
    limits = limits_of(list(runs.values()))
    for axes, (name, run) in zip(grid[0], runs.items(), strict=True):
        panel(axes, name, run, labels, limits)
        axes.tick_params(axis="y", length=0)
    grid[0][0].set_yticks(range(len(labels)), labels)
    figure.suptitle("Speed-up over cuBLAS, by candidate in the thread's order", x=0.01, ha="left", fontweight="bold")
    _legend(figure, height)
    style.small_print(figure, _notes(runs))
    return figure


def _notes(runs: dict[str, Run]) -> str:
    floors = {run.id: noise(run) for run in runs.values()}
    shown = "; ".join(f"{run_id} {f[0]:.3f} [{f[1]:.3f}, {f[2]:.3f}]" for run_id, f in floors.items() if f)
    return (
        "\n".join(source.describe(run) for run in runs.values())
        + f"\ncuBLAS against itself, geometric mean [95 % of the problems]: {shown or 'not measured'}. "
        "Rows without a right result have no speed and are left out; −n says how many."
    )


def _legend(figure: Figure, height: float) -> None:
    averages = "; ".join(f"{a.variant[:3]} {a.speedup:g} on {a.gpu}" for a in source.thread_averages())
    handles = [
        Line2D([], [], marker="o", color="white", mec=style.INK, ms=5, label="geometric mean"),
        Line2D([], [], color=style.INK, linewidth=2.2, label="middle half"),
        Patch(color=style.PALE, label="noise floor: cuBLAS against itself"),
        Line2D([], [], marker="v", color="white", mfc=AVERAGE, ms=8, label=f"thread's own average: {averages}"),
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.28 / height), ncols=4, columnspacing=1.4
    )
