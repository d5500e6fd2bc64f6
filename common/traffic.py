"""Bytes that a call reads from memory through the L2, modelled from its schedule: for GPUs whose counters nobody read.

What the model leaves out (programs that are not in step, lines smaller than a block, writes of other kinds) makes it
differ from counters; by how much is measured, and nothing may be said from it that is finer than that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.decomposition import Schedule, Segment, tile_coordinates

RESIDENT_PER_SM = 2
"""Programs an SM: what the registers of a 128x128 tile allow."""
TWO_PARTS = ("8.0", "9.0")
"""Compute capabilities whose L2 is two partitions that each serve the SMs next to them, so that what all SMs read is
held twice: the A100's by its architecture whitepaper; the H200's is taken to be alike, and its counters bear that out
(half as much cache where all SMs read the same)."""


@dataclass(frozen=True)
class Cache:
    """A last-level cache of so many bytes in all, in parts of which each serves its share of the SMs."""

    size: int
    parts: int = 1


@dataclass(frozen=True)
class Traffic:
    """`requested`: bytes of A and B that programs ask for; `missed`: those that no part of the cache held; `c_missed`:
    bytes of C that atomic adds read likewise."""

    requested: int
    missed: int
    c_missed: int = 0

    @property
    def read(self) -> int:
        """Bytes read from memory."""
        return self.missed + self.c_missed

    @property
    def hit_rate(self) -> float:
        """Of A and B."""
        return 1 - self.missed / self.requested if self.requested else 0.0


Block = tuple[int, int, int]
"""Which matrix, its row or column of blocks, and the K step (C: the column)."""


class _Parts:
    """A cache of blocks, least recently used out first. A block's home is spread over all parts; a part that serves
    SMs away from a block's home keeps a copy of its own."""

    def __init__(self, cache: Cache) -> None:
        self.capacity, self.count = cache.size // cache.parts, cache.parts
        self.held: list[OrderedDict[tuple[Block, int], int]] = [OrderedDict() for _ in range(cache.parts)]
        self.bytes = [0] * cache.parts

    def touch(self, side: int, block: Block, size: int) -> int:
        """The bytes of a block that a program on a side finds in no part."""
        missed = 0
        for home in range(self.count):
            key, share = (block, home), size // self.count
            if key in self.held[side]:
                self.held[side].move_to_end(key)
                continue
            if key not in self.held[home]:
                missed += share
            self._put(home, key, share)
            if home != side:
                self._put(side, key, share)
        return missed

    def _put(self, part: int, key: tuple[Block, int], size: int) -> None:
        held = self.held[part]
        if key in held:
            held.move_to_end(key)
            return
        held[key] = size
        self.bytes[part] += size
        while self.bytes[part] > self.capacity and held:
            self.bytes[part] -= held.popitem(last=False)[1]


def estimate(
    schedule: Schedule,
    block: tuple[int, int, int],
    element_bytes: int,
    group_m: int,
    resident: int,
    cache: Cache,
    apart: bool = False,
) -> Traffic:
    """Walk a schedule with `resident` programs at a time, each one MAC iteration a step, over a cache of whole blocks.

    `apart`: Stream-K tiles and whole tiles are two kernels, each with an empty cache, as a profiler runs them. Programs
    start in ascending order and run in step, which real ones only nearly do. C's stores take room in the cache too.
    """
    programs = [segments for segments in schedule.by_program() if segments]
    groups = [programs]
    if apart:
        groups = [[p for p in programs if (p[0].tile < schedule.sk_tiles) == shared] for shared in (True, False)]
    found = [_walk(group, schedule, block, element_bytes, group_m, resident, cache) for group in groups]
    return Traffic(sum(f.requested for f in found), sum(f.missed for f in found), sum(f.c_missed for f in found))


def _walk(
    programs: Sequence[tuple[Segment, ...]],
    schedule: Schedule,
    block: tuple[int, int, int],
    element_bytes: int,
    group_m: int,
    resident: int,
    cache: Cache,
) -> Traffic:
    parts = _Parts(cache)
    block_m, block_n, block_k = block
    sizes = [size * element_bytes for size in (block_m * block_k, block_k * block_n, block_m * block_n)]
    requested = missed = c_missed = 0
    for side, (row, column, k, last, whole) in _lockstep(programs, schedule, group_m, resident, cache.parts):
        requested += sizes[0] + sizes[1]
        missed += parts.touch(side, (0, row, k), sizes[0]) + parts.touch(side, (1, column, k), sizes[1])
        if last:
            absent = parts.touch(side, (2, row, column), sizes[2])
            c_missed += 0 if whole else absent
    return Traffic(requested, missed, c_missed)


Step = tuple[int, int, int, bool, bool]
"""Tile row, tile column, K step, whether it is its segment's last, whether the segment is a whole tile."""


def _lockstep(
    programs: Sequence[tuple[Segment, ...]], schedule: Schedule, group_m: int, resident: int, sides: int
) -> Iterator[tuple[int, Step]]:
    """Every MAC iteration with the side of the cache that its program is on, as programs in step do them."""
    waiting = deque(enumerate(programs))
    running: list[tuple[int, Iterator[Step]]] = []
    while waiting or running:
        while waiting and len(running) < resident:
            number, segments = waiting.popleft()
            running.append((number % sides, _steps(segments, schedule, group_m)))
        still = []
        for side, program in running:
            step = next(program, None)
            if step is not None:
                yield side, step
                still.append((side, program))
        running = still


def _steps(segments: tuple[Segment, ...], schedule: Schedule, group_m: int) -> Iterator[Step]:
    for segment in segments:
        row, column = tile_coordinates(segment.tile, schedule.tiles_m, schedule.tiles_n, group_m)
        whole = segment.stop - segment.start == schedule.iters_per_tile
        for k in range(segment.start, segment.stop):
            yield row, column, k, k == segment.stop - 1, whole
