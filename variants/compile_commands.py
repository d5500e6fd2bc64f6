"""The commands that need no GPU: `compile`, `diff`, `goldens`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import variants
from common import compiled, triton_versions
from common import goldens as golden_tables
from common.architectures import ARCHITECTURES, parse_architectures
from common.card import MOST_TILE, Card, Config, read_card
from common.comparison import ALL_LEVELS, Comparison, Side, compare, parse_levels
from common.errors import NotWritable, UnsupportedProblem, UnsupportedTriton, nearest
from common.output import width

WIDTH = 150
"""Columns where the output is no terminal and COLUMNS says nothing."""
LARGE_PAGE = 5_000_000
"""Bytes of a page above which `diff` says what makes it smaller."""
SIZES, WARPS, STAGES = tuple(2**n for n in range(4, 11)), (1, 2, 4, 8, 16, 32), range(1, 17)
"""What a block's side, warps and pipeline stages can be."""

Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]
Arch = Annotated[
    str,
    typer.Option(
        help="architectures, comma-separated, or `all`: "
        + ", ".join(f"{name} ({target.gpu})" for name, target in ARCHITECTURES.items())
    ),
]
TritonOption = Annotated[
    str | None,
    typer.Option(
        "--triton", help=f"compile with another Triton, fetched on first use: {', '.join(triton_versions.SUPPORTED)}"
    ),
]
Block = Annotated[str | None, typer.Option(help="BLOCK_MxBLOCK_NxBLOCK_K")]
Warps = Annotated[int | None, typer.Option(help="warps of every kernel")]
Stages = Annotated[int | None, typer.Option(help="pipeline stages of every kernel")]
Sem = Annotated[str | None, typer.Option(help="memory order of the atomic adds on C: relaxed or acq_rel")]


def parse_block(text: str) -> tuple[int, int, int]:
    """`128x128x32` as BLOCK_M, BLOCK_N, BLOCK_K; UnsupportedProblem otherwise."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise UnsupportedProblem(f"block {text!r}: write BLOCK_MxBLOCK_NxBLOCK_K, for example 128x128x32")
    return int(parts[0]), int(parts[1]), int(parts[2])


def closest(value: int, allowed: Iterable[int]) -> int:
    """The allowed number nearest to a value, the larger of two."""
    return min(allowed, key=lambda each: (abs(each - value), -each))


def config_changes(block: str | None, warps: int | None, stages: int | None, sem: str | None) -> dict[str, Any]:
    """What the options change of a config. Raises UnsupportedProblem for values that no kernel can have."""
    changes: dict[str, Any] = {}
    if block is not None:
        changes["block"] = parse_block(block)
        for size in changes["block"]:
            if size not in SIZES:
                near = "x".join(str(closest(each, SIZES)) for each in changes["block"])
                raise UnsupportedProblem(
                    f"block {block!r}: each size is a power of two from 16 to 1024; nearest: {near}"
                )
        block_m, block_n, block_k = changes["block"]
        if max(block_m * block_n, block_m * block_k, block_k * block_n) > MOST_TILE:
            raise UnsupportedProblem(f"block {block!r}: no side by another may pass {MOST_TILE} elements")
    if warps is not None:
        if warps not in WARPS:
            near = closest(warps, WARPS)
            raise UnsupportedProblem(f"--warps {warps}: a power of two from 1 to 32; nearest: {near}")
        changes |= {"num_warps": warps, "full_tiles_warps": warps}
    if stages is not None:
        if stages not in STAGES:
            raise UnsupportedProblem(f"--stages {stages}: from 1 to 16; nearest: {closest(stages, STAGES)}")
        changes |= {"num_stages": stages, "full_tiles_stages": stages}
    if sem is not None:
        if sem not in ("relaxed", "acq_rel"):
            raise UnsupportedProblem(f"--sem {sem!r}: {nearest(sem, ('relaxed', 'acq_rel'))}")
        changes["sem"] = sem
    return changes


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Something to call with the kernels done and all; on a terminal it draws a bar below everything else."""
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def console() -> Console:
    """Where results go."""
    return Console(width=width(WIDTH), markup=False)


def compile_command(
    names: Annotated[list[str] | None, typer.Argument(help="variants; default all")] = None,
    arch: Arch = "sm_80,sm_86,sm_90",
    block: Block = None,
    warps: Warps = None,
    stages: Stages = None,
    sem: Sem = None,
    version: TritonOption = None,
    as_json: Json = False,
) -> None:
    """Compile kernels for GPUs that need not be here; print what each takes.

    Each is compiled at its card's config, as a launch of a large problem would compile it. Bytes are B: stack, spill
    stores and loads of a thread, shared memory of a program. Triton's n_spills is the stack divided by 4. `per SM`:
    programs that one multiprocessor holds.
    """
    targets, changes = parse_architectures(arch), config_changes(block, warps, stages, sem)
    chosen = [variants.resolve(name) for name in names or variants.all_names()]
    jobs = [
        job
        for each in triton_versions.parse_versions(version)
        for name in chosen
        for job in compiled.jobs_of(name, variants.source_path(name), targets, changes, each)
    ]
    if not jobs:
        raise UnsupportedProblem(f"{', '.join(chosen)}: no kernel of its own, or not written for {arch}")
    for name in chosen if names else ():
        written = read_card(variants.source_path(name).read_text()).contract.architectures
        out = [target.name for target in targets if written and target.name not in written]
        if out:
            print(f"{name} is written for {', '.join(written)} alone: {', '.join(out)} left out", file=sys.stderr)
    with progress_bar() as progress:
        records = compiled.inspect(jobs, progress)
    if as_json:
        print(json.dumps([record.as_dict() for record in records], indent=1))
        return
    from common.diff_text import failures, print_records

    print_records(records, console())
    for line in failures(records):
        console().print(line, style="red", highlight=False)


