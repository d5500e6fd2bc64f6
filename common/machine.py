"""The transition system that is explored: streams of launches whose programs take steps on shared memory.

A *state* is where each program stands, what memory holds and which accesses are ordered. An *action* is a step of one
program (its number) or the arrival of one of its stores in memory (a pair: program, which of its stores). The machine
says which actions a state allows and does one of them; which one is the schedule's choice (`common.schedules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from common.continuations import Buffer, Node, Program
from common.interpreter import Access
from common.launcher import KernelCall
from common.memory_model import WARPS, Clock, Division, History, Interner, Part, Reading, join

Action = int | tuple[int, int]
Kind = Literal["race", "deadlock", "wrong result", "uninitialised", "out of bounds", "no end"]
Repair = Literal["barrier", "release"]
UNBORN, WAITING, RUNNING, PARKED, DONE = range(5)


@dataclass(frozen=True)
class Finding:
    """One fault. `places`: the code that takes part, which tells two faults of a kind apart. `defect`: the known defect
    that explains it (`common.defects`), which tells two faults at the same places apart; empty where none does."""

    kind: Kind
    message: str
    places: tuple[str, ...] = ()
    defect: str = ""

    @property
    def key(self) -> tuple[str, tuple[str, ...], str]:
        """Equal for two findings of the same fault."""
        return self.kind, self.places, self.defect


STARVED = "programs that are not dispatched"
"""Among a deadlock's places where it is for want of residency alone."""
UNORDERED_LAUNCHES = "launches on two streams"
"""Among a race's places where it is between launches."""


