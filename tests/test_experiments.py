"""Experiments: the YAML's faults, sweeps that meet hangs, crashes and wrong results, kill and resume, rows."""

from __future__ import annotations

import dataclasses
import json
import lzma
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

import variants
from common import rows
from common.errors import DamagedRun, InvalidExperiment, NoDevice
from common.launcher import Launch, Variant
from common.problem import Problem
from common.rows import Row
from experiments.__main__ import HERE, RESULTS, app
from experiments.compare import load_run
from experiments.runner import Sweep, _append, _difference
from experiments.spec import MOST_ROUNDS, Experiment, files, load

ROOT = Path(__file__).parent.parent
COMMITTED = files(ROOT / "experiments")
POPULATIONS = [ROOT / "experiments" / f"{name}.yaml" for name in ("thread_sampled", "log_sampled")]
GOOD = """\
name: small
question: Does it run?
problems:
  shapes: [[64, 64, 64]]
candidates:
  - {variant: v08, block: 32x32x32, two_tiles: on}
tolerance: 1e-3
"""


@pytest.fixture
def write(tmp_path: Path):
    """Write an experiment's text to a file."""

    def written(text: str) -> Path:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return path

    return written


# The YAML


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_experiments_are_valid_and_named_like_their_file(path: Path) -> None:
    experiment = load(path)
    assert experiment.name == path.stem
    variants_there = [c.variant for c in experiment.all_candidates()]
    assert variants_there.count("torch_matmul") >= 2
    assert "empty" in variants_there


