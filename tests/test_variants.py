"""Every variant computes the right product, from its real kernel, interpreted on the CPU or compiled on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import variants
from common.card import Config
from common.errors import UnknownVariant, UnsupportedProblem
from common.launcher import Variant, prepare
from common.problem import LAYOUTS, Problem, make_inputs
from common.reference import reference, roundings

BLOCK = (32, 32, 32)
CASES = {
    "aligned": ((64, 64, 64), 4),
    "split in two": ((64, 96, 128), 4),
    "split in three": ((32, 32, 96), 3),
    "split in more, unevenly": ((64, 32, 256), 7),
    "one program": ((64, 64, 64), 1),
    "more programs than iterations": ((32, 64, 64), 9),
    "programs divide tiles": ((64, 128, 64), 4),
    "two waves and a rest": ((96, 96, 96), 4),
    "all data-parallel": ((64, 96, 64), 0),
}
TRITON_KERNELS = [n for n in (*variants.portable_names(), *variants.baselines()) if variants.get(n).card.kernels]
ORDERED = [(name, order) for name in TRITON_KERNELS for order in variants.get(name).card.tile_orders]


def small(v: Variant, programs: int | None = None, **changes: object) -> Config:
    return v.card.default.replace(
        block=BLOCK, num_warps=4, full_tiles_warps=4, programs=programs, **({"order": v.card.tile_orders[0]} | changes)
    )


@pytest.mark.parametrize(("name", "order"), ORDERED)
@pytest.mark.parametrize("case", CASES)
def test_normal_inputs_within_tolerance_and_integers_exactly(name: str, order: str, case: str, device: str) -> None:
    (m, n, k), programs = CASES[case]
    v = variants.get(name)
    for values in ("normal", "integers"):
        a, b = make_inputs(Problem(m, n, k), values=values, device=device)
        out = torch.full((m, n), float("nan"), dtype=a.dtype, device=device)
        prepared = prepare(v, a, b, out, small(v, programs, order=order))
        prepared.run()
        ref = reference(a, b)
        check = ref.check(out, roundings(v.card, prepared.schedule))
        assert check.ok, check
        if values == "integers":
            assert torch.equal(out.double(), ref.c)


@pytest.mark.parametrize("two_tiles", [True, False])
@pytest.mark.parametrize("sem", ["relaxed", "acq_rel"])
def test_v08_with_two_tile_on_and_off_and_both_orders_of_the_atomics(two_tiles: bool, sem: str, device: str) -> None:
    v = variants.get("v08")
    a, b = make_inputs(Problem(96, 96, 96), values="integers", device=device)
    c = v.matmul(a, b, block=BLOCK, programs=4, two_tiles=two_tiles, sem=sem)
    assert torch.equal(c.double(), reference(a, b).c)


@pytest.mark.parametrize("name", TRITON_KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_right_or_refused_by_name(name: str, layout: str, device: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(64, 96, 64, layout=layout), device=device)
    config = small(v, 5)
    if v.card.contract.layouts == "contiguous" and not (a.is_contiguous() and b.is_contiguous()):
        with pytest.raises(UnsupportedProblem, match="strides"):
            prepare(v, a, b, config=config)
        return
    prepared = prepare(v, a, b, config=config)
    prepared.run()
    assert reference(a, b).check(prepared.out, roundings(v.card, prepared.schedule)).ok


@pytest.mark.parametrize("name", TRITON_KERNELS)
def test_three_launches_in_a_row_with_other_inputs(name: str, device: str) -> None:
    v = variants.get(name)
    for seed in range(3):
        a, b = make_inputs(Problem(64, 64, 128), seed, "integers", device)
        assert torch.equal(prepare_and_run(v, a, b).double(), reference(a, b).c)


@pytest.mark.parametrize("name", TRITON_KERNELS)
def test_one_prepared_launch_runs_again_on_changed_inputs(name: str, device: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(64, 64, 128), 0, "integers", device)
    prepared = prepare(v, a, b, config=small(v, 5))
    for seed in range(3):
        fresh_a, fresh_b = make_inputs(Problem(64, 64, 128), seed, "integers", device)
        a.copy_(fresh_a)
        b.copy_(fresh_b)
        prepared.run()
        assert torch.equal(prepared.out.double(), reference(a, b).c)


def prepare_and_run(v: Variant, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    prepared = prepare(v, a, b, config=small(v, 5))
    prepared.run()
    return prepared.out


@pytest.mark.parametrize("name", [*variants.portable_names(), *variants.baselines()])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_empty_dimensions(name: str, m: int, n: int, k: int, device: str) -> None:
    a, b = make_inputs(Problem(m, n, k), device=device)
    c = variants.get(name).matmul(a, b, block=BLOCK)
    assert c.shape == (m, n)
    assert torch.equal(c, torch.zeros_like(c))


@pytest.mark.parametrize("name", TRITON_KERNELS)
def test_overflow_is_inf_everywhere(name: str, device: str) -> None:
    v = variants.get(name)
    a = torch.full((32, 1024), 16.0, dtype=torch.float16, device=device)
    c = v.matmul(a, a.t().contiguous(), block=(32, 32, 64), programs=3)
    assert torch.isinf(c).all() and (c > 0).all()


def test_names_are_in_the_threads_order_and_cards_are_full() -> None:
    numbers = [name[:3] for name in variants.names()]
    assert numbers == [f"v{i:02}" for i in range(len(numbers))] and len(numbers) >= 10
    for name in variants.all_names():
        card = variants.get(name).card
        assert card.idea and card.position and card.fix_up
        assert card.parent is None or variants.resolve(card.parent)
        for defect in card.defects:
            path, test = defect.test.split("::")
            assert f"def {test}(" in Path(path).read_text()


@pytest.mark.parametrize("name", ["v05", "v05_cas_lock", "cas", "V05"])
def test_a_name_may_be_a_number_a_module_or_a_part(name: str) -> None:
    assert variants.get(name).name == "v05_cas_lock"


def test_unknown_and_ambiguous_names() -> None:
    with pytest.raises(UnknownVariant, match="v05_cas_lock"):
        variants.get("v05_caz_lock")
    with pytest.raises(UnknownVariant, match="v06_two_state_lock"):
        variants.get("lock")


def test_the_zoos_matmul(device: str) -> None:
    for m in (128, 512):
        a, b = make_inputs(Problem(m, 128, 64), values="integers", device=device)
        assert torch.equal(variants.matmul(a, b).double(), reference(a, b).c)
