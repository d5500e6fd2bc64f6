"""Each known defect of a card, shown."""

from __future__ import annotations

import ast
import inspect

import pytest
import torch

import variants
from common.errors import UnsupportedProblem
from common.launcher import prepare
from common.problem import Problem, make_inputs
from common.reference import reference, roundings

BLOCK = (32, 32, 32)
ONE_LOOP = ["v00", "v01", "v03"]


def with_defect(defect: str) -> list[str]:
    return [name for name in variants.names() if defect in {d.id for d in variants.get(name).card.defects}]


@pytest.mark.parametrize(
    ("size", "programs", "inf"),
    [
        # 6 tiles on 4 programs: program 0 ends tile 0 and begins tile 1, of the same row and another column.
        ((64, 96, 128), 4, "column"),
        # 3 tiles on 2 programs: program 0 ends tile 0 and begins tile 1, of the same column and another row.
        ((96, 32, 128), 2, "row"),
    ],
)
@pytest.mark.parametrize("name", variants.portable_names())
def test_nan_spreads_to_the_next_tile(
    name: str, size: tuple[int, int, int], programs: int, inf: str, device: str
) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(*size), device=device)
    if inf == "column":
        b[:, 0] = torch.inf
    else:
        a[0] = torch.inf
    order = "linear" if "linear" in v.card.tile_orders else None
    prepared = prepare(v, a, b, config=v.card.default.replace(block=BLOCK, programs=programs, order=order))
    prepared.run()
    wrong = ~torch.isfinite(prepared.out)
    assert (wrong[:, 0] if inf == "column" else wrong[0]).all()
    spread = bool((wrong[:, 1:] if inf == "column" else wrong[1:]).any())
    assert spread == (name in with_defect("nan_spread"))


def test_the_same_three_variants_keep_one_accumulator() -> None:
    assert [name[:3] for name in with_defect("nan_spread")] == ONE_LOOP


def test_third_tile_is_loaded_from_wrong_places(device: str) -> None:
    v = variants.get("v03")
    # 10 tiles on 6 programs: the second one ends tile 1, does tile 2 and begins tile 3.
    a, b = make_inputs(Problem(64, 160, 96), values="integers", device=device)
    rows, columns = a.shape[0] + 256, b.shape[1] + 256
    wide_a = torch.full((rows, a.shape[1]), torch.nan, dtype=a.dtype, device=device)
    wide_b = torch.full((b.shape[0], columns), torch.nan, dtype=b.dtype, device=device)
    wide_a[:64], wide_b[:, :160] = a, b
    a, b = wide_a[:64], wide_b[:, :160]
    config = v.card.default.replace(block=BLOCK, programs=6)
    with pytest.raises(UnsupportedProblem, match="spans 3 tiles"):
        prepare(v, a, b, config=config)
    prepared = prepare(v, a, b, config=config, guarded=False)
    prepared.run()
    assert not reference(a, b).check(prepared.out, roundings(v.card, prepared.schedule)).ok
    repaired = variants.get("v04").matmul(a, b, block=BLOCK, programs=6)
    assert torch.equal(repaired.double(), reference(a, b).c)


@pytest.mark.parametrize("name", with_defect("fp16_rounding"))
def test_error_grows_with_peers(name: str, device: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(32, 32, 2048), device=device)
    errors = {}
    for programs in (1, 32):
        prepared = prepare(v, a, b, config=v.card.default.replace(block=BLOCK, programs=programs))
        prepared.run()
        errors[programs] = float((prepared.out.double() - a.double() @ b.double()).square().mean().sqrt())
    assert errors[32] > 2 * errors[1]


def test_a_scratchpad_in_fp32_does_not_round_at_every_peer(device: str) -> None:
    v = variants.get("v02")
    a, b = make_inputs(Problem(32, 32, 2048), device=device)
    exact = a.double() @ b.double()
    one, many = (v.matmul(a, b, block=BLOCK, programs=programs) for programs in (1, 32))
    assert (many.double() - exact).square().mean() < 1.1 * (one.double() - exact).square().mean()


def barrier_before_lock(name: str) -> bool:
    """Whether `mac_loop` states a CTA barrier directly before it sets a lock or flag."""
    module = variants.get(name).module
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    setters = [i for i, call in enumerate(calls) if "atomic_xchg" in call or "tl.store(locks_ptr" in call]
    assert setters, f"{name} sets no lock"
    return all("debug_barrier" in calls[i - 1] for i in setters)


@pytest.mark.parametrize("name", with_defect("lock_set_by_plain_store"))
def test_lock_is_set_by_a_plain_store(name: str) -> None:
    assert "tl.store(locks_ptr + tile, 1)" in variants.get(name).source


WITH_LOCKS = [n for n in variants.names() if {"locks", "flags"} & set(variants.get(n).card.workspace)]


@pytest.mark.parametrize("name", WITH_LOCKS)
def test_lock_is_set_without_a_barrier(name: str) -> None:
    assert barrier_before_lock(name) == (name not in with_defect("no_barrier_before_lock"))
    stored = "tl.store(locks_ptr" in variants.get(name).source
    assert stored == (name in with_defect("lock_set_by_plain_store"))
