"""The stress program: it counts what is wrong, says what a process did that hung or died, and refuses what is none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import variants
from common import documents
from common.architectures import architecture
from common.compiled import cached, jobs_of, texts
from common.errors import UnknownVariant, UnsupportedProblem
from common.launcher import Launch, Variant
from common.residency import Limits, programs_per_sm
from experiments import stress, stress_child
from experiments.stress_child import Child, Task, hand_over_bytes

ROOT = Path(__file__).parent.parent
COMPILED = {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
TASK = Task("v04", launches=8, replays=4, problems=2, seed=3, modes=("random",))


def rows_of(task: Task) -> list[dict[str, Any]]:
    sent: list[tuple[str, Any]] = []
    Child(task, sent.append).do_random()
    assert any(kind == "doing" and content["mode"] == "random" for kind, content in sent)
    return [content for kind, content in sent if kind == "row"]


def wrong_once(name: str) -> Variant:
    """v04 with one element of C one too large after every launch."""
    v = variants.get(name)

    def launch(task: Launch) -> None:
        v.launch(task)
        task.c[0, 0] += 1

    return replace(v, module=type("Module", (), {"CARD": v.card, "launch": staticmethod(launch)}))


def test_right_launches_are_counted_and_a_wrong_element_is_seen() -> None:
    right, wrong = rows_of(TASK), rows_of(replace(TASK, find=wrong_once))
    assert len(right) == 2 and all(row["launches"] >= 4 and row["wrong_elements"] == 0 for row in right)
    assert [row["problem"] for row in right] == [row["problem"] for row in wrong]
    assert all(row["wrong_elements"] == row["launches"] for row in wrong)


def test_nan_counts_as_wrong(device: str) -> None:
    found = torch.tensor([1.0, torch.nan, 3.0, 4.0], dtype=torch.float16, device=device)
    wanted = torch.tensor([1.0, torch.nan, 2.0, 4.0], dtype=torch.float16, device=device)
    differences = torch.zeros(1, dtype=torch.int32, device=device)
    stress_child.count_differences[(1,)](found, wanted, differences, 4, BLOCK=1024)
    assert int(differences) == 2


def silent(connection: Any, task: Task) -> None:
    connection.send(("doing", {"mode": "random", "problem": [1, 2, 3]}))
    time.sleep(600)


def dying(connection: Any, task: Task) -> None:
    connection.send(("doing", {"mode": "replay"}))
    os.kill(os.getpid(), signal.SIGKILL)


def by_variant(connection: Any, task: Task) -> None:
    {"v05": silent, "v06": dying}[task.variant](connection, task)


def test_a_child_that_hangs_or_dies_costs_itself_alone_and_says_what_it_did() -> None:
    tasks = [replace(TASK, variant="v05"), replace(TASK, variant="v06")]
    said: list[str] = []
    work = stress.Stress(tasks, jobs=2, limit=20.0, notice=said.append, target=by_variant)
    began = time.monotonic()
    rows = {row["variant"]: row for row in work.rows()}
    assert rows["v05"]["status"] == "killed" and rows["v05"]["doing"]["problem"] == [1, 2, 3]
    assert rows["v06"]["status"] == "crashed" and "-9" in rows["v06"]["why"] and rows["v06"]["mode"] == "replay"
    assert time.monotonic() - began < 60
    assert len(said) == 2


def test_the_plan_divides_launches_and_refuses_what_is_none() -> None:
    work = stress.plan(1_000_000, 10, 4, None, None, 0, dry_run=False)
    assert sum(task.launches for task in work.tasks) >= 1_000_000
    assert {task.variant for task in work.tasks} == set(variants.all_names()) - {"torch_matmul"}
    assert [task.variant for task in stress.plan(10, 1, 1, "v05,v08", "guard", 0, False).tasks] == [
        "v05_cas_lock",
        "v08_while_loop",
    ]
    with pytest.raises(UnsupportedProblem, match="nearest: beside"):
        stress.plan(10, 1, 1, None, "besides", 0, False)
    with pytest.raises(UnknownVariant):
        stress.plan(10, 1, 1, "v99", None, 0, False)
    for name, dry_run, why in (("v10", True, "can be interpreted"), ("torch_matmul", False, "no kernels of its own")):
        with pytest.raises(UnsupportedProblem, match=why):
            stress.plan(10, 1, 1, name, None, 0, dry_run)
    with pytest.raises(UnsupportedProblem, match="'guard' needs a GPU"):
        stress.plan(10, 1, 1, "v05", "random,guard", 0, dry_run=True)


def test_problems_are_legal_and_reproduced_by_the_seed() -> None:
    first, again = (Child(TASK, lambda _: None).legal() for _ in range(2))
    for _ in range(5):
        problem, config = next(first)
        assert (problem, config) == next(again)
        assert all(
            size % block == 0 for size, block in zip((problem.m, problem.n, problem.k), config.block, strict=True)
        )


def test_a_sanitizer_watches_a_small_problem_with_a_fix_up_and_it_is_right() -> None:
    for name in ("v04", "v09", "split_k"):
        child = Child(replace(TASK, variant=name), lambda _: None)
        lane = child.small_lane()
        assert lane.prepared.schedule.max_peers > 1
        lane.once(1)
        assert int(lane.differences) == 0
    assert Child(replace(TASK, variant="data_parallel"), lambda _: None).small_lane().prepared.schedule.max_peers == 1


FAKE = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
case "$*" in
  *memcheck*v06*) echo "========= ERROR SUMMARY: 1 error"; exit 23 ;;
  *racecheck*) echo "no device"; exit 1 ;;
  *) echo '{"watched": {"problem": [32, 32, 64], "peers": 2, "wrong_elements": 0}}'
     echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"""


