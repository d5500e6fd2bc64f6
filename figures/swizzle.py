"""Swizzled against linear tiles: speed over shapes, and what the L2 and memory see."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common import documents, style
from common.documents import Document
from common.problem import Problem
from common.rows import Problem as Shape
from common.rows import Run, paired
from common.statistics import Interval, median_ratio
from experiments import verdicts
from experiments.claims import MARGIN
from figures import source

EXPERIMENT = "order"
PAIRS = {
    "tile matmul": ("tile_order", "tile_order swizzled", style.INK),
    "v04": ("v04_hoisted_segments", "v04_hoisted_segments swizzled", style.colour("v04_")),
    "v05": ("v05_cas_lock linear", "v05_cas_lock", style.colour("v05_")),
    "v08": ("v08_while_loop linear", "v08_while_loop", style.colour("v08_")),
}
SHOWN = {
    "cuBLAS": source.BASELINE,
    "tile matmul, linear": "tile_order",
    "tile matmul, swizzled": "tile_order swizzled",
    "v04, linear": "v04_hoisted_segments",
    "v04, swizzled": "v04_hoisted_segments swizzled",
    "v05": "v05_cas_lock",
    "v07": "v07_atomic_min_lock",
    "v08": "v08_while_loop",
}
"""Names and labels of the profiled calls."""


def gains(run: Run, linear: str, swizzled: str) -> dict[Shape, Interval]:
    """Linear time over swizzled time of each shape that both got right, by rounds."""
    slow, fast = (run.by_candidate.get(run.index(label), {}) for label in (linear, swizzled))
    both = [p for p in slow if p in fast and slow[p].status == fast[p].status == "ok"]
    return {p: median_ratio(*paired(run, slow[p], fast[p])) for p in both}


def speeds(axes: Axes, run: Run) -> None:
    """Linear time over swizzled time of each shape, one marker a variant."""
    problems = list(dict.fromkeys(row.problem for row in run.rows))
    problems.sort(key=lambda p: (p[0] * p[1], p[2]))
    for offset, (name, (linear, swizzled, colour)) in enumerate(PAIRS.items()):
        for problem, found in gains(run, linear, swizzled).items():
            position = problems.index(problem)
            y = position + 0.18 * (offset - 1.5)
            axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2, alpha=0.6)
            axes.plot(found.value, y, "o", color=colour, ms=3.5, label=name if not position else None)
    axes.axvspan(1 / (1 + MARGIN), 1 + MARGIN, color=style.PALE, alpha=0.35, linewidth=0)
    axes.axvline(1, color=style.INK, linewidth=0.8)
    axes.set_yticks(range(len(problems)), ["x".join(map(str, p)) for p in problems], fontsize=7.5)
    axes.set(ylim=(len(problems) - 0.4, -0.6), xlabel="linear time over swizzled time")
    axes.set_title("what the swizzle gains", fontsize=9)
    axes.grid(axis="x")
    axes.set_axisbelow(True)


MARKS = {"RTX 3090": "s", "A100": "D"}
"""Markers of the thread's GPUs, whose bytes are modelled."""
SKEWED = ("tile_order", "v04_hoisted_segments")
LONG_K = [2048, 2048, 8192]
"""Where K ranges that begin at different places are compared with a tile a program."""


def memory(axes: Axes, counted: Document, modelled: Document | None, problem: list[int]) -> None:
    """Megabytes read from memory by each call, with the L2's hit rate; marks for what the model says of this GPU and
    the thread's; a line where A and B are read once."""
    gpu = device(counted)
    for position, label in enumerate(SHOWN.values()):
        variant = label.split(" ")[0]
        colour = style.INK if variant == "tile_order" else style.colour(variant)
        read, rate = (measured(counted, label, problem, name) for name in ("dram_read_bytes", "l2_hit_rate"))
        if read:
            axes.barh(position, read / 1e6, color=colour, alpha=0.55, height=0.7)
            place = {"transform": axes.get_yaxis_transform(), "va": "center", "ha": "right", "fontsize": 6.5}
            axes.text(0.995, position, f"{read / 1e6:.0f} MB, {100 * (rate or 0):.0f} %", **place)
        for name, marker in ((gpu, "|"), *MARKS.items()):
            guess = verdicts.modelled(modelled, name, label, problem)
            if guess:
                look = {"color": style.INK, "ms": 9, "mew": 1.6} if name == gpu else {"color": colour, "ms": 3.5}
                axes.plot(guess / 1e6, position, marker, zorder=4, **look)
    m, n, k = problem
    axes.axvline((Problem(m, n, k).min_bytes - 2 * m * n) / 1e6, color=style.PALETTE[3], linewidth=1)
    axes.set_title("x".join(map(str, problem)), fontsize=8.5)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.35)
    axes.set_ylim(len(SHOWN) - 0.4, -0.6)


