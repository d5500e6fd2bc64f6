"""`variants.matmul`: what it chooses, what it costs the host, what it refuses, and how its constants are fitted."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import variants
from common import cost, population
from common.card import Config
from common.cost import Constants, Kernels
from common.decomposition import Schedule, WaveSchedule
from common.errors import InvalidExperiment, NoDevice, UnknownVariant, UnsupportedProblem
from common.launcher import Prepared, plan
from common.problem import Problem, make_inputs
from common.reference import reference
from common.rows import read_run
from experiments import fit
from experiments.__main__ import app
from experiments.spec import Sample
from variants import choice

H200 = (132, "sm_90", 232448)
A100 = (108, "sm_80", 166912)
RTX3090 = (82, "sm_86", 101376)
SHAPES = [(128, 128, 256), (512, 512, 8192), (1536, 1792, 6016), (4096, 4096, 4096), (8, 200, 16), (256, 512, 32768)]


def test_matmul_is_right_for_any_sizes(device: str) -> None:
    for shape in ((128, 128, 64), (33, 70, 100), (1, 1, 1), (0, 5, 3), (5, 0, 3), (4, 5, 0)):
        a, b = make_inputs(Problem(*shape), device=device)
        assert reference(a, b).check(variants.matmul(a, b)).ok
        out = torch.full((shape[0], shape[1]), torch.nan, dtype=a.dtype, device=device)
        assert variants.matmul(a, b, out=out) is out
        assert reference(a, b).check(out).ok


@pytest.mark.parametrize("shapes", [((3, 20, 40), (3, 40, 24)), ((3, 20, 40), (40, 24)), ((20, 40), (3, 40, 24)),
                                    ((1, 20, 40), (3, 40, 24)), ((0, 20, 40), (40, 24))])  # fmt: skip
def test_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]], device: str) -> None:
    a, b = (torch.randint(-2, 3, shape, device=device).half() for shape in shapes)
    expected = a.double() @ b.double()
    assert torch.equal(variants.matmul(a, b).double(), expected)
    out = torch.full(expected.shape, torch.nan, dtype=a.dtype, device=device)
    assert variants.matmul(a, b, out=out).data_ptr() == out.data_ptr()
    assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients(activation: str | None, batched: bool, device: str) -> None:
    a = torch.randn(2, 20, 24, device=device) if batched else torch.randn(20, 24, device=device)
    b, bias = torch.randn(24, 28, device=device), torch.randn(28, device=device)
    found, expected = [], []
    for multiply, results in ((None, expected), (variants.matmul, found)):
        inputs = [x.clone().requires_grad_() for x in (a, b, bias)]
        x, y, z = inputs
        c = multiply(x, y, bias=z, activation=activation) if multiply else choice._activated(x @ y + z, activation)
        results += [c, *torch.autograd.grad(c.square().sum(), inputs)]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_out_and_gradients_do_not_go_together(device: str) -> None:
    a = torch.randn(4, 4, device=device, requires_grad=True)
    for fallback in (False, True):
        with pytest.raises(UnsupportedProblem, match="out= and gradients"):
            variants.matmul(a, a, out=torch.empty(4, 4, device=device), allow_fallback=fallback)
    with torch.no_grad():
        variants.matmul(a, a, out=torch.empty(4, 4, device=device))


def test_the_library_answers_only_if_asked(device: str) -> None:
    a = torch.randn(4, 6, dtype=torch.float64, device=device)
    with pytest.raises(UnsupportedProblem, match="float64"):
        variants.matmul(a, a.t())
    assert torch.equal(variants.matmul(a, a.t(), allow_fallback=True), a @ a.t())
    with pytest.raises(UnsupportedProblem, match=r"\(4, 6\)"):
        variants.matmul(a.half(), a.half())


def test_tensors_on_the_cpu_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "interpreting", lambda: False)
    a = torch.ones(4, 4, dtype=torch.float16)
    with pytest.raises(NoDevice, match="allow_fallback"):
        variants.matmul(a, a)
    assert torch.equal(variants.matmul(a, a, allow_fallback=True), a @ a)


def test_the_library_keeps_the_rules_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "interpreting", lambda: False)
    a = torch.full((3, 9), 100, dtype=torch.int8)
    assert torch.equal(variants.matmul(a, a.t(), allow_fallback=True), torch.full((3, 3), 90000, dtype=torch.int32))
    b = torch.ones(4, 4)
    for wrong, message in (
        ({"activation": "softmax"}, "no activation"),
        ({"precision": "tf23"}, "one of ieee"),
        ({"out": torch.empty(2, 4, 4)}, "out is"),
        ({"out": torch.empty(4, 4).double()}, "out is"),
    ):
        with pytest.raises(UnsupportedProblem, match=message):
            variants.matmul(b, b, allow_fallback=True, **wrong)


def test_what_torch_would_apply_is_no_activation_in_a_graph_either(device: str) -> None:
    a = torch.randn(4, 4, device=device, requires_grad=True)
    with pytest.raises(UnsupportedProblem, match="no activation 'softmax'"):
        variants.matmul(a, a, activation="softmax")
    with pytest.raises(UnsupportedProblem, match="no gradients"):
        variants.matmul(a.detach().to(torch.float8_e4m3fn).requires_grad_(), a.detach().to(torch.float8_e4m3fn))


@pytest.mark.parametrize("shapes", [((3, 4, 0), (0, 5)), ((3, 0, 0), (0, 5)), ((3, 4, 6), (6, 0)), ((0, 4, 0), (0, 5)),
                                    ((0, 4, 6), (0, 6, 5)), ((3, 4, 0), (3, 0, 5)), ((0, 4, 6), (6, 0))])  # fmt: skip
@pytest.mark.parametrize("gradients", [False, True])
def test_empty_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]], gradients: bool, device: str) -> None:
    a, b = (torch.ones(shape, device=device, requires_grad=gradients) for shape in shapes)
    c = variants.matmul(a, b)
    assert torch.equal(c, torch.matmul(a, b)) and c.requires_grad == gradients
    if gradients:
        c.sum().backward()
        assert a.grad.shape == a.shape and b.grad.shape == b.shape
    with torch.no_grad():
        out = torch.full_like(c, torch.nan)
        assert variants.matmul(a, b, out=out) is out and torch.equal(out, c)


def test_an_empty_batch_is_no_way_around_the_rules(device: str) -> None:
    a, b = torch.ones(0, 4, 6, device=device), torch.ones(0, 6, 5, device=device)
    for wrong in ({"bias": torch.ones(9, device=device)}, {"activation": "softmax"}):
        with pytest.raises(UnsupportedProblem):
            variants.matmul(a, b, **wrong)
    with pytest.raises(UnsupportedProblem, match="float64"):
        variants.matmul(a.double(), b.double())


def test_batches_of_c_share_no_memory(device: str) -> None:
    a, b = torch.ones(3, 4, 4, device=device), torch.ones(3, 4, 4, device=device)
    with pytest.raises(UnsupportedProblem, match="share memory"):
        variants.matmul(a, b, out=torch.empty(1, 4, 4, device=device).expand(3, 4, 4))
    more = torch.ones(4, 4, 4, device=device)
    with pytest.raises(UnsupportedProblem, match="memory of A"):  # the first product would be the second's operand
        variants.matmul(more[:3], b, out=more[1:])
    alternate = torch.full((6, 4, 4), torch.nan, device=device)[::2]
    assert variants.matmul(a, b, out=alternate) is alternate and torch.equal(alternate, a @ b)


def test_a_call_like_one_before_may_lie_elsewhere_in_memory(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    a, b = (torch.ones(32, 32, device=device) for _ in range(2))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: a.device.index)
    call = choice._short_way(FakeQuick(None), choice.choose(a, b, torch.empty_like(a)))
    both = torch.ones(64, 32, device=device)
    call(both[:32], b, both[32:], None)
    for first, second, out in ((a, b, a), (a, b, b), (both[:32], b, both[16:48]), (b, both[32:], both[16:48])):
        with pytest.raises(UnsupportedProblem, match="memory of"):
            call(first, second, out, None)


def test_what_is_no_tensor_with_memory_is_refused(device: str) -> None:
    a = torch.randn(4, 4, device=device)
    for x, message in (
        ([[1.0]], "these are list"),
        (None, "these are NoneType, Tensor"),
        (a.cpu().numpy(), "these are ndarray"),
        (a.to_sparse(), "no memory with strides"),
        (torch._neg_view(a), "resolve_neg"),
    ):
        with pytest.raises(UnsupportedProblem, match=message):
            variants.matmul(x, a)
    with pytest.raises(UnsupportedProblem, match="negates"):
        variants.matmul(a, a, out=torch._neg_view(a.clone()))
    with pytest.raises(NoDevice, match="meta"):
        variants.matmul(a.to("meta"), a.to("meta"))


def test_a_graph_that_saved_out_notices_the_write(device: str) -> None:
    a, w = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device, requires_grad=True)
    saved = w.exp()
    with torch.no_grad():
        variants.matmul(a, a, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()
    with pytest.raises(UnsupportedProblem, match="out= and gradients"):
        variants.matmul(a, a, out=torch.empty(4, 4, device=device, requires_grad=True))
    with torch.inference_mode():
        variants.matmul(a, a, out=torch.empty(4, 4, device=device))


class FakeQuick:
    """The launch without a driver."""

    def __init__(self, prepared: Prepared) -> None:
        self.calls = 0

    def __call__(self, *tensors: Any) -> None:
        self.calls += 1


def test_a_call_that_was_seen_before_costs_little_host_time(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    a, b = make_inputs(Problem(128, 128, 64), device=device)
    quick = FakeQuick(None)
    call = choice._short_way(quick, choice.choose(a, b))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: a.device.index)
    monkeypatch.setattr(choice, "_repeated", lambda prepared: call)
    monkeypatch.setattr(choice, "_kept", {})
    best = min(_seconds(a, b) for _ in range(20))
    assert quick.calls == 2000 and len(choice._kept) == 1
    assert best < 20e-6


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    began = time.perf_counter()
    for _ in range(100):
        variants.matmul(a, b)
    return (time.perf_counter() - began) / 100


@pytest.mark.gpu
def test_a_whole_call_that_was_seen_before_stays_under_20_us() -> None:
    a, b = make_inputs(Problem(128, 128, 256), device="cuda")
    variants.matmul(a, b)
    torch.cuda.synchronize()
    assert min(_seconds(a, b) for _ in range(20)) < 20e-6


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_chosen_is_right_and_stays_right(shape: tuple[int, int, int]) -> None:
    for seed in range(3):
        a, b = make_inputs(Problem(*shape), seed, device="cuda")
        assert reference(a, b).check(variants.matmul(a, b)).ok


@pytest.mark.gpu
def test_calls_of_one_kind_differ_in_bias_and_alignment() -> None:
    a, b = make_inputs(Problem(256, 256, 256), values="integers", device="cuda")
    bias = torch.randint(-3, 3, (256,), device="cuda").half()
    shifted, _ = make_inputs(Problem(256, 256, 256, layout="offset"), values="integers", device="cuda")
    for _ in range(2):
        assert torch.equal(variants.matmul(a, b).double(), a.double() @ b.double())
        assert torch.equal(variants.matmul(a, b, bias=bias).double(), a.double() @ b.double() + bias)
        assert torch.equal(variants.matmul(shifted, b).double(), shifted.double() @ b.double())


@pytest.mark.parametrize("gpu", [H200, A100, RTX3090])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_gpu_has_candidates_that_fit_it(shape: tuple[int, int, int], gpu: tuple[int, str, int]) -> None:
    found = choice.ranked(Problem(*shape), *gpu)
    times = [c.expected_us for c in found]
    assert times == sorted(times) and times[0] > 0
    for c in found:
        m, n, k = c.config.block
        assert (m // c.variant.card.ctas + n) * k * 2 * c.config.num_stages <= gpu[2]
        wanted = c.variant.card.contract.architectures
        assert not wanted or gpu[1] in wanted
        clusters = c.variant.card.decomposition == "cluster_ranges"
        assert clusters or c.config.programs * c.variant.card.ctas % gpu[0] == 0
        assert gpu is H200 or not c.config.tma


def test_a_candidate_that_refuses_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    card = variants.get("v09").card
    wanted = card.default.replace(block=(64, 64, 64), tma=True, programs=4), card.default.replace(programs=4)
    ranked = [choice.Choice(variants.get("v09"), config, 1.0) for config in wanted]
    monkeypatch.setattr(choice, "_candidates", lambda a, b, precision: ranked)
    a, b = make_inputs(Problem(72, 40, 136), device=device)
    assert choice.choose(a, b).config.tma
    assert not choice.choose(a[:, 1:], b[1:]).config.tma


def test_one_kernels_tiles_alone_can_be_chosen_among(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    names = ("data_parallel", "v09", "v04")
    configs = {name: variants.get(name).card.default.replace(block=(64, 64, 32)) for name in names}
    ranked = [choice.Choice(variants.get(name), config, 1.0) for name, config in configs.items()]
    monkeypatch.setattr(choice, "_candidates", lambda a, b, precision: ranked)
    a, b = make_inputs(Problem(128, 64, 64), device=device)
    assert choice.choose(a, b).variant.name == "data_parallel"
    assert choice.choose(a, b, kernel="v09").variant.name == variants.resolve("v09")
    with pytest.raises(UnsupportedProblem, match="no tile of v02_scratchpad_barrier takes"):
        choice.choose(a, b, kernel="v02")
    with pytest.raises(UnknownVariant):
        choice.choose(a, b, kernel="v99")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("v10", {"split": 1, "programs": 132}),
        ("v10", {"split": 3, "programs": 132}),
        ("v10", {"split": 8, "programs": 264}),
        ("v15", {"split": 2, "programs": 66}),
        ("v11", {"split": 1}),
        ("v11", {"split": 2, "maxnreg": 128, "num_stages": 4}),
        ("v11", {"split": 8}),
    ],
)
def test_the_formula_counts_what_a_schedule_does(name: str, changes: dict[str, Any]) -> None:
    card = variants.get(name).card
    config = card.default.replace(**changes)
    kernels = Kernels.of(card, [config])
    rng = np.random.default_rng(3)
    for m, n, k in np.exp(rng.uniform(np.log(64), np.log(8192), (40, 3))).astype(int).tolist():
        schedule = plan(card, m, n, k, config, 132)
        work = dict(zip(cost.WORK, cost.work(m, n, k, (2 * k, 2 * n), 2, kernels, 132)[:, 0], strict=True))
        segments = [segment for row in schedule.by_program() for segment in row]
        iterations = sum(segment.stop - segment.start for segment in segments)
        assert int(cost.effective_split(m, n, k, kernels)[0]) == schedule.split
        assert bool(work["shared"]) == bool(schedule.sk_tiles)
        # Ranges of unequal length count as the longest.
        longest = card.ctas * sum(
            -(-schedule.iters_per_tile // schedule.split) if tile < schedule.sk_tiles else steps
            for tile, steps in _by_unit(schedule)
        )
        assert work["busy_steps"] * 132 == pytest.approx(longest) and longest >= card.ctas * iterations
        if card.decomposition == "whole_waves":
            per_program = [len(row) for row in schedule.by_program()]
            assert work["whole"] + work["parts"] >= max(per_program)
            assert work["whole"] + work["parts"] <= max(per_program) + 1


def _by_unit(schedule: Schedule) -> list[tuple[int, int]]:
    """Tile and iterations of every unit of work: a whole tile, or what one program does of a shared one."""
    if isinstance(schedule, WaveSchedule):
        return [(s.tile, s.stop - s.start) for row in schedule.by_program() for s in row]
    return [(program // schedule.split, schedule.iters_per_tile) for program in range(schedule.programs)]


def test_the_formula_knows_clusters_that_do_not_fit_and_rows_that_do_not_start_at_a_line() -> None:
    card = variants.get("v11").card
    eights = Kernels.of(card, [card.default.replace(split=8)])
    fifteen, sixteen = (cost.work(64, 128 * tiles, 4096, (8192, 256 * tiles), 2, eights, 132) for tiles in (15, 16))
    parts = cost.WORK.index("parts")
    assert (fifteen[parts, 0], sixteen[parts, 0]) == (1, 2)
    lines = cost.WORK.index("lines")
    tile = Kernels.of(card, [card.default.replace(block=(128, 128, 64), split=1)])
    counted = [cost.work(512, n, n, (2 * n, 2 * n), 2, tile, 132)[lines, 0] for n in (512, 544, 528, 520)]
    assert counted == pytest.approx([cost.PIECES[row] for row in (128, 64, 32, 16)])


TRUTH = Constants(2.8, 1.3, 0.22, 0.11, 3.1, 1.4, 0.35, 0.05, 0.04, 2.0)


Missed = Callable[[tuple[int, ...], int], float]
"""What the formula misses of a shape and split: the logarithm of measured over expected time."""


def write_run(
    path: Path,
    truth: Constants,
    part: str,
    missed: Missed = lambda shape, split: 0.0,
    floor_us: float | None = fit.FLOOR_US,
) -> Path:
    """A run whose times are the formula's but for what it misses, with 2 % noise, on a machine where an empty kernel
    takes `floor_us` and all others as much more or less."""
    config = dataclasses.asdict(Config(block=(128, 128, 64), num_warps=8, num_stages=4, order="swizzled"))
    candidates = [{"label": "torch_matmul", "variant": "torch_matmul", "programs": "sms", "config": config}]
    for split in (1, 2, 4, 8):
        entry = {"label": f"v09 {split}", "variant": "v09_whole_waves", "programs": "sms"}
        candidates.append(entry | {"config": config | {"split": split}})
    if floor_us is not None:
        candidates.append({"label": "empty", "variant": "empty", "programs": "sms", "config": config})
    versions = {"torch": "2.11", "triton": "3.9.0"}
    header = {
        "run": path.name.split(".")[0],
        "experiment": "matmul_training",
        "dtype": "float16",
        "rounds": 9,
        "commit": "abc",
        "date": "2030-01-01T00:00:00+00:00",
    }
    header |= {"device": {"name": "NVIDIA H200", "sms": 132}, "versions": versions, "candidates": candidates}
    lines: list[dict[str, Any]] = [header]
    noise = np.random.default_rng(0)
    sample = Sample(distribution="log_uniform", low=128, high=8192, step=128, count=60, seed=1, part=part)
    for shape in sample.shapes():
        for index, split in enumerate((1, 2, 4, 8), 1):
            m, n, k = shape
            launch = Config(**config).replace(split=split, programs=132)
            kernels = Kernels.of(variants.get("v09").card, [launch])
            work = cost.work(m, n, k, (2 * k, 2 * n), 2, kernels, 132)
            us = float(cost.predict(np.array(dataclasses.astuple(truth)), work)[0]) * (1 + 0.02 * noise.normal())
            us *= np.exp(missed(shape, split))
            us += (floor_us or fit.FLOOR_US) - fit.FLOOR_US
            lines.append({"p": shape, "c": index, "s": "ok", "us": [us] * 3, "e": 1e-4})
        if floor_us is not None:
            lines.append({"p": shape, "c": 5, "s": "ok", "us": [floor_us] * 3, "e": 0.0})
    lines.append({"finished": {"wall_s": 1.0}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_fit_finds_the_constants_behind_a_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "matmul_training-20300101-000000.jsonl", TRUTH, "training")
    done = CliRunner().invoke(app, ["fit", "--results", str(tmp_path), "--out", str(tmp_path / "costs.json")])
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "costs.json").read_text())
    assert data["provenance"]["runs"] == [read_run(path).id] and data["provenance"]["fitted"]
    (family,) = data["families"]
    assert family["log_error"] < 0.03 and family["rows"] == 240
    assert "tma" not in family["config"] and family["config"]["block"] == [128, 128, 64]
    for name in ("launch_us", "step_us"):
        assert family["constants"][name] == pytest.approx(getattr(TRUTH, name), rel=0.25)


def test_runs_of_machines_with_other_floors_are_brought_to_one(tmp_path: Path) -> None:
    found = []
    for floor_us in (fit.FLOOR_US, fit.FLOOR_US + 0.9):
        path = write_run(tmp_path / "matmul_training-20300101-000000.jsonl", TRUTH, "training", floor_us=floor_us)
        (family,) = fit.fit([read_run(path)]).families
        found.append(dataclasses.astuple(family.constants))
    assert found[0] == pytest.approx(found[1], rel=0.02)
    without = write_run(tmp_path / "matmul_training-20300101-000000.jsonl", TRUTH, "training", floor_us=None)
    with pytest.raises(InvalidExperiment, match="no empty kernel"):
        fit.fit([read_run(without)])


def test_splits_below_the_measured_ones_are_not_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    family = dataclasses.replace(choice.costs().families[0], corrections={2: [], 4: []}, most_split=4)
    assert family.least_split == 2 and dataclasses.replace(family, corrections={}).least_split == 1
    few = dataclasses.replace(choice.costs(), families=(family,), centres=np.zeros((0, 4)))
    monkeypatch.setattr(choice, "costs", lambda: few)
    choice.candidates.cache_clear()
    try:
        found = choice.candidates(132, "sm_90", 232448, 2, "ieee")
        assert [config.split for _, config in found.launches] == [2, 3, 4]
    finally:
        choice.candidates.cache_clear()


def smooth(shape: tuple[int, ...], split: int) -> float:
    """Up to 30 %, over some octaves of M and K, and another way for every split."""
    m, _, k = np.log2(shape)
    return 0.3 * float(np.sin(0.9 * m + split) * np.cos(0.5 * k))


def test_what_the_formula_misses_is_learnt_and_shapes_held_out_are_chosen_for_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "matmul_training-20300101-000000.jsonl", TRUTH, "training", smooth)
    costs = fit.fit([read_run(path)])
    (family,) = costs.families
    assert sorted(family.corrections) == [1, 2, 4, 8]
    assert family.corrected_log_error < 0.7 * family.log_error
    uncorrected = dataclasses.replace(costs, families=[dataclasses.replace(family, corrections={})])
    truth = np.array(dataclasses.astuple(TRUTH))
    regrets, errors = [], []
    for name, found in (("corrected.json", costs), ("formula.json", uncorrected)):
        fit.write(found, [read_run(path)], tmp_path / name)
        read_costs(monkeypatch, tmp_path / name)
        regret, error = [], []
        for shape in Sample(distribution="log_uniform", low=128, high=8192, step=128, count=60, part="report").shapes():
            m, n, k = shape
            ranked = [c for c in choice.ranked(Problem(*shape), *H200) if c.config.split in family.corrections]
            kernels = Kernels.of(ranked[0].variant.card, [c.config for c in ranked])
            times = cost.predict(truth[:, None], cost.work(m, n, k, (2 * k, 2 * n), 2, kernels, 132))
            times *= np.exp([smooth(shape, c.config.split) for c in ranked])
            regret.append(np.log(times[0] / times.min()))
            error += list(np.log([c.expected_us for c in ranked] / times))
        regrets.append(np.mean(regret))
        errors.append(np.std(error))
    assert errors[0] < 0.7 * errors[1]
    assert regrets[0] < 0.6 * regrets[1] and regrets[1] > 0.01


def read_costs(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the choice be by this data file."""
    monkeypatch.setattr(choice, "COSTS", path)
    monkeypatch.setattr(choice, "costs", functools.lru_cache(choice.costs.__wrapped__))
    monkeypatch.setattr(choice, "candidates", functools.lru_cache(choice.candidates.__wrapped__))


