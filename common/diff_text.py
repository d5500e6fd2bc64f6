"""A comparison on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from common.comparison import Comparison, KernelPair, TextDiff
from common.inspection import Inspection

SHOWN = (
    "registers",
    "stack B",
    "n_spills (stack B / 4)",
    "spill stores B",
    "spill loads B",
    "dynamic shared B",
    "programs per SM",
    "atomics",
    "fences",
    "barriers",
    "instructions",
)
"""Measures that stand in the terminal's table even where nothing differs; the others only where something does."""
WORSE_UP = {"stack B", "n_spills (stack B / 4)", "spill stores B", "spill loads B", "fences", "instructions", "code B"}
MOST_LINES = 400
"""Lines of one compiler text's diff on a terminal; the HTML page holds all."""


def print_comparison(comparison: Comparison, levels: list[str], console: Console) -> None:
    """Print what was asked for: card and source for `source`, tables for `resources`, then each other level's diff."""
    a, b = comparison.a, comparison.b
    if comparison.is_empty:
        console.print(f"{a.name} and {b.name}: no difference")
        return
    versions = " → ".join(dict.fromkeys((a.triton, b.triton)))
    orders = " → ".join(dict.fromkeys(side.config.order for side in (a, b)))
    console.print(Text.assemble((f"{a.name} → {b.name}", "bold"), f"   Triton {versions}, {orders} order"))
    if comparison.card and "source" in levels:
        console.print(_card_table(comparison))
    if "resources" in levels:
        for _, pairs in groupby(comparison.pairs, key=lambda pair: pair.title):
            _print_kernel(list(pairs), console)
    if "source" in levels:
        _print_functions(comparison, console)
    for text in comparison.texts:
        _print_text(text, console)


def _card_table(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE, title="cards", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column(comparison.a.name, overflow="fold")
    table.add_column(comparison.b.name, overflow="fold")
    for row in comparison.card:
        table.add_row(*row)
    return table


def change(first: int | None, second: int | None) -> str:
    """Two values as one word: "96", or "96 → 112 (+16)"."""
    if first is None and second is None:
        return "–"
    if first is None or second is None:
        return f"– → {second}" if first is None else f"{first} → –"
    return str(first) if first == second else f"{first} → {second} ({second - first:+})"


def _cell(name: str, first: int | None, second: int | None) -> Text:
    word = change(first, second)
    if first is None or second is None or first == second:
        return Text(word, style="" if first is None or second is None else "dim")
    worse = (second > first) == (name in WORSE_UP)
    return Text(word, style=("red" if worse else "green") if name in WORSE_UP else "yellow")


def _print_kernel(pairs: list[KernelPair], console: Console) -> None:
    title = f"{pairs[0].title}: {_launches(pairs)}"
    console.print(title, style="bold", highlight=False)
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for pair in pairs:
        table.add_column(pair.architecture, justify="right")
    for name in pairs[0].measures():
        values = [pair.measures()[name] for pair in pairs]
        if name in SHOWN or any(first != second for first, second in values):
            table.add_row(name, *(_cell(name, *value) for value in values))
    console.print(table)
    for pair in pairs:
        for record in (pair.a, pair.b):
            if record is not None and record.status != "ok":
                console.print(f"{record.variant} {record.kernel} {record.architecture}: {record.error}", style="red")
    _print_hot_loop(pairs, console)


def _launches(pairs: list[KernelPair]) -> str:
    records = [record for pair in pairs for record in (pair.a, pair.b) if record is not None]
    return " → ".join(dict.fromkeys(record.launch_label for record in records))


def _print_hot_loop(pairs: list[KernelPair], console: Console) -> None:
    compared = [pair for pair in pairs if pair.both_ok]
    if not compared:
        return
    mixes = [pair.hot_mix() for pair in compared]
    if all(a == b for mix in mixes for a, b in mix.values()):
        sizes = ", ".join(
            f"{p.architecture} {sum(a for a, _ in mix.values())}" for p, mix in zip(compared, mixes, strict=True)
        )
        console.print(f"hot loop: the same mix on both sides (instructions: {sizes})\n", style="dim")
        return
    table = Table(box=box.SIMPLE, title="instructions of the hot loop", title_justify="left", title_style="bold")
    table.add_column("")
    for pair in compared:
        table.add_column(pair.architecture, justify="right")
    kinds = dict.fromkeys(kind for mix in mixes for kind in mix)
    for kind in kinds:
        table.add_row(kind.replace("_", " "), *(_cell(kind, *mix.get(kind, (0, 0))) for mix in mixes))
    console.print(table)


def _print_functions(comparison: Comparison, console: Console) -> None:
    for function in comparison.functions:
        if function.status == "unchanged":
            console.print(f"{function.name}: unchanged, {len(function.b)} lines", style="dim")
            continue
        lines = "line differs" if function.size == 1 else "lines differ"
        console.print(f"\n{function.name}: {function.status}, {function.size} {lines}", style="bold")
        console.print(Syntax("\n".join(function.unified()), "diff", theme="ansi_dark", background_color="default"))


def _print_text(text: TextDiff, console: Console) -> None:
    title = f"\n{text.level} of {text.title}, {text.architecture}: {text.status}"
    if text.size:
        title += f", {text.size} of {len(text.a)} + {len(text.b)} lines"
    console.print(title, style="bold")
    lines = text.unified() if text.size else []
    for line in lines[:MOST_LINES]:
        style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)
    if len(lines) > MOST_LINES:
        console.print(f"… {len(lines) - MOST_LINES} more lines: --html FILE or --json shows them", style="dim")


def records_table(records: list[Inspection]) -> Table:
    """One row a compiled kernel, for `compile`."""
    versions = {record.triton for record in records}
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    places = ("variant", "kernel", "arch", *(["triton"] if len(versions) > 1 else []), "launch")
    measures = ("regs", "stack B (n_spills)", "spill B st/ld", "shared B", "per SM", "matrix", "atomics", "code B")
    for name in (*places, *measures):
        table.add_column(name, justify="left" if name in places else "right", no_wrap=name in places)
    for r in records:
        place = (r.variant, r.kernel, r.architecture, *([r.triton] if len(versions) > 1 else []), r.launch_label)
        if r.status != "ok":
            table.add_row(*place, Text("failed", style="red"))
            continue
        spills = f"{r.spill_store_bytes}/{r.spill_load_bytes}"
        values = (
            r.registers,
            f"{r.stack_bytes} ({r.n_spills})",
            spills,
            r.static_shared_bytes + r.dynamic_shared_bytes,
        )
        values += (r.programs_per_sm, r.mix.get("matrix", 0), r.mix.get("atomic", 0) + r.mix.get("reduction", 0))
        table.add_row(*place, *map(str, values), str(r.code_bytes))
    return table


def failures(records: list[Inspection]) -> list[str]:
    """A line for each kernel that did not compile."""
    return [f"{r.variant} {r.kernel} {r.architecture}: {r.error}" for r in records if r.status != "ok"]
