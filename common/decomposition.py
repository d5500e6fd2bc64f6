"""Work decompositions as pure functions: which program does which MAC iterations of which tile.

Launchers, guards, tests and pictures all read the same `Schedule`, so what is drawn is what is launched.
Source: Osama et al., PPoPP 2023 (arXiv 2301.03598), sections 4 and 5; triton-lang/triton#1393, opening post and
comment 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

GROUP_M = 8
"""Tile rows in one group of the swizzled order, as in the thread."""


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)


@dataclass(frozen=True)
class Segment:
    """Consecutive MAC iterations [start, stop) of one tile done by one program, counted from the tile's first."""

    tile: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Schedule:
    """Stream-K tiles come first and are shared evenly among `programs`; each later tile has one program of its own.

    `tiles_m`, `tiles_n`: tiles along M and N. `iters_per_tile`: MAC iterations of a tile. `programs`: Stream-K
    programs (the thread's "grid"). `sk_tiles`: tiles that the Stream-K programs share.
    """

    tiles_m: int
    tiles_n: int
    iters_per_tile: int
    programs: int
    sk_tiles: int

    @property
    def tiles(self) -> int:
        return self.tiles_m * self.tiles_n

    @property
    def dp_tiles(self) -> int:
        return self.tiles - self.sk_tiles

    @property
    def total(self) -> int:
        """MAC iterations of all Stream-K tiles."""
        return self.sk_tiles * self.iters_per_tile

    @property
    def full(self) -> int:
        """MAC iterations that every Stream-K program does."""
        return self.total // self.programs if self.sk_tiles else 0

    @property
    def rest(self) -> int:
        """The first `rest` programs do one MAC iteration more."""
        return self.total % self.programs if self.sk_tiles else 0

    def share(self, program: int) -> tuple[int, int]:
        """The MAC iterations [start, stop) of one Stream-K program, numbered tile-major."""
        start = program * self.full + min(program, self.rest)
        return start, start + self.full + (program < self.rest)

    def segments(self, program: int) -> tuple[Segment, ...]:
        """The segments of one Stream-K program in the order in which it does them; empty when it has no work."""
        start, stop = self.share(program)
        pieces = []
        while start < stop:
            tile = start // self.iters_per_tile
            cut = min((tile + 1) * self.iters_per_tile, stop)
            pieces.append(Segment(tile, start - tile * self.iters_per_tile, cut - tile * self.iters_per_tile))
            start = cut
        return tuple(pieces)

    def by_program(self) -> Iterator[tuple[Segment, ...]]:
        """The segments of every program of a launch: Stream-K programs first, then one program a remaining tile."""
        if self.sk_tiles:
            yield from (self.segments(program) for program in range(self.programs))
        for tile in range(self.sk_tiles, self.tiles):
            yield (Segment(tile, 0, self.iters_per_tile),)

    def program_of(self, iteration: int) -> int:
        """The Stream-K program that does a MAC iteration."""
        longer = self.rest * (self.full + 1)
        if iteration < longer:
            return iteration // (self.full + 1)
        return self.rest + (iteration - longer) // self.full

    def peers(self, tile: int) -> range | tuple[int, ...]:
        """The programs that share a Stream-K tile, lowest first."""
        first = self.program_of(tile * self.iters_per_tile)
        return range(first, self.program_of((tile + 1) * self.iters_per_tile - 1) + 1)

    @property
    def max_peers(self) -> int:
        """Programs of the most widely shared tile; 1 when no tile is shared."""
        return _max_peers(self)

    def is_whole(self, segment: Segment) -> bool:
        return len(segment) == self.iters_per_tile


@lru_cache(maxsize=4096)
def _max_peers(schedule: Schedule) -> int:
    if not schedule.total:
        return 1
    return max(len(schedule.peers(tile)) for tile in range(schedule.sk_tiles))


def always_two_tile(tiles_m: int, tiles_n: int, iters_per_tile: int, programs: int) -> Schedule:
    """v00-v07: all whole waves but one are data-parallel; `programs = 0` makes every tile data-parallel."""
    tiles = tiles_m * tiles_n
    if programs == 0:
        return data_parallel(tiles_m, tiles_n, iters_per_tile)
    dp_tiles = tiles // programs * programs
    if tiles >= programs:
        dp_tiles -= programs
    return Schedule(tiles_m, tiles_n, iters_per_tile, programs, tiles - dp_tiles)


def optional_two_tile(
    tiles_m: int, tiles_n: int, iters_per_tile: int, programs: int, two_tiles: bool = True
) -> Schedule:
    """v08: the last, partial wave is Stream-K; with `two_tiles` one whole wave joins it if more than one is there."""
    tiles = tiles_m * tiles_n
    if programs == 0:
        return data_parallel(tiles_m, tiles_n, iters_per_tile)
    sk_tiles = tiles % programs
    if two_tiles and tiles - sk_tiles > programs:
        sk_tiles += programs
    return Schedule(tiles_m, tiles_n, iters_per_tile, programs, sk_tiles)


