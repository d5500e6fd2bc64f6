"""Which action comes next: seeded random, priorities (PCT), exhaustive; replay, and the shortest schedule that fails.

PCT is the probabilistic concurrency testing of Burckhardt et al. (ASPLOS 2010): programs have random priorities, the
highest that can run does, and at a few random steps the running one falls to the lowest.

The exhaustive search meets every state that any schedule leads to, each once, by the number of switches that it takes
to get there: the first fault found is one with the fewest switches.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from common.continuations import StaleTree
from common.machine import Action, Finding, Machine, State
from common.memory_model import Divided

Strategy = Literal["random", "pct"]
Chooser = Callable[[list[Action]], Action]
MOST_STEPS = 20_000
PCT_CHANGES = 3
LESSONS = 5
"""Schedules from which a machine learns who sets what, before all others."""


@dataclass
class Outcome:
    """One schedule that was run: its actions and what was found on the way. `over`: nothing is left to do."""

    actions: list[Action]
    findings: list[Finding]
    over: bool = True


Entry = tuple[Finding, Outcome, int, int | None]
Judge = Callable[[Outcome], Outcome]
"""Gives a schedule's findings the known defects that explain them."""


@dataclass
class Exploration:
    """What a number of schedules showed.

    `found`: for each fault, by its key, the first schedule that showed it, its number from 1 on and its seed.
    `distinct`: how many of the schedules differ, in random and PCT ones. `complete`: every state that can be reached
    was (exhaustive search without a limit that was met). `cut`: the limit that ended an exhaustive search: "states",
    "schedules", "switches", "stop", or none.
    """

    schedules: int = 0
    distinct: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    complete: bool = False
    cut: str = ""
    found: dict[tuple[str, tuple[str, ...], str], Entry] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        return [entry[0] for entry in self.found.values()]

    @property
    def kinds(self) -> set[str]:
        """Kinds of the faults found."""
        return {finding.kind for finding in self.findings}

    def first(self, kind: str) -> Entry | None:
        """The first fault of a kind: finding, schedule, number of the schedule, seed."""
        return next((entry for entry in self.found.values() if entry[0].kind == kind), None)

    def add(self, outcome: Outcome, number: int, seed: int | None) -> None:
        for finding in outcome.findings:
            self.found.setdefault(finding.key, (finding, outcome, number, seed))


Progress = Callable[[Exploration], None]
"""Told what there is after each schedule, or state."""


def random_chooser(seed: int) -> Chooser:
    """Each possible action is as likely as any other."""
    generator = random.Random(seed)
    return generator.choice


def pct_chooser(seed: int, changes: int = PCT_CHANGES, steps: int = 60) -> Chooser:
    """The highest priority runs; at `changes` random ones of `steps` steps the running one falls below all.

    A program's stores that are on their way have a priority of their own.
    """
    generator = random.Random(seed)
    priorities: dict[tuple[int, bool], float] = {}
    falls = {generator.randrange(1, steps): -1.0 - n for n in range(changes)}
    step = 0

    def owner(action: Action) -> tuple[int, bool]:
        return (action[0], True) if isinstance(action, tuple) else (action, False)

    def choose(actions: list[Action]) -> Action:
        nonlocal step
        step += 1
        for action in actions:
            if owner(action) not in priorities:
                priorities[owner(action)] = generator.random()
        best = max(actions, key=lambda action: priorities[owner(action)])
        if step in falls:
            priorities[owner(best)] = falls[step]
            best = max(actions, key=lambda action: priorities[owner(action)])
        return best

    return choose


CHOOSERS: dict[str, Callable[[int], Chooser]] = {"random": random_chooser, "pct": pct_chooser}


def run(machine: Machine, chooser: Callable[[], Chooser]) -> Outcome:
    """One schedule from start to end. `chooser` is asked for anew when memory must be divided more finely."""
    while True:
        try:
            return _run_once(machine, chooser())
        except (Divided, StaleTree):
            machine.renew()


def _run_once(machine: Machine, choose: Chooser) -> Outcome:
    state, outcome = machine.start(), Outcome([], [])
    while actions := machine.actions(state):
        action = choose(actions)
        outcome.actions.append(action)
        outcome.findings += machine.act(state, action)
        if len(outcome.actions) == MOST_STEPS:
            break
    outcome.findings += _at_end(machine, state, len(outcome.actions))
    return outcome


def _at_end(machine: Machine, state: State, steps: int) -> list[Finding]:
    """What the end of a schedule shows: that it hangs, or does not end."""
    if machine.actions(state):
        return [Finding("no end", f"not over after {MOST_STEPS} steps")] if steps == MOST_STEPS else []
    return [] if machine.finished(state) else [machine.deadlock(state)]


