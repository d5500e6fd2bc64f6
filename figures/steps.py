"""What each step beyond the thread gains over its parent, by the newest sweep that holds both.

A variant's time for a shape is that of its best configuration, chosen on half of the samples and taken from the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import variants
from common import rows
from common.cost import LINE, at_lines
from common.population import Shape, stratum, stratum_names
from common.problem import Problem
from common.rows import Run
from common.statistics import Interval
from experiments.claims import MARGIN
from figures import source
from figures.halves import Halves, Ratios

FIRST = "v09"
SWEEPS = (
    "steps",
    "steps_only",
    "hopper_tiles",
    "unaligned",
    "matmul_training",
    "sides_training",
    "v09_tiles",
    "corpus_regret",
)
"""Experiments that give a variant several configurations on a sample of the paper's population; `steps_only` is what
`run --only` makes of `steps`."""
LEAST = 8
"""Shapes that a class needs to be told: an interval of fewer is too narrow."""
EVERY = "all"
Rows = Literal["at lines", "elsewhere"]
ROWS: dict[Rows, str] = {
    "at lines": f"rows of A and B start at multiples of {LINE} bytes",
    "elsewhere": f"some rows start elsewhere than at multiples of {LINE} bytes",
}
Verdict = Literal["helps", "not decided", "does not help"]
Classes = dict[str, Interval]
"""Geometric means over the shapes of a class with their intervals, by the class's name; EVERY is all of them."""


@dataclass(frozen=True)
class Gains:
    """A step beside its parent on the shapes of one kind of rows. Ratios are times, the parent's over the step's.

    `instead`: best configuration over best configuration. `beside`: the parent's best over the best of both variants'
    configurations, which is what a choice among them gains. `equal`: at `pairs` configurations that both ran, empty
    where there are none; the best schedules of both at the same tile, warps, stages and registers where the
    decomposition is the step's idea. `cublas`: cuBLAS's time over the step's best. `configs`: how many of
    the step and of its parent; `tried`: the step's. `first`: the share of shapes on which the step's best is faster.
    """

    step: str
    parent: str
    rows: Rows
    run: str
    device: str
    configs: tuple[int, int]
    tried: tuple[str, ...]
    pairs: int
    instead: Classes
    beside: Classes
    equal: Classes
    cublas: Interval
    first: float

    @property
    def verdict(self) -> Verdict:
        """By the band of the thread's claims: a class where the interval of the gain is above it; or that of all shapes
        below it and no class's mean above; or neither. Of the many intervals of few shapes some always reach further.
        """
        edge = 1 + MARGIN
        found = [*self.instead.values(), *self.beside.values()]
        if any(interval.low > edge for interval in found):
            return "helps"
        nowhere = max(self.instead[EVERY].high, self.beside[EVERY].high) <= edge
        return "does not help" if nowhere and all(interval.value <= edge for interval in found) else "not decided"


def steps() -> list[str]:
    """The numbered variants beyond the thread."""
    return [name for name in variants.names() if name >= FIRST]


def parent_of(step: str) -> str:
    return variants.resolve(variants.get(step).card.parent or "")


def kind_of(shape: Shape, dtype: str) -> Rows:
    """Where the rows of A (K elements) and of B (N elements), both row-major, start."""
    size = Problem(*shape, dtype).torch_dtype.itemsize
    return "at lines" if at_lines((shape[2] * size, shape[1] * size)) else "elsewhere"


def measured(results: Path) -> list[Gains]:
    """What is known of each step, for each kind of rows that the newest sweep with both variants has shapes of."""
    paths = [path for name in SWEEPS for path in rows.runs(results, name)]
    return list(_measured(tuple((path, path.stat().st_mtime_ns) for path in paths)))


def verdict(found: list[Gains]) -> Verdict | None:
    """Of all kinds of rows of a step; None where nothing was measured."""
    said = [gains.verdict for gains in found]
    order: tuple[Verdict, ...] = ("helps", "not decided", "does not help")
    return next((v for v in order if v in said), None)


