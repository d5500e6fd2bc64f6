"""Sweeps over many GPUs with Dask: a problem with all its candidates goes to one worker, so that comparisons stay on
one GPU; rows come back problem by problem and are written here alone.

Dask finds the workers, carries tasks and answers and says who is alive. What is measured where is decided here: every
task is bound to one worker, a worker has one task at a time, and a task whose worker died or fell silent is tried once
more on another one before it becomes rows. In a worker a process of its own measures, as in a sweep on one GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dask
import distributed
from distributed import Client, Future, Nanny, Scheduler, SpecCluster

from common import rows
from common.errors import InvalidExperiment, NoWorker
from common.rows import Row
from experiments.runner import STARTUP_S, Bench, Cost, Task, Write
from experiments.worker import Job

LOOK_S = 0.1
"""Seconds between two looks at the workers."""
SILENT_S = 60.0
"""A worker that has not told the scheduler that it is alive for so long counts as hung."""
CONNECT_S = 20.0
TRIES = 2


# In a worker


@dataclass
class Answer:
    """What a worker sends back: the facts about itself, rows as lines, what they cost, notices."""

    facts: dict[str, Any]
    sources: dict[str, str]
    lines: list[str]
    cost: Cost
    notices: list[str]


_benches: dict[str, Bench] = {}
_one_at_a_time = threading.Lock()


def job_key(job: Job) -> str:
    """The same for the same job, whichever client sends it."""
    return f"{dataclasses.replace(job, find=None)} {job.find.__module__}.{job.find.__qualname__}"


def measure_here(job: Job, limit_s: float, interpret: bool, task: Task | None) -> Answer:
    """Measure a task in this Dask worker, or only say what it is. Runs in the worker, whose process stays warm."""
    key = job_key(job)
    with _one_at_a_time:
        lines: list[str] = []
        notices: list[str] = []
        if key not in _benches:
            for bench in _benches.values():
                bench.close()
            _benches.clear()
            os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
            _require_children()
            _benches[key] = Bench(job, limit_s)
        bench = _benches[key]
        bench.notice = notices.append
        cost = Cost() if task is None else bench.measure(task, lines.extend)
        sources = {c.variant: _source(job, c.variant) for c in job.candidates}
        return Answer(bench.facts, sources, lines, cost, notices)


def _source(job: Job, variant: str) -> str:
    return "" if variant == "empty" else job.find(variant).source_hash


def _require_children() -> None:
    """Raise NoWorker where this process may have no child, as a Dask worker under its nanny by default may not."""
    import multiprocessing

    if multiprocessing.current_process().daemon:
        raise NoWorker(
            "this Dask worker may start no process of its own: start it with DASK_DISTRIBUTED__WORKER__DAEMON=False in "
            "its environment, or with --no-nanny"
        )


# In the client


@dataclass
class Flight:
    """A task on its way: its worker, the number of this try, when the worker last said something new."""

    task: Task
    worker: str
    number: int
    seen: float = 0.0
    since: float = field(default_factory=time.monotonic)


class Crew:
    """All workers of a Dask cluster that are of one kind. Raises NoWorker, and InvalidExperiment where kinds differ."""

    roams = True

    def __init__(
        self, client: Client, job: Job, limit_s: float, notice: Callable[[str], None], silent_s: float = SILENT_S
    ) -> None:
        self._client, self._job, self._limit_s, self._notice = client, job, limit_s, notice
        self._silent_s = silent_s
        self._interpret = os.environ.get("TRITON_INTERPRET") == "1"
        self._sources = {c.variant: _source(job, c.variant) for c in job.candidates}
        self.devices: dict[str, dict[str, Any]] = {}
        self._home: dict[str, str] = {}
        self._lost: set[str] = set()
        self.facts = self._first_facts()

    def _first_facts(self) -> dict[str, Any]:
        """Ask every worker what it is; the facts of the one whose device's id is the lowest."""
        self._client.wait_for_workers(1, timeout=STARTUP_S)
        futures = {address: self._submit(None, address) for address in self._alive()}
        facts: dict[str, dict[str, Any]] = {}
        for address, future in futures.items():
            try:
                answer = future.result(timeout=STARTUP_S)
            except NoWorker:
                raise
            except Exception as error:
                self._notice(f"{address} is left out: {type(error).__name__}: {error}")
                self._lost.add(address)
                continue
            facts[rows.device_id(answer.facts["device"])] = answer.facts
            self._meet(address, answer)
        if not facts:
            raise NoWorker(f"none of {len(futures)} Dask workers could start")
        return facts[min(facts)]

    def _meet(self, address: str, answer: Answer) -> None:
        """Take a worker in. Raises InvalidExperiment where its device, versions or kernels are others."""
        device, name = answer.facts["device"], rows.device_id(answer.facts["device"])
        others = [a for a, d in self._home.items() if d == name and a != address and a in self._alive()]
        if others and device.get("uuid"):
            raise InvalidExperiment(f"{address} and {others[0]} share the GPU {device['uuid']}: one worker a GPU")
        self._home[address] = name
        if self.devices and name not in self.devices:
            first = next(iter(self.devices.values()))
            if {**first, "uuid": 0} != {**device, "uuid": 0}:
                raise InvalidExperiment(
                    f"{address} has {device['name']}, the others {first['name']}: measure them in runs of their own"
                )
        if hasattr(self, "facts") and answer.facts["versions"] != self.facts["versions"]:
            raise InvalidExperiment(f"{address} has other versions: {answer.facts['versions']}")
        if answer.sources != self._sources:
            changed = [v for v, source in answer.sources.items() if source != self._sources[v]]
            raise InvalidExperiment(f"{address} has another source of {', '.join(changed)}: update its checkout")
        self.devices[name] = device

    def _submit(self, task: Task | None, address: str) -> Future:
        return self._client.submit(
            measure_here, self._job, self._limit_s, self._interpret, task, workers=[address], pure=False, retries=0
        )

    def _alive(self) -> dict[str, float]:
        """Workers and when the scheduler last heard of them."""
        known = self._client.scheduler_info(n_workers=-1)["workers"]
        return {address: worker["last_seen"] for address, worker in known.items() if address not in self._lost}

    def measure_all(self, tasks: list[Task], write: Write) -> Iterator[tuple[Task, Cost]]:
        """Measure tasks wherever a worker is free; each is handed on when its rows are written, all at once."""
        waiting = [(task, 1, "") for task in reversed(tasks)]
        flights: dict[Future, Flight] = {}
        without = time.monotonic()
        while waiting or flights:
            alive = self._alive()
            busy = {flight.worker for flight in flights.values()}
            for address in alive:
                if address not in busy and waiting:
                    task, number, _ = waiting.pop(self._next(waiting, address, alive))
                    flights[self._submit(task, address)] = Flight(task, address, number, alive[address])
            without = time.monotonic() if alive else without
            if not flights and time.monotonic() - without > STARTUP_S:
                raise NoWorker(f"no Dask worker for {STARTUP_S:g} s. What is measured so far is kept: --resume goes on")
            if flights:
                with contextlib.suppress(TimeoutError, distributed.TimeoutError):
                    distributed.wait(list(flights), timeout=LOOK_S, return_when="FIRST_COMPLETED")
            else:
                time.sleep(LOOK_S)
            alive = self._alive()
            for future in list(flights):
                flight = flights[future]
                answer, reason = self._outcome(future, flight, alive)
                if answer is not None:
                    del flights[future]
                    self._meet(flight.worker, answer)
                    write(answer.lines)
                    for text in answer.notices:
                        self._notice(f"{flight.worker}: {text}")
                    yield flight.task, answer.cost
                elif reason is not None:
                    del flights[future]
                    future.release()
                    if flight.number < TRIES:
                        self._notice(f"{flight.task.problem}: {reason}; it is tried again elsewhere")
                        waiting.append((flight.task, flight.number + 1, flight.worker))
                        continue
                    write(self._given_up(flight, reason))
                    yield flight.task, Cost()

    def _next(self, waiting: list[tuple[Task, int, str]], address: str, alive: dict[str, float]) -> int:
        """Which task a free worker takes: the last of the list that is not bound elsewhere; if all are, the last.

        A task that was lost here goes elsewhere, one that was begun on another device goes on there.
        """
        homes = {self._home.get(other) for other in alive}
        for position in reversed(range(len(waiting))):
            task, _, before = waiting[position]
            elsewhere = task.home in homes and task.home != self._home.get(address)
            if not elsewhere and (before != address or len(alive) == 1):
                return position
        return len(waiting) - 1

    def _outcome(self, future: Future, flight: Flight, alive: dict[str, float]) -> tuple[Answer | None, str | None]:
        """The answer, or why there will be none; neither while it is on its way."""
        if future.status == "finished":
            return future.result(), None
        if future.status in ("error", "cancelled", "lost"):
            error = future.exception() if future.status == "error" else None
            if isinstance(error, (InvalidExperiment, NoWorker)):
                raise error
            return None, f"its worker {flight.worker} failed ({type(error).__name__}: {error})"
        if flight.worker not in alive:
            return None, f"its worker {flight.worker} is gone"
        if alive[flight.worker] != flight.seen:
            flight.seen, flight.since = alive[flight.worker], time.monotonic()
        elif time.monotonic() - flight.since > self._silent_s:
            self._lost.add(flight.worker)
            return None, f"its worker {flight.worker} was silent for {self._silent_s:g} s"
        return None, None

    def _given_up(self, flight: Flight, reason: str) -> list[str]:
        status = "timeout" if "silent" in reason else "crashed"
        self._notice(f"{flight.task.problem}: {reason}; it is given up")
        problem, home = flight.task.problem, self._home.get(flight.worker, "")
        note = f"lost {TRIES} times; {reason}"
        shape = (problem.m, problem.n, problem.k)
        return [rows.encode(Row(shape, index, status, note=note, device=home)) for index in flight.task.wanted]

    def close(self) -> None:
        """Nothing: the cluster belongs to whoever connected."""


