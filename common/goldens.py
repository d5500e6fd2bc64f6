"""Committed tables of what compiled kernels take, one a version of Triton: to see drift, and to draw it.

A table is a CSV file of one row a kernel, architecture and config, below a line that says what made it. The same
source and the same Triton give the same row on any machine, for the wheel carries its assembler.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import triton_versions
from common.architectures import ARCHITECTURES
from common.card import Card, Config
from common.compiled import Job, jobs_of
from common.inspection import Inspection
from common.machine_code import KINDS

FOLDER = triton_versions.ROOT / "tests" / "golden"
COMMON = {"block": (128, 128, 32), "num_warps": 4, "num_stages": 3, "full_tiles_warps": 4, "full_tiles_stages": 3}
"""Launch parameters at which variants are compared with one another."""
DRIFT = ("2.0.0", "2.1.0", "3.6.0", "3.9.0")
"""Versions with a committed table."""
DRIFT_ARCHITECTURES = ("sm_80", "sm_86")
"""The thread's GPUs, the only ones that its Tritons compile for and that this project asks of them."""
ORDER_ARCHITECTURES = ("sm_80", "sm_90")
"""Where atomics with acquire-release order are compiled beside relaxed ones."""

KEY = ("variant", "kernel", "architecture", "launch", "order", "sem")
_PLAIN = ("status", "registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "static_shared_bytes")
_PLAIN += ("dynamic_shared_bytes", "programs_per_sm", "code_bytes", "instructions", "loop_depth", "hot_loops")
COLUMNS = (*KEY, *_PLAIN, *KINDS, *(f"hot_{kind}" for kind in KINDS), "locks_set", "locks_after_barrier", "error")

LOOSE_BACKEND, LOOSE_BY = "gfx", 0.03
"""LLVM's code for AMD GPUs is not the same in every process: v08's first wave for gfx942 took 213 registers in most and
217 in some, of one TTGIR by one Triton 3.9. There these counts may differ by a share; all others are exact."""
LOOSE_COLUMNS = ("registers", "code_bytes", "instructions", "integer", "hot_integer")

Row = dict[str, str]


def file(version: str, folder: Path = FOLDER) -> Path:
    """Where a version's table lies."""
    return folder / f"resources-triton-{version}.csv"


def jobs(name: str, path: Path, card: Card, version: str) -> list[Job]:
    """What a variant's part of a version's table compiles.

    With the installed version: its card's config on every architecture; the thread's variants and the baselines also
    at COMMON, at 128x128x32 on the thread's GPUs, and with acquire-release atomics. With others: the thread's
    variants and the baselines, on the thread's GPUs, at 128x128x32 and at COMMON.
    """
    every = list(ARCHITECTURES.values())
    of_thread = card.position != "beyond the thread"
    block = {"block": COMMON["block"]}
    asked: list[tuple[dict[str, Any], Iterable[str]]] = []
    if version == triton_versions.installed():
        asked.append(({}, ARCHITECTURES))
        if of_thread:
            asked += [(COMMON, ARCHITECTURES), (block, DRIFT_ARCHITECTURES)]
            asked += [(COMMON | {"sem": "acq_rel"}, ORDER_ARCHITECTURES)] if _adds_to_c(card) else []
    elif of_thread:
        asked += [(block, DRIFT_ARCHITECTURES), (COMMON, DRIFT_ARCHITECTURES)]
    found = [
        job
        for changes, names in asked
        for job in jobs_of(name, path, [a for a in every if a.name in names], changes, version, card)
        if not changes.get("sem") or job.kernel != "full_tiles"
    ]
    return list({_job_key(job): job for job in found}.values())


def _adds_to_c(card: Card) -> bool:
    return "atomic_add" in card.fix_up


def _job_key(job: Job) -> tuple[Any, ...]:
    """What tells a job's row from others: a full-tiles kernel has warps and stages of its own."""
    warps, stages = job.config.num_warps, job.config.num_stages
    if job.kernel == "full_tiles":
        warps, stages = job.config.full_tiles_warps or warps, job.config.full_tiles_stages or stages
    return (job.kernel, job.architecture, job.config.block, warps, stages, job.config.order, job.config.sem)


def row(record: Inspection) -> Row:
    """A record as the table's row."""
    config = Config(**record.config | {"block": tuple(record.config["block"])})
    values: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    values |= {"variant": record.variant, "kernel": record.kernel, "architecture": record.architecture}
    values |= {"launch": record.launch_label, "order": config.order, "sem": config.sem, "error": record.error}
    values |= {kind: record.mix.get(kind, 0) for kind in KINDS}
    values |= {f"hot_{kind}": record.hot_mix.get(kind, 0) for kind in KINDS}
    values |= {"locks_set": len(record.lock_barriers), "locks_after_barrier": sum(record.lock_barriers)}
    return {name: str(values[name]) for name in COLUMNS}


def table(version: str, records: Iterable[Inspection]) -> str:
    """The text of a version's file."""
    records = list(records)
    made_by = ", ".join(sorted({r.assembler for r in records if r.assembler}))
    out = io.StringIO()
    out.write(f"# Triton {version}; {made_by}; bytes; made by `make goldens`\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row(record) for record in records)
    return out.getvalue()


def read(version: str, folder: Path = FOLDER) -> list[Row]:
    """A version's rows, none where it has no table. Raises ValueError for a file that is no such table."""
    path = file(version, folder)
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        next(lines, None)
        reader = csv.DictReader(lines)
        rows = list(reader)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError(f"{path}: its columns are not those of this version of the project: make goldens")
    return rows


def key(one: Row) -> tuple[str, ...]:
    """What a row is about."""
    return tuple(one[name] for name in KEY)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row that is not as committed: `column` None where it is missing or new."""

    about: tuple[str, ...]
    column: str | None
    committed: str
    found: str

    def __str__(self) -> str:
        place = " ".join(self.about)
        if self.column is None:
            return f"{place}: {self.committed} in the table, {self.found} now"
        return f"{place}: {self.column} {self.committed} → {self.found}"


def differences(committed: list[Row], found: list[Row], whole: bool = True) -> list[Difference]:
    """Every value that differs. With `whole`, rows of the table that were not found again count too."""
    old, new = ({key(one): one for one in rows} for rows in (committed, found))
    result = [Difference(about, None, "absent", "there") for about in new if about not in old]
    result += [Difference(about, None, "there", "absent") for about in old if whole and about not in new]
    for about in (about for about in new if about in old):
        result += [
            Difference(about, name, old[about][name], new[about][name])
            for name in COLUMNS
            if not _alike(name, old[about], new[about])
        ]
    return result


def _alike(column: str, a: Row, b: Row) -> bool:
    if a[column] == b[column]:
        return True
    if column not in LOOSE_COLUMNS or not a["architecture"].startswith(LOOSE_BACKEND):
        return False
    return abs(int(a[column]) - int(b[column])) <= LOOSE_BY * int(a[column])
