"""A run as a table, a row a problem, with tritonbench's names for metrics: what `show` prints, as text, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable

from rich import box
from rich.table import Table

import variants
from common.errors import InvalidExperiment, UnknownVariant, nearest
from common.problem import Problem
from common.rows import Row, Run

Cell = float | str | None
BASELINE = "torch_matmul"


def _latency(run: Run, row: Row) -> Cell:
    return row.median / 1000


def _speedup(run: Run, row: Row) -> Cell:
    base = run.medians(BASELINE).get(row.problem) if any(c["label"] == BASELINE for c in run.candidates) else None
    return base / row.median if base else None


def _tflops(run: Run, row: Row) -> Cell:
    return Problem(*row.problem, run.header["dtype"]).flops / row.median / 1e6


def _gbps(run: Run, row: Row) -> Cell:
    return Problem(*row.problem, run.header["dtype"]).min_bytes / row.median / 1e3


METRICS: dict[str, tuple[str, Callable[[Run, Row], Cell]]] = {
    "latency": ("median device time in milliseconds", _latency),
    "speedup": (f"{BASELINE}'s median over the candidate's", _speedup),
    "tflops": ("10^12 floating-point operations a second", _tflops),
    "gbps": ("10^9 bytes a second, A and B read once and C written once", _gbps),
    "accuracy": ("1 for a right result, 0 for a wrong one", lambda run, row: float(row.status == "ok")),
    "error": ("largest relative error", lambda run, row: row.error),
    "status": ("ok, or why there is no speed", lambda run, row: row.status),
}
TIMED = ("latency", "speedup", "tflops", "gbps")


def parse_metrics(text: str) -> list[str]:
    """`latency,tflops` as names. Raises InvalidExperiment with the nearest names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            known = nearest(name, METRICS)
            raise InvalidExperiment(f"no metric {name!r}; nearest: {known}; there are {', '.join(METRICS)}")
    return names or ["latency"]


def chosen(labels: Iterable[str], only: str | None) -> list[str]:
    """The candidates whose label or variant `only` names (comma-separated, numbers and parts of names allowed).

    Raises InvalidExperiment where a name fits none.
    """
    labels = list(labels)
    if only is None:
        return labels
    found: list[str] = []
    for name in filter(None, (part.strip() for part in only.split(","))):
        try:
            variant = variants.resolve(name)
        except UnknownVariant as error:
            variant, reason = name, str(error)
        else:
            reason = f"{variant} is no candidate here"
        matches = [label for label in labels if label == name or label.split(" ")[0] == variant]
        if not matches:
            raise InvalidExperiment(f"--only {name}: {reason}; there are {', '.join(labels)}")
        found += matches
    return [label for label in labels if label in found]


def table(run: Run, labels: list[str], metrics: list[str]) -> tuple[list[str], list[list[Cell]]]:
    """Column names (`label-metric`, as tritonbench has them) and a row a problem; None where there is no value."""
    problems = list(dict.fromkeys(row.problem for row in run.rows))
    columns = ["M", "N", "K", *(f"{label}-{metric}" for label in labels for metric in metrics)]
    lines: list[list[Cell]] = []
    for problem in problems:
        cells: list[Cell] = [*problem]
        for label in labels:
            row = run.by_candidate.get(run.index(label), {}).get(problem)
            for metric in metrics:
                timed = row is not None and row.status == "ok" and bool(row.samples)
                known = row is not None and (timed or metric not in TIMED)
                cells.append(METRICS[metric][1](run, row) if known and row is not None else None)
        lines.append(cells)
    return columns, lines


def as_csv(columns: list[str], lines: list[list[Cell]]) -> str:
    """The table as CSV; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if cell is None else _short(cell) for cell in line] for line in lines])
    return text.getvalue()


def as_text(columns: list[str], lines: list[list[Cell]]) -> Table:
    """The table for a terminal."""
    shown = Table(box=box.SIMPLE)
    for column in columns:
        shown.add_column(column, justify="right", overflow="fold")
    for line in lines:
        shown.add_row(*("–" if cell is None else _short(cell) for cell in line))
    return shown


def as_json(columns: list[str], lines: list[list[Cell]]) -> str:
    """The table as a list of objects, one a problem, with the digits that the CSV has; what is missing is null."""
    rounded = [[float(_short(cell)) if isinstance(cell, float) else cell for cell in line] for line in lines]
    return json.dumps([dict(zip(columns, line, strict=True)) for line in rounded])


def _short(cell: Cell) -> str:
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
