"""Tables of goals and of several GPUs from made-up runs: each bound, each interval, and nothing without rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import documents
from common.population import stratum
from common.rows import newest_run
from experiments.spec import Sample
from figures import devices_table, goal_answers, goals, goals_table
from figures.goals import Goal
from figures.steps_table import NOT_MEASURED

Shape = tuple[int, int, int]
SAMPLE = Sample(distribution="log_uniform", low=128, high=8192, step=128, count=400, seed=3, part="report")
LABELS = ("empty", "torch_matmul", "torch_matmul #2", "matmul", "v08_while_loop", "v09_whole_waves", "matmul v09")
US = {"empty": 3.0, "torch_matmul": 10.0, "torch_matmul #2": 10.0, "matmul": 8.0, "v08_while_loop": 14.0}
US |= {"matmul v09": 8.75}


def write(
    folder: Path, experiment: str, us: Callable[[str, Shape], float], day: int = 1, gpus: int = 1, **more: Any
) -> Path:
    """A finished run: microseconds by label and shape, within a thousandth; `more` of the header and of the end."""
    generator = random.Random(experiment)
    device = {"name": "NVIDIA H200", "sms": 132}
    header = {"run": f"{experiment}-203001{day:02}-000000", "dtype": "float16", "rounds": 5, "commit": "abc"}
    header |= {"device": device | {"uuid": "GPU-0-0"}, "experiment_hash": more.get("experiment_hash", "e")}
    header["versions"] = {"torch": "2.11", "triton": "3.9.0", **more.get("versions", {})}
    header["candidates"] = [{"label": label, "variant": label.split(" ")[0]} for label in LABELS]
    header["candidates"][-1]["kernel"] = "v09_whole_waves"
    header["candidates"][LABELS.index("matmul")]["source_hash"] = more.get("choice", "chosen")
    lines: list[dict[str, Any]] = [header, *({"device": device | {"uuid": f"GPU-{n}-0"}} for n in range(1, gpus))]
    for number, shape in enumerate(SAMPLE.shapes()):
        for index, label in enumerate(LABELS):
            samples = [us(label, shape) * (1 + 0.001 * generator.random()) for _ in range(5)]
            error = 2e-4 if label.startswith("v09") else 1.9e-4
            lines.append({"p": shape, "c": index, "s": "ok", "us": samples, "e": error, "g": number % gpus})
    lines.append({"finished": {"wall_s": more.get("wall_s", 1.0), "ms_per_candidate_and_shape": 1.5}})
    path = folder / f"{header['run']}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def flat(label: str, shape: Shape) -> float:
    return US.get(label, 10.0)


def standing(folder: Path, on: str, name: str) -> tuple[str, float]:
    """How the goal stands whose text ends so, and its value."""
    ((goal, found, run),) = [x for x in goals.asked(goals.newest(folder)) if x[0].on == on and x[0].what.endswith(name)]
    assert found is not None and run.startswith(on)
    return goal.standing(found), found.value.value


def test_a_corpus_of_equal_gains_reaches_every_goal(tmp_path: Path) -> None:
    write(tmp_path, "corpus_128", flat)
    for name in ("geometric mean", "worst shape", "flop/byte", "K >= 2048"):
        assert standing(tmp_path, "corpus_128", name) == ("reached", pytest.approx(1.25, rel=2e-3)), name
    assert standing(tmp_path, "corpus_128", "won") == ("reached", 1.0)
    assert all(found is None for goal, found, _ in goals.asked(goals.newest(tmp_path)) if goal.on != "corpus_128")


def test_each_goal_asks_its_own_shapes(tmp_path: Path) -> None:
    """Slow in the class of few waves alone: its goal and the worst shape are missed, the mean over all is not."""

    def us(label: str, shape: Shape) -> float:
        return 20.0 if label == "matmul" and stratum(shape) == (2, 2) else flat(label, shape)

    write(tmp_path, "corpus_8", us)
    assert standing(tmp_path, "corpus_8", "K >= 2048") == ("missed", pytest.approx(0.5, rel=2e-3))
    assert standing(tmp_path, "corpus_8", "worst shape") == ("missed", pytest.approx(0.5, rel=2e-3))
    assert standing(tmp_path, "corpus_8", "geometric mean")[0] == "reached"
    share = sum(stratum(shape) != (2, 2) for shape in SAMPLE.shapes()) / 400
    assert standing(tmp_path, "corpus_8", "won")[1] == pytest.approx(share)
    text = goals_table.render(tmp_path)
    assert "| tiles < 528, K >= 2048 | " in text and "| 0.500 [0.500, 0.500] | 0% | 0.50 |" in text


def test_an_interval_across_the_bound_decides_nothing(tmp_path: Path) -> None:
    def us(label: str, shape: Shape) -> float:
        return 10 / random.Random(str(shape)).choice((0.6, 1.82)) if label == "matmul" else flat(label, shape)

    write(tmp_path, "thread_modern", us)
    found = goal_answers.whole(newest_run(tmp_path, "thread_modern"))
    assert found is not None and found.value.low < found.value.value < found.value.high
    goal = Goal("x", "thread_modern", goal_answers.whole, least=(found.value.low + found.value.value) / 2)
    assert goal.standing(found) == "not decided"
    assert Goal("x", "", goal_answers.whole, most=found.value.low - 0.01).standing(found) == "missed"


def test_v09_is_compared_with_v08_and_its_error_only_with_fp32_sums(tmp_path: Path) -> None:
    write(tmp_path, "corpus_strata", flat)
    assert standing(tmp_path, "corpus_strata", "one configuration each") == ("reached", pytest.approx(1.4, rel=2e-3))
    write(tmp_path, "portable", flat)
    assert standing(tmp_path, "portable", "chosen by the model") == ("reached", pytest.approx(1.6, rel=2e-3))
    assert "adds in fp32 | ≤ 1.20 | not measured yet" in goals_table.render(tmp_path)
    write(tmp_path, "accumulation", flat)
    assert "adds in fp32 | ≤ 1.20 | not measured yet" in goals_table.render(tmp_path)
    write(tmp_path, "accumulation", flat, day=2, versions={goal_answers.PLAIN_ACCUMULATION: False})
    assert standing(tmp_path, "accumulation", "fp32") == ("reached", pytest.approx(2 / 1.9, rel=1e-3))


def test_documents_answer_where_there_are_some(tmp_path: Path) -> None:
    head = {"date": "2030-01-01T00:00:00+00:00", "device": {"name": "NVIDIA H200"}, "versions": {"triton": "3.9.0"}}
    documents.write(tmp_path, "host_time", head, [{"us": [15.0, 16.0, 15.5]}, {"us": [30.0, 31.0, 32.0]}])
    documents.write(tmp_path, "fix_up", head, [{"peers": 4, "us": [1.5] * 3}, {"peers": 16, "us": [5.0] * 3}])
    assert standing(tmp_path, "host_time", "µs") == ("missed", 31.0)
    assert standing(tmp_path, "fix_up", "v10 128x128x64, up to 4 peers, µs") == ("reached", 1.5)
    assert standing(tmp_path, "fix_up", "v10 128x128x64, up to 16 peers, µs") == ("missed", 5.0)


def test_without_rows_no_goal_has_a_number(tmp_path: Path) -> None:
    text = goals_table.render(tmp_path)
    assert text.count(NOT_MEASURED) == len(goals.GOALS) == text.count("\n") - 2
    assert "[" not in text and "By class" not in text


def test_what_few_candidates_change_is_told_from_the_shapes_of_both_runs(tmp_path: Path) -> None:
    write(tmp_path, "corpus_128", flat)
    assert "Company counts" not in goals_table.render(tmp_path)
    write(tmp_path, "corpus_regret", lambda label, shape: flat(label, shape) * (1.25 if label == "matmul" else 1.0))
    text = goals_table.render(tmp_path)
    assert "`variants.matmul` 0.800 [0.800, 0.800]" in text and "cuBLAS takes 1.000 [1.000, 1.000]" in text
    write(tmp_path, "corpus_regret", flat, day=2, choice="another")
    text = goals_table.render(tmp_path)
    assert "the choice is not the same in both" in text and "`variants.matmul` 1.000 [1.000, 1.000]" not in text


def test_a_newer_run_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, "corpus_128", flat)
    assert "1.250 [" in goals_table.render(tmp_path)
    write(tmp_path, "corpus_128", lambda label, shape: 5.0 if label == "matmul" else flat(label, shape), day=2)
    assert "2.000 [" in goals_table.render(tmp_path)


def test_one_sweep_on_one_gpu_and_on_two(tmp_path: Path) -> None:
    write(tmp_path, "matmul_training", flat, day=1, wall_s=80.0)
    assert NOT_MEASURED in devices_table.render(tmp_path)
    write(tmp_path, "matmul_training", flat, day=2, wall_s=44.0, gpus=2)
    text = devices_table.render(tmp_path)
    assert "| 1 | 80.0 | 1 | 1.50 |" in text and "| 2 | 44.0 | 1.82 | 1.50 |" in text
    assert f"Of {len(LABELS)} candidates, by their times on both: {len(LABELS)} same" in text
    assert "changes of status: 0" in text and "50%, 50%" in text and "not the GPUs' alone" not in text


def test_runs_that_are_not_the_same_sweep_are_no_pair(tmp_path: Path) -> None:
    write(tmp_path, "matmul_training", flat, day=1, experiment_hash="other")
    write(tmp_path, "matmul_training", flat, day=2, gpus=2)
    assert NOT_MEASURED in devices_table.render(tmp_path)


def test_disagreement_and_too_much_speed_up_are_told(tmp_path: Path) -> None:
    write(tmp_path, "matmul_training", flat, day=1, wall_s=90.0)
    slow = {"matmul": 12.0}
    write(tmp_path, "matmul_training", lambda x, s: slow.get(x, flat(x, s)), day=2, gpus=2, wall_s=40.0)
    text = devices_table.render(tmp_path)
    assert "6 same, 1 slower" in text and "and 1.500" in text
    assert "above 2 is not the GPUs' alone: a candidate and shape took 1.50 and 1.50 ms" in text
