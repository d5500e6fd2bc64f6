"""One exploration as a person or a script asks for it: conditions in, a report out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Progressbar

from common import interpreter, schedules
from common.defects import Explanation
from common.errors import NotCoResident, UnsupportedProblem, nearest
from common.launcher import Variant
from common.machine import STARVED, Machine, Rules
from common.memory_model import READINGS
from common.protocols import Small, small_config
from common.scenario import Scenario, Setup, build
from common.schedules import Exploration, Progress

STRATEGIES = ("random", "pct", "exhaustive")
USUAL_SCHEDULES = 300
MOST_SHOWN = 40
"""Lines of a trace; a longer one is cut in the middle."""


@dataclass(frozen=True)
class Request:
    """What to explore: a small launch, the rules, and how many schedules. `order`: tile order, None for the card's.

    `schedules`: of an exhaustive search at most as many, None for all that there are; else None for USUAL_SCHEDULES.
    """

    small: Small
    setup: Setup = field(default_factory=Setup)
    readings: tuple[str, ...] = tuple(READINGS)
    residents: int | None = None
    dispatch: Literal["ascending", "any"] = "ascending"
    strategy: str = "random"
    schedules: int | None = None
    seed: int = 0
    order: str | None = None
    most_states: int = 200_000

    def __post_init__(self) -> None:
        for word, allowed in [(self.strategy, STRATEGIES), *((reading, READINGS) for reading in self.readings)]:
            if word not in allowed:
                raise UnsupportedProblem(f"{word!r}: choose {nearest(word, allowed)}")
        if self.dispatch not in ("ascending", "any"):
            raise UnsupportedProblem(f"dispatch {self.dispatch!r}: ascending or any")
        if self.residents is not None and self.residents < 1:
            raise UnsupportedProblem(f"residents={self.residents}: at least one program runs at once")
        if self.schedules is not None and self.schedules < 1:
            raise UnsupportedProblem(f"schedules={self.schedules}: at least one")

    @property
    def exhaustive(self) -> bool:
        return self.strategy == "exhaustive"

    @property
    def expected(self) -> int | None:
        """Schedules under all readings together; None where a search finds out."""
        return None if self.exhaustive else (self.schedules or USUAL_SCHEDULES) * len(self.readings)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an exploration; `reports` is what was found so far."""

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        super().__init__()
        self.reports = reports


def explore_variant(variant: Variant, request: Request, progress: Progress = lambda _: None) -> list[dict[str, Any]]:
    """Explore under each reading; a report each.

    Raises UnsupportedProblem and NotCoResident where the launcher refuses (`Setup.guarded`), UnsupportedTriton, and
    Interrupted where Ctrl-C ends it.
    """
    scenario = _scenario(variant, request)
    reports: list[dict[str, Any]] = []
    with interpreter.exploring(scenario.kernels):
        for reading in request.readings:
            rules = _rules(request, reading)
            machine, explained = scenario.machine(rules), Explanation(variant.card, scenario, rules)
            latest = Exploration()

            def watch(so_far: Exploration) -> None:
                nonlocal latest
                latest = so_far
                progress(so_far)

            try:
                found = _explored(request, machine, explained, watch)
            except KeyboardInterrupt:
                # Machines anew: these may have been left in the middle of a step.
                machine, explained = scenario.machine(rules), Explanation(variant.card, scenario, rules)
                found = replace(latest, cut="interrupted")
                raise Interrupted([*reports, _report(variant, request, reading, machine, found, explained)]) from None
            reports.append(_report(variant, request, reading, machine, found, explained))
    return reports


def _explored(request: Request, machine: Machine, explained: Explanation, progress: Progress) -> Exploration:
    if request.exhaustive:
        limits = {"most_states": request.most_states, "most_schedules": request.schedules}
        found = schedules.exhaust(machine, **limits, progress=progress)
        return explained.searched(found, lambda other: schedules.exhaust(other, **limits))
    wanted = request.schedules or USUAL_SCHEDULES
    return schedules.explore(machine, wanted, request.seed, request.strategy, progress=progress, judge=explained)


def _rules(request: Request, reading: str) -> Rules:
    """An exhaustive search leaves late stores out: with them even small launches have too many states."""
    return Rules(READINGS[reading], request.residents, request.dispatch, late_stores=not request.exhaustive)


def _scenario(variant: Variant, request: Request) -> Scenario:
    config = small_config(variant.card, request.small)
    config = config if request.order is None else config.replace(order=request.order)
    return build(variant, request.small.problem, config, request.setup, request.residents)


def replay_variant(variant: Variant, request: Request, schedule: str) -> dict[str, Any]:
    """Run one schedule again, as `schedules.show` wrote it, under the first reading and the strategy's rules.

    Raises UnsupportedProblem for a schedule that is none or not possible here.
    """
    scenario = _scenario(variant, request)
    with interpreter.exploring(scenario.kernels):
        machine = scenario.machine(_rules(request, request.readings[0]))
        try:
            outcome = schedules.replay(machine, schedules.parse(schedule))
        except ValueError as error:
            raise UnsupportedProblem(f"--replay: {error}") from None
        return {
            "variant": variant.name,
            "reading": request.readings[0],
            "trace": schedules.trace(machine, outcome.actions),
            "over": outcome.over,
            "findings": [{"kind": f.kind, "message": f.message} for f in outcome.findings],
        }


