"""What one stress process does with one variant: many launches of random legal problems, compared exactly.

Inputs are small integers whose sums are exact in every dtype that holds them, in whatever order they are added, so a
result is right or wrong with nothing between. It is compared on the GPU; the host looks at one number a problem.

`python -m experiments.stress_child NAME…` makes one launch of each variant, for a sanitizer to watch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch
import triton
import triton.language as tl

import variants
from common.card import Config
from common.errors import NotCoResident, UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import Variant, compiled_kernel, plan, prepare, sms
from common.problem import Problem, make_inputs
from common.residency import Limits

MODES = ("random", "replay", "beside", "guard")
STREAMS = 2
INPUTS = 4
"""Pairs of A and B that the launches of a problem take in turn."""
CAPTURED = 8
"""Launches in one captured graph."""
EAGER = 64
"""Launches of a problem from Python, on each stream."""
MOST_TILES, MOST_ITERATIONS = 12, 64
BESIDE = 200
"""Launches of a problem beside the other kernel, on each stream."""
HELD_SHARE = 0.5
"""Share of the SMs that the other kernel holds in mode "beside"."""
HOLD_BLOCK, HOLD_WARPS = 256, 8
"""The accumulator of the kernel that holds SMs: 256 registers in each of 256 threads, which is all that an SM has."""
MOST_POLLS = 1 << 24
SMALL_OF = 32
"""Random problems, of which a sanitizer watches the smallest that has a fix-up."""
MOST_WARPS = 64
"""Of a program."""
MOST_REFUSED = 1000
"""Problems in a row that the launcher may refuse before a child gives up."""
Send = Callable[[tuple[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """One child's work. `launches`: in mode "random", of all its problems; `replays`: of the graph in mode "replay"."""

    variant: str
    launches: int
    replays: int
    problems: int
    seed: int
    modes: tuple[str, ...] = MODES
    find: Callable[[str], Variant] = variants.get


@triton.jit
def count_differences(found, wanted, differences, size, BLOCK: tl.constexpr):
    """Add to `differences` the number of elements that are not the same; NaN is never the same."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    differs = tl.load(found + at, mask=inside, other=0) != tl.load(wanted + at, mask=inside, other=0)
    wrong = tl.sum(tl.where(differs, 1, 0))
    if wrong > 0:
        tl.atomic_add(differences, wrong)


@triton.jit
def hold_sms(a, started, released, most_polls, BLOCK: tl.constexpr):
    """Fill an SM's registers with an accumulator and keep it until `released` is set, or for `most_polls` polls."""
    rows, ks = tl.arange(0, BLOCK), tl.arange(0, 16)
    x = tl.load(a + rows[:, None] * 16 + ks[None, :])
    accumulator = tl.dot(x, tl.trans(x))
    tl.atomic_add(started, 1)
    polls = 0
    while (tl.atomic_add(released, 0) == 0) & (polls < most_polls):
        polls += 1
    tl.store(a + BLOCK * 16 + rows[:, None] * BLOCK + rows[None, :], (accumulator + polls).to(tl.float16))


def serve(connection: Connection, task: Task) -> None:
    """Do the task; send ("doing", what) before each piece of work, ("row", record) after it, ("done", None) last."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        child = Child(task, connection.send)
        for mode in MODES:
            if mode in task.modes:
                getattr(child, f"do_{mode}")()
        connection.send(("done", None))
    except Exception as error:
        connection.send(("lost", f"{type(error).__name__}: {str(error)[:500]}"))


def _end_with_parent() -> None:
    """A child that hangs must not hold the GPU when whoever would have killed it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Pairs:
    """A problem's inputs and what each pair must give: C in float16, from a product in float32 that is exact."""

    def __init__(self, problem: Problem, seed: int, device: str) -> None:
        made = [make_inputs(problem, seed + i, "integers", device) for i in range(INPUTS)]
        self.a, self.b = (torch.stack([pair[i] for pair in made]) for i in (0, 1))
        # Every product and sum is an integer far below 2^24.
        self.wanted = (self.a.float() @ self.b.float()).to(self.a.dtype)


