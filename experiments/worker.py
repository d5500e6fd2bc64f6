"""Measures in a process of its own, so that a hang or a crash costs one candidate and not the sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
import triton

import variants
from common import device as device_info
from common.errors import NotCoResident, UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import Prepared, Variant, prepare, sms
from common.problem import Problem, make_inputs
from common.reference import Check, Reference, reference, roundings
from common.rows import Row, device_id, encode
from common.timing import (
    DO_BENCH,
    DO_BENCH_REPEAT_MS,
    DO_BENCH_WARMUP_MS,
    METHOD,
    Stopwatch,
    Timed,
    do_bench_means,
    empty_kernel,
)
from experiments.plan import CHOSEN, EMPTY, Candidate
from experiments.spent import WAITING, Spent
from variants.choice import choose, launch_label

NOBODY = -1
"""Stands for the candidate while inputs and reference are made."""
TELEMETRY_SHARE = 0.02
"""Of the time that asking the driver for clock and power may take."""
Send = Callable[[tuple[str, Any]], None]


@dataclass
class Job:
    """What a worker needs for a sweep, sent to it once. `find`: where it takes variants from.

    `wrong_results`: let through and time what a guard on shares or the check would stop; its status stays "incorrect".
    `reduced_precision`: see `Experiment`.
    """

    candidates: list[Candidate]
    rounds: int
    seed: int
    tolerance: float | None
    find: Callable[[str], Variant] = variants.get
    timing: str = "graph"
    wrong_results: bool = False
    reduced_precision: bool = True


@dataclass
class Ready:
    """A candidate that was right: its row so far, and what is timed. `timed`: the captured call, where it is."""

    row: Row
    call: Callable[[], object]
    timed: Timed | None
    prepared: Prepared | None


class Poisoned(RuntimeError):
    """An error after which the process can launch nothing more."""


def serve(connection: Connection, job: Job, steps: MutableSequence[int]) -> None:
    """Answer problems until the pipe closes.

    Sends ("ready", facts) once; for a problem ("rows", lines), those that fail at once, those that were timed together,
    and ("done", what it cost); ("lost", reason) before it gives up. `steps` is shared: the candidate at work, and a
    count of its steps as a sign of life.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        worker = Worker(job, connection.send, steps)
        connection.send(("ready", worker.facts()))
        while True:
            problem, wanted = connection.recv()
            worker.measure(problem, wanted)
            connection.send(("done", {"seconds": worker.spent.take(), **worker.so_far()}))
            worker.spent.enter(WAITING)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        connection.send(("lost", f"{type(error).__name__}: {_one_line(error)}"))


