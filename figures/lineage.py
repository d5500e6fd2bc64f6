"""Who was made from whom, what each step changed, and how many lines of kernel that took."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import variants
from common import style
from common.card import Card
from common.source_diff import Budget, budget
from figures import code_tables

INDENT, NAME = 0.25, 2.1
"""A lane's width, and the room that a name takes."""
WIDTH = 125
"""Characters of an idea's line."""


def steps() -> list[tuple[str, str | None, int]]:
    """Every variant with its parent and its lane: an heir stays in its parent's lane, others begin one further right,
    in which no other line passes by."""
    cards = {name: code_tables.card(name) for name in variants.all_names() if name != "torch_matmul"}
    parents = {name: variants.resolve(card.parent) if card.parent else None for name, card in cards.items()}
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    heir = {parent: _heir(own, children) for parent, own in children.items() if parent}
    rows: dict[str, int] = {}
    for name in cards:
        for one in (parents[name], name):  # a parent first, also a baseline's
            if one is not None:
                rows.setdefault(one, len(rows))
    lanes: dict[str, int] = {}
    taken: dict[int, list[tuple[int, int]]] = {}
    for name in rows:
        parent = parents[name]
        if parent is not None and heir[parent] == name:
            lanes[name] = lanes[parent]
            continue
        last = name
        while last in heir:
            last = heir[last]
        first = rows[name] if parent is None else rows[parent] + 1
        lane = 0 if parent is None else lanes[parent] + 1
        while any(first <= end and begin <= rows[last] for begin, end in taken.get(lane, [])):
            lane += 1
        taken.setdefault(lane, []).append((first, rows[last]))
        lanes[name] = lane
    return [(name, parents[name], lane) for name, lane in lanes.items()]


def _heir(own: list[str], children: dict[str | None, list[str]]) -> str:
    """The child with the longest line of descendants: it goes on in its parent's lane."""

    def depth(name: str) -> int:
        return 1 + max((depth(child) for child in children.get(name, [])), default=0)

    return max(own, key=depth)


def _change(name: str, card: Card) -> str:
    if card.parent is None:
        return "no parent"
    measured: Budget = budget(variants.source_path(name).read_text(), variants.source_path(card.parent).read_text())
    if not measured.changed:
        return f"from {card.parent}: the same kernels"
    if len(measured.changed) > 4:
        return f"from {card.parent}: {len(measured.changed)} functions, {measured.size} lines"
    return f"from {card.parent}: {', '.join(measured.changed)}; {measured.size} lines"


def draw(results: Path) -> Figure:
    """One row a variant, in the thread's order; needs no measurement."""
    rows = steps()
    places = {name: (lane * INDENT, -line) for line, (name, _, lane) in enumerate(rows)}
    names = max(x for x, _ in places.values()) + 0.2
    figure, axes = plt.subplots(figsize=(12, 0.62 * len(rows) + 1))
    for name, parent, _ in rows:
        x, y = places[name]
        if parent is not None:
            px, py = places[parent]
            axes.plot([px, x, x], [py, py - 0.45 if px != x else py, y], color=style.PALE, linewidth=2.5, zorder=1)
        card = code_tables.card(name)
        axes.scatter([x], [y], s=130, color=style.colour(name), zorder=2, edgecolor="white")
        axes.text(names, y, name, va="center", fontsize=9, fontweight="bold")
        axes.text(names + NAME, y + 0.16, textwrap.shorten(card.idea, WIDTH, placeholder=" …"), va="center", fontsize=8)
        words = f"{card.position}{' (reconstructed)' if card.reconstructed else ''}. {_change(name, card)}"
        axes.text(names + NAME, y - 0.2, words, va="center", fontsize=7, color=style.FAINT)
    axes.set_xlim(-0.15, names + 9.9)
    axes.set_ylim(-len(rows) + 0.4, 0.7)
    axes.axis("off")
    axes.set_title("Who comes from whom, and what changed")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    style.small_print(figure, "Lines: taken out plus put in, of the jit functions, without blank lines and comments.")
    return figure
