"""Error against the number of peers that share a tile, and how much of a result changes from run to run."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import variants
from common import style
from common.documents import Document
from figures import source

LOOKS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "h", "p", "*", "d", "H")

SPARE = ("#6a00a8", "#7a1f1f", "#1b4d3e")
"""Colours for variants whose own another of the figure has already."""
NEAR = 0.05
"""Errors that are no further apart at any number of peers are on one line."""


def colours(names: list[str]) -> dict[str, str]:
    """Each variant's own colour, or a spare one where it is taken."""
    found: dict[str, str] = {}
    spare = iter(SPARE)
    for name in names:
        own = style.colour(name)
        found[name] = next(spare, own) if own in found.values() else own
    return found


def one_line(document: Document) -> list[tuple[list[str], float]]:
    """Variants whose errors are on one line, where there are several, and by how much they differ at most."""
    groups: list[dict[str, dict[int, float]]] = []
    for record in document.select(fact="rounding"):
        if record["variant"] == source.BASELINE or any(record["variant"] in group for group in groups):
            continue
        name = record["variant"]
        line = {r["peers"]: r["rms"] for r in document.select(fact="rounding", variant=name)}
        home = next((group for group in groups if _apart({**group, name: line}) <= NEAR), None)
        if home is None:
            groups.append({name: line})
        else:
            home[name] = line
    return [(list(group), _apart(group)) for group in groups if len(group) > 1]


def _apart(group: dict[str, dict[int, float]]) -> float:
    """The most by which the errors of any number of peers differ, over the least of them."""
    at: dict[int, list[float]] = {}
    for line in group.values():
        for peers, error in line.items():
            at.setdefault(peers, []).append(error)
    return max(max(errors) / min(errors) - 1 if min(errors) else math.inf for errors in at.values())


def errors(axes: Axes, document: Document) -> None:
    """Root mean square error of every variant, over C's, against peers; cuBLAS as a line."""
    names = list(dict.fromkeys(record["variant"] for record in document.select(fact="rounding")))
    shown = colours([name for name in names if name != source.BASELINE])
    for number, name in enumerate(names):
        found = sorted((r["peers"], r["rms"]) for r in document.select(fact="rounding", variant=name))
        if name == source.BASELINE:
            axes.axhline(found[0][1], color=style.INK, linewidth=0.9, label="cuBLAS")
            continue
        marker = LOOKS[number % len(LOOKS)]
        peers, error = zip(*found, strict=True)
        axes.plot(peers, error, marker=marker, color=shown[name], ms=4, linewidth=1, alpha=0.8, label=name)
    axes.set(xlabel="peers of the tile", ylabel="root mean square error over that of C")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_ylim(bottom=0)
    axes.grid()
    axes.set_axisbelow(True)
    axes.legend(loc="upper left")
    axes.set_title("error of C in fp16 against float64", fontsize=9)


def changes(axes: Axes, document: Document) -> None:
    """Share of C's elements that differed in any of the runs, and the number of different results."""
    records = document.select(fact="repeatability")
    names = list(dict.fromkeys(record["variant"] for record in records))
    problems = list(dict.fromkeys(tuple(record["problem"]) for record in records))
    for place, problem in enumerate(problems):
        for position, name in enumerate(names):
            record = next((r for r in records if r["variant"] == name and tuple(r["problem"]) == problem), None)
            y = position + 0.4 * place - 0.2
            if record is None or "refused" in record:
                axes.text(0.5, y, " refused", va="center", fontsize=6.5, color=style.FAINT)
                continue
            axes.barh(y, 100 * record["varying"], height=0.36, color=style.PALETTE[place], alpha=0.7)
            text = f" {record['distinct']} of {record['runs']}, {record['most_peers']} peers"
            axes.text(100 * record["varying"], y, text, va="center", fontsize=6.5)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, 135), xlabel="elements of C that ever differ, %")
    axes.set_xticks(range(0, 101, 20))
    handles = [plt.Rectangle((0, 0), 1, 1, color=style.PALETTE[i], alpha=0.7) for i in range(len(problems))]
    axes.legend(handles, ["x".join(map(str, p)) for p in problems], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2)
    axes.set_title("different results of the same call", fontsize=9, pad=22)


def defects(axes: Axes, document: Document) -> None:
    """Shares of C that are wrong or not finite: v03's third tile with v04 as a control, and one column of Inf in B."""
    bars = [
        (f"{r['variant']}, {r['most_tiles']} tiles a program", 100 * r["wrong"], style.PALETTE[3])
        for r in document.select(fact="third_tile")
    ]
    bars += [(f"{r['variant']}", 100 * r["spread"], style.PALETTE[1]) for r in document.select(fact="nan_spread")]
    for position, (_, share, colour) in enumerate(bars):
        axes.barh(position, share, color=colour, height=0.7, alpha=0.8)
        axes.text(share, position, f" {share:.1f} %" if share else " none", va="center", fontsize=7)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=7.5)
    axes.set(ylim=(len(bars) - 0.4, -0.6), xlabel="elements of C, %", xlim=(0, 1.3 * max(b[1] for b in bars) + 1))
    handles = [plt.Rectangle((0, 0), 1, 1, color=style.PALETTE[i], alpha=0.8) for i in (3, 1)]
    names = ["wrong, guard off", "not finite beside B's column of Inf"]
    axes.legend(handles, names, loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=1)
    axes.set_title("known defects", fontsize=9, pad=36)


def draw(results: Path) -> Figure:
    """Raises MissingRun where the facts were not measured."""
    document = source.require_document(results, "facts")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16.5, 5.6), width_ratios=(5, 5, 2.6))
    errors(left, document)
    changes(middle, document)
    defects(right, document)
    figure.suptitle("Rounding by peers, bits that vary, and known defects", x=0.01, ha="left", fontweight="bold")
    figure.tight_layout(rect=(0, 0.075, 1, 0.99))
    style.small_print(
        figure,
        f"{source.describe_document(document)}. One tile, K = 16384, normal inputs; every peer's atomic add rounds C "
        f"to fp16, v02's scratchpad holds fp32. {told(document)}\nMiddle: the number of different results, bit for "
        "bit, and the peers of the most widely shared tile.",
    )
    return figure


def told(document: Document) -> str:
    """Which curves hide one another, and which variants are not here."""
    text = "\nLeft, on one line: "
    text += "; ".join(
        f"{', '.join(map(source.short, names))} (at most {100 * apart:.1f} % apart)"
        for names, apart in one_line(document)
    )
    here = {record["variant"] for record in document.select(fact="rounding")}
    absent = [name for name in variants.names() if name not in here]
    if absent:
        text += f". Kernels in plain Triton alone: not here are {', '.join(map(source.short, absent))}."
    return text