RACES = """\
========= Error: Potential RAW hazard detected at __shared__ 0x22500 in block (13,0,0) :
=========     Write Thread (31,0,0) at persistent_tiles+0x2980 in v10.py:220
=========     Read Thread (128,0,0) at persistent_tiles+0x2a50 in v10.py:220
=========     Current Value : 3
=========         Host Frame: launchKernel
========= Error: Potential RAW hazard detected at __shared__ 0x1022501 in block (14,0,0) :
=========     Write Thread (63,0,0) at persistent_tiles+0x2980 in v10.py:220
=========     Read Thread (160,0,0) at persistent_tiles+0x2a50 in v10.py:220
========= Error: Potential WAW hazard detected at __shared__ 0x10 in block (0,0,0) :
=========     Write Thread (0,0,0) at persistent_tiles+0x90 in v10.py:9
=========     Write Thread (1,0,0) at persistent_tiles+0x90 in v10.py:9
========= Error: Race reported between Read access at persistent_tiles+0x2a50 in v10.py:220
=========     and Write access at persistent_tiles+0x2980 in v10.py:220 [2 hazards]
========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)
"""


def test_races_are_told_by_the_instructions_between_which_they_are() -> None:
    here = "persistent_tiles+"
    assert stress._hazards(RACES, range(0x22500, 0x22504)) == [
        {
            "kind": "RAW",
            "between": [f"write at {here}0x2980 in v10.py:220", f"read at {here}0x2a50 in v10.py:220"],
            "addresses": ["0x1022501", "0x22500"],
            "count": 2,
            "elsewhere": 0,
        },
        {
            "kind": "WAW",
            "between": [f"write at {here}0x90 in v10.py:9"] * 2,
            "addresses": ["0x10"],
            "count": 1,
            "elsewhere": 1,
        },
    ]


def test_a_report_of_racecheck_that_is_not_read_is_noticed() -> None:
    found = stress._hazards(RACES, [])
    assert stress._is_all(RACES, found)
    # A hazard of which one access is told only: what follows it is taken for its other one.
    second = "=========     Read Thread (160,0,0) at persistent_tiles+0x2a50 in v10.py:220\n"
    assert second in RACES
    fewer = RACES.replace(second, "")
    assert not stress._is_all(fewer, stress._hazards(fewer, []))
    assert not stress._is_all("========= Program hit an error\n", [])


