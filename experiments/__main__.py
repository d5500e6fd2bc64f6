"""The command line of the experiments: `python -m experiments list | run | show | compare | claims | …`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common import rows
from common.errors import DamagedRun, InvalidExperiment, NoDevice, nearest, run_command_line
from common.output import RESULTS, destination, width
from experiments import spent, tables

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)
HERE = Path(__file__).parent

Only = Annotated[str | None, typer.Option(help="these variants alone, comma-separated; cuBLAS stays in a sweep")]
Metrics = Annotated[str | None, typer.Option(help=f"what to print, comma-separated: {', '.join(tables.METRICS)}")]
Out = Annotated[
    Path | None,
    typer.Option(help="where results go; default experiments/results, in the interpreter experiments/dry_runs"),
]
Csv = Annotated[bool, typer.Option("--csv", help="print the table as CSV")]


@app.command("list")
def list_experiments(as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False) -> None:
    """List the experiments with their question, problems, candidates and the newest finished run."""
    from experiments.spec import files, load

    found = []
    for path in files(HERE):
        experiment = load(path)
        try:
            newest = rows.newest_run(RESULTS, experiment.name)
            known = newest.id if newest else None
        except DamagedRun as error:
            known = f"damaged: {error}"
        found.append(
            {
                "file": path.name,
                "question": experiment.question,
                "problems": len(experiment.problems.all()),
                "candidates": len(experiment.all_candidates()),
                "newest_run": known,
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
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with a run that was stopped, if there is one")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first LIMIT problems")] = None,
    out: Out = None,
    device: Annotated[
        Literal["cuda", "interpreter"], typer.Option(help="interpreter: check correctness on the CPU, no speeds")
    ] = "cuda",
    time_wrong_results: Annotated[
        bool,
        typer.Option("--time-wrong-results", help="time what is wrong too; no figure shows its speed"),
    ] = False,
    scheduler: Annotated[
        str | None, typer.Option(help="measure on the workers of this Dask scheduler, for example tcp://host:8786")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="measure on this host's GPUs, a worker each: all, or how many")
    ] = None,
    only: Only = None,
    input_loader: Annotated[
        Path | None, typer.Option(help="measure the shapes of this CSV or JSON file instead of the experiment's")
    ] = None,
    metrics: Metrics = None,
    as_csv: Csv = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary, or --metrics' table, as JSON")] = False,
) -> None:
    """Measure an experiment. Rows are appended as they are measured; a killed run goes on with --resume.

    Ends with 1 where not one row is ok.
    """
    _one_format(as_csv, as_json)
    # The worker inherits it; a process either interprets or compiles.
    os.environ["TRITON_INTERPRET"] = "1" if device == "interpreter" else "0"
    from common import interpreter
    from experiments.runner import Sweep
    from experiments.shapes import load_shapes
    from experiments.spec import load, restricted

    shown = metrics and tables.parse_metrics(metrics)
    shapes = load_shapes(input_loader) if input_loader else None
    experiment = restricted(load(file), only, shapes, input_loader.stem if input_loader else "")
    if device == "interpreter":
        interpreter.require_interpreter()
    elif scheduler is None:
        _require_gpu()
    folder = destination(out, device == "interpreter")
    with _hired(scheduler, gpus, device) as hire, _shown(experiment.name) as on_progress:
        sweep = Sweep(
            experiment,
            folder,
            resume,
            limit,
            on_progress,
            _say,
            wrong_results=time_wrong_results,
            hire=hire,
        )
        try:
            path = sweep.run()
        except KeyboardInterrupt:
            print("interrupted: --resume goes on where it stopped", file=sys.stderr)
            raise typer.Exit(130) from None
    finished = rows.read_run(path)
    if shown or as_csv:
        _print_table(finished, None, shown or ["latency"], as_csv, as_json)
        print(path, file=sys.stderr)
    else:
        print(json.dumps(_summary(finished)) if as_json else _told(finished))
    if not any(row.status == "ok" for row in finished.rows):
        print(f"nothing came out right: not one of {len(finished.rows)} rows is ok", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def stress(
    launches: Annotated[
        int, typer.Option(min=1, help="launches of random problems, all variants together")
    ] = 1_000_000,
    replays: Annotated[int, typer.Option(min=1, help="replays of one captured launch, for each variant")] = 10_000,
    problems: Annotated[int, typer.Option(min=1, help="random problems for each variant")] = 40,
    only: Annotated[str | None, typer.Option(help="these variants alone, comma-separated")] = None,
    modes: Annotated[
        str | None, typer.Option(help="of random, replay, beside, guard, sanitizer; comma-separated, default all")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes at a time, one a variant")] = 4,
    limit: Annotated[float, typer.Option(min=1, help="seconds of silence after which a process is killed")] = 60.0,
    sanitizer_limit: Annotated[
        float, typer.Option(min=1, help="seconds for everything that the sanitizer does")
    ] = 240.0,
    seed: Annotated[int, typer.Option(help="of the problems and inputs")] = 0,
    out: Out = None,
    device: Annotated[
        Literal["cuda", "interpreter"], typer.Option(help="interpreter: a try on the CPU, which is no result")
    ] = "cuda",
) -> None:
    """Launch every variant very often on integers, on two streams and beside another kernel; compare exactly.

    Ends with 1 where a result is wrong, a process hangs or crashes, or a sanitizer finds something.
    """
    os.environ["TRITON_INTERPRET"] = "1" if device == "interpreter" else "0"
    from common import interpreter

    if device == "cuda":
        _require_gpu()
    else:
        interpreter.require_interpreter()
    from common import documents
    from experiments.stress import MODES, SANITIZER, plan, record, sanitized, summary

    work = plan(launches, replays, problems, only, modes, seed, device == "interpreter")
    work.jobs, work.limit = jobs, limit
    work.notice = _say
    folder = destination(out, device == "interpreter")
    asked = {"launches": launches, "replays": replays, "problems": problems, "seed": seed, "jobs": jobs}
    wanted, paths = work.tasks[0].modes, []
    try:
        if set(wanted) & set(MODES):
            paths.append(record(work, folder, dry_run=device == "interpreter", asked=asked))
        if SANITIZER in wanted and device == "cuda":
            found = sanitized([task.variant for task in work.tasks], work.notice, sanitizer_limit, jobs)
            paths.append(documents.write(folder, SANITIZER, documents.header(), found))
    except KeyboardInterrupt:
        print(f"interrupted: what was done is in {folder / 'stress.jsonl'}", file=sys.stderr)
        raise typer.Exit(130) from None
    found = [row for path in paths for row in documents.read(path).records]
    print("\n".join([*map(str, paths), summary(found)]))
    raise typer.Exit(any(row["status"] not in ("ok", "clean", "unavailable") for row in found))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="a run's file, or an experiment's name for its newest finished run")],
    only: Only = None,
    metrics: Metrics = None,
    as_csv: Csv = False,
    as_json: Annotated[bool, typer.Option("--json", help="print a list of objects, one a problem")] = False,
    results: Annotated[Path, typer.Option(help="where measurements lie")] = RESULTS,
) -> None:
    """Print a run as a table, a row a problem and a column a candidate and metric."""
    from experiments.compare import load_run

    _one_format(as_csv, as_json)
    path = Path(run)
    a_file = path.exists() and path.suffix != ".yaml"
    name = path.stem if path.suffix == ".yaml" else run
    found = load_run(path) if a_file else rows.newest_run(results, name)
    if found is None:
        near = nearest(name, {known.name.rsplit("-", 2)[0] for known in results.glob("*.jsonl*")})
        raise InvalidExperiment(f"{name} is no run's file, and {results} has no finished run of it; nearest: {near}")
    _print_table(found, only, tables.parse_metrics(metrics or "latency"), as_csv, as_json)


def _one_format(as_csv: bool, as_json: bool) -> None:
    if as_csv and as_json:
        raise InvalidExperiment("--csv and --json: one of both")


def _print_table(run: rows.Run, only: str | None, metrics: list[str], as_csv: bool, as_json: bool = False) -> None:
    columns, lines = tables.table(run, tables.chosen([c["label"] for c in run.candidates], only), metrics)
    if as_json:
        print(tables.as_json(columns, lines))
    elif as_csv:
        print(tables.as_csv(columns, lines), end="")
    else:
        Console(width=width(200)).print(tables.as_text(columns, lines))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="the run before, .jsonl or .jsonl.xz")],
    b: Annotated[Path, typer.Argument(help="the run after: another Triton, another GPU, another commit")],
    only: Only = None,
    floor: Annotated[
        float | None, typer.Option(min=0, help="a relative difference that is noise; default from cuBLAS's repeats")
    ] = None,
    over_cublas: Annotated[
        bool, typer.Option("--over-cublas", help="compare speed-ups over cuBLAS, as between two GPUs")
    ] = False,
    need: Annotated[
        float, typer.Option(min=0, max=1, help="the share of each run's problems without which the exit code is 1")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
) -> None:
    """Compare two runs on the problems that both have. Exit code 1 where B is slower beyond the noise or lost a right
    result, or where they have less in common than --need asks for.
    """
    from experiments import compare as comparing

    found = comparing.compare(comparing.load_run(a), comparing.load_run(b), only, floor, over_cublas)
    if as_json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        *lines, conclusion = comparing.as_lines(found)
        print("\n".join(lines))
        Console(width=width(160)).print(comparing.as_table(found))
        print(conclusion)
    enough = found.overlap.share >= need
    if not enough or found.overlap.share < comparing.LITTLE:
        what = "the verdict holds for these alone" if enough else f"--need {need:g} asks for more"
        print(f"compared: {found.overlap}; {what}", file=sys.stderr)
    raise typer.Exit(0 if enough and not found.worse else 1)


@app.command()
def facts(
    out: Out = None,
    device: Annotated[
        Literal["cuda", "interpreter"], typer.Option(help="interpreter: a small dry run on the CPU")
    ] = "cuda",
) -> None:
    """Measure facts about results: v03's third tile, the spread of NaN, rounding by peers, bits that vary."""
    wanted = "1" if device == "interpreter" else "0"
    if os.environ.get("TRITON_INTERPRET", "0") != wanted:
        # A process either interprets or compiles, and this one has made its choice.
        again = [sys.executable, "-m", "experiments", *sys.argv[1:]]
        raise typer.Exit(subprocess.run(again, env=os.environ | {"TRITON_INTERPRET": wanted}).returncode)
    from common import interpreter
    from experiments.facts import measure

    if device == "cuda":
        _require_gpu()
    else:
        interpreter.require_interpreter()
    folder = destination(out, device == "interpreter")
    print(measure(folder, _say))


