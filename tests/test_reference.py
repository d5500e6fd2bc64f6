"""The check that decides whether a speed may be recorded."""

from __future__ import annotations

import math

import pytest
import torch

from common.errors import UnsupportedProblem
from common.problem import EXACT_LIMIT, LAYOUTS, Problem, make_inputs
from common.reference import reference, tolerance


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
    assert not reference(a, b).check(c).ok


@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_a_missing_mac_iteration_fails(k: int) -> None:
    a, b = make_inputs(Problem(64, 64, k))
    c = (a[:, 32:].float() @ b[32:].float()).half()
    assert not reference(a, b).check(c, peers=2).ok


def test_the_tolerance_grows_with_k_and_peers() -> None:
    assert tolerance(torch.float16, 4096) > tolerance(torch.float16, 64)
    assert tolerance(torch.float16, 64, peers=3) > tolerance(torch.float16, 64)


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
