"""The command line of the experiments: `python -m experiments list | run FILE.yaml`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.errors import InvalidExperiment, NoDevice

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)
HERE = Path(__file__).parent
RESULTS = HERE / "results"


@app.command("list")
def list_experiments(as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False) -> None:
    """List the experiments with their question, problems, candidates and the newest finished run."""
    from common import rows
    from experiments.spec import load

    found = []
    for path in sorted(HERE.glob("*.yaml")):
        experiment = load(path)
        newest = rows.newest_run(RESULTS, experiment.name)
        found.append(
            {
                "file": path.name,
                "question": experiment.question,
                "problems": len(experiment.problems.all()),
                "candidates": len(experiment.all_candidates()),
                "newest_run": newest.id if newest else None,
            }
        )
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for entry in found:
        print(f"{entry['file']}: {entry['problems']} problems x {entry['candidates']} candidates")
        print(f"  {entry['question']}\n  newest run: {entry['newest_run'] or 'none'}")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="an experiment, for example experiments/headline.yaml")],
    resume: Annotated[bool, typer.Option("--resume", help="go on with the newest run of this experiment")] = False,
    limit: Annotated[int | None, typer.Option(help="only the first LIMIT problems")] = None,
    out: Annotated[Path, typer.Option(help="where results go")] = RESULTS,
    device: Annotated[
        Literal["cuda", "interpreter"], typer.Option(help="interpreter: check correctness on the CPU, no speeds")
    ] = "cuda",
    as_json: Annotated[bool, typer.Option("--json", help="print the finished run's file as JSON")] = False,
) -> None:
    """Measure an experiment. Rows are appended as they are measured; a killed run goes on with --resume."""
    if device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        _require_gpu()
    from experiments.runner import Sweep
    from experiments.spec import load

    experiment = load(file)
    console = Console(stderr=True)
    progress = Progress(
        TextColumn(experiment.name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        bar = progress.add_task("", total=None)
        last = [time.monotonic()]

        def on_progress(done: int, total: int, problem: object) -> None:
            progress.update(bar, completed=done, total=total)
            if not console.is_terminal and (done == total or time.monotonic() - last[0] > 15):
                last[0] = time.monotonic()
                print(f"{experiment.name}: {done}/{total} (last {problem})", file=sys.stderr, flush=True)

        sweep = Sweep(experiment, out, resume, limit, on_progress, lambda text: print(text, file=sys.stderr))
        finished = sweep.run()
    print(json.dumps({"run": str(finished)}) if as_json else finished)


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise NoDevice("no NVIDIA GPU was found: `--device interpreter` checks correctness on the CPU, without speeds")


def main() -> None:
    """Run the command line; the project's own errors end it with one line and exit code 2."""
    try:
        app()
    except (InvalidExperiment, NoDevice) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
