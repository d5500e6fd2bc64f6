"""Runs an experiment: one worker process, rows appended as they are measured, a watchdog, resume."""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

import variants
from common import device, rows
from common.errors import DamagedRun, InvalidExperiment, NoWorker
from common.launcher import Variant
from common.problem import Problem
from common.rows import Row, Run
from experiments.plan import CHOSEN, NO_VARIANTS, Candidate
from experiments.spec import Experiment
from experiments.spent import PARTS, WAITING
from experiments.worker import NOBODY, Job, serve
from variants.choice import costs_hash

STARTUP_S = 180.0
"""Seconds that a worker may take to import, find its device and say so."""
LOOK_S = 0.25
"""Seconds between two looks at whether a silent worker still makes steps."""


class WorkerLost(RuntimeError):
    """The worker made no step in time ("timeout") or ended ("crashed"), at a candidate or (NOBODY) between them."""

    def __init__(self, status: str, candidate: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.candidate = status, candidate


class Process:
    """One worker process, its pipe, the step that it is at, and what it was asked and has not answered."""

    def __init__(self, job: Job, limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._steps = context.RawArray("q", [NOBODY, 0])
        self._process = context.Process(target=serve, args=(theirs, job, self._steps), daemon=True)
        self._process.start()
        theirs.close()
        self._limit_s = limit_s
        self._asked: list[tuple[Problem, list[int]]] = []
        _, self.facts = self._receive(STARTUP_S)

    def ask(self, problem: Problem, wanted: list[int]) -> None:
        """Send a problem, unless it is on its way already. Raises WorkerLost."""
        if (problem, wanted) in self._asked:
            return
        try:
            self._pipe.send((problem, wanted))
        except OSError:
            raise self._ended() from None
        self._asked.append((problem, wanted))

    def answer(self, on_rows: Callable[[list[str]], None]) -> dict[str, Any]:
        """Hand rows of the problem that was asked first on as they come, return what it cost. Raises WorkerLost."""
        while True:
            kind, value = self._receive(self._limit_s)
            if kind == "done":
                self._asked.pop(0)
                return value
            on_rows(value)

    def _receive(self, limit_s: float) -> tuple[str, Any]:
        step, since = self._steps[1], time.monotonic()
        try:
            while not self._pipe.poll(min(LOOK_S, limit_s)):
                if self._steps[1] != step:
                    step, since = self._steps[1], time.monotonic()
                elif time.monotonic() - since > limit_s:
                    self.kill()
                    raise WorkerLost("timeout", self._steps[0], f"no step for {limit_s:g} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if kind == "lost":
            self.kill()
            raise WorkerLost("crashed", self._steps[0], value)
        return kind, value

    def _ended(self) -> WorkerLost:
        self._process.join(5)
        code = self._process.exitcode
        reason = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self.kill()
        return WorkerLost("crashed", self._steps[0], f"the process ended with {reason}")

    def kill(self) -> None:
        """End the process; one that the driver does not let go is left behind after a while."""
        self._process.kill()
        self._process.join(30)
        self._pipe.close()


@dataclass(frozen=True)
class Task:
    """A problem's candidates that are still to be measured. `home`: the device that measured the others, if any."""

    problem: Problem
    wanted: tuple[int, ...]
    home: str | None = None


@dataclass(frozen=True)
class Cost:
    """What a task cost: milliseconds a candidate and seconds by part, of tries that ended well, and what the worker
    says of all its work so far."""

    milliseconds: tuple[float, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    so_far: dict[str, float] = field(default_factory=dict)


Write = Callable[[list[str]], None]
"""Takes rows as lines; what it is given at once is written at once."""


class Crew(Protocol):
    """Who measures: one worker process here, or many elsewhere.

    `facts`: of one of its workers, for the header. `devices`: by their ids. `roams`: a resumed run may be of others.
    """

    facts: dict[str, Any]
    devices: dict[str, dict[str, Any]]
    roams: bool

    def measure_all(self, tasks: list[Task], write: Write) -> Iterator[tuple[Task, Cost]]: ...

    def close(self) -> None: ...


class Bench:
    """The crew of one: a worker process, replaced by a new one whenever it is lost. Raises NoWorker."""

    roams = False

    def __init__(self, job: Job, limit_s: float, notice: Callable[[str], None] = print) -> None:
        self.job, self._limit_s, self.notice = job, limit_s, notice
        self._process = self._start()
        self.facts = self._process.facts
        self.devices = {rows.device_id(self.facts["device"]): self.facts["device"]}

    def _start(self) -> Process:
        try:
            return Process(self.job, self._limit_s)
        except WorkerLost as lost:
            raise NoWorker(
                f"no worker could start: {lost}. What is measured so far is kept: --resume goes on"
            ) from None

    def measure_all(self, tasks: list[Task], write: Write) -> Iterator[tuple[Task, Cost]]:
        """Measure tasks one after another; each is handed on when its last row is written."""
        for task, following in itertools.zip_longest(tasks, tasks[1:]):
            yield task, self.measure(task, write, following)

    def measure(self, task: Task, write: Write, following: Task | None = None) -> Cost:
        """Measure a task, with a new worker after each that is lost. Rows are written as they come.

        `following`: the next task, which the worker goes on with at once, while this one's rows are written.
        """
        shape = (task.problem.m, task.problem.n, task.problem.k)
        left, costs, seconds, so_far, again = list(task.wanted), [], Counter[str](), {}, False

        def append(lines: list[str]) -> None:
            write(lines)
            for line in lines:
                left.remove(json.loads(line)["c"])

        while left:
            try:
                wanted = list(left)
                self._process.ask(task.problem, wanted)
                if following is not None:
                    self._process.ask(following.problem, list(following.wanted))
                so_far = self._process.answer(append)
                parts = so_far.pop("seconds")
                costs.append(1000 * (sum(parts.values()) - parts[WAITING]) / len(wanted))
                seconds.update(parts)
            except WorkerLost as lost:
                guilty = [lost.candidate] if lost.candidate in left else list(left) if again else []
                again = True
                home = rows.device_id(self.facts["device"])
                for index in guilty:
                    append([rows.encode(Row(shape, index, lost.status, note=str(lost), device=home))])
                names = ", ".join(self.job.candidates[index].label for index in guilty) or "between candidates"
                self.notice(f"{task.problem}, {names}: {lost.status} ({lost}); a new worker goes on")
                self._process = self._start()
        return Cost(tuple(costs), dict(seconds), so_far)

    def close(self) -> None:
        self._process.kill()


@dataclass
class Writer:
    """Appends rows to a run, each with the number of its device there; a device that joins gets a line before them."""

    file: TextIO
    numbered: list[str]
    crew: Crew

    def write(self, lines: list[str]) -> None:
        """Append rows as a worker sent them, at once."""
        text = []
        for record in map(json.loads, lines):
            device = record["g"]
            if device not in self.numbered:
                self.numbered.append(device)
                text.append(_line({"device": self.crew.devices[device]}))
            text.append(_line(record | {"g": self.numbered.index(device)}))
        self.file.write("".join(text))
        self.file.flush()


@dataclass
class Sweep:
    """An experiment on its way: what is measured, and the file that rows go to.

    `limit`: only the first problems. `find`: where the worker takes variants from. `wrong_results`: time what is
    wrong too; its rows keep the status "incorrect", so that no speed is read from them. `hire`: makes the crew that
    measures, from the job, the seconds that a step may take, and where notices go.
    """

    experiment: Experiment
    out: Path
    resume: bool = False
    limit: int | None = None
    on_progress: Callable[[int, int, Problem], None] = lambda done, total, problem: None
    notice: Callable[[str], None] = print
    find: Callable[[str], Variant] = variants.get
    wrong_results: bool = False
    hire: Callable[[Job, float, Callable[[str], None]], Crew] = Bench
    candidates: list[Candidate] = field(init=False)
    costs: list[float] = field(init=False, default_factory=list)
    seconds: Counter[str] = field(init=False, default_factory=Counter)
    so_far: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.candidates = self.experiment.all_candidates()

    def run(self) -> Path:
        """Measure everything that is not yet measured; return the finished run's file.

        Raises InvalidExperiment when the run to resume is of another device, specification or code.
        """
        began = time.monotonic()
        problems = self.experiment.problems.all()[: self.limit]
        crew = self.hire(self._job(), self.experiment.time_limit_s, self.notice)
        try:
            header = self._header(crew.facts, len(problems))
            old = self._previous(header, crew.roams) if self.resume else None
            if old is not None and old.path.suffix == ".xz":
                self.notice(f"{old.path.name} is finished already: nothing to do")
                return old.path
            path = old.path if old else self.out / f"{header['run']}.jsonl"
            with _append(path, header if old is None else None, self.notice) as file:
                run = rows.read_run(path)
                tasks, writer = self._tasks(problems, run), Writer(file, list(run.devices), crew)
                measured = crew.measure_all(tasks, writer.write)
                for number, (task, cost) in enumerate(measured, len(problems) - len(tasks) + 1):
                    self.costs += cost.milliseconds
                    self.seconds.update(cost.seconds)
                    self.so_far = cost.so_far or self.so_far
                    self.on_progress(number, len(problems), task.problem)
                finished = self._finished(rows.read_run(path), time.monotonic() - began)
                file.write(_line({"finished": finished}))
                file.flush()
                return rows.compress(path)
        finally:
            crew.close()

    def _job(self) -> Job:
        what = self.experiment
        return Job(
            self.candidates,
            what.rounds,
            what.seed,
            what.tolerance,
            self.find,
            what.timing,
            self.wrong_results,
            what.reduced_precision,
        )

    def _tasks(self, problems: list[Problem], run: Run) -> list[Task]:
        """What is not yet measured; a problem that was begun goes on where it began, if that device is there."""
        done = {(row.problem, row.candidate): row.device for row in run.rows}
        tasks = []
        for problem in problems:
            keys = [((problem.m, problem.n, problem.k), index) for index in range(len(self.candidates))]
            wanted = tuple(index for shape, index in keys if (shape, index) not in done)
            if wanted:
                tasks.append(Task(problem, wanted, next((done[key] for key in keys if key in done), None)))
        return tasks

    def _previous(self, header: dict[str, Any], roams: bool = False) -> Run | None:
        """The newest run of this specification, device and code: to go on with, or with nothing left to do; None to
        begin a new one. Raises InvalidExperiment where only others were stopped, or where a run is damaged."""
        others = []
        for path in reversed(rows.runs(self.out, self.experiment.name)):
            plain = path.suffix != ".xz"
            if plain:
                with _append(path, None, self.notice):
                    pass
            if plain and not path.stat().st_size:
                self.notice(f"{path.name} has no header and is passed over")
                continue
            try:
                run, difference = None, _difference(rows.read_header(path), header)
                if difference is None:
                    run = rows.read_run(path)
                    difference = _difference(run.header, header, None if roams else run.devices)
            except DamagedRun as error:
                raise InvalidExperiment(
                    f"{error}. Repair the line or move the file away: --resume measures nothing twice"
                ) from None
            if run is None or difference is not None:
                self.notice(f"{path.name} is no match: {difference}")
                others += [f"{path.name} cannot be resumed: {difference}"] if plain else []
                continue
            return rows.read_run(rows.compress(path)) if plain and run.finished is not None else run
        if others:
            raise InvalidExperiment(f"{'; '.join(others)}. Run without --resume")
        self.notice(f"no run of {self.experiment.name} to resume in {self.out}: a new run begins")
        return None

    def _finished(self, run: Run, wall_s: float) -> dict[str, Any]:
        """What the harness costs and how far it can be trusted; medians leave out problems that compiled.

        `seconds`: by part of the work (`experiments.spent`), of all workers together.
        """
        found: dict[str, Any] = {"wall_s": round(wall_s, 1), **self.so_far}
        found["seconds"] = {part: round(self.seconds[part], 2) for part in PARTS}
        if self.costs:
            found["ms_per_candidate_and_shape"] = round(statistics.median(self.costs), 3)
        if run.floor_us is not None:
            found["empty_us"] = round(run.floor_us, 2)
        library = [c.label for c in self.candidates if c.variant == "torch_matmul"]
        ratios = list(run.speedups(library[1], library[0]).values()) if len(library) > 1 else []
        if ratios:
            found["cublas_to_itself"] = round(rows.geometric_mean(ratios), 4)
            found["cublas_to_itself_95"] = [round(float(q), 4) for q in np.quantile(ratios, [0.025, 0.975])]
        return found

    def _header(self, facts: dict[str, Any], problems: int) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC)
        commit, dirty = device.commit()
        return {
            "run": f"{self.experiment.name}-{now:%Y%m%d-%H%M%S}",
            "experiment": self.experiment.name,
            "experiment_hash": self.experiment.fingerprint(),
            "question": self.experiment.question,
            "date": now.isoformat(timespec="seconds"),
            "commit": commit,
            "dirty": dirty,
            "problems": problems,
            "limit": self.limit,
            "dtype": self.experiment.problems.dtype,
            "layout": self.experiment.problems.layout,
            "inputs": f"standard normal, seed {self.experiment.seed}",
            "seed": self.experiment.seed,
            "rounds": self.experiment.rounds,
            "wrong_results_timed": self.wrong_results,
            **facts,
            "candidates": [self._described(c) for c in self.candidates],
        }

    def _described(self, c: Candidate) -> dict[str, Any]:
        source_hash = None if c.variant in NO_VARIANTS else self.find(c.variant).source_hash
        if c.variant == CHOSEN:
            source_hash = costs_hash()
        programs = {"programs": c.programs, "source_hash": source_hash}
        among = {"kernel": c.kernel} if c.kernel else {}
        return {"label": c.label, "variant": c.variant, **among, **programs, "config": dict(c.config.__dict__)}


def _append(path: Path, header: dict[str, Any] | None, notice: Callable[[str], None]) -> TextIO:
    """Open a run to append to, alone; a new one gets its header, of an old one a half-written line is dropped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("a" if header is None else "x")
    except FileExistsError:
        raise InvalidExperiment(f"{path} is there already: another run began in this second") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidExperiment(f"{path} is being measured by another process: wait for it") from None
    if header is not None:
        file.write(_line(header))
        file.flush()
    elif rows.drop_half_written_line(path):
        notice(f"{path.name}: the last line was half-written and is dropped")
    return file


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def _difference(old: dict[str, Any], new: dict[str, Any], known: Container[str] | None = None) -> str | None:
    """Why rows of two runs must not stand in one file. `known`: devices of the old run, None where any of its kind
    may join."""
    if old.get("experiment_hash") != new["experiment_hash"]:
        return f"the specification was another one ({old.get('experiment_hash')}, now {new['experiment_hash']})"
    if old.get("limit") != new["limit"]:
        return f"its limit on problems was {old.get('limit')}, now {new['limit']}"
    if bool(old.get("wrong_results_timed")) != new["wrong_results_timed"]:
        return "one of both times wrong results too"
    if len(old["candidates"]) != len(new["candidates"]):
        return f"it has {len(old['candidates'])} candidates, now {len(new['candidates'])}"
    kinds = [{key: value for key, value in run["device"].items() if key != "uuid"} for run in (old, new)]
    if kinds[0] != kinds[1] or (known is not None and rows.device_id(new["device"]) not in known):
        return f"it was measured on {_device(old)}, this is {_device(new)}"
    if old["versions"] != new["versions"]:
        changed = [k for k in new["versions"] if new["versions"][k] != old["versions"].get(k)]
        return f"it was measured with another {', '.join(changed) or 'environment'}"
    pairs = zip(old["candidates"], json.loads(json.dumps(new["candidates"])), strict=True)
    changed = [c["label"] for c, mine in pairs if c != mine]
    return f"source or configuration changed since: {', '.join(changed)}" if changed else None


def _device(header: dict[str, Any]) -> str:
    return f"{header['device']['name']} {header['device'].get('uuid') or ''}".strip()