@lru_cache(maxsize=4)
def _measured(files: tuple[tuple[Path, int], ...]) -> tuple[Gains, ...]:
    """`files`: with the time of their last change, so that another file of the same name is read again."""
    newest_first = sorted((path for path, _ in files), key=lambda path: path.name.split("-", 1)[1], reverse=True)
    heads = {path: rows.read_header(path) for path in newest_first}
    read = lru_cache(maxsize=None)(rows.read_run)
    found: list[Gains] = []
    for step in steps():
        parent, left = parent_of(step), set(ROWS)
        for path in newest_first:
            head = heads[path]
            if not left or head.get("limit") or head.get("dry_run"):
                continue
            if not {step, parent} <= {c["variant"] for c in head["candidates"]}:
                continue
            run = read(path)
            for gains in _gains(run, step, parent) if run.finished else ():
                if gains.rows in left:
                    left.remove(gains.rows)
                    found.append(gains)
    return tuple(found)


def _gains(run: Run, step: str, parent: str) -> Iterator[Gains]:
    halves = Halves(run)
    mine, theirs = halves.indices(step), halves.indices(parent)
    own, old, both = (halves.best(some) for some in (mine, theirs, mine + theirs))
    schedule = variants.get(step).card.decomposition == variants.get(parent).card.decomposition
    pairs = _equal([[(_compiled(run, index, schedule), index) for index in side] for side in (mine, theirs)])
    equal = halves.over(pairs)
    library = halves.best(halves.indices(source.BASELINE)[:1])
    for kind in ROWS:
        here = [s for s in own if s in old and s in library and kind_of(s, run.header["dtype"]) == kind]
        if len(here) < LEAST:
            continue
        ratios: list[Ratios] = [{s: old[s] / new[s] for s in here} for new in (own, both)]
        ratios.append({s: equal[s] for s in here if s in equal})
        yield Gains(
            step,
            parent,
            kind,
            run.id,
            run.device_name,
            (len(mine), len(theirs)),
            tuple(_short(run.candidates[index]) for index in mine),
            len(pairs),
            *(by_class(found) for found in ratios),
            rows.mean_interval([library[s] / own[s] for s in here]),
            sum(own[s] < old[s] for s in here) / len(here),
        )


def _short(candidate: dict[str, Any]) -> str:
    """A candidate's label without its variant's name, with the tile where that is the default and left out."""
    name, _, rest = candidate["label"].partition(" ")
    default = variants.get(name).card.default.block
    own = tuple(candidate["config"]["block"]) == default
    return f"{'x'.join(map(str, default))} {rest}".strip() if own and not rest[:1].isdecimal() else rest


def class_names() -> list[str]:
    """All shapes, the classes of tiles, those of K, and those of both, as `by_class` has them."""
    tiles, depths = stratum_names()
    return [EVERY, *tiles, *depths, *(f"{t}, {d}" for t in tiles for d in depths)]


def by_class(ratios: Ratios) -> Classes:
    """Of all shapes, and by tiles, by K and by both, where a class has LEAST shapes or more."""
    tiles, depths = stratum_names()
    members: dict[str, list[float]] = {name: [] for name in class_names()} | {EVERY: list(ratios.values())}
    for shape, value in ratios.items():
        by_tiles, by_depth = stratum(shape)
        for name in (tiles[by_tiles], depths[by_depth], f"{tiles[by_tiles]}, {depths[by_depth]}"):
            members[name].append(value)
    return {name: rows.mean_interval(members[name]) for name in members if len(members[name]) >= LEAST}


def _equal(sides: list[list[tuple[str, int]]]) -> list[tuple[list[int], list[int]]]:
    """Candidates of both sides by what is the same about them, where both sides have some."""
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for side, candidates in enumerate(sides):
        for key, index in candidates:
            groups.setdefault(key, ([], []))[side].append(index)
    return [group for group in groups.values() if all(group)]


def _compiled(run: Run, index: int, schedule: bool) -> str:
    """A candidate's configuration as one CTA has it (several share a block), with what decides on
    its schedule or without it."""
    candidate = run.candidates[index]
    config = candidate["config"]
    block = variants.get(candidate["variant"]).card.cta_block(config["block"])
    names = ("num_warps", "num_stages", "maxnreg", "tma", *(("split", "two_tiles", "order") if schedule else ()))
    return repr([*block, candidate["programs"], *(config.get(name) for name in names)])
