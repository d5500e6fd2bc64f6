"""Compiled code by the version of Triton: what the thread's ifs and pointers became, and when."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import style
from common.documents import Document
from figures import source

VERSIONS = ("2.0.0", "2.1.0", "3.6.0", "3.9.0")
Line = tuple[str, tuple[str, ...], str]
"""A name, the key's parts beside the version, a colour."""
LOOP = [
    ("v00", ("v00_monolithic", "sm_80"), style.PALETTE[3]),
    ("without the reset", ("v00_no_reset", "sm_80"), style.PALETTE[1]),
    ("without both ifs", ("v00_no_ifs", "sm_80"), style.PALETTE[2]),
]
SPILLS = [
    ("v07 at 128x128x32", ("v07_atomic_min_lock", "sm_80"), style.PALETTE[7]),
    ("v08 at 128x256x64", ("v08_while_loop", "sm_80", "128x256x64"), style.PALETTE[8]),
    ("v08, shared pointers, at 128x256x64", ("v08_shared_pointers", "sm_80", "128x256x64"), style.PALETTE[4]),
]


def record(document: Document, parts: tuple[str, ...], version: str) -> dict[str, Any] | None:
    """The compiled kernel with this variant, architecture and, where it is given, block."""
    variant, target, *block = parts
    wanted = (variant, target, version, block[0] if block else None)
    for found in document.records:
        name, _, arch, triton, blocks, *_ = found["key"]
        if (name, arch, triton, blocks) == wanted:
            return found
    return None


def lines(axes: Axes, document: Document, drawn: list[Any], quantity: str) -> None:
    """One line a kernel over the versions; a cross at the bottom where it does not compile."""
    for name, parts, colour in drawn:
        found = [(i, record(document, parts, version)) for i, version in enumerate(VERSIONS)]
        good = [(i, r[quantity]) for i, r in found if r and r["status"] == "ok"]
        failed = [i for i, r in found if r and r["status"] != "ok"]
        if good:
            axes.plot(*zip(*good, strict=True), "o-", color=colour, label=name, linewidth=1.6, ms=5)
        axes.plot(failed, [0] * len(failed), "X", color=colour, mec=style.INK, mew=0.5, ms=8)
    axes.set_xticks(range(len(VERSIONS)), VERSIONS)
    axes.set_xlim(-0.3, len(VERSIONS) - 0.7)
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.05 * top, 1.25 * top)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel("Triton")
    axes.legend(loc="upper right")


def draw(results: Path) -> Figure:
    """Raises MissingRun where nothing was compiled."""
    document = source.require_document(results, "compiled")
    figure, grid = plt.subplots(1, 3, figsize=(12, 4.3))
    for axes, quantity, title in zip(
        grid[:2], ("hot_shared_store", "hot_barrier"), ("shared stores", "barriers"), strict=True
    ):
        lines(axes, document, LOOP, quantity)
        axes.set_title(f"{title} in v00's hot loop, 64x64x64, sm_80", fontsize=9)
    lines(grid[2], document, SPILLS, "n_spills")
    grid[2].set_title("spills of the first wave (bytes / 4), sm_80", fontsize=9)
    figure.suptitle("Compiled code by the version of Triton", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.09, 1, 0.99))
    style.small_print(
        figure,
        f"{document.id}, compiled offline. Instructions are counted where they stand in the largest loop with matrix "
        "instructions, not by how often they run.\n" + textwrap.fill(failing(document), 205),
    )
    return figure


def failing(document: Document) -> str:
    """What does not compile at all, and by which versions it does."""
    told: dict[str, dict[bool, list[str]]] = {}
    for found in document.records:
        name, kernel, target, version, *_ = found["key"]
        versions = told.setdefault(f"{name}'s {kernel} ({target})", {True: [], False: []})
        versions[found["status"] == "ok"] += [version] if version not in versions[found["status"] == "ok"] else []
    broken = {name: versions for name, versions in told.items() if versions[False]}
    return "Does not compile: " + "; ".join(
        f"{name} with Triton {', '.join(sorted(v[False]))} (it does with {', '.join(sorted(v[True])) or 'none'})"
        for name, v in broken.items()
    )
