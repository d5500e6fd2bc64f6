"""Timelines of launches that share every tile: 256x512x32768, the problem that the thread opened with."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from figures.timeline import page, require

PROBLEM = (256, 512, 32768)


def draw(results: Path) -> Figure:
    """Raises MissingRun where nothing was traced."""
    return page(require(results, PROBLEM))
