"""Answers to the goals of the kernels beyond the thread, each from one run or document; None where it holds none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from common import rows
from common.documents import Document
from common.population import Shape, stratum
from common.problem import Problem
from common.rows import Run
from common.statistics import Interval, median_ratio
from figures import corpus, regret, source

PLAIN_ACCUMULATION = "fp16_reduced_precision_reduction"
"""What a header calls whether cuBLAS may add partial sums in fp16."""
FEW_WAVES = (2, 2)
"""The class of 132 to 527 tiles and K >= 2048, `population.stratum`."""


@dataclass(frozen=True)
class Found:
    """A value with its interval, of `count` shapes; `note`: what else must be said of it."""

    value: Interval
    note: str = ""


def chosen(run: Run) -> dict[Shape, float]:
    """Speed-ups of `variants.matmul` over cuBLAS."""
    return run.speedups(corpus.CHOSEN) if source.has(run, corpus.CHOSEN) else {}


def mean(values: list[float], note: str = "") -> Found | None:
    """The geometric mean of ratios with its bootstrap interval over shapes."""
    if not values:
        return None
    return Found(rows.mean_interval(values), note)


def whole(run: Run) -> Found | None:
    return mean(list(chosen(run).values()))


def won(run: Run) -> Found | None:
    """The share of shapes on which the choice is faster than cuBLAS, with Wilson's interval."""
    values = list(chosen(run).values())
    if not values:
        return None
    faster = sum(value > 1 for value in values)
    low, high = stats.binomtest(faster, len(values)).proportion_ci(method="wilson")
    return Found(Interval(faster / len(values), float(low), float(high), len(values)))


def worst(run: Run) -> Found | None:
    """The lowest speed-up, with an interval over its rounds, which says nothing of having been picked as the lowest."""
    values = chosen(run)
    if not values:
        return None
    shape = min(values, key=values.__getitem__)
    library, mine = (run.by_candidate[run.index(label)][shape].samples for label in (source.BASELINE, corpus.CHOSEN))
    low, high = values[shape], values[shape]
    if len(library) == len(mine) > 1:
        rounds = median_ratio(library, mine)
        low, high = rounds.low, rounds.high
    note = f"{'x'.join(map(str, shape))}, picked as the lowest; its interval is over rounds"
    return Found(Interval(values[shape], low, high, len(values)), note)


def compute_bound(run: Run) -> Found | None:
    dtype = run.header["dtype"]
    found = chosen(run).items()
    return mean([value for shape, value in found if Problem(*shape, dtype).intensity > corpus.COMPUTE_BOUND])


def few_waves(run: Run) -> Found | None:
    return mean([value for shape, value in chosen(run).items() if stratum(shape) == FEW_WAVES])


def over_v08(run: Run) -> Found | None:
    """v09 over v08, each at the one configuration that the run has first."""
    labels = {c["variant"][:3]: c["label"] for c in reversed(run.candidates)}
    if not {"v08", "v09"} <= labels.keys():
        return None
    return mean(list(run.speedups(labels["v09"], labels["v08"]).values()))


def choice_over_v08(run: Run) -> Found | None:
    """v09 with the model's choice among its own tiles and splits, over v08 at its one configuration."""
    mine = [c["label"] for c in run.candidates if c.get("kernel", "").startswith("v09")]
    other = [c["label"] for c in run.candidates if c["variant"].startswith("v08")]
    return mean(list(run.speedups(mine[0], other[0]).values())) if mine and other else None


def error(run: Run) -> Found | None:
    """v09's largest error against float64 over cuBLAS's; None where cuBLAS may have added partial sums in fp16."""
    labels = {c["variant"][:3]: run.index(c["label"]) for c in reversed(run.candidates)}
    if run.header["versions"].get(PLAIN_ACCUMULATION) is not False or "v09" not in labels:
        return None
    mine, library = (run.by_candidate.get(index, {}) for index in (labels["v09"], run.index(source.BASELINE)))
    both = [(row.error, library[shape].error) for shape, row in mine.items() if shape in library]
    return mean([x / y for x, y in both if x and y])


def regrets(run: Run) -> Found | None:
    return mean(list(regret.regrets(run).values())) if source.has(run, corpus.CHOSEN) else None


def host_time(document: Document) -> Found | None:
    """The slowest problem's median."""
    return _slowest(document.records)


def fix_up(fixer: str, peers: int) -> Callable[[Document], Found | None]:
    """The slowest median of up to so many peers. A record without a fixer's name is of v10's tile of 128x128."""
    return lambda document: _slowest(
        [r for r in document.records if r.get("fixer", "v10 128x128x64") == fixer and r["peers"] <= peers]
    )


def _slowest(records: list[dict[str, Any]]) -> Found | None:
    if not records:
        return None
    samples = max((record["us"] for record in records), key=np.median)
    return Found(Interval(float(np.median(samples)), *rows.bootstrap_interval(samples, "median"), len(records)))
