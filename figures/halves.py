"""The best of a variant's configurations, shape by shape, not judged by the samples that it was chosen on."""

from __future__ import annotations

from statistics import median

import numpy as np
from numpy.typing import NDArray

from common.population import Shape
from common.rows import Run, geometric_mean

Ratios = dict[Shape, float]


class Halves:
    """Medians of the even and of the odd samples by candidate and shape, infinite where there is no right result."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.shapes = list(dict.fromkeys(row.problem for row in run.rows))
        place = {shape: column for column, shape in enumerate(self.shapes)}
        self.times: NDArray[np.float64] = np.full((2, len(run.candidates), len(self.shapes)), np.inf)
        for row in run.rows:
            if row.status == "ok" and len(row.samples) > 1:
                self.times[:, row.candidate, place[row.problem]] = [median(row.samples[half::2]) for half in (0, 1)]

    def indices(self, variant: str) -> list[int]:
        return [index for index, c in enumerate(self.run.candidates) if c["variant"] == variant]

    def best(self, candidates: list[int]) -> Ratios:
        """`statistics.held_out_best` of the candidates for every shape that one of them got right."""
        some, columns = self.times[:, candidates], np.arange(len(self.shapes))
        if not candidates:
            return {}
        reported = [some[1 - half][some[half].argmin(axis=0), columns] for half in (0, 1)]
        times = np.sqrt(reported[0] * reported[1])
        return {shape: float(time) for shape, time in zip(self.shapes, times, strict=True) if np.isfinite(time)}

    def over(self, groups: list[tuple[list[int], list[int]]]) -> Ratios:
        """The second side's best time over the first's, geometric mean over the groups in which both have a right
        result, for every shape that has one."""
        found: dict[Shape, list[float]] = {}
        for mine, theirs in groups:
            new, old = self.best(mine), self.best(theirs)
            for shape in new.keys() & old.keys():
                found.setdefault(shape, []).append(old[shape] / new[shape])
        return {shape: geometric_mean(found[shape]) for shape in self.shapes if shape in found}
