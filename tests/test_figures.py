"""Figures from made-up runs: they leave wrong results out, say so, and give the same bytes twice."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from test_tracing import made_up

import variants
from common.decomposition import Schedule, always_two_tile
from common.errors import DamagedRun, nearest
from common.timeline import newest
from figures import NAMES, code_tables, readme, schedule, source, speedup
from figures.__main__ import HERE, RESULTS, render
from figures.source import MissingRun

ROOT = Path(__file__).parent.parent
MEASURED = {
    "speedup": source.POPULATIONS,
    "intensity": source.POPULATIONS,
    "roofline": source.POPULATIONS,
    "headline": ("headline",),
}
TRACED = {"timeline": (1536, 1792, 6016), "timeline_split": (256, 512, 32768)}
OF_CLAIMS = ("regressions", "ablations", "averages", "compiled", "grid", "waves", "swizzle", "rounding")
"""Tested in test_claim_figures.py."""
OF_CORPUS = ("landscape", "chosen", "win_map", "regret")
"""Tested in test_corpus_figures.py."""
MINE = [name for name in NAMES if name not in (*OF_CLAIMS, *OF_CORPUS)]
VARIANTS = (
    "empty",
    "torch_matmul",
    "torch_matmul",
    "data_parallel",
    "v05_cas_lock",
    "v08_while_loop",
    "v08_while_loop P=2*sms",
)


def candidate(label: str, number: int) -> dict[str, object]:
    """One entry of a header's list; the second cuBLAS gets a label of its own."""
    variant = label.split(" ")[0]
    return {"label": f"{label} #2" if label == "torch_matmul" and number == 2 else label, "variant": variant}


