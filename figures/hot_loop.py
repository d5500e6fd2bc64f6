"""What the loop with the matrix instructions is made of, along the lineage."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

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


def counts(row: Row) -> dict[str, int]:
    """Instructions of a row's hot loop by group."""
    return {group: sum(int(row[f"hot_{kind}"]) for kind in kinds) for group, kinds in GROUPS.items()}


def draw(results: Path) -> Figure:
    """A stacked bar a variant, a panel an architecture. Raises MissingRun without a table."""
    version = code_tables.newest()
    names = [*code_tables.of_thread(), "data_parallel"]
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
    for axes, architecture in zip(panels, ARCHITECTURES, strict=True):
        found = [code_tables.find(version, n, code_tables.stream_k_kernel(n), architecture) for n in names]
        left = [0] * len(names)
        for (group, _), colour in zip(GROUPS.items(), COLOURS, strict=True):
            widths = [counts(row)[group] for row in found]
            axes.barh(
                range(len(names)), widths, left=left, color=colour, label=group, height=0.7, edgecolor="white", lw=0.4
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for line, (row, total) in enumerate(zip(found, left, strict=True)):
            word = f"{total}: {row['hot_matrix']} matrix, {row['hot_async_copy']} copies, {row['hot_barrier']} barriers"
            axes.text(total + max(left) * 0.01, line, word, va="center", fontsize=7, color=style.FAINT)
        axes.set_xlim(0, max(left) * 1.42)
        axes.set_title(architecture)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("instructions in the loop")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
    panels[0].invert_yaxis()
    title = f"The hot loop of each Stream-K kernel at {code_tables.COMMON}, Triton {version}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 0.035))
    figure.tight_layout(rect=(0, 0.11, 1, 0.97))
    style.small_print(
        figure,
        f"{code_tables.SOURCE} The loop holds the matrix instructions; of several (v00, v04 to v07) the one with the "
        "most instructions.",
    )
    return figure
