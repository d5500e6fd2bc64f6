"""Counters that kernels leave at zero, so that a launch needs no memset.

Eager launches of one stream share a buffer: they follow each other. A captured graph may be replayed on any stream, at
any time, so each captured launch gets counters that nobody else is ever given, taken from a reserve that was zeroed
before the capture began; where the reserve is spent they are zeroed inside the graph.
"""

from __future__ import annotations

import threading

import torch

LEAST = 4096
"""Counters of a stream's buffer, at least."""
RESERVE = 1 << 20
"""Counters set aside at a time for captured launches (4 MiB)."""


class _Device:
    """The buffers of one device. A buffer that is outgrown goes back to the allocator, which knows its stream."""

    def __init__(self) -> None:
        self.by_stream: dict[int, torch.Tensor] = {}
        self.reserve: torch.Tensor | None = None
        self.taken = 0
        self.kept: list[torch.Tensor] = []

    def refill(self, device: torch.device) -> None:
        """A new reserve where the old one is nearly spent, which is kept: graphs still use its counters."""
        if self.reserve is None or self.taken + LEAST > self.reserve.numel():
            self.reserve, self.taken = torch.zeros(RESERVE, dtype=torch.int32, device=device), 0
            self.kept.append(self.reserve)
            torch.cuda.current_stream(device).synchronize()

    def take(self, count: int) -> torch.Tensor | None:
        if self.reserve is None or self.taken + count > self.reserve.numel():
            return None
        self.taken += count
        return self.reserve[self.taken - count : self.taken]


_devices: dict[int, _Device] = {}
_lock = threading.Lock()


def counters(count: int, device: torch.device) -> torch.Tensor:
    """At least `count` int32 zeros for a launch on the current stream, which must leave them at zero."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device)
    with _lock:
        mine = _devices.setdefault(stream.device_index, _Device())
        if torch.cuda.is_current_stream_capturing():
            taken = mine.take(count)
            return torch.zeros(count, dtype=torch.int32, device=device) if taken is None else taken
        mine.refill(device)
        found = mine.by_stream.get(stream.cuda_stream)
        if found is None or found.numel() < count:
            found = torch.zeros(max(count, LEAST), dtype=torch.int32, device=device)
            mine.by_stream[stream.cuda_stream] = found
        return found