def test_values_are_read_as_the_schema_has_them(write) -> None:
    experiment = load(write(GOOD))
    assert experiment.tolerance == 1e-3
    assert experiment.candidates[0].two_tiles is True
    assert load(write(GOOD.replace("two_tiles: on", "two_tiles: 'off'"))).candidates[0].two_tiles is False
    assert load(write(GOOD.replace("tolerance: 1e-3", "seed: 1e3"))).seed == 1000
    assert load(write(GOOD.replace("[[64, 64, 64]]", "[[64, 6.4e1, 1e3]]"))).problems.shapes == ((64, 64, 1000),)
    assert load(write(GOOD.replace("two_tiles: on", "programs: [1e1, sms]"))).candidates[0].programs == (10, "sms")


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("tolerance: 1e-3", "toleranse: 1e-3", ":7: toleranse: ", ["unknown key", "nearest: tolerance"]),
        ("two_tiles: on", "two_tile: on", ":6: candidates.0.two_tile: ", ["unknown key", "nearest: two_tiles"]),
        ("tolerance: 1e-3", "question: again?", ":7: question: ", ["twice", "line 2"]),
        ("two_tiles: on", "block: 64x64x64", ":6: block: ", ["twice"]),
        ("1e-3", "small", ":7: tolerance: ", ["number", "'small'"]),
        ("1e-3", "on", ":7: tolerance: ", ["truth value"]),
        ("1e-3", "-1", ":7: tolerance: ", ["greater than 0"]),
        ("1e-3", ".inf", ":7: tolerance: ", ["finite number"]),
        ("1e-3", ".nan", ":7: tolerance: ", ["finite number"]),
        ("tolerance: 1e-3", "time_limit_s: .inf", ":7: time_limit_s: ", ["finite number"]),
        ("two_tiles: on", "two_tiles: 1", ":6: candidates.0.two_tiles: ", ["on or off"]),
        ("two_tiles: on", "programs: [sms, 2sms]", ":6: candidates.0.programs: ", ["2sms", "tiles", "nearest: 2*sms"]),
        ("two_tiles: on", "programs: on", ":6: candidates.0.programs: ", ["truth value"]),
        ("two_tiles: on", "order: diagonal", ":6: candidates.0.order: ", ["'linear' or 'swizzled'"]),
        ("two_tiles: on", "warps: 0", ":6: candidates.0.warps: ", ["greater than 0"]),
        ("variant: v08", "variant: v88", ":6: candidates.0.variant: ", ["no variant 'v88'", "v08_while_loop"]),
        ("variant: v08, ", "", ":6: candidates.0.variant: ", ["required"]),
        ("32x32x32", "32x32", ":6: candidates.0.block: ", ["128x128x32"]),
        ("[64, 64, 64]", "[64, 64]", ":4: problems.shapes.0", ["required"]),
        ("[64, 64, 64]", "[64, 64, 0]", ":4: problems.shapes.0.2: ", ["greater than 0"]),
        ("name: small", "name: ../small", ":1: name: ", ["pattern"]),
        ("name: small", "name: [small", ":2: ", ["expected"]),
        ("tolerance: 1e-3", f"rounds: {MOST_ROUNDS + 1}", ":7: rounds: ", [f"less than or equal to {MOST_ROUNDS}"]),
        ("tolerance: 1e-3", "? [a]\n: 1", ":7: ", ["a key is a word"]),
        ("tolerance: 1e-3", "tolerance: 2099-13-45", ":", ["YAML"]),
        ("variant: v08", "variant: []", ":6: candidates.0.variant: ", ["at least 1"]),
        ("two_tiles: on", "programs: []", ":6: candidates.0.programs: ", ["at least 1"]),
        ("[[64, 64, 64]]", "[]", ":4: problems.shapes: ", ["at least 1"]),
        ("32x32x32", "0x0x0", ":6: candidates.0.block: ", ["BLOCK_M=0", "power of two"]),
        ("32x32x32", "33x32x32", ":6: candidates.0.block: ", ["BLOCK_M=33", "power of two"]),
        ("two_tiles: on", "warps: 3", ":6: candidates.0.warps: ", ["num_warps=3", "power of two"]),
        ("two_tiles: on", "full_tiles_warps: 3", ":6: candidates.0.full_tiles_warps: ", ["power of two"]),
        ("v08, block: 32x32x32, two_tiles: on", "v11, block: 64x64x64, warps: 8", ":6: candidates.0.", ["num_warps=8"]),
        ("two_tiles: on", "stages: 1000", ":6: candidates.0.stages: ", ["num_stages=1000", "at most"]),
        ("two_tiles: on", "programs: 99999999", ":6: candidates.0.programs: ", ["programs=99999999", "262143"]),
        ("two_tiles: on", "split: 2", ":6: candidates.0.split: ", ["v08_while_loop takes no split"]),
        ("v08, block: 32x32x32, two_tiles: on", "v05, two_tiles: off", ":6: candidates.0.two_tiles: ", ["two-tile"]),
        ("v08, block: 32x32x32, two_tiles: on", "v00, order: swizzled", ":6: candidates.0.order: ", ["linear"]),
        (
            "v08, block: 32x32x32, two_tiles: on",
            "data_parallel, programs: 5",
            ":6: candidates.0.programs: ",
            ["nothing"],
        ),
        ("v08, block: 32x32x32, two_tiles: on", "v02, sem: acq_rel", ":6: candidates.0.sem: ", ["changes nothing"]),
        ("v08, block: 32x32x32, two_tiles: on", "v08, kernel: v09", ":6: candidates.0.kernel: ", ["changes nothing"]),
        ("v08, block: 32x32x32, two_tiles: on", "matmul, kernel: v99", ":6: candidates.0.kernel: ", ["v99", "v09"]),
        ("v08, block: 32x32x32, two_tiles: on", "empty, block: 64x64x64", ":6: candidates.0.block: ", ["nothing"]),
        ("v08, block: 32x32x32, two_tiles: on", "v00, full_tiles_warps: 4", ":6: candidates.0.full_tiles_warps: ", []),
        ("tolerance: 1e-3", "  - {variant: [v05, v08], block: 32x32x32}", ":7: candidates.1: ", ["v08", "there twice"]),
        ("tolerance: 1e-3", "seed: 99999999999999999999999", ":7: seed: ", ["less than"]),
        ("tolerance: 1e-3", "seed: -1", ":7: seed: ", ["greater than or equal to 0"]),
        ("tolerance: 1e-3", "seed: 1.5e0", ":7: seed: ", ["integer"]),
    ],
)
def test_a_fault_names_file_line_key_and_what_is_allowed(old: str, new: str, where: str, words: list[str], write):
    path = write(GOOD.replace(old, new))
    with pytest.raises(InvalidExperiment) as error:
        load(path)
    text = str(error.value)
    assert text.startswith(f"{path}{where}"), text
    assert all(word in text for word in words), text


def test_every_fault_is_named_at_once(write) -> None:
    with pytest.raises(InvalidExperiment) as error:
        load(write(GOOD.replace("v08", "v88").replace("1e-3", "small")))
    assert len(str(error.value).splitlines()) == 2


def test_no_mapping_and_no_file_are_refused(write, tmp_path: Path) -> None:
    for text in ("", "- 1\n"):
        with pytest.raises(InvalidExperiment, match="is a mapping with name"):
            load(write(text))
    with pytest.raises(InvalidExperiment, match="no such file"):
        load(tmp_path / "missing.yaml")


# The plan


def candidates(text: str, write) -> list:
    return load(write(GOOD.replace("{variant: v08, block: 32x32x32, two_tiles: on}", text))).all_candidates()


