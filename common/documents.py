"""Small committed measurements that are no sweep: one JSON document with where it is from and a list of records.

`facts-DATE.json`, `counters-DATE.json` and the like lie beside the runs of `common.rows`.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import device
from common.errors import DamagedRun
from common.record import recorded


@dataclass(frozen=True)
class Document:
    """`header`: date, commit, device, versions, and `dry_run` where nothing of it is a measurement on a GPU."""

    path: Path
    header: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def id(self) -> str:
        return self.path.stem

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """The records that have these values."""
        return [r for r in self.records if all(r.get(key) == value for key, value in wanted.items())]


def header(**more: Any) -> dict[str, Any]:
    """Date, commit, device and versions of this process, and what the caller adds."""
    commit, dirty = device.commit()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "device": device.identity(),
        "versions": device.versions(),
        **more,
    }


def write(folder: Path, kind: str, head: dict[str, Any], records: list[dict[str, Any]]) -> Path:
    """Write `kind-DATE.json` whole or not at all; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.fromisoformat(head["date"])
    path = folder / f"{kind}-{date:%Y%m%d-%H%M%S}.json"
    lines = ",\n".join(json.dumps(record) for record in records)
    partial = path.with_suffix(".partial")
    partial.write_text(f'{{"header": {json.dumps(head)},\n"records": [\n{lines}\n]}}\n')
    os.replace(partial, path)
    return path


def read(path: Path) -> Document:
    """Raises DamagedRun naming the file, and the line where that is known, where it is no such document."""
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise DamagedRun(f"{path}:{error.lineno}: not readable as JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedRun(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    head, records = (data.get("header"), data.get("records")) if isinstance(data, dict) else (None, None)
    if not isinstance(head, dict) or not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
        raise DamagedRun(f"{path}:1: no document with a header and records")
    return Document(path, recorded(head, path), recorded(records, path))


def newest(folder: Path, kind: str, device: str | None = None) -> Document | None:
    """The newest document of a kind that is no dry run, or None; with `device` the newest from this one.

    Raises DamagedRun where a newer one cannot be read.
    """
    for path in sorted(folder.glob(f"{kind}-*.json"), reverse=True):
        found = read(path)
        if device is not None and (found.header.get("device") or {}).get("name") != device:
            continue
        if not found.header.get("dry_run"):
            return found
    return None