def write_run(folder: Path, experiment: str, count: int = 30, finished: bool = True) -> Path:
    """A run of `count` shapes; the last candidate is wrong on the first shape and absurdly fast there."""
    generator = random.Random(experiment)
    header = {
        "run": f"{experiment}-20300101-000000",
        "experiment": experiment,
        "dtype": "float16",
        "rounds": 9,
        "device": {"name": "NVIDIA H200", "sms": 132},
        "versions": {"torch": "2.13.0", "triton": "3.9.0"},
        "candidates": [candidate(label, number) for number, label in enumerate(VARIANTS)],
    }
    lines = [header]
    for number in range(count):
        shape = [256 * generator.randint(1, 32) for _ in range(3)]
        base = 4 + 2 * shape[0] * shape[1] * shape[2] / 6e8
        for position, label in enumerate(VARIANTS):
            slower = 1.0 if "torch" in label else 1 + generator.random()
            median = 3.0 if label == "empty" else base * slower
            wrong = number == 0 and position == len(VARIANTS) - 1
            samples = [median * (1 + 0.01 * generator.random()) for _ in range(9)]
            if wrong:
                samples = [base / 1e6] * 9
            lines.append({"p": shape, "c": position, "s": "incorrect" if wrong else "ok", "us": samples, "e": 1e-4})
    if finished:
        lines.append({"finished": {"ms_per_candidate_and_shape": 1.5}})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{header['run']}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with one finished run of each experiment that a figure shows."""
    folder = tmp_path / "results"
    for experiment in (*source.POPULATIONS, "headline"):
        write_run(folder, experiment)
    for problem in TRACED.values():
        name = f"trace-v05_cas_lock-{'x'.join(map(str, problem))}-20300101-000000"
        made_up("v05_cas_lock", always_two_tile(5, 5, 40, 8), trace=name, problem=problem).write(folder)
    return folder


@pytest.mark.parametrize("name", MINE)
def test_the_same_results_give_the_same_bytes(name: str, results: Path, tmp_path: Path) -> None:
    first, second = (render(name, results, tmp_path / folder) for folder in ("first", "second"))
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"<dc:date>" not in first[0].read_bytes()


@pytest.mark.parametrize("name", MEASURED)
def test_run_ids_stand_in_the_picture(name: str, results: Path, tmp_path: Path) -> None:
    text = render(name, results, tmp_path)[0].read_text()
    for experiment in MEASURED[name]:
        assert f"{experiment}-20300101-000000" in text


def test_a_wrong_result_has_no_speed_and_is_counted(results: Path, tmp_path: Path) -> None:
    run = source.require(results, "log_sampled")
    wrong = VARIANTS[-1]
    assert source.left_out(run, wrong) == {"incorrect": 1}
    assert len(run.speedups(wrong)) == len(run.speedups(VARIANTS[-2])) - 1
    assert speedup.limits_of([run])[1] < 10
    assert "1 incorrect" in render("speedup", results, tmp_path)[0].read_text()


def test_a_mean_over_fewer_problems_is_not_left_beside_the_others(tmp_path: Path) -> None:
    names = ("torch_matmul", "v03_incremental_pointers", "v04_hoisted_segments")
    header = {"run": "log_sampled-20300101-000000", "dtype": "float16", "rounds": 1, "device": {"name": "NVIDIA H200"}}
    header |= {"versions": {"torch": "2", "triton": "3"}, "candidates": [{"label": n, "variant": n} for n in names]}
    lines: list[dict[str, object]] = [header]
    for number in range(4):
        shape = [128, 128, 128 * (number + 1)]
        lines.append({"p": shape, "c": 0, "s": "ok", "us": [8.0]})
        right = {"s": "ok", "us": [32.0]} if number < 2 else {"s": "unsupported"}
        lines.append({"p": shape, "c": 1, **right})
        lines.append({"p": shape, "c": 2, "s": "ok", "us": [16.0 if number < 2 else 8.0]})
    path = tmp_path / f"{header['run']}.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, {"finished": {"wall_s": 1}}])) + "\n")
    (caution,) = [line for line in readme.render_table(tmp_path).splitlines() if "not to be compared" in line]
    assert "`v03_incremental_pointers`, whose problems are 2 of 4 of the paper's population" in caution
    assert "`v04_hoisted_segments` has 0.500" in caution


def test_a_wrong_result_on_a_headline_problem_is_a_word(results: Path, tmp_path: Path) -> None:
    assert "incorrect" in render("headline", results, tmp_path)[0].read_text()


def test_the_thread_averages_belong_to_its_own_population_alone(results: Path) -> None:
    runs = source.populations(results)
    drawn = {}
    for name, run in runs.items():
        _, axes = plt.subplots()
        speedup.panel(axes, name, run, source.labels(run), (0.1, 2))
        drawn[name] = sorted(line.get_xdata()[0] for line in axes.lines if line.get_marker() == "v")
        plt.close()
    assert drawn == {"thread_sampled": [0.962, 1.052, 1.063], "log_sampled": []}


@pytest.mark.parametrize("name", TRACED)
def test_a_timeline_names_its_file_and_what_tracing_cost(name: str, results: Path, tmp_path: Path) -> None:
    text = render(name, results, tmp_path)[0].read_text()
    assert f"trace-v05_cas_lock-{'x'.join(map(str, TRACED[name]))}-20300101-000000" in text
    assert "(+2.0% by tracing)" in text
    with pytest.raises(MissingRun, match="python -m variants trace"):
        render(name, tmp_path / "empty", tmp_path)


@pytest.mark.parametrize("name", MEASURED)
def test_an_unfinished_run_is_no_result(name: str, tmp_path: Path) -> None:
    for experiment in MEASURED[name]:
        write_run(tmp_path, experiment, count=2, finished=False)
    with pytest.raises(MissingRun, match="no finished run"):
        render(name, tmp_path, tmp_path)


def test_the_paper_example() -> None:
    placed = {name: schedule.place(s, 4) for name, s in schedule.example().items()}
    assert [schedule.makespan(p) for p in placed.values()] == [96, 80, 72, 72]
    assert [round(schedule.utilisation(p, 4), 2) for p in placed.values()] == [0.75, 0.9, 1.0, 1.0]


def test_a_processor_does_one_thing_at_a_time() -> None:
    placed = schedule.place(Schedule(3, 5, 7, 4, 7), 4)
    for processor in range(4):
        mine = sorted((p.begin, p.begin + len(p.segment)) for p in placed if p.processor == processor)
        assert all(stop <= begin for (_, stop), (begin, _) in itertools.pairwise(mine))
    assert sum(len(p.segment) for p in placed) == 3 * 5 * 7


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "figures", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_without_results_a_figure_is_left_out_with_a_line(tmp_path: Path) -> None:
    done = command("headline", "schedule", "--results", str(tmp_path), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "headline: not drawn" in done.stdout and "experiments/headline.yaml" in done.stdout
    assert (tmp_path / "schedule.svg").exists() and not (tmp_path / "headline.svg").exists()


def test_a_damaged_run_is_named_and_nothing_is_drawn_from_the_rest(results: Path, tmp_path: Path) -> None:
    path = next(results.glob("log_sampled-*.jsonl"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:-20], *lines[5:]]) + "\n")
    done = command("speedup", "headline", "--results", str(results), "--out", str(tmp_path))
    assert done.returncode == 2
    assert f"speedup: not drawn, {path}:5: " in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "headline.svg").exists() and not (tmp_path / "speedup.svg").exists()
    with pytest.raises(DamagedRun):
        readme.render_table(results)


def test_an_unknown_figure_is_refused_with_the_nearest() -> None:
    done = command("speedups")
    assert done.returncode == 2
    assert nearest("speedups", NAMES) in done.stderr


@pytest.mark.parametrize("name", MINE)
def test_the_committed_picture_shows_the_newest_run(name: str) -> None:
    from common.rows import newest_run

    runs = [run for experiment in MEASURED.get(name, ()) if (run := newest_run(RESULTS, experiment))]
    runs += newest(RESULTS, TRACED[name]) if name in TRACED else []
    picture = HERE / f"{name}.svg"
    if name in {**MEASURED, **TRACED} and not runs:
        assert not picture.exists(), f"{picture.name} has no measurement behind it"
        return
    text = picture.read_text()
    assert [run.id for run in runs if run.id not in text] == [], f"{picture.name} is stale: make figures"
    assert picture.with_suffix(".png").exists()


@pytest.mark.parametrize("name", ["resources", "hot_loop"])
def test_a_picture_of_compiled_code_has_every_variant(name: str) -> None:
    text = (HERE / f"{name}.svg").read_text()
    assert [variant for variant in variants.names() if variant not in text] == []
    assert "v18_square_clusters  256x256x64 w12 s5" in text


def test_a_kernel_for_one_architecture_has_a_row_there_alone() -> None:
    version = code_tables.newest()
    found = code_tables.lines(version, ["v08_while_loop"], ("sm_80", "sm_90"))
    there = {label.split()[0]: [row is not None for row in line] for label, line in found.items()}
    assert there["v08_while_loop"] == there["v09_whole_waves"] == [True, True]
    assert there["v10_warp_specialised"] == [False, True]
    with pytest.raises(MissingRun, match=r"Triton 2\.0\.0 has no v09_whole_waves"):
        code_tables.own("2.0.0", "v09_whole_waves", "sm_80")


def test_lines_of_descent_do_not_run_into_each_other() -> None:
    from figures import lineage

    rows = lineage.steps()
    places = {name: (lane, row) for row, (name, _, lane) in enumerate(rows)}
    for name, parent, lane in rows:
        if parent is None:
            continue
        above, own = places[parent][1], places[name][1]
        assert above < own
        between = [other for other, (its, row) in places.items() if its == lane and above < row < own]
        assert all(other == parent for other in between), f"{name}'s line to {parent} passes {between}"
