"""What the loop with the matrix instructions is made of, along the lineage and beyond it."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from common import style
from common.goldens import Row
from figures import code_tables

ARCHITECTURES = ("sm_86", "sm_90")
GROUPS = {
    "matrix": ("matrix",),
    "asynchronous copies and waits": ("async_copy", "wait"),
    "shared memory": ("shared_load", "shared_store"),
    "global memory, atomics": ("global_load", "global_store", "atomic", "reduction"),
    "barriers, fences": ("barrier", "mbarrier", "fence", "cache_invalidation"),
    "branches": ("branch", "reconvergence"),
    "integer": ("integer",),
    "float": ("float",),
    "moves": ("move", "other"),
    "spills": ("local_load", "local_store"),
}
COLOURS = (*style.PALETTE, style.GREY)
ROOM = 1.75
"""The panel's width in longest bars: the words beside that bar must fit."""


def counts(row: Row) -> dict[str, int]:
    """Instructions of a row's hot loop by group."""
    return {group: sum(int(row[f"hot_{kind}"]) for kind in kinds) for group, kinds in GROUPS.items()}


def draw(results: Path) -> Figure:
    """A stacked bar a variant, a panel an architecture. Raises MissingRun without a table."""
    version = code_tables.newest()
    common = [*code_tables.of_thread(), "data_parallel"]
    found = code_tables.lines(version, common, ARCHITECTURES)
    figure, panels = plt.subplots(1, 2, figsize=(12.6, 2 + 0.3 * len(found)), sharey=True)
    for axes, architecture, column in zip(panels, ARCHITECTURES, zip(*found.values(), strict=True), strict=True):
        panel(axes, list(column))
        axes.set_title(architecture)
        axes.set_yticks(range(len(found)), list(found))
        axes.set_xlabel("instructions in the loop", loc="left")
        axes.axhline(len(common) - 0.5, color=style.PALE, linewidth=0.8)
    panels[0].set_ylim(len(found) - 0.4, -0.6)
    title = f"The hot loop of each Stream-K kernel at {code_tables.COMMON}, beyond the thread at its card's, "
    figure.suptitle(f"{title}Triton {version}", x=0.01, ha="left", fontweight="bold")
    handles = [Patch(facecolor=colour, label=group) for group, colour in zip(GROUPS, COLOURS, strict=True)]
    figure.legend(handles=handles, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 0.045))
    figure.tight_layout(rect=(0, 0.1, 1, 0.99))
    style.small_print(
        figure,
        f"{code_tables.SOURCE} The loop holds the matrix instructions; of several the one with the most instructions. "
        "No bar: the kernel is for sm_90 alone.\nBelow the line: at the card's tile, warps (with those that copy) and "
        "stages. From v10 on the copies are in another warp's loop.",
    )
    return figure


def panel(axes: Axes, found: list[Row | None]) -> None:
    """The bars of one architecture; where there is no row, none."""
    left = [0] * len(found)
    for group, colour in zip(GROUPS, COLOURS, strict=True):
        widths = {line: counts(row)[group] for line, row in enumerate(found) if row and counts(row)[group]}
        starts = [left[line] for line in widths]
        axes.barh(list(widths), list(widths.values()), left=starts, color=colour, height=0.7, edgecolor="white", lw=0.4)
        for line, width in widths.items():
            left[line] += width
    most = max(left)
    for line, (row, total) in enumerate(zip(found, left, strict=True)):
        if row:
            word = f"{total}: {row['hot_matrix']} matrix, {row['hot_async_copy']} copies, {row['hot_barrier']} barriers"
            axes.text(total + most * 0.015, line, word, va="center", fontsize=7, color=style.FAINT)
    axes.set_xlim(0, most * ROOM)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= most])
    axes.spines["bottom"].set_bounds(0, most)
    axes.tick_params(axis="y", length=0)
