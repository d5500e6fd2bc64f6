"""Compiled code by the version of Triton: what the thread's ifs and pointers became, and when."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from common import style
from common.documents import Document
from experiments.claims import ABOUT
from figures import source

VERSIONS = ("2.0.0", "2.1.0", "3.6.0", "3.9.0")
Line = tuple[str, tuple[str, ...], str]
"""A name, the key's parts beside the version, a colour."""
LOOP = [
    ("v00", ("v00_monolithic",), style.PALETTE[3]),
    ("without the reset", ("v00_no_reset",), style.PALETTE[1]),
    ("without both ifs", ("v00_no_ifs",), style.PALETTE[2]),
]
SPILLS = [
    ("v07 at 128x128x32", ("v07_atomic_min_lock",), style.PALETTE[7]),
    ("v08 at 128x256x64", ("v08_while_loop", "128x256x64"), style.PALETTE[8]),
    ("v08, shared pointers, at 128x256x64", ("v08_shared_pointers", "128x256x64"), style.PALETTE[4]),
]
TARGETS = {"sm_80": ("-", "o"), "sm_86": ((0, (4, 2)), "s"), "sm_90": (":", "^")}
"""Line and marker of an architecture: the A100's, the RTX 3090's, the H100's."""

APART = (0.19, 0.055)
"""How far kernels and architectures stand beside each other, in versions."""


def record(document: Document, parts: tuple[str, ...], target: str, version: str) -> dict[str, Any] | None:
    """The kernel of a variant, and at a block where one is given, for an architecture by this version."""
    wanted = (parts[0], target, version, parts[1] if len(parts) > 1 else None)
    for found in document.records:
        name, _, arch, triton, blocks, *_ = found["key"]
        if (name, arch, triton, blocks) == wanted:
            return found
    return None


def lines(axes: Axes, document: Document, drawn: list[Any], quantity: str) -> None:
    """One line a kernel and architecture over the versions, beside each other, for many have the same numbers; a cross
    at the bottom where it does not compile."""
    for kernel, (name, parts, colour) in enumerate(drawn):
        for place, (target, (dashes, marker)) in enumerate(TARGETS.items()):
            aside = APART[0] * (kernel - (len(drawn) - 1) / 2) + APART[1] * (place - (len(TARGETS) - 1) / 2)
            found = [(i, record(document, parts, target, version)) for i, version in enumerate(VERSIONS)]
            good = [(i, r[quantity]) for i, r in found if r and r["status"] == "ok"]
            failed = [i for i, r in found if r and r["status"] != "ok"]
            if good:
                label = name if target == "sm_80" else None
                x, y = zip(*good, strict=True)
                look = {"linestyle": dashes, "marker": marker, "color": colour, "linewidth": 1.2, "ms": 4}
                axes.plot([i + aside for i in x], y, label=label, **look)
            axes.plot([i + aside for i in failed], [0] * len(failed), "X", color=colour, mec=style.INK, mew=0.5, ms=6.5)
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
    figure, grid = plt.subplots(1, 3, figsize=(12, 4.6))
    for axes, quantity, title in zip(
        grid[:2], ("hot_shared_store", "hot_barrier"), ("shared stores", "barriers"), strict=True
    ):
        lines(axes, document, LOOP, quantity)
        axes.set_title(f"{title} in v00's hot loop, 64x64x64", fontsize=9)
    lines(grid[2], document, SPILLS, "n_spills")
    grid[2].set_title("spills of the first wave (bytes / 4)", fontsize=9)
    figure.suptitle("Compiled code by the version of Triton", x=0.01, ha="left", fontweight="bold")
    handles = [
        Line2D([], [], color=style.INK, linestyle=dashes, marker=marker, ms=4.5, label=f"{target} ({ABOUT[target]})")
        for target, (dashes, marker) in TARGETS.items()
    ]
    figure.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.99, 1.0), ncols=3)
    figure.tight_layout(rect=(0, 0.1, 1, 0.98))
    style.small_print(
        figure,
        f"{document.id}, compiled offline. Instructions are counted where they stand in the largest loop with matrix "
        "instructions, not by how often they run. Lines stand beside each other, for many have the same numbers.\n"
        + textwrap.fill(failing(document), 205),
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