def test_lists_are_multiplied_out(write) -> None:
    found = candidates("{variant: [v05, v06], programs: [sms, 2*sms], block: 128x128x32}", write)
    assert [c.label for c in found] == [
        "v05_cas_lock",
        "v05_cas_lock P=2*sms",
        "v06_two_state_lock",
        "v06_two_state_lock P=2*sms",
    ]


def test_what_is_left_out_is_the_cards(write) -> None:
    for name in variants.all_names():
        (found,) = candidates(f"{{variant: {name}}}", write)
        assert found.config == variants.get(name).card.default


def test_warps_and_stages_hold_for_every_kernel_of_a_variant(write) -> None:
    (found,) = candidates("{variant: v06, block: 128x128x32, warps: 4, stages: 2}", write)
    config = found.config
    assert (config.num_warps, config.full_tiles_warps, config.num_stages, config.full_tiles_stages) == (4, 4, 2, 2)
    (found,) = candidates("{variant: v06, warps: 16, full_tiles_warps: 4}", write)
    assert (found.config.num_warps, found.config.full_tiles_warps) == (16, 4)


def test_candidates_that_differ_in_warps_alone_get_labels_of_their_own(write) -> None:
    found = candidates("{variant: v08, warps: 4}\n  - {variant: v08, warps: 8}", write)
    assert [c.label for c in found] == ["v08_while_loop w4 s4", "v08_while_loop w8 s4"]
    with pytest.raises(InvalidExperiment, match="there twice"):
        candidates("{variant: v08}\n  - {variant: v08}", write)


def test_programs_are_counted_from_the_gpu_and_the_problem(write) -> None:
    found = candidates("{variant: v08, block: 64x32x32, programs: [7, sms, 2*sms, tiles]}", write)
    assert [c.resolved(Problem(256, 96, 64), sms=132).programs for c in found] == [7, 132, 264, 12]


def test_a_fraction_of_the_sms_is_an_even_count(write) -> None:
    found = candidates("{variant: v08, programs: [0.01*sms, 0.35*sms, 1.05*sms]}", write)
    assert [c.resolved(Problem(256, 256, 64), sms=132).programs for c in found] == [2, 46, 138]
    assert [c.resolved(Problem(256, 256, 64), sms=83).programs for c in found] == [2, 30, 88]
    for text in ("0.0*sms", "-0.5*sms", "1e3*sms", "0.5*SMs"):
        with pytest.raises(InvalidExperiment, match=r"0\.4\*sms"):
            candidates(f"{{variant: v08, programs: '{text}'}}", write)


def test_the_populations_are_as_the_issue_has_them() -> None:
    thread, paper = (load(path).problems.all() for path in POPULATIONS)
    for problems, step, low in ((thread, 256, 256), (paper, 128, 128)):
        assert len(set(problems)) == len(problems) == 1000
        sizes = [size for p in problems for size in (p.m, p.n, p.k)]
        assert all(low <= size <= 8192 and size % step == 0 for size in sizes)
    medians = [statistics.median(size for p in problems for size in (p.m, p.n, p.k)) for problems in (thread, paper)]
    assert 3800 < medians[0] < 4700
    assert 900 < medians[1] < 1150
    assert thread == load(POPULATIONS[0]).problems.all()
    assert len(load(POPULATIONS[0]).all_candidates()) == 21


def test_both_populations_have_the_same_candidates() -> None:
    thread, paper = (load(path) for path in POPULATIONS)
    assert thread.all_candidates() == paper.all_candidates()
    small = [c for c in thread.all_candidates() if c.variant.startswith("v") and c.programs == "sms"]
    at_128 = {c.variant for c in small if c.config.block == (128, 128, 32) and c.config.two_tiles}
    assert at_128 == {name for name in variants.names() if variants.get(name).card.contract.divisible}
    v06 = next(c.config for c in small if c.label == "v06_two_state_lock")
    assert v06.num_warps == v06.full_tiles_warps == 4


# Sweeps with faults. A fault takes the place of a real variant's launch in the worker.


@triton.jit
def out_of_bounds(x):
    tl.store(x + (1 << 44), 1.0)


def hang(task: Launch) -> None:
    if task.a.shape[1] == 128:
        time.sleep(1000)
    torch.matmul(task.a, task.b, out=task.c)


def die(task: Launch) -> None:
    if task.a.shape[1] == 128:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.matmul(task.a, task.b, out=task.c)


def wrong(task: Launch) -> None:
    torch.matmul(task.a, task.b, out=task.c)
    task.c[-1, -1] += 1


def half(task: Launch) -> None:
    torch.matmul(task.a[:32], task.b, out=task.c[:32])


def mistaken(task: Launch) -> None:
    raise TypeError("launch() missing a π argument")


def too_large(task: Launch) -> None:
    raise triton.runtime.errors.OutOfResources(262144, 232448, "shared memory")


