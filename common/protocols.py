"""What the explorer says about a variant's protocol, property by property, and whether the card says the same.

Each property is decided on small launches: exhaustively where every state can be met within `MOST_STATES`, by seeded
schedules otherwise, and the row says which.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
import triton

from common import interpreter, schedules
from common.card import Card, Config, WaitsFor
from common.defects import Explanation, early_locks
from common.errors import ProtocolFault
from common.launcher import Variant, prepare
from common.machine import Finding, Machine, Rules
from common.memory_model import READINGS
from common.problem import Problem, make_inputs
from common.scenario import BLOCK, Setup, build
from common.schedules import Exploration


@dataclass(frozen=True)
class Small:
    """A problem (M, N, K), its Stream-K programs, and how many of them share its most widely shared tile."""

    problem: tuple[int, int, int]
    programs: int
    peers: int


MOST_STATES = 60_000
SHARED_BY_TWO = Small((3 * BLOCK, BLOCK, 4 * BLOCK), programs=4, peers=2)
"""3 tiles on 4 programs."""
SHARED_BY_THREE = Small((BLOCK, BLOCK, 3 * BLOCK), programs=3, peers=3)
SHARED_BY_FOUR = Small((BLOCK, BLOCK, 4 * BLOCK), programs=4, peers=4)
TWO_KERNELS = Small((5 * BLOCK, BLOCK, 2 * BLOCK), programs=2, peers=2)
"""Three Stream-K tiles on 2 programs, and two tiles that have a program each."""
TWO_TILES = Small((2 * BLOCK, BLOCK, 3 * BLOCK), programs=3, peers=2)
Stop = Callable[[Exploration], bool]
VALUES_ALONE: dict[str, Any] = {"reading": READINGS["source"], "late_stores": False, "races": False}


@dataclass(frozen=True)
class Properties:
    """One variant's row. Texts are for tables, the rest is what they were decided by.

    `waits_for`: which programs, by number, ended a wait. `residents`: by dispatch order, the fewest programs that must
    run at once so that no schedule hangs, for a tile of four peers on four programs and for tiles of two on four.
    `races`: by reading, the places that race. `unexplained`: by reading, the faults that no defect of the card
    explains. `needs_zero`: C must be zero before the launch. `locks_left`: what locks, flags and counters hold
    afterwards. `reproducible`: by number of peers, whether C's bits are the same in every order.
    `nan_spread`: Inf in one tile reaches the program's next. `lifetime`: by scenario, the kinds of faults found that no
    defect of the card explains.
    `schedules`, `states`: how much was explored; `complete`: nothing was cut off in the exhaustive searches.
    """

    variant: str
    kernel_hash: str
    waits_for: WaitsFor
    residents: dict[str, dict[str, int]]
    races: dict[str, list[str]]
    unexplained: dict[str, list[str]]
    needs_zero: bool
    locks_left: list[int]
    reproducible: dict[str, bool]
    nan_spread: bool
    lifetime: dict[str, list[str]]
    wrong_results: dict[str, bool]
    schedules: int
    states: int
    complete: bool
    triton: str = triton.__version__

    @property
    def needs_co_residency(self) -> bool:
        """Whether fewer resident programs than there are can hang, in ascending order."""
        return any(least > 1 for least in self.residents["ascending"].values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a row."""
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Properties:
        """What a row was made from; a row may hold more."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})


def kernel_hash(variant: Variant) -> str:
    """First 12 hex digits of the SHA-256 of the variant's jit functions, as they are written."""
    found = [
        inspect.getsource(value.fn)
        for _, value in sorted(vars(variant.module).items())
        if hasattr(value, "fn") and inspect.isfunction(value.fn) and value.fn.__module__ == variant.module.__name__
    ]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:12]


def small_config(card: Card, small: Small) -> Config:
    """The card's configuration with as many Stream-K programs, or as many parts a tile for a fixed split."""
    if card.decomposition == "split_k":
        return card.default.replace(split=small.peers)
    if card.decomposition == "whole_waves":
        return card.default.replace(programs=small.programs, split=small.peers)
    return card.default if card.decomposition == "data_parallel" else card.default.replace(programs=small.programs)