@app.command()
def overheads(out: Out = None) -> None:
    """Measure the host's part of a call of variants.matmul like one before, and what putting a tile together takes."""
    folder = _folder_of_a_gpus(out, "its overheads cannot be measured elsewhere")
    from experiments.overheads import measure

    print("\n".join(map(str, measure(folder, _say))))


@app.command("main-loop")
def main_loop(out: Out = None) -> None:
    """Measure an iteration of each main loop beside what tensor cores and shared memory would take for it alone."""
    folder = _folder_of_a_gpus(out, "its main loops cannot be measured elsewhere")
    from experiments.main_loop import measure

    print(measure(folder, _say))


@app.command()
def counters(
    file: Annotated[Path, typer.Argument(help="an experiment whose calls are profiled")] = HERE / "counters.yaml",
    out: Out = None,
    inside: Annotated[bool, typer.Option("--inside", hidden=True)] = False,
) -> None:
    """Read hardware counters of an experiment's calls with Nsight Compute; of the claims', also model the bytes."""
    from common import documents
    from experiments import counters as profiling
    from experiments.estimates import THREAD, machine
    from experiments.estimates import measure as estimate
    from experiments.spec import load

    experiment = load(file)
    _require_gpu("`python -m experiments estimates` models the same bytes without one")
    if inside:
        profiling.inside(experiment)
        return
    path = profiling.measure(file, experiment, destination(out))
    head = documents.read(path).header
    print(f"{path}\nsource: {head['source']}" + (f" ({head['reason']})" if head["reason"] else ""))
    if profiling.kind_of(experiment) == profiling.KIND:
        print(estimate(experiment, [machine(head["device"]), *THREAD], destination(out)))


