"""`python -m variants explore`: search interleavings of one variant, or decide every variant's properties."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import variants
from common import documents, interpreter
from common.errors import ProtocolFault
from common.exploration import (
    USUAL_SCHEDULES,
    Interrupted,
    Request,
    counting,
    explore_variant,
    replay_variant,
    told,
    told_replay,
)
from common.memory_model import READINGS
from common.output import destination, width
from common.protocols import COLUMNS, Properties, Small, cells, disagreements, examine, kernel_hash
from common.scenario import Setup, explorable

WITHOUT_NAME = ("schedules", "seed", "out", "changed", "as_json")
"""Options that are used without NAME."""


def explore(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="a variant; without one, every variant against its card")] = None,
    m: Annotated[int, typer.Option("--m", help="rows of A and C, at most 256; tiles are 16x16")] = 48,
    n: Annotated[int, typer.Option("--n", help="columns of B and C, at most 256")] = 16,
    k: Annotated[int, typer.Option("--k", help="columns of A, rows of B, at most 256; an iteration is 16 deep")] = 64,
    programs: Annotated[int, typer.Option(help="Stream-K programs, or parts a tile for split_k")] = 4,
    schedules: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"how many interleavings, default {USUAL_SCHEDULES}; without NAME, of each kind; an exhaustive search "
            "ends after as many, by default not before it has all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the first; the others count up from it")] = 0,
    strategy: Annotated[
        str,
        typer.Option(help="random, pct, or exhaustive: every order of accesses, each store visible at once"),
    ] = "random",
    reading: Annotated[str, typer.Option(help="which CTA barriers: source, triton-3.6, triton-3.9 or all")] = "all",
    residents: Annotated[int | None, typer.Option(help="programs that run at once; default all")] = None,
    dispatch: Annotated[str, typer.Option(help="ascending, as NVIDIA GPUs are seen to do, or any")] = "ascending",
    launches: Annotated[int, typer.Option(help="launches in a row on a stream, each with inputs of its own")] = 1,
    streams: Annotated[int, typer.Option(help="streams that run at the same time")] = 1,
    shared_workspace: Annotated[bool, typer.Option("--shared-workspace", help="streams use the same locks")] = False,
    unguarded: Annotated[bool, typer.Option("--unguarded", help="explore also what the launcher refuses")] = False,
    strict_residency: Annotated[
        bool, typer.Option("--strict-residency", help="refuse what relies on ascending dispatch, as `run` can")
    ] = False,
    order: Annotated[str | None, typer.Option(help="tile order: swizzled or linear")] = None,
    replay: Annotated[str | None, typer.Option(help="a schedule that a report printed, to see it again")] = None,
    out: Annotated[Path | None, typer.Option(help="a folder: write what was found there, with provenance")] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="without NAME: keep what --out has of kernels that have not changed")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
) -> None:
    """Search the interleavings of a small launch for races, deadlocks and wrong sums, on the CPU.

    Ends with 1 where something is found that the variant's card does not name. Without NAME every property of every
    variant is decided and compared with its card.
    """
    if not interpreter.interpreting():
        # The same process begins anew: the interpreter is chosen before a kernel is decorated.
        command = [sys.executable, "-m", "variants", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"TRITON_INTERPRET": "1"})
    interpreter.require_interpreter()
    _refuse_unused(context, name, out, changed)
    out = None if out is None else destination(out)
    if name is None:
        try:
            raise SystemExit(check_protocols(schedules or USUAL_SCHEDULES, seed, out, as_json, changed))
        except KeyboardInterrupt:
            print("interrupted: nothing is written", file=sys.stderr)
            raise SystemExit(130) from None
    setup = Setup(
        launches=launches,
        streams=streams,
        shared_workspace=shared_workspace,
        guarded=not unguarded,
        strict_residency=strict_residency,
    )
    readings = tuple(READINGS) if reading == "all" else (reading,)
    request = Request(
        Small((m, n, k), programs, programs), setup, readings, residents, dispatch, strategy, schedules, seed, order
    )
    v = variants.get(name)
    if replay is not None:
        if len(readings) > 1:
            raise typer.BadParameter(f"--replay is of one reading: give --reading {', '.join(READINGS)}")
        report = replay_variant(v, request, replay)
        print(json.dumps(report, indent=1) if as_json else "\n".join(told_replay(report)))
        return
    interrupted = False
    try:
        with counting(v.name, request.expected) as progress:
            reports = explore_variant(v, request, progress)
    except Interrupted as found:
        reports, interrupted = found.reports, True
    print(json.dumps(reports, indent=1) if as_json else "\n".join(line for r in reports for line in told(r)))
    if interrupted:
        print("interrupted: this is what was found so far" + (", nothing is written" if out else ""), file=sys.stderr)
        raise SystemExit(130)
    if out is not None:
        print(documents.write(out, f"explored_{v.name}", documents.header(), reports), file=sys.stderr)
    raise SystemExit(any(not finding["known"] for report in reports for finding in report["findings"]))


def _refuse_unused(context: typer.Context, name: str | None, out: Path | None, changed: bool) -> None:
    """Raise BadParameter for options that would do nothing here."""
    if name is not None and changed:
        raise typer.BadParameter("--changed is for every variant: not together with NAME")
    if changed and out is None:
        raise typer.BadParameter("--changed keeps what --out has: give --out")
    given = [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name not in ("name", *WITHOUT_NAME) and _is_given(context, parameter.name)
    ]
    if name is None and given:
        raise typer.BadParameter(f"{', '.join(given)}: only with NAME; without one every variant is explored")
    unused = [f"--{option}" for option in ("schedules", "seed", "out") if _is_given(context, option)]
    if context.params["replay"] is not None and unused:
        raise typer.BadParameter(f"{', '.join(unused)}: not together with --replay, which runs one schedule")


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def check_protocols(schedules_each: int, seed: int, out: Path | None, as_json: bool, changed: bool = False) -> int:
    """Decide every variant's properties, print them, write them to a folder; 1 where a card says something else."""
    names = [name for name in variants.all_names() if explorable(variants.get(name).card)]
    began, head = time.monotonic(), documents.header(schedules=schedules_each, seed=seed)
    records = _kept(names, out) if changed and out is not None else {}
    faults: dict[str, dict[str, Any]] = {}
    jobs = [(name, schedules_each, seed, head["commit"]) for name in names if name not in records]
    # Workers leave Ctrl-C to this process, whose leaving the block ends them.
    with multiprocessing.Pool(os.cpu_count(), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for record in pool.imap_unordered(_examined, jobs):
            (faults if "fault" in record else records)[record["variant"]] = record
            done = f"{len(records) + len(faults)}/{len(names)}, {time.monotonic() - began:.0f} s"
            print(f"{done}: {record['variant']}", file=sys.stderr, flush=True)
    found = [records[name] for name in names if name in records]
    wrong = [record["fault"] for record in faults.values()]
    if out is not None and not wrong:  # a table that lacks a variant must not take the place of a whole one
        head["seconds"] = round(time.monotonic() - began, 1)
        print(documents.write(out, "protocols", head, found), file=sys.stderr)
    print(json.dumps(found, indent=1)) if as_json else _print_protocols(found)
    wrong += [f"{record['variant']}: {line}" for record in found for line in record["disagreements"]]
    print("\n".join(wrong) or "every card says what was found", file=sys.stderr)
    return int(bool(wrong))


def _examined(job: tuple[str, int, int, str]) -> dict[str, Any]:
    name, schedules_each, seed, commit = job
    v = variants.get(name)
    try:
        found = examine(v, schedules_each, seed)
    except ProtocolFault as fault:
        return {"variant": name, "fault": str(fault)}
    return found.as_dict() | {"disagreements": disagreements(v.card, found), "commit": commit}


def _kept(names: list[str], out: Path) -> dict[str, dict[str, Any]]:
    """Records of the newest exploration there whose kernels are what they were, compared with the cards as they are."""
    newest, kept = documents.newest(out, "protocols"), {}
    for record in newest.records if newest else []:
        if record["variant"] in names and record["kernel_hash"] == kernel_hash(variants.get(record["variant"])):
            card = variants.get(record["variant"]).card
            known = {"commit": newest.header["commit"]} | record
            kept[record["variant"]] = known | {"disagreements": disagreements(card, Properties.of(record))}
    return kept


def _print_protocols(records: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE)
    for column in ("variant", *COLUMNS):
        table.add_column(column, no_wrap=column == "variant")
    for record in records:
        table.add_row(record["variant"], *cells(record))
    Console(width=width(190)).print(table)
