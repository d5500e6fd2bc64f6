"""The decompositions: every MAC iteration exactly once, even shares, at most three segments a program."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import decomposition
from common.decomposition import (
    Schedule,
    always_two_tile,
    best_split,
    cdiv,
    optional_two_tile,
    split_k,
    tile_coordinates,
    whole_waves,
)

sizes = st.integers(1, 24)
settings.register_profile("zoo", deadline=None, max_examples=200)
settings.load_profile("zoo")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    shape = draw(sizes), draw(sizes), draw(st.integers(1, 40))
    kind = draw(st.sampled_from(["always", "optional", "one_tile", "split"]))
    programs = draw(st.integers(0, 300))
    if kind == "always":
        return always_two_tile(*shape, programs)
    if kind == "split":
        return split_k(*shape, draw(st.integers(1, shape[2])))
    return optional_two_tile(*shape, programs, two_tiles=kind == "optional")


@st.composite
def waves(draw: st.DrawFn) -> Schedule:
    shape = draw(sizes), draw(sizes), draw(st.integers(1, 40))
    return whole_waves(*shape, draw(st.integers(0, 300)), draw(st.none() | st.integers(1, 50)))


@given(schedules() | waves())
def test_every_iteration_of_every_tile_is_done_once(schedule: Schedule) -> None:
    done = [
        (segment.tile, iteration)
        for segments in schedule.by_program()
        for segment in segments
        for iteration in range(segment.start, segment.stop)
    ]
    assert len(done) == len(set(done)) == schedule.tiles * schedule.iters_per_tile


@given(schedules())
def test_segments_of_a_program_are_contiguous_and_cover_its_share(schedule: Schedule) -> None:
    for program in range(schedule.programs if schedule.sk_tiles else 0):
        position, stop = schedule.share(program)
        for segment in schedule.segments(program):
            assert segment.tile * schedule.iters_per_tile + segment.start == position
            position += len(segment)
        assert position == stop


@given(sizes, sizes, st.integers(1, 40), st.integers(1, 300), st.booleans())
def test_shares_differ_by_one_iteration_and_span_at_most_two_tiles_of_work(
    tiles_m: int, tiles_n: int, iters: int, programs: int, two_tiles: bool
) -> None:
    for schedule in (
        always_two_tile(tiles_m, tiles_n, iters, programs),
        optional_two_tile(tiles_m, tiles_n, iters, programs, two_tiles),
    ):
        if not schedule.sk_tiles:
            continue
        lengths = [stop - start for start, stop in map(schedule.share, range(programs))]
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= 2 * iters
        assert max(len(schedule.segments(program)) for program in range(programs)) <= 3


@given(schedules())
def test_peers_are_the_programs_that_have_a_segment_of_the_tile(schedule: Schedule) -> None:
    found: dict[int, list[int]] = {}
    for program in range(schedule.programs if schedule.sk_tiles else 0):
        for segment in schedule.segments(program):
            found.setdefault(segment.tile, []).append(program)
    for tile, programs in found.items():
        assert list(schedule.peers(tile)) == programs
    assert schedule.max_peers == max(map(len, found.values()), default=1)


@given(waves())
def test_whole_waves_come_first_and_ranges_in_step(schedule: Schedule) -> None:
    assert schedule.dp_tiles % schedule.programs == 0 or not schedule.sk_tiles
    rounds = max(len(segments) for segments in schedule.by_program())
    assert rounds == cdiv(schedule.units, schedule.programs)
    found: dict[int, list[tuple[int, int]]] = {}
    for program, segments in enumerate(schedule.by_program()):
        shared = [s for s in segments if s.tile < schedule.sk_tiles]
        assert [s.start for s in shared] == sorted(s.start for s in shared)
        assert segments[len(segments) - len(shared) :] == tuple(shared)
        for segment in shared:
            found.setdefault(segment.tile, []).append((segment.start, program))
    for tile, ranges in found.items():
        assert tuple(program for _, program in sorted(ranges)) == schedule.peers(tile)
        assert len(ranges) == schedule.split == schedule.max_peers


@given(st.integers(1, 131), st.integers(1, 600))
def test_the_best_split_is_never_slower_than_none(remaining: int, iters: int) -> None:
    ranges = best_split(remaining, 132, iters)
    assert 1 <= ranges <= iters
    assert cdiv(remaining * ranges, 132) * cdiv(iters, ranges) <= iters


def test_168_tiles_on_132_programs_in_whole_waves() -> None:
    schedule = whole_waves(12, 14, 94, 132)
    assert (schedule.dp_tiles, schedule.sk_tiles, schedule.split) == (132, 36, 3)
    assert whole_waves(12, 11, 94, 132).split == 1
    assert whole_waves(12, 14, 94, 0).dp_tiles == 168


@given(sizes, sizes, st.integers(1, 8), st.integers(1, 300))
def test_the_two_decompositions_differ_exactly_between_one_and_two_waves(
    tiles_m: int, tiles_n: int, iters: int, programs: int
) -> None:
    tiles = tiles_m * tiles_n
    first = always_two_tile(tiles_m, tiles_n, iters, programs)
    second = optional_two_tile(tiles_m, tiles_n, iters, programs)
    assert (first.sk_tiles != second.sk_tiles) == (programs <= tiles < 2 * programs)
    off = optional_two_tile(tiles_m, tiles_n, iters, programs, two_tiles=False)
    assert (first.sk_tiles != off.sk_tiles) == (tiles >= programs)


def test_168_tiles_on_132_programs() -> None:
    assert always_two_tile(12, 14, 188, 132).sk_tiles == 168
    second = optional_two_tile(12, 14, 188, 132)
    assert (second.sk_tiles, second.dp_tiles) == (36, 132)


def test_programs_equal_to_tiles_is_the_tile_matmul_in_the_second() -> None:
    assert optional_two_tile(4, 8, 512, 32).sk_tiles == 0
    assert always_two_tile(4, 8, 512, 32).sk_tiles == 32


def test_no_programs_makes_every_tile_data_parallel() -> None:
    assert always_two_tile(3, 5, 7, 0).dp_tiles == optional_two_tile(3, 5, 7, 0).dp_tiles == 15


@given(sizes, sizes, st.sampled_from([0, 1, 2, 8]))
def test_each_order_visits_every_tile_once(tiles_m: int, tiles_n: int, group_m: int) -> None:
    visited = {tile_coordinates(tile, tiles_m, tiles_n, group_m) for tile in range(tiles_m * tiles_n)}
    assert visited == {(row, column) for row in range(tiles_m) for column in range(tiles_n)}


def test_a_swizzled_group_goes_column_by_column_and_the_last_group_is_shorter() -> None:
    order = [tile_coordinates(tile, 10, 3, decomposition.GROUP_M) for tile in range(30)]
    assert order[:9] == [(row, 0) for row in range(8)] + [(0, 1)]
    assert order[24:28] == [(8, 0), (9, 0), (8, 1), (9, 1)]


@pytest.mark.parametrize("split", [1, 3, 7])
def test_split_k_cuts_every_tile_alike(split: int) -> None:
    schedule = split_k(2, 2, 7, split)
    for tile in range(4):
        cuts = [schedule.segments(tile * split + part)[0] for part in range(split)]
        assert [cut.start for cut in cuts] == [
            cut.start for cut in map(lambda p: schedule.segments(p)[0], range(split))
        ]
        assert cuts[0].start == 0 and cuts[-1].stop == 7


@pytest.mark.parametrize("two_tiles", [False, True])
@pytest.mark.parametrize("split", [1, 2, 3, 11, 16, None])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (6, 6, 40), (12, 14, 94), (12, 11, 20), (40, 30, 5)])
def test_slabs_are_shared_evenly_and_done_once(shape: tuple[int, int, int], split: int | None, two_tiles: bool) -> None:
    schedule = decomposition.even_slabs(*shape, 132, split, two_tiles)
    done = [
        (tile, i) for p in schedule.by_program() for tile, start, stop in map(astuple, p) for i in range(start, stop)
    ]
    tiles, iters = shape[0] * shape[1], shape[2]
    assert sorted(done) == [(tile, i) for tile in range(tiles) for i in range(iters)]
    assert schedule.slabs <= iters
    for tile in range(schedule.sk_tiles):
        own = [p for p, mine in enumerate(schedule.by_program()) if tile in {s.tile for s in mine}]
        assert own == list(schedule.peers(tile))
        assert len(own) <= schedule.most_peers
    waves = schedule.dp_tiles // 132
    assert schedule.dp_tiles % 132 == 0 or not schedule.sk_tiles
    for mine in schedule.by_program():
        slabs = sum(len(s) for s in mine) / iters - waves
        assert slabs <= schedule.slab_share / schedule.slabs + 1 / iters or not schedule.sk_tiles


@pytest.mark.parametrize("split", [1, 2, 4, 8, None])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (6, 6, 40)])
def test_a_cluster_deals_its_tile_out(shape: tuple[int, int, int], split: int | None) -> None:
    schedule = decomposition.cluster_ranges(*shape, 132, split)
    done = [(s.tile, s.start) for p in schedule.by_program() for s in p]
    assert sorted(done) == [(tile, i) for tile in range(shape[0] * shape[1]) for i in range(shape[2])]
    assert len(done) == len(set(done))
    assert split or schedule.programs <= 132
