"""Swizzled against linear tiles: speed over shapes, and what the L2 and memory see."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import style
from common.documents import Document
from common.problem import Problem
from common.rows import Run
from common.statistics import median_ratio
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


def speeds(axes: Axes, run: Run) -> None:
    """Linear time over swizzled time of each shape, one marker a variant."""
    problems = list(dict.fromkeys(row.problem for row in run.rows))
    problems.sort(key=lambda p: (p[0] * p[1], p[2]))
    for offset, (name, (linear, swizzled, colour)) in enumerate(PAIRS.items()):
        tables = [run.by_candidate.get(run.index(label), {}) for label in (linear, swizzled)]
        for position, problem in enumerate(problems):
            slow, fast = (table.get(problem) for table in tables)
            if slow is None or fast is None or not (slow.status == fast.status == "ok"):
                continue
            found = median_ratio(slow.samples, fast.samples)
            y = position + 0.18 * (offset - 1.5)
            axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2, alpha=0.6)
            axes.plot(found.value, y, "o", color=colour, ms=3.5, label=name if not position else None)
    axes.axvline(1, color=style.INK, linewidth=0.8)
    axes.set_yticks(range(len(problems)), ["x".join(map(str, p)) for p in problems], fontsize=7.5)
    axes.set(ylim=(len(problems) - 0.4, -0.6), xlabel="linear time over swizzled time")
    axes.set_title("what the swizzle gains", fontsize=9)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.legend(loc="lower right")


def memory(axes: Axes, document: Document, problem: list[int]) -> None:
    """Megabytes read from memory by each call, with the L2's hit rate; a line where A and B are read once."""
    real = document.header["source"] == "ncu"
    for position, label in enumerate(SHOWN.values()):
        record = next(iter(document.select(problem=problem, label=label)), None)
        amount = record and record.get("dram_read_bytes" if real else "estimated_missed_bytes")
        if not amount:
            continue
        variant = label.split(" ")[0]
        colour = style.INK if variant == "tile_order" else style.colour(variant)
        axes.barh(position, amount / 1e6, color=colour, alpha=0.55, height=0.7)
        rate = record["l2_hit_rate" if real else "estimated_hit_rate"]
        axes.text(amount / 1e6, position, f" {amount / 1e6:.0f} MB, {100 * rate:.0f} %", va="center", fontsize=6.5)
    m, n, k = problem
    axes.axvline((Problem(m, n, k).min_bytes - 2 * m * n) / 1e6, color=style.PALETTE[3], linewidth=1)
    axes.set_title("x".join(map(str, problem)), fontsize=8.5)
    axes.margins(x=0.45)
    axes.set_ylim(len(SHOWN) - 0.4, -0.6)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the order was not measured or no counters were read."""
    run = source.require(results, EXPERIMENT)
    document = source.require_document(results, "counters")
    problems = list(dict.fromkeys(tuple(record["problem"]) for record in document.records))
    figure = plt.figure(figsize=(13.5, 7.0))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.45))
    speeds(left.subplots(), run)
    left.subplots_adjust(left=0.27, right=0.97, top=0.87, bottom=0.16)
    grid = right.subplots(2, -(-len(problems) // 2), sharey=True, squeeze=False)
    for axes, problem in zip(grid.flat, problems, strict=False):
        memory(axes, document, list(problem))
    for axes in grid[:, 0]:
        axes.set_yticks(range(len(SHOWN)), list(SHOWN), fontsize=7.5)
    for axes in grid[-1]:
        axes.set_xlabel("MB read from memory; L2 hit rate")
    right.subplots_adjust(left=0.2, right=0.98, top=0.87, bottom=0.16, hspace=0.35, wspace=0.08)
    figure.suptitle(
        "The order of tiles: speed, memory traffic and reuse of the L2", x=0.01, ha="left", fontweight="bold"
    )
    how = "hardware counters by Nsight Compute" if document.header["source"] == "ncu" else "estimated, no counters"
    style.small_print(
        figure,
        f"{source.describe(run)}; {document.id}: {how}. Bars: 95 % bootstrap of the ratio of medians.\nRed: A and B "
        "read once. v04, v05 and v07 share K ranges evenly among the SMs, one program an SM; v08 all but whole waves.",
    )
    return figure
