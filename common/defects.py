"""Which findings the known defects of a card explain.

A lock that is raised too early is a defect that can be repaired on paper: the machine runs the same schedule with the
missing CTA barrier, or with a release in place of a plain store. What is then gone was the defect's; what is still
there has another cause, also at the same places of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.card import Card
from common.machine import STARVED, Finding, Machine, Repair, Rules
from common.scenario import Scenario
from common.schedules import Entry, Exploration, Outcome, follow

REPAIRS: dict[str, Repair] = {"no_barrier_before_lock": "barrier", "lock_set_by_plain_store": "release"}
"""Defects that make a lock be raised too early, by id, and what repairs each."""


def early_locks(card: Card, reading: str) -> list[str]:
    """The card's defects that make a lock be raised too early in a reading."""
    return [defect.id for defect in card.defects if defect.id in REPAIRS and reading in defect.readings]


class Explanation:
    """Gives findings of a scenario the defects that explain them; called with a schedule as it was run."""

    def __init__(self, card: Card, scenario: Scenario, rules: Rules) -> None:
        self.card = card
        self.third_tile = _spans_too_many_tiles(card, scenario)
        names = early_locks(card, rules.reading.name) if rules.races else []
        choices = [[name] for name in names] + ([names] if len(names) > 1 else [])
        self.repaired: dict[str, Machine] = {
            " and ".join(chosen): scenario.machine(replace(rules, repaired=frozenset(REPAIRS[name] for name in chosen)))
            for chosen in choices
        }

    def __call__(self, outcome: Outcome) -> Outcome:
        """The same schedule, its findings with the defects that explain them."""
        findings = [replace(finding, defect=self._plain(finding)) for finding in outcome.findings]
        for defect, machine in self.repaired.items():
            if all(f.defect or f.kind not in ("race", "wrong result") for f in findings):
                break
            left = {(f.kind, f.places) for f in follow(machine, outcome.actions).findings}
            findings = [self._explained(finding, defect, left) for finding in findings]
        return replace(outcome, findings=findings)

    def searched(self, found: Exploration, search: Callable[[Machine], Exploration]) -> Exploration:
        """What an exhaustive search found, with the defects that explain it in every schedule that shows it.

        `search` is the same search, of another machine.
        """
        again = {defect: search(machine) for defect, machine in self.repaired.items()}
        told: dict[tuple[str, tuple[str, ...], str], Entry] = {}
        for key, (finding, outcome, number, seed) in found.found.items():
            judged = next(f for f in self(outcome).findings if (f.kind, f.places) == (finding.kind, finding.places))
            others = [other.found.get(key) for other in again.values()]
            if judged.defect in again and all(others):
                # This schedule's is explained, and that of another one at the same places is not.
                judged, outcome, number, seed = others[-1]
            told[judged.key] = (judged, outcome, number, seed)
        return replace(found, found=told)

    def _explained(self, finding: Finding, defect: str, left: set[tuple[str, tuple[str, ...]]]) -> Finding:
        if finding.defect or finding.kind not in ("race", "wrong result") or (finding.kind, finding.places) in left:
            return finding
        return replace(finding, defect=defect)

    def _plain(self, finding: Finding) -> str:
        """The defect that explains a finding without a repair.

        A deadlock is explained by too few resident programs only where those that are not dispatched would end it.
        """
        defects = {defect.id for defect in self.card.defects}
        if finding.kind == "deadlock" and STARVED in finding.places and "not_co_resident" in defects:
            return "not_co_resident"
        if finding.kind in ("out of bounds", "wrong result") and "third_tile" in defects and self.third_tile:
            return "third_tile"
        return ""


def _spans_too_many_tiles(card: Card, scenario: Scenario) -> bool:
    """Whether some program has more Stream-K tiles than the kernel is right for, which the launcher refuses."""
    schedules = [prepared.schedule for prepared in scenario.prepared]
    most = card.contract.most_tiles
    return most is not None and any(
        len(schedule.segments(program)) > most
        for schedule in schedules
        if schedule.sk_tiles
        for program in range(schedule.programs)
    )