@app.command()
def compiled(out: Out = None) -> None:
    """Compile every kernel that a claim asks about, by each Triton that it names; needs no GPU."""
    from experiments import claims as schema
    from experiments.compiled import measure

    print(measure(schema.load(), destination(out)))


@app.command()
def interpreted(out: Out = None) -> None:
    """Run in Triton's interpreter what a claim says is right there; needs no GPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        # A process either interprets or compiles, and this one has made its choice.
        again = [sys.executable, "-m", "experiments", *sys.argv[1:]]
        raise typer.Exit(subprocess.run(again, env=os.environ | {"TRITON_INTERPRET": "1"}).returncode)
    from common import interpreter
    from experiments import claims as schema
    from experiments.interpreted import measure

    interpreter.require_interpreter()
    print(measure(schema.load().interpreted(), destination(out)))


@app.command()
def estimates(
    file: Annotated[Path, typer.Argument(help="an experiment whose calls are modelled")] = HERE / "counters.yaml",
    results: Annotated[
        Path, typer.Option(help="where counters lie, whose GPU is modelled beside the thread's")
    ] = RESULTS,
    out: Out = None,
) -> None:
    """Model the bytes that an experiment's calls read from memory, on the thread's GPUs too; needs no GPU."""
    from common import documents
    from experiments.estimates import THREAD, machine, measure
    from experiments.spec import load

    counted = documents.newest(results, "counters")
    here = [machine(counted.header["device"])] if counted else []
    print(measure(load(file), [*here, *THREAD], destination(out)))


@app.command()
def regressions(
    out: Annotated[Path | None, typer.Option(help="where results go; default experiments/results")] = None,
    only: Annotated[str | None, typer.Option(help="these steps alone, comma-separated: sweeps or documents")] = None,
) -> None:
    """Ask every claim again on this machine's GPU and print the verdicts of this GPU's rows alone.

    Exit code 1 where a step failed; the others are done all the same.
    """
    from experiments.regressions import device_name, run_all, steps

    steps(Path(), only)  # a misspelt step is told before a GPU is asked for
    _require_gpu("`python -m experiments claims` prints the committed verdicts")
    folder = destination(out)
    failed = run_all(folder, only, _say)
    _print_claims(folder, device_name(), (), as_json=False)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def claims(
    names: Annotated[list[str] | None, typer.Argument(help="claims, default all", metavar="C01…")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
    results: Annotated[Path, typer.Option(help="where measurements lie")] = RESULTS,
    device: Annotated[
        str | None, typer.Option(help="the GPU whose rows count, by its name; default that of the newest run")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="print what each rule asks for")] = False,
    sweeps: Annotated[bool, typer.Option("--experiments", help="print the sweeps that the claims read")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="print each claim and its verdict alone")] = False,
) -> None:
    """Print the thread's claims with verdicts from committed measurements, and the machine they come from."""
    from experiments import claims as schema
    from experiments import verdicts

    known = schema.load()
    wanted = tuple(schema.chosen_ids(names or ()))
    if rules:
        print("\n".join(f"{rule}: {meaning}" for rule, meaning in schema.RULES.items()))
        return
    if sweeps:
        print("\n".join(known.experiments()))
        return
    if device is not None and results.is_dir() and device not in (there := verdicts.devices(results)):
        raise InvalidExperiment(f"{results} has no rows of a {device!r}; nearest: {nearest(device, there)}")
    _print_claims(results, device, wanted, as_json, brief)


