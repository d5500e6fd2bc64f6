"""Result rows: one JSON line a measurement, what is the same for a run once in its first line.

A run being measured is plain JSON lines, appended and flushed; a finished one is compressed (`.jsonl.xz`). Rows that a
kill left half-written are dropped with a notice.
"""

from __future__ import annotations

import json
import lzma
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

Problem = tuple[int, int, int]
STATUSES = (
    "ok",
    "incorrect",
    "unsupported",
    "not_co_resident",
    "out_of_resources",
    "compile_error",
    "timeout",
    "crashed",
)


@dataclass(frozen=True)
class Row:
    """One measurement. `samples`: microseconds of device time, empty unless the status is `ok`."""

    problem: Problem
    candidate: int
    status: str
    samples: tuple[float, ...] = ()
    error: float | None = None
    relies_on_dispatch_order: bool = False
    note: str = ""

    @property
    def median(self) -> float:
        """Microseconds."""
        return float(np.median(self.samples))


@dataclass
class Run:
    """A run: its header and its rows."""

    path: Path
    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    finished: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.header["run"]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        return self.header["candidates"]

    def index(self, label: str) -> int:
        """The candidate with this label; LookupError naming the labels otherwise."""
        labels = [c["label"] for c in self.candidates]
        if label not in labels:
            raise LookupError(f"{self.path.name}: no candidate {label!r}; there are {', '.join(labels)}")
        return labels.index(label)

    @cached_property
    def by_candidate(self) -> dict[int, dict[Problem, Row]]:
        table: dict[int, dict[Problem, Row]] = {}
        for row in self.rows:
            table.setdefault(row.candidate, {})[row.problem] = row
        return table

    def medians(self, label: str) -> dict[Problem, float]:
        """Median microseconds by problem, of correct results alone."""
        found = self.by_candidate.get(self.index(label), {})
        return {p: row.median for p, row in found.items() if row.status == "ok" and row.samples}

    def speedups(self, label: str, baseline: str = "torch_matmul") -> dict[Problem, float]:
        """Baseline's median over the candidate's, for the problems that both got right."""
        base, mine = self.medians(baseline), self.medians(label)
        return {p: base[p] / mine[p] for p in mine if p in base}

    def counts(self, label: str) -> dict[str, int]:
        """Rows by status."""
        found = [row.status for row in self.by_candidate.get(self.index(label), {}).values()]
        return {status: found.count(status) for status in STATUSES if status in found}


def encode(row: Row, extra: dict[str, Any] | None = None) -> str:
    """A row as one line of at most 300 bytes; `extra` holds clocks, power and throttle reasons."""
    record: dict[str, Any] = {"p": row.problem, "c": row.candidate, "s": row.status}
    if row.samples:
        record["us"] = [round(sample, 2) for sample in row.samples]
    if row.error is not None:
        record["e"] = float(f"{row.error:.3g}") if np.isfinite(row.error) else None
    if row.relies_on_dispatch_order:
        record["d"] = 1
    if row.note:
        record["note"] = row.note[:120]
    return json.dumps(record | (extra or {}), separators=(",", ":"), allow_nan=False)


def decode(record: dict[str, Any]) -> Row:
    return Row(
        tuple(record["p"]),
        record["c"],
        record["s"],
        tuple(record.get("us", ())),
        record.get("e"),
        bool(record.get("d")),
        record.get("note", ""),
    )


def read_run(path: Path) -> Run:
    """Read a run, compressed or not. A half-written last line is left out with a warning; ValueError without a header."""
    opened = lzma.open(path, "rt") if path.suffix == ".xz" else path.open()
    with opened as file:
        lines = file.read().splitlines(keepends=True)
    if lines and not _whole(lines[-1]):
        warnings.warn(f"{path}: the last line is half-written and left out", stacklevel=2)
        lines.pop()
    records = [json.loads(line) for line in lines]
    if not records or "run" not in records[0]:
        raise ValueError(f"{path} is not a run: its first line is no header")
    run = Run(path, records[0])
    for record in records[1:]:
        if "finished" in record:
            run.finished = record["finished"]
        else:
            run.rows.append(decode(record))
    return run


def _whole(line: str) -> bool:
    if not line.endswith("\n"):
        return False
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def drop_half_written_line(path: Path) -> bool:
    """Cut a half-written last line off a run that was killed; whether there was one."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    if not lines or _whole(lines[-1].decode(errors="replace")):
        return False
    with path.open("rb+") as file:
        file.truncate(len(data) - len(lines[-1]))
    return True


def compress(path: Path) -> Path:
    """Replace a finished run by its compressed form."""
    packed = path.with_suffix(path.suffix + ".xz")
    partial = packed.with_suffix(".partial")
    partial.write_bytes(lzma.compress(path.read_bytes(), preset=9))
    os.replace(partial, packed)
    path.unlink()
    return packed


def runs(results: Path, experiment: str) -> list[Path]:
    """The runs of an experiment, oldest first (a run's name begins with its date)."""
    return sorted([*results.glob(f"{experiment}-*.jsonl"), *results.glob(f"{experiment}-*.jsonl.xz")])


def newest_run(results: Path, experiment: str) -> Run | None:
    """The newest finished run of an experiment, or None."""
    for path in reversed(runs(results, experiment)):
        run = read_run(path)
        if run.finished:
            return run
    return None


def geometric_mean(values: Iterable[float]) -> float:
    return float(stats.gmean(list(values)))


def bootstrap_interval(values: Iterable[float], statistic: str = "gmean", seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the geometric mean or the median; the value twice where it cannot vary."""
    sample = np.asarray(list(values), dtype=float)
    if len(sample) < 2 or np.ptp(sample) == 0:
        return float(sample[0]), float(sample[0])
    function = {"gmean": stats.gmean, "median": np.median}[statistic]
    result = stats.bootstrap(
        (sample,), function, n_resamples=2000, method="percentile", rng=np.random.default_rng(seed), vectorized=True
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
