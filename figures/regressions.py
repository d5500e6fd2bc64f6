"""Every claim of the thread: its number, what was measured here, and the verdict."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from common import style
from experiments import verdicts
from experiments.verdicts import NOT_MEASURED, Answer
from figures.source import MissingRun

COLOURS = {
    "reproduced": style.PALETTE[2],
    "reproduced, smaller": style.PALETTE[0],
    "not reproduced": style.PALETTE[1],
    "reversed": style.PALETTE[3],
    "not testable here": style.FAINT,
}
LIMITS = (0.4, 4.5)
TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4)


def row(axes: Axes, position: int, answer: Answer) -> None:
    """One claim: interval, the thread's ratio, and the verdict in words at the right."""
    first = answer.outcomes[0]
    colour = COLOURS[answer.verdict]
    if first.low is not None and first.high is not None:
        axes.plot([first.low, first.high], [position] * 2, color=colour, linewidth=4, solid_capstyle="butt", alpha=0.6)
        axes.plot(first.value, position, "o", color=colour, mec=style.INK, mew=0.5, ms=5, zorder=3)
        if first.claimed:
            axes.plot(first.claimed, position, "v", color="white", mec=style.INK, mew=0.9, ms=6, zorder=4)
    else:
        axes.axhspan(position - 0.45, position + 0.45, color="white", zorder=1)
        words = first.reason if answer.verdict == "not testable here" else f"{first.name}: {first.shown}"
        shown = "\n".join(textwrap.wrap(textwrap.shorten(words, 190, placeholder=" …"), 95))
        axes.text(LIMITS[0] * 1.03, position, shown, va="center", fontsize=7, color=style.FAINT, zorder=2)
    place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8}
    axes.text(1.015, position, answer.verdict, color=colour, fontweight="bold", **place)
    value = str(first.shown) if first.low is not None else ""
    axes.text(1.29, position, value, color=style.INK, **place)


def draw(results: Path) -> Figure:
    """Raises MissingRun where a claim has no verdict yet: none is drawn without the others."""
    answers, machines = verdicts.committed(results)
    missing = [f"{a.claim.id} ({a.outcomes[0].source})" for a in answers if a.verdict == NOT_MEASURED]
    if missing:
        raise MissingRun(f"no verdict yet for {', '.join(missing)}")
    figure, axes = plt.subplots(figsize=(13.5, 8.4))
    axes.axvline(1, color=style.INK, linewidth=0.8)
    for position, answer in enumerate(answers):
        row(axes, position, answer)
    labels = [f"{a.claim.id}  " + textwrap.fill(a.claim.statement, 62) for a in answers]
    axes.set_yticks(range(len(answers)), labels, fontsize=7.5, linespacing=0.95)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set(
        xlim=LIMITS, ylim=(len(answers) - 0.4, -0.7), xlabel="ratio of times, or speed-up over cuBLAS (logarithmic)"
    )
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    figure.suptitle("The thread's claims, asked again", x=0.01, ha="left", fontweight="bold")
    handles = [
        Line2D(
            [], [], marker="o", color=style.GREY, mec=style.INK, linewidth=4, ms=5, label="here, with 95 % interval"
        ),
        Line2D([], [], marker="v", color="white", mec=style.INK, ms=6, label="the thread's number"),
    ]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.3, 0.995), ncols=2)
    figure.subplots_adjust(left=0.33, right=0.69, top=0.94, bottom=0.095)
    sources = sorted({a.outcomes[0].source for a in answers if a.outcomes[0].source})
    style.small_print(figure, _notes(machines, sources))
    return figure


def _notes(machines: list[str], sources: list[str]) -> str:
    lines = textwrap.wrap(f"Measured on {'; '.join(machines)}. Rows: {', '.join(sources)}.", 230)
    lines.append("An interval that includes 1 is no speed-up. Every test of a claim: python -m experiments claims.")
    return "\n".join(lines)
