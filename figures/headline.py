"""Device time of every variant on the headline problems, with the bootstrap interval of the median."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from common import style
from common.rows import Problem, Run, bootstrap_interval
from figures import source

EXPERIMENT = "headline"


def floor(run: Run, problem: Problem) -> float | None:
    """Microseconds of an empty kernel: what the harness itself costs."""
    empty = [c["label"] for c in run.candidates if c["variant"] == "empty"]
    return run.medians(empty[0]).get(problem) if empty else None


def panel(axes: Axes, run: Run, problem: Problem, labels: list[str]) -> None:
    """One problem: a dot at the median, its interval as a bar; a status in words where there is no time."""
    base = run.medians(source.BASELINE).get(problem)
    if base:
        axes.axvline(base, color=style.INK, linewidth=0.8)
    for position, label in enumerate(labels):
        row = run.by_candidate.get(run.index(label), {}).get(problem)
        if row is None or row.status != "ok" or not row.samples:
            status = row.status.replace("_", " ") if row else "not measured"
            place = {"transform": axes.get_yaxis_transform(), "va": "center", "ha": "center"}
            axes.text(0.5, position, status, fontsize=7, color=style.FAINT, **place)
            continue
        low, high = bootstrap_interval(row.samples, "median")
        colour = style.colour(source.variant_of(run, label))
        axes.plot([low, high], [position] * 2, color=colour, linewidth=4, solid_capstyle="butt", alpha=0.6)
        marker = "D" if row.relies_on_dispatch_order else "o"
        axes.plot(row.median, position, marker, color=colour, mec=style.INK, mew=0.5, ms=5)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.1, high * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.grid()
    axes.set_axisbelow(True)
    axes.set(xlabel="µs (logarithmic)", ylim=(len(labels) - 0.4, -0.6))
    known = {"cuBLAS": base, "empty kernel": floor(run, problem)}
    subtitle = ", ".join(f"{name} {time:.1f} µs" for name, time in known.items() if time)
    axes.set_title("x".join(map(str, problem)) + f"\n{subtitle}", fontsize=8)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the headline experiment has no finished run."""
    run = source.require(results, EXPERIMENT)
    problems = list(dict.fromkeys(row.problem for row in run.rows))
    labels = source.labels(run) + [label for label in (source.BASELINE, source.repeat_label(run)) if label]
    height = 1.9 + 0.25 * len(labels)
    figure, grid = plt.subplots(
        1, len(problems), figsize=(2.6 + 2.75 * len(problems), height), sharey=True, squeeze=False
    )
    for axes, problem in zip(grid[0], problems, strict=True):
        panel(axes, run, problem, labels)
    grid[0][0].set_yticks(range(len(labels)), labels)
    figure.suptitle(
        "Device time on the headline problems, at the thread's launch parameters", x=0.01, ha="left", fontweight="bold"
    )
    figure.tight_layout(rect=(0, 0.42 / height, 1, 1 - 0.1 / height))
    style.small_print(
        figure,
        f"{source.describe(run)}. Dot: median of {run.header['rounds']} samples; bar: its 95 % bootstrap interval; "
        "line: cuBLAS. Diamond: more programs than are resident at once, so that the launch relies on dispatch in "
        "ascending order.\nBlocks are written where they are not 128x128x32, P where it is not one program an SM. "
        "Wrong results have no time.",
    )
    return figure
