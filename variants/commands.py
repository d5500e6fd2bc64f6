"""The command line of the zoo: `python -m variants list | show | run | trace | explore | compile | diff | goldens`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import variants
from common import interpreter
from common.card import Config
from common.errors import (
    NoDevice,
    UnsupportedProblem,
)
from common.launcher import Prepared, Variant, compiled_kernel, prepare
from common.output import destination, width
from common.problem import Problem, make_inputs
from common.reference import reference, roundings
from variants import compile_commands
from variants.compile_commands import parse_block
from variants.exploring import explore

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)
app.command()(explore)
compile_commands.register(app)
console = Console(width=width(compile_commands.WIDTH))

Name = Annotated[str, typer.Argument(help="a number (v05), a module's name, or any unambiguous part of one")]
M = Annotated[int, typer.Option("--m", help="rows of A and C")]
N = Annotated[int, typer.Option("--n", help="columns of B and C")]
K = Annotated[int, typer.Option("--k", help="columns of A, rows of B")]
Programs = Annotated[int | None, typer.Option(help="Stream-K programs; default one an SM, 0 for none")]
Block = Annotated[str | None, typer.Option(help="BLOCK_MxBLOCK_NxBLOCK_K, default the card's")]
Warps = Annotated[int | None, typer.Option(help="warps of the first wave")]
Stages = Annotated[int | None, typer.Option(help="pipeline stages of the first wave")]
TwoTiles = Annotated[bool, typer.Option("--two-tiles/--no-two-tiles", help="v08: a whole wave joins")]
TileOrder = Annotated[str | None, typer.Option(help="tile order: swizzled or linear")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the normal inputs")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


@app.command("list")
def list_variants(as_json: Json = False) -> None:
    """List every variant in the thread's order, then the baselines, from their cards."""
    found = [variants.get(name) for name in variants.all_names()]
    if as_json:
        print(json.dumps([{"name": v.name, "source_hash": v.source_hash, **v.card.as_dict()} for v in found], indent=1))
        return
    table = Table(box=box.SIMPLE)
    for column in ("variant", "thread", "idea", "fix-up", "waits for"):
        table.add_column(column, no_wrap=column == "variant")
    for v in found:
        table.add_row(v.name, v.card.position, v.card.idea, v.card.fix_up, v.card.waits_for)
    console.print(table)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a variant's card and its source."""
    v = variants.get(name)
    if as_json:
        print(
            json.dumps({"name": v.name, "source_hash": v.source_hash, **v.card.as_dict(), "source": v.source}, indent=1)
        )
        return
    print(v.source)


@app.command()
def run(
    name: Name,
    m: M,
    n: N,
    k: K,
    programs: Programs = None,
    block: Block = None,
    warps: Warps = None,
    stages: Stages = None,
    two_tiles: TwoTiles = True,
    order: TileOrder = None,
    seed: Seed = 123,
    interpret: Annotated[bool, typer.Option("--interpret", help="run in Triton's interpreter on the CPU")] = False,
    strict_residency: Annotated[bool, typer.Option(help="refuse grids that rely on dispatch order")] = False,
    as_json: Json = False,
) -> None:
    """Run one variant on seeded inputs, check it against float64 and print what the thread's `debug` printed."""
    v = variants.get(name)
    _choose_device(interpret)
    config = _config(v, programs, block, warps, stages, two_tiles, order)
    device = "cpu" if interpreter.interpreting() else "cuda"
    a, b, out = _operands(Problem(m, n, k), seed, device)
    prepared = prepare(v, a, b, out, config, strict_residency=strict_residency)
    prepared.run()
    report = _report(v, prepared)
    check = reference(a, b).check(prepared.out, roundings(v.card, prepared.schedule))
    report |= {"status": "ok" if check.ok else "incorrect", "error": check.error, "tolerance": check.tolerance}
    print(json.dumps(report, indent=1)) if as_json else _print_report(report)
    raise SystemExit(0 if check.ok else 1)


