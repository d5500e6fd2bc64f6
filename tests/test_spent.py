"""Where a sweep's seconds go: parts that add up, telemetry that costs little, rows of a problem in one message."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import experiments.worker
import variants
from common import device, rows
from common.card import Config
from common.launcher import Launch, Variant
from common.problem import Problem
from common.reference import Reference
from common.timing import Timed
from experiments import runner
from experiments.__main__ import _summary
from experiments.plan import Candidate
from experiments.runner import Bench, Task, WorkerLost
from experiments.spent import PARTS, Spent, told
from experiments.worker import Job, Worker

ROOT = Path(__file__).parent.parent
SMALL = """\
name: small
question: Where does the time go?
problems: {shapes: [[64, 64, 64], [64, 64, 32]]}
candidates: [{variant: torch_matmul}, {variant: v04, block: 32x32x32}]
"""


def test_every_second_is_of_one_part() -> None:
    now = 10.0
    spent = Spent(lambda: now)
    for part, seconds in (("inputs", 1.0), ("samples", 2.0), ("inputs", 4.0)):
        spent.enter(part)
        now += seconds
    found = spent.take()
    assert found == dict.fromkeys(PARTS, 0.0) | {"inputs": 5.0, "samples": 2.0}
    now += 8.0
    assert spent.take() == dict.fromkeys(PARTS, 0.0) | {"inputs": 8.0}
    with pytest.raises(KeyError):
        spent.enter("mistaken")
        spent.take()


def test_the_longest_part_is_told_first() -> None:
    assert told({"inputs": 1.0, "samples": 3.0, "check": 0.01}) == "samples 3.0 (75%), inputs 1.0 (25%)"
    assert told(dict.fromkeys(PARTS, 0.0)) == "less than 0.05 each"


def test_a_run_says_where_its_seconds_went(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    command = [sys.executable, "-m", "experiments", "run", str(path), "--device", "interpreter", "--out", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    run = rows.read_run(Path(printed.splitlines()[0]))
    found = _summary(run)
    seconds = found["seconds"]
    assert f"seconds by part: {told(seconds)}" in printed
    assert list(seconds) == list(PARTS)
    assert seconds["prepare"] > 0 and seconds["samples"] == 0  # an interpreted kernel takes long, nothing is timed
    assert 0 < sum(seconds.values()) <= found["wall_s"] + 0.1


class SlowDriver:
    """Stands for NVML: every answer takes a while and is another one. Also the clock."""

    NVML_CLOCK_SM, NVMLError = 1, RuntimeError

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.asked = 100.0, seconds, 0

    def monotonic(self) -> float:
        return self.now

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def _answer(self, *args: object) -> int:
        self.now += self.seconds
        self.asked += 1
        return 1000 * self.asked

    nvmlDeviceGetClockInfo = nvmlDeviceGetPowerUsage = nvmlDeviceGetCurrentClocksEventReasons = _answer


@pytest.mark.parametrize(("seconds", "readings"), [(0.0, 178), (0.00001, 178), (0.01, 7)])
def test_telemetry_takes_a_small_share_of_the_time(seconds: float, readings: int, monkeypatch) -> None:
    """Each reading are three questions; a fast driver is asked every 50 ms, a slow one for 2 % of the time."""
    driver = SlowDriver(seconds)
    monkeypatch.setattr(device, "pynvml", driver)
    monkeypatch.setattr(device, "time", driver)
    telemetry = device.Telemetry("GPU-1", 0.02)
    while driver.now < 110:
        telemetry.read()
        driver.now += 0.007
    assert driver.asked % 3 == 0 and abs(driver.asked // 3 - readings) <= 2
    assert driver.asked * seconds <= 0.025 * 10
    interval = max(device.SAME_READING_S, 3 * seconds / 0.02)
    assert interval - 0.02 < telemetry.oldest_s <= interval
    assert telemetry.read()[0] == 1000 * (driver.asked - 2)


class Stub:
    """A stopwatch that replays on the CPU and measures nothing: samples of 5 us."""

    retaken, most_writes, stream = 0, 1, None

    def capture(self, call) -> Timed:
        return Timed(call)

    def interleave(self, timed, rounds, seed, before) -> None:
        for position, one in enumerate(timed):
            before(position)
            one.graph()
            one.samples += [5.0] * rounds


def in_process(monkeypatch: pytest.MonkeyPatch, launches: dict) -> tuple[Worker, list]:
    """A worker in this process whose candidates are launches on the CPU, and what it sends."""
    real = variants.get("torch_matmul")
    find = {name: Variant(name, SimpleNamespace(CARD=real.card, launch=launch)) for name, launch in launches.items()}
    monkeypatch.setattr(Candidate, "resolved", lambda self, problem, sms: real.card.default)
    sent: list = []
    candidates = [Candidate(name, "sms", real.card.default) for name in launches]
    worker = Worker(Job(candidates, 3, 0, None, find.__getitem__), sent.append, [0, 0])
    worker.stopwatch = Stub()
    return worker, sent


def right(task: Launch) -> None:
    torch.matmul(task.a, task.b, out=task.c)


def once_right() -> object:
    calls = []

    def launch(task: Launch) -> None:
        right(task)
        calls.append(1)
        if len(calls) > 1:
            task.c[0, 0] = float("nan")

    return launch


def nothing(task: Launch) -> None: ...


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU")
def test_what_was_timed_comes_in_one_message_and_only_what_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = {"first": right, "nothing": nothing, "once": once_right(), "last": right}
    worker, sent = in_process(monkeypatch, launches)
    worker.measure(Problem(32, 32, 32), [0, 1, 2, 3])
    assert [kind for kind, _ in sent] == ["rows", "rows"]
    found = {row.candidate: row for _, lines in sent for row in map(rows.decode, map(json.loads, lines))}
    assert {c: row.status for c, row in found.items()} == {0: "ok", 1: "incorrect", 2: "incorrect", 3: "ok"}
    assert [len(sent[0][1]), len(sent[1][1])] == [1, 3]
    assert found[0].samples == found[3].samples == (5.0, 5.0, 5.0) and not found[1].samples and not found[2].samples
    assert found[1].error == found[2].error == float("inf") and "not replayed" in found[2].note
    seconds = worker.spent.take()
    measured = {part for part, value in seconds.items() if value > 0}
    assert measured == set(PARTS), "each part is entered in the course of a problem"


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU")
def test_the_host_waits_for_the_first_run_only_when_its_graph_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, sent = in_process(monkeypatch, {"right": right})
    did, real_error, real_capture = [], Reference.error, worker.stopwatch.capture

    class Pending:
        def __init__(self, value: torch.Tensor) -> None:
            did.append("compared")
            self.value = value

        def __float__(self) -> float:
            did.append("waited")
            return float(self.value)

        def double(self) -> torch.Tensor:
            return self.value.double()

    monkeypatch.setattr(Reference, "error", lambda self, c: Pending(real_error(self, c)))
    worker.stopwatch.capture = lambda call: did.append("captured") or real_capture(call)
    worker.measure(Problem(32, 32, 32), [0])
    assert did == ["compared", "captured", "waited", "compared"]
    assert [json.loads(line)["s"] for _, lines in sent for line in lines] == ["ok"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU")
def test_time_is_counted_where_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _ = in_process(monkeypatch, {"right": right})
    now = [0.0]
    worker.spent = Spent(lambda: now[0])

    def passing(seconds: float, real):
        def call(*args, **kwargs):
            now[0] += seconds
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(experiments.worker, "make_inputs", passing(1, experiments.worker.make_inputs))
    monkeypatch.setattr(experiments.worker, "reference", passing(2, experiments.worker.reference))
    monkeypatch.setattr(experiments.worker, "prepare", passing(4, experiments.worker.prepare))
    monkeypatch.setattr(experiments.worker, "roundings", passing(8, experiments.worker.roundings))
    monkeypatch.setattr(worker.stopwatch, "capture", passing(16, worker.stopwatch.capture))
    monkeypatch.setattr(worker.stopwatch, "interleave", passing(32, worker.stopwatch.interleave))
    monkeypatch.setattr(worker.telemetry, "read", passing(64, worker.telemetry.read))
    worker.send = passing(128, worker.send)
    worker.measure(Problem(32, 32, 32), [0])
    expected = {"inputs": 1, "reference": 2, "prepare": 4, "check": 2 * 8, "capture": 16, "samples": 32}
    assert worker.spent.take() == {"waiting": 0, **expected, "telemetry": 2 * 64, "messages": 128}


class Hired:
    """Stands for a worker process: answers what it was asked first, one row a candidate; the first one dies."""

    def __init__(self, number: int, heard: list[tuple[int, int, tuple[int, ...]]]) -> None:
        self.facts = {"device": {"name": "none", "uuid": None}}
        self.number, self._asked = number, []
        self._pipe = SimpleNamespace(send=lambda message: heard.append((number, message[0].k, tuple(message[1]))))

    ask = runner.Process.ask

    def answer(self, on_rows) -> dict:
        problem, wanted = self._asked[0]
        shape = (problem.m, problem.n, problem.k)
        if self.number == 1 and problem.k == 2:
            on_rows([rows.encode(rows.Row(shape, wanted[0], "unsupported"))])
            raise WorkerLost("timeout", wanted[1], "no step")
        on_rows([rows.encode(rows.Row(shape, index, "ok", (1.0,))) for index in wanted])
        self._asked.pop(0)
        return {"seconds": dict.fromkeys(PARTS, 1.0)}


def test_a_worker_has_the_next_problem_before_it_is_done_and_nothing_is_lost_with_it(monkeypatch) -> None:
    heard: list[tuple[int, int, tuple[int, ...]]] = []
    numbers = itertools.count(1)
    monkeypatch.setattr(runner, "Process", lambda job, limit_s: Hired(next(numbers), heard))
    candidates = [Candidate("v04", "sms", Config(), number) for number in range(3)]
    bench = Bench(Job(candidates, 1, 0, None), 1.0, lambda text: None)
    written: list[tuple[int, int, str]] = []

    def write(lines: list[str]) -> None:
        found = map(rows.decode, map(json.loads, lines))
        written.extend((row.problem[2], row.candidate, row.status) for row in found)

    after = []
    for task, cost in bench.measure_all([Task(Problem(1, 1, k), (0, 1, 2)) for k in (1, 2, 3)], write):
        after.append((task.problem.k, len(heard), cost.seconds["inputs"]))
    everyone = (0, 1, 2)
    assert heard == [(1, 1, everyone), (1, 2, everyone), (1, 3, everyone), (2, 2, (2,)), (2, 3, everyone)]
    assert after == [(1, 2, 1.0), (2, 5, 1.0), (3, 5, 1.0)]
    fine = [(k, c, "ok") for k in (1, 3) for c in everyone]
    assert sorted(written) == sorted([*fine, (2, 0, "unsupported"), (2, 1, "timeout"), (2, 2, "ok")])
