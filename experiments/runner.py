"""Runs an experiment: one worker process, rows appended as they are measured, a watchdog, resume."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import variants
from common import rows
from common.errors import InvalidExperiment
from common.problem import Problem
from common.rows import Row
from experiments.spec import EMPTY, Candidate, Experiment
from experiments.worker import Job, serve

STARTUP_S = 180.0
"""Seconds that a worker may take to import, find its device and say so."""


class WorkerLost(RuntimeError):
    """The worker gave no sign of life in time ("timeout") or died ("crashed") at a candidate."""

    def __init__(self, status: str, candidate: int | None) -> None:
        super().__init__(f"{status} at candidate {candidate}")
        self.status, self.candidate = status, candidate


class Process:
    """One worker process and its pipe."""

    def __init__(self, job: Job, limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()
        self._limit_s = limit_s
        self._candidate: int | None = None
        kind, self.facts = self._receive(STARTUP_S)
        assert kind == "ready"

    def measure(self, problem: Problem, wanted: list[int], on_row: Callable[[str], None]) -> float:
        """Send a problem; hand every row on as it comes; return the seconds that it took. Raises WorkerLost."""
        self._candidate = None
        self._pipe.send((problem, wanted))
        while True:
            kind, value = self._receive(self._limit_s)
            if kind == "begin":
                self._candidate = value
            elif kind == "row":
                on_row(value)
            else:
                return value

    def _receive(self, limit_s: float) -> tuple[str, Any]:
        try:
            if self._pipe.poll(limit_s):
                return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self.kill()
            raise WorkerLost("crashed", self._candidate) from None
        self.kill()
        raise WorkerLost("timeout", self._candidate)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@dataclass
class Sweep:
    """An experiment on its way: what is left, and the file that rows go to."""

    experiment: Experiment
    out: Path
    resume: bool = False
    limit: int | None = None
    on_progress: Callable[[int, int, Problem], None] = lambda done, total, problem: None
    notice: Callable[[str], None] = print
    candidates: list[Candidate] = field(init=False)
    seconds: float = 0.0
    measured: int = 0

    def __post_init__(self) -> None:
        self.candidates = self.experiment.all_candidates()

    def run(self) -> Path:
        """Measure everything that is not yet measured; return the finished run's file.

        Raises InvalidExperiment when there is nothing to resume, or the device or code is another.
        """
        problems = self.experiment.problems.all()[: self.limit]
        path, done = self._previous() if self.resume else (None, set())
        if path is not None and path.suffix == ".xz":
            self.notice(f"{path.name} is already finished: nothing to do")
            return path
        self.out.mkdir(parents=True, exist_ok=True)
        worker = self._start()
        header = self._header(worker.facts)
        if path is None:
            path = self.out / f"{header['run']}.jsonl"
            path.write_text(_line(header))
        else:
            _check_same(rows.read_run(path).header, header)
        with path.open("a") as file:
            for number, problem in enumerate(problems):
                shape = (problem.m, problem.n, problem.k)
                wanted = [i for i in range(len(self.candidates)) if (shape, i) not in done]
                worker = self._problem(worker, problem, wanted, file)
                self.on_progress(number + 1, len(problems), problem)
            worker.kill()
            cost = {"ms_per_candidate_and_shape": round(1000 * self.seconds / max(self.measured, 1), 3)}
            file.write(_line({"finished": cost}))
        return rows.compress(path)

    def _start(self) -> Process:
        job = Job(self.candidates, self.experiment.rounds, self.experiment.seed, self.experiment.tolerance)
        return Process(job, self.experiment.time_limit_s)

    def _problem(self, worker: Process, problem: Problem, wanted: list[int], file: TextIO) -> Process:
        left = list(wanted)
        failures = 0

        def append(line: str) -> None:
            file.write(line + "\n")
            file.flush()
            left.remove(json.loads(line)["c"])

        while left:
            try:
                self.seconds += worker.measure(problem, left, append)
                self.measured += len(wanted)
                return worker
            except WorkerLost as lost:
                failures += 1
                guilty = lost.candidate if lost.candidate in left else left[0]
                shape = (problem.m, problem.n, problem.k)
                append(rows.encode(Row(shape, guilty, lost.status, note=f"no sign of life or dead: {failures}")))
                self.notice(f"{self.candidates[guilty].label} on {problem}: {lost.status}; a new worker goes on")
                worker = self._start()
        return worker

    def _previous(self) -> tuple[Path | None, set[tuple[rows.Problem, int]]]:
        """The newest run of the same experiment and what it has measured."""
        for path in reversed(rows.runs(self.out, self.experiment.name)):
            if path.suffix != ".xz" and rows.drop_half_written_line(path):
                self.notice(f"{path.name}: the last line was half-written and is dropped")
            run = rows.read_run(path)
            if run.header["experiment_hash"] != self.experiment.fingerprint():
                continue
            if run.finished and path.suffix != ".xz":
                path = rows.compress(path)
            return path, {(row.problem, row.candidate) for row in run.rows}
        raise InvalidExperiment(
            f"no run of {self.experiment.name} in {self.out} has this experiment's fingerprint: run without --resume"
        )

    def _header(self, facts: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC)
        return {
            "run": f"{self.experiment.name}-{now:%Y%m%d-%H%M%S}",
            "experiment": self.experiment.name,
            "experiment_hash": self.experiment.fingerprint(),
            "question": self.experiment.question,
            "date": now.isoformat(timespec="seconds"),
            "commit": _commit(),
            "dtype": self.experiment.problems.dtype,
            "layout": self.experiment.problems.layout,
            "inputs": f"standard normal, seed {self.experiment.seed}",
            "rounds": self.experiment.rounds,
            **facts,
            "candidates": [
                {
                    "label": c.label,
                    "variant": c.variant,
                    "source_hash": None if c.variant == EMPTY else variants.get(c.variant).source_hash,
                    "programs": c.programs,
                    "config": c.config.__dict__,
                }
                for c in self.candidates
            ],
        }


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def _check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    if old["device"] != new["device"] or old["versions"] != new["versions"]:
        raise InvalidExperiment(
            f"{old['run']} was measured on another device or with other versions: run without --resume"
        )
    hashes = [[c["source_hash"] for c in header["candidates"]] for header in (old, new)]
    if hashes[0] != hashes[1]:
        raise InvalidExperiment(f"a variant's source has changed since {old['run']}: run without --resume")


def _commit() -> str:
    """The git commit, marked when files differ from it; ZOO_COMMIT stands in where there is no repository."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("ZOO_COMMIT", "unknown")
    return head.stdout.strip() + ("+changes" if changed.strip() else "")
