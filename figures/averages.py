"""How much of a best-of-many-grids average is selection, mean and host time: v08 over cuBLAS, step by step."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import statistics, style
from common.rows import Run
from common.statistics import Interval
from experiments import claims, verdicts
from figures import source

VARIANT = "v08_while_loop"
SELECTED = ("C06", "C08", "C09", "C10", "C11", "C12")
"""Claims about averages over a population."""


AS_THE_THREAD = "as the thread computed it: do_bench, best of the grids on single runs, arithmetic mean"
ELSEWHERE = "the choice made on other samples than reported, cuBLAS treated the same way"
BY_LUCK = "for comparison, cuBLAS by the first rule against itself: best of its own repeats"


@dataclass(frozen=True)
class Step:
    """One way to compute the average."""

    text: str
    interval: Interval
    colour: str


def common_problems(runs: list[Run]) -> list[Run]:
    """The same runs with the problems alone that all of them have, so that steps differ in the computing alone."""
    shared = set.intersection(*({row.problem for row in run.rows} for run in runs))
    kept = [[row for row in run.rows if row.problem in shared] for run in runs]
    return [Run(run.path, run.header, rows, run.finished) for run, rows in zip(runs, kept, strict=True)]


def chain(called: Run, device: Run) -> list[Step]:
    """From the thread's way to device time and a choice made on other samples. `called`: timed with do_bench."""
    first, held = (verdicts.best_of(called, VARIANT, choice) for choice in ("first", "held_out"))
    honest = verdicts.best_of(device, VARIANT, "held_out")
    one = claims.Ratio(kind="ratio", experiment="grids", slow=source.BASELINE, fast=VARIANT)
    ratio = statistics.mean_ratio
    blue, orange, green = style.PALETTE[0], style.PALETTE[1], style.PALETTE[2]
    return [
        Step(AS_THE_THREAD, ratio(*first, "arithmetic"), orange),
        Step(ELSEWHERE, ratio(*held, "arithmetic"), blue),
        Step("and the geometric mean", ratio(*held), blue),
        Step("and device time instead of do_bench: no host gaps", ratio(*honest), green),
        Step("and one grid for all shapes: one program an SM", verdicts.ratio(device, one), green),
    ]


def luck(run: Run) -> Interval:
    """cuBLAS's best first sample among its repeats over its first run: what selection makes of nothing."""
    base, best = verdicts.best_of(run, source.BASELINE, "first")
    return statistics.mean_ratio(base, best, "arithmetic")


def dots(axes: Axes, steps: list[Step]) -> None:
    """Intervals below each other, with their numbers."""
    axes.axvline(1, color=style.INK, linewidth=0.8)
    for position, step in enumerate(steps):
        found = step.interval
        axes.plot(
            [found.low, found.high], [position] * 2, color=step.colour, linewidth=4, alpha=0.6, solid_capstyle="butt"
        )
        axes.plot(found.value, position, "o", color=step.colour, mec=style.INK, mew=0.5, ms=6, zorder=3)
        place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8}
        axes.text(1.02, position, str(found), **place)
    texts = ["\n".join(textwrap.wrap(step.text, 54)) for step in steps]
    axes.set_yticks(range(len(steps)), texts, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(len(steps) - 0.5, -0.5), xlabel="speed-up over cuBLAS")
    axes.grid(axis="x")
    axes.set_axisbelow(True)


def claimed(axes: Axes, results: Path) -> list[str]:
    """The averages that claims are about: measured, beside the thread's number; the runs that were read."""
    steps, marks = [], []
    for answer in verdicts.committed(results)[0]:
        outcome = answer.outcomes[0]
        if answer.claim.id not in SELECTED or outcome.value is None or outcome.low is None or outcome.high is None:
            continue
        colour = style.colour(answer.claim.variant)
        steps.append(
            Step(f"{answer.claim.id}  {outcome.name}", Interval(outcome.value, outcome.low, outcome.high, 2), colour)
        )
        marks.append((outcome.claimed, outcome.source))
    dots(axes, steps)
    for position, (number, _) in enumerate(marks):
        if number:
            axes.plot(number, position, "v", color="white", mec=style.INK, mew=0.9, ms=7, zorder=4)
    axes.set_xlabel("ratio of times; the thread's number as a triangle")
    return sorted({run for _, run in marks})


def draw(results: Path) -> Figure:
    """Raises MissingRun where the grids have no finished run of either timing."""
    runs = [source.require(results, name) for name in ("grids_do_bench", "grids")]
    called, device = common_problems(runs)
    steps = chain(called, device)
    steps.append(
        Step(
            "for comparison, cuBLAS by the first rule against itself: best of its own repeats",
            luck(called),
            style.GREY,
        )
    )
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10.5, 7.6))
    dots(top, steps)
    problems = len({row.problem for row in called.rows})
    top.set_title(f"v08's average on {problems} of the thread's shapes: selection, mean, host time", fontsize=9)
    others = claimed(bottom, results)
    bottom.set_title("averages over a population that claims are about", fontsize=9)
    figure.suptitle("The thread's averages, computed its way and another", x=0.01, ha="left", fontweight="bold")
    figure.subplots_adjust(left=0.4, right=0.84, top=0.91, bottom=0.12, hspace=0.42)
    notes = "; ".join(source.describe(run) for run in runs)
    style.small_print(figure, f"{notes}\nAlso read: {', '.join(others)}. Bars: 95 % bootstrap over problems, in pairs.")
    return figure
