"""Device time of a call: CUDA-graph replays with the L2 flushed, candidates interleaved in random order.

Nothing of Python's launch overhead is inside the interval, everything the device does for a call is: zeroing, locks,
every kernel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton

METHOD = "cuda graph replay between events, L2 flushed by a write, candidates in a fresh random order every round"


@triton.jit
def empty_kernel():
    pass


@dataclass
class Timed:
    """A captured call and its samples in microseconds."""

    graph: torch.cuda.CUDAGraph
    samples: list[float]


class Stopwatch:
    """Holds the flush buffer and events of one GPU."""

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        self.flush_bytes = max(2 * l2_bytes, 64 << 20)
        self._buffer = torch.empty(self.flush_bytes // 4, dtype=torch.int32, device="cuda")
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)

    def capture(self, call: Callable[[], object]) -> Timed:
        """Capture a call that has run before (its kernels are compiled and loaded)."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return Timed(graph, [])

    def sample(self, timed: Timed) -> float:
        """Microseconds of one replay. The flush is still running while events and replay are queued."""
        self._buffer.zero_()
        self._start.record()
        timed.graph.replay()
        self._stop.record()
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) * 1000

    def interleave(
        self, timed: Sequence[Timed], rounds: int, seed: int, before: Callable[[int], None] = lambda position: None
    ) -> None:
        """Take `rounds` samples of each, every round in another order; `before` hears whose turn it is."""
        order, generator = list(range(len(timed))), random.Random(seed)
        for position in order:
            before(position)
            self.sample(timed[position])
        for _ in range(rounds):
            generator.shuffle(order)
            for position in order:
                before(position)
                timed[position].samples.append(self.sample(timed[position]))
