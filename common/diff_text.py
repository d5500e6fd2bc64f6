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
"""Lines of one compiler text's diff on a terminal; a file, a pipe and the HTML page get all."""


def print_comparison(comparison: Comparison, levels: list[str], console: Console) -> None:
    """Print what was asked for: card and source for `source`, tables for `resources`, then each other level's diff."""
    a, b = comparison.a, comparison.b
    for note in comparison.notes:
        console.print(note, style="yellow", highlight=False)
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
    table = _by_architecture(pairs)
    for name in pairs[0].measures():
        values = [pair.measures()[name] for pair in pairs]
        if name in SHOWN or any(first != second for first, second in values):
            table.add_row(name, *(_cell(name, *value) for value in values))
    console.print(table)
    for pair in pairs:
        for record in (pair.a, pair.b):
            if record is not None and record.status != "ok":
                console.print(f"{record.variant} {record.kernel} {record.architecture}: {record.error}", style="red")
    _print_accesses(pairs, console)
    _print_hot_loop(pairs, console)


def _by_architecture(pairs: list[KernelPair]) -> Table:
    """A table with a column for what a row is about and one for each architecture."""
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for pair in pairs:
        table.add_column(pair.architecture, justify="right")
    return table


def _print_accesses(pairs: list[KernelPair], console: Console) -> None:
    table = _by_architecture(pairs)
    differ = [pair.accesses() for pair in pairs]
    for detail in dict.fromkeys(detail for each in differ for detail in each):
        table.add_row(detail.replace("_", " "), *(_cell(detail, *each.get(detail, (None, None))) for each in differ))
    if table.row_count:
        console.print("accesses that differ, by width or by operation and scope", style="bold")
        console.print(table)


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
    table = _by_architecture(compared)
    kinds = dict.fromkeys(kind for mix in mixes for kind in mix)
    for kind in kinds:
        table.add_row(kind.replace("_", " "), *(_cell(kind, *mix.get(kind, (0, 0))) for mix in mixes))
    console.print("instructions of the hot loop", style="bold")
    console.print(table)


def _print_functions(comparison: Comparison, console: Console) -> None:
    for function in comparison.functions:
        if function.status == "unchanged":
            console.print(f"{function.name}: unchanged, {len(function.b)} lines", style="dim")
            continue
        lines = "line differs" if function.size == 1 else "lines differ"
        console.print(f"\n{function.name}: {function.status}, {function.size} {lines}", style="bold")
        text = "\n".join(function.unified())
        console.print(Syntax(text, "diff", theme="ansi_dark", background_color="default", word_wrap=True))


def _print_text(text: TextDiff, console: Console) -> None:
    title = f"\n{text.level} of {text.title}, {text.architecture}: {text.status}"
    if text.size:
        title += f", {text.size} of {len(text.a)} + {len(text.b)} lines"
    console.print(title, style="bold")
    lines = text.unified() if text.size else []
    shown = lines[:MOST_LINES] if console.is_terminal else lines
    for line in shown:
        style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)
    if len(lines) > len(shown):
        console.print(f"… {len(lines) - len(shown)} more lines: a pipe, --html FILE or --json shows them", style="dim")


_MEASURED = {
    "regs": 4,
    "stack B (n_spills)": 10,
    "spill B st/ld": 9,
    "shared B": 6,
    "per SM": 3,
    "matrix": 6,
    "atomics": 7,
    "code B": 6,
}
"""Columns of `compile` and the room that their numbers need."""
_LAUNCH_ROOM = 70
"""Columns of a terminal that hold variant, kernel, architecture, launch and the space between all columns."""


def print_records(records: list[Inspection], console: Console) -> None:
    """One row a compiled kernel, for `compile`; where a terminal is too narrow, under the name of its kernel."""
    versions = {record.triton for record in records}
    triton = (lambda r: (r.triton,)) if len(versions) > 1 else (lambda r: ())
    if console.width >= _LAUNCH_ROOM + sum(_MEASURED.values()):
        table = _records_table("variant", "kernel", "arch", *(["triton"] if len(versions) > 1 else []), "launch")
        for r in records:
            table.add_row(r.variant, r.kernel, r.architecture, *triton(r), r.launch_label, *_values(r))
        console.print(table)
        return
    groups: dict[str, list[Inspection]] = {}
    for r in records:
        groups.setdefault(" ".join((r.variant, r.kernel, *triton(r), r.launch_label)), []).append(r)
    for heading, group in groups.items():
        console.print(heading, style="bold", highlight=False)
        table = _records_table("arch")
        for r in group:
            table.add_row(r.architecture, *_values(r))
        console.print(table)


def _records_table(*places: str) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in places:
        table.add_column(name, no_wrap=True, min_width=6)
    for name, room in _MEASURED.items():
        table.add_column(name, justify="right", min_width=room)
    return table


def _values(r: Inspection) -> tuple[str | Text, ...]:
    """What stands in the columns of _MEASURED."""
    if r.status != "ok":
        return (Text("failed", style="red"),)
    shared, adds = r.static_shared_bytes + r.dynamic_shared_bytes, r.mix.get("atomic", 0) + r.mix.get("reduction", 0)
    stack, spills = f"{r.stack_bytes} ({r.n_spills})", f"{r.spill_store_bytes}/{r.spill_load_bytes}"
    values = (r.registers, stack, spills, shared, r.programs_per_sm, r.mix.get("matrix", 0), adds, r.code_bytes)
    return tuple(map(str, values))


def failures(records: list[Inspection]) -> list[str]:
    """A line for each kernel that did not compile."""
    return [f"{r.variant} {r.kernel} {r.architecture}: {r.error}" for r in records if r.status != "ok"]