def _end_with_parent() -> None:
    """A worker that hangs must not hold the GPU when whoever would have killed it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Worker:
    """Checks, captures and times the candidates of one problem after another on one device."""

    def __init__(self, job: Job, send: Send, steps: MutableSequence[int]) -> None:
        self.job, self.send, self.steps, self.spent = job, send, steps, Spent()
        self.device = "cpu" if interpreting() else "cuda"
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = job.reduced_precision
        self.stopwatch = None if interpreting() else Stopwatch()
        if self.stopwatch is not None:
            torch.cuda.set_stream(self.stopwatch.stream)
        identity = device_info.identity()
        self.device_id = device_id(identity)
        self.telemetry = device_info.Telemetry(identity["uuid"], TELEMETRY_SHARE)

    def facts(self) -> dict[str, Any]:
        """Device, versions and method, for the run's header."""
        facts = {"device": device_info.identity(), "versions": device_info.versions()}
        if self.stopwatch is None:
            return facts | {"dry_run": True, "timing": {"method": "none: the interpreter has no device time"}}
        if self.job.timing == "do_bench":
            windows = {"warmup_ms": DO_BENCH_WARMUP_MS, "repeat_ms": DO_BENCH_REPEAT_MS}
            return facts | {"timing": {"method": DO_BENCH, **windows}}
        return facts | {"timing": {"method": METHOD, "flush_bytes": self.stopwatch.flush_bytes}}

    def so_far(self) -> dict[str, float]:
        """How often the host was too slow, what the flush has grown to, the age of the oldest telemetry in a row."""
        if self.stopwatch is None:
            return {}
        return {
            "retaken": self.stopwatch.retaken,
            "flush_writes": self.stopwatch.most_writes,
            "telemetry_age_s": round(self.telemetry.oldest_s, 2),
        }

    def measure(self, problem: Problem, wanted: list[int]) -> None:
        """Send one row for each wanted candidate; of those that fail at once."""
        self._announce(NOBODY)
        shape = (problem.m, problem.n, problem.k)
        try:
            self.spent.enter("inputs")
            inputs = make_inputs(problem, self.job.seed, device=self.device)
            self.spent.enter("reference")
            exact = reference(*inputs)
        except torch.cuda.OutOfMemoryError as error:
            note = f"inputs and reference: {_one_line(error)}"
            self._send([Row(shape, index, "out_of_resources", note=note) for index in wanted])
            return
        before = self._telemetry()
        ready = []
        for index in wanted:
            self._announce(index)
            found = self._check(problem, index, inputs, exact)
            if isinstance(found, Row):
                self._send([found])
            else:
                ready.append(found)
        if ready and self.stopwatch is not None:
            self._send(self._time(ready, exact, before, f"{self.job.seed} {problem}", self.stopwatch))

    def _check(
        self, problem: Problem, index: int, inputs: tuple[torch.Tensor, torch.Tensor], exact: Reference
    ) -> Row | Ready:
        """Run once on an output full of NaN and compare; what fails here is not timed."""
        candidate, shape = self.job.candidates[index], (problem.m, problem.n, problem.k)
        if candidate.variant == EMPTY:
            row = Row(shape, index, "ok")
            return Ready(row, _launch_empty, self._captured(_launch_empty), None) if self.stopwatch else row
        self.spent.enter("prepare")
        try:
            a, b = inputs
            out = torch.full((problem.m, problem.n), float("nan"), dtype=a.dtype, device=a.device)
            prepared = self._prepared(candidate, problem, a, b, out)
            prepared.run()
            self.spent.enter("check")
            difference = exact.error(out)
            # The host waits for the difference only when the graph is made: the GPU is still at the first run.
            timed = self._captured(prepared.run)
            self.spent.enter("check")
            check = exact.judge(float(difference), roundings(prepared.variant.card, prepared.schedule))
        except Exception as error:
            return Row(shape, index, self._status(error), note=_one_line(error))
        status = "ok" if self._right(check) else "incorrect"
        note = launch_label(prepared.variant, prepared.config) if candidate.variant == CHOSEN else ""
        row = Row(shape, index, status, (), check.error, prepared.relies_on_dispatch_order, note)
        if self.stopwatch is None or (status != "ok" and not self.job.wrong_results):
            return row
        return Ready(row, prepared.run, timed, prepared)

    def _prepared(
        self, candidate: Candidate, problem: Problem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
    ) -> Prepared:
        if candidate.variant == CHOSEN:
            return choose(a, b, out, kernel=candidate.kernel or None)
        config = candidate.resolved(problem, sms(a.device))
        return prepare(self.job.find(candidate.variant), a, b, out, config, guarded=not self.job.wrong_results)

    def _captured(self, call: Callable[[], object]) -> Timed | None:
        """The call as a graph, where graphs are timed."""
        if self.stopwatch is None or self.job.timing != "graph":
            return None
        self.spent.enter("capture")
        return self.stopwatch.capture(call)

    def _time(
        self,
        ready: list[Ready],
        exact: Reference,
        before: tuple[int | None, ...],
        seed: str,
        stopwatch: Stopwatch,
    ) -> list[Row]:
        """Take the samples, and look at the last replay's result as at the first run's."""
        self.spent.enter("samples")
        samples = self._samples(ready, seed, stopwatch)
        pairs = zip(before, self._telemetry(), strict=True)
        clocks, watts, throttle = ((x, y) if x is not None and y is not None else () for x, y in pairs)
        self.spent.enter("check")
        errors, rows = _errors(ready, exact), []
        for one, taken, error in zip(ready, samples, errors, strict=True):
            row = replace(one.row, clocks=clocks, watts=watts, throttle=throttle)
            if one.prepared is not None and row.status == "ok":
                check = exact.judge(error, roundings(one.prepared.variant.card, one.prepared.schedule))
                if not self._right(check):
                    note = "right at first, not replayed"
                    rows.append(replace(row, status="incorrect", error=check.error, note=note))
                    continue
            rows.append(replace(row, samples=tuple(taken)))
        return rows

    def _samples(self, ready: list[Ready], seed: str, stopwatch: Stopwatch) -> list[list[float]]:
        """The samples of each candidate, in microseconds."""

        def before(position: int) -> None:
            self._announce(ready[position].row.candidate)

        if self.job.timing == "do_bench":
            return do_bench_means([one.call for one in ready], self.job.rounds, seed, before)
        timed = [one.timed for one in ready if one.timed is not None]
        stopwatch.interleave(timed, self.job.rounds, seed, before)
        return [one.samples for one in timed]

    def _right(self, check: Check) -> bool:
        return (check if self.job.tolerance is None else replace(check, tolerance=self.job.tolerance)).ok

    def _announce(self, candidate: int) -> None:
        self.steps[0] = candidate
        self.steps[1] += 1

    def _telemetry(self) -> tuple[int | None, ...]:
        self.spent.enter("telemetry")
        return self.telemetry.read()

    def _send(self, rows: list[Row]) -> None:
        self.spent.enter("messages")
        self.send(("rows", [encode(replace(row, device=self.device_id)) for row in rows]))

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _status(self, error: Exception) -> str:
        """The status for what a candidate raised. Raises Poisoned where the process can launch nothing more."""
        status = status_of(error)
        if status == "crashed":
            try:
                self._synchronize()
            except Exception:
                raise Poisoned(_one_line(error)) from error
        return status


def _launch_empty() -> None:
    empty_kernel[(1,)]()


def _errors(ready: list[Ready], exact: Reference) -> list[float]:
    """The error of each candidate's last result, 0 for one that has none; the host waits once for all."""
    found = [exact.error(one.prepared.out) if one.prepared else torch.zeros((), device=exact.c.device) for one in ready]
    return torch.stack([error.double() for error in found]).tolist()


def status_of(error: Exception) -> str:
    """The row's status for an exception."""
    if isinstance(error, UnsupportedProblem):
        return "unsupported"
    if isinstance(error, NotCoResident):
        return "not_co_resident"
    if isinstance(error, (triton.runtime.errors.OutOfResources, torch.cuda.OutOfMemoryError)):
        return "out_of_resources"
    if isinstance(error, (triton.CompilationError, triton.runtime.errors.PTXASError)) or "PassManager" in str(error):
        return "compile_error"
    return "crashed"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
