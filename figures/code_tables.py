"""What the figures of compiled code have in common: rows of the committed tables (`common.goldens`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from packaging.version import Version

import variants
from common import goldens
from common.card import Card, read_card
from common.goldens import Row
from figures.source import MissingRun

COMMON = "128x128x32 w4 s3"
"""Launch parameters at which variants are compared with one another."""
SOURCE = "Compiled offline as a launch would be, relaxed atomics, the card's tile order. tests/golden."


@lru_cache
def newest() -> str:
    """The newest Triton that has a table. Raises MissingRun where none has."""
    versions = [path.stem.removeprefix("resources-triton-") for path in goldens.FOLDER.glob("resources-triton-*.csv")]
    if not versions:
        raise MissingRun(f"{goldens.FOLDER} has no table of compiled kernels: make goldens ACCEPT=1")
    return max(versions, key=Version)


@lru_cache
def rows(version: str) -> tuple[Row, ...]:
    """A version's rows. Raises MissingRun where it has no table."""
    found = goldens.read(version)
    if not found:
        raise MissingRun(f"Triton {version} has no table of compiled kernels: make goldens VERSION={version} ACCEPT=1")
    return tuple(found)


def find(version: str, variant: str, kernel: str, architecture: str, launch: str = COMMON, sem: str = "relaxed") -> Row:
    """The one row about this. Raises MissingRun where the table has none."""
    about = {"variant": variant, "kernel": kernel, "architecture": architecture, "launch": launch, "sem": sem}
    found = [row for row in rows(version) if all(row[name] == value for name, value in about.items())]
    if not found:
        raise MissingRun(f"the table of Triton {version} has no {' '.join(about.values())}: make goldens ACCEPT=1")
    return found[0]


def own(version: str, variant: str, architecture: str) -> Row | None:
    """The row of a variant beyond the thread, which is compiled with its card's config alone; None where it has no
    kernel for the architecture. Raises MissingRun where the table has none of its rows."""
    about = {"variant": variant, "kernel": stream_k_kernel(variant), "sem": "relaxed"}
    found = [row for row in rows(version) if all(row[name] == value for name, value in about.items())]
    if not found:
        raise MissingRun(f"the table of Triton {version} has no {variant}: make goldens ACCEPT=1")
    return next((row for row in found if row["architecture"] == architecture), None)


def lines(version: str, names: list[str], architectures: Iterable[str]) -> dict[str, list[Row | None]]:
    """A figure's lines, by their labels: these variants at COMMON, then those beyond the thread at their own config,
    which their labels name; a row an architecture. Raises MissingRun."""
    every = list(architectures)
    found: dict[str, list[Row | None]] = {
        name: [find(version, name, stream_k_kernel(name), architecture) for architecture in every] for name in names
    }
    for name in beyond_thread():
        line = [own(version, name, architecture) for architecture in every]
        launch = next(row["launch"] for row in line if row)
        found[f"{name}  {launch}"] = line
    return found


def card(variant: str) -> Card:
    """A variant's card, read from its source."""
    return read_card(variants.source_path(variant).read_text())


def of_thread() -> list[str]:
    """The thread's iterations, without what came after them."""
    return [name for name in variants.names() if card(name).position != "beyond the thread"]


def beyond_thread() -> list[str]:
    """What came after the thread's iterations."""
    return [name for name in variants.names() if card(name).position == "beyond the thread"]


def stream_k_kernel(variant: str) -> str:
    """The kernel that does the Stream-K part; a baseline's only one."""
    return card(variant).kernels[0]


def spill_bytes(row: Row) -> int:
    """Bytes that a thread's spill stores and loads move, each counted once in the code."""
    return int(row["spill_store_bytes"]) + int(row["spill_load_bytes"])