def _operands(problem: Problem, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and a C full of NaN. Raises UnsupportedProblem where memory does not hold them."""
    try:
        a, b = make_inputs(problem, seed, device=device)
        return a, b, torch.full((problem.m, problem.n), float("nan"), dtype=a.dtype, device=device)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise UnsupportedProblem(f"{problem.m}x{problem.n}x{problem.k} does not fit in memory ({reason})") from error


def _choose_device(interpret: bool) -> None:
    """Go on in a process that interprets, if that is asked for. Raises NoDevice where nothing can run."""
    if interpret and not interpreter.interpreting():
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        raise SystemExit(subprocess.run([sys.executable, "-m", "variants", *sys.argv[1:]], env=environment).returncode)
    if not interpreter.interpreting() and not torch.cuda.is_available():
        raise NoDevice("no NVIDIA GPU was found: add --interpret to run on the CPU, or use `compile` and `diff`")
    if interpreter.interpreting():
        interpreter.require_interpreter()


def _config(
    v: Variant,
    programs: int | None,
    block: str | None,
    warps: int | None,
    stages: int | None,
    two_tiles: bool,
    order: str | None,
) -> Config:
    """The card's default with what the command line says."""
    changes: dict[str, Any] = {"programs": programs, "num_warps": warps, "num_stages": stages, "order": order}
    changes = {key: value for key, value in changes.items() if value is not None} | {"two_tiles": two_tiles}
    if block is not None:
        changes["block"] = parse_block(block)
    return v.card.default.replace(**changes)


@app.command()
def trace(
    name: Name,
    m: M,
    n: N,
    k: K,
    programs: Programs = None,
    block: Block = None,
    warps: Warps = None,
    stages: Stages = None,
    two_tiles: TwoTiles = True,
    order: TileOrder = None,
    rounds: Annotated[int, typer.Option(min=1, help="launches, of which the one of median length is kept")] = 15,
    seed: Seed = 123,
    out: Annotated[
        Path | None,
        typer.Option(help="where the timeline goes; default experiments/results, interpreted experiments/dry_runs"),
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="print the traced copy's source and launch nothing")] = False,
    interpret: Annotated[bool, typer.Option("--interpret", help="trace in the interpreter: order, no times")] = False,
    as_json: Json = False,
) -> None:
    """Record when each segment of each program ran, on which SM, and how long it waited; write a Perfetto file.

    The kernels are copies with clock reads, generated from the variant's source; what that costs is reported. Open the
    file in https://ui.perfetto.dev, or say `python -m figures.timeline FILE`; an interpreter's trace, which has no
    times, opens in Perfetto alone.
    """
    from common import recording, tracing

    v = variants.get(name)
    if source:
        print(tracing.traced_source(v.source, v.name, interpret))
        return
    _choose_device(interpret)
    config = _config(v, programs, block, warps, stages, two_tiles, order)
    folder = destination(out, interpreter.interpreting())
    timeline = recording.record(v, Problem(m, n, k), config, rounds, seed)
    path = timeline.write(folder)
    keys = ("device", "config", "overhead", "as_planned", "cycles_per_ns", "timer_step_ns")
    known = {key: timeline.facts[key] for key in keys if key in timeline.facts}
    report = {"file": str(path), **known, **timeline.summary()}
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        report |= {"device": timeline.facts["device"]["name"], "config": config.label()}
        for key, value in report.items():
            console.print(f"{key.replace('_', ' '):26} {value}", highlight=False, soft_wrap=True)
    if not timeline.facts["as_planned"]:
        print("the segments that ran are not those of the plan", file=sys.stderr)
        raise SystemExit(1)


def _report(v: Variant, prepared: Prepared) -> dict[str, Any]:
    schedule, a = prepared.schedule, prepared.a
    kernels = []
    if a.device.type == "cuda" and prepared.out.numel() and a.shape[1]:
        for call in prepared.record():
            compiled = compiled_kernel(call)
            kernels.append({"kernel": call.name, "registers": compiled.n_regs, "n_spills": compiled.n_spills})
    return {
        "variant": v.name,
        "problem": [a.shape[0], prepared.b.shape[1], a.shape[1]],
        "device": torch.cuda.get_device_name() if a.device.type == "cuda" else "interpreter",
        "config": prepared.config.label(),
        "order": prepared.config.order,
        "tiles": schedule.tiles,
        "stream_k_tiles": schedule.sk_tiles,
        "data_parallel_tiles": schedule.dp_tiles,
        "iterations_per_tile": schedule.iters_per_tile,
        "programs": schedule.programs,
        "iterations_per_program": [schedule.full, schedule.full + (schedule.rest > 0)],
        "most_peers_of_a_tile": schedule.max_peers,
        "resident_programs": prepared.resident_programs,
        "relies_on_dispatch_order": prepared.relies_on_dispatch_order,
        "kernels": kernels,
    }


def _print_report(report: dict[str, Any]) -> None:
    for key, value in report.items():
        if key != "kernels":
            console.print(f"{key.replace('_', ' '):26} {value}", highlight=False)
    for kernel in report["kernels"]:
        console.print(
            f"{kernel['kernel']:26} {kernel['registers']} registers, {kernel['n_spills']} spills (local bytes / 4)",
            highlight=False,
        )
