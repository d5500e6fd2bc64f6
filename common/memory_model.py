"""What programs may see of each other's accesses: which are ordered, which barriers there are, how memory is divided.

The model is that of PTX (PTX ISA, "Memory Consistency Model") as far as Triton kernels reach it, with a program of two
warps, which is enough to tell "one warp" from "every warp":

- a tensor access is made by every warp, each its part; a scalar access is made by one thread, of the first warp;
- within a warp accesses are ordered; between the warps of a program only a CTA barrier orders them;
- between programs an atomic that acquires is ordered after the release that it reads from, directly or through other
  read-modify-writes; scope "cta" orders nothing between programs;
- the end of a kernel orders it before what follows in its stream.

Two accesses of one place that are not so ordered, one a write, not both atomic, are a *race*, whatever value was read.
Programs without a race behave as if all accesses were made one after another, so it is enough to look for races in
such orders; what a racy program may see besides (stores that arrive late and in parts) the machine plays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from common.continuations import Buffer, Node

WARPS = 2
Clock = tuple[int, ...]
Epoch = tuple[int, int, int]
"""Agent (a warp of a program), its time, and the place in the code as a number."""


@dataclass(frozen=True)
class Reading:
    """Which CTA barriers there are beside those that the kernel writes.

    `before_scalar_atomic`, `after_scalar_atomic`: the compiler puts one there. A scalar atomic whose result is used
    always has one after it, since the result goes from one thread to all.
    """

    name: str
    before_scalar_atomic: bool = False
    after_scalar_atomic: bool = False


READINGS = {
    reading.name: reading
    for reading in (
        Reading("source"),
        Reading("triton-3.6"),
        Reading("triton-3.9", before_scalar_atomic=True, after_scalar_atomic=True),
    )
}
"""By name: what the kernel says alone, and with what a Triton version adds on NVIDIA GPUs. The compiled ones are read
off the PTX of v05, v06 and v08 for sm_80 and sm_90; a test reads it off the installed Triton again."""


class Interner:
    """Arrays as small numbers: equal arrays of one dtype have one number, and operations on numbers are remembered."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._results: dict[tuple[Any, ...], int] = {}

    def number(self, array: np.ndarray) -> int:
        key = (array.dtype.str, array.tobytes())
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(array.copy())
        return self._numbers[key]

    def apply(self, operation: str, old: int, operands: tuple[int, ...]) -> int:
        """What a read-modify-write leaves in memory. Raises NotImplementedError for one that is not known."""
        key = (operation, old, operands)
        if key not in self._results:
            self._results[key] = self.number(_modified(operation, self.arrays[old], [self.arrays[o] for o in operands]))
        return self._results[key]


