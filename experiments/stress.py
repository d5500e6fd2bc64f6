"""Stress on a GPU: a process a variant, each with a time limit and watched for what it is doing; rows as they come.

Source of the modes: a lock that is right in one order may be wrong in another, so launches follow each other with
changed inputs, on two streams, from Python and from graphs, and beside a kernel that holds part of the GPU.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import variants
from common import documents
from common.errors import UnsupportedProblem, nearest
from experiments.stress_child import MODES, Task, serve

# Without the CUDA calls that fail: Triton's loader asks for an attribute that a device may not have and takes no for an
# answer, and a launch that fails is an exception in Python.
TOOLS = {
    "memcheck": ["--report-api-errors", "no"],
    "synccheck": [],
    "racecheck": ["--racecheck-report", "all", "--print-limit", "2000"],
}
"""Of compute-sanitizer, with options; racecheck sees shared memory only."""
SANITIZER = "sanitizer"
"""A mode beside those of the children."""
INTERPRETED = "random"
"""The mode that runs without a GPU."""
SANITIZER_SECONDS = 240.0
"""For everything that compute-sanitizer does, unless said otherwise."""
PAIR_SECONDS = 90.0
"""For one tool on one variant: the sanitizer makes some kernels a thousand times slower."""
FOUND_ERRORS = 23
"""compute-sanitizer's exit code where it found something, to be told from a program's own."""
MARK = "========="
"""Begins a line of compute-sanitizer."""
MOST_SAID = 24
"""Lines of it that a row keeps."""
HAZARD = re.compile(
    r"Potential (?P<kind>\w+) hazard detected at __shared__ (?P<address>0x[0-9a-f]+) in block .*?"
    r"(?P<first>Write|Read) Thread \S+ at (?P<first_at>\S+ in \S+).*?"
    r"(?P<second>Write|Read) Thread \S+ at (?P<second_at>\S+ in \S+)",
    re.DOTALL,
)
"""Of racecheck, one for each pair of accesses."""
DISPLAYED = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
"""How much racecheck has reported: hazards, and for each access that has any a line more that begins with ACCESS."""
ACCESS = "Race reported between"
CTA_WINDOW = 1 << 24
"""Bytes of the addresses that each CTA of a cluster has."""
Notice = Callable[[str], None]


@dataclass
class Running:
    """A child at work: since when it has sent nothing, and what it said last that it was doing."""

    task: Task
    process: Any
    heard: float = field(default_factory=time.monotonic)
    doing: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stress:
    """Run children, `jobs` at a time; one that is silent for `limit` seconds is killed and its row says what it did."""

    tasks: list[Task]
    jobs: int = 4
    limit: float = 60.0
    notice: Notice = lambda _: None
    target: Callable[..., None] = serve

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row of every child as it comes, and one for each child that was killed or lost."""
        context = multiprocessing.get_context("spawn")
        waiting, running = list(self.tasks), {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    task = waiting.pop(0)
                    mine, theirs = context.Pipe()
                    process = context.Process(target=self.target, args=(theirs, task))
                    process.start()
                    theirs.close()
                    running[mine] = Running(task, process)
                for connection in multiprocessing.connection.wait(list(running), timeout=1.0):
                    yield from self._heard(connection, running)
                for connection, child in list(running.items()):
                    if time.monotonic() - child.heard > self.limit:
                        child.process.kill()
                        yield self._lost(child, "killed", f"silent for {self.limit:.0f} s")
                        self._close(connection, running)
        finally:
            for connection in list(running):
                running[connection].process.kill()
                self._close(connection, running)

    def _heard(self, connection: Any, running: dict[Any, Running]) -> Iterator[dict[str, Any]]:
        child = running[connection]
        child.heard = time.monotonic()
        try:
            kind, content = connection.recv()
        except EOFError:
            child.process.join(5)
            yield self._lost(child, "crashed", f"exit code {child.process.exitcode}")
            self._close(connection, running)
            return
        if kind == "doing":
            child.doing = content
        elif kind == "row":
            right = not content["wrong_elements"] and content.get("next_is_refused", True)
            yield {**content, "status": "ok" if right else "wrong"}
        else:
            if kind == "lost":
                yield self._lost(child, "crashed", content)
            else:
                self.notice(f"{child.task.variant} is done")
            self._close(connection, running)

    def _lost(self, child: Running, status: str, why: str) -> dict[str, Any]:
        self.notice(f"{child.task.variant} {status} ({why}) while {json.dumps(child.doing)}")
        at = {"variant": child.task.variant, "mode": child.doing.get("mode", "starting"), "doing": child.doing}
        return {**at, "status": status, "why": why, "launches": 0}

    @staticmethod
    def _close(connection: Any, running: dict[Any, Running]) -> None:
        child = running.pop(connection)
        connection.close()
        child.process.join(10)


def sanitized(
    names: list[str], notice: Notice, seconds: float = SANITIZER_SECONDS, jobs: int = 4
) -> list[dict[str, Any]]:
    """A row for each of compute-sanitizer's tools and each variant, on one small problem, all within `seconds`.

    Each pair has a process of its own, `jobs` of them at a time.
    """
    end = time.monotonic() + seconds
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        notice("compute-sanitizer is not installed: its rows say so")
        lacking = {"mode": SANITIZER, "status": "unavailable", "launches": 0}
        return [{**lacking, "tool": tool, "variant": name} for tool in TOOLS for name in names]

    def watch(pair: tuple[str, str]) -> dict[str, Any]:
        name, tool = pair
        status, summary, text = _watched(program, tool, name, min(end - time.monotonic(), PAIR_SECONDS))
        notice(f"{name} {tool}: {status} {summary}")
        row = {"mode": SANITIZER, "tool": tool, "variant": name, "status": status, "summary": summary, "launches": 1}
        row |= _launched(text)
        if status == "clean":
            return row
        hazards = _hazards(text, row.get("hand_over_bytes", []))
        row |= {"hazards": hazards} if hazards else {}
        return row if _is_all(text, hazards) else row | {"said": _said(text)}

    # The last first: the newest kernels are those that the tools slow down most.
    pairs = [(name, tool) for name in names for tool in TOOLS][::-1]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(watch, pairs))[::-1]