def diff(
    a: Annotated[str, typer.Argument(help="a number (v05), a module's name, or any unambiguous part of one")],
    b: Annotated[str, typer.Argument(help="the variant to compare it with")],
    arch: Arch = "sm_80,sm_86,sm_90",
    level: Annotated[
        str | None,
        typer.Option(
            help=f"what to compare, comma-separated or `all`: {', '.join(ALL_LEVELS)}; default source,resources"
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write one self-contained page")] = None,
    own: Annotated[bool, typer.Option("--own", help="each at its own card's config, not both at the first's")] = False,
    block: Block = None,
    warps: Warps = None,
    stages: Stages = None,
    sem: Sem = None,
    version: TritonOption = None,
    as_json: Json = False,
) -> None:
    """Compare two variants, from the source to the machine code, for GPUs that need not be here.

    Both are compiled at the first one's launch parameters, so that what differs is the code; --own takes each card's.
    Stack and spills are bytes of a thread, shared memory bytes of a program; `instructions` counts machine code.
    Two versions in --triton (2.1.0,3.9.0) compile the first variant with the first and the second with the second.
    """
    targets, levels = parse_architectures(arch), parse_levels(level)
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        reason = "that is a folder" if html.is_dir() else f"there is no folder {html.absolute().parent}"
        raise UnsupportedProblem(f"--html {html}: {reason}")
    changes = config_changes(block, warps, stages, sem)
    first, second = variants.resolve(a), variants.resolve(b)
    versions = triton_versions.parse_versions(version)
    if len(versions) > 2:
        raise UnsupportedProblem(f"--triton {version}: one version for both variants, or one for each")
    card_a, card_b = (read_card(variants.source_path(name).read_text()) for name in (first, second))
    config = card_a.default.replace(**changes)
    other = card_b.default.replace(**changes) if own else shared_config(config, card_b)
    sides = [
        Side(name, variants.source_path(name), each, triton)
        for name, each, triton in ((first, config, versions[0]), (second, other, versions[-1]))
    ]
    with progress_bar() as progress:
        comparison = compare(*sides, targets, levels, progress)
    if html is not None:
        size = write_page(html, comparison)
        print(f"{html}: {size / 1e6:.3g} MB", file=sys.stderr if as_json else sys.stdout)
        if size > LARGE_PAGE:
            print(smaller(levels, [target.name for target in targets]), file=sys.stderr)
    if as_json:
        print(json.dumps(comparison.as_dict(), indent=1))
    elif html is None:
        from common.diff_text import print_comparison

        print_comparison(comparison, levels, console())


def write_page(file: Path, comparison: Comparison) -> int:
    """Write the page of a comparison; its bytes. Raises NotWritable."""
    from common.diff_page import page

    text = page(comparison).encode()
    try:
        file.write_bytes(text)
    except OSError as error:
        raise NotWritable(f"--html {file}: {error.strerror or error}") from None
    return len(text)


def smaller(levels: list[str], architectures: list[str]) -> str:
    """Which options make a large page smaller than it is with these levels and architectures."""
    texts = [level for level in levels if level in compiled.LEVELS]
    fewer = [f"--level with fewer of {', '.join(texts)}"] if texts else []
    fewer += [f"--arch with fewer of {', '.join(architectures)}"] if len(architectures) > 1 else []
    return f"more than {LARGE_PAGE / 1e6:g} MB are slow to open; smaller: {' or '.join(fewer) or 'no option'}"


def shared_config(config: Config, card: Card) -> Config:
    """One variant's config for another one: what the other cannot have comes from its own card."""
    own = card.default
    order = config.order if config.order in card.tile_orders else own.order
    return own.replace(
        block=config.block,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        full_tiles_warps=config.full_tiles_warps,
        full_tiles_stages=config.full_tiles_stages,
        order=order,
        sem=config.sem,
    )


def golden_jobs(version: str, names: list[str] | None = None) -> list[compiled.Job]:
    """The jobs of a version's committed table, variant by variant."""
    found = []
    for name in names or variants.all_names():
        path = variants.source_path(name)
        found += golden_tables.jobs(name, path, read_card(path.read_text()), version)
    return found


def goldens(
    version: TritonOption = None,
    accept: Annotated[bool, typer.Option("--accept", help="write what was found into the tables")] = False,
) -> None:
    """Compile every kernel again and compare what it takes with the committed table of its Triton.

    Ends with 1 where anything differs. --triton takes several versions, or `all` for those with a table.
    """
    versions = list(golden_tables.DRIFT) if version == "all" else triton_versions.parse_versions(version)
    for each in versions:
        if not accept and not golden_tables.file(each).exists():
            there = ", ".join(golden_tables.DRIFT)
            raise UnsupportedTriton(f"no table of Triton {each} to compare with; there are those of {there}")
    stale = False
    for each in versions:
        with progress_bar() as progress:
            records = compiled.inspect(golden_jobs(each), progress)
        text = golden_tables.table(each, records)
        path = golden_tables.file(each)
        found = golden_tables.differences(
            golden_tables.read(each) if path.exists() else [], list(map(golden_tables.row, records))
        )
        for difference in found:
            print(difference)
        if accept:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        stale |= bool(found)
        print(
            f"Triton {each}: {len(records)} rows, {len(found)} values differ{', accepted' if accept and found else ''}"
        )
    if stale and not accept:
        print("to accept: make goldens ACCEPT=1", file=sys.stderr)
        raise SystemExit(1)


NAMES = {"compile": compile_command, "diff": diff, "goldens": goldens}


def register(other: typer.Typer) -> None:
    """Add the commands to a command line."""
    for name, command in NAMES.items():
        other.command(name)(command)


app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
register(app)
