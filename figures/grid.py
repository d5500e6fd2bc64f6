"""Time against the number of Stream-K programs on the thread's shapes, beside the paper's model fitted on others."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from common import style
from common.decomposition import Schedule, cdiv, optional_two_tile
from common.model import Constants, fit
from common.rows import Problem, Row, Run
from experiments.plan import count_programs
from figures import source

EXPERIMENT = "grid_sweep"
VARIANT = "v08_while_loop"
THREAD = ((1536, 1792, 6016), (1536, 3584, 6016), (256, 512, 32768), (256, 512, 2048))
"""Shapes that the model is not fitted on."""
TICKS = tuple(digit * 10**power for power in range(4) for digit in (1, 1.5, 2, 3, 5, 7))
Point = tuple[Problem, Schedule, Row]


def schedule_of(candidate: dict[str, Any], problem: Problem, sms: int) -> Schedule:
    """The schedule of a candidate of the header."""
    config = candidate["config"]
    shape = [cdiv(size, block) for size, block in zip(problem, config["block"], strict=True)]
    programs = count_programs(candidate["programs"], sms, shape[0] * shape[1])
    return optional_two_tile(*shape, programs, config["two_tiles"])


def points(run: Run) -> list[Point]:
    """Every right measurement of the variant with its schedule."""
    sms, found = run.header["device"]["sms"], []
    for row in run.rows:
        candidate = run.candidates[row.candidate]
        if candidate["variant"] == VARIANT and row.status == "ok" and row.samples:
            found.append((row.problem, schedule_of(candidate, row.problem, sms), row))
    return found


def fitted(run: Run, every: list[Point]) -> Constants:
    """The model's constants from the shapes that are not the thread's, up to one program an SM, as in the paper."""
    sms = run.header["device"]["sms"]
    return fit([(s, row.median) for problem, s, row in every if problem not in THREAD and s.programs <= sms], sms)


def error(run: Run, every: list[Point], constants: Constants) -> tuple[float, float, int]:
    """The factor by which the model is off on the thread's shapes up to one program an SM, in either direction: the
    geometric mean and the most, and of how many measurements; NaN of none."""
    sms = run.header["device"]["sms"]
    shown = [(s, row.median) for problem, s, row in every if problem in THREAD and s.programs <= sms]
    off = [abs(math.log(constants.predict(schedule, sms) / time)) for schedule, time in shown]
    return (math.exp(sum(off) / len(off)), math.exp(max(off)), len(off)) if off else (math.nan, math.nan, 0)


def resident_limit(every: list[Point]) -> float | None:
    """Between the most programs that fit at once and the fewest that rely on dispatch order; None without both."""
    asked = [(s.programs, row.relies_on_dispatch_order) for _, s, row in every if s.sk_tiles and s.max_peers > 1]
    beyond = [programs for programs, relies in asked if relies]
    if not beyond:
        return None
    within = [programs for programs, relies in asked if not relies and programs < min(beyond)]
    return (max(within) + min(beyond)) / 2 if within else None


def panel(axes: Axes, run: Run, every: list[Point], problem: Problem, two_tiles: bool, constants: Constants) -> None:
    """Measured times and the model's, cuBLAS, the tile matmul, and how many programs are resident."""
    sms = run.header["device"]["sms"]
    mine = {}
    for shape, schedule, row in every:
        if shape == problem and run.candidates[row.candidate]["config"]["two_tiles"] == two_tiles:
            mine[schedule.programs] = (schedule, row.median)
    programs = sorted(mine)
    predicted = [constants.predict(mine[p][0], sms) for p in programs]
    within = [i for i, p in enumerate(programs) if p <= sms]
    axes.plot(programs, [mine[p][1] for p in programs], "o-", color=style.PALETTE[0], ms=3, linewidth=1)
    axes.plot(programs, predicted, color=style.PALETTE[1], linewidth=1.2, linestyle=(0, (3, 2)))
    axes.plot([programs[i] for i in within], [predicted[i] for i in within], color=style.PALETTE[1], linewidth=1.8)
    for label, line in ((source.BASELINE, "-"), ("data_parallel", ":")):
        base = run.medians(label).get(problem)
        if base:
            axes.axhline(base, color=style.INK, linewidth=0.9, linestyle=line)
    limit = resident_limit(every)
    if limit:
        axes.axvspan(limit, max(programs) * 1.05, color=style.PALE, alpha=0.45, linewidth=0)
    for multiple in range(1, max(programs) // sms + 1):
        axes.axvline(multiple * sms, color="#e4e4e4", linewidth=0.8, zorder=0)
    axes.set(xlim=(0, max(programs) * 1.02), yscale="log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    tiles = next(iter(mine.values()))[0].tiles
    name = "x".join(map(str, problem))
    axes.set_title(f"{name}, {tiles} tiles\ntwo-tile {'on' if two_tiles else 'off'}", fontsize=8)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the sweep has no finished run."""
    run = source.require(results, EXPERIMENT)
    every = points(run)
    constants = fitted(run, every)
    shapes = [shape for shape in THREAD if any(problem == shape for problem, _, _ in every)]
    figure, grid = plt.subplots(2, len(shapes), figsize=(3.2 * len(shapes) + 0.5, 6.4), sharex=True, sharey="col")
    for column, problem in enumerate(shapes):
        for axes, two_tiles in zip(grid[:, column], (True, False), strict=True):
            panel(axes, run, every, problem, two_tiles, constants)
        grid[1][column].set_xlabel("Stream-K programs P")
    for axes in grid[:, 0]:
        axes.set_ylabel("µs (logarithmic)")
    figure.suptitle("v08's time against the number of Stream-K programs", x=0.01, ha="left", fontweight="bold")
    blue, orange = style.PALETTE[0], style.PALETTE[1]
    handles = [
        Line2D([], [], color=blue, marker="o", ms=3, label="v08, 128x128x32"),
        Line2D([], [], color=orange, linewidth=1.8, label="the paper's model; dashed beyond one program an SM"),
        Line2D([], [], color=style.INK, label="cuBLAS"),
        Line2D([], [], color=style.INK, linestyle=":", label="tile matmul"),
        Line2D([], [], color=style.PALE, linewidth=8, alpha=0.6, label="more programs than are resident at once"),
    ]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.005, 0.965), ncols=5)
    figure.tight_layout(rect=(0, 0.055, 1, 0.945))
    style.small_print(figure, _notes(run, every, constants))
    return figure


def _notes(run: Run, every: list[Point], constants: Constants) -> str:
    others = len({problem for problem, _, _ in every if problem not in THREAD})
    mean, most, count = error(run, every, constants)
    zero = [name for name, value in asdict(constants).items() if not value]
    bound = f" (at 0, the least that the fit allows: {', '.join(zero)})" if zero else ""
    return (
        f"{source.describe(run)}. Grey lines: multiples of {run.header['device']['sms']} SMs. Up to the first, the "
        f"model is off by {mean:.2f}x on average and {most:.2f}x at most, of {count} times shown.\nModel: "
        f"{constants.launch:.1f} µs, {constants.sharing:.1f} µs where tiles are shared, {constants.iteration:.3f} µs a "
        f"MAC iteration, {constants.peer:.2f} µs a further peer{bound}; fitted on {others} other shapes, P up to the "
        "SMs."
    )
