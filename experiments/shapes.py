"""Shape lists of other benchmarks: M, N, K from a CSV or JSON file.

CSV: columns M, N and K by name, or three columns without a header; separated by comma, semicolon or tab. JSON: lists of
three numbers, objects with M, N and K, or tritonbench's inputs, whose entries are texts like "((), {'M': '192', …})" or
"((T([192, 512], f16), T([512, 64], f16)), {})" (format read from its operator loader).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import InvalidExperiment

Shape = tuple[int, int, int]
NAMES = ("m", "n", "k")
_NAMED = re.compile(r"'(\w)'\s*:\s*'?(\d+)'?")
_TENSOR = re.compile(r"T\(\[(\d+),\s*(\d+)\]")


def load_shapes(path: Path) -> tuple[Shape, ...]:
    """The shapes of a file in its order, each once. Raises InvalidExperiment naming file, place and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidExperiment(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    if path.suffix.lower() == ".json":
        try:
            found = list(_from_json(json.loads(text), path))
        except json.JSONDecodeError as error:
            raise InvalidExperiment(f"{path}:{error.lineno}: not readable as JSON: {error.msg}") from None
    else:
        found = list(_from_csv(text, path))
    if not found:
        raise InvalidExperiment(f"{path}: no shape in it; write M,N,K a line, or a JSON list of [M, N, K]")
    return tuple(dict.fromkeys(found))


def _checked(values: list[Any], place: str) -> Shape:
    try:
        m, n, k = (int(str(value)) for value in values)
    except ValueError:
        raise InvalidExperiment(f"{place}: {values!r} is no M, N, K: three whole numbers are needed") from None
    if min(m, n, k) <= 0:
        raise InvalidExperiment(f"{place}: {m}, {n}, {k}: each dimension is 1 or more")
    return m, n, k


def _from_csv(text: str, path: Path) -> Iterator[Shape]:
    head = text.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    columns: list[int] | None = None
    for number, line in enumerate(csv.reader(text.splitlines(), delimiter=separator), 1):
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        if columns is None:
            names = [cell.lower() for cell in cells]
            named = set(NAMES) <= set(names)
            if not named and not all(cell.lstrip("-").isdecimal() for cell in cells[:3]):
                raise InvalidExperiment(f"{path}:{number}: columns {', '.join(cells)}; M, N and K are needed")
            columns = [names.index(name) for name in NAMES] if named else [0, 1, 2]
            if named:
                continue
        if len(cells) <= max(columns):
            raise InvalidExperiment(f"{path}:{number}: {len(cells)} columns, {max(columns) + 1} are needed")
        yield _checked([cells[column] for column in columns], f"{path}:{number}")


def _from_json(value: Any, path: Path) -> Iterator[Shape]:
    """Shapes wherever they are in the document."""
    if isinstance(value, dict):
        lowered = {str(key).lower(): item for key, item in value.items()}
        if set(NAMES) <= lowered.keys():
            yield _checked([lowered[name] for name in NAMES], str(path))
            return
        if len(set(NAMES) & lowered.keys()) == 2:
            raise InvalidExperiment(f"{path}: {', '.join(map(str, value))}: M, N and K are needed")
        for key, item in value.items():
            yield from _from_text(key, path)
            yield from _from_json(item, path)
    elif isinstance(value, list):
        if value and all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            yield _checked(value, str(path))
            return
        for item in value:
            yield from _from_json(item, path)
    elif isinstance(value, str):
        yield from _from_text(value, path)


def _from_text(text: str, path: Path) -> Iterator[Shape]:
    named = {name.lower(): size for name, size in _NAMED.findall(text)}
    if set(NAMES) <= named.keys():
        yield _checked([named[name] for name in NAMES], str(path))
        return
    tensors = _TENSOR.findall(text)[-2:]
    if len(tensors) == 2:
        (m, k), (inner, n) = tensors
        if k != inner:
            raise InvalidExperiment(f"{path}: {text!r}: A is {m}x{k} and B is {inner}x{n}")
        yield _checked([m, n, k], str(path))
