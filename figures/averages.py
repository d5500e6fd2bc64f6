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
from experiments import verdicts
from figures import source
from figures.source import MissingRun

VARIANT = "v08_while_loop"
SELECTED = ("C06", "C08", "C09", "C10", "C11", "C12")
"""Claims about averages over a population."""
USUAL_MS = (25, 100)
"""Warm-up and repeats of Triton's do_bench where nothing is said (triton.testing, 2.0 to 3.9)."""

GEOMETRIC = "and the geometric mean"
ONE_GRID = "and one grid for all shapes: one program an SM"


@dataclass(frozen=True)
class Step:
    """One way to compute the average, from each problem's speed-up."""

    text: str
    interval: Interval
    colour: str
    speedups: tuple[float, ...] = ()
    mean: statistics.Mean = "geometric"


def counted(run: Run, variant: str) -> int:
    """A variant's candidates in a run: the repeats of cuBLAS, say."""
    return sum(candidate["variant"] == variant for candidate in run.candidates)


def halves(run: Run) -> tuple[int, int]:
    """How many samples of each candidate a choice is made on and how many others are reported, then turned round."""
    return run.header["rounds"] - run.header["rounds"] // 2, run.header["rounds"] // 2


def as_the_thread(called: Run) -> str:
    grids = counted(called, VARIANT)
    return f"as the thread computed it: do_bench, best of up to {grids} grids on a single run each, arithmetic mean"


def elsewhere(called: Run) -> str:
    choosing, reported = halves(called)
    return (
        f"chosen on {choosing} of each grid's samples, reported on the other {reported}; cuBLAS treated the same way, "
        f"best of its {counted(called, source.BASELINE)} repeats"
    )


def on_device(device: Run) -> str:
    choosing, reported = halves(device)
    return f"and device time, no host gaps, instead of do_bench: chosen on {choosing}, reported on {reported}"


def by_luck(called: Run) -> str:
    repeats = counted(called, source.BASELINE)
    return f"for comparison, cuBLAS by the first rule against itself: best of its {repeats} repeats"


def common_problems(runs: list[Run]) -> list[Run]:
    """The same runs with the problems alone that all of them have, so that steps differ in the computing alone."""
    shared = set.intersection(*({row.problem for row in run.rows} for run in runs))
    kept = [[row for row in run.rows if row.problem in shared] for run in runs]
    return [Run(run.path, run.header, rows, run.finished) for run, rows in zip(runs, kept, strict=True)]


def chain(called: Run, device: Run) -> list[Step]:
    """From the thread's way to device time and a choice made on other samples. `called`: timed with do_bench."""
    first, held = (verdicts.best_of(called, VARIANT, choice) for choice in ("first", "held_out"))
    honest = verdicts.best_of(device, VARIANT, "held_out")
    base, mine = (device.medians(label) for label in (source.BASELINE, VARIANT))
    one = ([base[p] for p in base if p in mine], [mine[p] for p in base if p in mine])
    blue, orange, green = style.PALETTE[0], style.PALETTE[1], style.PALETTE[2]
    return [
        _step(as_the_thread(called), first, orange, "arithmetic"),
        _step(elsewhere(called), held, blue, "arithmetic"),
        _step(GEOMETRIC, held, blue),
        _step(on_device(device), honest, green),
        _step(ONE_GRID, one, green),
    ]


def _step(text: str, times: tuple[list[float], list[float]], colour: str, mean: statistics.Mean = "geometric") -> Step:
    speedups = tuple(base / best for base, best in zip(*times, strict=True))
    return Step(text, statistics.mean_ratio(*times, mean), colour, speedups, mean)


def changes(steps: list[Step]) -> list[Step]:
    """What each step changes: an average over the one after it, with the problems drawn together."""
    names = ("selection: chosen on the samples reported", "arithmetic mean", "host time", "the best grid of each shape")
    turns = (False, False, True, False)
    found = []
    for name, turned, before, after in zip(names, turns, steps[:-1], steps[1:], strict=True):
        if len(before.speedups) != len(after.speedups):
            raise MissingRun(f"{before.text}: of other problems than {after.text}")
        pair = (after, before) if turned else (before, after)
        values = statistics.ratio_of_means(pair[0].speedups, pair[1].speedups, pair[0].mean, pair[1].mean)
        text = f"{name}: without it over with it" if turned else f"{name}: with it over without it"
        found.append(Step(text, values, after.colour))
    return found


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
        for outcome in answer.deciding:
            known = outcome.value is not None and outcome.low is not None and outcome.high is not None
            if answer.claim.id not in SELECTED or not outcome.band or not known:
                continue
            text = f"{answer.claim.id}  {outcome.name}"
            interval = Interval(outcome.value, outcome.low, outcome.high, 2)
            steps.append(Step(text, interval, style.colour(answer.claim.variant)))
            marks.append((outcome.claimed, outcome.source))
    dots(axes, steps)
    for position, (number, _) in enumerate(marks):
        if number:
            axes.plot(number, position, "v", color="white", mec=style.INK, mew=0.9, ms=7, zorder=4)
    axes.set_xlabel("ratio of times; the thread's number as a triangle")
    return sorted({run for _, run in marks})


def do_bench_told(run: Run) -> str:
    """How long do_bench warmed up and measured, beside what it does where nothing is said."""
    timing = run.header.get("timing", {})
    took = [timing.get(name, "unknown") for name in ("warmup_ms", "repeat_ms")]
    usual = f"Triton's defaults are {USUAL_MS[0]} and {USUAL_MS[1]}"
    return f"do_bench: {took[0]} ms of warm-up, {took[1]} ms measured; {usual}"


def draw(results: Path) -> Figure:
    """Raises MissingRun where the grids have no finished run of either timing."""
    runs = [source.require(results, name) for name in ("grids_do_bench", "grids")]
    called, device = common_problems(runs)
    steps = chain(called, device)
    lucky = Step(by_luck(called), luck(called), style.GREY)
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(11, 10), height_ratios=(6, 4, 7))
    dots(top, [*steps, lucky])
    problems = len({row.problem for row in called.rows})
    top.set_title(f"v08's average on {problems} of the thread's shapes: selection, mean, host time", fontsize=9)
    dots(middle, changes(steps))
    middle.set_title("what each of these changes, problems drawn in pairs", fontsize=9)
    middle.set_xlabel("ratio of averages")
    others = claimed(bottom, results)
    bottom.set_title("averages over a population that claims are about", fontsize=9)
    figure.suptitle("The thread's averages, computed its way and another", x=0.01, ha="left", fontweight="bold")
    figure.subplots_adjust(left=0.4, right=0.84, top=0.93, bottom=0.11, hspace=0.42)
    notes = "; ".join(source.describe(run) for run in runs)
    more = [name for name in others if name not in {run.id for run in runs}]
    style.small_print(
        figure,
        f"{notes}\nAlso read: {', '.join(more) or 'none'}. Bars: 95 % bootstrap over problems, in pairs.\n"
        f"{do_bench_told(called)}.",
    )
    return figure
