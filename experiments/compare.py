"""Two runs side by side: paired ratios with intervals, changes of status, and what got slower beyond the noise."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from common.errors import DamagedRun, InvalidExperiment
from common.rows import Problem, Run, bootstrap_interval, geometric_mean, read_run
from experiments.tables import BASELINE, chosen

QUANTILE = "cublas_to_itself_95"
LITTLE = 0.5
"""Below this share of either run's problems, a verdict says little about the runs."""
DEFAULT_FLOOR = 0.05
"""Where neither run knows how far cuBLAS differs from itself."""


@dataclass(frozen=True)
class Compared:
    """One candidate in both runs. `ratio`: geometric mean over problems of B's time over A's, with its interval;
    None where no problem was right in both. `slower`, `faster`: problems beyond the floor."""

    label: str
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    slower: int
    faster: int
    worst: tuple[Problem, float] | None
    verdict: str


@dataclass(frozen=True)
class Change:
    """A problem whose status is another one in B."""

    label: str
    problem: Problem
    before: str
    after: str

    @property
    def worse(self) -> bool:
        return self.before == "ok"


@dataclass(frozen=True)
class Overlap:
    """What of two runs can be compared. `problems`: how many both have; `in_a`, `in_b`: all that each has.

    `only_a`, `only_b`: the labels of the candidates that the other run lacks.
    """

    problems: int
    in_a: int
    in_b: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the run with more problems, the share that is compared."""
        return self.problems / max(self.in_a, self.in_b)

    def as_dict(self) -> dict[str, Any]:
        left = {"problems_only_a": self.in_a - self.problems, "problems_only_b": self.in_b - self.problems}
        return {"problems": self.problems, **left, "candidates_only_a": self.only_a, "candidates_only_b": self.only_b}

    def __str__(self) -> str:
        return f"{self.problems} of A's {self.in_a} and B's {self.in_b} problems"


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `differences`: what is not the same about how both were measured."""

    a: str
    b: str
    floor: float
    over_cublas: bool
    differences: dict[str, tuple[Any, Any]]
    candidates: tuple[Compared, ...]
    changes: tuple[Change, ...]
    overlap: Overlap

    @property
    def worse(self) -> bool:
        """Whether something got slower beyond the floor or lost its right result."""
        return any(c.verdict == "slower" for c in self.candidates) or any(change.worse for change in self.changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"overlap": self.overlap.as_dict(), "worse": self.worse}


def load_run(path: Path) -> Run:
    """A run of a file. Raises InvalidExperiment where it is none."""
    try:
        return read_run(path)
    except DamagedRun as error:
        raise InvalidExperiment(str(error)) from None


def noise_floor(*runs: Run) -> float:
    """How far 95 % of the problems' times may differ by chance: cuBLAS measured twice, in the noisier run."""
    ranges = [run.finished[QUANTILE] for run in runs if run.finished and QUANTILE in run.finished]
    return max((math.expm1(abs(math.log(q))) for pair in ranges for q in pair), default=DEFAULT_FLOOR)


def compare(
    a: Run, b: Run, only: str | None = None, floor: float | None = None, over_cublas: bool = False
) -> Comparison:
    """Compare B with A, candidate by candidate, on the problems that both have.

    `over_cublas`: ratios of speed-ups over cuBLAS, so that another GPU's speed falls out. `floor`: a relative
    difference that counts as noise; from the runs' own repeats of cuBLAS by default.
    Raises InvalidExperiment where they have no candidate or no problem in common.
    """
    labels_a, labels_b = ([c["label"] for c in run.candidates] for run in (a, b))
    common = chosen([label for label in labels_a if label in labels_b], only)
    if over_cublas:
        if BASELINE not in labels_a or BASELINE not in labels_b:
            raise InvalidExperiment(f"--over-cublas needs {BASELINE} in both runs")
        common = [label for label in common if not label.startswith((BASELINE, "empty"))]
    if not common:
        raise InvalidExperiment(f"{a.path.name} and {b.path.name} have no candidate in common")
    problems_a, problems_b = ({row.problem for row in run.rows} for run in (a, b))
    if not problems_a & problems_b:
        raise InvalidExperiment(f"{a.path.name} and {b.path.name} have no problem in common")
    limit = noise_floor(a, b) if floor is None else floor
    return Comparison(
        a.id,
        b.id,
        limit,
        over_cublas,
        _differences(a, b, common),
        tuple(_compared(a, b, label, limit, over_cublas) for label in common),
        tuple(change for label in common for change in _changes(a, b, label)),
        Overlap(
            len(problems_a & problems_b),
            len(problems_a),
            len(problems_b),
            tuple(sorted(set(labels_a) - set(labels_b))),
            tuple(sorted(set(labels_b) - set(labels_a))),
        ),
    )


