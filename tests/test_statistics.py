"""Intervals cover what they should, and a choice among equals gains nothing on held-out samples."""

from __future__ import annotations

import numpy as np
import pytest

from common import rows
from common.statistics import first_best, held_out_best, mean_ratio, median_ratio


def test_a_ratio_and_its_interval() -> None:
    generator = np.random.default_rng(1)
    fast = generator.lognormal(3, 0.02, 25)
    found = median_ratio(1.5 * fast * generator.lognormal(0, 0.02, 25), fast)
    assert 1.45 < found.low < found.value < found.high < 1.55
    assert found.count == 25 and not found.includes_one


def test_pairs_remove_what_both_share() -> None:
    generator = np.random.default_rng(2)
    shared = generator.lognormal(3, 1.5, 200)
    found = mean_ratio(1.05 * shared * generator.lognormal(0, 0.01, 200), shared)
    assert 1.04 < found.low < 1.05 < found.high < 1.06
    strangers = mean_ratio(1.05 * shared, generator.permutation(shared))
    assert strangers.includes_one and strangers.high / strangers.low > 1.2


def test_nine_in_ten_intervals_hold_the_truth() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for seed in range(40):
        ratios = generator.lognormal(np.log(1.02), 0.1, 60)
        found = mean_ratio(ratios, np.ones(60), seed=seed)
        held += found.low <= 1.02 <= found.high
    assert 34 <= held <= 40


def test_the_arithmetic_mean_of_ratios_flatters_both_sides() -> None:
    x, y = [1.0, 4.0], [2.0, 2.0]
    assert mean_ratio(x, y).value == pytest.approx(1.0)
    assert mean_ratio(x, y, "arithmetic").value == pytest.approx(1.25)
    assert mean_ratio(y, x, "arithmetic").value == pytest.approx(1.25)


def test_one_pair_tells_nothing() -> None:
    found = mean_ratio([3.0], [1.0])
    assert found.value == pytest.approx(3) and found.includes_one


@pytest.mark.parametrize(("x", "y"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, np.nan], [1.0, 1.0]), ([0.0, 1.0], [1, 1])])
def test_what_is_no_pair_of_times_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError):
        mean_ratio(x, y)


def test_a_choice_among_equals_gains_by_its_minimum_alone() -> None:
    generator = np.random.default_rng(4)
    chosen, honest = [], []
    for _ in range(300):
        samples = {str(i): generator.lognormal(0, 0.05, 10) for i in range(26)}
        chosen.append(first_best(samples))
        honest.append(held_out_best(samples))
    assert np.mean(chosen) < 0.93
    assert 0.99 < np.mean(honest) < 1.01


def test_a_candidate_that_is_better_is_chosen() -> None:
    samples = {"slow": [2.0, 2.1, 2.0, 2.1], "fast": [1.0, 1.1, 1.0, 1.1]}
    assert held_out_best(samples) == pytest.approx(np.sqrt(1.1))


def test_ratios_have_one_interval_whoever_shows_them() -> None:
    generator = np.random.default_rng(7)
    x, y = generator.lognormal(size=(2, 301))
    pairs, ratios = mean_ratio(x, y), rows.mean_interval(list(x / y))
    assert (pairs.value, pairs.low, pairs.high) == pytest.approx((ratios.value, ratios.low, ratios.high), rel=1e-12)
