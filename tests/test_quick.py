"""What a repeated launch hands to the driver, with a driver that writes it down instead of launching."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.backends.nvidia.driver

import common.quick
import variants
from common.launcher import Prepared, plan
from common.problem import Problem, make_inputs
from common.quick import QuickLaunch

PROBLEM = Problem(256, 384, 512)


@dataclass
class Driver:
    """Stands for Triton's: `launched` has the argument lists of all launches."""

    launched: list[tuple[Any, ...]] = field(default_factory=list)
    encoded: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def utils(self) -> SimpleNamespace:
        return SimpleNamespace(launch=lambda *arguments: self.launched.append(arguments))

    def get_current_stream(self, device: int) -> int:
        return 7

    def encode(self, descriptor: Any, facts: Any, _: None) -> list[Any]:
        self.encoded.append((descriptor.base.data_ptr(), tuple(descriptor.shape)))
        return [("map", descriptor.base.data_ptr())]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(common.quick, "active_driver", lambda: found)
    monkeypatch.setattr(triton.backends.nvidia.driver, "make_tensordesc_arg", found.encode)
    return found


def quick(name: str, split: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> QuickLaunch:
    v = variants.get(name)
    a, b = make_inputs(PROBLEM)
    config = v.card.default.replace(split=split)
    schedule = plan(v.card, PROBLEM.m, PROBLEM.n, PROBLEM.k, config, 132)
    prepared = Prepared(v, a, b, torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype), schedule, config, **changes)
    launcher = SimpleNamespace(
        global_scratch_size=0,
        profile_scratch_size=0,
        launch_cooperative_grid=False,
        launch_pdl=False,
        arg_annotations="annotations",
        kernel_signature="signature",
    )
    descriptors = [None] * sum(hasattr(x, "block_shape") for x in prepared.record()[0].args)
    compiled = SimpleNamespace(
        run=launcher,
        function=11,
        packed_metadata=(4, 1, 0),
        metadata=SimpleNamespace(tensordesc_meta=descriptors),
        _init_handles=lambda: None,
    )
    kernel = getattr(v.module, v.card.kernels[0])
    monkeypatch.setattr(kernel, "warmup", lambda *arguments, **options: compiled, raising=False)
    if not hasattr(kernel, "params"):  # plain Triton is interpreted here
        names = [SimpleNamespace(name=name) for name in inspect.signature(kernel.fn).parameters]
        monkeypatch.setattr(kernel, "params", names, raising=False)
    return QuickLaunch(prepared)


@pytest.mark.parametrize(("name", "split"), [("v10", 1), ("v10", 2), ("v11", 4), ("v12", 3), ("v14", 2), ("v17", 2)])
def test_addresses_change_from_call_to_call_and_nothing_else(
    name: str, split: int, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = quick(name, split, monkeypatch)
    for seed in range(3):
        a, b = make_inputs(PROBLEM, seed)
        out = torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype)
        assert repeated.fits(a, b, out)
        repeated(a, b, out)
        *head, arguments = driver.launched[-1]
        assert head[1:8] == [1, 1, 7, 11, False, False, (4, 1, 0)]
        wanted = {"a": a.data_ptr(), "b": b.data_ptr(), "c": out.data_ptr()}
        held = {x[1] if isinstance(x, tuple) else x for x in arguments if isinstance(x, (tuple, int))}
        assert set(wanted.values()) <= held
        assert not any(isinstance(x, torch.Tensor) for x in arguments)
    rest = [
        [x for x in launched[-1] if not isinstance(x, (tuple, int)) or x in range(5000)] for launched in driver.launched
    ]
    assert rest[0] == rest[1] == rest[2]


def test_a_descriptor_is_encoded_once_for_an_address(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = quick("v10", 1, monkeypatch)
    a, b = make_inputs(PROBLEM)
    out = torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype)
    for _ in range(3):
        repeated(a, b, out)
    assert driver.encoded == [(a.data_ptr(), (256, 512)), (b.data_ptr(), (512, 384)), (out.data_ptr(), (256, 384))]
    repeated(a.clone(), b, out)
    assert len(driver.encoded) == 4


def test_a_descriptor_holds_no_memory(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = quick("v10", 1, monkeypatch)
    a, b = make_inputs(PROBLEM)
    repeated(a, b, torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype))
    kept = [x for kernel in repeated._kernels for x in kernel._kept.values()]
    assert kept and not any(isinstance(x, torch.Tensor) for x in kept)


def test_other_alignment_does_not_fit(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = quick("v10", 1, monkeypatch)
    a, b = make_inputs(PROBLEM)
    shifted = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
    assert not repeated.fits(shifted, b, torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype))


def test_a_bias_is_one_of_the_addresses(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = quick("v09", 1, monkeypatch, bias=torch.zeros(PROBLEM.n, dtype=torch.float16))
    a, b = make_inputs(PROBLEM)
    out, bias = torch.empty(PROBLEM.m, PROBLEM.n, dtype=a.dtype), torch.ones(PROBLEM.n, dtype=a.dtype)
    repeated(a, b, out, bias)
    assert bias.data_ptr() in driver.launched[-1][-1]