def refused(task: Launch) -> None:
    raise triton.runtime.errors.PTXASError("ptxas fatal: no")


def poison(task: Launch) -> None:
    if task.a.shape[1] == 128:
        out_of_bounds[(1,)](task.c)
    torch.matmul(task.a, task.b, out=task.c)


FAULTS = {
    "data_parallel": hang,
    "split_k": die,
    "tile_order": wrong,
    "v01_split_kernels": mistaken,
    "v02_scratchpad_barrier": too_large,
    "v03_incremental_pointers": refused,
    "v06_two_state_lock": half,
    "v07_atomic_min_lock": poison,
}


LIMIT_S = 20.0 if torch.cuda.is_available() else 4.0
"""Longer than a compilation where kernels are compiled."""


def find(name: str) -> Variant:
    """A real variant, or its card with a fault for a launch."""
    real = variants.get(name)
    if name not in FAULTS:
        return real
    card = dataclasses.replace(real.card, waits_for="none")  # faults have no kernel to count the resident programs of
    return Variant(name, SimpleNamespace(CARD=card, launch=FAULTS[name], __file__=real.module.__file__))


def experiment(names: list[str], shapes: list[list[int]], **more: Any) -> Experiment:
    groups = [{"variant": "torch_matmul", "repeat": 2}]
    groups += [{"variant": name, "block": "32x32x32", "warps": 4} for name in names]
    data = {"name": "faults", "question": "?", "problems": {"shapes": shapes}, "candidates": groups, "rounds": 3}
    return Experiment.model_validate(data | more)


def sweep(tmp_path: Path, names: list[str], **options: Any) -> tuple[rows.Run, list[str]]:
    notices: list[str] = []
    what = experiment(names, [[64, 64, 64], [64, 64, 128]], time_limit_s=LIMIT_S)
    path = Sweep(what, tmp_path, find=find, notice=notices.append, **options).run()
    return rows.read_run(path), notices


EXPECTED = {
    "torch_matmul": ("ok", "ok"),
    "data_parallel": ("ok", "timeout"),
    "split_k": ("ok", "crashed"),
    "tile_order": ("incorrect", "incorrect"),
    "v06_two_state_lock": ("incorrect", "incorrect"),
    "v01_split_kernels": ("crashed", "crashed"),
    "v02_scratchpad_barrier": ("out_of_resources", "out_of_resources"),
    "v03_incremental_pointers": ("compile_error", "compile_error"),
    "v04_hoisted_segments": ("ok", "ok"),
}
NOTES = {
    "v02_scratchpad_barrier": ("262144", "232448"),
    "data_parallel": (f"no step for {LIMIT_S:g} s",),
    "split_k": ("signal 9",),
    "v01_split_kernels": ("launch() missing",),
}


def status(run: rows.Run, variant: str, k: int) -> Row:
    label = next(c["label"] for c in run.candidates if c["variant"] == variant)
    return run.by_candidate[run.index(label)][(64, 64, k)]


def test_each_fault_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    run, notices = sweep(tmp_path, list(EXPECTED)[1:])
    assert {v: tuple(status(run, v, k).status for k in (64, 128)) for v in EXPECTED} == EXPECTED
    pairs = [(row.problem, row.candidate) for row in run.rows]
    assert len(pairs) == len(set(pairs)) == 2 * len(run.candidates)
    assert len(notices) == 2, notices  # the hang and the death each cost a worker, nothing else does
    for variant, words in NOTES.items():
        note = status(run, variant, 128).note
        assert all(word in note for word in words), note
    wrong_results_have_an_error_and_no_speed(run)
    the_header_says_once_what_holds_for_the_run(run)
    if not torch.cuda.is_available():
        assert run.header["dry_run"] and not any(row.samples for row in run.rows)
        assert rows.newest_run(tmp_path, "faults") is None
        return
    assert all(len(row.samples) == 3 and 1 < row.median < 1000 for row in run.rows if row.status == "ok")
    assert run.header["timing"]["flush_bytes"] >= 2 * run.header["device"]["l2_bytes"]
    assert run.finished["cublas_to_itself"] > 0


def wrong_results_have_an_error_and_no_speed(run: rows.Run) -> None:
    assert all(row.status == "ok" or not row.samples for row in run.rows)
    assert status(run, "tile_order", 64).error > 1e-3
    assert status(run, "v06_two_state_lock", 64).error == math.inf  # NaN where nothing was stored


def the_header_says_once_what_holds_for_the_run(run: rows.Run) -> None:
    header = run.header
    assert {"torch", "triton"} <= header["versions"].keys()
    assert {"device", "commit", "dirty", "date", "seed", "rounds", "timing"} <= header.keys()
    assert header["inputs"] == "standard normal, seed 123"
    for c in header["candidates"]:
        assert c["source_hash"] == variants.get(c["variant"]).source_hash
        assert set(c["config"]) == {f.name for f in dataclasses.fields(variants.get("v08").card.default)}


