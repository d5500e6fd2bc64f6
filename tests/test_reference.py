"""The check that decides whether a speed may be recorded."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable

import pytest
import torch

import variants
from common.decomposition import always_two_tile
from common.errors import UnsupportedProblem
from common.problem import EXACT_LIMIT, LAYOUTS, Problem, make_inputs
from common.reference import Check, reference, roundings, tolerance


@pytest.fixture
def product() -> tuple[torch.Tensor, torch.Tensor]:
    return make_inputs(Problem(64, 96, 512))


def test_a_right_result_passes(product: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = product
    assert reference(a, b).check((a.float() @ b.float()).half()).ok


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0])
def test_one_wrong_element_fails(product: tuple[torch.Tensor, torch.Tensor], wrong: float) -> None:
    a, b = product
    c = (a.float() @ b.float()).half()
    c[c.abs().argmax() // 96, c.abs().argmax() % 96] = wrong
    check = reference(a, b).check(c)
    assert not check.ok
    assert math.isinf(check.error) == (wrong != 0)


@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_a_missing_mac_iteration_fails(k: int) -> None:
    a, b = make_inputs(Problem(64, 64, k))
    c = (a[:, 32:].float() @ b[32:].float()).half()
    assert not reference(a, b).check(c, roundings=2).ok


def test_the_tolerance_grows_with_k_and_roundings() -> None:
    assert tolerance(torch.float16, 4096) > tolerance(torch.float16, 64)
    assert tolerance(torch.float16, 64, roundings=3) > tolerance(torch.float16, 64)


def partial_sums(peers: int, side: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A, B and the fp16 partial sums of equal K ranges, one a peer, as a fix-up adds them to C."""
    a, b = make_inputs(Problem(side, side, 32 * peers), seed)
    ranges = [slice(32 * peer, 32 * peer + 32) for peer in range(peers)]
    return a, b, [(a[:, part].float() @ b[part].float()).half() for part in ranges]


def added(partials: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum in the given order, rounded to fp16 at every step, as atomic adds leave it."""
    return functools.reduce(lambda c, partial: (c.float() + partial.float()).half(), partials)


@pytest.mark.parametrize(("peers", "side"), [(1, 128), (2, 1024), (3, 4096), (33, 1024), (132, 128), (264, 128)])
def test_honest_fp16_adds_in_any_order_pass(peers: int, side: int) -> None:
    for seed in range(1 if side > 128 else 2):
        a, b, partials = partial_sums(peers, side, seed)
        exact = reference(a, b)
        shuffled = random.Random(seed).sample(partials, peers)
        for order in (partials, partials[::-1], shuffled)[: 1 if side > 1024 else 3]:
            check = exact.check(added(order), peers)
            assert check.error < 0.7 * check.tolerance, f"no room left for unluckier seeds: {check}"


@pytest.mark.parametrize("peers", [2, 3, 8, 33, 100, 121, 132, 200, 264])
def test_a_peers_partial_sum_lost_or_added_twice_fails(peers: int) -> None:
    a, b, partials = partial_sums(peers, 128, 0)
    exact = reference(a, b)
    for peer in (0, peers // 2, peers - 1):
        lost, twice = added(partials[:peer] + partials[peer + 1 :]), added([*partials, partials[peer]])
        for c in (lost, twice):
            check = exact.check(c, peers)
            assert check.error > 3 * check.tolerance, check


def test_who_adds_to_c_rounds_at_every_peer_and_nobody_else() -> None:
    schedule = always_two_tile(1, 1, 264, 264)
    for name in variants.all_names() + variants.ablation_names():
        v = variants.get(name)
        adds = "atomic_add(c_ptrs" in v.source
        assert v.card.adds_to_c == adds, name
        assert roundings(v.card, schedule) == (264 if adds else 1)


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_no_tolerance_lets_a_result_pass_that_is_not_finite(error: float) -> None:
    assert not Check(error, math.inf).ok
    assert Check(1.0, math.inf).ok


def test_overflow_must_be_inf_in_the_same_places() -> None:
    a = torch.full((16, 1024), 16.0, dtype=torch.float16)
    b = a.t().contiguous()
    c = torch.full((16, 16), math.inf, dtype=torch.float16)
    assert reference(a, b).check(c).ok
    c[0, 0] = 60000
    assert not reference(a, b).check(c).ok


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_seeded_and_keep_their_values_in_every_layout(layout: str) -> None:
    a, b = make_inputs(Problem(32, 48, 64, layout=layout), seed=7)
    again, _ = make_inputs(Problem(32, 48, 64, layout=layout), seed=7)
    plain, plain_b = make_inputs(Problem(32, 48, 64), seed=7)
    assert torch.equal(a, again) and torch.equal(b, plain_b)
    assert torch.equal(a, plain[:1].expand(32, 64) if layout == "expanded" else plain)
    assert not torch.equal(make_inputs(Problem(32, 48, 64), seed=8)[0], plain)


def test_integers_stay_exact_however_long_k_is() -> None:
    a, b = make_inputs(Problem(16, 16, 8192), values="integers")
    assert (a.abs().double() @ b.abs().double()).max() <= EXACT_LIMIT[torch.float16]


def test_a_negative_dimension_is_refused() -> None:
    with pytest.raises(UnsupportedProblem, match="K=-1"):
        Problem(1, 1, -1)
