"""Result rows: one JSON line a measurement, what is the same for a run once in its first line.

A run being measured is plain JSON lines, appended and flushed; a finished one is compressed (`.jsonl.xz`). Rows that a
kill left half-written are dropped with a notice.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from common.errors import DamagedRun, NoCandidate
from common.record import recorded
from common.statistics import RESAMPLES, Interval

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


HEADER = {"run": str, "candidates": list, "device": dict, "versions": dict, "dtype": str, "rounds": int}
"""What a header says at least, and as what."""
MOST_BYTES = 300
"""No row is longer, its newline included."""
PACKED = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}
"""How a finished run is compressed: as text, whose bytes lie at any place."""
LEAST_LIMITED = 200
"""Problems that a run with a limit needs to stand for its experiment: samples are drawn in random order, so that the
first ones are a smaller sample. What is shown of a run says how many problems it has."""


@dataclass(frozen=True)
class Row:
    """One measurement. `samples`: microseconds, empty unless the status is `ok` or the run timed wrong results too.

    `error`: relative to the reference's magnitude, None if nothing was computed. `clocks` (MHz), `watts` and `throttle`
    (NVML's bit mask of reasons): before and after the problem, by readings at most as old as the finished run's
    `telemetry_age_s`; empty where they are unknown. `device`: as `device_id` has it, in a file its number there; empty
    in runs that are older than this field.
    """

    problem: Problem
    candidate: int
    status: str
    samples: tuple[float, ...] = ()
    error: float | None = None
    relies_on_dispatch_order: bool = False
    note: str = ""
    clocks: tuple[int, ...] = ()
    watts: tuple[int, ...] = ()
    throttle: tuple[int, ...] = ()
    device: str = ""

    @property
    def median(self) -> float:
        """Microseconds."""
        return float(statistics.median(self.samples))


def device_id(device: dict[str, Any]) -> str:
    """What a row calls a device: the first part of a GPU's UUID; "cpu" where kernels are interpreted."""
    return str(device.get("uuid") or "cpu").removeprefix("GPU-").split("-")[0]


@dataclass
class Run:
    """A run: its header and its rows. `joined`: devices that are not the header's."""

    path: Path
    header: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    finished: dict[str, Any] | None = None
    joined: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.header["run"]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        return self.header["candidates"]

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        """Every device of the run by its id: the header's, then those that joined."""
        return {device_id(device): device for device in (self.header["device"], *self.joined)}

    @property
    def device_name(self) -> str:
        """The device's name, and how many of them measured where it was more than one."""
        measured = {row.device for row in self.rows}
        name = self.header["device"]["name"]
        return f"{len(measured)} x {name}" if len(measured) > 1 else name

    def index(self, label: str) -> int:
        """The candidate with this label. Raises NoCandidate naming the labels."""
        labels = [c["label"] for c in self.candidates]
        if label not in labels:
            raise NoCandidate(f"{self.path.name}: no candidate {label!r}; there are {', '.join(labels)}")
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

    @cached_property
    def floor_us(self) -> float | None:
        """Median microseconds of an empty kernel, which every other one takes besides; None where none was measured."""
        empty = [c["label"] for c in self.candidates if c["variant"] == "empty"]
        found = self.medians(empty[0]).values() if empty else []
        return statistics.median(found) if found else None

    def speedups(self, label: str, baseline: str = "torch_matmul") -> dict[Problem, float]:
        """Baseline's median over the candidate's, for the problems that both got right on the same device."""
        base, mine = self.medians(baseline), self.medians(label)
        table = [self.by_candidate.get(self.index(name), {}) for name in (baseline, label)]
        return {p: base[p] / mine[p] for p in mine if p in base and table[0][p].device == table[1][p].device}

    def counts(self, label: str) -> dict[str, int]:
        """Rows by status."""
        found = [row.status for row in self.by_candidate.get(self.index(label), {}).values()]
        return {status: found.count(status) for status in STATUSES if status in found}


def encode(row: Row) -> str:
    """A row as one line of at most 300 bytes with its newline."""
    record: dict[str, Any] = {"p": row.problem, "c": row.candidate, "s": row.status}
    if row.samples:
        record["us"] = [_rounded(sample) for sample in row.samples]
    if row.error is not None:
        record["e"] = float(f"{row.error:.3g}") if math.isfinite(row.error) else str(row.error)
    if row.relies_on_dispatch_order:
        record["d"] = 1
    if row.device:
        record["g"] = row.device
    record |= {name: value for name, value in (("clk", row.clocks), ("w", row.watts), ("thr", row.throttle)) if value}
    line = json.dumps(record, separators=(",", ":"), allow_nan=False)
    room = MOST_BYTES - len(line) - len(',"note":""\n')
    if row.note and room > 0:
        note = row.note.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
        record["note"] = "".join(c for c in note if c.isprintable())[:room]
        line = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return line


def _rounded(microseconds: float) -> float:
    """To 0.01, from 1,000 on to five digits, which is finer than any two samples agree."""
    if microseconds >= 10_000:
        return int(float(f"{microseconds:.5g}"))
    return round(microseconds, 1 if microseconds >= 1000 else 2)


def decode(record: dict[str, Any]) -> Row:
    """The row that `encode` wrote, once read as JSON. Raises ValueError where it is none."""
    try:
        m, n, k = record["p"]
        row = Row(
            (int(m), int(n), int(k)),
            int(record["c"]),
            str(record["s"]),
            tuple(float(sample) for sample in record.get("us", ())),
            None if record.get("e") is None else float(record["e"]),
            bool(record.get("d")),
            str(record.get("note", "")),
            *(tuple(int(value) for value in record.get(name, ())) for name in ("clk", "w", "thr")),
            device=str(record.get("g", "")),  # `read_run` puts the device's id for its number
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a row: {str(record)[:80]}") from error
    if row.status not in STATUSES:
        raise ValueError(f"{row.status!r} is no status: {', '.join(STATUSES)}")
    if min(row.problem) < 0:
        raise ValueError(f"{'x'.join(map(str, row.problem))} is no problem")
    wrong = [sample for sample in row.samples if not (math.isfinite(sample) and sample > 0)]
    if wrong:
        raise ValueError(f"a sample of {wrong[0]:g} us: samples are finite and above 0")
    if row.error is not None and (not row.error >= 0 or (row.status == "ok" and math.isinf(row.error))):
        raise ValueError(f"an error of {row.error} with status {row.status}")
    return row


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a run. Raises DamagedRun where it is no header."""
    return _header(path, _lines(path))


def read_run(path: Path) -> Run:
    """Read a run, compressed or not; a half-written last line is left out with a warning.

    Raises DamagedRun naming file and line where the first one is no header or a later one no row of this run.
    """
    lines = _lines(path)
    last = lines.pop() if lines and not _whole(lines[-1]) else None
    run = Run(path, _header(path, lines))
    if last is not None:
        warnings.warn(f"{path}:{len(lines) + 1}: the last line is half-written and left out", stacklevel=2)
    for number, line in enumerate(lines[1:], 2):
        try:
            _take(run, _parsed(line))
        except ValueError as error:
            raise DamagedRun(f"{path}:{number}: {error}") from None
    if path.suffix == ".xz" and run.finished is None:
        raise DamagedRun(f"{path}:{len(lines)}: the end is missing: a compressed run says that it is finished")
    return run


def _take(run: Run, record: Any) -> None:
    """Add a line's record to a run. Raises ValueError where it is none of this run."""
    if isinstance(record, dict) and isinstance(record.get("finished"), dict):
        run.finished = record["finished"]
    elif isinstance(record, dict) and isinstance(record.get("device"), dict) and "name" in record["device"]:
        run.joined.append(record["device"])
    else:
        row = decode(record)
        number = record.get("g")
        if isinstance(number, int):
            devices = list(run.devices)
            if not 0 <= number < len(devices):
                raise ValueError(f"device {number}: {len(devices)} are known so far")
            row = replace(row, device=devices[number])
        _check_fit(row, run)
        run.rows.append(row)


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        return (lzma.decompress(data) if path.suffix == ".xz" else data).decode(errors="replace").splitlines(True)
    except OSError as error:
        raise DamagedRun(f"{path}: {error.strerror or error}") from None
    except lzma.LZMAError as error:
        raise DamagedRun(f"{path}:1: not readable as xz: {error}") from None


def _header(path: Path, lines: list[str]) -> dict[str, Any]:
    try:
        header = _parsed(lines[0]) if lines else None
    except ValueError as error:
        raise DamagedRun(f"{path}:1: {error}") from None
    if not isinstance(header, dict) or "run" not in header:
        raise DamagedRun(f"{path}:1: not a run: its first line is no header")
    lacking = [key for key, kind in HEADER.items() if not isinstance(header.get(key), kind)]
    if not lacking and not all(isinstance(c, dict) and {"label", "variant"} <= c.keys() for c in header["candidates"]):
        lacking = ["label and variant of each candidate"]
    if not lacking and "name" not in header["device"]:
        lacking = ["the device's name"]
    if lacking:
        raise DamagedRun(f"{path}:1: the header lacks {', '.join(lacking)}")
    return recorded(header, path)


def _parsed(line: str) -> Any:
    """A line's JSON, in which NaN and Infinity, which Python takes for numbers, are none. Raises ValueError."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no number")

    try:
        return json.loads(line, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON: {error.msg}: {line.strip()[:60]}") from None


def _check_fit(row: Row, run: Run) -> None:
    """Raise ValueError where a row cannot be of a run with this header."""
    if not 0 <= row.candidate < len(run.candidates):
        raise ValueError(f"candidate {row.candidate}: the header has 0 to {len(run.candidates) - 1}")
    if row.status == "ok" and not row.samples and not run.header.get("dry_run"):
        raise ValueError("ok without a sample, in a run that was timed")


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
    partial.write_bytes(lzma.compress(path.read_bytes(), filters=[PACKED]))
    os.replace(partial, packed)
    path.unlink()
    return packed


def runs(results: Path, experiment: str) -> list[Path]:
    """The runs of an experiment, oldest first (a run's name begins with its date)."""
    return sorted([*results.glob(f"{experiment}-*.jsonl"), *results.glob(f"{experiment}-*.jsonl.xz")])


def newest_run(results: Path, experiment: str, device: str | None = None) -> Run | None:
    """The newest finished run of a whole experiment; where there is none, of at least LEAST_LIMITED first problems.

    No dry run, and None without any. `device`: on this device alone, by its name. Raises DamagedRun where a finished
    one that is newer cannot be read: an older one must not take its place unseen.
    """
    limited = None
    for path in reversed(runs(results, experiment)):
        if path.suffix != ".xz" and not says_finished(path):
            continue
        if device is not None and read_header(path)["device"]["name"] != device:
            continue
        run = read_run(path)
        if not run.finished or run.header.get("dry_run"):
            continue
        limit = run.header.get("limit")
        if not limit:
            return run
        if limited is None and limit >= LEAST_LIMITED:
            limited = run
    return limited


def paired(run: Run, x: Row, y: Row) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The samples of two rows of a problem as pairs of rounds. Raises DamagedRun where they are not equally many."""
    if len(x.samples) != len(y.samples):
        labels = [f"{len(row.samples)} samples of {run.candidates[row.candidate]['label']}" for row in (x, y)]
        shape = "x".join(map(str, x.problem))
        raise DamagedRun(f"{run.path}: {shape}: {', '.join(labels)}: pairs of rounds are needed")
    return x.samples, y.samples


def says_finished(path: Path) -> bool:
    """Whether a plain run's last whole line says that the run ended, whatever the other lines hold."""
    return any(line.startswith('{"finished"') for line in _lines(path)[-2:])


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios: a speed-up of 2 and one of 1/2 make 1."""
    return float(stats.gmean(list(values)))


def mean_interval(values: Sequence[float]) -> Interval:
    """The geometric mean of ratios with its 95 % bootstrap interval over shapes."""
    return Interval(geometric_mean(values), *bootstrap_interval(values), len(values))


def bootstrap_interval(values: Iterable[float], statistic: str = "gmean", seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the geometric mean or the median; the value twice where it cannot vary."""
    sample = np.asarray(list(values), dtype=float)
    if len(sample) < 2 or np.ptp(sample) == 0:
        return float(sample[0]), float(sample[0])
    function = {"gmean": stats.gmean, "median": np.median}[statistic]
    batch = 2000 if len(sample) < 16384 else 100  # all resamples of a whole corpus at once would take gigabytes
    generator, options = np.random.default_rng(seed), {"method": "percentile", "vectorized": True, "batch": batch}
    result = stats.bootstrap((sample,), function, n_resamples=RESAMPLES, rng=generator, **options)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