class Lane:
    """One stream's operands, output and prepared launch; `differences` counts wrong elements on the device."""

    def __init__(
        self, variant: Variant, config: Config, pairs: Pairs, stream: Any, max_programs: int | None = None
    ) -> None:
        self.pairs, self.stream = pairs, stream
        self.a, self.b = pairs.a[0].clone(), pairs.b[0].clone()
        self.out = torch.full_like(pairs.wanted[0], float("nan"))
        self.prepared = prepare(variant, self.a, self.b, self.out, config, max_programs=max_programs)
        self.differences = torch.zeros(1, dtype=torch.int32, device=self.a.device)
        self.launches = 0

    def within(self) -> Any:
        """The lane's stream as a context; nothing where kernels are interpreted."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def change_inputs(self, number: int) -> None:
        """In place, as a caller does between replays."""
        self.a.copy_(self.pairs.a[number])
        self.b.copy_(self.pairs.b[number])

    def compare(self, number: int) -> None:
        size = self.out.numel()
        arguments = (self.out, self.pairs.wanted[number], self.differences, size)
        count_differences[(triton.cdiv(size, 1024),)](*arguments, BLOCK=1024)

    def once(self, number: int) -> None:
        """One launch on changed inputs, compared."""
        self.change_inputs(number)
        self.prepared.run()
        self.compare(number)

    def captured(self, order: list[int]) -> torch.cuda.CUDAGraph:
        """A graph of launches that take these inputs in turn."""
        return self.capture(lambda: [self.once(number) for number in order])

    def capture(self, call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """A graph of what `call` does on this lane's stream; it must have been done once before."""
        graph = torch.cuda.CUDAGraph()
        with self.within():
            # Not `torch.cuda.graph`, which collects garbage and empties the allocator's cache every time.
            graph.capture_begin()
            call()
            graph.capture_end()
        return graph

    def facts(self) -> dict[str, Any]:
        """What was launched, for a row."""
        prepared, (m, k), n = self.prepared, self.a.shape, self.b.shape[1]
        return {
            "problem": [m, n, k],
            "config": prepared.config.label(),
            "order": prepared.config.order,
            "programs": prepared.schedule.programs,
            "split": prepared.config.split,
            "peers": prepared.schedule.max_peers,
            "relies_on_dispatch_order": prepared.relies_on_dispatch_order,
        }


