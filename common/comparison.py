"""Two variants compared: cards, what each compiled kernel takes, its instruction mix, sources, compiler texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from common import compiled, source_diff
from common.architectures import Architecture
from common.card import Card, Config, read_card
from common.compiled import LEVELS, Job
from common.errors import UnsupportedProblem, nearest
from common.inspection import Inspection
from common.machine_code import KINDS
from common.normalise import NAMED_ONCE, Line, named_alike, normalise
from common.source_diff import FunctionDiff

TEXT_LEVELS = ("source", *LEVELS)
ALL_LEVELS = (*TEXT_LEVELS, "resources")

MEASURES: dict[str, Callable[[Inspection], int]] = {
    "registers": lambda r: r.registers,
    "stack B": lambda r: r.stack_bytes,
    "n_spills (stack B / 4)": lambda r: r.n_spills,
    "spill stores B": lambda r: r.spill_store_bytes,
    "spill loads B": lambda r: r.spill_load_bytes,
    "static shared B": lambda r: r.static_shared_bytes,
    "dynamic shared B": lambda r: r.dynamic_shared_bytes,
    "programs per SM": lambda r: r.programs_per_sm,
    "matrix": lambda r: r.mix.get("matrix", 0),
    "atomics": lambda r: r.mix.get("atomic", 0) + r.mix.get("reduction", 0),
    "fences": lambda r: r.mix.get("fence", 0) + r.mix.get("cache_invalidation", 0),
    "barriers": lambda r: r.mix.get("barrier", 0),
    "instructions": lambda r: r.instructions,
    "loop depth": lambda r: r.loop_depth,
    "hot loops": lambda r: r.hot_loops,
    "code B": lambda r: r.code_bytes,
}
"""What the resource table shows: name and unit, and how it is read from a record. Bytes are B; of a thread for stack
and spills, of a program for shared memory."""


ACCESSES = ("global_load", "global_store", "async_copy", "atomic", "reduction", "fence", "cache_invalidation")
"""Kinds of instructions that are compared one by one, by width or by operation and scope."""


@dataclass(frozen=True)
class Side:
    """One of the two variants: its source, and the config and Triton that compile it."""

    name: str
    path: Path
    config: Config
    triton: str

    @property
    def source(self) -> str:
        return self.path.read_text()

    @property
    def card(self) -> Card:
        return read_card(self.source)

    def job(self, kernel: str, target: Architecture) -> Job:
        size = compiled.size_for(target)
        return Job(self.name, self.path, kernel, target.name, self.config, self.triton, size)


@dataclass(frozen=True)
class KernelPair:
    """One kernel on one architecture in both variants; a side that has no such kernel is None."""

    architecture: str
    a: Inspection | None
    b: Inspection | None

    @property
    def title(self) -> str:
        """The kernel's name, both names where they differ."""
        names = [record.kernel for record in (self.a, self.b) if record is not None]
        return " → ".join(dict.fromkeys(names))

    @property
    def both_ok(self) -> bool:
        return all(record is not None and record.status == "ok" for record in (self.a, self.b))

    def measures(self) -> dict[str, tuple[int | None, int | None]]:
        """Each measure's two values, None where a side has no such kernel or did not compile."""
        a, b = (
            {n: read(r) for n, read in MEASURES.items()} if r and r.status == "ok" else {} for r in (self.a, self.b)
        )
        return {name: (a.get(name), b.get(name)) for name in MEASURES}

    def hot_mix(self) -> dict[str, tuple[int, int]]:
        """Instructions of the hot loop by kind, on either side, of the kinds that occur."""
        a, b = (record.hot_mix if record else {} for record in (self.a, self.b))
        return {kind: (a.get(kind, 0), b.get(kind, 0)) for kind in KINDS if a.get(kind) or b.get(kind)}

    def accesses(self) -> dict[str, tuple[int, int]]:
        """Instructions of ACCESSES by width or by operation and scope; only those that differ."""
        a, b = (record.details if record else {} for record in (self.a, self.b))
        found = sorted({*a, *b}, key=lambda detail: (KINDS.index(detail.split(" ")[0]), detail))
        pairs = {detail: (a.get(detail, 0), b.get(detail, 0)) for detail in found if detail.split(" ")[0] in ACCESSES}
        return {detail: pair for detail, pair in pairs.items() if self.both_ok and pair[0] != pair[1]}

    def deltas(self) -> dict[str, int]:
        """Second minus first, of the measures that differ."""
        return {n: b - a for n, (a, b) in self.measures().items() if a is not None and b is not None and a != b}