@pytest.mark.gpu
def test_an_illegal_access_costs_one_candidate(tmp_path: Path) -> None:
    run, notices = sweep(tmp_path, ["v07", "v04", "v08"])
    assert [status(run, "v07_atomic_min_lock", k).status for k in (64, 128)] == ["ok", "crashed"]
    assert {row.status for row in run.rows if row.problem[2] == 64} == {"ok"}
    assert [row.status for row in run.rows].count("crashed") == 1
    assert len(notices) == 1


# Kill and resume

LONG = """\
name: long
question: Is nothing lost?
problems:
  sample: {distribution: uniform, low: 16, high: 80, step: 16, count: 60, seed: 1}
candidates:
  - {variant: torch_matmul, repeat: 2}
  - {variant: [v04, v08], block: 16x16x16, warps: 1}
"""


def start(path: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments", "run", str(path), "--device", "interpreter", "--out", str(out)]
    return subprocess.Popen([*command, *options], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_sweep_goes_on_where_it_was(write, tmp_path: Path) -> None:
    path, out = write(LONG), tmp_path / "out"
    first = start(path, out)
    wait_for(lambda: any(p.read_bytes().count(b"\n") > 40 for p in out.glob("*.jsonl")))
    workers = children(first.pid)
    assert workers
    first.kill()
    first.communicate()
    wait_for(lambda: not any(alive(pid) for pid in workers), 20)  # nothing is left that holds the GPU
    (log,) = out.glob("*.jsonl")
    before = log.read_bytes().splitlines(keepends=True)
    if before[-1].endswith(b"\n"):
        with log.open("ab") as file:
            file.write(b'{"p":[32,64,1')
    else:
        before.pop()
    assert 40 < len(before) < 241

    second = start(path, out, "--resume")
    printed, notices = second.communicate(timeout=120)
    assert second.returncode == 0, notices
    assert "half-written" in notices
    (packed,) = out.glob("*")
    assert packed.suffix == ".xz" and str(packed) in printed
    run = rows.read_run(packed)
    pairs = [(row.problem, row.candidate) for row in run.rows]
    assert len(pairs) == len(set(pairs)) == 240
    assert lzma.decompress(packed.read_bytes()).splitlines(keepends=True)[: len(before)] == before


HANGING = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_experiments as t
what = t.experiment(["data_parallel"], [[64, 64, 128]], time_limit_s=500.0)
t.Sweep(what, Path(sys.argv[2]), find=t.find).run()
"""


def test_a_worker_that_hangs_ends_with_the_runner(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-c", HANGING, str(ROOT / "tests"), str(tmp_path)]
    runner = subprocess.Popen(command, cwd=ROOT, env=environment)
    wait_for(
        lambda: any(
            p.read_bytes().count(b"\n") >= (1 if torch.cuda.is_available() else 3) for p in tmp_path.glob("*.jsonl")
        )
    )
    time.sleep(1)
    workers = children(runner.pid)
    assert any(alive(pid) for pid in workers)
    runner.kill()
    runner.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), 20)


def unfinished(tmp_path: Path, what: Experiment, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A run without a last record, and the header that a new worker's run would have."""
    facts = {"device": {"name": "GPU one", "uuid": "GPU-1"}, "versions": {"torch": "1", "triton": "2"}}
    header = Sweep(what, tmp_path)._header(facts, 1)
    header = json.loads(json.dumps(header))
    path = tmp_path / f"{what.name}-20300101-000000.jsonl"
    path.write_text(json.dumps(header | changes) + "\n" + rows.encode(Row((64, 64, 64), 0, "ok", (1.0,))) + "\n")
    return path, header


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": {"name": "GPU two", "uuid": "GPU-2"}}, "GPU two GPU-2, this is GPU one GPU-1"),
        ({"experiment_hash": "0" * 12}, "the specification was another one"),
        ({"versions": {"torch": "1", "triton": "3"}}, "another triton"),
        ({"limit": 3}, "limit on problems was 3"),
    ],
)
def test_another_device_or_specification_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    _, header = unfinished(tmp_path, what, **changes)
    with pytest.raises(InvalidExperiment, match="cannot be resumed") as error:
        Sweep(what, tmp_path)._previous(header)
    assert message in str(error.value)