def data_parallel(tiles_m: int, tiles_n: int, iters_per_tile: int) -> Schedule:
    """One program a tile."""
    return Schedule(tiles_m, tiles_n, iters_per_tile, 0, 0)


def split_k(tiles_m: int, tiles_n: int, iters_per_tile: int, split: int) -> Schedule:
    """Each tile's iterations cut into `split` ranges, as equal as can be, one program a range.

    Every cut falls on the same iteration of each tile, which the even share does only when `split` divides
    `iters_per_tile`; otherwise the ranges of one tile differ by one iteration, as in the kernel.
    """
    return SplitSchedule(tiles_m, tiles_n, iters_per_tile, tiles_m * tiles_n * split, tiles_m * tiles_n, split)


@dataclass(frozen=True)
class SplitSchedule(Schedule):
    """A fixed split: program `tile * split + part` does one range of one tile."""

    split: int = 1

    def share(self, program: int) -> tuple[int, int]:
        tile, part = divmod(program, self.split)
        base, longer = divmod(self.iters_per_tile, self.split)
        start = tile * self.iters_per_tile + part * base + min(part, longer)
        return start, start + base + (part < longer)

    def peers(self, tile: int) -> range:
        return range(tile * self.split, tile * self.split + min(self.split, self.iters_per_tile))


MOST_RANGES = 32
"""K ranges of a tile beyond which the addition of partial sums costs more than the ranges save."""
FIX_UP_ITERATIONS = 1.5
"""What one more K range of a shared tile costs, in MAC iterations, where nothing better is known."""


def whole_waves(
    tiles_m: int, tiles_n: int, iters_per_tile: int, programs: int, split: int | None = None
) -> WaveSchedule:
    """Whole waves of tiles first, then each remaining tile in `split` equal K ranges, range by range.

    `split` of None takes the number of ranges that `best_split` finds; 1 leaves the last wave as it is.
    """
    tiles = tiles_m * tiles_n
    programs = programs or max(tiles, 1)
    remaining = tiles % programs
    ranges = min(best_split(remaining, programs, iters_per_tile) if split is None else split, max(iters_per_tile, 1))
    shared = remaining if ranges > 1 else 0
    return WaveSchedule(tiles_m, tiles_n, iters_per_tile, programs, shared, ranges if shared else 1)


def best_split(remaining: int, programs: int, iters_per_tile: int) -> int:
    """The number of K ranges that ends `remaining` tiles (fewer than `programs`) soonest, counted in MAC iterations."""

    def iterations(ranges: int) -> float:
        rounds = cdiv(remaining * ranges, programs)
        return rounds * cdiv(iters_per_tile, ranges) + FIX_UP_ITERATIONS * ranges * (ranges > 1)

    return min(range(1, min(MOST_RANGES, max(iters_per_tile, 1)) + 1), key=iterations)


@dataclass(frozen=True)
class WaveSchedule(Schedule):
    """Units of work that programs take in turn: unit u is done by program u mod `programs`, in ascending order.

    The units are first the whole tiles, then for each K range in turn that range of every shared tile, so that all
    programs are always at about the same place of K. `split`: K ranges of a shared tile.
    """

    split: int = 1

    @property
    def units(self) -> int:
        return self.dp_tiles + self.sk_tiles * self.split

    @property
    def most_peers(self) -> int:
        """Peers of a shared tile: the partial sums kept for each."""
        return self.split

    def segments(self, program: int) -> tuple[Segment, ...]:
        return tuple(self.unit(number) for number in range(program, self.units, self.programs))

    def unit(self, number: int) -> Segment:
        """The segment that a unit of work is."""
        if number < self.dp_tiles:
            return Segment(self.sk_tiles + number, 0, self.iters_per_tile)
        part, tile = divmod(number - self.dp_tiles, self.sk_tiles)
        base, longer = divmod(self.iters_per_tile, self.split)
        start = part * base + min(part, longer)
        return Segment(tile, start, start + base + (part < longer))

    def by_program(self) -> Iterator[tuple[Segment, ...]]:
        return (self.segments(program) for program in range(min(self.programs, self.units)))

    def peers(self, tile: int) -> tuple[int, ...]:
        """The programs of a shared tile's ranges in the ranges' order; one may be there twice."""
        return tuple((self.dp_tiles + part * self.sk_tiles + tile) % self.programs for part in range(self.split))


MOST_SLABS = 16
"""Slabs of a tile: more make shares more even, and spread the programs over more places of K at a moment."""