def _report(
    variant: Variant, request: Request, reading: str, machine: Machine, found: Exploration, explained: Explanation
) -> dict[str, Any]:
    findings = []
    for finding, outcome, number, seed in found.found.values():
        short = schedules.shrink(machine, finding, outcome.actions, most_states=5_000, judge=explained)
        again = explained(schedules.replay(machine, short))
        shown = next(f for f in again.findings if f.key == finding.key)
        findings.append(
            {
                "kind": finding.kind,
                "message": shown.message,
                "known": finding.defect,
                "refusal": _refusal(variant, request) if STARVED in finding.places else "",
                "schedule": number,
                "seed": seed,
                "switches": schedules.switches(short),
                "replay": schedules.show(short),
                "again": _again(variant, request, reading, schedules.show(short)),
                "trace": schedules.trace(machine, short),
            }
        )
    return {
        "variant": variant.name,
        "problem": list(request.small.problem),
        "programs": request.small.programs,
        "reading": reading,
        "residents": request.residents,
        "dispatch": request.dispatch,
        "strategy": request.strategy,
        "seed": request.seed,
        "schedules": found.schedules,
        "distinct": None if request.exhaustive else found.distinct,
        "states": found.states,
        "complete": found.complete,
        "cut": found.cut,
        "steps": found.steps,
        "seconds": round(found.seconds, 2),
        "interpreter_runs": machine.interpreter_runs,
        "waits": sorted(list(pair) for pair in machine.waits),
        "findings": findings,
    }


def _again(variant: Variant, request: Request, reading: str, schedule: str) -> str:
    """The command that shows a schedule again: a schedule means something under its own rules alone."""
    (m, n, k), setup = request.small.problem, request.setup
    words: list[object] = ["python", "-m", "variants", "explore", variant.name, "--m", m, "--n", n, "--k", k]
    words += ["--programs", request.small.programs, "--reading", reading]
    for option, value, usual in (
        ("--residents", request.residents, None),
        ("--dispatch", request.dispatch, "ascending"),
        ("--launches", setup.launches, 1),
        ("--streams", setup.streams, 1),
        ("--order", request.order, None),
        ("--strategy", request.strategy if request.exhaustive else None, None),
    ):
        words += [option, value] if value != usual else []
    words += ["--shared-workspace"] if setup.shared_workspace else []
    words += [] if setup.guarded else ["--unguarded"]
    return shlex.join(map(str, [*words, "--replay", schedule]))


def _refusal(variant: Variant, request: Request) -> str:
    """How the launcher can be had to refuse a launch that hangs for want of residency, and what it then says."""
    admitted = "the launcher refuses this launch"
    for strict in (False, True):
        setup = replace(request.setup, guarded=True, strict_residency=strict)
        try:
            _scenario(variant, replace(request, setup=setup))
        except NotCoResident as error:
            return f"{admitted}: {error}"
        except UnsupportedProblem:
            break
        admitted = "the launcher admits this launch; strict_residency=True (`run --strict-residency`) refuses it"
    return ""


def told(report: dict[str, Any]) -> list[str]:
    """A report as lines of text."""
    exhaustive = report["strategy"] == "exhaustive"
    what = f"{report['schedules']} schedules"
    if exhaustive and report["complete"]:
        what = f"{report['states']} states, all that there are with each store visible at once,"
    elif exhaustive:
        where = f"after {what}" if report["cut"] == "schedules" else "there"
        what = f"{report['states']} states, cut short {where}: there are more;"
    else:
        what += f", {report['distinct']} of them distinct,"
    speed = 60 * report["schedules"] / max(report["seconds"], 1e-3)
    lines = [
        f"{report['variant']}, reading {report['reading']}: {what} in {report['seconds']} s"
        + (f" ({speed:,.0f} a minute)" if not exhaustive else "")
        + (": nothing found" if not report["findings"] else "")
    ]
    each = "state" if exhaustive else "schedule"
    for finding in report["findings"]:
        seed = f", seed {finding['seed']}" if finding["seed"] is not None else ""
        known = f"; the card knows it: {finding['known']}" if finding["known"] else ""
        lines.append(f"  {finding['kind']}: {finding['message']} (first in {each} {finding['schedule']}{seed}{known})")
        lines += [f"    {finding['refusal']}"] if finding["refusal"] else []
        lines.append(f"    fewest switches: {finding['switches']}; again:")
        lines.append(f"      {finding['again']}")
        trace = finding["trace"]
        if len(trace) > MOST_SHOWN:
            half = MOST_SHOWN // 2
            trace = [*trace[:half], f"… {len(trace) - 2 * half} steps …", *trace[-half:]]
        lines += [f"      {line}" for line in trace]
    return lines


def told_replay(report: dict[str, Any]) -> list[str]:
    """A replay as lines of text: what each program did, then what was found."""
    lines = [f"{report['variant']}, reading {report['reading']}", *(f"  {line}" for line in report["trace"])]
    lines += [f"{finding['kind']}: {finding['message']}" for finding in report["findings"]]
    lines += [] if report["findings"] else ["nothing found"]
    return lines if report["over"] else [*lines, "the schedule ends here, before the launch does"]


@contextmanager
def counting(name: str, total: int | None) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere; called once a schedule, or a state. `total`: None where it is unknown."""
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progressbar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda _: bar.advance(task)