class Child:
    """The modes, one after the other; each sends what it did as rows."""

    def __init__(self, task: Task, send: Send) -> None:
        self.task, self.send = task, send
        self.variant = task.find(task.variant)
        self.card = self.variant.card
        self.device = "cpu" if interpreting() else "cuda"
        self.draw = random.Random(f"{task.seed} {task.variant}")
        self.sms = sms(torch.device(self.device))
        self.streams = [torch.cuda.Stream() if self.device == "cuda" else None for _ in range(STREAMS)]

    # Problems

    def configs(self) -> list[Config]:
        """Configurations that compile quickly and split finely."""
        if self.card.language == "gluon":
            return list(self.variant.module.CONFIGS[-2:])
        blocks = [(32, 32, 32), (64, 64, 32)] if self.device == "cuda" else [(16, 16, 16)]
        fixed: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "full_tiles_warps": 4, "full_tiles_stages": 2}
        return [
            self.card.default.replace(block=block, order=order, **fixed)
            for block in blocks
            for order in self.card.tile_orders
        ]

    def legal(self) -> Iterator[tuple[Problem, Config]]:
        """Random problems, multiples of the block, with random programs or ranges; the launcher may refuse some."""
        configs = self.configs()
        most_tiles, most_iterations = (MOST_TILES, MOST_ITERATIONS) if self.device == "cuda" else (2, 4)
        while True:
            config = self.draw.choice(configs)
            tiles_m, tiles_n = self.draw.randint(1, most_tiles), self.draw.randint(1, most_tiles)
            sizes = (tiles_m, tiles_n, self.draw.randint(1, most_iterations))
            problem = Problem(*(size * block for size, block in zip(sizes, config.block, strict=True)))
            yield problem, self._dealt(config, tiles_m * tiles_n, sizes[2])

    def _dealt(self, config: Config, tiles: int, iterations: int) -> Config:
        """With random programs, or ranges a tile."""
        card = self.card
        if card.decomposition in ("data_parallel", "library"):
            return config
        if card.decomposition in ("split_k", "whole_waves", "cluster_ranges"):
            ranges = (1, 2, 4) if card.decomposition == "cluster_ranges" else range(1, min(iterations, 8) + 1)
            config = config.replace(split=self.draw.choice(ranges))
            if card.decomposition != "whole_waves":
                return config
        programs = self.draw.choice(
            (self.draw.randint(1, 3 * tiles), self.draw.randint(1, 2 * self.sms), self.sms, tiles)
        )
        switches = card.decomposition in ("optional_two_tile", "even_slabs")
        two_tiles = not switches or self.draw.random() < 0.5
        return config.replace(programs=max(1, min(programs, tiles * iterations)), two_tiles=two_tiles)

    def lanes(self, count: int = STREAMS, max_programs: int | None = None) -> list[Lane]:
        """Lanes of the next random problem that the launcher does not refuse."""
        return self._admitted(self.legal(), MOST_REFUSED, count, max_programs)

    def _admitted(
        self, drawn: Iterable[tuple[Problem, Config]], most: int, count: int, max_programs: int | None = None
    ) -> list[Lane]:
        """Lanes of the first of at most so many problems that the launcher does not refuse."""
        for problem, config in islice(drawn, most):
            self.send(("doing", {"mode": "choosing", "problem": str(problem), "config": config.label()}))
            pairs = Pairs(problem, self.draw.randrange(1 << 30), self.device)
            try:
                lanes = [Lane(self.variant, config, pairs, s, max_programs) for s in self.streams[:count]]
            except (UnsupportedProblem, NotCoResident):
                continue
            self._synchronize()
            return lanes
        raise RuntimeError(f"{self.variant.name}: the launcher refuses {most} random problems in a row")

    def small_lane(self) -> Lane:
        """A lane of the smallest random problem with tiles that have peers; of the smallest where none has."""

        def alone_then_size(drawn: tuple[Problem, Config]) -> tuple[bool, int]:
            problem, config = drawn
            m, n, k = problem.m, problem.n, problem.k
            return plan(self.card, m, n, k, config, self.sms).max_peers < 2, m * n * k

        drawn = sorted(islice(self.legal(), SMALL_OF), key=alone_then_size)
        (lane,) = self._admitted(drawn, SMALL_OF, 1)
        return lane

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def _piece(self, mode: str, lanes: list[Lane], **more: Any) -> Iterator[dict[str, Any]]:
        """Say what is begun, and afterwards send a row; the block may add to it."""
        record = {"mode": mode, "variant": self.variant.name, **lanes[0].facts(), **more}
        self.send(("doing", record))
        began = time.perf_counter()
        yield record
        self._synchronize()
        record |= {
            "launches": sum(lane.launches for lane in lanes),
            "wrong_elements": sum(int(lane.differences) for lane in lanes),
            "seconds": round(time.perf_counter() - began, 3),
        }
        self.send(("row", record))

    def _eager(self, lanes: list[Lane], launches: int) -> None:
        """From Python, on the streams in turn, each launch with other inputs than the one before."""
        for number in range(launches):
            for shift, lane in enumerate(lanes):
                with lane.within():
                    lane.once((number + shift) % INPUTS)
                lane.launches += 1

    # Modes

    def do_random(self) -> None:
        """Random problems: launches from Python and launches of captured graphs, on two streams at once."""
        each = -(-self.task.launches // self.task.problems)
        for number in range(self.task.problems):
            lanes = self.lanes(STREAMS if self.device == "cuda" else 1)
            with self._piece("random", lanes, number=number):
                eager = min(EAGER, -(-each // len(lanes)))
                self._eager(lanes, eager)
                replays = -(-(each - eager * len(lanes)) // (CAPTURED * len(lanes)))
                if self.device == "cuda" and replays > 0 and self.card.decomposition != "library":
                    self._replay(lanes, replays)

    def _replay(self, lanes: list[Lane], replays: int) -> None:
        self._synchronize()
        graphs = []
        for lane in lanes:
            order = [number % INPUTS for number in range(CAPTURED)]
            self.draw.shuffle(order)
            graphs.append(lane.captured(order))
        for _ in range(replays):
            for lane, graph in zip(lanes, graphs, strict=True):
                with lane.within():
                    graph.replay()
                lane.launches += CAPTURED
        self._synchronize()

    def do_replay(self) -> None:
        """One captured launch, replayed many times; its inputs are changed in place between replays."""
        (lane,) = self.lanes(1)
        if self.device != "cuda":
            return
        with self._piece("replay", [lane]):
            with lane.within():
                lane.once(0)
            self._synchronize()
            graph = lane.capture(lane.prepared.run)
            with lane.within():
                for number in range(self.task.replays):
                    lane.change_inputs(number % INPUTS)
                    graph.replay()
                    lane.compare(number % INPUTS)
            lane.launches = self.task.replays

    def do_beside(self) -> None:
        """Beside a kernel that holds half of the SMs; the launcher is told of what is left."""
        if self.device != "cuda":
            return
        held = int(self.sms * HELD_SHARE)
        # One a free SM: as few as any configuration has resident there.
        free = self.sms - held
        for _ in range(3):
            lanes = self.lanes(max_programs=free)
            # Compiled and loaded before the SMs are held: loading a module may wait for the whole GPU.
            self._eager(lanes, 1)
            self._synchronize()
            with self._piece("beside", lanes, held_sms=held, max_programs=free) as record, _holding(held) as holder:
                self._eager(lanes, BESIDE)
                for lane in lanes:
                    lane.stream.synchronize()
                record["held_throughout"] = not holder.query()

    def do_guard(self) -> None:
        """One tile with as many peers as programs fit: it runs; with one more it is refused."""
        if self.device != "cuda" or not self.card.needs_co_residency:
            return
        config = self.card.default.replace(block=(64, 64, 64), num_warps=4, full_tiles_warps=4)
        pairs = Pairs(Problem(64, 64, 64 * 4096), self.task.seed, self.device)
        probe = Lane(self.variant, config.replace(programs=2), pairs, self.streams[0])
        resident = probe.prepared.resident_programs or 0
        lane = Lane(self.variant, config.replace(programs=resident), pairs, self.streams[0])
        with self._piece("guard", [lane], resident_programs=resident) as record:
            self._eager([lane], 2 * INPUTS)
            try:
                prepare(self.variant, lane.a, lane.b, config=config.replace(programs=resident + 1))
                record["next_is_refused"] = False
            except NotCoResident:
                record["next_is_refused"] = True


@contextmanager
def _holding(held: int) -> Iterator[torch.cuda.Event]:
    """Within the block a kernel holds `held` SMs; the event is over when it is. Raises RuntimeError where it cannot."""
    stream = torch.cuda.Stream()
    memory = torch.ones(HOLD_BLOCK * (16 + HOLD_BLOCK), dtype=torch.float16, device="cuda")
    started, released = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    over = torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        options: dict[str, Any] = {"BLOCK": HOLD_BLOCK, "num_warps": HOLD_WARPS, "num_stages": 1}
        hold_sms[(held,)](memory, started, released, MOST_POLLS, **options)
        over.record()
    began = time.monotonic()
    while int(started) < held:
        if time.monotonic() - began > 5:
            released.fill_(1)
            raise RuntimeError(f"only {int(started)} of {held} programs that should hold SMs have started")
    try:
        yield over
    finally:
        released.fill_(1)
        stream.synchronize()


def hand_over_bytes(ptx: str) -> list[int]:
    """Where in a CTA's shared memory Triton's default warps tell the other warps what to run, a byte a warp.

    Empty for a kernel whose warps all run the same. The default warps store a word, all warps meet at a barrier, and
    each of the others loads a byte of it.
    """
    loads = re.findall(r"ld\.shared\.b8 \s*\S+, \[%r\d+\+(\d+)\];", ptx)
    words = {int(at) for at in re.findall(r"st\.shared\.b32 \s*\[global_smem\+(\d+)\], \d+;", ptx)}
    # The others' first warp is the fifth or a later one, and each adds its number to the address that it loads from.
    words = {word for word in words if any(0 < word - int(at) <= MOST_WARPS for at in loads)}
    reserved = Limits.reserved_shared_memory
    return [reserved + word + byte for word in sorted(words) for byte in range(4)]


def main(names: list[str]) -> int:
    """One launch of each variant on one small problem; the number of variants with a wrong result."""
    failed = 0
    for name in names:
        child = Child(Task(name, 1, 0, 1, seed=1), lambda _: None)
        lane = child.small_lane()
        with lane.within():
            lane.once(1)
        child._synchronize()
        failed += int(lane.differences) > 0
        compiled = [compiled_kernel(call) for call in lane.prepared.record()]
        states = [told for kernel in compiled for told in hand_over_bytes(kernel.asm["ptx"])]
        more = {"wrong_elements": int(lane.differences), "hand_over_bytes": sorted(set(states))}
        print(json.dumps({"watched": lane.facts() | more}), flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