@dataclass(frozen=True)
class TextDiff:
    """A compiler text of a kernel in both variants. `chunks`: as difflib's opcodes, over `a` and `b`."""

    level: str
    title: str
    architecture: str
    a: tuple[Line, ...]
    b: tuple[Line, ...]
    chunks: tuple[tuple[str, int, int, int, int], ...]

    @property
    def size(self) -> int:
        """Lines taken out plus lines put in."""
        return sum((i2 - i1) + (j2 - j1) for tag, i1, i2, j1, j2 in self.chunks if tag != "equal")

    @property
    def renamed(self) -> int:
        """Lines that are the same instruction on other registers, at the levels that use registers again."""
        equal = ((i1, i2, j1) for tag, i1, i2, j1, _ in self.chunks if tag == "equal")
        return sum(self.a[i].text != self.b[j1 + i - i1].text for i1, i2, j1 in equal for i in range(i1, i2))

    @property
    def status(self) -> str:
        if not self.size:
            return "equal but for registers" if self.renamed else "equal"
        return "different"

    def unified(self, context: int = source_diff.CONTEXT) -> list[str]:
        """In the form of `diff -u`; lines that differ in registers alone count as equal."""
        lines: list[str] = []
        last = len(self.chunks) - 1
        for number, (tag, i1, i2, j1, j2) in enumerate(self.chunks):
            if tag != "equal":
                lines += [f"-{line.text}" for line in self.a[i1:i2]] + [f"+{line.text}" for line in self.b[j1:j2]]
                continue
            head = context if number else 0
            tail = context if number != last else 0
            shown = [f" {line.text}" for line in self.a[i1:i2]]
            if len(shown) > head + tail:
                folded = len(shown) - head - tail
                shown = [*shown[:head], f"@@ {folded} equal line{'s'[: folded > 1]} @@", *shown[len(shown) - tail :]]
            lines += shown
        return lines


@dataclass
class Comparison:
    """Everything that `diff` shows. `texts` holds the levels that were asked for, `notes` what was left out of it."""

    a: Side
    b: Side
    card: list[tuple[str, str, str]]
    functions: list[FunctionDiff]
    pairs: list[KernelPair]
    texts: list[TextDiff] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return (
            not self.card
            and all(f.status == "unchanged" for f in self.functions)
            and all(p.a is not None and p.b is not None and not p.deltas() and _same(p.a, p.b) for p in self.pairs)
            and all(t.status == "equal" for t in self.texts)
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "a": self.a.name,
            "b": self.b.name,
            "triton": [self.a.triton, self.b.triton],
            "empty": self.is_empty,
            "notes": self.notes,
            "card": [{"field": name, "a": a, "b": b} for name, a, b in self.card],
            "functions": [
                {"name": f.name, "kernel": f.is_kernel, "status": f.status, "size": f.size, "diff": f.unified()}
                for f in self.functions
            ],
            "kernels": [
                {
                    "title": pair.title,
                    "architecture": pair.architecture,
                    "a": pair.a and pair.a.as_dict(),
                    "b": pair.b and pair.b.as_dict(),
                    "deltas": pair.deltas(),
                    "hot_mix_deltas": {kind: b - a for kind, (a, b) in pair.hot_mix().items() if a != b},
                    "access_deltas": {detail: b - a for detail, (a, b) in pair.accesses().items()},
                }
                for pair in self.pairs
            ],
            "texts": [
                {
                    "level": t.level,
                    "title": t.title,
                    "architecture": t.architecture,
                    "status": t.status,
                    "size": t.size,
                    "diff": t.unified() if t.size else [],
                }
                for t in self.texts
            ],
        }


def _same(a: Inspection, b: Inspection) -> bool:
    skipped = {"variant", "config"}
    first, second = ({k: v for k, v in r.as_dict().items() if k not in skipped} for r in (a, b))
    return first == second


def parse_levels(text: str | None) -> list[str]:
    """Levels from a comma-separated list, `all` for every one; source and resources for None.

    Raises UnsupportedProblem naming the nearest ones.
    """
    if text is None:
        return ["source", "resources"]
    levels = list(ALL_LEVELS) if text.strip() == "all" else [part.strip() for part in text.split(",")]
    for level in levels:
        if level not in ALL_LEVELS:
            raise UnsupportedProblem(f"no level {level!r}; nearest: {nearest(level, ALL_LEVELS)}")
    return list(dict.fromkeys(levels))


