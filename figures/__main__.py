"""Draw figures from committed results: `python -m figures [NAME…]`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer

from common import style
from common.errors import DamagedRun, NotWritable, nearest
from common.output import RESULTS, destination
from experiments.verdicts import Missing
from figures import NAMES
from figures.source import MissingRun

HERE = Path(__file__).parent


def render(name: str, results: Path, out: Path) -> list[Path]:
    """Draw one figure and write it as SVG and PNG. Raises MissingRun."""
    style.apply()
    figure = importlib.import_module(f"figures.{name}").draw(results)
    try:
        return style.save(figure, out, name)
    finally:
        plt.close(figure)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="figures, default all", metavar="NAME…")] = None,
    out: Annotated[Path, typer.Option(help="where pictures go")] = HERE,
    results: Annotated[Path, typer.Option(help="where measurements lie")] = RESULTS,
) -> None:
    """Draw figures as SVG and PNG. One whose experiment has no finished run is left out with a line that says so; one
    whose run is damaged as well, and the exit code is 2."""
    for name in names or ():
        if name not in NAMES:
            print(f"no figure {name!r}; nearest: {nearest(name, NAMES)}", file=sys.stderr)
            raise SystemExit(2)
    try:
        destination(out)
    except NotWritable as error:
        print(f"--out {error}", file=sys.stderr)
        raise SystemExit(2) from None
    damaged = False
    for name in names or NAMES:
        try:
            for path in render(name, results, out):
                print(path)
        except (MissingRun, Missing) as missing:
            print(f"{name}: not drawn, {missing}")
        except DamagedRun as error:
            print(f"{name}: not drawn, {error}", file=sys.stderr)
            damaged = True
    if damaged:
        raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
