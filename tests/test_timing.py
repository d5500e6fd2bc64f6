"""What a sample is: device time alone, L2 flushed, candidates interleaved in a fresh random order."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

import variants
from common.launcher import prepare
from common.problem import Problem, make_inputs
from common.timing import (
    CALM,
    HEAD_WRITES,
    MOST_QUEUED,
    MOST_TRIES,
    MOST_WRITES,
    Stopwatch,
    Timed,
    do_bench_means,
    empty_kernel,
    orders,
)


def test_every_round_holds_every_candidate_once_in_another_order() -> None:
    rounds = list(orders(20, 9, 123))
    assert len(rounds) == 9
    assert all(sorted(order) == list(range(20)) for order in rounds)
    assert len({tuple(order) for order in rounds}) == 9


def test_orders_are_seeded_and_change_with_the_seed() -> None:
    assert list(orders(20, 9, "123 64x64x64")) == list(orders(20, 9, "123 64x64x64"))
    assert list(orders(20, 9, "123 64x64x64")) != list(orders(20, 9, "123 64x64x128"))


def test_no_candidate_has_a_favourite_predecessor() -> None:
    followed = Counter((a, b) for order in orders(4, 3000, 0) for a, b in pairwise(order))
    assert len(followed) == 12
    assert max(followed.values()) < 1.25 * min(followed.values())


class SlowGraph:
    """A graph that the host is late to queue, the first few times."""

    def __init__(self, graph: torch.cuda.CUDAGraph, late: int) -> None:
        self.graph, self.late = graph, late

    def replay(self) -> None:
        if self.late:
            self.late -= 1
            time.sleep(0.02)
        self.graph.replay()


class FakeEvent:
    """An event that the GPU has reached when it is asked, if its turn in `late` says so; 7 us lie between any two."""

    def __init__(self, late: list[bool]) -> None:
        self.late = late

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return self.late.pop(0) if self.late else False

    def elapsed_time(self, other: FakeEvent) -> float:
        return 0.007


class FakeBuffer:
    """Counts the writes of the flush."""

    writes = 0

    def zero_(self) -> None:
        self.writes += 1


class FakeGraph:
    """Counts replays."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


def fake_watch(monkeypatch: pytest.MonkeyPatch, late: list[bool]) -> Stopwatch:
    """A stopwatch without a GPU, whose samples are late as `late` says, in the order in which they are queued."""
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(late))
    watch = object.__new__(Stopwatch)
    watch.stream, watch._buffer, watch._events = None, FakeBuffer(), []
    watch.flush_writes, watch.most_writes, watch.retaken, watch._calm = 1, 1, 0, 0
    return watch


def test_late_samples_alone_are_taken_again_with_longer_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    second = [False, True, False, False, False, False, False, False]
    watch = fake_watch(monkeypatch, [False] * 8 + second + [False] * 8 + [True])
    timed = [Timed(FakeGraph()) for _ in range(8)]
    watch.interleave(timed, 2, 0)
    assert [one.samples for one in timed] == [[7.0, 7.0]] * 8
    assert watch.retaken == 2 and watch.flush_writes == 1
    assert sum(one.graph.replays for one in timed) == 3 * 8 + 2
    assert watch._buffer.writes == 3 * HEAD_WRITES + 3 * 8 + 2 + 3


def test_a_host_that_keeps_being_late_gets_a_longer_flush_and_in_the_end_an_error(monkeypatch) -> None:
    watch = fake_watch(monkeypatch, [True, True, False])
    watch.interleave([Timed(FakeGraph()) for _ in range(2)], 1, 0)
    assert watch.flush_writes == watch.most_writes == 2
    watch = fake_watch(monkeypatch, [True] * 1000)
    with pytest.raises(RuntimeError, match="late to queue"):
        watch.interleave([Timed(FakeGraph())], 1, 0)
    assert watch._buffer.writes > MOST_TRIES * (HEAD_WRITES + MOST_WRITES)


def test_a_flush_that_one_slow_moment_made_long_gets_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it stayed long for the rest of a sweep of four candidates: 16 writes a sample, most of the sweep's time."""
    watch = fake_watch(monkeypatch, [True] * 100)
    timed = [Timed(FakeGraph()) for _ in range(4)]
    for _ in range(2):
        watch.once(timed, [0, 1, 2, 3])
    longest = watch.flush_writes
    for _ in range(CALM * MOST_WRITES):
        watch.once(timed, [0, 1, 2, 3])
    assert longest > 1 and watch.most_writes == longest and watch.flush_writes == 1
    before = watch._buffer.writes
    watch.interleave(timed, 5, 0)
    assert watch._buffer.writes - before == HEAD_WRITES + 6 * 4