def device(document: Document) -> str:
    """The GPU of a document."""
    return (document.header.get("device") or {}).get("name", "")


def measured(document: Document, label: str, problem: list[int], name: str) -> float | None:
    """A counter of a call; None where nothing was counted."""
    if document.header.get("source") != "ncu":
        return None
    found = document.select(problem=problem, label=label)
    return float(found[0][name]) if found else None


def answer(run: Run, counted: Document) -> str:
    """Whether the swizzle gains and whether skewed K ranges cost reuse of the L2, in words made from the rows."""
    told = []
    for name, (linear, swizzled, _) in PAIRS.items():
        found = [ratio for ratio in gains(run, linear, swizzled).values()]
        gain = sum(ratio.low > 1 + MARGIN for ratio in found)
        loss = sum(ratio.high < 1 / (1 + MARGIN) for ratio in found)
        told.append(f"{name} faster at {gain}, slower at {loss}")
    text = f"Does the swizzle gain more than {100 * MARGIN:g} %? Of {len(found)} shapes: {'; '.join(told)}."
    tile, even = (measured(counted, label, LONG_K, "dram_read_bytes") for label in SKEWED)
    rates = [measured(counted, label, LONG_K, "l2_hit_rate") for label in SKEWED]
    if not tile or not even or None in rates:
        return text
    shape = "x".join(map(str, LONG_K))
    verb = "costs" if even > tile * (1 + MARGIN) else "does not cost"
    return (
        f"{text} Does an even share of long K ranges cost reuse of the L2? At {shape} it {verb} it: {even / 1e6:.0f} "
        f"MB read by v04 against {tile / 1e6:.0f} MB by the tile matmul, hit rate {100 * rates[1]:.0f} % against "
        f"{100 * rates[0]:.0f} %."
    )


def draw(results: Path) -> Figure:
    """Raises MissingRun where the order was not measured or no counters were read."""
    run = source.require(results, EXPERIMENT)
    counted = source.require_document(results, "counters")
    modelled = documents.newest(results, "estimates")
    problems = list(dict.fromkeys(tuple(record["problem"]) for record in counted.records))
    figure = plt.figure(figsize=(13.5, 7.8))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.45))
    drawn = left.subplots()
    speeds(drawn, run)
    left.legend(*drawn.get_legend_handles_labels(), loc="upper right", bbox_to_anchor=(0.99, 0.895), ncols=len(PAIRS))
    left.subplots_adjust(left=0.27, right=0.97, top=0.81, bottom=0.16)
    grid = right.subplots(2, -(-len(problems) // 2), sharey=True, squeeze=False)
    for axes, problem in zip(grid.flat, problems, strict=False):
        memory(axes, counted, modelled, list(problem))
    for axes in grid[:, 0]:
        axes.set_yticks(range(len(SHOWN)), list(SHOWN), fontsize=7.5)
    for axes in grid[-1]:
        axes.set_xlabel("MB read from memory, and the L2's hit rate")
    right.subplots_adjust(left=0.2, right=0.98, top=0.81, bottom=0.16, hspace=0.35, wspace=0.08)
    figure.suptitle(
        "The order of tiles: speed, memory traffic and reuse of the L2", x=0.01, ha="left", fontweight="bold"
    )
    figure.text(0.01, 0.945, textwrap.fill(answer(run, counted), 205), fontsize=8, va="top")
    looks = [Line2D([], [], marker="|", color=style.INK, linestyle="", ms=9, mew=1.6, label="modelled, this GPU")]
    for name, marker in MARKS.items():
        looks.append(Line2D([], [], marker=marker, color=style.GREY, linestyle="", ms=4, label=f"modelled, {name}"))
    right.legend(handles=looks, loc="upper right", bbox_to_anchor=(0.99, 0.895), ncols=3)
    style.small_print(figure, _notes(run, counted, modelled))
    return figure


def _notes(run: Run, counted: Document, modelled: Document | None) -> str:
    how = "bars are Nsight Compute's counters" if counted.header.get("source") == "ncu" else "no counters"
    factor, count = verdicts.model_error(counted, modelled)
    off = f"off by {factor:.1f}x at most on {count} counted calls" if count else "compared with no counters"
    guess = f"; {modelled.id}: marks, a model {off}" if modelled else ""
    return (
        f"{source.describe(run)}; {counted.id}: {how}{guess}. Left: 95 % bootstrap of the ratio of medians.\nRed: A "
        "and B read once. v04, v05 and v07 share K ranges evenly among the SMs, one program an SM; v08 all but whole "
        "waves."
    )
