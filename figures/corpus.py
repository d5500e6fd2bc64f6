"""What the figures of the corpus have in common: its runs, and speed-ups by class of tiles and of K."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.population import Shape, stratum, stratum_names
from common.rows import Run, bootstrap_interval, geometric_mean, newest_run
from figures import source

CORPORA = {
    "corpus_128": "the paper's corpus: multiples of 128",
    "corpus_8": "the same from multiples of 8",
}
CHOSEN = "matmul"
"""The candidate that `variants.matmul` chooses."""
COMPUTE_BOUND = 400
"""Flop per byte above which a problem counts as compute-bound."""


def corpora(results: Path) -> dict[str, Run]:
    """The runs of whole corpora that there are. Raises MissingRun where there is none."""
    found = {name: run for name in CORPORA if (run := newest_run(results, name))}
    if not found:
        raise source.MissingRun(
            f"{results} has no finished run of {' or of '.join(CORPORA)}: "
            f"python -m experiments run experiments/{next(iter(CORPORA))}.yaml"
        )
    return found


@dataclass(frozen=True)
class Summary:
    """Speed-ups of a set of shapes: geometric mean with its interval, share above 1, the lowest."""

    count: int
    mean: float
    low: float
    high: float
    won: float
    worst: float

    @classmethod
    def of(cls, values: list[float]) -> Summary:
        low, high = bootstrap_interval(values)
        array = np.asarray(values)
        return cls(len(array), geometric_mean(array), low, high, float((array > 1).mean()), float(array.min()))

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}], {self.won:.0%} won, worst {self.worst:.2f}"


def by_class(speedups: dict[Shape, float]) -> dict[tuple[int, int], list[float]]:
    """Speed-ups by class of tiles and of K."""
    found: dict[tuple[int, int], list[float]] = {}
    for shape, value in speedups.items():
        found.setdefault(stratum(shape), []).append(value)
    return found


def class_name(name: tuple[int, int]) -> str:
    """What a class holds, in words."""
    tiles, depths = stratum_names()
    return f"{tiles[name[0]]}, {depths[name[1]]}"
