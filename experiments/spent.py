"""Where the seconds of a sweep go, by part of the work."""

from __future__ import annotations

import time
from collections.abc import Callable

WAITING = "waiting"
"""For the next problem, while rows are written or nobody has one."""
PARTS = (WAITING, "inputs", "reference", "prepare", "check", "capture", "telemetry", "samples", "messages")
"""`prepare`: choice, plan, compilation and the first launch. `check`: both looks at the results. `capture`: making
graphs. `messages`: sending rows. All are the host's seconds: what the GPU does for inputs, reference and first launches
counts where the host waits for it, which is at the first `check` after them."""


class Spent:
    """Seconds by part. Exactly one part is on at any time, so that they add up to all the time that passed."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._part, self._since = WAITING, clock()
        self._seconds = dict.fromkeys(PARTS, 0.0)

    def enter(self, part: str) -> None:
        """What follows belongs to this part of PARTS."""
        now = self._clock()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def take(self) -> dict[str, float]:
        """Seconds since the last call, or since the start."""
        self.enter(self._part)
        seconds, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return seconds


def told(seconds: dict[str, float]) -> str:
    """The parts in one line, the longest first, with their share of all."""
    total = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {s:.1f} ({s / total:.0%})" for part, s in parts if s >= 0.05) or "less than 0.05 each"
