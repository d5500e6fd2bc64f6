"""What was read from a file of results, where a key that is missing is the file's fault and named as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import DamagedRun


class Record(dict[str, Any]):
    """A mapping read from a file. `record[key]` raises DamagedRun with the file's name where the key is missing."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise DamagedRun(f"{self.path}: {key!r} is missing beside {', '.join(map(str, self)) or 'nothing'}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (dict(self), self.path)


def recorded(data: Any, path: Path) -> Any:
    """The same data with every mapping in it as a Record."""
    if isinstance(data, dict):
        return Record({key: recorded(value, path) for key, value in data.items()}, path)
    return [recorded(item, path) for item in data] if isinstance(data, list) else data
