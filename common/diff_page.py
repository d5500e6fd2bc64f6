"""A comparison as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import difflib
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pygments import lex
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES, Error

from common.comparison import Comparison, KernelPair, TextDiff
from common.diff_text import SHOWN, WORSE_UP, change
from common.source_diff import CONTEXT, opcodes

HERE = Path(__file__).parent
LEXERS = {"source": "python", "llir": "llvm", "ttir": "llvm", "ttgir": "llvm", "ptx": "ptx", "sass": "gas"}
"""Pygments knows neither MLIR nor SASS: the nearest language's lexer, whose errors are passed over."""


@dataclass(frozen=True)
class Row:
    """One line of a side-by-side view, as HTML; a side without a line is None."""

    left_number: int | None
    left: str | None
    right_number: int | None
    right: str | None
    changed: bool


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows; those that are far from any change are folded. `left_out`: rows that the page does not hold."""

    rows: list[Row]
    folded: bool
    left_out: int = 0


MOST_FOLDED = 60
"""Folded rows of a compiler text that the page holds: whole texts would make it tens of megabytes."""
MOST_HIGHLIGHTED = 3000


def page(comparison: Comparison) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    styles = HtmlFormatter(style="friendly").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    return environment.get_template("diff_page.html").render(
        comparison=comparison,
        styles="\n".join(line for line in styles.splitlines() if line.startswith(".code .")),
        dark_styles="\n".join(line for line in dark.splitlines() if line.startswith(".code .")),
        kernels=_kernels(comparison.pairs),
        functions=[(f, side_by_side(f.a, f.b, "source")) for f in comparison.functions],
        texts=[(t, _text_chunks(t)) for t in comparison.texts],
        orders=[side.config.order for side in (comparison.a, comparison.b)],
    )


def _kernels(pairs: list[KernelPair]) -> list[dict[str, Any]]:
    """For each kernel: its title, architectures, rows of resources and of the hot loop, and what did not compile."""
    found = []
    for title in dict.fromkeys(pair.title for pair in pairs):
        own = [pair for pair in pairs if pair.title == title]
        records = [record for pair in own for record in (pair.a, pair.b) if record is not None]
        rows = [
            (name, [_cell(name, *pair.measures()[name]) for pair in own])
            for name in own[0].measures()
            if name in SHOWN or any(a != b for a, b in (pair.measures()[name] for pair in own))
        ]
        mixes = [pair.hot_mix() if pair.both_ok else {} for pair in own]
        differ = [pair.accesses() for pair in own]
        details = dict.fromkeys(detail for each in differ for detail in each)
        kinds = dict.fromkeys(kind for mix in mixes for kind in mix)
        hot = [(kind.replace("_", " "), [_cell(kind, *mix.get(kind, (0, 0))) for mix in mixes]) for kind in kinds]
        found.append(
            {
                "title": title,
                "launches": " → ".join(dict.fromkeys(record.launch_label for record in records)),
                "architectures": [pair.architecture for pair in own],
                "rows": rows,
                "hot": hot,
                "accesses": [
                    (name.replace("_", " "), [_cell(name, *each.get(name, (None, None))) for each in differ])
                    for name in details
                ],
                "failed": [record for record in records if record.status != "ok"],
            }
        )
    return found


def _cell(name: str, first: int | None, second: int | None) -> tuple[str, str]:
    """The words of a cell and its class: same, better, worse, or other."""
    word = change(first, second)
    if first is None or second is None or first == second:
        return word, "same"
    if name not in WORSE_UP:
        return word, "other"
    return word, "worse" if second > first else "better"


def side_by_side(a: tuple[str, ...], b: tuple[str, ...], level: str) -> list[Chunk]:
    """Two texts in rows, in the difference's order, with the changed words of a changed line marked."""
    return _chunks(list(a), list(b), opcodes(list(a), list(b)), level)


def _text_chunks(text: TextDiff) -> list[Chunk]:
    a, b = ([line.text for line in lines] for lines in (text.a, text.b))
    chunks = _chunks(a, b, list(text.chunks), text.level) if text.size else []
    return [Chunk([], True, len(c.rows)) if c.folded and len(c.rows) > MOST_FOLDED else c for c in chunks]


def _chunks(a: list[str], b: list[str], codes: list[tuple[str, int, int, int, int]], level: str) -> list[Chunk]:
    left, right = highlighted(a, level), highlighted(b, level)
    chunks: list[Chunk] = []
    for number, (tag, i1, i2, j1, j2) in enumerate(codes):
        rows = []
        for offset in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + offset, j1 + offset
            has_left, has_right = i < i2, j < j2
            pair = (left[i] if has_left else None, right[j] if has_right else None)
            if tag == "replace" and has_left and has_right:
                pair = _marked(a[i], b[j], *pair)
            rows.append(
                Row(i + 1 if has_left else None, pair[0], j + 1 if has_right else None, pair[1], tag != "equal")
            )
        if tag == "equal":
            chunks += _folded(rows, number == 0, number == len(codes) - 1)
        elif rows:
            chunks.append(Chunk(rows, False))
    return chunks


def _folded(rows: list[Row], first: bool, last: bool) -> list[Chunk]:
    """Equal rows: a few beside a change stay open, the others are folded."""
    head, tail = (0 if first else CONTEXT), (0 if last else CONTEXT)
    if len(rows) <= head + tail + 2:
        return [Chunk(rows, first and last)]
    parts = (
        Chunk(rows[:head], False),
        Chunk(rows[head : len(rows) - tail], True),
        Chunk(rows[len(rows) - tail :], False),
    )
    return [part for part in parts if part.rows]


def _marked(a: str, b: str, left: str | None, right: str | None) -> tuple[str | None, str | None]:
    """Two versions of a line with what differs underlined; plain where they have little in common."""
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if matcher.ratio() < 0.6:
        return left, right
    out: tuple[list[str], list[str]] = ([], [])
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        for side, text in zip(out, (a[i1:i2], b[j1:j2]), strict=True):
            escaped = html.escape(text)
            side.append(escaped if tag == "equal" or not text else f"<mark>{escaped}</mark>")
    return "".join(out[0]), "".join(out[1])


def highlighted(lines: list[str], level: str) -> list[str]:
    """Each line as HTML with pygments's classes. Tokens that go over a line's end are split there."""
    if len(lines) > MOST_HIGHLIGHTED:
        return [html.escape(line) for line in lines]
    lexer = get_lexer_by_name(LEXERS[level], stripnl=False, ensurenl=False)
    done: list[str] = [""]
    for token, value in lex("\n".join(lines), lexer):
        name = _css_class(token)
        for number, piece in enumerate(value.split("\n")):
            if number:
                done.append("")
            if piece:
                escaped = html.escape(piece)
                done[-1] += f'<span class="{name}">{escaped}</span>' if name else escaped
    return (done + [""] * len(lines))[: len(lines)]


def _css_class(token: Any) -> str:
    if token is Error:
        return ""
    while token not in STANDARD_TYPES and token.parent is not None:
        token = token.parent
    return STANDARD_TYPES.get(token, "")