def test_all_rounds_are_queued_together_and_a_sample_goes_to_whose_replay_it_was(monkeypatch) -> None:
    watch = fake_watch(monkeypatch, [])
    clock = iter(range(1, 10_000))
    monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, other: next(clock) / 1000)
    timed = [Timed(FakeGraph()) for _ in range(50)]
    watch.interleave(timed, 3, 9)
    assert watch._buffer.writes == -(-200 // MOST_QUEUED) * HEAD_WRITES + 200
    for number, order in enumerate(orders(50, 3, 9), 1):
        for place, position in enumerate(order, 1):
            assert timed[position].samples[number - 1] == pytest.approx(50 * number + place)


def test_whoever_the_host_waits_for_is_told_in_the_order_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, told = fake_watch(monkeypatch, []), []
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self: told.append("wait"))
    watch.interleave([Timed(FakeGraph()) for _ in range(100)], 1, 3, told.append)
    warm, order = list(range(100)), next(orders(100, 1, 3))
    assert told == [x for position in warm + order for x in (position, "wait")]


@pytest.mark.gpu
def test_python_inside_a_call_is_not_measured() -> None:
    def call() -> None:
        time.sleep(0.02)
        empty_kernel[(1,)]()

    watch = Stopwatch()
    timed = watch.capture(call)
    watch.interleave([timed], 25, 0)
    assert 0 < sorted(timed.samples)[12] < 20


@pytest.mark.gpu
def test_a_sample_that_the_host_queued_too_late_is_taken_again() -> None:
    watch = Stopwatch()
    late = Timed(SlowGraph(watch.capture(lambda: empty_kernel[(1,)]()).graph, late=4))
    watch.interleave([late], 3, 0)
    assert watch.retaken >= 4
    assert max(late.samples) < 5000


@pytest.mark.gpu
def test_few_short_kernels_need_one_write_a_flush() -> None:
    """The head start is enough for the host to stay in front, also where a problem has few candidates."""
    watch, problems, rounds = Stopwatch(), 100, 5
    for number in range(problems):
        watch.interleave([watch.capture(lambda: empty_kernel[(1,)]()) for _ in range(4)], rounds, number)
    assert watch.retaken < 0.05 * problems * (rounds + 1) * 4
    assert watch.flush_writes <= 2


@triton.jit
def chase(table, out, steps):
    """Loads that each wait for the one before: their time is the latency of where the table lies."""
    position = tl.load(table)
    for _ in range(steps):
        position = tl.load(table + position)
    tl.store(out, position)


@pytest.mark.gpu
def test_the_l2_is_flushed_between_replays() -> None:
    size = 1 << 21
    table = (torch.arange(size, dtype=torch.int32, device="cuda") + 65537) % size
    out = torch.empty(1, dtype=torch.int32, device="cuda")
    watch = Stopwatch()

    def call() -> None:
        chase[(1,)](table, out, 1000, num_warps=1)

    def twice() -> None:
        call()
        call()

    with torch.cuda.stream(watch.stream):
        call()
    torch.cuda.synchronize()
    timed = [watch.capture(call), watch.capture(twice)]
    watch.interleave(timed, 25, 0)
    once, both = (sorted(t.samples)[12] for t in timed)
    assert both - once < 0.8 * once  # the second pass finds the table in the L2, the first never does


@pytest.mark.gpu
def test_graphs_that_share_a_pool_do_not_share_results() -> None:
    problem = Problem(256, 384, 512)
    watch = Stopwatch()
    torch.cuda.set_stream(watch.stream)
    try:
        a, b = make_inputs(problem, values="integers", device="cuda")
        found = []
        for name in ("v02", "v05", "v06", "v08", "split_k", "torch_matmul"):
            variant = variants.get(name)
            config = variant.card.default.replace(block=(64, 64, 64), num_warps=4, full_tiles_warps=4, programs=17)
            prepared = prepare(variant, a, b, config=config)
            prepared.run()
            found.append((prepared, watch.capture(prepared.run)))
        for prepared, _ in found:
            prepared.out.fill_(float("nan"))
        watch.interleave([timed for _, timed in found], 9, 0)
        exact = a.double() @ b.double()
        for prepared, timed in found:
            assert len(timed.samples) == 9
            assert torch.equal(prepared.out.double(), exact), prepared.variant.name
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())


@pytest.mark.gpu
def test_do_bench_measures_the_host_and_keeps_order() -> None:
    def slow() -> None:
        time.sleep(0.002)
        empty_kernel[(1,)]()

    turns: list[int] = []
    quick, late = do_bench_means([lambda: empty_kernel[(1,)](), slow], 2, 0, turns.append)
    assert len(quick) == len(late) == 2
    assert min(late) > 1000 > max(quick)
    assert sorted(turns) == [0, 0, 1, 1]
