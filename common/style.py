"""The look of every picture, and saving one so that the same data gives the same bytes."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import seaborn
from matplotlib.figure import Figure

from common import compact

PALETTE = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#ece133", "#56b4e9")
"""Seaborn's "colorblind" palette without its grey, which stands for baselines."""
GREY, PALE, INK, FAINT = "#949494", "#bdbdbd", "#222222", "#6b6b6b"

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "grid.color": "#e4e4e4",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "stream-k-zoo",
    "svg.fonttype": "path",
    "figure.dpi": 120,
    "savefig.dpi": 120,
    "path.simplify": True,
}


def apply() -> None:
    """Set the style for every figure drawn from now on, whatever the user's matplotlibrc says."""
    matplotlib.rcdefaults()
    seaborn.set_theme(style="ticks", rc=_SETTINGS)


def colour(variant: str) -> str:
    """A variant's colour by its number in the thread; grey for baselines."""
    numbered = re.match(r"v(\d\d)_", variant)
    return PALETTE[int(numbered[1]) % len(PALETTE)] if numbered else GREY


def small_print(figure: Figure, text: str) -> None:
    """Sources and run ids, below everything else."""
    figure.text(0.01, 0.004, text, fontsize=6.5, color=FAINT, ha="left", va="bottom", linespacing=1.4)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.svg and `name`.png, small, with no date and no program's name in them."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        out = io.BytesIO()
        figure.savefig(out, format=suffix, metadata=metadata, facecolor="white")
        drawn[folder / f"{name}.{suffix}"] = out.getvalue()
    for path, data in drawn.items():
        path.write_bytes(compact.svg(data.decode()).encode() if path.suffix == ".svg" else compact.png(data))
    return list(drawn)
