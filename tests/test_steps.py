"""The story of the steps beyond the thread: made-up sweeps decide it, the committed ones agree with the cards."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import variants
from common.rows import read_run
from common.statistics import held_out_best
from experiments.spec import load
from figures import readme, rejected, steps, steps_table
from figures.__main__ import RESULTS
from figures.steps import EVERY, Gains

Us = dict[str, float]
SHAPES = [(128 * i, 128 * j, 256) for i in range(1, 6) for j in range(1, 5)]
DEEP = [(1536, 1792, 128 * k) for k in range(20, 32)]


def sweep(
    folder: Path, candidates: dict[str, tuple[str, dict[str, Any]]], us: Any, day: int = 1, finished: bool = True
) -> Path:
    """A run of hopper_tiles: labels with their variant and configuration; `us(label, shape)` microseconds."""
    generator = random.Random(day)
    header = {"run": f"hopper_tiles-203001{day:02}-000000", "dtype": "float16", "rounds": 5, "commit": "abc"}
    header |= {"device": {"name": "NVIDIA H200", "sms": 132}, "versions": {"torch": "2.11", "triton": "3.9.0"}}
    default = {"block": [128, 128, 64], "num_warps": 8, "num_stages": 5, "split": 1, "two_tiles": True, "tma": False}
    labels = {"torch_matmul": ("torch_matmul", {})} | candidates
    header["candidates"] = [
        {"label": label, "variant": variant, "programs": "sms", "config": default | config}
        for label, (variant, config) in labels.items()
    ]
    lines: list[dict[str, Any]] = [header]
    for shape in [*SHAPES, *DEEP, *((m, n + 8, k) for m, n, k in SHAPES)]:
        for index, label in enumerate(labels):
            samples = [us(label, shape) * (1 + 0.002 * generator.random()) for _ in range(5)]
            lines.append({"p": shape, "c": index, "s": "ok", "us": samples, "e": 1e-4})
    lines += [{"finished": {"wall_s": 1.0}}] if finished else []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{header['run']}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


V10 = {"v10_warp_specialised split=1": ("v10_warp_specialised", {})}
V12 = {"v12_even_slabs": ("v12_even_slabs", {"split": None})}
V15 = {"v15_cta_pairs split=1": ("v15_cta_pairs", {"block": [256, 128, 64]})}


def of(results: Path, step: str, kind: str = "at lines") -> Gains:
    (found,) = [g for g in steps.measured(results) if g.step.startswith(step) and g.rows == kind]
    return found


def test_ratios_are_the_parents_time_over_the_steps(tmp_path: Path) -> None:
    sweep(tmp_path, V10 | V12, lambda label, shape: {"v10": 10.0, "v12": 8.0}.get(label[:3], 16.0))
    found = of(tmp_path, "v12")
    assert found.parent == "v10_warp_specialised" and found.configs == (1, 1)
    assert found.instead[EVERY].value == pytest.approx(1.25, rel=2e-3)
    assert found.beside[EVERY].value == pytest.approx(1.25, rel=2e-3)
    assert found.equal[EVERY].value == pytest.approx(1.25, rel=2e-3)
    assert found.cublas.value == pytest.approx(2, rel=2e-3)
    assert found.first == 1 and found.verdict == "helps"
    assert found.instead[EVERY].count == len(SHAPES) + len(DEEP)
    assert of(tmp_path, "v12", "elsewhere").instead[EVERY].count == len(SHAPES)


def test_a_gain_in_one_class_is_found_and_named(tmp_path: Path) -> None:
    """Slower by a half everywhere, faster by a tenth where K is long: no average shows it."""
    sweep(tmp_path, V10 | V12, lambda label, shape: 10.0 if label[:3] != "v12" else 9.0 if shape in DEEP else 15.0)
    found = of(tmp_path, "v12")
    assert found.instead[EVERY].value < 0.9
    assert steps_table.most(found.instead).startswith(
        ("tiles < 528: 1.11", "K >= 2048: 1.11", "tiles < 528, K >= 2048")
    )
    assert found.verdict == "helps"
    assert of(tmp_path, "v12", "elsewhere").verdict == "does not help"
    assert steps.verdict([g for g in steps.measured(tmp_path) if g.step.startswith("v12")]) == "helps"


@pytest.mark.parametrize("us, verdict", [(9.0, "helps"), (9.95, "does not help"), (11.0, "does not help")])
def test_the_band_decides(us: float, verdict: str, tmp_path: Path) -> None:
    sweep(tmp_path, V10 | V12, lambda label, shape: us if label[:3] == "v12" else 10.0)
    assert of(tmp_path, "v12").verdict == verdict


def test_an_interval_across_the_edge_decides_nothing(tmp_path: Path) -> None:
    generator = random.Random(5)
    noise = {shape: generator.choice((0.95, 1.0)) for shape in SHAPES}
    sweep(tmp_path, V10 | V12, lambda label, shape: 10.0 * (noise.get(shape, 1.0) if label[:3] == "v12" else 1.0))
    found = of(tmp_path, "v12")
    assert max(i.high for i in found.instead.values()) > 1.02 > max(i.low for i in found.instead.values())
    assert found.verdict == "not decided"


def test_a_class_of_few_shapes_whose_interval_reaches_far_does_not_decide_alone(tmp_path: Path) -> None:
    few = [shape for shape in SHAPES if steps.stratum(shape) == (0, 0)]
    slow = set(few[: len(few) // 8])
    us = {shape: 9.0 if shape in slow else 10.01 for shape in few}
    sweep(tmp_path, V10 | V12, lambda label, shape: us.get(shape, 10.0) if label[:3] == "v12" else 10.0)
    found = of(tmp_path, "v12")
    assert max(i.high for i in found.instead.values()) > 1.02 >= max(i.value for i in found.instead.values())
    assert found.verdict == "does not help"


def test_more_noisy_configurations_gain_nothing(tmp_path: Path) -> None:
    """The least of many equal candidates' medians is below one's; the half that it was not chosen on is not."""
    generator = random.Random(7)
    many = {f"v12_even_slabs split={n}": ("v12_even_slabs", {"split": n}) for n in range(1, 21)}
    sweep(tmp_path, V10 | many, lambda label, shape: 10.0)
    path = next(tmp_path.glob("*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "us" in line:
            line["us"] = [10 * generator.uniform(0.9, 1.1) for _ in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert 0.98 < of(tmp_path, "v12").instead[EVERY].value < 1.02


def test_the_best_is_the_held_out_best_of_every_shape() -> None:
    run = read_run(steps_path("unaligned"))
    halves = steps.Halves(run)
    indices = halves.indices("v10_warp_specialised")
    found = halves.best(indices)
    assert len(found) == 60
    for shape, time in found.items():
        table = {str(i): run.by_candidate[i][shape] for i in indices if shape in run.by_candidate[i]}
        samples = {label: row.samples for label, row in table.items() if row.status == "ok"}
        assert time == pytest.approx(held_out_best(samples)), shape


def steps_path(name: str) -> Path:
    return sorted(RESULTS.glob(f"{name}-*.jsonl.xz"))[-1]


def test_a_wrong_result_is_in_no_time(tmp_path: Path) -> None:
    path = sweep(tmp_path, V10 | V12, lambda label, shape: 0.01 if label[:3] == "v12" else 10.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("c") == 2:
            line["s"] = "incorrect"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert steps.measured(tmp_path) == []


def test_a_pair_of_ctas_is_compared_at_the_tile_of_one(tmp_path: Path) -> None:
    other = {"v10_warp_specialised 256x128x64 split=1": ("v10_warp_specialised", {"block": [256, 128, 64]})}
    us = {"v10_warp_specialised split=1": 10.0, "v15_cta_pairs split=1": 5.0}
    sweep(tmp_path, V10 | other | V15, lambda label, shape: us.get(label, 1.0))
    found = of(tmp_path, "v15")
    assert found.pairs == 1 and found.equal[EVERY].value == pytest.approx(2, rel=2e-3)


def test_the_newest_finished_sweep_with_both_decides(tmp_path: Path) -> None:
    sweep(tmp_path, V10 | V12, lambda label, shape: 10.0, day=1)
    sweep(tmp_path, V10 | V12, lambda label, shape: 5.0 if label[:3] == "v12" else 10.0, day=2)
    sweep(tmp_path, V10 | V12, lambda label, shape: 99.0, day=3, finished=False)
    sweep(tmp_path, V10, lambda label, shape: 10.0, day=4)
    assert of(tmp_path, "v12").run == "hopper_tiles-20300102-000000"


def test_without_rows_there_is_no_number(tmp_path: Path) -> None:
    table = steps_table.render(tmp_path)
    assert table.count(steps_table.NOT_MEASURED) == 2 * len(steps.steps()) == table.count("| at lines |") * 2
    assert " [" not in table.replace("[`", "").replace(" ([", "")
    page = rejected.render(tmp_path)
    assert page.count(f"Figures: {rejected.NOT_MEASURED}") == page.count("## `v")


def test_cards_say_what_the_committed_rows_say() -> None:
    """A step that did not help says why on its card, and one that did, or is not decided, says nothing."""
    found = steps.measured(RESULTS)
    said = {step: steps.verdict([g for g in found if g.step == step]) for step in steps.steps()}
    assert [v for step, v in said.items() if "v09" <= step < "v17"].count(None) == 0
    wrong = {step: v for step, v in said.items() if (v == "does not help") != bool(variants.get(step).card.rejected)}
    assert wrong == {}
    assert not any(variants.get(name).card.rejected for name in variants.all_names() if name not in said)


def test_the_page_of_rejected_steps_is_not_stale() -> None:
    assert rejected.PAGE.read_text() == rejected.render(RESULTS), "variants/rejected.md is stale: make table"
    named = [name for name in variants.all_names() if variants.get(name).card.rejected]
    assert [f"## `{name}`" in rejected.PAGE.read_text() for name in named] == [True] * len(named)
    table = readme.render_table(RESULTS)
    assert table.count("[did not help](variants/rejected.md)") == len(named)


def test_what_the_page_says_to_measure_holds_every_step_and_its_parent() -> None:
    again = load(Path(__file__).parent.parent / "experiments" / "steps.yaml")
    measured = {candidate.variant for candidate in again.all_candidates()}
    for step in steps.steps():
        assert {step, steps.parent_of(step)} <= measured
    assert again.name in steps.SWEEPS and f"EXPERIMENTS={again.name}" in rejected.HEAD
