"""Schedules as pictures, processors by time: the paper's example of 384x384x128 on four processors.

An ideal machine: every MAC iteration takes one unit of time and a fix-up none, programs start in ascending order, each
on the first processor that is free. Source of the example: Osama et al., PPoPP 2023, figures 1 to 3: tiles of 128x128,
BLOCK_K = 4, so 9 tiles of 32 iterations.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from common import decomposition, style
from common.decomposition import Schedule, Segment

DASHES = (0, (4, 2))
NUMBER_BOX = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75}
TILES_M, TILES_N, ITERATIONS, PROCESSORS = 3, 3, 32, 4


@dataclass(frozen=True)
class Placed:
    """A segment on a processor, from `begin` to `begin + len(segment)` MAC iterations."""

    segment: Segment
    processor: int
    begin: int
    is_whole: bool


def place(schedule: Schedule, processors: int) -> list[Placed]:
    """Give each program to the first processor that is free, lowest number first."""
    return place_programs(schedule.by_program(), processors, schedule.iters_per_tile)


def place_programs(programs: Iterable[Iterable[Segment]], processors: int, iters_per_tile: int) -> list[Placed]:
    """The same for the segments of any programs, in the order in which they start."""
    free = [(0, processor) for processor in range(processors)]
    placed = []
    for segments in programs:
        time, processor = heapq.heappop(free)
        for segment in segments:
            placed.append(Placed(segment, processor, time, len(segment) == iters_per_tile))
            time += len(segment)
        heapq.heappush(free, (time, processor))
    return placed


def makespan(placed: list[Placed]) -> int:
    """MAC iterations until the last processor is done."""
    return max(p.begin + len(p.segment) for p in placed)


def utilisation(placed: list[Placed], processors: int) -> float:
    """Part of the processors' time spent on MAC iterations."""
    return sum(len(p.segment) for p in placed) / (makespan(placed) * processors)


def describe(name: str, placed: list[Placed], processors: int) -> str:
    """Title of a panel: length, utilisation, tiles that need a fix-up."""
    shared = len({p.segment.tile for p in placed if not p.is_whole})
    return f"{name}: {makespan(placed)} iterations, {utilisation(placed, processors):.0%} busy, {_tiles(shared)} shared"


def _tiles(count: int) -> str:
    return {0: "no tile", 1: "1 tile"}.get(count, f"{count} tiles")


def panel(axes: Axes, placed: list[Placed], processors: int, limit: int, numbered: bool) -> None:
    """Draw one schedule. `numbered`: write the tiles' numbers; otherwise processors are too many for labels."""
    for p in placed:
        axes.barh(
            p.processor,
            len(p.segment),
            left=p.begin,
            height=0.84 if numbered else 1.0,
            color=style.PALETTE[p.segment.tile % len(style.PALETTE)],
            edgecolor="white",
            linewidth=0.8 if numbered else 0,
            antialiased=numbered,
        )
        if not p.is_whole:
            _mark_fix_up(axes, p, numbered)
        if numbered:
            axes.text(
                p.begin + len(p.segment) / 2, p.processor, str(p.segment.tile), ha="center", va="center",
                fontsize=9, fontweight="bold", color=style.INK, bbox=NUMBER_BOX,
            )  # fmt: skip
    end = makespan(placed)
    axes.axvline(end, color=style.INK, linewidth=0.9, linestyle=DASHES)
    axes.set(xlim=(0, limit), ylim=(processors - 0.4, -0.6), ylabel="processor")
    if numbered:
        axes.set_yticks(range(processors))
    axes.tick_params(axis="y", length=0)


def _mark_fix_up(axes: Axes, p: Placed, numbered: bool) -> None:
    """Black end of a segment: its partial sum goes to the tile's fix-up."""
    end = p.begin + len(p.segment)
    width = 1.3 if numbered else 3.0
    height = 0.84 if numbered else 1.0
    axes.barh(p.processor, width, left=end - width, height=height, color=style.INK, linewidth=0, antialiased=numbered)


def legend(figure: Figure) -> None:
    """What the black ends and the dashed line mean."""
    figure.legend(
        handles=[
            Patch(facecolor=style.INK, label="fix-up: a part of a tile ends, its partial sum joins its peers'"),
            plt.Line2D([], [], color=style.INK, linewidth=0.9, linestyle=DASHES, label="the last processor is done"),
        ],
        loc="upper left",
        bbox_to_anchor=(0.005, 0.955),
        ncols=2,
    )  # fmt: skip


def example() -> dict[str, Schedule]:
    """The four decompositions of the paper's example."""
    shape = (TILES_M, TILES_N, ITERATIONS)
    return {
        "data-parallel": decomposition.data_parallel(*shape),
        "fixed split of 2": decomposition.split_k(*shape, 2),
        "basic Stream-K": Schedule(*shape, PROCESSORS, TILES_M * TILES_N),
        "two-tile Stream-K": decomposition.always_two_tile(*shape, PROCESSORS),
    }


def segments(placed: dict[str, list[Placed]]) -> list[list[object]]:
    """The data of a picture of schedules: a row a segment, times in MAC iterations."""
    columns = ["decomposition", "processor", "begin", "tile", "first iteration", "stop iteration"]
    found: list[list[object]] = [columns]
    for name, pieces in placed.items():
        found += [[name, p.processor, p.begin, p.segment.tile, p.segment.start, p.segment.stop] for p in pieces]
    return found


def table(results: Path) -> list[list[object]]:
    """The segments of the four panels."""
    return segments({name: place(schedule, PROCESSORS) for name, schedule in example().items()})


def draw(results: Path) -> Figure:
    """Four panels, one a decomposition; needs no measurement."""
    placed = {name: place(schedule, PROCESSORS) for name, schedule in example().items()}
    limit = max(map(makespan, placed.values())) + 2
    figure, rows = plt.subplots(len(placed), 1, figsize=(9.5, 7.6), sharex=True)
    for axes, (name, segments) in zip(rows, placed.items(), strict=True):
        panel(axes, segments, PROCESSORS, limit, numbered=True)
        axes.set_title(describe(name, segments, PROCESSORS))
    rows[-1].set_xlabel("time in MAC iterations")
    figure.suptitle("384x384x128 on 4 processors: 9 tiles of 32 MAC iterations", x=0.01, ha="left", fontweight="bold")
    legend(figure)
    figure.tight_layout(rect=(0, 0.03, 1, 0.95), h_pad=1.1)
    style.small_print(
        figure,
        "Numbers are tiles. Ideal machine: an iteration takes one unit, a fix-up none; programs start in ascending "
        "order. Blocking 128x128x4 as in Osama et al., PPoPP 2023.",
    )
    return figure
