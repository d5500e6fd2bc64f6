"""The command line of the zoo: `python -m variants list | show | run | trace | compile | explore`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
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
from common.compilation import compile_variant, target
from common.errors import (
    InvalidExperiment,
    NoDevice,
    NotCoResident,
    UnknownVariant,
    UnsupportedProblem,
    UnsupportedTriton,
    WrongResult,
)
from common.launcher import Prepared, Variant, compiled_kernel, prepare
from common.problem import Problem, make_inputs
from common.reference import reference, roundings
from variants.exploring import explore

OWN_ERRORS = (
    InvalidExperiment,
    NoDevice,
    NotCoResident,
    UnknownVariant,
    UnsupportedProblem,
    UnsupportedTriton,
    WrongResult,
)
app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)
app.command()(explore)
console = Console(width=None if sys.stdout.isatty() else 150)
RESULTS = Path(__file__).parent.parent / "experiments" / "results"

Name = Annotated[str, typer.Argument(help="a number (v05), a module's name, or any unambiguous part of one")]
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


def parse_block(text: str) -> tuple[int, int, int]:
    """`128x128x32` as BLOCK_M, BLOCK_N, BLOCK_K; UnsupportedProblem otherwise."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise UnsupportedProblem(f"block {text!r}: write BLOCK_MxBLOCK_NxBLOCK_K, for example 128x128x32")
    return int(parts[0]), int(parts[1]), int(parts[2])


@app.command()
def run(
    name: Name,
    m: Annotated[int, typer.Option("--m", help="rows of A and C")],
    n: Annotated[int, typer.Option("--n", help="columns of B and C")],
    k: Annotated[int, typer.Option("--k", help="columns of A, rows of B")],
    programs: Annotated[int | None, typer.Option(help="Stream-K programs; default one an SM, 0 for none")] = None,
    block: Annotated[str | None, typer.Option(help="BLOCK_MxBLOCK_NxBLOCK_K, default the card's")] = None,
    warps: Annotated[int | None, typer.Option(help="warps of the first wave")] = None,
    stages: Annotated[int | None, typer.Option(help="pipeline stages of the first wave")] = None,
    two_tiles: Annotated[bool, typer.Option("--two-tiles/--no-two-tiles", help="v08: a whole wave joins")] = True,
    order: Annotated[str | None, typer.Option(help="tile order: swizzled or linear")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the normal inputs")] = 123,
    interpret: Annotated[bool, typer.Option("--interpret", help="run in Triton's interpreter on the CPU")] = False,
    strict_residency: Annotated[bool, typer.Option(help="refuse grids that rely on dispatch order")] = False,
    as_json: Json = False,
) -> None:
    """Run one variant on seeded inputs, check it against float64 and print what the thread's `debug` printed."""
    v = variants.get(name)
    _choose_device(interpret)
    config = _config(v, programs, block, warps, stages, two_tiles, order)
    device = "cpu" if interpreter.interpreting() else "cuda"
    a, b = make_inputs(Problem(m, n, k), seed, device=device)
    out = torch.full((m, n), float("nan"), dtype=a.dtype, device=device)
    prepared = prepare(v, a, b, out, config, strict_residency=strict_residency)
    prepared.run()
    report = _report(v, prepared)
    check = reference(a, b).check(prepared.out, roundings(v.card, prepared.schedule))
    report |= {"status": "ok" if check.ok else "incorrect", "error": check.error, "tolerance": check.tolerance}
    print(json.dumps(report, indent=1)) if as_json else _print_report(report)
    raise SystemExit(0 if check.ok else 1)


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
    m: Annotated[int, typer.Option("--m", help="rows of A and C")],
    n: Annotated[int, typer.Option("--n", help="columns of B and C")],
    k: Annotated[int, typer.Option("--k", help="columns of A, rows of B")],
    programs: Annotated[int | None, typer.Option(help="Stream-K programs; default one an SM, 0 for none")] = None,
    block: Annotated[str | None, typer.Option(help="BLOCK_MxBLOCK_NxBLOCK_K, default the card's")] = None,
    warps: Annotated[int | None, typer.Option(help="warps of the first wave")] = None,
    stages: Annotated[int | None, typer.Option(help="pipeline stages of the first wave")] = None,
    two_tiles: Annotated[bool, typer.Option("--two-tiles/--no-two-tiles", help="v08: a whole wave joins")] = True,
    order: Annotated[str | None, typer.Option(help="tile order: swizzled or linear")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="launches, of which the one of median length is kept")] = 15,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the normal inputs")] = 123,
    out: Annotated[Path, typer.Option(help="where the timeline goes")] = RESULTS,
    source: Annotated[bool, typer.Option("--source", help="print the traced copy's source and launch nothing")] = False,
    interpret: Annotated[bool, typer.Option("--interpret", help="trace in the interpreter: order, no times")] = False,
    as_json: Json = False,
) -> None:
    """Record when each segment of each program ran, on which SM, and how long it waited; write a Perfetto file.

    The kernels are copies with clock reads, generated from the variant's source; what that costs is reported. Open the
    file in https://ui.perfetto.dev, or say `python -m figures.timeline FILE`.
    """
    from common import recording, tracing

    v = variants.get(name)
    if source:
        print(tracing.traced_source(v.source, v.name, interpret))
        return
    _choose_device(interpret)
    config = _config(v, programs, block, warps, stages, two_tiles, order)
    timeline = recording.record(v, Problem(m, n, k), config, rounds, seed)
    path = timeline.write(out)
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


