"""What is paid beside the multiplication: the host's part of a call like one before, and putting a tile together.

Both are asked on a GPU that does nothing else, and by a process that has the CPU to itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import variants
from common import documents
from common.decomposition import cdiv
from common.errors import WrongResult
from common.launcher import Prepared, prepare
from common.problem import Problem, make_inputs
from common.reference import reference
from common.timing import METHOD, Stopwatch

KINDS = ("host_time", "fix_up")
SHAPES = ((128, 128, 256), (512, 512, 512), (256, 1024, 1024), (1536, 1792, 384))
"""Problems whose kernels take no longer than the host needs for a call, so that no queue fills."""
CALLS, BATCHES = 50, 40
PEERS = (2, 3, 4, 6, 8, 12, 16)
FIXER, ITERATIONS, ROUNDS = "v10", 16, 25
"""The kernel whose fix-up is timed, the MAC iterations of each K range, samples of each."""


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


def pair(peers: int, sms: int, block: tuple[int, int, int]) -> tuple[Problem, Problem]:
    """Two problems of as many units of ITERATIONS MAC iterations, one a program at most: of the first, `peers` make a
    tile; of the second, each is one."""
    block_m, block_n, block_k = block
    tiles = sms // peers
    deep = Problem(tiles * block_m, block_n, ITERATIONS * block_k * peers)
    return deep, Problem(tiles * peers * block_m, block_n, ITERATIONS * block_k)


def fix_up() -> list[dict[str, Any]]:
    """A record for each of PEERS: microseconds, round by round, that tiles of so many peers take longer than whole ones
    of as many units and iterations.

    A and B of both are read once from memory with a cold L2; B is `peers` times as large where tiles are shared, which
    counts as fix-up here. Raises WrongResult.
    """
    variant = variants.get(FIXER)
    sms = torch.cuda.get_device_properties().multi_processor_count
    stopwatch, found = Stopwatch(), []
    for peers in PEERS:
        problems = pair(peers, sms, variant.card.default.block)
        with torch.cuda.stream(stopwatch.stream):
            launches = [_right(problem, split) for problem, split in zip(problems, (peers, 1), strict=True)]
            timed = [stopwatch.capture(launch.run) for launch in launches]
            stopwatch.interleave(timed, ROUNDS, peers)
        shared, whole = (one.samples for one in timed)
        record = {"peers": peers, "us": [round(x - y, 2) for x, y in zip(shared, whole, strict=True)]}
        found.append(record | {"problems": [[p.m, p.n, p.k] for p in problems], "shared_us": shared, "whole_us": whole})
    return found


def _right(problem: Problem, split: int) -> Prepared:
    variant = variants.get(FIXER)
    a, b = make_inputs(problem, device="cuda")
    out = torch.full((problem.m, problem.n), torch.nan, dtype=a.dtype, device="cuda")
    prepared = prepare(variant, a, b, out, variant.card.default.replace(split=split))
    units = cdiv(problem.m, variant.card.default.block[0]) * split
    if prepared.schedule.split != split or prepared.schedule.programs < units:
        raise ValueError(f"{problem}: {units} units in {split} ranges are not one a program")
    prepared.run()
    check = reference(a, b).check(prepared.out)
    if not check.ok:
        raise WrongResult(f"{variant.name}: {problem} is off by {check.error:.3g}, allowed is {check.tolerance:.3g}")
    return prepared


def measure(out: Path, on_progress: Callable[[str], None] = print) -> list[Path]:
    """Measure both; return the documents."""
    found = []
    for kind, records in zip(KINDS, (host_time, fix_up), strict=True):
        on_progress(kind.replace("_", " "))
        facts = {"timing": METHOD, "variant": FIXER} if kind == "fix_up" else {"calls": CALLS}
        found.append(documents.write(out, kind, documents.header(**facts), records()))
    return found
