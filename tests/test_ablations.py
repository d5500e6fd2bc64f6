"""Ablations: right where they may be, refused or wrong elsewhere, and one change each."""

from __future__ import annotations

import difflib

import pytest
import torch

import variants
from common.errors import UnknownVariant, UnsupportedProblem
from common.launcher import Variant, prepare
from common.problem import Problem, make_inputs
from common.reference import reference

BLOCK = (32, 32, 32)
ABLATIONS = variants.ablation_names()
REFUSED = {
    "v00_no_ifs": "spans 2 tiles",
    "v00_no_reset": "spans 2 tiles",
    "v00_hoisted_initialisation": "spans 2 tiles",
    "v00_constant_bounds": "equal shares",
    "v00_stores_for_atomics": "share a tile",
}


def kernels(v: Variant) -> list[str]:
    """The lines of the jit functions."""
    return v.source[v.source.index("@triton.jit") : v.source.index("def launch")].splitlines()


def result(name: str, programs: int, device: str, guarded: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """C of 6 tiles of 4 MAC iterations, and the exact product."""
    v = variants.get(name)
    a, b = make_inputs(Problem(64, 96, 128), values="integers", device=device)
    config = v.card.default.replace(block=BLOCK, programs=programs)
    prepared = prepare(v, a, b, config=config, guarded=guarded)
    prepared.run()
    return prepared.out.double(), reference(a, b).c


def test_every_ablation_is_here_and_in_no_list_of_variants() -> None:
    assert len(ABLATIONS) == 7 and {*REFUSED} < {*ABLATIONS}
    assert not {*ABLATIONS} & {*variants.all_names()}
    assert variants.get("no_reset").name == "v00_no_reset"
    assert variants.resolve("v00") == "v00_monolithic"
    with pytest.raises(UnknownVariant, match="v00_no_reset"):
        variants.get("v00_no_resett")


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_its_parent_by_its_change_alone(name: str) -> None:
    v = variants.get(name)
    parent = variants.get(v.card.parent)
    changed = [line for line in difflib.ndiff(kernels(parent), kernels(v)) if line[0] in "+-"]
    assert 0 < len(changed) <= v.card.diff_budget
    assert parent.name.startswith(name[:4]) and parent.name in variants.names()


@pytest.mark.parametrize("name", ABLATIONS)
def test_right_where_every_program_does_one_tile(name: str, device: str) -> None:
    found, exact = result(name, 6, device)
    assert torch.equal(found, exact)


@pytest.mark.parametrize(
    "name", ["v00_no_ifs", "v00_no_reset", "v00_hoisted_initialisation", "v00_acquire_release", "v08_shared_pointers"]
)
def test_right_where_programs_share_tiles_without_changing_one(name: str, device: str) -> None:
    found, exact = result(name, 12, device)
    assert torch.equal(found, exact)


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_would_be_wrong_it_is_refused_and_without_the_guard_wrong(name: str, device: str) -> None:
    with pytest.raises(UnsupportedProblem, match=REFUSED[name]):
        result(name, 5, device)
    found, exact = result(name, 5, device, guarded=False)
    assert not torch.equal(found, exact)
