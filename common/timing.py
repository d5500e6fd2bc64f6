"""Device time of a call: CUDA-graph replays with the L2 flushed, candidates interleaved in random order.

Nothing of Python's launch overhead is inside the interval, everything the device does for a call is: zeroing, locks,
every kernel.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import triton

METHOD = (
    "cuda graph replay between events, L2 flushed by a write, candidates in a fresh random order every round, "
    "up to 64 samples queued as a whole behind a head start, samples that the host did not queue before the flush "
    "ended are taken again"
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
MOST_QUEUED = 64
"""Samples queued before the host waits for the GPU; the driver's queue holds more commands than these need."""
HEAD_WRITES = 8
"""Writes of the flush buffer before a queue's first flush: the host is late at a queue's start, where the GPU has
nothing to do yet; from there on a flush and a kernel take longer than queueing them."""
LATE_SHARE = 0.25
"""A queue with a larger share of late samples makes the flush longer by a write."""
CALM = 16
"""Queues without a late sample after which the flush gets shorter: a slow moment must not cost a whole sweep."""


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
    buffer before a replay, more while the host is slow. `most_writes`: the most that they have been.

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
        self.flush_writes, self.most_writes, self.retaken, self._calm = 1, 1, 0, 0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
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

    def interleave(
        self,
        timed: Sequence[Timed],
        rounds: int,
        seed: int | str,
        before: Callable[[int], None] = lambda position: None,
    ) -> None:
        """Take `rounds` samples of each, every round in another order, after one that is thrown away.

        `before` hears for whose sample the host waits. RuntimeError where a sample is late MOST_TRIES times.
        """
        everyone = list(range(len(timed)))
        sequence = everyone + [position for order in orders(len(timed), rounds, seed) for position in order]
        with torch.cuda.stream(self.stream), _no_collection():
            found = []
            for first in range(0, len(sequence), MOST_QUEUED):
                found += self.once(timed, sequence[first : first + MOST_QUEUED], before)
        for position, sample in list(zip(sequence, found, strict=True))[len(everyone) :]:
            timed[position].samples.append(sample)

    def once(
        self, timed: Sequence[Timed], order: Sequence[int], before: Callable[[int], None] = lambda position: None
    ) -> list[float]:
        """Microseconds of replays in this order, on the current stream, which is the stopwatch's.

        `order`: positions in `timed`, any of them as often as wanted. Late ones are taken again, with a longer flush
        each time. RuntimeError as `interleave`.
        """
        samples: dict[int, float] = {}
        left = list(range(len(order)))
        for longer in range(MOST_TRIES):
            late = []
            for first in range(0, len(left), MOST_QUEUED):
                late += self._queue(timed, order, left[first : first + MOST_QUEUED], longer, samples, before)
            if not longer:
                self._adapt(len(late), len(order))
            if not late:
                return [samples[place] for place in range(len(order))]
            self.retaken += len(late)
            left = late
        raise RuntimeError(f"the host was late to queue a replay {MOST_TRIES} times, behind {MOST_WRITES} flushes")

    def _adapt(self, late: int, count: int) -> None:
        """Make the flush longer where many of `count` samples were late, shorter again where none is for a while."""
        self._calm = 0 if late else self._calm + 1
        if late > LATE_SHARE * count:
            self.flush_writes = min(self.flush_writes + 1, MOST_WRITES)
        elif self._calm >= CALM:
            self.flush_writes, self._calm = max(self.flush_writes - 1, 1), 0
        self.most_writes = max(self.most_writes, self.flush_writes)

    def _queue(
        self,
        timed: Sequence[Timed],
        order: Sequence[int],
        places: list[int],
        longer: int,
        samples: dict[int, float],
        before: Callable[[int], None],
    ) -> list[int]:
        """Queue the replays at these places of the order, then wait for one after the other; return the late ones.

        The flush keeps the GPU busy while the host queues events and replay. Where the GPU was at the first event
        before the host had queued the last, host time may be in the interval.
        """
        while len(self._events) < len(places):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        late = []
        for _ in range(HEAD_WRITES):
            self._buffer.zero_()
        for place, (start, stop) in zip(places, self._events, strict=False):
            for _ in range(min(self.flush_writes + longer, MOST_WRITES)):
                self._buffer.zero_()
            start.record()
            timed[order[place]].graph.replay()
            stop.record()
            if start.query():
                late.append(place)
        for place, (start, stop) in zip(places, self._events, strict=False):
            before(order[place])
            stop.synchronize()
            if place not in late:
                samples[place] = start.elapsed_time(stop) * 1000
        return late


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
