"""Bytes that a schedule fetches through a last-level cache, estimated: for machines whose counters cannot be read."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from common.decomposition import Schedule, Segment, tile_coordinates


@dataclass(frozen=True)
class Traffic:
    """`requested`: bytes of A and B that programs ask for; `missed`: those that the cache did not hold."""

    requested: int
    missed: int

    @property
    def hit_rate(self) -> float:
        return 1 - self.missed / self.requested if self.requested else 0.0


def estimate(
    schedule: Schedule, block: tuple[int, int, int], element_bytes: int, group_m: int, resident: int, cache_bytes: int
) -> Traffic:
    """Walk a schedule with `resident` programs at a time, each one MAC iteration a step, over an LRU cache of blocks.

    A cache line is a whole block of A (BLOCK_M, BLOCK_K) or B (BLOCK_K, BLOCK_N). Programs start in ascending order and
    run in step, which real ones only nearly do; C's traffic is not in it.
    """
    block_m, block_n, block_k = block
    sizes = (block_m * block_k * element_bytes, block_k * block_n * element_bytes)
    cache: OrderedDict[tuple[int, int, int], int] = OrderedDict()
    held = requested = missed = 0
    for row, column, k in _lockstep(schedule, group_m, resident):
        for key, size in (((0, row, k), sizes[0]), ((1, column, k), sizes[1])):
            requested += size
            if key in cache:
                cache.move_to_end(key)
                continue
            missed += size
            held += size
            cache[key] = size
            while held > cache_bytes and cache:
                held -= cache.popitem(last=False)[1]
    return Traffic(requested, missed)


def _lockstep(schedule: Schedule, group_m: int, resident: int) -> Iterator[tuple[int, int, int]]:
    """Tile row, tile column and K step of every MAC iteration, in the order in which programs in step do them."""
    waiting = deque(p for p in schedule.by_program() if p)
    running: list[Iterator[tuple[int, int, int]]] = []
    while waiting or running:
        while waiting and len(running) < resident:
            running.append(_steps(waiting.popleft(), schedule, group_m))
        still = []
        for program in running:
            step = next(program, None)
            if step is not None:
                yield step
                still.append(program)
        running = still


def _steps(segments: tuple[Segment, ...], schedule: Schedule, group_m: int) -> Iterator[tuple[int, int, int]]:
    for segment in segments:
        row, column = tile_coordinates(segment.tile, schedule.tiles_m, schedule.tiles_n, group_m)
        for k in range(segment.start, segment.stop):
            yield row, column, k
