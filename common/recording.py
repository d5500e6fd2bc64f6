"""Records the timeline of a launch: right first, then what tracing costs, then the launch of median length."""

from __future__ import annotations

import datetime
import statistics
from collections import Counter
from typing import Any

import torch

from common import device as device_info
from common.card import Config
from common.errors import UnsupportedProblem, WrongResult
from common.interpreter import interpreting
from common.launcher import Prepared, Variant, prepare
from common.problem import Problem, make_inputs
from common.reference import Reference, reference, roundings
from common.timeline import PREFIX, Timeline, aligned
from common.timing import METHOD, Stopwatch, orders
from common.tracing import Recorder, TracedVariant, traced

Records = list[dict[str, int]]


def record(variant: Variant, problem: Problem, config: Config, rounds: int = 15, seed: int = 123) -> Timeline:
    """The timeline of a variant's launch on seeded inputs, on this process's device.

    Of `rounds` traced launches, each with a cold L2, the one of median length is kept; as many ordinary ones are timed
    in between for the overhead. Raises what `prepare` raises, UnsupportedProblem for a variant without a kernel to
    trace or a problem without a MAC iteration, and WrongResult.
    """
    if not problem.flops:
        raise UnsupportedProblem(f"{problem}: nothing to trace, for with a dimension of 0 there is no MAC iteration")
    copy = traced(variant)
    if interpreting():
        tracing = _prepared(copy, problem, config, seed, "cpu")[0]
        copy.recorder.clear()
        tracing.run()
        return _timeline(tracing, problem, copy.recorder.records(), seed, {"dry_run": True})
    stopwatch = Stopwatch()
    telemetry = device_info.Telemetry(device_info.identity()["uuid"])
    with torch.cuda.stream(stopwatch.stream):
        ordinary, _ = _prepared(variant, problem, config, seed, "cuda")
        tracing, exact = _prepared(copy, problem, config, seed, "cuda")
        clocks = [telemetry.read()[0]]
        times, kept = _replayed(stopwatch, ordinary, tracing, copy.recorder, rounds, seed)
        clocks.append(telemetry.read()[0])
        _checked(tracing, exact)
    middle = sorted(range(rounds), key=times["traced_us"].__getitem__)[rounds // 2]
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    overhead = round(medians["traced_us"] / medians["ordinary_us"] - 1, 4)
    facts = {"timing": METHOD, "sm_clock_mhz": clocks, **times, "overhead": overhead, "shown": middle}
    return _timeline(tracing, problem, copy.recorder.records(kept[middle]), seed, facts)


def _prepared(variant: Variant, problem: Problem, config: Config, seed: int, device: str) -> tuple[Prepared, Reference]:
    """A launch that was made once, on an output full of NaN, and was right."""
    a, b = make_inputs(problem, seed, device=device)
    out = torch.full((problem.m, problem.n), float("nan"), dtype=a.dtype, device=device)
    prepared = prepare(variant, a, b, out, config)
    prepared.run()
    exact = reference(a, b)
    _checked(prepared, exact)
    return prepared, exact


def _checked(prepared: Prepared, exact: Reference) -> None:
    check = exact.check(prepared.out, roundings(prepared.variant.card, prepared.schedule))
    if not check.ok:
        what = "traced copy" if isinstance(prepared.variant, TracedVariant) else "kernel"
        error = f"{check.error:.3g}, allowed is {check.tolerance:.3g}"
        raise WrongResult(f"{prepared.variant.name}: the {what}'s result is off by {error}")


def _replayed(
    stopwatch: Stopwatch, ordinary: Prepared, tracing: Prepared, recorder: Recorder, rounds: int, seed: int
) -> tuple[dict[str, list[float]], list[list[torch.Tensor]]]:
    """Microseconds of both launches, and the buffers of each traced one."""
    graphs = [stopwatch.capture(ordinary.run), stopwatch.capture(tracing.run)]
    times: dict[str, list[float]] = {"ordinary_us": [], "traced_us": []}
    kept = []
    stopwatch.once(graphs, [0, 1])
    for order in orders(2, rounds, seed):
        recorder.clear()
        samples = dict(zip(order, stopwatch.once(graphs, order), strict=True))
        for which, name in enumerate(times):
            times[name].append(round(samples[which], 2))
        kept.append([buffer.clone() for buffer in recorder.buffers])
    return times, kept


def _timeline(tracing: Prepared, problem: Problem, records: Records, seed: int, more: dict[str, Any]) -> Timeline:
    schedule, variant, now = tracing.schedule, tracing.variant, datetime.datetime.now(datetime.UTC)
    spans, how = aligned(records, schedule.iters_per_tile)
    planned = Counter((p, s.tile, s.start, s.stop) for p, row in enumerate(schedule.by_program()) for s in row)
    commit, dirty = device_info.commit()
    facts = {
        "trace": f"{PREFIX}{variant.name}-{problem}-{now:%Y%m%d-%H%M%S}",
        "variant": variant.name,
        "source_hash": variant.source_hash,
        "problem": [problem.m, problem.n, problem.k],
        "config": dict(tracing.config.__dict__),
        "tiles": [schedule.tiles_m, schedule.tiles_n],
        "iterations_per_tile": schedule.iters_per_tile,
        "stream_k_tiles": schedule.sk_tiles,
        "as_planned": planned == Counter((s.program, s.tile, s.start, s.stop) for s in spans),
        "inputs": f"standard normal, seed {seed}",
        "date": now.isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "device": device_info.identity(),
        "versions": device_info.versions(),
        **how,
        **more,
    }
    return Timeline(facts, spans)