def even_slabs(
    tiles_m: int, tiles_n: int, iters_per_tile: int, programs: int, split: int | None = None, two_tiles: bool = True
) -> SlabSchedule:
    """Whole waves of tiles, then the remaining ones cut into `split` slabs of K, as many for every program.

    With `two_tiles` one whole wave, where there is one, is shared with the remaining tiles. `split` of None takes the
    fewest slabs that come within 2 % of an even share.
    """
    tiles = tiles_m * tiles_n
    programs = programs or max(tiles, 1)
    remaining = tiles % programs
    if two_tiles and remaining and tiles >= programs:
        remaining += programs
    most = max(min(MOST_SLABS, iters_per_tile), 1)

    def longest(slabs: int) -> float:
        return cdiv(remaining * slabs, programs) / slabs

    if split is None:
        least = min(longest(slabs) for slabs in range(1, most + 1))
        split = next(slabs for slabs in range(1, most + 1) if longest(slabs) <= 1.02 * least)
    slabs = min(split, max(iters_per_tile, 1))
    return SlabSchedule(tiles_m, tiles_n, iters_per_tile, programs, remaining, slabs)


@dataclass(frozen=True)
class SlabSchedule(Schedule):
    """Program p does the slabs [p * slab_share, (p + 1) * slab_share) of the shared tiles, counted tile by tile, after
    its whole tiles. `slabs`: of a tile; slab s has the MAC iterations from s * iters_per_tile // slabs on."""

    slabs: int = 1

    @property
    def slab_share(self) -> int:
        """Slabs of a program; the last programs may have fewer or none."""
        return max(cdiv(self.sk_tiles * self.slabs, self.programs), 1)

    @property
    def busy_programs(self) -> int:
        """Programs that have anything to do."""
        return min(self.programs, max(self.dp_tiles, cdiv(self.sk_tiles * self.slabs, self.slab_share)))

    @property
    def most_peers(self) -> int:
        """Peers that a tile may have: the partial sums kept for each."""
        return (self.slabs - 1) // self.slab_share + 2

    def segments(self, program: int) -> tuple[Segment, ...]:
        whole = range(self.sk_tiles + program, self.tiles, self.programs)
        found = [Segment(tile, 0, self.iters_per_tile) for tile in whole]
        slab, end = program * self.slab_share, min((program + 1) * self.slab_share, self.sk_tiles * self.slabs)
        while slab < end:
            tile = slab // self.slabs
            cut = min((tile + 1) * self.slabs, end)
            found.append(Segment(tile, self._iteration(slab, tile), self._iteration(cut, tile)))
            slab = cut
        return tuple(found)

    def _iteration(self, slab: int, tile: int) -> int:
        return (slab - tile * self.slabs) * self.iters_per_tile // self.slabs

    def by_program(self) -> Iterator[tuple[Segment, ...]]:
        return (self.segments(program) for program in range(self.busy_programs))

    def peers(self, tile: int) -> range:
        first, last = tile * self.slabs // self.slab_share, ((tile + 1) * self.slabs - 1) // self.slab_share
        return range(first, last + 1)


MOST_CTAS = 8
"""CTAs of a cluster that every Hopper GPU can hold (CUDA C++ Programming Guide, thread block clusters)."""


def cluster_ranges(
    tiles_m: int, tiles_n: int, iters_per_tile: int, processors: int, split: int | None = None
) -> ClusterSchedule:
    """One cluster a tile, of `split` CTAs among which its MAC iterations are dealt in turn.

    `split` of None takes the largest power of two for which all clusters fit on the `processors` at once.
    """
    tiles = tiles_m * tiles_n
    if split is None:
        fitting = max(min(processors // max(tiles, 1), iters_per_tile, MOST_CTAS), 1)
        split = 1 << fitting.bit_length() - 1
    return ClusterSchedule(tiles_m, tiles_n, iters_per_tile, tiles * split, tiles if split > 1 else 0, split)


@dataclass(frozen=True)
class ClusterSchedule(Schedule):
    """Program `tile * split + rank` is the CTA `rank` of a tile's cluster, with the iterations rank, rank + split, …"""

    split: int = 1

    def segments(self, program: int) -> tuple[Segment, ...]:
        tile, rank = divmod(program, self.split)
        return tuple(Segment(tile, i, i + 1) for i in range(rank, self.iters_per_tile, self.split))

    def by_program(self) -> Iterator[tuple[Segment, ...]]:
        return (self.segments(program) for program in range(self.programs))

    def peers(self, tile: int) -> range:
        return range(tile * self.split, tile * self.split + min(self.split, self.iters_per_tile))


def tile_coordinates(tile: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of a tile in the linear (`group_m = 0`) or the swizzled order, as the kernels number them."""
    if group_m == 0:
        return divmod(tile, tiles_n)
    group, inside = divmod(tile, group_m * tiles_n)
    rows = min(tiles_m - group * group_m, group_m)
    return group * group_m + inside % rows, inside // rows
