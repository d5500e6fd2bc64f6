"""Sweeps on Dask: a real cluster of two workers that die, hang and are resumed; what must not stand in one run."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distributed import Client

import variants
from common import rows
from common.errors import DamagedRun, InvalidExperiment, NoWorker
from common.launcher import Launch, Variant
from common.problem import Problem
from experiments import cluster
from experiments.cluster import Answer, Crew, connected, visible_gpus
from experiments.runner import Bench, Cost, Sweep, Task, Writer, _difference
from experiments.spec import Experiment

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="two workers here would share the GPU")
PROBLEMS, CANDIDATES = 40, 4


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two workers of this host, which interpret."""
    with connected(None, "2", interpret=True) as found:
        yield found


def experiment(name: str = "long", **changes: Any) -> Experiment:
    sample = {"distribution": "uniform", "low": 16, "high": 80, "step": 16, "count": PROBLEMS, "seed": 1}
    data = {
        "name": name,
        "question": "Is nothing lost?",
        "problems": {"sample": sample},
        "candidates": [
            {"variant": "torch_matmul", "repeat": 2},
            {"variant": ["v04", "v08"], "block": "16x16x16", "warps": 1},
        ],
    }
    return Experiment.model_validate(data | changes)


def run_of(folder: Path) -> rows.Run:
    (path,) = folder.glob("*")
    return rows.read_run(path)


def everything_once(run: rows.Run) -> None:
    counted = Counter((row.problem, row.candidate) for row in run.rows)
    assert len(counted) == PROBLEMS * CANDIDATES and set(counted.values()) == {1}
    assert {row.status for row in run.rows} == {"ok"}
    assert {row.device for row in run.rows} == {"cpu"}
    assert run.finished is not None


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))


# Killed in the middle


def test_a_worker_killed_in_the_middle_costs_nothing(client: Client, tmp_path: Path) -> None:
    pids = client.run(os.getpid)

    def on_progress(done: int, total: int, problem: Problem) -> None:
        if done == 10:
            os.kill(min(pids.values()), signal.SIGKILL)

    def hire(job, limit_s, notice):
        return Crew(client, job, limit_s, notice)

    Sweep(experiment(), tmp_path, on_progress=on_progress, notice=lambda text: None, hire=hire).run()
    everything_once(run_of(tmp_path))
    assert min(pids.values()) not in client.run(os.getpid).values()


def sweep_elsewhere(address: str | None, folder: Path) -> None:
    """A sweep in a process of its own, on a cluster or with one worker."""
    hire = Bench
    if address is not None:
        remote = Client(address)

        def hire(job, limit_s, notice):
            return Crew(remote, job, limit_s, notice)

    Sweep(experiment(), folder, resume=True, notice=lambda text: None, hire=hire).run()


def test_a_sweep_killed_ten_times_in_a_row_measures_everything_once(client: Client, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.cluster", "test_cluster"])
    generator, address, kills = random.Random(7), client.scheduler.address, 0
    for attempt in range(60):
        where = None if attempt in (3, 6) else address  # resumed with one worker, and on the cluster again
        sweeping = context.Process(target=sweep_elsewhere, args=(where, tmp_path))
        sweeping.start()
        enough = lines(tmp_path) + generator.randint(1, 14)
        while sweeping.is_alive() and (kills >= 10 or lines(tmp_path) < enough):
            time.sleep(0.005)
        if sweeping.is_alive():
            sweeping.kill()
            kills += 1
        sweeping.join()
        if sweeping.exitcode == 0:
            break
        assert sweeping.exitcode == -signal.SIGKILL
    assert kills == 10
    everything_once(run_of(tmp_path))


def fatal(task: Launch) -> None:
    """Ends the Dask worker, whose child this process is, on one problem alone."""
    if task.a.shape[1] == 128:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    torch.matmul(task.a, task.b, out=task.c)


def find(name: str) -> Variant:
    real = variants.get(name)
    if name != "data_parallel":
        return real
    return Variant(name, SimpleNamespace(CARD=real.card, launch=fatal, __file__=real.module.__file__))


def test_a_problem_that_ends_two_workers_becomes_rows(client: Client, tmp_path: Path) -> None:
    client.wait_for_workers(2, timeout=240)
    what = experiment(
        "fatal",
        problems={"shapes": [[32, 32, 64], [32, 32, 128], [32, 32, 32]]},
        candidates=[{"variant": "torch_matmul"}, {"variant": "data_parallel", "block": "32x32x32", "warps": 4}],
    )
    notices: list[str] = []

    def hire(job, limit_s, notice):
        return Crew(client, job, limit_s, notice)

    Sweep(what, tmp_path, notice=notices.append, find=find, hire=hire).run()
    run = run_of(tmp_path)
    statuses = {
        problem: {r.status for r in run.rows if r.problem == problem} for problem in {r.problem for r in run.rows}
    }
    assert statuses == {(32, 32, 64): {"ok"}, (32, 32, 128): {"crashed"}, (32, 32, 32): {"ok"}}
    assert len(run.rows) == 6
    assert all("lost 2 times" in row.note for row in run.rows if row.status == "crashed")
    assert any("given up" in text for text in notices)


# What does not depend on real workers


class Still:
    """A client whose workers and answers are given."""

    def __init__(self, workers: dict[str, dict[str, Any]]) -> None:
        self.workers, self.sent = workers, []

    def wait_for_workers(self, count: int, timeout: float) -> None: ...

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {address: {"last_seen": 0.0} for address in self.workers}}

    def submit(self, function, job, limit_s, interpret, task, workers, **options):
        self.sent.append((workers[0], task))
        (address,) = workers
        if task is None or self.workers[address].get("answers", True):
            text = [] if task is None else [row(task, index, address) for index in task.wanted]
            answer = Answer(
                self.workers[address]["facts"], {"torch_matmul": find("torch_matmul").source_hash}, text, Cost(), []
            )
            future = SimpleNamespace(status="finished", result=lambda timeout=None: answer, release=lambda: None)
        else:
            future = SimpleNamespace(status="pending", release=lambda: None)
        return Hashed(future)