@contextlib.contextmanager
def connected(scheduler: str | None, gpus: str | None, interpret: bool) -> Iterator[Client]:
    """A client of a running scheduler, or of a cluster of this host's GPUs: "all" or how many.

    Raises NoWorker where the scheduler does not answer, InvalidExperiment where the GPUs are not there.
    """
    with dask.config.set({"distributed.worker.daemon": False, "distributed.admin.tick.limit": "60s"}):
        if scheduler is not None:
            try:
                client = Client(scheduler, timeout=CONNECT_S)
            except (OSError, TimeoutError, ValueError) as error:
                raise NoWorker(f"no Dask scheduler answers at {scheduler}: {error}") from None
            with client:
                yield client
            return
        devices = visible_gpus(gpus or "all", interpret)
        with _one_worker_each(devices) as cluster, Client(cluster) as client:
            client.wait_for_workers(len(devices), timeout=STARTUP_S)
            yield client


def visible_gpus(wanted: str, interpret: bool) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for each worker. Raises InvalidExperiment for more than there are."""
    if wanted != "all" and not (wanted.isdecimal() and int(wanted)):
        raise InvalidExperiment(f"--gpus {wanted!r}: write all, or how many")
    if interpret:
        return [""] * (os.cpu_count() or 1 if wanted == "all" else int(wanted))
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
    if wanted != "all" and int(wanted) > len(there):
        raise InvalidExperiment(f"--gpus {wanted}: {len(there)} GPUs are here")
    return there if wanted == "all" else there[: int(wanted)]


def _one_worker_each(devices: list[str]) -> SpecCluster:
    """A local cluster with a worker for each GPU, which sees that one alone."""
    options = {"nthreads": 1, "dashboard_address": None, "silence_logs": 40}
    workers = {
        number: {"cls": Nanny, "options": options | {"env": {"CUDA_VISIBLE_DEVICES": device}}}
        for number, device in enumerate(devices)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": None, "port": 0, "host": "127.0.0.1"}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=40)
