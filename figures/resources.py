"""Registers, spills and occupancy of every variant's Stream-K kernel on every architecture, as heat maps."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from common import style
from common.architectures import ARCHITECTURES
from figures import code_tables

PANELS = (
    ("registers of a thread", "YlGnBu"),
    ("bytes spilled, stores and loads", "OrRd"),
    ("programs that fit on an SM", "Purples"),
)


def draw(results: Path) -> Figure:
    """Three panels, variant by architecture, at the same launch parameters. Raises MissingRun without a table."""
    version = code_tables.newest()
    names = [*code_tables.of_thread(), "split_k", "data_parallel"]
    found = [[code_tables.find(version, n, code_tables.stream_k_kernel(n), a) for a in ARCHITECTURES] for n in names]
    values = [
        np.array([[float(row["registers"]) for row in line] for line in found]),
        np.array([[float(code_tables.spill_bytes(row)) for row in line] for line in found]),
        np.array([[float(row["programs_per_sm"]) for row in line] for line in found]),
    ]
    failed = np.array([[row["status"] != "ok" for row in line] for line in found])
    figure, panels = plt.subplots(1, 3, figsize=(12, 5.2), sharey=True)
    for axes, (title, colours), grid in zip(panels, PANELS, values, strict=True):
        shown = np.ma.masked_array(grid, failed)
        axes.imshow(shown, cmap=pale_zero(colours), aspect="auto", vmin=0, vmax=max(grid.max(), 1))
        axes.set_title(title)
        axes.set_xticks(range(len(ARCHITECTURES)), ARCHITECTURES)
        axes.set_yticks(range(len(names)), names)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for (line, column), value in np.ndenumerate(grid):
            dark = value > 0.6 * max(grid.max(), 1)
            word = "fails" if failed[line, column] else f"{value:.0f}"
            axes.text(column, line, word, ha="center", va="center", fontsize=8, color="white" if dark else style.INK)
    title = f"What the Stream-K kernel takes at {code_tables.COMMON}, Triton {version}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.04, 1, 0.97))
    style.small_print(
        figure,
        f"{code_tables.SOURCE} gfx942: vector registers of 512, spilled registers times 4 bytes, programs of a compute "
        "unit. v00's kernel holds both kinds of program.",
    )
    return figure


def pale_zero(name: str) -> Colormap:
    """A colour map whose zero is nearly white, so that a zero is seen at once."""
    colours = plt.get_cmap(name)(np.linspace(0, 0.9, 256))
    colours[0] = (0.97, 0.97, 0.97, 1)
    return ListedColormap(colours)
