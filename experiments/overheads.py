"""What is paid beside the multiplication: the host's part of a call like one before, and putting a tile together.

Both are asked on a GPU that does nothing else, and by a process that has the CPU to itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import variants
from common import documents
from common.card import Config
from common.decomposition import Schedule
from common.errors import WrongResult
from common.launcher import Prepared, Variant, prepare
from common.problem import Problem, make_inputs
from common.reference import reference
from common.residency import IDLE_SMS, clusters
from common.timing import METHOD, Stopwatch

KINDS = ("host_time", "fix_up")
SHAPES = ((128, 128, 256), (512, 512, 512), (256, 1024, 1024), (1536, 1792, 384))
"""Problems whose kernels take no longer than the host needs for a call, so that no queue fills."""
CALLS, BATCHES = 50, 40
PEERS = (2, 3, 4, 6, 8, 12, 16)
FIXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "v10 128x128x64": ("v10", {}),
    "v10 64x64x64": ("v10", {"block": (64, 64, 64), "num_stages": 8}),
    "v11 128x128x64": ("v11", {"block": (128, 128, 64), "num_warps": 8, "num_stages": 6}),
    "v11 64x64x64": ("v11", {"block": (64, 64, 64), "num_stages": 8}),
    "v20 128x128x64": ("v20", {"block": (128, 128, 64), "num_warps": 8, "num_stages": 6}),
    "v20 64x64x64": ("v20", {"block": (64, 64, 64), "num_stages": 8}),
}
"""The kernels and tiles whose fix-up is timed: through L2, and in the shared memory of a cluster, which has 2, 4 or 8
peers."""
ITERATIONS, ROUNDS = 16, 25
"""MAC iterations of each K range, samples of each."""


def host_time() -> list[dict[str, Any]]:
    """A record a problem: microseconds of the host for each of BATCHES means of CALLS calls of `variants.matmul`.

    `library_us`: of `torch.matmul`, in turn with it.
    """
    found = []
    for shape in SHAPES:
        a, b = make_inputs(Problem(*shape), device="cuda")
        times: dict[str, list[float]] = {"us": [], "library_us": []}
        calls = {"us": variants.matmul, "library_us": torch.matmul}
        for call in calls.values():
            call(a, b)
        for _ in range(BATCHES):
            for name, call in calls.items():
                times[name].append(_host_us(functools.partial(call, a, b)))
        found.append({"problem": list(shape), **times})
    return found


def _host_us(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return round((time.perf_counter() - began) / CALLS * 1e6, 2)


def fixer(name: str) -> tuple[Variant, Config]:
    """One of FIXERS."""
    number, changes = FIXERS[name]
    variant = variants.get(number)
    return variant, variant.card.default.replace(**changes)


def in_clusters(variant: Variant) -> bool:
    """Whether a tile's peers are the CTAs of a cluster."""
    return variant.card.decomposition == "cluster_ranges"


def peers_of(name: str) -> list[int]:
    """The PEERS that a fixer can have."""
    variant, _ = fixer(name)
    return [peers for peers in PEERS if not in_clusters(variant) or peers in IDLE_SMS]


def pair(name: str, peers: int, sms: int) -> tuple[Problem, Problem]:
    """Two problems of as many units of ITERATIONS MAC iterations, one an SM at most: of the first, `peers` make a tile;
    of the second, each is one."""
    variant, config = fixer(name)
    block_m, block_n, block_k = config.block
    tiles = clusters(sms, peers) if in_clusters(variant) else sms // peers
    deep = Problem(tiles * block_m, block_n, ITERATIONS * block_k * peers)
    return deep, Problem(tiles * peers * block_m, block_n, ITERATIONS * block_k)


def fix_up() -> list[dict[str, Any]]:
    """A record for each of FIXERS and PEERS: microseconds, round by round, that tiles of so many peers take longer than
    whole ones of as many units and iterations.

    A and B of both are read once from memory with a cold L2; B is `peers` times as large where tiles are shared, which
    counts as fix-up here. Raises WrongResult.
    """
    sms = torch.cuda.get_device_properties().multi_processor_count
    stopwatch, found = Stopwatch(), []
    for name, peers in [(fixed, count) for fixed in FIXERS for count in peers_of(fixed)]:
        problems = pair(name, peers, sms)
        variant, config = fixer(name)
        configs = (config.replace(split=peers), config.replace(split=1))
        shared, whole = samples(stopwatch, variant, configs, problems, peers)
        record = {"fixer": name, "peers": peers, "us": [round(x - y, 2) for x, y in zip(shared, whole, strict=True)]}
        found.append(record | {"problems": [[p.m, p.n, p.k] for p in problems], "shared_us": shared, "whole_us": whole})
    return found


def samples(
    stopwatch: Stopwatch, variant: Variant, configs: Sequence[Config], problems: Sequence[Problem], seed: int
) -> list[list[float]]:
    """Microseconds of ROUNDS launches of each problem with its config, in turn with the others'. Raises as `right`."""
    with torch.cuda.stream(stopwatch.stream):
        launches = [right(variant, config, problem) for config, problem in zip(configs, problems, strict=True)]
        timed = [stopwatch.capture(launch.run) for launch in launches]
        stopwatch.interleave(timed, ROUNDS, seed)
    return [one.samples for one in timed]


def right(variant: Variant, config: Config, problem: Problem) -> Prepared:
    """A launch whose programs have one unit each, after one whose result was right. Raises WrongResult, ValueError."""
    a, b = make_inputs(problem, device="cuda")
    out = torch.full((problem.m, problem.n), torch.nan, dtype=a.dtype, device="cuda")
    prepared = prepare(variant, a, b, out, config)
    if not one_a_program(prepared.schedule, config.split or 1):
        raise ValueError(f"{variant.name}: {problem} in {config.split} ranges is not one unit a program")
    prepared.run()
    check = reference(a, b).check(prepared.out)
    if not check.ok:
        raise WrongResult(f"{variant.name}: {problem} is off by {check.error:.3g}, allowed is {check.tolerance:.3g}")
    return prepared


def one_a_program(schedule: Schedule, split: int) -> bool:
    """Whether every tile has so many K ranges and no program works on two tiles."""
    tiles = [{segment.tile for segment in segments} for segments in schedule.by_program()]
    return schedule.split == split and all(len(some) <= 1 for some in tiles)


def measure(out: Path, on_progress: Callable[[str], None] = print) -> list[Path]:
    """Measure both; return the documents."""
    found = []
    for kind, records in zip(KINDS, (host_time, fix_up), strict=True):
        on_progress(kind.replace("_", " "))
        facts = {"timing": METHOD} if kind == "fix_up" else {"calls": CALLS}
        found.append(documents.write(out, kind, documents.header(**facts), records()))
    return found