def _watched(program: str, tool: str, name: str, seconds: float) -> tuple[str, str, str]:
    """How it ended, in one line, and all that was printed."""
    if seconds <= 0:
        return "timeout", "no time was left for it", ""
    command = [program, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND_ERRORS), sys.executable]
    command += ["-m", "experiments.stress_child", name]
    # In a session of its own: the tool starts the program that holds the GPU, and both must go.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return "timeout", f"not over after {seconds:.0f} s: {_last_line(text)}", text
    # What the program prints as it ends may stand before the mark in the same line.
    lines = [line.rpartition(MARK)[2].strip() for line in text.splitlines() if "SUMMARY" in line]
    found = lines[-1] if lines else _last_line(text)
    if process.returncode == 0 and lines:
        return "clean", found, text
    return ("errors" if process.returncode == FOUND_ERRORS else "failed"), found, text


def _launched(text: str) -> dict[str, Any]:
    """What the child says it launched; nothing where it did not come to that."""
    found = re.search(r'\{"watched": (\{.*?\})\}', text)
    return json.loads(found[1]) if found else {}


def _said(text: str) -> list[str]:
    found = [line.rpartition(MARK)[2].strip() for line in text.splitlines() if MARK in line]
    return [line for line in found if line][:MOST_SAID]


def _hazards(text: str, hand_over: Sequence[int]) -> list[dict[str, Any]]:
    """Each pair of instructions between which racecheck reports hazards: where, at which addresses, how many.

    `elsewhere`: addresses beside those of `stress_child.hand_over_bytes`. A CTA of a cluster has its rank above them.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for hazard in HAZARD.finditer(text):
        pair = (hazard["kind"], *(f"{hazard[at].lower()} at {hazard[at + '_at']}" for at in ("first", "second")))
        told = found.setdefault(pair, {"kind": pair[0], "between": list(pair[1:]), "addresses": set(), "count": 0})
        told["addresses"].add(hazard["address"])
        told["count"] += 1
    for told in found.values():
        told["elsewhere"] = sum(int(address, 16) % CTA_WINDOW not in hand_over for address in told["addresses"])
        told["addresses"] = sorted(told["addresses"])
    return list(found.values())


def _is_all(text: str, hazards: Sequence[dict[str, Any]]) -> bool:
    """Whether these hazards are all that a tool has reported."""
    displayed = DISPLAYED.search(text)
    return displayed is not None and int(displayed[1]) == sum(told["count"] for told in hazards) + text.count(ACCESS)


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no output"])[-1][-200:]


def plan(
    launches: int, replays: int, problems: int, only: str | None, modes: str | None, seed: int, dry_run: bool
) -> Stress:
    """A task for each variant with kernels. Raises UnknownVariant, and UnsupportedProblem for what cannot be run."""
    every = [name for name in variants.all_names() if variants.get(name).card.kernels]
    if dry_run:
        every = [name for name in every if variants.get(name).card.language == "triton"]
    names = [variants.resolve(name) for name in only.split(",")] if only else every
    for name in names:
        if name not in every:
            why = (
                "no kernels of its own" if not variants.get(name).card.kernels else "no kernel that can be interpreted"
            )
            raise UnsupportedProblem(f"{name} has {why}")
    wanted = tuple(modes.split(",")) if modes else (*MODES, SANITIZER)
    for mode in wanted:
        if mode not in (*MODES, SANITIZER):
            raise UnsupportedProblem(f"no mode {mode!r}; nearest: {nearest(mode, (*MODES, SANITIZER))}")
        if dry_run and modes and mode != INTERPRETED:
            raise UnsupportedProblem(f"mode {mode!r} needs a GPU; the interpreter has {INTERPRETED!r} alone")
    each = -(-launches // len(names))
    return Stress([Task(name, each, replays, problems, seed, wanted) for name in names])


def record(stress: Stress, out: Path, **facts: Any) -> Path:
    """Run every child, append rows to `stress.jsonl` as they come, and write them as a document at the end.

    Returns the document's path. What a kill leaves is the JSON lines.
    """
    head, rows = documents.header(**facts), []
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "stress.jsonl"
    began = said = time.monotonic()
    with lines.open("w") as file:

        def keep(row: dict[str, Any]) -> None:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()

        file.write(json.dumps(head) + "\n")
        for row in stress.rows():
            keep(row)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                stress.notice(f"{said - began:.0f} s: {summary(rows)}")
    head["seconds"] = round(time.monotonic() - began, 1)
    path = documents.write(out, "stress", head, rows)
    lines.unlink()
    return path


def summary(rows: list[dict[str, Any]]) -> str:
    """Launches, and how many pieces of work ended in which way."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{sum(row['launches'] for row in rows):,} launches; pieces of work: {told or 'none'}"