def test_far_from_what_was_measured_the_formula_alone_counts() -> None:
    centres, rows = choice.costs().centres, (2 << 13, 2 << 13)
    weights = choice.candidates(*H200, 2, "ieee").weights
    times = np.ones(weights.shape[1])
    near, far = (
        cost.corrected(times, cost.basis(cost.features(m, n, k, rows, 2), centres), weights)
        for m, n, k in ((1024, 1024, 1024), (1 << 30, 1 << 26, 1))
    )
    assert np.abs(np.log(near)).max() > 0.05
    assert np.abs(np.log(far)).max() < 1e-6


def test_a_place_among_problems_is_in_octaves_and_k_in_bytes() -> None:
    assert cost.features(256, 512, 1024, (2048, 1024), 2).tolist() == [8, 9, 10, 0]
    assert cost.features(256, 512, 1024, (1024, 512), 1).tolist() == [8, 9, 9, 0]
    sizes = np.array([256, 512])
    both = cost.features(sizes, 520, 2 * sizes, (4 * sizes, 1040), 2)
    assert both[:, 3].tolist() == [cost.OFF_LINES] * 2 and both[:, 0].tolist() == [8, 9]
    assert cost.basis(both, both).diagonal().tolist() == [1, 1]


def test_a_split_that_was_not_measured_has_the_correction_of_the_next_smaller_one() -> None:
    family = dataclasses.replace(choice.costs().families[0], corrections={2: [0.5], 4: [0.25]})
    assert [family.correction(split) for split in (1, 2, 3, 4, 16)] == [0.0, [0.5], [0.5], [0.25], [0.25]]


