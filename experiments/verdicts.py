"""From committed measurements to verdicts: intervals, the rules, and the table that all who show them read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

import variants
from common import documents, rows, statistics, traffic
from common.decomposition import GROUP_M, always_two_tile, cdiv
from common.documents import Document
from common.launcher import plan
from common.problem import Problem
from common.rows import Row, Run
from common.statistics import Interval
from experiments import claims as schema
from experiments import spec
from experiments.claims import BestOf, Claim, Claims, Compiled, Counter, MemoryModel, Ratio, ScheduleBound, Test
from experiments.plan import count_programs

Measured = Ratio | BestOf | Counter | ScheduleBound | MemoryModel
NOT_MEASURED = "not measured"
HERE = Path(__file__).parent


class Missing(LookupError):
    """What a test reads has no committed rows."""


@dataclass(frozen=True)
class Outcome:
    """What a test came to. `verdict`: one of the schema's five, or "not measured". `source`: run or document."""

    claim: str
    name: str
    about: str
    verdict: str
    shown: str
    claimed: float | None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """A claim with the outcomes of its tests; the first decides."""

    claim: Claim
    outcomes: tuple[Outcome, ...]

    @property
    def verdict(self) -> str:
        return self.outcomes[0].verdict

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        about = self.claim.model_dump(exclude={"tests"})
        return about | {"verdict": self.verdict, "tests": [asdict(o) for o in self.outcomes]}