def kernel_names(a: Card, b: Card) -> list[tuple[str | None, str | None]]:
    """Kernels of both cards matched by name; those left over in their order, the first with the first."""
    shared = [name for name in b.kernels if name in a.kernels]
    left_a = [name for name in a.kernels if name not in shared]
    pairs: list[tuple[str | None, str | None]] = []
    for name in b.kernels:
        if name in shared:
            pairs.append((name, name))
        else:
            pairs.append((left_a.pop(0) if left_a else None, name))
    return pairs + [(name, None) for name in left_a]


def compare(
    a: Side,
    b: Side,
    targets: list[Architecture],
    levels: list[str],
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare two variants on each architecture, compiling what the cache does not hold.

    Architectures for which one of them was not written are left out, with a note. Raises UnsupportedProblem where none
    is left.
    """
    targets, notes = _written_for_both(a, b, targets)
    matched = kernel_names(a.card, b.card)
    needs = "resources" in levels or any(level in LEVELS for level in levels)
    jobs = [
        side.job(name, target)
        for names in (matched if needs else [])
        for target in targets
        for side, name in zip((a, b), names, strict=True)
        if name
    ]
    unique = list({job.key: job for job in jobs}.values())
    records = dict(zip((job.key for job in unique), compiled.inspect(unique, progress), strict=True))
    pairs, texts = [], []
    for names in matched if needs else []:
        for target in targets:
            first, second = (side.job(name, target) if name else None for side, name in zip((a, b), names, strict=True))
            pair = KernelPair(target.name, first and records[first.key], second and records[second.key])
            pairs.append(pair)
            if pair.both_ok:
                texts += [_text_diff(level, pair, first, second, target) for level in levels if level in LEVELS]
    if "ptx" in levels:
        notes += [f"{target.name} has no ptx" for target in targets if target.backend != "cuda"]
    texts = [text for text in texts if text is not None]
    cards, functions = source_diff.card_differences(a.card, b.card), source_diff.function_diffs(a.source, b.source)
    return Comparison(a, b, cards, functions, pairs, texts, notes)


def _written_for_both(a: Side, b: Side, targets: list[Architecture]) -> tuple[list[Architecture], list[str]]:
    """The architectures that both variants were written for, and a line for those that are left out."""
    notes = []
    for side in (a, b):
        left = [target for target in targets if compiled.written_for(side.card, target.name)]
        alone = f"{side.name} is written for {', '.join(side.card.contract.architectures)} alone"
        if not left:
            raise UnsupportedProblem(f"{alone}, not for {targets[0].name}")
        if out := [target.name for target in targets if target not in left]:
            notes.append(f"{alone}: {', '.join(out)} left out")
        targets = left
    return targets, notes


def _text_diff(level: str, pair: KernelPair, a: Job | None, b: Job | None, target: Architecture) -> TextDiff | None:
    if a is None or b is None:
        return None
    first, second = compiled.texts(a), compiled.texts(b)
    if level not in first or level not in second:
        return None  # AMD has no PTX
    one, two = (normalise(text[level], level, target.backend) for text in (first, second))
    return text_diff(level, pair.title, target.name, one, two)


def text_diff(level: str, title: str, architecture: str, one: list[Line], two: list[Line]) -> TextDiff:
    """Two normalised texts compared; where names are given once, a line with other operands differs."""
    chunks = source_diff.opcodes([line.shape for line in one], [line.shape for line in two])
    if level in NAMED_ONCE:
        same = [(i1 + k, j1 + k) for tag, i1, i2, j1, _ in chunks if tag == "equal" for k in range(i2 - i1)]
        two = named_alike(one, two, same, level)
        chunks = [part for chunk in chunks for part in _by_text(one, two, chunk)]
    return TextDiff(level, title, architecture, tuple(one), tuple(two), tuple(chunks))


def _by_text(
    a: list[Line], b: list[Line], chunk: tuple[str, int, int, int, int]
) -> list[tuple[str, int, int, int, int]]:
    """A chunk of equal shapes cut into lines of equal text and lines with other operands; any other chunk as it is."""
    tag, i1, i2, j1, _ = chunk
    if tag != "equal":
        return [chunk]
    parts, start = [], 0
    for equal, run in groupby(a[i].text == b[j1 + i - i1].text for i in range(i1, i2)):
        stop = start + len(list(run))
        parts.append(("equal" if equal else "replace", i1 + start, i1 + stop, j1 + start, j1 + stop))
        start = stop
    return parts
