"""Throughput against the number of tiles: the saw-tooth of whole waves, and who removes it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common import style
from common.decomposition import cdiv
from common.problem import Problem
from common.rows import Run
from figures import source

EXPERIMENT = "waves"
TILE = (128, 128)
FALL = 0.05
"""A smaller fall at the edge of a wave is no tooth."""
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


def deepest_fall(run: Run, label: str) -> float:
    """How far throughput falls below its highest so far, at its worst from the first whole wave on: 0 for nowhere."""
    tiles, speed = series(run, label)
    best = np.maximum.accumulate(speed)
    later = tiles >= run.header["device"]["sms"]
    return float(np.max(1 - speed[later] / best[later])) if later.any() else float("nan")


def sawtooth(run: Run, label: str) -> list[float]:
    """Just behind each whole wave, throughput over that of the last number of tiles within it: below 1 the tooth."""
    tiles, speed = series(run, label)
    sms, found = run.header["device"]["sms"], []
    for wave in range(1, int(tiles[-1] // sms) + 1 if len(tiles) else 1):
        within, behind = speed[tiles <= wave * sms], speed[tiles > wave * sms]
        if len(within) and len(behind):
            found.append(float(behind[0] / within[-1]))
    return found


def answer(run: Run) -> str:
    """Whether Stream-K removes the saw-tooth, in words made from the rows: who falls behind a whole wave by how much,
    and at how many sizes a variant is faster than the tile matmul."""
    variants = [label for group in SHOWN for label in group if source.has(run, label)]
    deepest = {label: 1 - min(sawtooth(run, label), default=1.0) for label in ("data_parallel", *variants)}
    level = [label for label in variants if deepest[label] <= FALL]
    toothed = [f"{label} ({100 * deepest[label]:.0f} %)" for label in variants if deepest[label] > FALL]
    base = dict(zip(*series(run, "data_parallel"), strict=True))
    faster = []
    for label in variants:
        mine = dict(zip(*series(run, label), strict=True))
        faster.append(f"{label} {sum(mine[n] > base[n] for n in mine if n in base)}")
    return (
        f"Does Stream-K remove the saw-tooth? Behind its worst whole wave the tile matmul falls by "
        f"{100 * deepest['data_parallel']:.0f} %. Gone, a fall of {100 * FALL:.0f} % at most, in: "
        f"{', '.join(level) or 'none'}. Not gone in: {', '.join(toothed) or 'none'}. Faster than the tile matmul, "
        f"at so many of {len(base)} sizes: {', '.join(faster)}."
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
        text = f"{name} ({100 * deepest_fall(run, label):.0f} %)"
        axes.plot(tiles, speed, linestyle=line, color=colour, marker="o", ms=2.5, linewidth=1.3, label=text)
    for wave in range(1, int(last // sms) + 1):
        axes.axvline(wave * sms, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.set(xlabel="tiles of 128x128", ylabel="TFLOP/s", xlim=(0, last * 1.02))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=True, edgecolor="white", framealpha=0.9)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the experiment has no finished run."""
    run = source.require(results, EXPERIMENT)
    m, _, k = run.rows[0].problem
    figure, grid = plt.subplots(1, len(SHOWN), figsize=(12.5, 5.4), sharey=True)
    for axes, labels in zip(grid, SHOWN, strict=True):
        panel(axes, run, labels)
    title = f"Throughput against the number of tiles: M = {m}, K = {k}, N growing"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.text(0.01, 0.9, textwrap.fill(answer(run), 200), fontsize=8, va="top")
    figure.tight_layout(rect=(0, 0.075, 1, 0.875))
    style.small_print(
        figure,
        f"{source.describe(run)}. Dashed lines: whole waves of {run.header['device']['sms']} tiles. 128x128x32, one "
        "program an SM; cuBLAS chooses its own tiles.\nIn brackets: the deepest fall below the best so far, from the "
        "first whole wave on.",
    )
    return figure
