"""The same kernels under four versions of Triton: what a thread keeps in registers and on its stack."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from common import style
from common.goldens import DRIFT, DRIFT_ARCHITECTURES
from figures import code_tables
from figures.resources import pale_zero


def draw(results: Path) -> Figure:
    """Variant by version, a panel an architecture; colour is the stack. Raises MissingRun without the tables."""
    names = [*code_tables.of_thread(), "split_k", "data_parallel"]
    figure, panels = plt.subplots(1, 2, figsize=(12, 5.4), sharey=True)
    found = {
        target: [
            [code_tables.find(version, name, code_tables.stream_k_kernel(name), target) for version in DRIFT]
            for name in names
        ]
        for target in DRIFT_ARCHITECTURES
    }
    most = max(float(row["stack_bytes"]) for lines in found.values() for line in lines for row in line)
    for axes, target in zip(panels, DRIFT_ARCHITECTURES, strict=True):
        grid = np.array([[float(row["stack_bytes"]) for row in line] for line in found[target]])
        failed = np.array([[row["status"] != "ok" for row in line] for line in found[target]])
        axes.imshow(np.ma.masked_array(grid, failed), cmap=pale_zero("OrRd"), aspect="auto", vmin=0, vmax=max(most, 1))
        axes.set_title(target)
        axes.set_xticks(range(len(DRIFT)), [f"Triton {version}" for version in DRIFT])
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for line, row_of in enumerate(found[target]):
            for column, row in enumerate(row_of):
                if failed[line, column]:
                    axes.text(
                        column, line, "does not compile", ha="center", va="center", fontsize=7.5, color=style.FAINT
                    )
                    continue
                dark = grid[line, column] > 0.6 * most
                word = f"{row['stack_bytes']} B stack, {row['registers']} regs"
                axes.text(
                    column, line, word, ha="center", va="center", fontsize=7.5, color="white" if dark else style.INK
                )
    title = f"Stack and registers of a thread at {code_tables.COMMON}, by the version of Triton"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.04, 1, 0.97))
    style.small_print(
        figure,
        f"{code_tables.SOURCE} 2.0.0 and 2.1.0 compile the same source with tl.dot's accumulator written as an "
        "addition and, in 2.0.0, without the order of atomics.",
    )
    return figure
