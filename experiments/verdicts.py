"""From committed measurements to verdicts: intervals, the rules, and the table that all who show them read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from common import documents, rows, statistics
from common.decomposition import always_two_tile, cdiv
from common.documents import Document
from common.errors import DamagedRun, NoCandidate, NoResults
from common.problem import Problem
from common.rows import Row, Run
from common.statistics import Interval
from experiments import claims as schema
from experiments import spec
from experiments.claims import (
    MARGIN,
    BestOf,
    Claim,
    Claims,
    Compiled,
    Counter,
    Estimate,
    Interpreted,
    MemoryModel,
    Ratio,
    ScheduleBound,
    Test,
)
from experiments.plan import count_programs

NOT_MEASURED = "not measured"
LIBRARY = "torch_matmul"
"""cuBLAS, without which a run says nothing about a speed-up."""
HERE = Path(__file__).parent
SIZE = f"{100 * MARGIN:g} %"
BAND = f"negligible: less than {SIZE} from 1"


class Missing(LookupError):
    """What a test reads has no committed rows."""


@dataclass(frozen=True)
class Outcome:
    """What a test came to. `verdict`: one of the schema's five, "evidence" or "not measured". `half`: what of the claim
    it decides. `band`: where its interval lies of the negligible band. `source`: run or document. `value` and `other`:
    of the kernel and of the one beside it, where code was compared."""

    claim: str
    name: str
    about: str
    half: str
    verdict: str
    shown: str
    claimed: float | None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    other: float | None = None
    band: str = ""
    source: str = ""
    reason: str = ""

    @property
    def told(self) -> str:
        """What was found with its place in the negligible band, or what there is instead."""
        text = self.shown or self.source
        return f"{text}, {self.band}" if self.band else text


@dataclass(frozen=True)
class Answer:
    """A claim with the outcomes of its tests; the first decides, or one for each half of the claim."""

    claim: Claim
    outcomes: tuple[Outcome, ...]

    @property
    def deciding(self) -> tuple[Outcome, ...]:
        """The outcomes that make the verdict."""
        return tuple(outcome for outcome in self.outcomes if outcome.half) or self.outcomes[:1]

    @property
    def verdict(self) -> str:
        """The verdict, of each half where there are several."""
        return "; ".join(f"{o.half}: {o.verdict}" if o.half else o.verdict for o in self.deciding)

    def pairs(self) -> Iterator[tuple[Test, Outcome]]:
        """Each test with its outcome."""
        return zip(self.claim.asked, self.outcomes, strict=True)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        about = self.claim.model_dump(exclude={"tests"})
        verdicts = {o.half or "all": o.verdict for o in self.deciding}
        compilers = {"compilers": by_compiler(self), "gone": gone(self)}
        return about | {
            "verdict": self.verdict,
            "verdicts": verdicts,
            **compilers,
            "tests": [asdict(o) for o in self.outcomes],
        }


class Results:
    """The newest runs and documents of one device in a folder, read once each: those of different machines are never
    put together. `device`: its name; by default that of the folder's newest run.

    Raises NoResults where there is no such folder.
    """

    def __init__(self, folder: Path, device: str | None = None) -> None:
        if not folder.is_dir():
            raise NoResults(f"{folder}: no such folder of results")
        self.folder = folder
        self.device = device or newest_device(folder)
        self._runs: dict[str, Run | None] = {}

    def run(self, experiment: str) -> Run:
        """Raises Missing saying how to make one."""
        if experiment not in self._runs:
            self._runs[experiment] = rows.newest_run(self.folder, experiment, self.device)
        run = self._runs[experiment]
        if run is None:
            where = f" on {self.device}" if self.device else ""
            raise Missing(f"no finished run of {experiment}{where}")
        return run

    @cached_property
    def counters(self) -> Document | None:
        return documents.newest(self.folder, "counters", self.device)

    @cached_property
    def estimates(self) -> Document | None:
        return documents.newest(self.folder, "estimates")

    @cached_property
    def compiled(self) -> Document | None:
        return documents.newest(self.folder, "compiled")

    @cached_property
    def interpreted(self) -> Document | None:
        return documents.newest(self.folder, "interpreted")

    def machines(self) -> list[str]:
        """Device and Triton of every run that was read, each once."""
        found = [run for run in self._runs.values() if run]
        return sorted({f"{r.header['device']['name']}, Triton {r.header['versions'].get('triton')}" for r in found})


def _sweeps(folder: Path) -> list[Path]:
    """The files of every sweep that claims read."""
    return [path for name in schema.load().experiments() for path in rows.runs(folder, name)]


def devices(folder: Path) -> list[str]:
    """The devices of a folder's runs of sweeps that claims read, each once."""
    return sorted({rows.read_header(path)["device"]["name"] for path in _sweeps(folder)})