def test_few_rows_make_no_correction_and_centres_are_far_apart() -> None:
    places = np.random.default_rng(0).uniform(7, 13, (500, 4))
    centres = fit.spread(places)
    assert len(centres) == fit.CENTRES == len(fit.spread(np.concatenate([places, places])))
    apart = np.sqrt(((centres[:, None] - centres) ** 2).sum(-1))[np.triu_indices(len(centres), 1)].min()
    away = np.sqrt(((places[:, None] - centres) ** 2).sum(-1)).min(1).max()
    assert apart >= away
    assert len(fit.spread(places[:3])) == 3
    rows = fit.LEAST_CORRECTED - 1
    split = np.repeat([1, 2, 3], [rows + 1, rows, rows + 1])
    real = split < 3
    samples = fit.Samples(np.ones((len(split), 8)), np.ones(len(split)), places[: len(split)], split, real, real)
    assert list(fit._corrections(np.ones(10), samples, centres)) == [1]


def test_a_data_file_without_corrections_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(choice.COSTS.read_text())
    del data["centres"]
    (tmp_path / "costs.json").write_text(json.dumps(data))
    read_costs(monkeypatch, tmp_path / "costs.json")
    with pytest.raises(InvalidExperiment, match="holds no corrections"):
        choice.ranked(Problem(512, 512, 512), *H200)


