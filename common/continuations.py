"""A program of a kernel as a tree of its accesses to shared memory.

What a program does next depends on nothing but what its accesses have read so far. So a program that stops at an access
is a node of a tree, each different answer leads to another node, and a node is found by running the unchanged kernel in
Triton's interpreter once, from the start, with the answers on the way to it. Every later schedule that comes to the
same place finds the node there: the interpreter runs once a place, not once a schedule.

An answer that the program never looks at (an atomic add whose result is dropped) leads to the same node whatever it is.
A loop that comes back to the same place with the same variables (a poll) leads back to the node where it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from common.interpreter import Access, Suspended, kernel_arguments, run_program
from common.launcher import KernelCall

SPIN_LENGTH = 8
"""The longest polling loop, in accesses, that is recognised as one."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor that kernels get: `data` are its elements in memory order; `shared` says that some program writes it."""

    name: str
    address: int
    data: np.ndarray
    shared: bool

    def elements(self, access: Access) -> np.ndarray | None:
        """The elements that an access means, or None where one lies outside or between elements."""
        offsets = access.addresses.astype(np.int64) - self.address
        places, inside = np.divmod(offsets, self.data.itemsize)
        if access.dtype.itemsize != self.data.itemsize or inside.any():
            return None
        return places if ((places >= 0) & (places < self.data.size)).all() else None


class StaleTree(Exception):
    """A program looked at an answer later than it had seemed to: states that hold its nodes are to be built anew."""


class OutOfBounds(Exception):
    """An access lies in no buffer, or not wholly in one."""


@dataclass(eq=False)
class Node:
    """A program stopped before an access, or at its end (`access` is None), or at a fault.

    `answer`: what the parent's access read to lead here. `looked_at`: whether the program uses what this access reads.
    `parts` is filled in by the memory model for its present division of memory, number `version`.
    """

    access: Access | None = None
    buffer: Buffer | None = None
    elements: np.ndarray | None = None
    parent: Node | None = None
    answer: np.ndarray | None = None
    state: int = 0
    fault: str = ""
    looked_at: bool = False
    known: bool = False
    children: dict[bytes, Node] = field(default_factory=dict)
    parts: list[Any] = field(default_factory=list)
    version: int = -1

    def ancestors(self) -> Iterator[Node]:
        """This node, then its parent and so on."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Program:
    """One program of one kernel call, run as far as it has been asked for."""

    def __init__(self, call: KernelCall, index: int, buffers: list[Buffer]) -> None:
        self.call, self.index, self.buffers = call, index, buffers
        self.arguments = kernel_arguments(call.kernel, call.args, call.options)
        self.runs = 0
        self.root = self._run([])

    def step(self, node: Node, answer: np.ndarray | None) -> Node:
        """The node after this one, given what its access reads. Raises StaleTree."""
        if node.known:
            child = node.children.get(_key(node, answer))
            if child is not None:
                return child
        path = [n for n in node.ancestors()][::-1]
        history = [(n, n_next.answer) for n, n_next in pairwise(path)] + [(node, answer)]
        child = self._run(history)
        node.known = True
        return node.children.setdefault(_key(node, answer), self._back(node, child))

    def _back(self, node: Node, child: Node) -> Node:
        """The ancestor that the child repeats, or the child."""
        if child.access is None:
            return child
        for ancestor, _ in zip(node.ancestors(), range(SPIN_LENGTH), strict=False):
            if ancestor.state == child.state and _same(ancestor, child):
                return ancestor
        return child

    def _run(self, history: list[tuple[Node, np.ndarray | None]]) -> Node:
        self.runs += 1
        looked = [False] * len(history)
        position = 0

        def answer(access: Access) -> tuple[np.ndarray | None, Any]:
            nonlocal position
            buffer, elements = (None, None) if access.kind == "barrier" else self._locate(access)
            if buffer is not None and not buffer.shared:
                if access.kind != "load":
                    raise OutOfBounds(f"{access.where}: writes {buffer.name}, which is an input")
                return buffer.data[elements], None
            if position == len(history):
                raise Suspended(access)
            node, read = history[position]
            if node.access.site != access.site:
                raise RuntimeError(f"{access.where}: the program does not do the same twice; it cannot be explored")
            place, position = position, position + 1
            return read, lambda: looked.__setitem__(place, True)

        parent, read = history[-1] if history else (None, None)
        try:
            run_program(self.call.kernel, self.index, self.call.programs, self.arguments, answer)
            child = Node(parent=parent, answer=read)
        except Suspended as suspended:
            access = suspended.access
            located = (None, None) if access.kind == "barrier" else self._locate(access)
            state = hash(access.state())
            # Without its frames: they would keep every tensor of the program alive.
            child = Node(replace(access, frames=()), *located, parent, read, state)
        except OutOfBounds as fault:
            child = Node(parent=parent, answer=read, fault=str(fault))
        self._note_looks(history, looked)
        return child

    def _note_looks(self, history: list[tuple[Node, np.ndarray | None]], looked: list[bool]) -> None:
        late = False
        for (node, _), was_looked_at in zip(history, looked, strict=True):
            if was_looked_at and not node.looked_at:
                node.looked_at = True
                late |= node.known
                if node.known:
                    node.children.clear()
        if late:
            raise StaleTree

    def _locate(self, access: Access) -> tuple[Buffer, np.ndarray]:
        for buffer in self.buffers:
            elements = buffer.elements(access)
            if elements is not None:
                return buffer, elements
        first, last = (int(end(access.addresses)) for end in (np.min, np.max)) if access.addresses.size else (0, 0)
        near = min(self.buffers, key=lambda b: abs(b.address - first)) if self.buffers else None
        if near is None or not access.addresses.size:
            raise OutOfBounds(f"{access.where}: an access without an address")
        size = near.data.itemsize
        raise OutOfBounds(
            f"{access.where}: {access.kind} of elements {(first - near.address) // size} to "
            f"{(last - near.address) // size} of {near.name}, which has {near.data.size}"
        )


def _key(node: Node, answer: np.ndarray | None) -> bytes:
    return answer.tobytes() if node.looked_at and answer is not None else b""


def _same(one: Node, other: Node) -> bool:
    """Whether two nodes make the same access from the same place."""
    a, b = one.access, other.access
    if a is None or b is None or (a.site, a.kind, a.operation) != (b.site, b.kind, b.operation):
        return False
    arrays = zip((a.addresses, *a.operands), (b.addresses, *b.operands), strict=True)
    return (a.sem, a.scope) == (b.sem, b.scope) and all(x.tobytes() == y.tobytes() for x, y in arrays)
