"""Ratios of times with intervals, and a choice among candidates that is not judged by the samples it was made on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 2000
"""Of every bootstrap, so that the same ratios have the same interval wherever they are shown."""
CONFIDENCE = 0.95
Mean = Literal["geometric", "arithmetic"]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % bootstrap interval; `count` says of how many pairs it is made."""

    value: float
    low: float
    high: float
    count: int

    @property
    def includes_one(self) -> bool:
        return self.low <= 1 <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median_ratio(slow: ArrayLike, fast: ArrayLike, seed: int = 0) -> Interval:
    """Median of `slow` over median of `fast`, times of one problem in the same rounds: rounds are drawn as pairs."""
    return _paired(slow, fast, lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis), seed)


def mean_ratio(slow: ArrayLike, fast: ArrayLike, mean: Mean = "geometric", seed: int = 0) -> Interval:
    """Mean of slow/fast over problems, which are drawn as pairs."""
    if mean == "arithmetic":
        return _paired(slow, fast, lambda x, y, axis: np.mean(x / y, axis=axis), seed)
    return _paired(slow, fast, lambda x, y, axis: np.exp(np.mean(np.log(x) - np.log(y), axis=axis)), seed)


def ratio_of_means(
    first: ArrayLike, second: ArrayLike, first_mean: Mean = "geometric", second_mean: Mean = "geometric", seed: int = 0
) -> Interval:
    """The mean of `first` over that of `second`, values of the same problems, which are drawn as pairs."""
    means = {
        "arithmetic": lambda values, axis: np.mean(values, axis=axis),
        "geometric": lambda values, axis: np.exp(np.mean(np.log(values), axis=axis)),
    }
    x_mean, y_mean = means[first_mean], means[second_mean]
    return _paired(first, second, lambda x, y, axis: x_mean(x, axis) / y_mean(y, axis), seed)


def _paired(slow: ArrayLike, fast: ArrayLike, statistic: Callable[..., NDArray[np.float64]], seed: int) -> Interval:
    x, y = np.asarray(slow, dtype=float), np.asarray(fast, dtype=float)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"pairs are needed, not {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("times are finite and positive")
    value = float(statistic(x, y, axis=-1))
    if len(x) < 2:
        return Interval(value, 0.0, float("inf"), len(x))
    found = stats.bootstrap(
        (x, y),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high), len(x))


def first_best(samples: Mapping[str, Sequence[float]]) -> float:
    """The least first sample of any candidate: the minimum of noisy runs, as a sweep of single runs reports it."""
    return min(times[0] for times in samples.values())


def held_out_best(samples: Mapping[str, Sequence[float]]) -> float:
    """The time of the candidate that is best on the other half of the samples; geometric mean over both halves.

    Halves are the even and the odd samples. Ties go to the first candidate. Needs two samples of each.
    """
    reported = []
    for choosing, reporting in ((0, 1), (1, 0)):
        chosen = min(samples, key=lambda label: np.median(samples[label][choosing::2]))
        reported.append(float(np.median(samples[chosen][reporting::2])))
    return float(np.sqrt(reported[0] * reported[1]))