def end_state(machine: Machine, seed: int) -> State:
    """The state at the end of one random schedule."""
    actions = run(machine, lambda: random_chooser(seed)).actions
    state = machine.start()
    for action in actions:
        machine.act(state, action)
    return state


def explore(
    machine: Machine,
    schedules: int,
    seed: int = 0,
    strategy: Strategy = "random",
    stop: Callable[[Exploration], bool] = lambda _: False,
    progress: Progress = lambda _: None,
    judge: Judge = lambda outcome: outcome,
) -> Exploration:
    """Run schedules number 1 to `schedules`, each with a seed of its own: `seed`, `seed + 1`, …"""
    _learn(machine)
    began, exploration = time.perf_counter(), Exploration()
    seen: set[tuple[Action, ...]] = set()
    for number in range(1, schedules + 1):
        own = seed + number - 1
        outcome = run(machine, lambda own=own: CHOOSERS[strategy](own))
        exploration.schedules, exploration.steps = number, exploration.steps + len(outcome.actions)
        exploration.add(judge(outcome), number, own)
        seen.add(tuple(outcome.actions))
        exploration.distinct, exploration.seconds = len(seen), time.perf_counter() - began
        progress(exploration)
        if stop(exploration):
            break
    return exploration


def _learn(machine: Machine) -> None:
    """Schedules with every program resident, so that a deadlock's report can say who would have ended the wait.

    They also divide memory as all others will, which gives the stores on their way the same numbers in a replay.
    """
    if not machine.has_learned:
        with machine.learning():
            for seed in range(LESSONS):
                run(machine, lambda seed=seed: random_chooser(seed))


def replay(machine: Machine, actions: list[Action]) -> Outcome:
    """The same schedule again, and no step more. Raises ValueError where an action is not possible."""
    _learn(machine)
    while True:
        try:
            return _replay_once(machine, actions)
        except (Divided, StaleTree):
            machine.renew()


def _replay_once(machine: Machine, actions: list[Action]) -> Outcome:
    state, outcome = machine.start(), Outcome([], [])
    for action in actions:
        possible = machine.actions(state)
        if action not in possible:
            those = f"these are: {show(possible)}" if possible else "none is"
            raise ValueError(f"action {show([action])} is not possible here; {those}")
        outcome.actions.append(action)
        outcome.findings += machine.act(state, action)
    outcome.findings += _at_end(machine, state, len(actions))
    outcome.over = not machine.actions(state)
    return outcome


def exhaust(
    machine: Machine,
    most_states: int = 200_000,
    most_switches: int | None = None,
    by_switches: bool = False,
    stop: Callable[[Exploration], bool] = lambda _: False,
    most_schedules: int | None = None,
    progress: Progress = lambda _: None,
) -> Exploration:
    """Every state that can be reached, each once.

    With `by_switches` in the order of the switches between programs that it takes (and then once for each program
    that may have run last), with `most_switches` only schedules with as many. Ends early, and then not `complete`, at
    `most_states`, after `most_schedules`, or where `stop` says so. A schedule is over here where it comes to its end or
    to a state that another one has met.
    """
    _learn(machine)
    while True:
        try:
            return _exhaust_once(machine, most_states, most_switches, by_switches, stop, most_schedules, progress)
        except (Divided, StaleTree):
            machine.renew()


def _exhaust_once(
    machine: Machine,
    most_states: int,
    most_switches: int | None,
    by_switches: bool,
    stop: Callable[[Exploration], bool],
    most_schedules: int | None,
    progress: Progress,
) -> Exploration:
    began, exploration = time.perf_counter(), Exploration()
    start = machine.start()
    steps: list[tuple[int, Action | None]] = [(0, None)]
    # Entries: switches so far, state, its number, the program that ran last.
    queue: deque[tuple[int, State, int, int | None]] = deque([(0, start, 0, None)])
    seen: set[object] = set()
    while queue:
        switches, state, number, last = queue.popleft()
        key = (state.key(), last) if by_switches or most_switches is not None else state.key()
        if exploration.schedules == most_schedules:
            exploration.cut = "schedules"
            break
        if key in seen:
            exploration.schedules += 1
            continue
        if len(seen) == most_states:
            exploration.cut = "states"
            break
        seen.add(key)
        exploration.states, exploration.seconds = len(seen), time.perf_counter() - began
        progress(exploration)
        actions = machine.actions(state)
        if not actions and not machine.finished(state):
            exploration.add(Outcome(_path(steps, number), [machine.deadlock(state)]), len(seen), None)
        exploration.schedules += not actions
        for action in actions:
            owner = action[0] if isinstance(action, tuple) else action
            cost = switches + (last is not None and owner != last)
            if most_switches is not None and cost > most_switches:
                exploration.cut = "switches"
                continue
            after = state.copy()
            findings = machine.act(after, action)
            exploration.steps += 1
            steps.append((number, action))
            if findings:
                exploration.add(Outcome(_path(steps, len(steps) - 1), findings), len(seen), None)
            entry = (cost, after, len(steps) - 1, owner)
            queue.appendleft(entry) if cost == switches else queue.append(entry)
        if stop(exploration):
            exploration.cut = "stop"
            break
    exploration.complete = not exploration.cut
    exploration.seconds = time.perf_counter() - began
    return exploration