def test_shapes_that_are_reported_on_are_not_fitted_to(tmp_path: Path) -> None:
    path = write_run(tmp_path / "matmul_training-20300101-000000.jsonl", TRUTH, "report")
    with pytest.raises(InvalidExperiment, match="60 of its shapes are for reporting"):
        fit.fit([read_run(path)])


def test_the_committed_constants_are_complete() -> None:
    data = json.loads(choice.COSTS.read_text())
    assert data["provenance"].get("runs") or data["provenance"]["fitted"] is False
    for family in choice.costs().families:
        assert all(value > 0 for value in dataclasses.astuple(family.constants))
        assert family.least_split in choice.SPLITS and family.most_split >= family.least_split
        assert {len(weights) for weights in family.corrections.values()} == {len(choice.costs().centres)}


@pytest.mark.parametrize("step", [8, 128])
def test_fitting_and_reporting_share_no_shape(step: int) -> None:
    options = {"distribution": "log_uniform", "low": 128, "high": 8192, "step": step, "count": 2000}
    training, report = (set(Sample(**options, part=part, seed=5).shapes()) for part in ("training", "report"))
    assert len(training) == len(report) == 2000 and not training & report
    assert {population.part_of(shape) for shape in training} == {"training"}


def test_a_stratified_sample_has_every_class_and_only_the_corpus_shapes() -> None:
    corpus = Sample(distribution="log_uniform", low=128, high=8192, step=128, count=8000, seed=7)
    chosen = corpus.model_copy(update={"stratified": 1000}).shapes()
    whole = corpus.shapes()
    assert len(chosen) == len(set(chosen)) == 1000 and set(chosen) <= set(whole)
    for name in {population.stratum(shape) for shape in whole}:
        there = sum(population.stratum(shape) == name for shape in whole)
        taken = sum(population.stratum(shape) == name for shape in chosen)
        assert taken >= 0.6 * min(there, population.LEAST), name


def test_choosing_makes_no_more_choices_than_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new shape's first call waits for it."""
    made, real = [], choice.Choice

    def counted(*fields: Any) -> choice.Choice:
        made.append(real(*fields))
        return made[-1]

    monkeypatch.setattr(choice, "Choice", counted)
    count, arch, shared = H200
    monkeypatch.setattr(choice, "sms", lambda device: count)
    monkeypatch.setattr(choice, "architecture", lambda device: arch)
    monkeypatch.setattr(choice, "interpreting", lambda: False)
    limits = SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: limits)
    a, b = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((1024, 4096), (4096, 1536)))
    found = choice._candidates(a, b, "ieee")
    first = next(found)
    assert len(made) == 1
    everyone = [first, *found]
    expected = choice.ranked(Problem(1024, 1536, 4096), *H200)
    kinds = [(c.variant.name, c.config.block) for c in everyone]
    assert len(kinds[:-1]) == len(set(kinds[:-1])) and kinds[-1][0] == choice.PORTABLE
    soonest: dict[Any, Config] = {}
    for c in expected:
        soonest.setdefault((c.variant.name, c.config.block), c.config)
    assert [c.config for c in everyone[:-1]] == list(soonest.values())
