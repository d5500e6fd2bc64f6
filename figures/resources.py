"""Registers, spills and occupancy of every variant's Stream-K kernel on every architecture, as heat maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from common import style
from common.architectures import ARCHITECTURES
from common.goldens import Row
from figures import code_tables

PANELS: tuple[tuple[str, str, Callable[[Row], int]], ...] = (
    ("registers of a thread", "YlGnBu", lambda row: int(row["registers"])),
    ("bytes spilled, stores and loads", "OrRd", code_tables.spill_bytes),
    ("programs that fit on an SM", "Purples", lambda row: int(row["programs_per_sm"])),
)


def draw(results: Path) -> Figure:
    """Three panels, variant by architecture; beyond the thread at its config. Raises MissingRun without a table."""
    version = code_tables.newest()
    common = [*code_tables.of_thread(), "split_k", "data_parallel"]
    found = code_tables.lines(version, common, ARCHITECTURES)
    figure, panels = plt.subplots(1, 3, figsize=(12.8, 1.2 + 0.34 * len(found)), sharey=True)
    for axes, (title, colours, value) in zip(panels, PANELS, strict=True):
        panel(axes, [[_cell(row, value) for row in line] for line in found.values()], colours)
        axes.set_title(title)
        axes.set_xticks(range(len(ARCHITECTURES)), ARCHITECTURES)
        axes.set_yticks(range(len(found)), list(found))
        axes.axhline(len(common) - 0.5, color="white", linewidth=6)
    title = f"What the Stream-K kernel takes at {code_tables.COMMON}, beyond the thread at its card's, Triton {version}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.045, 1, 0.99))
    style.small_print(
        figure,
        f"{code_tables.SOURCE} gfx942: vector registers of 512, spilled registers times 4 bytes, programs of a compute "
        "unit. v00's kernel holds both kinds of program.\nBelow the gap: at the card's tile, warps (with those that "
        "copy) and stages; blank: the kernel is for sm_90 alone. 0: more shared memory than there is.",
    )
    return figure


def _cell(row: Row | None, value: Callable[[Row], int]) -> tuple[float, str]:
    """What colours a cell, NaN for none, and its word."""
    if row is None:
        return float("nan"), ""
    return (value(row), str(value(row))) if row["status"] == "ok" else (float("nan"), "fails")


def panel(axes: Axes, cells: list[list[tuple[float, str]]], colours: str) -> None:
    """Draw a heat map and its numbers."""
    grid = np.array([[value for value, _ in line] for line in cells])
    most = max(np.nanmax(grid), 1)
    axes.imshow(grid, cmap=pale_zero(colours), aspect="auto", vmin=0, vmax=most)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (line, column), value in np.ndenumerate(grid):
        colour = "white" if value > 0.6 * most else style.INK
        axes.text(column, line, cells[line][column][1], ha="center", va="center", fontsize=8, color=colour)


def pale_zero(name: str) -> Colormap:
    """A colour map whose zero is nearly white, so that a zero is seen at once."""
    colours = plt.get_cmap(name)(np.linspace(0, 0.9, 256))
    colours[0] = (0.97, 0.97, 0.97, 1)
    return ListedColormap(colours)