def _path(steps: list[tuple[int, Action | None]], number: int) -> list[Action]:
    found: list[Action] = []
    while number:
        number, action = steps[number]
        found.append(action)
    return found[::-1]


def switches(actions: list[Action]) -> int:
    """How often another program goes on."""
    return max(0, sum(1 for _ in groupby(actions, key=_owner)) - 1)


def _owner(action: Action) -> int:
    return action[0] if isinstance(action, tuple) else action


def shrink(
    machine: Machine,
    finding: Finding,
    actions: list[Action],
    most_states: int = 20_000,
    judge: Judge = lambda outcome: outcome,
) -> list[Action]:
    """A schedule with the fewest switches that shows the same fault, explained by the same defect or none.

    The exhaustive search meets schedules by their switches, so its first is one with the fewest; where it would take
    more than `most_states`, or another defect explains what it found, the given schedule is shortened step by step
    instead.
    """

    def shows(outcome: Outcome) -> bool:
        return any(f.key == finding.key for f in judge(outcome).findings)

    wanted = replace(finding, defect="").key
    searched = exhaust(machine, most_states, by_switches=True, stop=lambda exploration: wanted in exploration.found)
    if wanted in searched.found and shows(searched.found[wanted][1]):
        return searched.found[wanted][1].actions
    return _shortened(machine, actions, shows)


def follow(machine: Machine, actions: list[Action]) -> Outcome:
    """The same steps on a machine with other rules, without those that are not possible there, and on to the end."""
    _learn(machine)
    return run(machine, lambda: _as_possible(actions))


def _shortened(machine: Machine, actions: list[Action], shows: Callable[[Outcome], bool]) -> list[Action]:
    """Leave out, or move behind the next one, whole blocks of one program as long as the fault still shows."""
    best, again = actions, True
    while again:
        again = False
        for candidate in _simpler(best):
            outcome = run(machine, lambda candidate=candidate: _as_possible(candidate))
            if shows(outcome) and switches(outcome.actions) < switches(best):
                best, again = outcome.actions, True
                break
    return best


def _simpler(actions: list[Action]) -> Iterator[list[Action]]:
    blocks = [list(block) for _, block in groupby(actions, key=_owner)]
    for i in range(len(blocks)):
        rest = [*blocks[:i], *blocks[i + 1 :]]
        yield [action for block in rest for action in block]
        if i + 1 < len(blocks):
            moved = [*blocks[:i], blocks[i + 1], blocks[i], *blocks[i + 2 :]]
            yield [action for block in moved for action in block]


def _as_possible(wanted: list[Action]) -> Chooser:
    """Follow a schedule where it can be followed, and go on with the same program where it cannot."""
    left = deque(wanted)
    last: Action | None = None

    def choose(possible: list[Action]) -> Action:
        nonlocal last
        while left:
            action = left.popleft()
            if action in possible:
                last = action
                return action
        last = next((action for action in possible if last is not None and _owner(action) == _owner(last)), possible[0])
        return last

    return choose


def show(actions: list[Action]) -> str:
    """A schedule as text that `parse` reads: `2x3 0 1.0` is 3 steps of program 2, one of 0, a store of 1 arriving."""
    words = []
    for action, block in groupby(actions):
        word = f"{action[0]}.{action[1]}" if isinstance(action, tuple) else str(action)
        count = len(list(block))
        words.append(word + (f"x{count}" if count > 1 else ""))
    return " ".join(words)


def parse(text: str) -> list[Action]:
    """The schedule that `show` wrote. Raises ValueError naming the word that is none."""
    actions: list[Action] = []
    for word in text.split():
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:x(\d+))?", word)
        if not match:
            raise ValueError(f"{word!r} is no step of a schedule: write 2, 2x3 or 2.0")
        action = (int(match[1]), int(match[2])) if match[2] else int(match[1])
        if len(actions) + int(match[3] or 1) > MOST_STEPS:
            raise ValueError(f"{word!r}: a schedule has at most {MOST_STEPS} steps")
        actions += [action] * int(match[3] or 1)
    return actions


def trace(machine: Machine, actions: list[Action]) -> list[str]:
    """A schedule in words, a line an action; steps of one program that follow each other say its name once."""
    state, lines = machine.start(), []
    for action in actions:
        lines.append(machine.told(state, action))
        machine.act(state, action)
    return lines
