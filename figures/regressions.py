"""Every claim of the thread: its number, what was measured here, and the verdict."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from common import style
from experiments import verdicts
from experiments.claims import MARGIN
from experiments.verdicts import NOT_MEASURED, Answer, Outcome
from figures.source import MissingRun

COLOURS = {
    "reproduced": style.PALETTE[2],
    "reproduced, smaller": style.PALETTE[0],
    "not reproduced": style.PALETTE[1],
    "reversed": style.PALETTE[3],
    "not testable here": style.FAINT,
}
LIMITS = (0.3, 4.5)
TICKS = (0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4)
ROW = 0.41
"""Inches of a line."""


def has_interval(outcome: Outcome) -> bool:
    """Whether it is a ratio of times that was measured."""
    return bool(outcome.band) and outcome.low is not None and outcome.high is not None


def row(axes: Axes, position: int, outcome: Outcome) -> None:
    """One verdict: interval, the thread's ratio, the verdict in words at the right; words where there is no ratio."""
    colour = COLOURS[outcome.verdict]
    if has_interval(outcome):
        axes.plot([outcome.low, outcome.high], [position] * 2, color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot(outcome.value, position, "o", color=colour, mec=style.INK, mew=0.5, ms=5, zorder=5)
        if outcome.claimed:
            axes.plot(outcome.claimed, position, "v", color="white", mec=style.INK, mew=0.9, ms=6, zorder=4)
    else:
        axes.axhspan(position - 0.48, position + 0.48, color="white", zorder=3, linewidth=0)
        words = f"{outcome.name}: {outcome.told or outcome.reason}"
        shown = "\n".join(textwrap.wrap(textwrap.shorten(words, 185, placeholder=" …"), 96))
        axes.text(LIMITS[0] * 1.03, position, shown, va="center", fontsize=6.8, color=style.FAINT, zorder=4)
    place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8}
    axes.text(1.015, position, outcome.verdict, color=colour, fontweight="bold", **place)
    if has_interval(outcome):
        axes.text(1.295, position, outcome.shown, color=style.INK, **place)
        axes.text(1.77, position, outcome.band, color=style.FAINT, **place)


def label(answer: Answer, outcome: Outcome) -> str:
    """The claim in the first of its lines; its halves by their names."""
    first = outcome is answer.deciding[0]
    text = textwrap.fill(f"{answer.claim.id}  {answer.claim.statement}", 84) if first else ""
    if not outcome.half:
        return text
    return f"{text}\n– {outcome.half}" if first else f"– {outcome.half}"


def draw(results: Path) -> Figure:
    """Raises MissingRun where a claim has no verdict yet: none is drawn without the others."""
    answers, machines = verdicts.committed(results)
    lines = [(answer, outcome) for answer in answers for outcome in answer.deciding]
    missing = [f"{a.claim.id} ({o.source})" for a, o in lines if o.verdict == NOT_MEASURED]
    if missing:
        raise MissingRun(f"no verdict yet for {', '.join(missing)}")
    height = ROW * len(lines) + 1.4
    figure, axes = plt.subplots(figsize=(15.5, height))
    axes.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.PALE, alpha=0.55, linewidth=0, zorder=1)
    axes.axvline(1, color=style.INK, linewidth=0.8, zorder=2)
    for position, (answer, outcome) in enumerate(lines):
        row(axes, position, outcome)
        if position and outcome is answer.deciding[0]:
            axes.axhline(position - 0.5, color="#e4e4e4", linewidth=0.6, zorder=3.5)
    axes.set_yticks(range(len(lines)), [label(*line) for line in lines], fontsize=7.2, linespacing=1.15)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set(xlim=LIMITS, ylim=(len(lines) - 0.5, -0.6), xlabel="ratio of times, or speed-up over cuBLAS (logarithmic)")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    figure.suptitle("The thread's claims, asked again", x=0.01, y=1 - 0.1 / height, ha="left", fontweight="bold")
    figure.legend(handles=_handles(), loc="upper left", bbox_to_anchor=(0.3, 1 - 0.05 / height), ncols=3)
    figure.subplots_adjust(left=0.305, right=0.63, top=1 - 0.45 / height, bottom=0.95 / height)
    style.small_print(figure, _notes(machines, sorted({o.source for _, o in lines if o.source})))
    return figure


def _handles() -> list[Line2D | Patch]:
    here = {"marker": "o", "color": style.GREY, "mec": style.INK, "linewidth": 4, "ms": 5}
    return [
        Line2D([], [], **here, label="here, with 95 % interval"),
        Line2D([], [], marker="v", color="white", mec=style.INK, ms=6, label="the thread's number"),
        Patch(color=style.PALE, alpha=0.55, label=verdicts.BAND),
    ]


def _notes(machines: list[str], sources: list[str]) -> str:
    lines = textwrap.wrap(f"Measured on {'; '.join(machines)}. Rows: {', '.join(sources)}.", 230)
    lines.append(
        "An interval that is not outside the grey band is no speed-up. Every test of a claim: python -m experiments "
        "claims."
    )
    return "\n".join(lines)
