"""The explorer on small kernels whose races, deadlocks and outcomes are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from common import interpreter, schedules
from common.continuations import Buffer, Node
from common.errors import UnsupportedTriton
from common.interpreter import Access
from common.launcher import KernelCall
from common.machine import Check, Kernel, Machine, Rules
from common.memory_model import READINGS, Divided, Division, Interner
from tests import toys

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, not interpreted")

NAMES = {"message": ("data", "flags", "received"), "crossed": ("flags",), "bounded_wait": ("flags", "places")}
NAMES |= {"polled_with_barrier": ("flags", "places"), "tickets": ("data", "places"), "late_look": ("data", "places")}


@contextmanager
def machine(kernel: Any, programs: int, rules: Rules | None = None, **options: Any) -> Iterator[Machine]:
    """A machine that launches a toy once on buffers of 16 zeros."""
    names = NAMES.get(kernel.__name__, ("data",))
    tensors = {name: torch.zeros(16, dtype=torch.int32) for name in names}
    buffers = [Buffer(name, t.data_ptr(), t.numpy().copy(), True) for name, t in tensors.items()]
    stream = [Kernel(KernelCall(kernel, programs, tuple(tensors.values()), options))]
    stream += [Check(buffer, lambda found: "") for buffer in buffers]
    with interpreter.exploring([kernel]):
        yield Machine([stream], buffers, rules or Rules(READINGS["source"]))


def results(m: Machine, buffer: int) -> set[tuple[int, ...]]:
    """What a buffer held at the end of any schedule so far."""
    divided = m.division
    shared = m.buffers[buffer]
    found = set()
    for values in m.results[(0, 1 + buffer)]:
        state = m.start()
        for atom, value in zip(divided.of_buffer[shared], values, strict=True):
            state.values[atom] = value
        found.add(tuple(int(x) for x in divided.content(shared, state.values)))
    return found


def kinds(exploration: schedules.Exploration) -> set[str]:
    """Without what nobody has set: toys run on memory that no launcher prepares."""
    return exploration.kinds - {"uninitialised"}


MESSAGE = {"BARRIER": True, "SEND": "release", "RECEIVE": "acquire", "SCOPE": "gpu"}


@pytest.mark.parametrize(
    ("changes", "racy"),
    [
        ({}, False),
        ({"SEND": "acq_rel", "RECEIVE": "acq_rel", "SCOPE": "sys"}, False),
        ({"BARRIER": False}, True),
        ({"SEND": "relaxed"}, True),
        ({"RECEIVE": "relaxed"}, True),
        ({"SCOPE": "cta"}, True),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_message_needs_barrier_release_acquire_and_scope(changes: dict[str, Any], racy: bool, late: bool) -> None:
    rules = Rules(READINGS["source"], late_stores=late)
    with machine(toys.message, 2, rules, **(MESSAGE | changes)) as m:
        found = schedules.exhaust(m)
        assert found.complete
        assert kinds(found) == ({"race"} if racy else set())
        arrived = {tuple(range(1, 17))}
        assert results(m, 2) == arrived or (racy and late and results(m, 2) > arrived)
        if late and changes in ({"BARRIER": False}, {"SEND": "relaxed"}):
            # What is lost is whole warps: their parts are late, not single elements.
            assert tuple([*range(1, 9), *[0] * 8]) in results(m, 2)


@pytest.mark.parametrize(("reading", "racy"), [("source", True), ("triton-3.6", True), ("triton-3.9", False)])
def test_a_compiled_reading_adds_the_barrier_before_the_exchange(reading: str, racy: bool) -> None:
    with machine(toys.message, 2, Rules(READINGS[reading]), **(MESSAGE | {"BARRIER": False})) as m:
        assert ("race" in schedules.exhaust(m).kinds) == racy


def test_a_deadlock_says_who_waits_for_what() -> None:
    with machine(toys.crossed, 2) as m:
        found = schedules.explore(m, 5)
        message = found.first("deadlock")[0].message
        assert "program 0 waits for flags[1]" in message and "program 1 waits for flags[0]" in message
        assert found.first("deadlock")[2] == 1


@pytest.mark.parametrize(
    ("residents", "dispatch", "hangs"), [(1, "ascending", False), (1, "any", True), (2, "any", False)]
)
def test_residency_and_dispatch_decide_whether_a_wait_ends(residents: int, dispatch: Any, hangs: bool) -> None:
    rules = Rules(READINGS["source"], residents=residents, dispatch=dispatch)
    with machine(toys.message, 2, rules, **MESSAGE) as m:
        found = schedules.exhaust(m)
        assert found.complete
        assert ("deadlock" in found.kinds) == hangs
        if hangs:
            assert "waits for flags[0] from message program 0 (not dispatched)" in found.first("deadlock")[0].message
            assert "1 programs are not dispatched: 1 run at once" in found.first("deadlock")[0].message


def test_a_lost_update_is_found_with_every_outcome() -> None:
    with machine(toys.lost_update, 3, Rules(READINGS["source"], late_stores=False)) as m:
        found = schedules.exhaust(m)
        assert kinds(found) == {"race"}
        assert {r[0] for r in results(m, 0)} == {1, 2, 3}


def test_atomics_that_nobody_looks_at_lead_to_one_end_in_few_states() -> None:
    with machine(toys.counted, 3) as m:
        found = schedules.exhaust(m)
        assert kinds(found) == set()
        assert {r[0] for r in results(m, 0)} == {6}
        # Two steps of three programs: 3^3 places, times who came last.
        assert found.states <= 27 * 3
        assert m.interpreter_runs <= 3 * 3 + 3


def test_every_order_of_tickets_is_met() -> None:
    with machine(toys.tickets, 3) as m:
        assert kinds(schedules.exhaust(m)) == set()
        assert {r[:3] for r in results(m, 1)} == set(permutations((1, 2, 3)))


def test_an_answer_that_is_looked_at_late_is_not_taken_for_unused() -> None:
    with machine(toys.late_look, 2) as m:
        schedules.exhaust(m)
        assert {r[:2] for r in results(m, 1)} == {(0, 1), (1, 0)}


def test_a_bounded_wait_is_no_endless_one() -> None:
    with machine(toys.bounded_wait, 2) as m:
        found = schedules.exhaust(m)
        assert kinds(found) == set()
        assert {r[0] for r in results(m, 1)} == {0, 1}


def test_a_polling_loop_with_a_barrier_sleeps_and_wakes() -> None:
    with machine(toys.polled_with_barrier, 2) as m:
        found = schedules.exhaust(m)
        assert found.complete and kinds(found) == {"race"}
        assert {r[0] for r in results(m, 1)} == {1}
    with machine(toys.polled_with_barrier, 1) as m:
        assert "deadlock" in schedules.explore(m, 3).kinds


def test_an_access_outside_is_a_finding_and_touches_nothing() -> None:
    with machine(toys.beyond, 1) as m:
        found = schedules.explore(m, 1).first("out of bounds")[0]
        assert "elements 1 to 16 of data, which has 16" in found.message


def test_an_element_met_twice_by_one_access_is_added_twice() -> None:
    with machine(toys.doubled, 1) as m:
        schedules.explore(m, 1)
        assert results(m, 0) == {tuple([2 * i + 10 for i in range(8)] + [0] * 8)}


@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_a_seed_replays_exactly_and_shrinks_to_the_fewest_switches(strategy: Any) -> None:
    changes = MESSAGE | {"BARRIER": False}
    with machine(toys.message, 2, **changes) as m:
        found = schedules.explore(m, 200, seed=7, strategy=strategy)
        finding, outcome, _, seed = found.first("race")
        again = schedules.run(m, lambda: schedules.CHOOSERS[strategy](seed))
        assert again.actions == outcome.actions and again.findings == outcome.findings
        text = schedules.show(outcome.actions)
        assert schedules.replay(m, schedules.parse(text)).findings == outcome.findings
        short = schedules.shrink(m, finding, outcome.actions)
        assert schedules.switches(short) == 1
        assert finding.kind in {f.kind for f in schedules.replay(m, short).findings}
        assert len(schedules.trace(m, short)) == len(short)


def test_shrinking_without_a_search_shortens_too() -> None:
    with machine(toys.lost_update, 3, Rules(READINGS["source"], late_stores=False)) as m:
        _, outcome, _, _ = schedules.explore(m, 50).first("race")
        finding = outcome.findings[-1]
        short = schedules.shrink(m, finding, outcome.actions, most_states=1)
        assert schedules.switches(short) <= schedules.switches(outcome.actions)
        assert (finding.kind, finding.places) in {(f.kind, f.places) for f in schedules.replay(m, short).findings}


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_a_replay_ends_where_its_schedule_does(steps: int) -> None:
    with machine(toys.lost_update, 3) as m:
        _, outcome, _, _ = schedules.explore(m, 50).first("race")
        again = schedules.replay(m, outcome.actions[:steps])
        assert again.actions == outcome.actions[:steps] and len(outcome.actions) > 5
        assert again.findings == outcome.findings[: len(again.findings)]
        assert not again.over and schedules.replay(m, outcome.actions).over


def test_memory_is_numbered_by_place_whatever_cut_it_first() -> None:
    data = np.zeros(8, dtype=np.int32)
    numbers = []
    for cuts in ([[4, 5], [0, 1]], [[0, 1], [4, 5]]):
        buffer = Buffer("data", 0, data, True)
        division = Division([buffer], Interner())
        for elements in cuts:
            node = Node(Access("load", np.zeros(2), data.dtype), buffer, np.array(elements))
            with pytest.raises(Divided):
                division.parts(node)
        numbers.append([tuple(elements) for _, elements in division.atoms])
    assert numbers[0] == numbers[1] and numbers[0] == sorted(numbers[0])


def test_a_schedule_that_is_not_possible_is_refused() -> None:
    with machine(toys.counted, 2) as m:
        with pytest.raises(ValueError, match="not possible here"):
            schedules.replay(m, [7])
        with pytest.raises(ValueError, match="not possible here; none is"):
            schedules.replay(m, [0, 0, 1, 1, 0])
        with pytest.raises(ValueError, match="'two' is no step"):
            schedules.parse("1 two")
        with pytest.raises(ValueError, match="at most"):
            schedules.parse("0 1x99999999999")


def test_an_exhaustive_search_says_what_cut_it_short() -> None:
    with machine(toys.tickets, 3) as m:
        every = schedules.exhaust(m)
        assert every.complete and every.cut == "" and every.schedules > 2
        for limits, cut in (({"most_schedules": 2}, "schedules"), ({"most_states": 9}, "states")):
            found = schedules.exhaust(m, **limits)
            assert (found.cut, found.complete) == (cut, False)
            assert found.schedules == 2 if cut == "schedules" else found.states == 9
        exact = schedules.exhaust(m, every.states, most_schedules=every.schedules)
        assert exact.complete and exact.states == every.states


def test_fewer_switches_reach_fewer_states() -> None:
    with machine(toys.tickets, 3) as m:
        few, every = schedules.exhaust(m, most_switches=2), schedules.exhaust(m, by_switches=True)
        assert few.states < every.states
        assert every.complete and not few.complete and few.cut == "switches"


@pytest.mark.parametrize("version", ["3.5.1", "3.7.0", "3.10.0", "4.0.0"])
def test_a_version_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedTriton, match=r"3\.6 and 3\.9"):
        interpreter.require_explorable(version)


def test_the_language_is_as_before_afterwards() -> None:
    import triton.language as tl
    from triton.runtime import interpreter as internals

    before = (tl.load, internals.InterpretedFunction.__call__, internals.interpreter_builder.create_load.__func__)
    with machine(toys.counted, 2) as m:
        schedules.explore(m, 2)
        assert tl.load is not before[0]
    after = (tl.load, internals.InterpretedFunction.__call__, internals.interpreter_builder.create_load.__func__)
    assert after == before


def test_one_program_after_another_is_what_the_interpreter_itself_computes() -> None:
    data = torch.zeros(16, dtype=torch.int32)
    toys.doubled[(3,)](data)
    with machine(toys.doubled, 3) as m:
        schedules.explore(m, 3)
        assert results(m, 0) == {tuple(data.tolist())}
        assert np.array_equal(m.buffers[0].data, np.zeros(16))