class Results:
    """The newest committed runs and documents of a folder, read once each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Run | None] = {}

    def run(self, experiment: str) -> Run:
        """Raises Missing saying how to make one."""
        if experiment not in self._runs:
            self._runs[experiment] = rows.newest_run(self.folder, experiment)
        run = self._runs[experiment]
        if run is None:
            raise Missing(f"no finished run of {experiment}")
        return run

    @cached_property
    def counters(self) -> Document | None:
        return documents.newest(self.folder, "counters")

    @cached_property
    def compiled(self) -> Document | None:
        return documents.newest(self.folder, "compiled")

    def machines(self) -> list[str]:
        """Device and Triton of every run that was read, each once."""
        found = [run for run in self._runs.values() if run]
        return sorted({f"{r.header['device']['name']}, Triton {r.header['versions']['triton']}" for r in found})


def answers(results: Results, claims: Claims) -> list[Answer]:
    """Every claim with a verdict of every test."""
    return [Answer(claim, tuple(judge(test, claim.id, results) for test in claim.tests)) for claim in claims.claims]


def committed(folder: Path) -> tuple[list[Answer], list[str]]:
    """The answers from a folder's results and the machines they come from, worked out once while nothing changes."""
    return _committed(folder, tuple(sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*"))))


@lru_cache(maxsize=4)
def _committed(folder: Path, stamp: tuple[tuple[str, int], ...]) -> tuple[list[Answer], list[str]]:
    results = Results(folder)
    return answers(results, schema.load()), results.machines()


def judge(test: Test, claim: str, results: Results) -> Outcome:
    """One test's outcome; "not measured" where rows are missing."""
    common = {"claim": claim, "name": test.name, "about": test.about, "claimed": test.claimed, "reason": test.reason}
    try:
        if isinstance(test.measure, Compiled):
            return Outcome(**common, **_judge_compiled(test, test.measure, results))
        if test.measure is None:
            return Outcome(verdict="not testable here", shown="", **common)
        interval, source = _measured(test.measure, results)
    except Missing as missing:
        known = "not testable here" if test.rule == "untestable" else NOT_MEASURED
        return Outcome(verdict=known, shown="", source=str(missing), **common)
    shown = str(interval) if interval.count > 1 else f"{interval.value:.3f}"
    numbers = {"value": interval.value, "low": interval.low, "high": interval.high}
    if interval.count < 2:
        numbers |= {"low": None, "high": None}
    return Outcome(verdict=by_rule(test, interval), shown=shown, source=source, **numbers, **common)


def by_rule(test: Test, found: Interval) -> schema.Verdict:
    """The verdict that a test's rule makes of an interval. An interval that includes 1 is no speed-up."""
    claimed, margin = test.claimed, test.margin
    if test.rule == "untestable":
        return "not testable here"
    if test.rule == "no_gain":
        return "reproduced" if found.high <= 1 + margin else "not reproduced"
    if test.rule == "same":
        return "reproduced" if 1 / (1 + margin) <= found.low and found.high <= 1 + margin else "not reproduced"
    if test.rule == "reaches":
        assert claimed is not None
        return "reproduced" if found.high >= claimed else "not reproduced"
    if found.high < 1:
        return "reversed"
    if test.rule == "only":
        assert claimed is not None
        if found.includes_one:
            return "reproduced, smaller"
        return "reproduced" if found.low <= claimed * (1 + margin) else "not reproduced"
    if found.includes_one:
        return "not reproduced"
    return "reproduced" if claimed is None or found.high >= claimed else "reproduced, smaller"


def _measured(
    measure: Ratio | BestOf | Counter | ScheduleBound | MemoryModel, results: Results
) -> tuple[Interval, str]:
    if isinstance(measure, Ratio):
        run = results.run(measure.experiment)
        return ratio(run, measure), run.id
    if isinstance(measure, BestOf):
        run = results.run(measure.experiment)
        base, best = best_of(run, measure.variant, measure.choice)
        return statistics.mean_ratio(base, best, measure.mean), run.id
    if isinstance(measure, Counter):
        return _counter(measure, results)
    if isinstance(measure, MemoryModel):
        return memory_model(measure), "schedule and stated peaks"
    return schedule_bound(measure), "schedules alone"


def ratio(run: Run, measure: Ratio) -> Interval:
    """slow/fast of one problem by rounds, or of all problems that both got right. Raises Missing."""
    slow, fast = (_row_table(run, label) for label in (measure.slow, measure.fast))
    if measure.problem is not None:
        x, y = slow.get(measure.problem), fast.get(measure.problem)
        if x is None or y is None:
            raise Missing(f"{run.id} has no right result of both on {'x'.join(map(str, measure.problem))}")
        return statistics.median_ratio(x.samples, y.samples)
    both = [p for p in slow if p in fast]
    if not both:
        raise Missing(f"{run.id}: no problem that both got right")
    return statistics.mean_ratio([slow[p].median for p in both], [fast[p].median for p in both], measure.mean)


def _row_table(run: Run, label: str) -> dict[rows.Problem, Row]:
    """The rows with a speed of one candidate, by problem. Raises Missing."""
    try:
        index = run.index(label)
    except LookupError as error:
        raise Missing(str(error)) from None
    found = run.by_candidate.get(index, {})
    return {p: row for p, row in found.items() if row.status == "ok" and row.samples}


def best_of(run: Run, variant: str, choice: str) -> tuple[list[float], list[float]]:
    """cuBLAS's time and the best candidate's, problem by problem. Raises Missing.

    "first": least first sample against cuBLAS's first. "held_out": chosen on one half of the samples, reported on the
    other, cuBLAS among its repeats as the variant among its candidates.
    """
    full = schema.known_variant(variant)
    tables = {c["label"]: _row_table(run, c["label"]) for c in run.candidates if c["variant"] in (full, "torch_matmul")}
    library = [c["label"] for c in run.candidates if c["variant"] == "torch_matmul"]
    mine = [c for c in run.candidates if c["variant"] == full]
    base, best = [], []
    for problem in tables[library[0]]:
        chosen = {c["label"]: tables[c["label"]][problem] for c in mine if _counts(c, problem, run, tables)}
        repeats = {label: tables[label][problem] for label in library if problem in tables[label]}
        if not chosen:
            continue
        if choice == "first":
            base.append(tables[library[0]][problem].samples[0])
            best.append(statistics.first_best({label: row.samples for label, row in chosen.items()}))
        else:
            base.append(statistics.held_out_best({label: row.samples for label, row in repeats.items()}))
            best.append(statistics.held_out_best({label: row.samples for label, row in chosen.items()}))
    if not base:
        raise Missing(f"{run.id}: no problem that both got right")
    return base, best


def _counts(
    candidate: dict[str, Any], problem: rows.Problem, run: Run, tables: dict[str, dict[rows.Problem, Row]]
) -> bool:
    """Whether a candidate has a speed there; P = tiles counts below twice the SMs alone, as in the thread."""
    if problem not in tables[candidate["label"]]:
        return False
    if candidate["programs"] != "tiles":
        return True
    sms, block = run.header["device"]["sms"], candidate["config"]["block"]
    tiles = cdiv(problem[0], block[0]) * cdiv(problem[1], block[1])
    return count_programs("tiles", sms, tiles) < 2 * sms


def _counter(measure: Counter, results: Results) -> tuple[Interval, str]:
    document = results.counters
    if document is None:
        raise Missing("no counters were read")
    for record in document.select(label=measure.label, problem=list(measure.problem)):
        if record.get("sm_percent"):
            return _exact(record["memory_percent"] / record["sm_percent"]), document.id
    raise Missing(
        f"{document.id} has no counters of {measure.label}: {document.header.get('reason') or 'not profiled'}"
    )


def _exact(value: float) -> Interval:
    return Interval(value, value, value, 1)


def schedule_bound(measure: ScheduleBound) -> Interval:
    """Geometric mean of the tile matmul's ideal time over Stream-K's, in MAC iterations on so many processors."""
    block = tuple(int(size) for size in measure.block.split("x"))
    logs = []
    for problem in spec.load(HERE / f"{measure.experiment}.yaml").problems.all():
        shape = [cdiv(size, b) for size, b in zip((problem.m, problem.n, problem.k), block, strict=True)]
        schedule = always_two_tile(*shape, measure.sms)
        waves = cdiv(schedule.tiles, measure.sms) * schedule.iters_per_tile
        shared = schedule.full + (schedule.rest > 0) + cdiv(schedule.dp_tiles, measure.sms) * schedule.iters_per_tile
        logs.append(math.log(waves / shared))
    return _exact(math.exp(sum(logs) / len(logs)))


RESIDENT_PER_SM = 2
"""Programs an SM in the model of memory: what the registers of a 128x128 tile allow."""


def memory_model(measure: MemoryModel) -> Interval:
    """Memory's time over arithmetic's, from the variant's schedule at one program an SM; C is written once."""
    v = variants.get(measure.variant)
    config, problem = v.card.default, Problem(*measure.problem)
    schedule = plan(v.card, *measure.problem, config, measure.sms)
    group_m = GROUP_M if config.order == "swizzled" else 0
    size, resident = problem.torch_dtype.itemsize, RESIDENT_PER_SM * measure.sms
    fetched = traffic.estimate(schedule, config.block, size, group_m, resident, measure.l2_megabytes << 20).missed
    seconds = (fetched + size * problem.m * problem.n) / (measure.terabytes * 1e12)
    return _exact(seconds / (problem.flops / (measure.tflops * 1e12)))


def _judge_compiled(test: Test, measure: Compiled, results: Results) -> dict[str, Any]:
    """Verdict, what to show and the source, of compiled code. Raises Missing."""
    document = results.compiled
    if document is None:
        raise Missing("nothing was compiled: python -m experiments compiled")
    mine = _record(document, schema.key(measure))
    found: dict[str, Any] = {"source": document.id}
    if test.rule == "fails":
        failed = mine["status"] != "ok"
        shown = f"does not: {mine['error']}" if failed else f"compiles: {mine['registers']} registers"
        return found | {"verdict": "reproduced" if failed else "not reproduced", "shown": shown}
    if mine["status"] != "ok":
        return found | {"verdict": "not testable here", "shown": f"does not compile: {mine['error']}"}
    value = mine[measure.quantity]
    if test.rule == "spills":
        verdict = "not reproduced" if not value else "reproduced" if value >= test.claimed else "reproduced, smaller"
        return found | {"verdict": verdict, "shown": f"{value} spills", "value": value}
    other = _record(document, schema.key(measure, beside=True))
    if other["status"] != "ok":
        return found | {"verdict": "not testable here", "shown": f"the other does not compile: {other['error']}"}
    verdict = compare(test.rule, value, other[measure.quantity])
    return found | {"verdict": verdict, "shown": f"{value} beside {other[measure.quantity]}", "value": value}


def compare(rule: str, value: int, other: int) -> schema.Verdict:
    """The verdict of "avoids" (less than the other, best none) and "adds" (more than the other)."""
    if rule == "adds":
        return "reproduced" if value > other else "not reproduced" if value == other else "reversed"
    if value == other:
        return "not reproduced"
    if value > other:
        return "reversed"
    return "reproduced" if value == 0 else "reproduced, smaller"


def _record(document: Document, wanted: schema.Key) -> dict[str, Any]:
    for record in document.select(key=list(wanted)):
        return record
    raise Missing(f"{document.id} has no {wanted[0]} {wanted[1]} for {wanted[2]} by Triton {wanted[3]}")


QUANTITIES = {
    "n_spills": "spills",
    "registers": "registers",
    "hot_shared_store": "shared stores in the hot loop",
    "hot_barrier": "barriers in the hot loop",
}


def by_compiler(answer: Answer) -> list[str]:
    """For each compiled kernel that a claim asks about, what every version of Triton made of it, and when it went."""
    groups: dict[tuple[str, ...], list[tuple[str, Outcome]]] = {}
    for test, outcome in zip(answer.claim.tests, answer.outcomes, strict=True):
        if isinstance(test.measure, Compiled) and outcome.shown:
            groups.setdefault(_about(test, test.measure), []).append((test.measure.triton, outcome))
    return [f"{', '.join(what)}: {_by_version(found)}" for what, found in groups.items()]


def _about(test: Test, measure: Compiled) -> tuple[str, ...]:
    kernel = measure.variant + (f" beside {measure.beside}" if measure.beside else "")
    launch = (
        (measure.block + (f" w{measure.warps} s{measure.stages}" if measure.warps else ""),) if measure.block else ()
    )
    quantity = "compiles" if test.rule == "fails" else QUANTITIES[measure.quantity]
    return (f"{quantity} of {kernel}" if test.rule != "fails" else kernel, measure.architecture, *launch)


def _by_version(found: list[tuple[str, Outcome]]) -> str:
    """Values by version and, where a claim held up to one version and no longer from the next on, that one."""
    found = sorted(found, key=lambda pair: Version(pair[0]))
    shown = "; ".join(f"{version}: {_brief(outcome)}" for version, outcome in found)
    held = [outcome.verdict.startswith("reproduced") for _, outcome in found]
    changes = [i for i in range(1, len(held)) if held[i] != held[i - 1]]
    if len(changes) == 1 and held[0]:
        return f"{shown} (gone between {found[changes[0] - 1][0]} and {found[changes[0]][0]})"
    return shown


def _brief(outcome: Outcome) -> str:
    """What a compiler made, without its error's text."""
    if outcome.value is None and outcome.verdict in ("reproduced", "not testable here"):
        return "does not compile"
    return "compiles" if outcome.shown.startswith("compiles") else outcome.shown


def others(answer: Answer) -> list[str]:
    """The tests that are no compiled code, but for the one that decides."""
    pairs = list(zip(answer.claim.tests, answer.outcomes, strict=True))[1:]
    kept = [outcome for test, outcome in pairs if not isinstance(test.measure, Compiled)]
    return [f"{o.name}: {o.shown or o.reason} ({o.about}: {o.verdict})" for o in kept]
