"""Measures in a process of its own, so that a hang or a crash costs one candidate and not the sweep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import triton

import variants
from common import device as device_info
from common.errors import NotCoResident, UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import Prepared, prepare, sms
from common.problem import Problem, make_inputs
from common.reference import Reference, reference
from common.rows import Row, encode
from common.timing import METHOD, Stopwatch, Timed, empty_kernel
from experiments.spec import EMPTY, Candidate


@dataclass
class Job:
    """What a worker needs for a sweep, sent to it once."""

    candidates: list[Candidate]
    rounds: int
    seed: int
    tolerance: float | None


def serve(connection: Connection, job: Job) -> None:
    """Answer problems until the pipe closes. Sends ("ready", facts), ("begin", candidate), ("row", line), ("done", s)."""
    worker = Worker(job, connection.send)
    connection.send(("ready", worker.facts()))
    while True:
        try:
            problem, wanted = connection.recv()
        except EOFError:
            return
        began = time.perf_counter()
        worker.measure(problem, wanted)
        connection.send(("done", time.perf_counter() - began))


class Worker:
    """Checks, captures and times the candidates of one problem after another on one device."""

    def __init__(self, job: Job, send: Callable[[tuple[str, Any]], None]) -> None:
        self.job, self.send = job, send
        self.device = "cpu" if interpreting() else "cuda"
        self.stopwatch = None if interpreting() else Stopwatch()
        self.telemetry = device_info.Telemetry(device_info.identity()["uuid"])

    def facts(self) -> dict[str, Any]:
        """Device, versions and method, for the run's header."""
        timing = {"method": "correctness only: the interpreter has no device time"}
        if self.stopwatch is not None:
            timing = {"method": METHOD, "flush_bytes": self.stopwatch.flush_bytes}
        return {"device": device_info.identity(), "versions": device_info.versions(), "timing": timing}

    def measure(self, problem: Problem, wanted: list[int]) -> None:
        """Send one row for each wanted candidate; those that fail are sent at once."""
        inputs = make_inputs(problem, self.job.seed, device=self.device)
        before = self.telemetry.read()
        exact = reference(*inputs)
        timed: list[tuple[Row, Timed]] = []
        keep: list[Prepared] = []
        for index in wanted:
            self.send(("begin", index))
            row, prepared, call = self._check(problem, index, inputs, exact)
            if row.status != "ok" or self.stopwatch is None:
                self.send(("row", encode(row)))
                continue
            keep.append(prepared)
            timed.append((row, self.stopwatch.capture(call)))
        del exact
        if not timed:
            return
        turns = [row.candidate for row, _ in timed]
        self.stopwatch.interleave(
            [t for _, t in timed],
            self.job.rounds,
            self.job.seed,
            lambda position: self.send(("begin", turns[position])),
        )
        after = self.telemetry.read()
        names = ("clk", "w", "thr")
        extra = {
            name: pair for name, pair in zip(names, zip(before, after, strict=True), strict=True) if None not in pair
        }
        for row, t in timed:
            measured = Row(**{**row.__dict__, "samples": tuple(t.samples)})
            self.send(("row", encode(measured, extra)))

    def _check(
        self, problem: Problem, index: int, inputs: tuple[torch.Tensor, torch.Tensor], exact: Reference
    ) -> tuple[Row, Prepared | None, Callable[[], object]]:
        """Run once on an output full of NaN and compare; nothing that fails here is timed."""
        candidate = self.job.candidates[index]
        shape = (problem.m, problem.n, problem.k)
        if candidate.variant == EMPTY:
            if self.stopwatch is not None:
                empty_kernel[(1,)]()
            return Row(shape, index, "ok"), None, lambda: empty_kernel[(1,)]()
        a, b = inputs
        out = torch.full((problem.m, problem.n), float("nan"), dtype=a.dtype, device=a.device)
        try:
            config = candidate.resolved(problem, sms(a.device))
            prepared = prepare(variants.get(candidate.variant), a, b, out, config)
            prepared.run()
            if a.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            return Row(shape, index, status_of(error), note=_one_line(error)), None, lambda: None
        check = exact.check(out, prepared.schedule.max_peers)
        ok = check.ok if self.job.tolerance is None else check.error <= self.job.tolerance
        row = Row(shape, index, "ok" if ok else "incorrect", (), check.error, prepared.relies_on_dispatch_order)
        return row, prepared, prepared.run


def status_of(error: Exception) -> str:
    """The row's status for what a candidate raised; re-raises what poisons the process."""
    if isinstance(error, UnsupportedProblem):
        return "unsupported"
    if isinstance(error, NotCoResident):
        return "not_co_resident"
    if isinstance(error, triton.runtime.errors.OutOfResources):
        return "out_of_resources"
    if isinstance(error, (triton.CompilationError, triton.runtime.errors.PTXASError)):
        return "compile_error"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out_of_resources"
    raise error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