def test_a_sanitizers_error_is_laid_to_one_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rows = stress.sanitized(["v05", "v06"], lambda _: None)
    found = {(row["tool"], row["variant"]): row["status"] for row in rows}
    assert found[("memcheck", "v05")] == "clean" and found[("memcheck", "v06")] == "errors"
    assert found[("synccheck", "v06")] == "clean" and found[("racecheck", "v05")] == "failed"
    told = {(row["tool"], row["variant"]): row.get("peers") for row in rows}
    assert told[("memcheck", "v05")] == 2 and told[("racecheck", "v05")] is None


@pytest.mark.parametrize("name", ["v09", "v10", "v15", "v20"])
def test_where_triton_hands_work_to_other_warps_is_read_from_the_code(name: str) -> None:
    (job,) = jobs_of(name, variants.source_path(name), [architecture("sm_90")], {"split": 2})
    ptx = texts(job)["ptx"]
    found = hand_over_bytes(ptx)
    if name == "v09":
        assert found == []
        return
    word = found[0] - 1024
    assert found == [1024 + word + byte for byte in range(4)]
    # What is told is a constant for each of four warps, and these bytes are at the end of what the kernel has.
    assert len(re.findall(rf"st\.shared\.b32 \s*\[global_smem\+{word}\], \d+;", ptx)) >= 2
    assert word + 4 <= cached(job).dynamic_shared_bytes <= word + 64


def test_a_sanitizer_that_does_not_end_is_stopped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    rows = stress.sanitized(["v05", "v06"], lambda _: None, seconds=1.0)
    assert time.monotonic() - began < 20
    assert len(rows) == 6 and {row["status"] for row in rows} == {"timeout"}


def test_without_the_sanitizer_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress.shutil, "which", lambda _: None)
    assert {row["status"] for row in stress.sanitized(["v05"], lambda _: None)} == {"unavailable"}


HOLD = """
import json, torch
from common.architectures import architecture
from common.compilation import compile_call
from common.launcher import KernelCall
from experiments.stress_child import HOLD_BLOCK, HOLD_WARPS, MOST_POLLS, hold_sms

half, number = (torch.empty(16, dtype=dtype, device="meta") for dtype in (torch.float16, torch.int32))
options = {"BLOCK": HOLD_BLOCK, "num_warps": HOLD_WARPS, "num_stages": 1}
compiled = compile_call(KernelCall(hold_sms, 1, (half, number, number, MOST_POLLS), options), architecture("sm_90"))
print(json.dumps([compiled.registers, compiled.shared_bytes]))
"""


def test_the_kernel_that_holds_sms_leaves_no_room_beside_it() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", HOLD], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    registers, shared = json.loads(done.stdout.splitlines()[-1])
    left = Limits(sms=1, registers=65536 - registers * 32 * stress_child.HOLD_WARPS)
    assert programs_per_sm(Limits(sms=1), registers, shared, stress_child.HOLD_WARPS) == 1
    assert programs_per_sm(left, registers=32, shared_memory=0, num_warps=4) == 0


def test_a_dry_run_is_marked_and_no_result(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments", "stress", "--device", "interpreter", "--launches", "4"]
    command += ["--problems", "1", "--only", "v04", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert documents.newest(tmp_path, "stress") is None
    (path,) = tmp_path.glob("stress-*.json")
    document = documents.read(path)
    assert document.header["dry_run"] and document.header["asked"]["launches"] == 4
    assert [row["status"] for row in document.records] == ["ok"]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", stress_child.MODES)
@pytest.mark.parametrize("name", ["v06", "v09"])
def test_every_mode_runs_on_the_gpu(name: str, mode: str) -> None:
    sent: list[tuple[str, Any]] = []
    task = Task(name, launches=200, replays=50, problems=1, seed=5, modes=(mode,))
    do: Callable[[], None] = getattr(Child(task, sent.append), f"do_{mode}")
    do()
    rows = [content for kind, content in sent if kind == "row"]
    assert rows or (mode, name) == ("guard", "v09")
    for row in rows:
        assert row["wrong_elements"] == 0 and row["launches"] > 0
        assert row.get("held_throughout", True) and row.get("next_is_refused", True)
