"""Two variants' sources side by side: functions matched by name, the lines that differ, and a budget for them."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from typing import Any, Literal

from common.card import Card, read_card

Status = Literal["unchanged", "changed", "added", "removed"]
CONTEXT = 3
"""Unchanged lines shown on either side of a change."""


@dataclass(frozen=True)
class FunctionDiff:
    """One function in both sources; `a` and `b` are its lines, comments and blank lines included, empty if absent."""

    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    is_kernel: bool

    @property
    def status(self) -> Status:
        if not self.a:
            return "added"
        if not self.b:
            return "removed"
        return "unchanged" if self.a == self.b else "changed"

    @property
    def size(self) -> int:
        """Lines taken out plus lines put in, blank lines and comments not counted."""
        a, b = (
            [line for line in lines if line.strip() and not line.strip().startswith("#")] for lines in (self.a, self.b)
        )
        return sum(
            (stop_a - start_a) + (stop_b - start_b)
            for tag, start_a, stop_a, start_b, stop_b in opcodes(a, b)
            if tag != "equal"
        )

    def unified(self) -> list[str]:
        """The change in the form of `diff -u`, without its file names."""
        return list(difflib.unified_diff(self.a, self.b, lineterm="", n=CONTEXT))[2:]


def opcodes(a: list[Any], b: list[Any]) -> list[tuple[str, int, int, int, int]]:
    """How to turn one sequence into the other, as difflib says it, never calling a frequent line junk."""
    return difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()


def functions(source: str) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Each top-level function's lines, decorators included, and whether it is a kernel or a part of one."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            jitted = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            found[node.name] = (tuple(lines[start : node.end_lineno]), jitted)
    return found


def function_diffs(a: str, b: str) -> list[FunctionDiff]:
    """Every function of either source, in the order of the second, those only in the first at the end."""
    first, second = functions(a), functions(b)
    names = [*second, *(name for name in first if name not in second)]
    nothing: tuple[tuple[str, ...], bool] = ((), False)
    return [
        FunctionDiff(name, first.get(name, nothing)[0], second.get(name, nothing)[0], (first | second)[name][1])
        for name in names
    ]


@dataclass(frozen=True)
class Budget:
    """What a variant changed in the jit functions of its parent, beside what its card says."""

    changed: tuple[str, ...]
    declared: tuple[str, ...]
    size: int
    allowed: int

    @property
    def faults(self) -> list[str]:
        """What does not agree, in words; empty where all does."""
        hidden = sorted(set(self.changed) - set(self.declared))
        idle = sorted(set(self.declared) - set(self.changed))
        found = [f"{', '.join(hidden)} changed, and the card does not say so"] if hidden else []
        found += [f"the card says that {', '.join(idle)} changed, and nothing did"] if idle else []
        found += [f"{self.size} lines differ, the card allows {self.allowed}"] if self.size > self.allowed else []
        return found


def budget(source: str, parent_source: str, card: Card | None = None) -> Budget:
    """Measure the jit functions of a variant against those of its parent."""
    card = card or read_card(source)
    kernels = [d for d in function_diffs(parent_source, source) if d.is_kernel and d.status != "unchanged"]
    return Budget(tuple(d.name for d in kernels), card.changed, sum(d.size for d in kernels), card.diff_budget)


def card_differences(a: Card, b: Card) -> list[tuple[str, str, str]]:
    """Field, value in the first card, value in the second, for every field of the cards that differs."""
    rows = []
    for name, first in a.as_dict().items():
        second = b.as_dict()[name]
        if first != second:
            if isinstance(first, dict):
                keys = [key for key in first if first[key] != second[key]]
                first, second = ({key: value[key] for key in keys} for value in (first, second))
            rows.append((name.replace("_", " "), _spelt(first), _spelt(second)))
    return rows


def _spelt(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_spelt(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, int) for item in value):
            return "x".join(map(str, value))
        return ", ".join(item["id"] if isinstance(item, dict) else str(item) for item in value) or "none"
    return str(value)