def newest_device(folder: Path) -> str | None:
    """The device of the newest finished run of any sweep that claims read; None where there is none."""
    for path in sorted(_sweeps(folder), key=lambda path: path.name.split(".")[0].split("-")[1:], reverse=True):
        if path.suffix == ".xz" or rows.says_finished(path):
            header = rows.read_header(path)
            if not header.get("dry_run") and not header.get("limit"):
                return header["device"]["name"]
    return None


def answers(results: Results, claims: Claims) -> list[Answer]:
    """Every claim with a verdict of every test."""
    return [Answer(claim, tuple(judge(test, claim.id, results) for test in claim.asked)) for claim in claims.claims]


def committed(folder: Path, device: str | None = None) -> tuple[list[Answer], list[str]]:
    """The answers from a folder's results and the machine they come from, worked out once while nothing changes.

    Raises NoResults where there is no such folder, DamagedRun where what is in it does not fit together.
    """
    if not folder.is_dir():
        raise NoResults(f"{folder}: no such folder of results")
    return _committed(folder, device, tuple(sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*"))))


@lru_cache(maxsize=4)
def _committed(folder: Path, device: str | None, stamp: tuple[tuple[str, int], ...]) -> tuple[list[Answer], list[str]]:
    results = Results(folder, device)
    return answers(results, schema.load()), results.machines()


@dataclass(frozen=True)
class Found:
    """A measure's interval, how it is shown, and where it is from."""

    interval: Interval
    source: str
    shown: str = ""

    def numbers(self) -> dict[str, float | None]:
        known = self.interval.count > 1
        low, high = (self.interval.low, self.interval.high) if known else (None, None)
        return {"value": self.interval.value, "low": low, "high": high}

    def text(self) -> str:
        return self.shown or (str(self.interval) if self.interval.count > 1 else f"{self.interval.value:.3f}")


def judge(test: Test, claim: str, results: Results) -> Outcome:
    """One test's outcome; "not measured" where rows are missing. Raises DamagedRun where they do not fit together."""
    common = {"claim": claim, "name": test.name, "about": test.machine, "half": test.half}
    common |= {"claimed": test.claimed, "reason": test.reason}
    try:
        if isinstance(test.measure, Compiled):
            return Outcome(**common | _judge_compiled(test, test.measure, results))
        if isinstance(test.measure, Interpreted):
            return Outcome(**common, **_judge_interpreted(test.measure, results))
        if test.measure is None:
            return Outcome(verdict="not testable here", shown="", **common)
        found = _measured(test.measure, results)
    except Missing as missing:
        known = "not testable here" if test.rule == "untestable" else NOT_MEASURED
        return Outcome(verdict=known, shown="", source=str(missing), **common)
    judged = isinstance(test.measure, (Ratio, BestOf)) and test.rule != schema.EVIDENCE
    where = band(found.interval) if judged else ""
    verdict, shown = by_rule(test, found.interval), found.text()
    if isinstance(test.measure, BestOf) or (isinstance(test.measure, Ratio) and test.measure.problem is None):
        shown += f" over {found.interval.count:,} shapes"
    return Outcome(verdict=verdict, shown=shown, band=where, source=found.source, **found.numbers(), **common)


def band(found: Interval) -> str:
    """Where an interval lies of the band in which two times are taken for equal."""
    if _above(found):
        return f"more than {SIZE} above 1"
    if _below(found):
        return f"more than {SIZE} below 1"
    if found.low >= 1 / (1 + MARGIN) and found.high <= 1 + MARGIN:
        return f"within {SIZE} of 1"
    return f"across the edge of {SIZE} around 1"


def _above(found: Interval) -> bool:
    return found.low > 1 + MARGIN


def _below(found: Interval) -> bool:
    return found.high < 1 / (1 + MARGIN)


def by_rule(test: Test, found: Interval) -> str:
    """The verdict that a test's rule makes of an interval. One that is not outside the band is no speed-up."""
    rule, claimed = test.rule, test.claimed
    if rule in ("untestable", "evidence"):
        return {"untestable": "not testable here"}.get(rule, schema.EVIDENCE)
    reached = claimed is None or found.high * (1 + MARGIN) >= claimed
    if rule in ("no_gain", "same"):
        holds = found.high <= 1 + MARGIN and (rule == "no_gain" or found.low >= 1 / (1 + MARGIN))
        return "reproduced" if holds else "not reproduced"
    if rule == "reaches":
        return "reproduced" if reached else "not reproduced"
    if _below(found):
        return "reversed"
    if rule == "only":
        assert claimed is not None
        if not _above(found):
            return "reproduced, smaller"
        return "reproduced" if found.low <= claimed * (1 + MARGIN) else "not reproduced"
    if not _above(found):
        return "not reproduced"
    return "reproduced" if reached else "reproduced, smaller"


def _measured(measure: Ratio | BestOf | Counter | Estimate | ScheduleBound | MemoryModel, results: Results) -> Found:
    if isinstance(measure, Ratio):
        run = results.run(measure.experiment)
        return Found(ratio(run, measure), run.id)
    if isinstance(measure, BestOf):
        run = results.run(measure.experiment)
        if measure.problems_of:
            run = with_problems_of(run, results.run(measure.problems_of))
        base, best = best_of(run, measure.variant, measure.choice)
        return Found(statistics.mean_ratio(base, best, measure.mean), run.id)
    if isinstance(measure, Counter):
        return _counter(measure, results)
    if isinstance(measure, Estimate):
        return _estimate(measure, results)
    if isinstance(measure, MemoryModel):
        return _memory_model(measure, results)
    return Found(schedule_bound(measure), "schedules alone")


def with_problems_of(run: Run, other: Run) -> Run:
    """A run with the problems alone that another has too."""
    shared = {row.problem for row in other.rows}
    return Run(run.path, run.header, [row for row in run.rows if row.problem in shared], run.finished, run.joined)


def ratio(run: Run, measure: Ratio) -> Interval:
    """slow/fast of one problem by rounds, or of all problems that both got right on the same device. Raises Missing,
    and DamagedRun where samples are no pairs."""
    slow, fast = (_row_table(run, label) for label in (measure.slow, measure.fast))
    both = [p for p in slow if p in fast and slow[p].device == fast[p].device]
    if measure.problem is not None:
        if measure.problem not in both:
            shape = "x".join(map(str, measure.problem))
            raise Missing(f"{run.id} has no right result of both, on one device, on {shape}")
        return statistics.median_ratio(*rows.paired(run, slow[measure.problem], fast[measure.problem]))
    if not both:
        raise Missing(f"{run.id}: no problem that both got right on one device")
    return statistics.mean_ratio([slow[p].median for p in both], [fast[p].median for p in both], measure.mean)


def _row_table(run: Run, label: str) -> dict[rows.Problem, Row]:
    """The rows with a speed of one candidate, by problem. Raises Missing, and NoCandidate where cuBLAS is missing."""
    try:
        index = run.index(label)
    except NoCandidate as error:
        if label == LIBRARY:
            raise
        raise Missing(str(error)) from None
    found = run.by_candidate.get(index, {})
    return {p: row for p, row in found.items() if row.status == "ok" and row.samples}


def best_of(run: Run, variant: str, choice: str) -> tuple[list[float], list[float]]:
    """cuBLAS's time and the best candidate's, problem by problem, on one device each. Raises Missing, and DamagedRun
    where the run has no cuBLAS or too few samples.

    "first": least first sample against cuBLAS's first. "held_out": chosen on one half of the samples, reported on the
    other, cuBLAS among its repeats as the variant among its candidates.
    """
    full = schema.known_variant(variant)
    tables = {c["label"]: _row_table(run, c["label"]) for c in run.candidates if c["variant"] in (full, LIBRARY)}
    library = [c["label"] for c in run.candidates if c["variant"] == LIBRARY]
    if not library:
        raise NoCandidate(f"{run.path}: no candidate of {LIBRARY}: there is nothing to compare with")
    mine = [c for c in run.candidates if c["variant"] == full]
    base, best = [], []
    for problem, first in tables[library[0]].items():
        chosen = {c["label"]: tables[c["label"]][problem] for c in mine if _counts(c, problem, run, tables)}
        repeats = {label: tables[label][problem] for label in library if problem in tables[label]}
        chosen, repeats = (_on(first.device, found) for found in (chosen, repeats))
        if not chosen:
            continue
        if choice == "first":
            base.append(first.samples[0])
            best.append(statistics.first_best({label: row.samples for label, row in chosen.items()}))
        else:
            base.append(_held_out(run, repeats))
            best.append(_held_out(run, chosen))
    if not base:
        raise Missing(f"{run.id}: no problem that both got right on one device")
    return base, best


def _on(device: str, found: dict[str, Row]) -> dict[str, Row]:
    return {label: row for label, row in found.items() if row.device == device}


def _held_out(run: Run, found: dict[str, Row]) -> float:
    for label, row in found.items():
        if len(row.samples) < 2:
            shape = "x".join(map(str, row.problem))
            raise DamagedRun(f"{run.path}: {label} on {shape}: one sample cannot choose and be reported")
    return statistics.held_out_best({label: row.samples for label, row in found.items()})


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


def _counter(measure: Counter, results: Results) -> Found:
    document, record = _profiled(measure, results)
    memory, sm = (record[name] for name in ("memory_percent", "sm_percent"))
    if not sm:
        raise Missing(f"{document.id}: the SMs of {measure.label} were not counted")
    return Found(_exact(memory / sm), document.id, f"{memory:.0f} % of memory's peak, {sm:.0f} % of the SMs'")


def _profiled(measure: Counter | Estimate, results: Results) -> tuple[Document, dict[str, Any]]:
    """The counters of a call. Raises Missing."""
    document = results.counters
    if document is None:
        raise Missing("no counters were read" + (f" on {results.device}" if results.device else ""))
    for record in document.select(label=measure.label, problem=list(measure.problem)):
        if document.header.get("source") == "ncu":
            return document, record
    reason = document.header.get("reason") or "not profiled"
    raise Missing(f"{document.id} has no counters of {measure.label}: {reason}")


def modelled(document: Document | None, device: str, label: str, problem: tuple[int, ...] | list[int]) -> float | None:
    """The model's bytes of a call on a device; None where the document has none."""
    if document is None:
        return None
    for record in document.select(device=device, label=label, problem=list(problem)):
        return float(record["read_bytes"])
    return None


def model_error(counters: Document | None, estimates: Document | None) -> tuple[float, int]:
    """The factor by which the model is off at most, in either direction, and of how many profiled calls; 0 of none."""
    off = []
    if counters is not None and counters.header.get("source") == "ncu":
        device = (counters.header.get("device") or {}).get("name", "")
        for record in counters.records:
            call = (record["label"], record["problem"])
            bytes_read = record["dram_read_bytes"]
            guess = modelled(estimates, device, *call)
            if guess and bytes_read:
                off.append(abs(math.log(guess / bytes_read)))
    return (math.exp(max(off)) if off else float("inf")), len(off)


def _estimate(measure: Estimate, results: Results) -> Found:
    document, record = _profiled(measure, results)
    device = (document.header.get("device") or {}).get("name", "")
    guess = modelled(results.estimates, device, measure.label, measure.problem)
    if guess is None:
        raise Missing(f"the bytes of {measure.label} on {device or 'this GPU'} were not modelled")
    counted = record["dram_read_bytes"]
    factor, count = model_error(document, results.estimates)
    shown = (
        f"{guess / 1e6:.0f} MB modelled, {counted / 1e6:.0f} MB counted (of {count} calls off by {factor:.1f}x at most)"
    )
    return Found(_exact(guess / counted), document.id, shown)


def _memory_model(measure: MemoryModel, results: Results) -> Found:
    """Memory's time over arithmetic's; the range is what the model is off by where counters were read."""
    guess = modelled(results.estimates, measure.device, measure.label, measure.problem)
    if guess is None:
        raise Missing(f"the bytes of {measure.label} on {measure.device} were not modelled")
    assert results.estimates is not None
    problem = Problem(*measure.problem)
    written = problem.torch_dtype.itemsize * problem.m * problem.n
    arithmetic = problem.flops / (measure.tflops * 1e12)
    factor, count = model_error(results.counters, results.estimates)
    value, low, high = (
        (bytes_read + written) / (measure.terabytes * 1e12) / arithmetic
        for bytes_read in (guess, guess / factor, guess * factor)
    )
    if not count:
        shown = f"{value:.2f} from {guess / 1e6:.0f} MB, by a model that no counters here bear out"
        return Found(_exact(value), results.estimates.id, shown)
    shown = f"{value:.2f}, {low:.2f} to {high:.2f} as the model's {guess / 1e6:.0f} MB are off by {factor:.1f}x at most"
    return Found(Interval(value, low, high, count), results.estimates.id, shown)


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


def _judge_interpreted(measure: Interpreted, results: Results) -> dict[str, Any]:
    """Verdict, what to show and the source, of a launch in the interpreter. Raises Missing."""
    document = results.interpreted
    if document is None:
        raise Missing("nothing was interpreted: python -m experiments interpreted")
    wanted = {"variant": measure.variant, "problem": list(measure.problem), "block": measure.block}
    for record in document.select(**wanted, programs=measure.programs):
        wrong = record["wrong"]
        verdict = "reproduced" if wrong == 0 else "not reproduced"
        shown = f"{100 * wrong:.0f} % of C's elements wrong, at most {record['most_tiles']} tiles a program"
        return {"verdict": verdict, "shown": shown, "value": wrong, "source": document.id}
    raise Missing(f"{document.id} has no such launch of {measure.variant}")


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
    other = _record(document, schema.key(measure, beside=True)) if measure.beside else None
    if test.rule == "untestable":
        beside = f" beside {_resources(document, other)}" if other else ""
        return found | {"verdict": "not testable here", "shown": _resources(document, mine) + beside}
    value = mine[measure.quantity]
    if test.rule == "spills":
        verdict = "not reproduced" if not value else "reproduced" if value >= test.claimed else "reproduced, smaller"
        return found | {"verdict": verdict, "shown": f"{value} spills", "value": value}
    assert other is not None
    if other["status"] != "ok":
        return found | {"verdict": "not testable here", "shown": f"the other does not compile: {other['error']}"}
    beside = other[measure.quantity]
    verdict = compare(test.rule, value, beside)
    if verdict == "not testable here" and not test.reason:
        found["reason"] = "neither has any to avoid"
    return found | {"verdict": verdict, "shown": f"{value} beside {beside}", "value": value, "other": beside}


def _resources(document: Document, record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        return "one that does not compile"
    registers, spills, fit = (record[n] for n in ("registers", "n_spills", "programs_per_sm"))
    return f"{registers} registers, {spills} spills, {fit} an SM"


def compare(rule: str, value: int, other: int) -> schema.Verdict:
    """The verdict of "avoids" (less than the other, best none), "adds" (more than the other) and "equal"."""
    if rule == "equal":
        return "reproduced" if value == other else "not reproduced"
    if rule == "adds":
        return "reproduced" if value > other else "not reproduced" if value == other else "reversed"
    if value == other == 0:
        return "not testable here"
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
    "hot_instructions": "instructions in the hot loop",
}


def by_compiler(answer: Answer) -> list[str]:
    """For each compiled kernel that a claim asks about, what every version of Triton made of it, and which one made an
    effect go."""
    return [f"{', '.join(what)}: {shown}" + (f" ({note})" if note else "") for what, shown, note in _compiled(answer)]


def gone(answer: Answer) -> list[str]:
    """Between which two versions of Triton an effect in the compiled code went, each once."""
    return list(dict.fromkeys(f"{what[0]}: {note}" for what, _, note in _compiled(answer) if note))


def _compiled(answer: Answer) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Each compiled kernel that a claim asks about, its values by version, and when an effect went."""
    groups: dict[tuple[str, ...], list[tuple[str, Outcome]]] = {}
    rules: dict[tuple[str, ...], str] = {}
    for test, outcome in answer.pairs():
        if isinstance(test.measure, Compiled) and outcome.shown:
            what = _about(test, test.measure)
            groups.setdefault(what, []).append((test.measure.triton[0], outcome))
            rules[what] = test.rule
    for what, found in groups.items():
        found.sort(key=lambda pair: Version(pair[0]))
        shown = "; ".join(f"{version}: {_brief(outcome)}" for version, outcome in found)
        yield what, shown, _when_gone(rules[what], [pair for pair in found if pair[1].verdict != "not testable here"])


def _about(test: Test, measure: Compiled) -> tuple[str, ...]:
    kernel = measure.variant + (f" beside {measure.beside}" if measure.beside else "")
    launch = (
        (measure.block + (f" w{measure.warps} s{measure.stages}" if measure.warps else ""),) if measure.block else ()
    )
    target = f"{measure.architecture[0]} ({test.machine})"
    if test.rule in ("fails", "untestable"):
        return kernel, target, *launch
    return f"{QUANTITIES[measure.quantity]} of {kernel}", target, *launch


GONE = {
    "equal": "equal up to Triton {}, no longer from {} on",
    "fails": "fails up to Triton {}, compiles from {} on",
}
"""What to say, by rule, where a claim about compiled code held up to one version."""


def _when_gone(rule: str, found: list[tuple[str, Outcome]]) -> str:
    """Where a claim held up to one version and no longer from the next on, or most of the effect went: which two."""
    held = [outcome.verdict.startswith("reproduced") for _, outcome in found]
    changes = [i for i in range(1, len(held)) if held[i] != held[i - 1]]
    if len(changes) == 1 and held[0]:
        return GONE.get(rule, "gone between Triton {} and {}").format(found[changes[0] - 1][0], found[changes[0]][0])
    sizes = [_size(outcome) for _, outcome in found]
    for i in range(1, len(sizes)):
        before, after = sizes[i - 1], sizes[i]
        if not changes and before is not None and after is not None and 0 < 2 * after < before:
            what = "in both, most" if rule == "equal" else "most of it"
            return f"{what} gone between Triton {found[i - 1][0]} and {found[i][0]}"
    return ""


def _size(outcome: Outcome) -> float | None:
    """How large an effect is in compiled code: what the kernel has more than the other, or has where both are equal."""
    if outcome.value is None or outcome.other is None:
        return None
    return outcome.value - outcome.other or outcome.value


def _brief(outcome: Outcome) -> str:
    """What a compiler made, without its error's text."""
    if outcome.shown.startswith(("does not", "the other does not")):
        return "does not compile"
    return "compiles" if outcome.shown.startswith("compiles") else outcome.shown


def others(answer: Answer) -> list[Outcome]:
    """The tests that are no compiled code, but for those that decide."""
    deciding = set(map(id, answer.deciding))
    return [o for test, o in answer.pairs() if not isinstance(test.measure, Compiled) and id(o) not in deciding]
