"""Device time of a call: CUDA-graph replays with the L2 flushed, candidates interleaved in random order.

Nothing of Python's launch overhead is inside the interval, everything the device does for a call is: zeroing, locks,
every kernel.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import triton

METHOD = (
    "cuda graph replay between events, L2 flushed by a write, candidates in a fresh random order every round, "
    "samples that the host did not queue before the flush ended are taken again"
)
DO_BENCH = (
    "triton.testing.do_bench: mean over calls from Python, each between events after a flush of the L2, so that gaps "
    "in which the host is late are measured; candidates in a fresh random order every round"
)
DO_BENCH_WARMUP_MS, DO_BENCH_REPEAT_MS = 2, 8
MOST_WRITES = 16
"""Writes of the flush buffer before a replay, at most."""
MOST_TRIES = 50
"""Tries of one sample before the host counts as too slow to measure."""


@triton.jit
def empty_kernel():
    pass


@dataclass
class Timed:
    """A captured call and its samples in microseconds."""

    graph: torch.cuda.CUDAGraph
    samples: list[float] = field(default_factory=list)


def orders(count: int, rounds: int, seed: int | str) -> Iterator[list[int]]:
    """For each round a random order of 0 … count - 1; a fixed one would favour whoever follows a light candidate."""
    generator, order = random.Random(seed), list(range(count))
    for _ in range(rounds):
        generator.shuffle(order)
        yield list(order)


class Stopwatch:
    """The stream on which everything of a measurement runs, the buffer that flushes the L2, and the events.

    `retaken`: samples thrown away because the host had not queued everything in time. `flush_writes`: writes of the
    buffer before a replay, more when the host is slow.

    The stream is not the default one, as capturing needs. All graphs take their workspace from one pool: a replay sets
    its workspace before it reads it, and replays follow each other on the stream, so none sees another's.
    """

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        self.flush_bytes = max(2 * l2_bytes, 64 << 20)
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            self._buffer = torch.zeros(self.flush_bytes // 4, dtype=torch.int32, device="cuda")
            empty_kernel[(1,)]()
        self.flush_writes, self.retaken = 1, 0
        self._lead = torch.cuda.Event(enable_timing=True)
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)
        self._pool = torch.cuda.graph_pool_handle()
        # A pool gives its memory back with its last graph: this one keeps it from problem to problem.
        self._keeper = self.capture(lambda: empty_kernel[(1,)]())

    def capture(self, call: Callable[[], object]) -> Timed:
        """Capture a call that has run before on the stopwatch's stream (its kernels are compiled and loaded).

        Not by `torch.cuda.graph`, which empties the allocator's cache each time.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self._pool)
            try:
                call()
            finally:
                graph.capture_end()
        return Timed(graph)

    def sample(self, timed: Timed) -> float:
        """Microseconds of one replay on the current stream.

        The GPU is kept busy with the flush while the host queues events and replay. Where the host took longer than
        that, its time is in the interval, and the sample is taken again. RuntimeError after MOST_TRIES.
        """
        for attempt in range(MOST_TRIES):
            began = time.perf_counter()
            self._lead.record()
            for _ in range(self.flush_writes):
                self._buffer.zero_()
            self._start.record()
            timed.graph.replay()
            self._stop.record()
            queueing = time.perf_counter() - began
            self._stop.synchronize()
            if queueing * 1000 <= self._lead.elapsed_time(self._start):
                return self._start.elapsed_time(self._stop) * 1000
            self.retaken += 1
            if attempt:
                self.flush_writes = min(2 * self.flush_writes, MOST_WRITES)
        raise RuntimeError(
            f"the host needed {queueing * 1e6:.0f} us to queue a replay, {MOST_TRIES} times more than the flush"
        )

    def interleave(
        self,
        timed: Sequence[Timed],
        rounds: int,
        seed: int | str,
        before: Callable[[int], None] = lambda position: None,
    ) -> None:
        """Take `rounds` samples of each, every round in another order, after one that is thrown away.

        `before` hears whose turn it is.
        """
        with torch.cuda.stream(self.stream), _no_collection():
            for position, one in enumerate(timed):
                before(position)
                self.sample(one)
            for order in orders(len(timed), rounds, seed):
                for position in order:
                    before(position)
                    timed[position].samples.append(self.sample(timed[position]))


def do_bench_means(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    seed: int | str,
    before: Callable[[int], None] = lambda position: None,
) -> list[list[float]]:
    """For each call `rounds` means in microseconds, as `triton.testing.do_bench` gives them.

    What the thread reported, kept to compare with: the time that Python needs for a call counts wherever the GPU has
    nothing else to do. `before` hears whose turn it is.
    """
    means: list[list[float]] = [[] for _ in calls]
    for order in orders(len(calls), rounds, seed):
        for position in order:
            before(position)
            milliseconds = triton.testing.do_bench(
                calls[position], warmup=DO_BENCH_WARMUP_MS, rep=DO_BENCH_REPEAT_MS, return_mode="mean"
            )
            means[position].append(1000 * milliseconds)
    return means


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: a pause between an event and its replay would be measured."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
