"""The paper's model of Stream-K's time, its constants fitted to measurements.

A program's time is a + b·[it shares a tile] + c·(its MAC iterations) + d·(other peers of a tile). Source: Osama et al.,
PPoPP 2023 (arXiv 2301.03598), section 5.1; there a to d come from microbenchmarks, here from measured launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from common.decomposition import Schedule, cdiv


@dataclass(frozen=True)
class Constants:
    """Microseconds: of a launch, of sharing a tile at all, of one MAC iteration, of each further peer."""

    launch: float
    sharing: float
    iteration: float
    peer: float

    def predict(self, schedule: Schedule, sms: int) -> float:
        """Microseconds of a launch on so many SMs."""
        return float(terms(schedule, sms) @ np.array([self.launch, self.sharing, self.iteration, self.peer]))


def terms(schedule: Schedule, sms: int) -> NDArray[np.float64]:
    """What the constants multiply: 1, whether a tile is shared, iterations on the critical path, further peers.

    The paper has one program an SM at most. Beyond, programs on one SM are taken to share its throughput, so that an
    iteration takes as many times longer as there are programs on the fullest SM. Data-parallel tiles follow in waves
    of one tile an SM.
    """
    peers = schedule.max_peers
    share = schedule.full + (schedule.rest > 0)
    crowded = cdiv(min(schedule.programs, schedule.total or 1), sms) if schedule.sk_tiles else 1
    waves = cdiv(schedule.dp_tiles, sms) * schedule.iters_per_tile
    return np.array([1.0, float(peers > 1), share * crowded + waves, float(peers - 1)])


def fit(measured: Iterable[tuple[Schedule, float]], sms: int) -> Constants:
    """Constants of least relative error, none negative. `measured`: schedules and microseconds.

    Raises ValueError for fewer than four measurements.
    """
    pairs = list(measured)
    if len(pairs) < 4:
        raise ValueError(f"four constants need four measurements, there are {len(pairs)}")
    weights = np.array([1 / microseconds for _, microseconds in pairs])
    rows = np.stack([terms(schedule, sms) for schedule, _ in pairs]) * weights[:, None]
    solution, _ = nnls(rows, np.ones(len(pairs)))
    return Constants(*map(float, solution))