def _modified(operation: str, old: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
    if operation == "load":
        return old
    if operation in ("xchg", "store"):
        return operands[0]
    if operation == "cas":
        return np.where(old == operands[0], operands[1], old)
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum}
    functions |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    if operation not in functions:
        raise NotImplementedError(f"the memory model has no atomic {operation!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        return functions[operation](old, operands[0]).astype(old.dtype)


@dataclass(frozen=True)
class Part:
    """What one access does to one atom: by which warp, with which operands, and which lanes stand for its elements."""

    warp: int
    atom: int
    operands: tuple[int, ...]
    lanes: np.ndarray


class Divided(Exception):
    """An access needed a finer division of memory: states are to be built anew."""


class Division:
    """Shared memory cut into atoms: sets of elements that every access so far takes whole or not at all."""

    def __init__(self, buffers: list[Buffer], interner: Interner) -> None:
        self.buffers = [b for b in buffers if b.shared]
        self.interner = interner
        self.version = 0
        self._labels = [np.zeros(b.data.size, dtype=np.int64) for b in self.buffers]
        self._number()

    def _number(self) -> None:
        self.atoms: list[tuple[Buffer, np.ndarray]] = []
        self.initial: list[int] = []
        self.of_buffer: dict[Buffer, list[int]] = {}
        for buffer, labels in zip(self.buffers, self._labels, strict=True):
            # By their first elements, so that their order does not depend on the order in which they were divided.
            _, first, dense = np.unique(labels, return_index=True, return_inverse=True)
            labels[:] = np.argsort(np.argsort(first))[dense] + len(self.atoms)
            self.of_buffer[buffer] = []
            for label in range(len(self.atoms), int(labels.max(initial=len(self.atoms) - 1)) + 1):
                elements = np.flatnonzero(labels == label)
                self.of_buffer[buffer].append(len(self.atoms))
                self.atoms.append((buffer, elements))
                self.initial.append(self.interner.number(buffer.data[elements]))

    def place(self, atom: int) -> str:
        """The atom's buffer and first element, for reports."""
        buffer, elements = self.atoms[atom]
        return f"{buffer.name}[{elements[0]}]" if elements.size else buffer.name

    def content(self, buffer: Buffer, values: list[int]) -> np.ndarray:
        """The buffer's elements, given every atom's value."""
        data = np.empty_like(buffer.data)
        for atom in self.of_buffer[buffer]:
            data[self.atoms[atom][1]] = self.interner.arrays[values[atom]]
        return data

    def parts(self, node: Node) -> list[Part]:
        """The node's access as parts, in the order in which they are done. Raises Divided where it cuts an atom."""
        if node.version == self.version:
            return node.parts
        labels = self._labels[self.buffers.index(node.buffer)]
        groups = list(_groups(node))
        divided = False
        for _, lanes in groups:
            divided |= self._divide(labels, node.elements[lanes])
        if divided:
            self.version += 1
            self._number()
            raise Divided
        parts = []
        for warp, lanes in groups:
            elements = node.elements[lanes]
            order = np.argsort(elements, kind="stable")
            lanes, atoms = lanes[order], labels[elements[order]]
            for atom in np.unique(atoms):
                chosen = lanes[atoms == atom]
                operands = tuple(self.interner.number(o[chosen]) for o in node.access.operands)
                parts.append(Part(warp, int(atom), operands, chosen))
        node.parts, node.version = parts, self.version
        return parts

    def _divide(self, labels: np.ndarray, elements: np.ndarray) -> bool:
        inside = np.zeros(labels.size, dtype=bool)
        inside[elements] = True
        cut = [label for label in np.unique(labels[elements]) if not inside[labels == label].all()]
        for label in cut:
            labels[inside & (labels == label)] = labels.max() + len(self.atoms) + 1
        return bool(cut)


def _groups(node: Node) -> list[tuple[int, np.ndarray]]:
    """Lanes by warp; an element that a warp has twice comes in a later group of its own."""
    size = node.elements.size
    lanes = np.arange(size)
    warps = [lanes] if node.access.scalar or size < WARPS else np.array_split(lanes, WARPS)
    groups = []
    for warp, mine in enumerate(warps):
        while mine.size:
            _, first = np.unique(node.elements[mine], return_index=True)
            first.sort()
            groups.append((warp, mine[first]))
            mine = np.delete(mine, first)
    return groups


def join(one: Clock, other: Clock | None) -> Clock:
    """The later of each component."""
    if other is None or one is other:
        return one
    return tuple(map(max, one, other))


class History(NamedTuple):
    """What an atom remembers of its accesses since the last plain write.

    `write`: that write. `reads`: plain reads. `atomic_writes`, `atomic_reads`: the latest of each agent. `released`:
    what an acquire that reads the present value is ordered after.
    """

    write: Epoch | None = None
    reads: tuple[Epoch, ...] = ()
    atomic_writes: tuple[Epoch, ...] = ()
    atomic_reads: tuple[Epoch, ...] = ()
    released: Clock | None = None

    def conflicts(self, clock: Clock, write: bool, atomic: bool) -> list[Epoch]:
        """The accesses not ordered before one made now at `clock` that together with it are a race."""
        rivals = () if self.write is None else (self.write,)
        if not atomic:
            rivals += self.atomic_writes
        if write:
            rivals += self.reads if atomic else self.reads + self.atomic_reads
        return [epoch for epoch in rivals if clock[epoch[0]] < epoch[1]]

    def noted(self, epoch: Epoch, write: bool, atomic: bool) -> History:
        """With one more access. A plain write begins anew: what came before is ordered before it, or reported."""
        if write and not atomic:
            return History(write=epoch)
        name = ("atomic_writes" if write else "atomic_reads") if atomic else "reads"
        kept = (e for e in getattr(self, name) if e[0] != epoch[0])
        return self._replace(**{name: tuple(sorted((*kept, epoch)))})
