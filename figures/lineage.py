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

INDENT, TEXT = 0.25, 2.6
"""A generation's step to the right, and where the words begin."""
WIDTH = 125
"""Characters of an idea's line."""


def steps() -> list[tuple[str, str | None, int]]:
    """Every variant with its parent and its lane: a first child stays in its parent's lane, later ones move right."""
    cards = {name: code_tables.card(name) for name in variants.all_names()}
    parents = {name: variants.resolve(card.parent) if card.parent else None for name, card in cards.items()}
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    heir = {parent: _heir(own, children) for parent, own in children.items() if parent}
    lanes: dict[str, int] = {}

    def place(name: str) -> None:
        parent = parents[name]
        if name in lanes:
            return
        if parent is not None:
            place(parent)
        lanes[name] = 0 if parent is None else lanes[parent] + (heir[parent] != name)

    for name in cards:
        place(name)
    return [(name, parents[name], lane) for name, lane in lanes.items() if name != "torch_matmul"]


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
        axes.text(TEXT, y + 0.16, textwrap.shorten(card.idea, WIDTH, placeholder=" …"), va="center", fontsize=8)
        words = f"{card.position}{' (reconstructed)' if card.reconstructed else ''}. {_change(name, card)}"
        axes.text(TEXT, y - 0.2, words, va="center", fontsize=7, color=style.FAINT)
    axes.set_xlim(-0.15, 10.2)
    axes.set_ylim(-len(rows) + 0.4, 0.7)
    axes.axis("off")
    axes.set_title("Who comes from whom, and what changed")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    style.small_print(figure, "Lines: taken out plus put in, of the jit functions, without blank lines and comments.")
    return figure