class Examination:
    """One variant under examination; keeps count of what is explored for it."""

    def __init__(self, variant: Variant, schedules_each: int = 300, seed: int = 0) -> None:
        self.variant, self.schedules_each, self.seed = variant, schedules_each, seed
        self.schedules = self.states = 0
        self.complete = True
        self.waits: set[tuple[int, int]] = set()
        self.wrong: dict[str, bool] = {}
        self.unexplained: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def _machine(self, small: Small, rules: Rules, setup: Setup) -> Iterator[tuple[Machine, Explanation]]:
        scenario = build(self.variant, small.problem, small_config(self.variant.card, small), setup)
        with interpreter.exploring(scenario.kernels):
            machine = scenario.machine(rules)
            yield machine, Explanation(self.variant.card, scenario, rules)
        self.waits |= machine.waits

    def sample(self, small: Small, rules: Rules, setup: Setup) -> list[Finding]:
        """The faults that random and PCT schedules find, half of each."""
        found: dict[tuple[str, tuple[str, ...], str], Finding] = {}
        with self._machine(small, rules, setup) as (machine, explained):
            for strategy in ("random", "pct"):
                each = max(1, self.schedules_each // 2)
                explored = schedules.explore(machine, each, self.seed, strategy, judge=explained)
                found |= {key: entry[0] for key, entry in explored.found.items()}
                self.schedules += explored.schedules
        return list(found.values())

    def search(self, small: Small, rules: Rules, setup: Setup, stop: Stop = lambda _: False) -> Exploration:
        """Every state that can be reached, up to MOST_STATES."""
        with self._machine(small, rules, setup) as (machine, explained):
            found = schedules.exhaust(machine, MOST_STATES, stop=stop)
            found = explained.searched(found, lambda other: schedules.exhaust(other, MOST_STATES, stop=stop))
        self.states += found.states
        self.complete &= found.complete or stop(found)
        return found

    def waits_for(self) -> WaitsFor:
        """Which programs, by number, ended a wait in any schedule so far."""
        higher = any(other > waiter for waiter, other in self.waits)
        lower = any(other < waiter for waiter, other in self.waits)
        return "any" if higher and lower else "higher" if higher else "lower" if lower else "none"

    def races(self, reading: str) -> list[str]:
        """The places that race in a reading, with three tiles on four programs and with two kernels."""
        found = [
            finding
            for small in (SHARED_BY_TWO, TWO_KERNELS)
            for finding in self.sample(small, Rules(READINGS[reading]), Setup())
        ]
        found += self.search(SHARED_BY_TWO, Rules(READINGS[reading], late_stores=False), Setup()).findings
        others = {finding.kind for finding in found} - {"race", "wrong result"}
        if others:
            raise ProtocolFault(f"{self.variant.name}, {reading}: {', '.join(sorted(others))} within its conditions")
        self.wrong[reading] = any(finding.kind == "wrong result" for finding in found)
        self.unexplained[reading] = sorted(
            {" ".join((f.kind, " and ".join(f.places))).strip() for f in found if not f.defect}
        )
        return sorted({" and ".join(finding.places) for finding in found if finding.kind == "race"})

    def least_residents(self, small: Small, dispatch: Literal["ascending", "any"]) -> int:
        """The fewest resident programs with which no schedule hangs."""
        for residents in range(small.programs, 0, -1):
            rules = Rules(READINGS["source"], residents, dispatch, late_stores=False, races=False)
            searched = self.search(small, rules, Setup(), lambda found: "deadlock" in found.kinds)
            if "deadlock" in searched.kinds:
                return residents + 1
        return 1

    def needs_zero(self) -> bool:
        """Whether a launch adds to elements of C that nobody has set, when the launcher does not zero C."""
        found = self.sample(SHARED_BY_TWO, Rules(READINGS["triton-3.9"]), Setup(zero_output=False))
        return any(finding.kind == "uninitialised" and "c" in finding.places for finding in found)

    def locks_left(self) -> list[int]:
        """What locks, flags and counters hold after a launch: of three tiles on four programs, and of two kernels."""
        left: set[int] = set()
        for small in (SHARED_BY_TWO, TWO_KERNELS):
            with self._machine(small, Rules(**VALUES_ALONE), Setup()) as (machine, _):
                state = schedules.end_state(machine, self.seed)
                for buffer in machine.buffers:
                    if buffer.name in ("locks", "flags", "counters"):
                        left |= {int(x) for x in machine.division.content(buffer, state.values)}
        return sorted(left)

    def reproducible(self, small: Small) -> bool:
        """Whether C's bits are the same at the end of every schedule, with inputs that round."""
        setup = Setup(inputs="normal")
        with self._machine(small, Rules(**VALUES_ALONE), setup) as (machine, _):
            searched = schedules.exhaust(machine, MOST_STATES, stop=lambda _: _outcomes(machine) > 1)
            self.states += searched.states
            self.complete &= searched.complete or _outcomes(machine) > 1
            return _outcomes(machine) == 1

    def nan_spread(self) -> bool:
        """Whether Inf in one column of B reaches another tile of the row, which the same program does next."""
        a, b = make_inputs(Problem(2 * BLOCK, 3 * BLOCK, 4 * BLOCK))
        b[:, 0] = torch.inf
        card = self.variant.card
        order = "linear" if "linear" in card.tile_orders else card.tile_orders[0]
        config = small_config(card, SHARED_BY_TWO).replace(block=(BLOCK, BLOCK, BLOCK), order=order)
        prepared = prepare(self.variant, a, b, config=config)
        with np.errstate(invalid="ignore"):
            prepared.run()
        return bool((~torch.isfinite(prepared.out[:, 1:])).any())

    def lifetime(self) -> dict[str, list[str]]:
        """Kinds of faults, by scenario, that no defect explains: in what the launcher does, which must be none, and in
        what it must not do."""
        setups = {
            "launches in a row": Setup(launches=3),
            "two streams": Setup(streams=2),
            "two streams with one workspace": Setup(streams=2, shared_workspace=True),
            "set before the first launch alone": Setup(launches=2, setting="first"),
            "never set": Setup(setting="never"),
        }
        rules = Rules(READINGS["triton-3.9"])
        return {
            name: sorted({finding.kind for finding in self.sample(TWO_TILES, rules, setup) if not finding.defect})
            for name, setup in setups.items()
        }


def _outcomes(machine: Machine) -> int:
    return max((len(found) for found in machine.results.values()), default=0)


def examine(variant: Variant, schedules_each: int = 300, seed: int = 0) -> Properties:
    """Decide every property of a variant. Raises UnsupportedTriton; ProtocolFault for a fault that is no property."""
    examination = Examination(variant, schedules_each, seed)
    races = {reading: examination.races(reading) for reading in READINGS}
    residents = {
        dispatch: {
            name: examination.least_residents(small, dispatch)
            for name, small in (("four peers", SHARED_BY_FOUR), ("two peers", SHARED_BY_TWO))
        }
        for dispatch in ("ascending", "any")
    }
    return Properties(
        variant.name,
        kernel_hash(variant),
        examination.waits_for(),
        residents,
        races,
        examination.unexplained,
        examination.needs_zero(),
        examination.locks_left(),
        {
            "two": examination.reproducible(SHARED_BY_TWO),
            "three": examination.reproducible(SHARED_BY_THREE),
        },
        examination.nan_spread(),
        examination.lifetime(),
        examination.wrong,
        examination.schedules,
        examination.states,
        examination.complete,
    )


def disagreements(card: Card, found: Properties) -> list[str]:
    """Where the card and the explorer do not say the same, one line each."""
    defects = {defect.id for defect in card.defects}
    left = re.search(r"left at (\d+)", card.lock_lifetime.replace("reset by", "left at 0 by"))
    pairs = [
        ("waits for", card.waits_for, found.waits_for),
        ("needs co-residency", card.needs_co_residency, found.needs_co_residency),
        ("C must be zeroed", card.zeroed_output, found.needs_zero),
        *((f"races in {r}", bool(early_locks(card, r)), bool(places)) for r, places in found.races.items()),
        ("order shows in the bits", "fp16_rounding" in defects, not all(found.reproducible.values())),
        ("NaN spreads", "nan_spread" in defects, found.nan_spread),
        ("value that locks are left at", int(left[1]) if left else None, max(found.locks_left, default=None)),
    ]
    told = [f"{what}: the card says {said}, the explorer {seen}" for what, said, seen in pairs if said != seen]
    told += [
        f"{reading}: {fault}, which no defect of the card explains"
        for reading, faults in found.unexplained.items()
        for fault in faults
    ]
    for scenario in ("launches in a row", "two streams"):
        if found.lifetime[scenario]:
            told.append(f"{scenario}: {', '.join(found.lifetime[scenario])}")
    return told


COLUMNS = (
    "waits for",
    "needs co-residency",
    "barrier that it lacks",
    "C must be zeroed",
    "locks afterwards",
    "same bits in every order",
    "NaN or Inf spreads",
    "one workspace for two streams",
)
"""Properties as a table shows them; the cells are `cells` of a record."""


def cells(record: dict[str, Any]) -> list[str]:
    """A record's properties in words, in the order of COLUMNS."""
    same = record["reproducible"]
    return [
        record["waits_for"],
        _residency(record["residents"]),
        _barrier(record["races"], record["wrong_results"]),
        "yes" if record["needs_zero"] else "no",
        " or ".join(map(str, record["locks_left"])) or "none",
        "yes" if all(same.values()) else "up to two peers" if same["two"] else "no",
        "yes" if record["nan_spread"] else "no",
        ", ".join(record["lifetime"]["two streams with one workspace"]) or "harmless",
    ]


def _residency(residents: dict[str, dict[str, int]]) -> str:
    ascending, anyhow = residents["ascending"], residents["any"]
    if max(*ascending.values(), *anyhow.values()) == 1:
        return "no"
    told = f"{ascending['four peers']} programs for a tile of 4 peers, {ascending['two peers']} for tiles of 2"
    return f"{told}; dispatched in any order {anyhow['four peers']} and {anyhow['two peers']} of 4"


def _barrier(races: dict[str, list[str]], wrong: dict[str, bool]) -> str:
    racy = [reading for reading in races if races[reading]]
    if not racy:
        return "none"
    if len(racy) == len(races):
        text = "in every reading"
    else:
        text = f"{', '.join(racy)}; not {', '.join(reading for reading in races if not races[reading])}"
    return text + (" (wrong results)" if any(wrong.values()) else "")
