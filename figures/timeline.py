"""Timelines of real launches beside the modelled schedule of the same launch: 1536x1792x6016 on a whole GPU.

`python -m figures.timeline FILE…` draws the timelines of any files that `python -m variants trace` wrote.
"""

from __future__ import annotations

import pathlib
import sys
from collections import defaultdict
from statistics import median
from typing import Annotated

import matplotlib.pyplot as plt
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from common import style, timeline
from common.decomposition import Segment
from common.errors import DamagedRun, NotWritable
from common.output import destination
from common.timeline import Span, Timeline
from figures.schedule import Placed, makespan, place_programs
from figures.source import MissingRun

PROBLEM = (1536, 1792, 6016)
WAIT, FIX_UP = "#d55e00", style.INK
TILES = ("#0173b2", "#9fd8bf", "#8a63c0", "#56b4e9", "#027a58", "#c9b6ee", "#3d4f9e")
"""Cold colours alone, light beside dark, so that nothing but a wait is orange, not even where thin rows blend."""
TOP, BOTTOM = 0.62, 0.5
"""Inches above the first row and below the last one."""
FILES_A_LINE = 3
Bar = tuple[float, float, float, float, str]
"""Left, right, bottom and height of a rectangle, and its colour."""


def require(results: pathlib.Path, problem: tuple[int, int, int]) -> list[Timeline]:
    """The newest timeline of every variant traced on a problem. Raises MissingRun saying how to make one."""
    found = timeline.newest(results, problem)
    if not found:
        sizes = " ".join(f"--{name} {size}" for name, size in zip("mnk", problem, strict=True))
        what = "x".join(map(str, problem))
        raise MissingRun(f"{results} has no timeline of {what}: python -m variants trace v04 {sizes}")
    return found


def tile_colour(tile: int) -> str:
    """Neighbouring tiles differ, and none looks like a wait."""
    return TILES[tile % len(TILES)]


def measured_bars(run: Timeline) -> list[Bar]:
    """One row an SM, programs that share it side by side in the row."""
    lanes = run.lanes()
    width: dict[int, int] = defaultdict(lambda: 1)
    for span in run.spans:
        width[span.sm] = max(width[span.sm], lanes[span.program] + 1)
    bars: list[Bar] = []
    for span in run.spans:
        height = 1 / width[span.sm]
        bottom = span.sm - 0.5 + lanes[span.program] * height
        for begin, end, colour in _parts(span, run.facts["iterations_per_tile"]):
            bars.append((begin / 1000, end / 1000, bottom, height, colour))
    return bars


def _parts(span: Span, iterations_per_tile: int) -> list[tuple[float, float, str]]:
    ready, colour = span.computed + span.waited, tile_colour(span.tile)
    shared = span.stop - span.start < iterations_per_tile
    if not span.waited and not shared:
        return [(span.began, span.ended, colour)]
    waits = [(span.computed, ready, WAIT)] if span.waited else []
    return [(span.began, span.computed, colour), *waits, (ready, span.ended, FIX_UP if shared else colour)]


def modelled(run: Timeline) -> tuple[list[Placed], float]:
    """The launch's segments on an ideal GPU, and the nanoseconds of a MAC iteration: the median of what was measured.

    The model gives each SM one program at a time and starts them in ascending order.
    """
    programs: dict[int, list[Segment]] = defaultdict(list)
    for span in sorted(run.spans, key=lambda span: (span.program, span.began)):
        programs[span.program].append(Segment(span.tile, span.start, span.stop))
    unit = median((span.computed - span.began) / (span.stop - span.start) for span in run.spans)
    ordered = [programs[number] for number in sorted(programs)]
    return place_programs(ordered, run.facts["device"]["sms"], run.facts["iterations_per_tile"]), unit


def modelled_bars(placed: list[Placed], unit: float) -> list[Bar]:
    """The same rows; the end of a part of a tile is marked, as its fix-up takes no time here."""
    bars: list[Bar] = []
    mark = makespan(placed) / 110
    for p in placed:
        begin, end, bottom = p.begin, p.begin + len(p.segment), p.processor - 0.5
        bars.append((begin * unit / 1000, end * unit / 1000, bottom, 1.0, tile_colour(p.segment.tile)))
        if not p.is_whole:
            bars.append(((end - mark) * unit / 1000, end * unit / 1000, bottom, 1.0, FIX_UP))
    return bars