def test_a_changed_variant_is_refused(tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    _, header = unfinished(tmp_path, what)
    assert _difference(header, header) is None
    changed = json.loads(json.dumps(header))
    changed["candidates"][2]["source_hash"] = "0" * 12
    assert "v04_hoisted_segments" in _difference(changed, header)


def test_a_finished_run_is_not_measured_again(tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    path, header = unfinished(tmp_path, what)
    assert Sweep(what, tmp_path, notice=lambda text: None)._previous(header).path == path
    with path.open("a") as file:
        file.write('{"finished":{}}\n')
    found = Sweep(what, tmp_path, notice=lambda text: None)._previous(header)
    assert found.path == path.with_suffix(".jsonl.xz") and not path.exists()


def test_a_run_that_is_being_measured_is_left_alone(tmp_path: Path) -> None:
    path, header = unfinished(tmp_path, experiment(["v04"], [[64, 64, 64]]))
    with _append(path, None, print), pytest.raises(InvalidExperiment, match="by another process"):
        Sweep(experiment(["v04"], [[64, 64, 64]]), tmp_path)._previous(header)


# Rows

ROWS = st.builds(
    Row,
    st.tuples(*[st.integers(1, 8192)] * 3),
    st.integers(0, 99),
    st.just("incorrect"),
    st.lists(st.floats(1, 1e6), max_size=MOST_ROUNDS).map(tuple),
    st.none() | st.floats(0, 1e6) | st.just(math.inf),
    st.booleans(),
    st.text(max_size=400),
    *[st.just(()) | st.tuples(*[st.integers(0, 2047)] * 2)] * 3,
)


FULL = Row((8192, 8192, 8192), 99, "ok", (123456.789,) * MOST_ROUNDS, 1.234e-5, True, "π" * 400, *[(1980, 1980)] * 3)


@given(ROWS)
@example(FULL)
@example(dataclasses.replace(FULL, samples=(), note='"\\' * 200))
def test_a_row_stays_small_and_comes_back(row: Row) -> None:
    line = rows.encode(row)
    assert len(line.encode()) + 1 <= 300
    back = rows.decode(json.loads(line))
    assert back.samples == pytest.approx(row.samples, rel=1e-4, abs=0.0051)
    if row.error is None or math.isinf(row.error):
        assert back.error == row.error
    else:
        assert back.error == pytest.approx(row.error, rel=6e-3)
    assert dataclasses.replace(back, samples=(), error=None, note="") == dataclasses.replace(
        row, samples=(), error=None, note=""
    )


HEADER = {
    "run": "x-1",
    "candidates": [{"label": "torch_matmul", "variant": "torch_matmul"}],
    "device": {"name": "GPU one"},
    "versions": {"torch": "1", "triton": "2"},
    "dtype": "float16",
    "rounds": 1,
}
GOOD_ROW = '{"p":[64,64,64],"c":0,"s":"ok","us":[5.0]}'
FINISHED = '{"finished":{"wall_s":1}}'


def write_lines(path: Path, *lines: str, **header: Any) -> Path:
    path.write_text("\n".join([json.dumps(HEADER | header), *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "line",
    [
        '{"p":[1,2],"c":0,"s":"ok"}',
        '{"c":0}',
        "3",
        '{"p":[1,2,3],"c":0,"s":"fine"}',
        '{"p":[64,64,6',
        "garbage",
        '{"p":[64,64,64],"c":0,"s":"ok","us":[-5.0]}',
        '{"p":[64,64,64],"c":0,"s":"ok","us":[5.0,0]}',
        '{"p":[64,64,64],"c":0,"s":"ok","us":[NaN]}',
        '{"p":[64,64,64],"c":0,"s":"ok","us":[1e999]}',
        '{"p":[64,64,64],"c":0,"s":"ok"}',
        '{"p":[64,64,64],"c":1,"s":"ok","us":[5.0]}',
        '{"p":[64,64,64],"c":-1,"s":"ok","us":[5.0]}',
        '{"p":[64,64,1e999],"c":0,"s":"ok","us":[5.0]}',
        '{"p":[64,64,-64],"c":0,"s":"ok","us":[5.0]}',
        '{"p":[64,64,64],"c":0,"s":"ok","us":[5.0],"e":"nan"}',
        '{"p":[64,64,64],"c":0,"s":"ok","us":[5.0],"e":"inf"}',
        '{"finished":3}',
    ],
)
def test_a_line_that_is_no_row_of_the_run_is_named(line: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x-1.jsonl", GOOD_ROW, line, GOOD_ROW, FINISHED)
    with pytest.raises(DamagedRun, match=r"x-1\.jsonl:3: "):
        rows.read_run(path)


def test_a_dry_run_has_no_samples(tmp_path: Path) -> None:
    line = '{"p":[64,64,64],"c":0,"s":"ok","e":0.001}'
    assert len(rows.read_run(write_lines(tmp_path / "x-1.jsonl", line, dry_run=True)).rows) == 1


@pytest.mark.parametrize("lacking", HEADER)
def test_a_header_that_lacks_something_is_named(lacking: str, tmp_path: Path) -> None:
    path = tmp_path / "x-1.jsonl"
    path.write_text(json.dumps({key: value for key, value in HEADER.items() if key != lacking}) + "\n")
    with pytest.raises(DamagedRun, match=r"x-1\.jsonl:1: .*" + ("first line" if lacking == "run" else lacking)):
        rows.read_run(path)


def test_the_newest_run_is_a_whole_one(tmp_path: Path) -> None:
    for number, more in enumerate([{}, {"limit": 5}, {"dry_run": True}]):
        write_lines(tmp_path / f"x-{number}.jsonl", FINISHED, run=f"x-{number}", **more)
    write_lines(tmp_path / "x-7.jsonl", "damaged", GOOD_ROW)  # not finished: no figure waits for it
    write_lines(tmp_path / "x-8.jsonl")
    (tmp_path / "x-9.jsonl").write_text('{"ru')
    assert rows.newest_run(tmp_path, "x").id == "x-0"


def test_many_first_problems_stand_for_an_experiment_that_has_no_whole_run(tmp_path: Path) -> None:
    for number, limit in enumerate([250, 300, 199]):
        write_lines(tmp_path / f"x-{number}.jsonl", FINISHED, run=f"x-{number}", limit=limit)
    write_lines(tmp_path / "x-3.jsonl", FINISHED, run="x-3", limit=400, dry_run=True)
    assert rows.newest_run(tmp_path, "x").id == "x-1"
    write_lines(tmp_path / "x-4.jsonl", FINISHED, run="x-4")
    write_lines(tmp_path / "x-5.jsonl", FINISHED, run="x-5", limit=500)
    assert rows.newest_run(tmp_path, "x").id == "x-4"


DAMAGE = {
    "garbage": lambda packed: b"no xz at all",
    "truncated": lambda packed: packed[: len(packed) // 2],
    "empty": lambda packed: b"",
    "a damaged line": lambda packed: lzma.compress(lzma.decompress(packed).replace(b'"us":[5.0]', b'"us":[-5]', 1)),
    "the end is missing": lambda packed: lzma.compress(lzma.decompress(packed).replace(FINISHED.encode() + b"\n", b"")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_finished_run_is_named_and_no_older_one_takes_its_place(damage: str, tmp_path: Path) -> None:
    for number in (1, 2):
        packed = rows.compress(write_lines(tmp_path / f"headline-{number}.jsonl", GOOD_ROW, FINISHED))
    packed.write_bytes(DAMAGE[damage](packed.read_bytes()))
    place = re.escape(str(packed)) + r":\d: "
    for read in (lambda: rows.read_run(packed), lambda: rows.newest_run(tmp_path, "headline")):
        with pytest.raises(DamagedRun, match=place):
            read()
    with pytest.raises(InvalidExperiment, match=place):
        load_run(packed)


def test_list_says_what_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.__main__.RESULTS", tmp_path)
    (tmp_path / "headline-1.jsonl.xz").write_bytes(b"no xz")
    found = CliRunner().invoke(app, ["list"])
    assert found.exit_code == 0
    assert "headline-1.jsonl.xz:1: not readable as xz" in found.stdout


@pytest.mark.parametrize("damage", ["damaged", '{"p":[64,64,6', GOOD_ROW.replace('"c":0', '"c":77')])
def test_a_damaged_line_is_not_measured_again_unseen(damage: str, tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    path, header = unfinished(tmp_path, what)
    with path.open("a") as file:
        file.write(f"{damage}\n{GOOD_ROW}\n")
    before = path.read_bytes()
    with pytest.raises(InvalidExperiment, match=re.escape(str(path)) + ":3: .*move the file away"):
        Sweep(what, tmp_path, notice=lambda text: None)._previous(header)
    assert path.read_bytes() == before
    other = header | {"experiment_hash": "0" * 12}
    with pytest.raises(InvalidExperiment, match="cannot be resumed: the specification"):
        Sweep(what, tmp_path, notice=lambda text: None)._previous(other)


def test_a_foreign_header_is_refused_by_name(tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    _, header = unfinished(tmp_path, what)
    (tmp_path / "faults-20300101-000001.jsonl").write_text('{"run":"faults-20300101-000001"}\n')
    with pytest.raises(InvalidExperiment, match=r"000001\.jsonl:1: the header lacks candidates"):
        Sweep(what, tmp_path, notice=lambda text: None)._previous(header)


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 3},
        {"device": {"name": "GPU two", "uuid": "GPU-2"}},
        {"device": {"name": "interpreter", "uuid": None}, "dry_run": True},
        {"experiment_hash": "0" * 12},
    ],
)
def test_an_older_run_that_matches_is_gone_on_with(changes: dict, tmp_path: Path) -> None:
    what = experiment(["v04"], [[64, 64, 64]])
    path, header = unfinished(tmp_path, what)
    newer = path.with_name(path.name.replace("000000", "000001"))
    newer.write_text(json.dumps(header | changes) + "\n")
    notices: list[str] = []
    assert Sweep(what, tmp_path, notice=notices.append)._previous(header).path == path
    assert newer.name in notices[0] and "no match" in notices[0]


def test_medians_and_speedups_count_right_results_alone(tmp_path: Path) -> None:
    header = {"run": "x-1", "candidates": [{"label": "torch_matmul"}, {"label": "v08"}]}
    found = [
        Row((1, 1, 1), 0, "ok", (4.0, 2.0, 3.0)),
        Row((1, 1, 1), 1, "ok", (6.0,)),
        Row((2, 2, 2), 0, "ok", (3.0,)),
        Row((2, 2, 2), 1, "incorrect"),
        Row((3, 3, 3), 1, "ok", (1.0,)),
    ]
    run = rows.Run(tmp_path, header, found)
    assert run.medians("v08") == {(1, 1, 1): 6.0, (3, 3, 3): 1.0}
    assert run.speedups("v08") == {(1, 1, 1): 0.5}
    assert run.counts("v08") == {"ok": 2, "incorrect": 1}
    assert rows.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    low, high = rows.bootstrap_interval([1.0, 1.1, 0.9, 1.05, 0.95] * 10)
    assert 0.95 < low < 1.0 < high < 1.05
    assert rows.bootstrap_interval([2.0], "median") == (2.0, 2.0)


def committed() -> list[Path]:
    """Results in git, whatever else lies beside them; those on the disk where the files came without git."""
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=RESULTS, capture_output=True, text=True)
    names = listed.stdout.split("\0") if listed.returncode == 0 else [path.name for path in RESULTS.iterdir()]
    return sorted(RESULTS / name for name in names if name and (RESULTS / name).exists())


RUNS = [path for path in committed() if path.name.endswith((".jsonl", ".jsonl.xz"))]


def test_the_experiments_behind_figures_and_table_have_committed_runs() -> None:
    there = {path.name.split("-")[0] for path in RUNS}
    assert {"headline", "thread_sampled", "log_sampled", "atomic_order"} <= there


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_committed_results_are_small_and_say_where_they_are_from(path: Path) -> None:
    run = rows.read_run(path)
    assert run.finished and run.header["commit"] != "unknown"
    assert {"driver", "cublas", "ptxas", "cublas_workspace", "fp16_reduced_precision_reduction"} <= run.header[
        "versions"
    ].keys()
    assert all(len(rows.encode(row)) < 300 for row in run.rows)
    assert all(row.samples for row in run.rows if row.status == "ok")
    wrong = [row for row in run.rows if row.samples and row.status != "ok"]
    assert not wrong or (run.header["wrong_results_timed"] and {row.status for row in wrong} == {"incorrect"})


def test_committed_results_stay_under_ten_megabytes() -> None:
    assert 0 < sum(path.stat().st_size for path in committed()) < 10e6


# The command line


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_run_says_what_to_do(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    result = CliRunner().invoke(app, ["run", str(write(GOOD))])
    assert isinstance(result.exception, NoDevice) and "--device interpreter" in str(result.exception)


def test_whether_cublas_may_add_in_fp16_is_set_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.worker import Job, Worker

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    before = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    what = load(HERE / "accumulation.yaml")
    try:
        for allowed in (what.reduced_precision, True):
            job = Job(what.all_candidates(), 1, 0, None, reduced_precision=allowed)
            Worker(job, lambda message: None, [0, 0])
            assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is allowed
    finally:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before
    assert not what.reduced_precision and load(HERE / "headline.yaml").reduced_precision


def test_a_newer_field_leaves_the_fingerprint_of_what_does_not_use_it() -> None:
    (path,) = rows.runs(RESULTS, "corpus_128")
    experiment = load(HERE / "corpus_128.yaml")
    assert experiment.fingerprint() == rows.read_header(path)["experiment_hash"]
    assert experiment.model_copy(update={"reduced_precision": False}).fingerprint() != experiment.fingerprint()


def test_list_names_every_experiment() -> None:
    found = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert [entry["file"] for entry in found] == [path.name for path in COMMITTED]
    assert {"headline.yaml", "thread_sampled.yaml", "log_sampled.yaml"} <= {entry["file"] for entry in found}