def _print_claims(
    results: Path, device: str | None, wanted: tuple[str, ...], as_json: bool, brief: bool = False
) -> None:
    from experiments import verdicts

    found, machines = verdicts.committed(results, device)
    found = [answer for answer in found if not wanted or answer.claim.id in wanted]
    if as_json:
        head = {"machines": machines, "negligible": verdicts.MARGIN}
        print(json.dumps(head | {"claims": [answer.as_dict() for answer in found]}, indent=1))
        return
    _print_answers(found, brief)
    nothing = f"nothing yet on {device}" if device else "nothing yet"
    print(f"{verdicts.BAND}, by every rule\nmeasured on: {'; '.join(machines) or nothing}")


def _print_answers(found: list[Any], brief: bool) -> None:
    from rich import box
    from rich.table import Table

    from experiments import verdicts

    shown = Table(box=box.SIMPLE, show_lines=False)
    for column in ("claim", "what is asked", "on", "thread", "here", "verdict"):
        shown.add_column(column, no_wrap=column == "claim", overflow="fold")
    for answer in found:
        if brief:
            shown.add_row(answer.claim.id, answer.claim.statement, "", answer.claim.numbers, "", answer.verdict)
            continue
        went = "\n".join(f"in compiled code: {text}" for text in verdicts.gone(answer))
        shown.add_row(answer.claim.id, answer.claim.statement, "", answer.claim.numbers, went, answer.verdict)
        for mark, outcomes in (("*", answer.deciding), ("-", verdicts.others(answer))):
            for outcome in outcomes:
                claimed = f"{outcome.claimed:g}" if outcome.claimed else ""
                here = "; ".join(text for text in (outcome.told, outcome.reason) if text)
                line = f"{mark} {outcome.name}", outcome.about, claimed, here, outcome.verdict
                shown.add_row("", *line, style="dim" if mark == "-" else "")
        for text in verdicts.by_compiler(answer):
            what, _, versions = text.partition(": ")
            shown.add_row("", f"- {what}", "compiled", "", versions, "", style="dim")
    Console(width=width(160)).print(shown, highlight=False)


