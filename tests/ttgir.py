"""Runs a Gluon kernel on the CPU from its compiled intermediate representation (TTGIR, after all passes over it).

Gluon has no interpreter. This one takes what the compiler made of a kernel and runs it on NumPy arrays: programs,
partitions of a program and asynchronous engines take turns at random. What a GPU may do late is done as late as it may
be: a TMA load writes shared memory just before its barrier completes, a wgmma reads it when it is waited for. A stage
of a ring that is handed back too early gives wrong numbers, one that is never handed back a `Stalled`. Layouts are not
looked at, but for the share of a tensor that a CTA of a cluster has; CTAs of a cluster go in step.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

Steps = Generator[Callable[[], bool] | None, None, Any]
"""Runs until it yields: None to let others go on, or a condition to wait for."""


class Stalled(RuntimeError):
    """Nobody can go on."""


@dataclass
class Op:
    """One operation. `text`: its line without results. `regions`: lists of operations in braces."""

    results: list[str]
    name: str
    text: str
    regions: list[list[Op]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    @property
    def operands(self) -> list[str]:
        """Values used before the types begin."""
        return re.findall(r"%[\w#]+", re.split(r" : | -> ", self.text, maxsplit=1)[0])

    def attribute(self, name: str) -> str:
        return re.search(rf"{name} = ([^,}}>]+)", self.text)[1].split(" :")[0]

    @property
    def result_type(self) -> str:
        return self.text.rsplit(" -> ", 1)[-1] if " -> " in self.text else self.text.rsplit(" : ", 1)[-1]


@dataclass
class Module:
    ctas: int
    layouts: dict[str, list[list[int]]]
    arguments: list[str]
    body: list[Op]


def parse(text: str) -> Module:
    """The only function of a module printed without locations."""
    layouts = {}
    for name, definition in re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE):
        found = re.search(r"(?:CGALayout|block) = (\[(?:\[[\d, ]*\](?:, )?)+\])", definition)
        bases = re.findall(r"\[[\d, ]+\]", found[1]) if found else []
        layouts[name] = [list(map(int, re.findall(r"\d+", basis))) for basis in bases]
    lines = iter(text.splitlines())
    header = next(line for line in lines if "tt.func" in line)
    ctas = int(re.search(r'"ttg.num-ctas" = (\d+)', text)[1])
    return Module(ctas, layouts, re.findall(r"(%arg\d+):", header), _block(lines))


def _block(lines: Iterator[str]) -> list[Op]:
    """Operations up to the closing brace."""
    found: list[Op] = []
    for line in map(str.strip, lines):
        if line.startswith("}") and "else {" in line:
            found.append(Op([], "else", line))
            return found
        if line.startswith("}"):
            return found
        elif line.startswith(("default {", "partition")):
            found[-1].labels.append(line)
            found[-1].regions.append(_block(lines))
        elif line and not line.startswith("^bb"):
            found.append(_operation(line, lines))
    return found


def _operation(line: str, lines: Iterator[str]) -> Op:
    results, _, text = line.partition(" = ") if re.match(r"%[\w:]+ = ", line) else ("", "", line)
    name, count = [*results.split(":"), "1"][:2]
    names = [f"{name}#{i}" for i in range(int(count))] if int(count) > 1 else [name] if name else []
    op = Op(names, re.match(r'"?([\w.]+)"?', text)[1], text)
    if text.endswith("{"):
        region = _block(lines)
        while region and region[-1].name == "else":
            op.regions.append(region[:-1])
            region = _block(lines)
        op.regions.append(region)
    return op


class Barrier:
    """An mbarrier. A phase ends when all arrivals have come and all bytes that were announced have landed."""

    def __init__(self) -> None:
        self.count = self.arrivals = self.bytes = self.phase = 0

    def arrive(self, arrivals: int = 1, expected: int = 0, landed: int = 0) -> None:
        assert self.count, "used before it was initialised"
        self.arrivals += arrivals
        self.bytes += expected - landed
        assert self.arrivals <= self.count, "more arrivals than a phase has"
        if self.arrivals == self.count and self.bytes == 0:
            self.arrivals, self.phase = 0, self.phase + 1

    def passed(self, parity: int) -> bool:
        """As `try_wait.parity`: whether the phase of this parity is not the current one."""
        return self.phase % 2 != parity


@dataclass
class Shared:
    """Shared memory: one array, or list of barriers, for each CTA of the cluster."""

    parts: list[Any]


@dataclass
class Pointer:
    memory: np.ndarray
    offset: Any = 0


@dataclass
class Descriptor:
    """A matrix as the TMA sees it, and the block that a cluster moves at once."""

    matrix: np.ndarray
    block: tuple[int, ...]


class Machine:
    """A GPU that holds `resident` programs at a time and runs whoever comes next by a seeded draw."""

    def __init__(self, text: str, seed: int = 0, resident: int = 1 << 30) -> None:
        self.module, self.random, self.resident = parse(text), random.Random(seed), resident
        self.engine: list[Callable[[], None]] = []
        self.stores: dict[int, list[Any]] = {}
        self.registers: dict[tuple[int, int], np.ndarray] = {}
        self.dots = 0

    def run(self, programs: int, arguments: list[Any]) -> None:
        """Run all programs to their end. Raises Stalled."""
        assert len(arguments) == len(self.module.arguments), (len(arguments), self.module.arguments)
        waiting = list(range(programs))
        running: dict[Steps, tuple[str, Callable[[], bool] | None]] = {}
        while waiting or running or self.engine:
            while waiting and len(running) < self.resident:
                program = waiting.pop(0)
                env = dict(zip(self.module.arguments, arguments, strict=True))
                env["program"], env["programs"] = program, programs
                running[self._steps(self.module.body, env)] = (f"program {program}", None)
            ready = [steps for steps, (_, condition) in running.items() if condition is None or condition()]
            if not ready and not self.engine:
                raise Stalled(", ".join(name for name, _ in running.values()))
            if self.engine and (not ready or self.random.random() < 0.3):
                self.engine.pop(self.random.randrange(len(self.engine)))()
                continue
            steps = self.random.choice(ready)
            try:
                running[steps] = (running[steps][0], next(steps))
            except StopIteration:
                del running[steps]
        assert not self.stores, "a tile was still in shared memory when its program ended"

    def _steps(self, ops: list[Op], env: dict[str, Any]) -> Steps:
        for op in ops:
            if op.name in ("scf.yield", "ttg.warp_yield", "tt.reduce.return"):
                return [env[name] for name in op.operands]
            if op.name in ("ttg.warp_return", "tt.return"):
                return []
            run = getattr(self, "_" + op.name.replace(".", "_"), None)
            values = [env[name] for name in op.operands if name in env]
            if run is not None:
                found = yield from run(op, values, env)
            else:
                found = [self._pure(op, values)]
            env.update(zip(op.results, found, strict=False))
        return []

    def _pure(self, op: Op, values: list[Any]) -> Any:
        if op.name == "arith.cmpi":
            return COMPARE[re.match(r"arith.cmpi (\w+)", op.text)[1]](*values)
        if op.name == "arith.constant":
            value = re.search(r"constant (?:dense<)?([^ >]+)", op.text)[1]
            number = value == "true" if value in ("true", "false") else float(value)
            if "dense" in op.text:
                return np.full(_shape(op.result_type), number, _dtype(op.result_type))
            return number if isinstance(number, bool) else int(number)
        return PURE[op.name](op, *values)

    def _scf_for(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        variable, *_ = re.findall(r"%\w+", op.text)
        names = re.findall(r"(%\w+) = %", op.text.partition("iter_args")[2])
        bounds = re.search(r"= (%[\w#]+) to (%[\w#]+) step (%[\w#]+)", op.text).groups()
        start, stop, step = (env[name] for name in bounds)
        initial = re.findall(r"%\w+ = (%[\w#]+)", op.text.partition("iter_args")[2])
        carried = [env[name] for name in initial]
        for number in range(start, stop, step):
            inner = env | dict(zip(names, carried, strict=True)) | {variable: number}
            carried = yield from self._steps(op.regions[0], inner)
        return carried

    def _scf_if(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        if values[0] or len(op.regions) > 1:
            return (yield from self._steps(op.regions[0 if values[0] else 1], dict(env)))
        return []

    def _ttg_warp_specialize(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Partitions take turns, each in its own environment, until all have ended."""
        partitions = [self._steps(op.regions[0], dict(env))]
        for label, region in zip(op.labels[1:], op.regions[1:], strict=True):
            names = re.findall(r"(%\w+):", label)
            fixed = {"program": env["program"], "programs": env["programs"]}
            partitions.append(self._steps(region, dict(zip(names, values, strict=True)) | fixed))
        waits: list[Any] = [None] * len(partitions)
        ended: dict[int, Any] = {}
        while len(ended) < len(partitions):
            open_ones = [i for i in range(len(partitions)) if i not in ended]
            ready = [i for i in open_ones if waits[i] is None or waits[i]()]
            if not ready:
                yield lambda: any(waits[i]() for i in open_ones)  # noqa: B023
                continue
            chosen = self.random.choice(ready)
            try:
                waits[chosen] = next(partitions[chosen])
            except StopIteration as end:
                ended[chosen] = end.value
            yield None
        return ended[0]

    def _tt_get_program_id(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield from ()
        return [env["program"]]

    def _tt_get_num_programs(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield from ()
        return [env["programs"]]

    def _ttg_local_alloc(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Memory full of NaN; barriers are not initialised."""
        yield from ()
        shape = self._part(op.result_type)
        if "xi64" in op.result_type:
            return [Shared([[[Barrier() for _ in range(shape[-1])] for _ in range(shape[0])] for _ in self._ranks()])]
        return [Shared([np.full(shape, np.nan, np.float16) for _ in self._ranks()])]

    def _ttg_memdesc_index(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield from ()
        return [Shared([part[values[1]] for part in values[0].parts])]

    def _ttg_memdesc_trans(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield from ()
        return [Shared([part.T for part in values[0].parts])]

    def _ttg_memdesc_reinterpret(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """A CTA's part keeps its shape: another one would also need its layout."""
        yield from ()
        assert all(part.shape == self._part(op.result_type) for part in values[0].parts), op.text
        return [values[0]]

    def _ttg_local_store(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        for rank, part in enumerate(values[1].parts):
            part[:] = values[0][self._slices(op.result_type, rank)]
        return []

    def _ttg_local_load(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Into the registers of this one instruction, also where a wgmma in flight still reads them."""
        yield None
        (part,) = values[0].parts
        registers = self.registers.setdefault((env["program"], id(op)), np.empty_like(part))
        registers[:] = part
        return [Shared([registers])]

    def _ttng_init_barrier(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield from ()
        for (barrier,) in values[0].parts:
            barrier.count = int(re.search(r", (\d+) :", op.text)[1])
        return []

    def _ttng_wait_barrier(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        memory, parity, *_ = values
        yield lambda: all(barrier.passed(parity) for (barrier,) in memory.parts)
        return []

    def _ttng_arrive_barrier(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        if values[-1] is not False and (len(values) == 1 or values[1]):
            for (barrier,) in values[0].parts:
                barrier.arrive(int(re.search(r", (\d+)", op.text)[1]))
        return []

    def _ttng_barrier_expect(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        for (barrier,) in values[0].parts:
            barrier.arrive(expected=int(re.search(r", (\d+)", op.text)[1]))
        return []

    def _ttng_async_tma_copy_global_to_local(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Reads zeros outside the matrix. Lands some time later, and is counted by the barrier then."""
        yield None
        descriptor, y, x, memory, ready, *_ = values
        for rank, part in enumerate(memory.parts):
            (dy, dx), (rows, columns) = self._place(op.result_type, rank), part.shape
            block = np.zeros(part.shape, np.float16)
            inside = descriptor.matrix[y + dy : y + dy + rows, x + dx : x + dx + columns]
            block[: inside.shape[0], : inside.shape[1]] = inside

            self.engine.append(partial(_land, part, block, ready.parts[rank][0]))
        return []

    def _ttng_async_tma_copy_local_to_global(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Reads shared memory when it is waited for, and writes nothing outside the matrix."""
        yield None
        descriptor, y, x, memory = values
        for rank, part in enumerate(memory.parts):
            dy, dx = self._place(op.result_type, rank)
            self.stores.setdefault(env["program"], []).append((descriptor, y + dy, x + dx, part))
        return []

    def _ttng_async_tma_store_wait(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        assert op.attribute("pendings") == "0"
        for descriptor, y, x, block in self.stores.pop(env["program"], []):
            target = descriptor.matrix[y : y + block.shape[0], x : x + block.shape[1]]
            target[:] = block[: target.shape[0], : target.shape[1]]
        return []

    def _ttng_warp_group_dot(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Stays undone until it is waited for, as a link to the accumulator that it adds to."""
        yield None
        self.dots += 1
        return [Dot(*values, self.dots, [self._slices(op.result_type, rank) for rank in self._ranks()])]

    def _ttng_warp_group_dot_wait(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """The latest `pendings` wgmmas stay undone, whichever accumulators they are for."""
        yield None
        chain: list[Dot] = []
        for link in values:
            while isinstance(link, Dot):
                chain.append(link)
                link = link.accumulator
        chain.sort(key=operator.attrgetter("number"))
        for dot in chain[: len(chain) - int(op.attribute("pendings"))]:
            dot.do()
        return [v.value if isinstance(v, Dot) and v.value is not None else v for v in values]

    def _tt_load(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        assert len(values) == 1, "loads have no mask here"
        return [values[0].memory[values[0].offset].copy()]

    def _tt_store(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        pointer, value, *mask = values
        if mask:
            inside = np.broadcast_to(mask[0], pointer.offset.shape)
            pointer.memory[pointer.offset[inside]] = value[inside]
        else:
            pointer.memory[pointer.offset] = value
        return []

    def _tt_atomic_rmw(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        assert "add, acq_rel, gpu" in op.text
        pointer, value, _ = values
        before = int(pointer.memory[pointer.offset])
        pointer.memory[pointer.offset] = before + value
        return [before]

    def _ttg_barrier(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        return []

    _ttng_fence_async_shared = _ttg_barrier

    def _ttg_inline_asm(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        """Prefetches alone, which change no value."""
        yield None
        assert set(re.findall(r"(\w+)\.param\.tensormap", op.text)) == {"prefetch"} and not op.results, op.text
        return []

    def _tt_reduce(self, op: Op, values: list[Any], env: dict[str, Any]) -> Steps:
        yield None
        assert [inner.name for inner in op.regions[0]] == ["arith.addf", "tt.reduce.return"]
        total = values[0][0].copy() if op.attribute("axis") == "0" else None
        for part in values[0][1:]:
            total = total + part
        return [total]

    def _ranks(self) -> range:
        return range(self.module.ctas)

    def _bases(self, type_text: str) -> list[list[int]]:
        return self.module.layouts.get((re.findall(r"#\w+", type_text) or [""])[0], [])

    def _part(self, type_text: str) -> tuple[int, ...]:
        """The shape that one CTA has of a tensor or of memory."""
        shape = list(_shape(type_text))
        for basis in self._bases(type_text):
            for dimension, value in enumerate(basis):
                shape[len(shape) - len(basis) + dimension] //= 2 if value else 1
        return tuple(shape)

    def _slices(self, type_text: str, rank: int) -> tuple[slice, ...]:
        """A CTA's part of a tensor."""
        sizes = zip(self._place(type_text, rank), self._part(type_text), strict=True)
        return tuple(slice(start, start + size) for start, size in sizes)

    def _place(self, type_text: str, rank: int) -> tuple[int, ...]:
        """Where a CTA's part begins."""
        part = self._part(type_text)
        place = [0] * len(part)
        for bit, basis in enumerate(self._bases(type_text)):
            for dimension, value in enumerate(basis):
                place[dimension] += value * part[dimension] * (rank >> bit & 1)
        return tuple(place)


@dataclass
class Dot:
    """A wgmma in flight: every CTA multiplies its own operands into its own part of the accumulator, its place."""

    a: Shared
    b: Shared
    accumulator: Any
    use: bool
    number: int
    places: list[tuple[slice, ...]]
    value: np.ndarray | None = None

    def do(self) -> None:
        if self.value is not None:
            return
        before = self.accumulator.value if isinstance(self.accumulator, Dot) else self.accumulator
        product = np.full([max(place[d].stop for place in self.places) for d in range(2)], np.nan, np.float32)
        for a, b, place in zip(self.a.parts, self.b.parts, self.places, strict=True):
            product[place] = a.astype(np.float32) @ b.astype(np.float32)
        self.value = before + product if self.use else product
        self.accumulator = None


def _land(part: np.ndarray, block: np.ndarray, barrier: Barrier) -> None:
    part[:] = block
    barrier.arrive(0, landed=block.nbytes)


def _shape(type_text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"(\d+)x", re.search(r"<([^,#]*)", type_text)[1])))


def _dtype(type_text: str) -> type:
    kind = re.search(r"x(i\d+|f\d+)", type_text)[1]
    return {"f32": np.float32, "f16": np.float16, "i32": np.int64, "i64": np.int64, "i1": np.bool_}[kind]


def _divide(a: Any, b: Any) -> Any:
    assert np.all(np.asarray(a) >= 0) and np.all(np.asarray(b) > 0), "divided as if positive"
    return a // b


def _splat(op: Op, value: Any) -> Any:
    shape = _shape(op.result_type)
    if isinstance(value, Pointer):
        return Pointer(value.memory, np.full(shape, value.offset, np.int64))
    return np.full(shape, value)


def _narrowed(op: Op, value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return value.astype(np.float16)


def _same(op: Op, value: Any) -> Any:
    return value


COMPARE = {"sge": operator.ge, "sgt": operator.gt, "sle": operator.le, "slt": operator.lt}
COMPARE |= {"eq": operator.eq, "ne": operator.ne}
PURE: dict[str, Callable[..., Any]] = {
    "arith.addi": lambda op, a, b: a + b,
    "arith.addf": lambda op, a, b: a + b,
    "arith.subi": lambda op, a, b: a - b,
    "arith.muli": lambda op, a, b: a * b,
    "arith.divsi": lambda op, a, b: _divide(a, b),
    "arith.remsi": lambda op, a, b: a - _divide(a, b) * b,
    "arith.minsi": lambda op, a, b: min(a, b),
    "arith.maxsi": lambda op, a, b: max(a, b),
    "arith.andi": lambda op, a, b: a & b,
    "arith.xori": lambda op, a, b: a ^ b,
    "arith.select": lambda op, c, a, b: a if c else b,
    "arith.extsi": _same,
    "arith.truncf": _narrowed,
    "tt.addptr": lambda op, p, offset: Pointer(p.memory, p.offset + offset),
    "tt.splat": _splat,
    "tt.make_range": lambda op: np.arange(int(op.attribute("start")), int(op.attribute("end"))),
    "tt.expand_dims": lambda op, x: np.expand_dims(x, int(op.attribute("axis"))),
    "tt.broadcast": lambda op, x: np.broadcast_to(x, _shape(op.result_type)),
    "tt.reshape": lambda op, x: x.reshape(_shape(op.result_type)),
    "tt.trans": lambda op, x: x.transpose(list(map(int, re.search(r"i32: ([\d, ]+)>", op.text)[1].split(",")))),
    "ttg.convert_layout": _same,
}


def arguments_of(call: Any) -> list[Any]:
    """A recorded call's arguments as the compiled function takes them, on the memory of its CPU tensors.

    A descriptor stands for itself, its shape and its strides; what is a constant of the kernel is left out.
    """
    found: list[Any] = []
    for value in call.args:
        if hasattr(value, "block_shape"):
            found += [Descriptor(value.base.numpy(), tuple(value.block_shape)), *value.shape, *value.strides]
        elif hasattr(value, "numpy"):
            flat = np.lib.stride_tricks.as_strided(value.numpy(), (_extent(value),), (value.element_size(),))
            found.append(Pointer(flat))
        elif value is not None:
            found.append(value)
    return found


def _extent(tensor: Any) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