def _compared(a: Run, b: Run, label: str, floor: float, over_cublas: bool) -> Compared:
    if over_cublas:
        before, after = a.speedups(label), b.speedups(label)
        ratios = {p: before[p] / after[p] for p in before if p in after}
    else:
        before, after = a.medians(label), b.medians(label)
        ratios = {p: after[p] / before[p] for p in before if p in after}
    if not ratios:
        return Compared(label, 0, None, None, None, 0, 0, None, "nothing to compare")
    low, high = bootstrap_interval(ratios.values()) if len(ratios) > 1 else _by_samples(a, b, label, *ratios.items())
    verdict = "slower" if low > 1 + floor else "faster" if high < 1 / (1 + floor) else "same"
    worst = max(ratios, key=ratios.__getitem__)
    return Compared(
        label,
        len(ratios),
        geometric_mean(ratios.values()),
        low,
        high,
        sum(ratio > 1 + floor for ratio in ratios.values()),
        sum(ratio < 1 / (1 + floor) for ratio in ratios.values()),
        (worst, ratios[worst]),
        verdict,
    )


def _by_samples(a: Run, b: Run, label: str, only: tuple[Problem, float]) -> tuple[float, float]:
    """The interval where there is one problem, from its samples: the ends of both medians' intervals put together."""
    problem, ratio = only
    rows = [run.by_candidate[run.index(label)][problem] for run in (a, b)]
    (low_a, high_a), (low_b, high_b) = (bootstrap_interval(row.samples, "median") for row in rows)
    scale = ratio / (rows[1].median / rows[0].median)
    return low_b / high_a * scale, high_b / low_a * scale


def _changes(a: Run, b: Run, label: str) -> list[Change]:
    before, after = (run.by_candidate.get(run.index(label), {}) for run in (a, b))
    return [
        Change(label, problem, before[problem].status, after[problem].status)
        for problem in before
        if problem in after and before[problem].status != after[problem].status
    ]


def _differences(a: Run, b: Run, labels: list[str]) -> dict[str, tuple[Any, Any]]:
    """Device, versions, commit and the like where they differ, and how many kernels' sources do."""
    flat = [
        {"device": run.header["device"].get("name"), "commit": run.header.get("commit"), "rounds": run.header["rounds"]}
        | {"inputs": run.header.get("inputs"), "finished": run.finished is not None}
        | run.header["versions"]
        for run in (a, b)
    ]
    found = {key: (flat[0].get(key), flat[1].get(key)) for key in {**flat[0], **flat[1]}}
    for key in ("source_hash", "config"):
        pairs = [(run.candidates[run.index(label)].get(key) for run in (a, b)) for label in labels]
        changed = [label for label, (one, other) in zip(labels, pairs, strict=True) if one != other]
        found[f"{key} of"] = ("", ", ".join(changed))
    return {key: pair for key, pair in found.items() if pair[0] != pair[1]}


def as_table(found: Comparison) -> Table:
    """The candidates for a terminal."""
    shown = Table(box=box.SIMPLE)
    for column in ("candidate", "problems", "B / A, 95 %", "slower", "faster", "worst", "verdict"):
        shown.add_column(column, justify="left" if column in ("candidate", "verdict", "worst") else "right")
    for c in found.candidates:
        ratio = f"{c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}]" if c.ratio else "–"
        worst = f"{'x'.join(map(str, c.worst[0]))}: {c.worst[1]:.3f}" if c.worst else "–"
        shown.add_row(c.label, str(c.pairs), ratio, str(c.slower), str(c.faster), worst, c.verdict)
    return shown


def as_lines(found: Comparison, most: int = 10) -> list[str]:
    """What stands around the table: how both were measured, changes of status, the conclusion."""
    lines = [f"A: {found.a}", f"B: {found.b}"]
    lines += [f"  {key}: {before} -> {after}".rstrip() for key, (before, after) in found.differences.items()]
    what = "speed-up over cuBLAS, A's over B's" if found.over_cublas else "device time, B's over A's"
    lines.append(f"{what}; {found.floor:.1%} and less is noise")
    counts = Counter((c.label, c.before, c.after) for c in found.changes)
    lines += [f"status of {label}: {x} -> {y} on {n} problems" for (label, x, y), n in counts.most_common(most)]
    if len(counts) > most:
        lines.append(f"and {len(counts) - most} more changes of status (--json has them all)")
    both = found.overlap
    for run, alone in (("A", both.only_a), ("B", both.only_b)):
        lines += [f"candidates of {run} alone: {len(alone)} ({', '.join(alone)})"] if alone else []
    within = f", on {both}" if both.share < 1 else ""
    untimed = "" if any(c.pairs for c in found.candidates) else ", by status alone: no time is in both"
    return [*lines, f"worse: {'yes' if found.worse else 'no'}{within}{untimed}"]
