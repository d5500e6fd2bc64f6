"""What ran where and when in one launch: a segment of a program on an SM, put on one time axis and kept as a file.

The file is Chrome's trace format, compressed: https://ui.perfetto.dev opens it, and figures read it again.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from common.errors import DamagedRun

PREFIX, SUFFIX = "trace-", ".json.gz"
GZIP = b"\x1f\x8b"
FACTS = ("trace", "variant", "problem", "iterations_per_tile")
TIMED = ("config", "device", "versions", "overhead", "timer_step_ns")
"""What a timeline says of its launch; the latter where it has times."""


@dataclass(frozen=True)
class Span:
    """A segment as it ran: MAC iterations [start, stop) of a tile, counted from the tile's first.

    `program`: counted over all kernels of the launch. `began`, `computed`, `ended`: nanoseconds from the launch's first
    begin to this segment's begin, the end of its MAC loop, and the moment when its last store was issued. `waited`:
    nanoseconds of spinning between the last two. In the interpreter they are clock reads, not nanoseconds.
    """

    kernel: int
    program: int
    sm: int
    tile: int
    start: int
    stop: int
    began: float
    computed: float
    waited: float
    ended: float

    @property
    def fix_up(self) -> float:
        """Nanoseconds behind the MAC loop that were not spent spinning."""
        return self.ended - self.computed - self.waited


COLUMNS = tuple(f.name for f in fields(Span))


@dataclass(frozen=True)
class Timeline:
    """The spans of a launch in the order in which they began, and what is known about the launch."""

    facts: dict[str, Any]
    spans: tuple[Span, ...]

    @property
    def id(self) -> str:
        return self.facts["trace"]

    @property
    def length(self) -> float:
        """Nanoseconds from the first begin to the last end."""
        return max(span.ended for span in self.spans)

    def summary(self) -> dict[str, Any]:
        """Where the programs' time went. Shares are of the time of all programs, `busy` of the time of all SMs."""
        if self.facts.get("dry_run"):
            return {"programs": len(self._lives()), "segments": len(self.spans)}
        sms = self.facts["device"]["sms"]
        programs = sum(ended - began for began, ended in self._lives().values())
        computing = sum(span.computed - span.began for span in self.spans)
        waiting = [span.waited for span in self.spans]
        fixing = sum(span.fix_up for span in self.spans if span.stop - span.start < self.facts["iterations_per_tile"])
        return {
            "length_us": round(self.length / 1000, 3),
            "sms_used": len({span.sm for span in self.spans}),
            "programs": len(self._lives()),
            "segments": len(self.spans),
            "last_program_began_us": round(max(began for began, _ in self._lives().values()) / 1000, 3),
            "mac_share": round(computing / programs, 4),
            "wait_share": round(sum(waiting) / programs, 4),
            "fix_up_share": round(fixing / programs, 4),
            "longest_wait_us": round(max(waiting) / 1000, 3),
            "sm_time_used": round(programs / (sms * self.length), 4),
        }

    def _lives(self) -> dict[int, tuple[float, float]]:
        """Begin and end of each program."""
        lives: dict[int, tuple[float, float]] = {}
        for span in self.spans:
            began, ended = lives.get(span.program, (span.began, span.ended))
            lives[span.program] = (min(began, span.began), max(ended, span.ended))
        return lives

    def lanes(self) -> dict[int, int]:
        """For each program its lane, from 0; programs that share an SM at the same time have different ones."""
        lives, homes = self._lives(), {span.program: span.sm for span in self.spans}
        free: dict[int, list[int]] = defaultdict(list)
        running: dict[int, list[tuple[float, int]]] = defaultdict(list)
        lane: dict[int, int] = {}
        for program in sorted(lives, key=lambda p: lives[p]):
            sm, (began, ended) = homes[program], lives[program]
            while running[sm] and running[sm][0][0] <= began:
                heapq.heappush(free[sm], heapq.heappop(running[sm])[1])
            lane[program] = heapq.heappop(free[sm]) if free[sm] else len(running[sm])
            heapq.heappush(running[sm], (ended, lane[program]))
        return lane

    def events(self) -> list[dict[str, Any]]:
        """Complete events ("ph": "X") of MAC loops, waits and fix-ups, one track for each lane of an SM."""
        lanes = self.lanes()
        tracks = {(span.sm, lanes[span.program]) for span in self.spans}
        found: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": self.id}}]
        for sm, lane in sorted(tracks):
            place = {"ph": "M", "pid": 0, "tid": _track(sm, lane)}
            found.append(place | {"name": "thread_name", "args": {"name": f"SM {sm:03d}.{lane}"}})
            found.append(place | {"name": "thread_sort_index", "args": {"sort_index": _track(sm, lane)}})
        for span in self.spans:
            ready = span.computed + span.waited
            parts = [(f"tile {span.tile}", "mac", span.began, span.computed)]
            parts += [("wait", "wait", span.computed, ready)] if span.waited else []
            parts += [("store or fix-up", "fix-up", ready, span.ended)]
            args = {"program": span.program, "kernel": span.kernel, "iterations": [span.start, span.stop]}
            for name, category, begin, end in parts:
                event = {"ph": "X", "name": name, "cat": category, "ts": begin / 1000, "dur": (end - begin) / 1000}
                found.append(event | {"pid": 0, "tid": _track(span.sm, lanes[span.program]), "args": args})
        return found

    def write(self, folder: Path) -> Path:
        """Write the file into a folder; the same timeline gives the same bytes."""
        table = [[round(v, 1) if isinstance(v, float) else v for v in astuple(span)] for span in self.spans]
        other = self.facts | {"summary": self.summary(), "columns": COLUMNS, "segments": table}
        text = json.dumps(
            {"displayTimeUnit": "ns", "traceEvents": self.events(), "otherData": other}, separators=(",", ":")
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.id}{SUFFIX}"
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        return path