@dataclass(frozen=True, eq=False)
class Fill:
    """The launcher sets a buffer (zeroes C, sets locks) in stream order."""

    buffer: Buffer
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of a launch; `label` names the launch where there are several."""

    call: KernelCall
    label: str = ""


@dataclass(frozen=True, eq=False)
class Check:
    """A launch is over: `describe` says what is wrong with what a buffer holds, an empty text if nothing is."""

    buffer: Buffer
    describe: Callable[[np.ndarray], str]


Stream = list[Fill | Kernel | Check]


@dataclass(frozen=True)
class Rules:
    """The conditions of an exploration.

    `reading`: which CTA barriers there are. `residents`: programs that run at once, None for all. `dispatch`: in which
    order programs get a free place: ascending, as NVIDIA GPUs are seen to do, or any, which is all that CUDA promises.
    `late_stores`: a plain store may arrive in memory after its program has gone on. `races`: track which accesses are
    ordered; without it only values and waiting are explored, and stores are never late. `repaired`: what the kernels
    are given where they raise a lock, to see what its absence explains: a CTA barrier before, or that a plain store
    which raises one is an atomic with release order.
    """

    reading: Reading
    residents: int | None = None
    dispatch: Literal["ascending", "any"] = "ascending"
    late_stores: bool = True
    races: bool = True
    repaired: frozenset[Repair] = frozenset()


@dataclass(frozen=True)
class Instance:
    """One program of one kernel of a stream, or one fill."""

    stream: int
    item: int
    program: int
    name: str


class State:
    """Where everything stands. Lists by program instance, by atom of memory, by agent (a warp of an instance)."""

    __slots__ = (
        "clocks",
        "fresh",
        "histories",
        "nodes",
        "pending",
        "phases",
        "positions",
        "tails",
        "values",
        "watched",
    )

    def copy(self) -> State:
        """A state that can be changed without changing this one."""
        twin = State.__new__(State)
        for name in State.__slots__:
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def key(self) -> tuple[object, ...]:
        """Equal for two states that behave alike from here on."""
        return (
            tuple(map(id, self.nodes)),
            bytes(self.phases),
            tuple(self.values),
            tuple(self.histories),
            tuple(self.clocks),
            tuple(self.pending),
            tuple(self.fresh),
            tuple(self.positions),
        )


_FILL = Access("store", np.empty(0, dtype=np.uint64), np.dtype(bool), where="a fill")


class Machine:
    """Streams, rules, and the programs' trees, which grow as they are explored.

    `waits`: pairs of programs (waiter, who ended the wait) seen so far. `results`: what each check found in its buffer,
    by position, as tuples of value numbers.
    """

    def __init__(self, streams: list[Stream], buffers: list[Buffer], rules: Rules) -> None:
        self.streams, self.buffers, self.rules = streams, buffers, rules
        self.interner = Interner()
        self.division = Division(buffers, self.interner)
        self.waits: set[tuple[int, int]] = set()
        self.results: dict[tuple[int, int], set[tuple[int, ...]]] = {}
        self.places: list[str] = []
        self._place_numbers: dict[str, int] = {}
        self._writers: dict[str, set[int]] = {}
        self._learning = False
        self._checked: dict[tuple[int, int, tuple[int, ...]], str] = {}
        self.instances: list[Instance] = []
        self.members: list[list[range]] = []
        for number, stream in enumerate(streams):
            self.members.append([self._enlist(number, position, item) for position, item in enumerate(stream)])
        self._programs: dict[int, Program] = {}
        self._fills: dict[int, Node] = {}

    def _enlist(self, stream: int, position: int, item: Fill | Kernel | Check) -> range:
        first = len(self.instances)
        if isinstance(item, Fill):
            self.instances.append(Instance(stream, position, 0, f"fill of {item.buffer.name}"))
        elif isinstance(item, Kernel):
            for index in range(item.call.programs):
                name = f"{item.label} " if item.label else ""
                name += f"{item.call.name} " if item.call.name != "first_wave" else ""
                self.instances.append(Instance(stream, position, index, f"{name}program {index}"))
        return range(first, len(self.instances))

    @property
    def interpreter_runs(self) -> int:
        """How often a program was run in the interpreter so far."""
        return sum(program.runs for program in self._programs.values())

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within the block every program is resident, for schedules that show who sets what.

        Nothing else teaches it, so that a deadlock is described alike by every machine that learned the same.
        """
        rules = self.rules
        self.rules, self._learning = replace(rules, residents=None), True
        try:
            yield
        finally:
            self.rules, self._learning = rules, False
            self.waits.clear()
            self.results.clear()

    @property
    def has_learned(self) -> bool:
        """Whether some schedule has shown which program sets which place."""
        return bool(self._writers)

    def renew(self) -> None:
        """Forget what depends on the division of memory, after it or a program's tree has changed."""
        self._checked.clear()
        self.results.clear()

    def start(self) -> State:
        """Nothing has run; every shared buffer holds what the scenario put there, and nobody has set it."""
        state = State()
        agents = len(self.instances) * WARPS
        state.nodes = [None] * len(self.instances)
        state.phases = [UNBORN] * len(self.instances)
        state.values = list(self.division.initial)
        state.histories = [History()] * len(state.values)
        state.fresh = [True] * len(state.values)
        state.clocks = [()] * agents
        state.pending = [()] * len(self.instances)
        state.watched = [()] * len(self.instances)
        state.positions = [-1] * len(self.streams)
        state.tails = [(0,) * agents] * len(self.streams)
        for stream in range(len(self.streams)):
            self._advance(state, stream)
        return state

    # What can happen

    def actions(self, state: State) -> list[Action]:
        """Every action that the state allows; none at the end and in a deadlock."""
        phases = state.phases
        found: list[Action] = [i for i, phase in enumerate(phases) if phase == RUNNING]
        found += [(i, k) for i, stores in enumerate(state.pending) if stores for k in self._arrivals(stores)]
        free = len(phases)
        if self.rules.residents is not None:
            free = self.rules.residents - sum(phase in (RUNNING, PARKED) for phase in phases)
        return found + self._startable(state, free) if free > 0 else found

    def _arrivals(self, stores: tuple[tuple[int, int, int, int], ...]) -> list[int]:
        """Stores of one place arrive in order."""
        return [k for k, store in enumerate(stores) if all(store[2] != earlier[2] for earlier in stores[:k])]

    def _startable(self, state: State, free: int) -> list[int]:
        """Programs that hold one of the free places, or may get it, and have not taken a step."""
        found: list[int] = []
        for members, position in zip(self.members, state.positions, strict=True):
            if position < len(members):
                waiting = [i for i in members[position] if state.phases[i] == WAITING]
                found += waiting if self.rules.dispatch == "any" else waiting[:free]
        return found

    def finished(self, state: State) -> bool:
        """Whether every stream has done all that is in it."""
        return all(p == len(s) for p, s in zip(state.positions, self.streams, strict=True))

    def deadlock(self, state: State) -> Finding:
        """Who waits for whom in a state without actions that is not the end."""
        told, places = [], []
        for i, phase in enumerate(state.phases):
            if phase == PARKED:
                where = state.nodes[i].access.where
                places.append(where)
                told.append(f"{self.instances[i].name} waits for {self._awaited(state, i)} ({where})")
        waiting = sum(phase == WAITING for phase in state.phases)
        if waiting:
            told.append(f"{waiting} programs are not dispatched: {self.rules.residents} run at once")
        why = (STARVED,) if self._starved(state) else ()
        return Finding("deadlock", "; ".join(told), (*sorted(set(places)), *why))

    def _starved(self, state: State) -> bool:
        """Whether every program that waits would go on if those that are not dispatched ran, directly or through
        others that wait: a hang for want of residency, and not one that more residents would not end."""
        parked = {i for i, phase in enumerate(state.phases) if phase == PARKED}
        freed: set[int] = set()
        while True:
            more = {
                i
                for i in parked - freed
                for atom in state.watched[i]
                for j in self._writers.get(self.division.place(atom), ())
                if j != i and (state.phases[j] in (UNBORN, WAITING) or j in freed)
            }
            if not more:
                return bool(parked) and freed == parked
            freed |= more

    def _awaited(self, state: State, i: int) -> str:
        texts = []
        for atom in state.watched[i]:
            place = self.division.place(atom)
            names = []
            for j in sorted(self._writers.get(place, ())):
                phase = state.phases[j]
                if j != i and phase != DONE:
                    names.append(self.instances[j].name + (" (not dispatched)" if phase in (UNBORN, WAITING) else ""))
            texts.append(f"{place} from {' or '.join(names)}" if names else f"{place}, which nobody is left to set")
        return " and ".join(texts)

    def told(self, state: State, action: Action) -> str:
        """An action in words, before it is done."""
        if isinstance(action, tuple):
            atom = state.pending[action[0]][action[1]][2]
            return f"{self.instances[action[0]].name}: its store of {self.division.place(atom)} arrives"
        name, node = self.instances[action].name, state.nodes[action] or self._root(action)
        if node.access is None:
            return f"{name}: runs to its end"
        access = node.access
        what = f"{access.kind} {access.operation}".strip()
        if node.buffer is None:
            return f"{name}: {what} ({access.where})"
        if not node.elements.size:
            return f"{name}: {what} of nothing ({access.where})"
        first, last = int(node.elements.min()), int(node.elements.max())
        return f"{name}: {what} {node.buffer.name}[{first}{f'…{last}' if last > first else ''}] ({access.where})"

    # Doing it

    def act(self, state: State, action: Action) -> list[Finding]:
        """Do one action. Raises Divided or StaleTree, after which every state is to be built anew (`renew`)."""
        if isinstance(action, tuple):
            i, k = action
            stores = state.pending[i]
            self._arrive(state, i, stores[k])
            state.pending[i] = stores[:k] + stores[k + 1 :]
            return []
        findings: list[Finding] = []
        if state.phases[action] == WAITING:
            self._begin(state, action)
        node = state.nodes[action]
        if node.access is not None:
            self._step(state, action, node, findings)
        node = state.nodes[action]
        if node.access is None:
            if node.fault:
                findings.append(Finding("out of bounds", f"{self.instances[action].name}: {node.fault}", (node.fault,)))
            state.phases[action] = DONE
            self._end(state, self.instances[action], findings)
        return findings

    def _begin(self, state: State, i: int) -> None:
        state.phases[i] = RUNNING
        state.nodes[i] = self._root(i)
        tail = state.tails[self.instances[i].stream]
        for agent in range(i * WARPS, (i + 1) * WARPS):
            state.clocks[agent] = (*tail[:agent], 1, *tail[agent + 1 :])

    def _root(self, i: int) -> Node:
        instance = self.instances[i]
        item = self.streams[instance.stream][instance.item]
        if isinstance(item, Fill):
            # Any node does: a fill is done in one piece by `_step`.
            return self._fills.setdefault(i, Node(access=_FILL))
        if i not in self._programs:
            self._programs[i] = Program(item.call, instance.program, self.buffers)
        return self._programs[i].root

    def _end(self, state: State, instance: Instance, findings: list[Finding]) -> None:
        """At a kernel's end its stores have arrived and its stream goes on."""
        members = self.members[instance.stream][instance.item]
        if any(state.phases[i] != DONE for i in members):
            return
        for i in members:
            for store in state.pending[i]:
                self._arrive(state, i, store)
            state.pending[i] = ()
            for agent in range(i * WARPS, (i + 1) * WARPS):
                state.tails[instance.stream] = join(state.tails[instance.stream], state.clocks[agent])
        findings += self._advance(state, instance.stream)

    def _advance(self, state: State, stream: int) -> list[Finding]:
        """Go to the stream's next item; do the checks on the way."""
        findings: list[Finding] = []
        while True:
            state.positions[stream] += 1
            position = state.positions[stream]
            if position == len(self.streams[stream]):
                return findings
            item = self.streams[stream][position]
            if isinstance(item, Check):
                findings += self._check(state, stream, position, item)
                continue
            for i in self.members[stream][position]:
                state.phases[i] = WAITING
            if self.members[stream][position]:
                return findings

    def _check(self, state: State, stream: int, position: int, item: Check) -> list[Finding]:
        values = tuple(state.values[atom] for atom in self.division.of_buffer[item.buffer])
        key = (stream, position, values)
        if key not in self._checked:
            self._checked[key] = item.describe(self.division.content(item.buffer, state.values))
        self.results.setdefault((stream, position), set()).add(values)
        wrong = self._checked[key]
        return [Finding("wrong result", wrong)] if wrong else []

    def _arrive(self, state: State, i: int, store: tuple[int, int, int, int]) -> None:
        self._set(state, i, store[2], store[3])

    def _set(self, state: State, i: int, atom: int, value: int) -> None:
        """Memory changes: who polls there goes on."""
        if state.values[atom] == value:
            return
        state.values[atom] = value
        if self._learning:
            self._writers.setdefault(self.division.place(atom), set()).add(i)
        for j, watched in enumerate(state.watched):
            if watched and atom in watched:
                state.phases[j] = RUNNING
                state.watched[j] = ()
                if self.instances[j].item == self.instances[i].item:
                    self.waits.add((self.instances[j].program, self.instances[i].program))

    def _step(self, state: State, i: int, node: Node, findings: list[Finding]) -> None:
        access = node.access
        if access is _FILL:
            self._fill(state, i)
            state.nodes[i] = Node()
            return
        program = self._programs[i]
        if access.kind == "barrier":
            child = program.step(node, None)
            if not self._park(state, i, node, child):
                self._barrier(state, i)
                state.nodes[i] = child
            return
        parts = self.division.parts(node)
        if self._access(node).kind == "atomic":
            self._arrive_own(state, i, parts)
        news = self._outcome(state, i, node, parts)
        child = program.step(node, self._answer(node, parts, news))
        if self._park(state, i, node, child):
            return
        before = access.kind == "atomic" and access.scalar and self.rules.reading.before_scalar_atomic
        if before or ("barrier" in self.rules.repaired and _raises_lock(node)):
            self._barrier(state, i)
        for part, (old, new) in zip(parts, news, strict=True):
            self._note(state, i, node, part, old != new, findings)
            self._write(state, i, node, part, new)
        after = node.looked_at or self.rules.reading.after_scalar_atomic
        if access.kind == "atomic" and access.scalar and after:
            self._barrier(state, i)
        state.nodes[i] = child

    def _access(self, node: Node) -> Access:
        """A node's access, as it is or repaired."""
        if "release" in self.rules.repaired and node.access.kind == "store" and _raises_lock(node):
            return replace(node.access, kind="atomic", operation="store", sem="release", scope="gpu")
        return node.access

    def _fill(self, state: State, i: int) -> None:
        instance = self.instances[i]
        item = self.streams[instance.stream][instance.item]
        agent = i * WARPS
        for atom in self.division.of_buffer[item.buffer]:
            number = self.interner.number(item.data[self.division.atoms[atom][1]])
            state.fresh[atom] = False
            if self.rules.races:
                state.histories[atom] = History(write=(agent, state.clocks[agent][agent], self._number("a fill")))
            self._set(state, i, atom, number)

    def _outcome(self, state: State, i: int, node: Node, parts: list[Part]) -> list[tuple[int, int]]:
        """For each part what it reads and what it leaves there."""
        access, seen, found = node.access, {}, []
        for part in parts:
            old = seen.get(part.atom)
            if old is None:
                old = state.values[part.atom]
                for store in state.pending[i]:
                    if store[2] == part.atom:
                        old = store[3]
            if access.kind == "load":
                new = old
            elif access.kind == "store":
                new = part.operands[0]
            else:
                new = self.interner.apply(access.operation, old, part.operands)
            seen[part.atom] = new
            found.append((old, new))
        return found

    def _answer(self, node: Node, parts: list[Part], news: list[tuple[int, int]]) -> np.ndarray | None:
        access = node.access
        if access.kind == "store" or access.operation == "store" or (node.known and not node.looked_at):
            return None
        read = np.empty(node.elements.size, dtype=access.dtype)
        for part, (old, _) in zip(parts, news, strict=True):
            read[part.lanes] = self.interner.arrays[old]
        return read

    def _park(self, state: State, i: int, node: Node, child: Node) -> bool:
        """Whether the program has gone round a polling loop in which nothing changes; it then sleeps until it does."""
        if child is not node and child not in node.ancestors():
            return False
        atoms: set[int] = set()
        for one in node.ancestors():
            if one.access.kind != "barrier":
                parts = self.division.parts(one)
                if one.access.kind == "store" or any(old != new for old, new in self._outcome(state, i, one, parts)):
                    return False
                atoms |= {part.atom for part in parts}
            if one is child:
                break
        if not atoms or not self._still_reads(state, i, node, child):
            return False
        state.phases[i], state.watched[i], state.nodes[i] = PARKED, tuple(sorted(atoms)), child
        return True

    def _still_reads(self, state: State, i: int, node: Node, child: Node) -> bool:
        """Whether the loop's earlier accesses would read now what they read when they were made."""
        one = node
        while one is not child:
            parent = one.parent
            if parent.access.kind != "barrier":
                parts = self.division.parts(parent)
                now = self._answer(parent, parts, self._outcome(state, i, parent, parts))
                if now is not None and now.tobytes() != one.answer.tobytes():
                    return False
            one = parent
        return True

    # Order

    def _number(self, place: str) -> int:
        if place not in self._place_numbers:
            self._place_numbers[place] = len(self.places)
            self.places.append(place)
        return self._place_numbers[place]

    def _barrier(self, state: State, i: int) -> None:
        if not self.rules.races:
            return
        agents = range(i * WARPS, (i + 1) * WARPS)
        joined: Clock = state.clocks[agents[0]]
        for agent in agents[1:]:
            joined = join(joined, state.clocks[agent])
        for agent in agents:
            state.clocks[agent] = (*joined[:agent], joined[agent] + 1, *joined[agent + 1 :])

    def _note(self, state: State, i: int, node: Node, part: Part, changes: bool, findings: list[Finding]) -> None:
        """Look for races of one part of an access, then record it and the order that it makes."""
        access, atom = self._access(node), part.atom
        reads = access.kind == "load" or (access.kind == "atomic" and access.operation not in ("store", "xchg"))
        if state.fresh[atom] and reads:
            text = f"{self.instances[i].name} reads {self.division.place(atom)}, which nobody has set ({access.where})"
            findings.append(Finding("uninitialised", text, (access.where, node.buffer.name)))
        # A compare-and-swap that fails only reads; every other read-modify-write writes, if only what was there.
        writes = access.kind == "store" or (
            access.kind == "atomic" and access.operation != "load" and (access.operation != "cas" or changes)
        )
        if access.operation == "cas" and not changes:
            compared = self.interner.arrays[part.operands[0]]
            writes = np.array_equal(compared, self.interner.arrays[state.values[atom]])
        if writes:
            state.fresh[atom] = False
        if not self.rules.races:
            return
        agent = i * WARPS + part.warp
        clock, history = state.clocks[agent], state.histories[atom]
        strong = access.kind == "atomic" and access.scope != "cta"
        for rival in history.conflicts(clock, writes, strong):
            findings.append(self._race(i, node, atom, rival))
        epoch = (agent, clock[agent], self._number(access.where))
        history = history.noted(epoch, writes, strong)
        if strong and access.sem in ("acquire", "acq_rel"):
            clock = join(clock, history.released)
        if strong and writes:
            released = None if access.operation == "store" else history.released
            if access.sem in ("release", "acq_rel"):
                released = join(clock, released)
                self._arrive_ordered(state, i, clock)
                clock = (*clock[:agent], clock[agent] + 1, *clock[agent + 1 :])
            history = history._replace(released=released)
        state.clocks[agent], state.histories[atom] = clock, history

    def _race(self, i: int, node: Node, atom: int, rival: tuple[int, int, int]) -> Finding:
        other, place = self.instances[rival[0] // WARPS], self.places[rival[2]]
        mine = self.instances[i]
        whose = f"{mine.name} ({node.access.where}) and {other.name} ({place})"
        if other == mine:
            whose = f"two warps of {mine.name} ({node.access.where} and {place})"
        message = f"{whose} access {self.division.place(atom)} unordered"
        places = tuple(sorted((node.access.where, place)))
        if other.stream != mine.stream:
            message += f": they are of two launches, on streams {mine.stream + 1} and {other.stream + 1}"
            places = (*places, UNORDERED_LAUNCHES)
        return Finding("race", message, places)

    def _write(self, state: State, i: int, node: Node, part: Part, new: int) -> None:
        access = self._access(node)
        if access.kind == "load":
            return
        if access.kind == "store" and self.rules.late_stores and self.rules.races:
            agent = i * WARPS + part.warp
            state.pending[i] = (*state.pending[i], (agent, state.clocks[agent][agent], part.atom, new))
        else:
            self._set(state, i, part.atom, new)

    def _arrive_ordered(self, state: State, i: int, clock: Clock) -> None:
        """A release: the program's stores that are ordered before it have arrived."""
        kept = []
        for store in state.pending[i]:
            if clock[store[0]] >= store[1]:
                self._arrive(state, i, store)
            else:
                kept.append(store)
        state.pending[i] = tuple(kept)

    def _arrive_own(self, state: State, i: int, parts: list[Part]) -> None:
        """An atomic works on memory itself: what its program stored there before has arrived."""
        atoms = {part.atom for part in parts}
        for store in state.pending[i]:
            if store[2] in atoms:
                self._arrive(state, i, store)
        state.pending[i] = tuple(store for store in state.pending[i] if store[2] not in atoms)


def _raises_lock(node: Node) -> bool:
    """Whether an access sets a tile's lock whatever it held, as one does who has stored the tile."""
    access = node.access
    sets = access.kind == "store" or access.operation in ("store", "xchg")
    return sets and access.scalar and node.buffer.name.partition("#")[0] == "locks"