@app.command("compile")
def compile_command(
    names: Annotated[list[str] | None, typer.Argument(help="variants; default all")] = None,
    arch: Annotated[str, typer.Option(help="architectures, comma-separated")] = "sm_80,sm_86,sm_90",
    block: Annotated[str | None, typer.Option(help="BLOCK_MxBLOCK_NxBLOCK_K, default the card's")] = None,
    warps: Annotated[int | None, typer.Option(help="warps of the first wave")] = None,
    stages: Annotated[int | None, typer.Option(help="pipeline stages of the first wave")] = None,
    as_json: Json = False,
) -> None:
    """Compile kernels for GPUs that need not be here; print registers, local memory and shared memory."""
    chosen = [variants.resolve(name) for name in names or variants.all_names()]
    architectures = arch.split(",")
    for architecture in architectures:
        target(architecture)
    changes: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "block": block and parse_block(block)}
    changes = {key: value for key, value in changes.items() if value}
    jobs = [(name, sm, changes) for name in chosen for sm in architectures if _written_for(name, sm)]
    if not jobs:
        raise UnsupportedProblem(f"{', '.join(chosen)}: not written for {arch}")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if "TRITON_INTERPRET" in os.environ:
        raise SystemExit(subprocess.run([sys.executable, "-m", "variants", *sys.argv[1:]], env=environment).returncode)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [row for found in pool.map(_compiled_rows, jobs) for row in found]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=box.SIMPLE)
    for column in (
        "variant",
        "kernel",
        "arch",
        "config",
        "registers",
        "local bytes",
        "n_spills (bytes / 4)",
        "shared bytes",
    ):
        table.add_column(column, justify="right" if "bytes" in column or column == "registers" else "left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def _written_for(name: str, architecture: str) -> bool:
    allowed = variants.get(name).card.contract.architectures
    return not allowed or architecture in allowed


def _compiled_rows(job: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    name, architecture, changes = job
    v = variants.get(name)
    config: Config = v.card.default.replace(**changes)
    return [compiled.as_dict() for compiled in compile_variant(v, architecture, config)]


def main() -> None:
    """Run the command line; the project's own errors end it with one line and exit code 2."""
    try:
        app()
    except OWN_ERRORS as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