@app.command()
def fit(
    names: Annotated[
        list[str] | None, typer.Option("--run", help="a run's name, may be repeated; default every run that is for it")
    ] = None,
    results: Annotated[Path, typer.Option(help="where measurements lie")] = RESULTS,
    out: Annotated[Path | None, typer.Option(help="the data file; default the one that variants.matmul reads")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print what was fitted as JSON")] = False,
) -> None:
    """Fit the constants and corrections behind variants.matmul's choice to runs over shapes that are for fitting."""
    from experiments.fit import EXPERIMENTS, write
    from experiments.fit import fit as fit_to
    from variants.choice import COSTS

    if names:
        runs = [_named_run(results, name) for name in names]
    else:
        paths = [path for experiment in EXPERIMENTS for path in rows.runs(results, experiment)]
        runs = [rows.read_run(path) for path in sorted(paths) if rows.says_finished(path)]
    if not runs:
        raise InvalidExperiment(
            f"{results} has no finished run to fit to: python -m experiments run experiments/matmul_training.yaml"
        )
    costs = fit_to(runs)
    write(costs, runs, out or COSTS)
    if as_json:
        print(json.dumps([fitted.as_dict() for fitted in costs.families]))
        return
    print(
        f"{', '.join(run.id for run in runs)}: constants of {len(costs.families)} kernels and tiles in {out or COSTS}"
    )
    for fitted in costs.families:
        shape = " ".join(f"{key}={value}" for key, value in fitted.config.items())
        errors = f"off by {fitted.log_error:.1%}, on held-out shapes corrected by {fitted.corrected_log_error:.1%}"
        print(f"{fitted.variant} {shape} x{fitted.programs_per_sm}: {fitted.rows} rows, {errors}")


def _named_run(results: Path, name: str) -> rows.Run:
    """The run with this name. Raises InvalidExperiment naming the nearest ones."""
    there = {path.name.split(".")[0]: path for path in results.glob("*.jsonl*")}
    if name not in there:
        raise InvalidExperiment(f"no run {name!r} in {results}; nearest: {nearest(name, there)}")
    return rows.read_run(there[name])


@contextmanager
def _hired(scheduler: str | None, gpus: str | None, device: str) -> Iterator[Callable[..., Any]]:
    """What makes the crew of a sweep: one worker here, or those of a Dask cluster."""
    from experiments.runner import Bench

    if scheduler is None and gpus is None:
        yield Bench
        return
    if scheduler is not None and gpus is not None:
        raise InvalidExperiment("--scheduler and --gpus: one of both; a scheduler's workers have their own GPUs")
    try:
        from experiments import cluster
    except ImportError as error:
        raise InvalidExperiment(f"no {error.name} here: pip install 'stream-k-zoo[cluster]'") from None
    with cluster.connected(scheduler, gpus, device == "interpreter") as client:
        yield lambda job, limit_s, notice: cluster.Crew(client, job, limit_s, notice)


@contextmanager
def _shown(name: str) -> Iterator[Callable[[int, int, object], None]]:
    """A bar with the time left on a terminal, else a line every ten seconds at most."""
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    began = last = time.monotonic()

    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def on_progress(done: int, total: int, problem: object) -> None:
            nonlocal last
            progress.update(bar, completed=done, total=total)
            now = time.monotonic()
            if not console.is_terminal and (done == total or now - last >= 10):
                last, left = now, (now - began) / done * (total - done)
                print(f"{name}: {done}/{total}, {left:.0f} s left (last {problem})", file=sys.stderr, flush=True)

        yield on_progress


def _summary(finished: rows.Run) -> dict[str, Any]:
    counted = {label: finished.counts(label) for label in (c["label"] for c in finished.candidates)}
    return {"run": str(finished.path), "statuses": counted, **(finished.finished or {})}


def _told(finished: rows.Run) -> str:
    """The file, rows by status, the harness' floor and cost, and how far cuBLAS differs from itself."""
    facts, lines = finished.finished or {}, [str(finished.path)]
    statuses = Counter(row.status for row in finished.rows)
    lines.append(f"rows: {', '.join(f'{count} {status}' for status, count in statuses.most_common())}")
    if "seconds" in facts:
        lines.append(f"seconds by part: {spent.told(facts['seconds'])}")
    if finished.header.get("dry_run"):
        return "\n".join([*lines, "a dry run: results were checked in the interpreter, nothing was timed"])
    if "empty_us" in facts:
        lines.append(f"empty kernel: {facts['empty_us']} us")
    if "ms_per_candidate_and_shape" in facts:
        lines.append(f"harness: {facts['ms_per_candidate_and_shape']} ms a candidate and shape")
    if "cublas_to_itself" in facts:
        low, high = facts["cublas_to_itself_95"]
        lines.append(f"cuBLAS to itself: {facts['cublas_to_itself']} (95 % of the problems in {low} to {high})")
    if facts.get("retaken"):
        lines.append(f"samples taken again because the host was late: {facts['retaken']}")
    return "\n".join(lines)


def _require_gpu(instead: str = "`--device interpreter` checks correctness on the CPU, without speeds") -> None:
    import torch

    if not torch.cuda.is_available():
        raise NoDevice(f"no NVIDIA GPU was found: {instead}")


def _folder_of_a_gpus(out: Path | None, instead: str) -> Path:
    """Where results of a command go that measures on this machine's GPU alone. Raises NoDevice, NotWritable."""
    os.environ["TRITON_INTERPRET"] = "0"
    _require_gpu(instead)
    return destination(out, False)


def _say(text: str) -> None:
    """Progress, beside what a command prints."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line."""
    run_command_line(app)


if __name__ == "__main__":
    main()
