"""Throughput against the number of tiles: the saw-tooth of whole waves, what Stream-K makes of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import style
from common.decomposition import always_two_tile, cdiv
from common.problem import Problem
from common.rows import Run
from figures import code_tables, source
from figures.source import MissingRun

EXPERIMENT = "waves"
TILE = (128, 128)
STEP = 0.05
"""A smaller change behind a whole wave is no tooth."""
SHOWN = (
    ("v04_hoisted_segments", "v05_cas_lock", "v06_two_state_lock"),
    ("v07_atomic_min_lock", "v08_while_loop", "v08_while_loop one-tile"),
)


def series(run: Run, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Tiles and TFLOP/s of each problem that the candidate got right, by tiles."""
    found = []
    for shape, microseconds in run.medians(label).items():
        tiles = cdiv(shape[0], TILE[0]) * cdiv(shape[1], TILE[1])
        found.append((tiles, Problem(*shape).flops / microseconds / 1e6))
    array = np.array(sorted(found), dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def steps(run: Run, label: str) -> dict[int, float]:
    """Change of throughput from the last number of tiles within each whole number of times the SMs to the next one."""
    tiles, speed = series(run, label)
    sms, found = run.header["device"]["sms"], {}
    for wave in range(1, int(tiles[-1] // sms) + 1 if len(tiles) else 1):
        within, behind = speed[tiles <= wave * sms], speed[tiles > wave * sms]
        if len(within) and len(behind):
            found[wave * sms] = float(behind[0] / within[-1]) - 1
    return found


def drift(run: Run, label: str) -> float:
    """How far throughput sinks below its highest since the last of those steps, at its worst; 0 for nowhere."""
    tiles, speed = series(run, label)
    stretch = (tiles - 1) // run.header["device"]["sms"]
    parts = [speed[stretch == number] for number in np.unique(stretch) if number]
    return max((float(np.max(1 - part / np.maximum.accumulate(part))) for part in parts), default=0.0)


def own_wave(run: Run) -> tuple[int, int] | None:
    """The tile matmul's programs that an SM holds, by its code's registers and shared memory in the committed table of
    the run's Triton, and the tiles of its wave; None where the table does not have its launch."""
    config, device = run.candidates[run.index("data_parallel")]["config"], run.header["device"]
    launch = f"{'x'.join(map(str, config['block']))} w{config['num_warps']} s{config['num_stages']}"
    architecture = f"sm_{device['capability'].replace('.', '')}"
    try:
        row = code_tables.find(
            run.header["versions"]["triton"], "data_parallel", "full_tiles", architecture, launch, config["sem"]
        )
    except MissingRun:
        return None
    held = int(row["programs_per_sm"] or 0)
    return (held, held * device["sms"]) if held else None


def percent(changes: Iterable[float]) -> str:
    """Changes with their signs, as "+4, −37 %"."""
    return ", ".join(f"{100 * change:+.0f}" for change in changes).replace("-", "−") + " %"


def answer(run: Run) -> str:
    """Whether Stream-K removes the saw-tooth, in words made from the rows: who falls and who rises behind a whole wave,
    who sinks in between, and at how many sizes a variant is faster than the tile matmul."""
    variants = [label for group in SHOWN for label in group if source.has(run, label)]
    level, risen, fallen = [], [], []
    for label in variants:
        changes, name = list(steps(run, label).values()), source.short(label)
        least, most = min(changes, default=0.0), max(changes, default=0.0)
        if least < -STEP:
            fallen.append(f"{name} ({percent([least])})")
        elif most > STEP:
            risen.append(f"{name} ({percent([most])})")
        else:
            level.append(name)
    base = dict(zip(*series(run, "data_parallel"), strict=True))
    faster, sunk = [], [f"{source.short(label)} {100 * drift(run, label):.0f}" for label in variants]
    for label in variants:
        mine = dict(zip(*series(run, label), strict=True))
        faster.append(f"{source.short(label)} {sum(mine[n] > base[n] for n in mine if n in base)}")
    tooth = steps(run, "data_parallel")
    size = f"{100 * STEP:.0f} %"
    return (
        f"Does Stream-K remove the saw-tooth? Behind {', '.join(map(str, tooth))} tiles the tile matmul's throughput "
        f"changes by {percent(tooth.values())}. By {size} at most: {', '.join(level) or 'none'}. Never falls "
        f"by more but rises: {', '.join(risen) or 'none'}. Falls by more: {', '.join(fallen) or 'none'}. In between, "
        f"throughput sinks below its highest since the last of those places, in %: {', '.join(sunk)}. Faster than the "
        f"tile matmul, at so many of {len(base)} sizes: {', '.join(faster)}."
    )


def panel(axes: Axes, run: Run, labels: tuple[str, ...]) -> None:
    """cuBLAS and the tile matmul in grey and black, variants in colour, whole waves as lines."""
    sms = run.header["device"]["sms"]
    last = 0.0
    for label, colour, line in [
        (source.BASELINE, style.GREY, "-"),
        ("data_parallel", style.INK, "-"),
        *((label, style.colour(label), "--" if label.endswith("one-tile") else "-") for label in labels),
    ]:
        if not source.has(run, label):
            continue
        tiles, speed = series(run, label)
        last = max(last, tiles[-1])
        name = {source.BASELINE: "cuBLAS", "data_parallel": "tile matmul"}.get(label, label)
        text = f"{name} ({percent(steps(run, label).values())})"
        axes.plot(tiles, speed, linestyle=line, color=colour, marker="o", ms=2.5, linewidth=1.3, label=text)
    held = own_wave(run)
    for wave in range(1, int(last // sms) + 1):
        own = held is not None and wave % held[0] == 0
        look = {"color": style.INK, "linewidth": 1.2} if own else {"color": style.FAINT, "linewidth": 0.8}
        axes.axvline(wave * sms, linestyle=(0, (4, 2)) if own else (0, (1, 2)), **look)
    axes.set(xlabel="tiles of 128x128", ylabel="TFLOP/s", xlim=(0, last * 1.02))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=True, edgecolor="white", framealpha=0.9)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the experiment has no finished run."""
    run = source.require(results, EXPERIMENT)
    m, _, k = run.rows[0].problem
    figure, grid = plt.subplots(1, len(SHOWN), figsize=(12.5, 5.5), sharey=True)
    for axes, labels in zip(grid, SHOWN, strict=True):
        panel(axes, run, labels)
    title = f"Throughput against the number of tiles: M = {m}, K = {k}, N growing"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.text(0.01, 0.9, textwrap.fill(answer(run), 200), fontsize=8, va="top")
    figure.tight_layout(rect=(0, 0.1, 1, 0.875))
    style.small_print(
        figure,
        f"{source.describe(run)}. 128x128x32, Stream-K with one program an SM; cuBLAS chooses its own tiles. In "
        "brackets: the change from\nthe last size within each dotted or dashed line to the next size. "
        f"{_lines_told(run)}",
    )
    return figure


def _lines_told(run: Run) -> str:
    """What the lines stand for, and what v04 shares on both sides of the last one."""
    sms, held = run.header["device"]["sms"], own_wave(run)
    text = f"Dotted: multiples of {sms} tiles, one an SM. "
    if held:
        text += f"Dashed: the tile matmul's own wave of {held[1]}, for an SM holds {held[0]} of its programs. "
    else:
        text += "How many programs of the tile matmul an SM holds is not known. "
    tiles, _ = series(run, "data_parallel")
    last = max(steps(run, "data_parallel"), default=None)
    if last is None:
        return text
    around = (int(tiles[tiles <= last][-1]), int(tiles[tiles > last][0]))
    shared = (f"{always_two_tile(1, count, 1, sms).sk_tiles} of {count}" for count in around)
    return f"{text}\nv04 to v07 share {' tiles, but '.join(shared)}, and do the others whole."