def _track(sm: int, lane: int) -> int:
    return 1 + sm * 32 + lane


def read(path: Path) -> Timeline:
    """The timeline of a file, compressed or not. Raises DamagedRun naming the file where it is none."""
    try:
        content = path.read_bytes()
        other = json.loads(gzip.decompress(content) if content.startswith(GZIP) else content)["otherData"]
        columns, table = other.pop("columns"), other.pop("segments")
        spans = tuple(Span(**dict(zip(columns, row, strict=True))) for row in table)
        lacking = [name for name in (*FACTS, *(() if other.get("dry_run") else TIMED)) if name not in other]
    except KeyError as error:
        raise DamagedRun(f"{path} is no timeline of `python -m variants trace`: it has no {error}") from None
    except (TypeError, AttributeError):
        raise DamagedRun(f"{path} is no timeline of `python -m variants trace`: other JSON than it writes") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DamagedRun(f"{path} is no timeline of `python -m variants trace`: {why}") from None
    if lacking or not spans:
        lacks = ", ".join(lacking) or "segments"
        raise DamagedRun(f"{path} is no timeline of `python -m variants trace`: it has no {lacks}")
    return Timeline(other, spans)


def newest(results: Path, problem: tuple[int, int, int]) -> list[Timeline]:
    """The newest timeline of every variant that was traced on a problem, by the variants' names; none interpreted."""
    found = {}
    for path in sorted(results.glob(f"{PREFIX}*-{'x'.join(map(str, problem))}-*{SUFFIX}")):
        timeline = read(path)
        if not timeline.facts.get("dry_run"):
            found[timeline.facts["variant"]] = timeline
    return [found[name] for name in sorted(found)]


def aligned(records: Iterable[Mapping[str, int]], iters_per_tile: int) -> tuple[tuple[Span, ...], dict[str, float]]:
    """Records of `common.tracing` on one time axis, and how that was done.

    Cycles become nanoseconds by the rate that all SMs' records show together. Each SM's zero is where its cycles agree
    with the global timer; the timer shows a time late by up to one step, so the largest of the differences is taken.
    Raises ValueError where there are no records or no time passed.
    """
    records = list(records)
    by_sm: dict[int, list[Mapping[str, int]]] = defaultdict(list)
    for record in records:
        by_sm[record["sm"]].append(record)
    cycles = sum(max(r["ended"] for r in mine) - min(r["began"] for r in mine) for mine in by_sm.values())
    nanoseconds = sum(max(r["left"] for r in mine) - min(r["timed"] for r in mine) for mine in by_sm.values())
    if not records or not nanoseconds or not cycles:
        raise ValueError("nothing was recorded: the launch has no segment, or the clocks do not run")
    rate = cycles / nanoseconds
    zero = {
        sm: max(max(r["timed"] - r["began"] / rate, r["left"] - r["ended"] / rate) for r in mine)
        for sm, mine in by_sm.items()
    }
    first = min(r["began"] / rate + zero[r["sm"]] for r in records)
    spans = [_span(r, rate, zero[r["sm"]] - first, iters_per_tile) for r in records]
    times = sorted({r[name] for r in records for name in ("timed", "left")})
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    how = {"cycles_per_ns": round(rate, 4), "timer_step_ns": min(steps, default=0)}
    return tuple(sorted(spans, key=lambda span: (span.began, span.program))), how


def _span(record: Mapping[str, int], rate: float, zero: float, iters_per_tile: int) -> Span:
    start = record["first"] % iters_per_tile  # kernels count iterations from the tile's first or from the first tile's
    return Span(
        *(record[name] for name in ("kernel", "program", "sm", "tile")),
        start,
        start + record["last"] - record["first"],
        *(record[name] / rate + zero for name in ("began", "computed")),
        record["waited"] / rate,
        record["ended"] / rate + zero,
    )