def panel(axes: Axes, bars: list[Bar], sms: int, end: float) -> None:
    """Draw rectangles, and a dashed line where the last program is done."""
    outlines: dict[str, list[Path]] = defaultdict(list)
    for left, right, bottom, height, colour in bars:
        corners = [(left, bottom), (right, bottom), (right, bottom + height), (left, bottom + height), (left, bottom)]
        outlines[colour].append(Path(corners, closed=True))
    for colour in sorted(outlines, key=lambda c: c in (WAIT, FIX_UP)):
        merged = Path.make_compound_path(*outlines[colour])
        axes.add_patch(PathPatch(merged, facecolor=colour, linewidth=0, antialiased=False))
    axes.axvline(end, color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.set(ylim=(sms - 0.4, -0.6), ylabel="SM")
    axes.tick_params(axis="y", length=0)


def row(pair: list[Axes], run: Timeline) -> float:
    """Measured on the left, modelled on the right; the later of their ends in microseconds."""
    facts, summary = run.facts, run.summary()
    sms = facts["device"]["sms"]
    placed, unit = modelled(run)
    end, ideal = run.length / 1000, makespan(placed) * unit / 1000
    panel(pair[0], measured_bars(run), sms, end)
    panel(pair[1], modelled_bars(placed, unit), sms, ideal)
    config = facts["config"]
    launched = f"{'x'.join(map(str, config['block']))}, {config['num_warps']} warps, {summary['programs']} programs"
    shares = f"{summary['wait_share']:.1%} waiting, {summary['fix_up_share']:.1%} fix-up"
    measured = f"measured: {end:.1f} µs ({facts['overhead']:+.1%} by tracing), {shares}"
    pair[0].set_title(f"{facts['variant']} ({launched})\n{measured}", fontsize=8.5)
    pair[1].set_title(f"modelled: {ideal:.1f} µs\nat {unit:.0f} ns a MAC iteration", fontsize=8.5)
    return max(end, ideal)


def page(runs: list[Timeline]) -> Figure:
    """One row a timeline. All are of one problem."""
    notes = _small_print(runs)
    below = BOTTOM + 0.14 * notes.count("\n")
    height = TOP + 2.6 * len(runs) + below
    figure, grid = plt.subplots(len(runs), 2, figsize=(10.5, height), sharex="row", squeeze=False)
    for pair, run in zip(grid, runs, strict=True):
        pair[0].set_xlim(0, row(list(pair), run) * 1.02)
    for axes in grid[-1]:
        axes.set_xlabel("µs since the first program began")
    problem = "x".join(map(str, runs[0].facts["problem"]))
    devices = sorted({run.facts["device"]["name"] for run in runs})
    title = figure.suptitle(
        f"What each SM did: {problem} on {' and '.join(devices)}",
        x=0.01,
        y=1 - 0.12 / height,
        va="top",
        ha="left",
        fontweight="bold",
    )
    title.set_in_layout(False)  # TOP holds it and the legend
    figure.legend(
        handles=[
            Patch(facecolor=WAIT, label="waits for a peer"),
            Patch(facecolor=FIX_UP, label="puts a part of a tile to its peers' (in the model: where that happens)"),
            plt.Line2D([], [], color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)), label="the last program is done"),
        ],
        loc="upper left", bbox_to_anchor=(0.005, 1 - 0.32 / height), ncols=3,
    )  # fmt: skip
    figure.tight_layout(rect=(0, (below - 0.2) / height, 0.99, 1 - TOP / height), h_pad=1.0)
    style.small_print(figure, notes)
    return figure


def _small_print(runs: list[Timeline]) -> str:
    tritons = sorted({run.facts["versions"]["triton"] for run in runs})
    steps = sorted({run.facts["timer_step_ns"] for run in runs})
    lines = [
        "Cold colours: MAC iterations, neighbouring tiles differ; each row has a scale of its own. "
        "Model: one program an SM, in ascending order, a fix-up takes no time. "
        f"Triton {' and '.join(tritons)}; global timer's step {' and '.join(map(str, steps))} ns."
    ]
    names = [run.id for run in runs]
    lines += [", ".join(names[at : at + FILES_A_LINE]) for at in range(0, len(names), FILES_A_LINE)]
    return "\n".join(lines)


def alike(runs: list[Timeline]) -> None:
    """Raises DamagedRun where timelines cannot stand on one page: one has no times, or their problems differ."""
    for run in runs:
        if run.facts.get("dry_run"):
            raise DamagedRun(
                f"{run.id} is from the interpreter and has no times to draw: https://ui.perfetto.dev shows the order "
                "of its segments; trace on a GPU for times"
            )
    problems = {"x".join(map(str, run.facts["problem"])): run.id for run in runs}
    if len(problems) > 1:
        told = ", ".join(f"{problem} ({name})" for problem, name in problems.items())
        raise DamagedRun(f"the files are of different problems, one page shows one: {told}")


def draw(results: pathlib.Path) -> Figure:
    """Raises MissingRun where nothing was traced."""
    return page(require(results, PROBLEM))


def main(
    files: Annotated[list[pathlib.Path], typer.Argument(help="timelines of one problem, from a GPU", metavar="FILE…")],
    out: Annotated[pathlib.Path, typer.Option(help="where the picture goes")] = pathlib.Path(),
) -> None:
    """Draw timelines as timelines.svg and timelines.png."""
    try:
        runs = [timeline.read(path) for path in files]
        alike(runs)
        destination(out)
    except (DamagedRun, NotWritable) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    style.apply()
    for path in style.save(page(runs), out, "timelines"):
        print(path)


if __name__ == "__main__":
    typer.run(main)