class Hashed:
    def __init__(self, inner: SimpleNamespace) -> None:
        self.status, self.release = inner.status, inner.release
        self.result = getattr(inner, "result", None)


def row(task: Task, index: int, address: str) -> str:
    shape = (task.problem.m, task.problem.n, task.problem.k)
    return rows.encode(rows.Row(shape, index, "ok", device=address))


def facts(uuid: str | None, name: str = "NVIDIA H200", **versions: str) -> dict[str, Any]:
    return {"device": {"name": name, "uuid": uuid}, "versions": {"torch": "2", "triton": "3.9.0"} | versions}


def crew(workers: dict[str, dict[str, Any]], **options: Any) -> tuple[Crew, Still, list[str]]:
    notices: list[str] = []
    still = Still({address: {"facts": found} if "device" in found else found for address, found in workers.items()})
    job = Sweep(experiment(candidates=[{"variant": "torch_matmul"}]), Path())._job()
    return Crew(still, job, 1.0, notices.append, **options), still, notices


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins answer at once."""
    real = cluster.distributed.wait
    monkeypatch.setattr(
        cluster.distributed,
        "wait",
        lambda futures, **options: time.sleep(0.01) if isinstance(futures[0], Hashed) else real(futures, **options),
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (facts("GPU-aaaaaaaa-1"), "share the GPU GPU-aaaaaaaa-1"),
        (facts("GPU-bbbbbbbb-1", name="NVIDIA A100"), "has NVIDIA A100, the others NVIDIA H200"),
    ],
)
def test_workers_that_must_not_measure_together_are_refused(other: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidExperiment, match=words):
        crew({"tcp://a": facts("GPU-aaaaaaaa-1"), "tcp://b": other})


def test_another_source_or_version_is_refused() -> None:
    made, _, _ = crew({"tcp://a": facts("GPU-aaaaaaaa-1")})
    with pytest.raises(InvalidExperiment, match="other versions"):
        made._meet("tcp://b", Answer(facts("GPU-bbbbbbbb-1", triton="3.6.0"), {}, [], Cost(), []))
    with pytest.raises(InvalidExperiment, match="another source of torch_matmul"):
        made._meet("tcp://b", Answer(facts("GPU-bbbbbbbb-1"), {"torch_matmul": "0"}, [], Cost(), []))


def test_a_begun_problem_goes_on_where_it_began() -> None:
    made, still, _ = crew({"tcp://a": facts("GPU-aaaaaaaa-1"), "tcp://b": facts("GPU-bbbbbbbb-1")})
    tasks = [Task(Problem(16, 16, 16 * n), (0,), "bbbbbbbb" if n < 4 else None) for n in range(1, 7)]
    still.sent.clear()
    assert len(list(made.measure_all(tasks, lambda text: None))) == 6
    homes = {task.problem.k: address for address, task in still.sent}
    assert {homes[16 * n] for n in (1, 2, 3)} == {"tcp://b"}
    assert "tcp://a" in homes.values()


def test_a_silent_worker_is_given_up_and_its_task_goes_elsewhere() -> None:
    workers = {"tcp://a": {"facts": facts("GPU-aaaaaaaa-1"), "answers": False}, "tcp://b": facts("GPU-bbbbbbbb-1")}
    made, _, notices = crew(workers, silent_s=0.1)
    written: list[str] = []
    done = list(made.measure_all([Task(Problem(16, 16, 16), (0,)), Task(Problem(16, 16, 32), (0,))], written.extend))
    assert len(done) == len(written) == 2
    assert any("silent" in text and "elsewhere" in text for text in notices)
    assert {json.loads(line)["s"] for line in written} == {"ok"}


def test_a_task_that_is_always_lost_becomes_timeouts() -> None:
    workers = {a: {"facts": facts(f"GPU-{a[-1] * 8}-1"), "answers": False} for a in ("tcp://a", "tcp://b")}
    made, _, _ = crew(workers, silent_s=0.1)
    written: list[str] = []
    list(made.measure_all([Task(Problem(16, 16, 16), (0,))], written.extend))
    (line,) = map(json.loads, written)
    assert line["s"] == "timeout" and "lost 2 times" in line["note"]


def test_rows_carry_the_number_of_their_device_and_come_back_with_its_id(tmp_path: Path) -> None:
    devices = [{"name": "NVIDIA H200", "uuid": f"GPU-{letter * 8}-1"} for letter in "ab"]
    candidates = [{"label": name, "variant": name} for name in ("torch_matmul", "v08")]
    header = {"run": "x-1", "device": devices[0], "candidates": candidates}
    header |= {"versions": {}, "dtype": "float16", "rounds": 1}
    path = tmp_path / "x-1.jsonl"
    path.write_text(json.dumps(header) + "\n")
    with path.open("a") as file:
        writer = Writer(file, ["aaaaaaaa"], SimpleNamespace(devices={rows.device_id(d): d for d in devices}))
        for k, names in ((16, "aa"), (32, "bb"), (48, "ab")):
            for index, letter in enumerate(names):
                found = rows.Row((16, 16, k), index, "ok", (1.0 + index,), device=letter * 8)
                writer.write([rows.encode(found)])
    run = rows.read_run(path)
    assert [row.device for row in run.rows] == [x * 8 for x in "aabbab"]
    assert list(run.devices) == ["aaaaaaaa", "bbbbbbbb"] and run.device_name == "2 x NVIDIA H200"
    assert run.speedups("v08") == {(16, 16, 16): 0.5, (16, 16, 32): 0.5}, "a ratio of two devices"
    path.write_text(path.read_text() + '{"p":[1,1,1],"c":0,"s":"ok","us":[1.0],"g":7}\n')
    with pytest.raises(DamagedRun, match=r":9: device 7: 2 are known"):
        rows.read_run(path)


def test_a_full_row_with_its_device_stays_small() -> None:
    full = rows.Row((8192,) * 3, 99, "ok", (123456.789,) * 25, 1.234e-5, True, "", *[(1980, 1980)] * 3, device="a" * 8)
    record = json.loads(rows.encode(full)) | {"g": 99}
    assert len(json.dumps(record, separators=(",", ":"))) + 1 <= rows.MOST_BYTES


def test_one_gpus_run_goes_on_on_its_devices_alone_and_on_a_cluster_on_any_of_its_kind(tmp_path: Path) -> None:
    old, new = ({**facts(f"GPU-{letter * 8}-1")} for letter in "ab")
    rest = {"experiment_hash": "1", "limit": None, "wrong_results_timed": False, "candidates": []}
    assert "GPU-bbbbbbbb-1" in _difference(old | rest, new | rest, ["aaaaaaaa"])
    assert _difference(old | rest, new | rest, ["aaaaaaaa", "bbbbbbbb"]) is None
    assert _difference(old | rest, new | rest) is None
    assert "NVIDIA A100" in _difference(old | rest, facts("GPU-bbbbbbbb-1", name="NVIDIA A100") | rest)


def test_what_cannot_be_connected_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidExperiment, match="write all, or how many"):
        visible_gpus("two", interpret=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert visible_gpus("all", interpret=False) == ["3", "5"]
    assert visible_gpus("1", interpret=False) == ["3"]
    with pytest.raises(InvalidExperiment, match="2 GPUs are here"):
        visible_gpus("3", interpret=False)
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)
    with pytest.raises(NoWorker, match="no Dask scheduler answers"), connected("tcp://127.0.0.1:9", None, True):
        pass


def test_a_worker_that_may_have_no_children_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    with pytest.raises(NoWorker, match="DASK_DISTRIBUTED__WORKER__DAEMON=False"):
        cluster._require_children()


def test_the_same_job_has_the_same_key_in_every_client() -> None:
    one, other = (Sweep(experiment(), Path())._job() for _ in range(2))
    assert cluster.job_key(one) == cluster.job_key(other)
    assert cluster.job_key(one) != cluster.job_key(dataclasses.replace(one, seed=4))
    assert cluster.job_key(one) != cluster.job_key(dataclasses.replace(one, find=find))
