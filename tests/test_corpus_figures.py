"""Figures of the corpus from made-up runs: what they average, what they leave out, and that they are not stale."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from common.population import stratum
from common.rows import geometric_mean, newest_run, read_run
from experiments.spec import Sample
from figures import corpus, regret, win_map
from figures.__main__ import HERE, RESULTS, render
from figures.source import MissingRun

SHOWS = {
    "landscape": ("corpus_128", "corpus_8"),
    "chosen": ("corpus_128", "corpus_8"),
    "win_map": ("corpus_128", "corpus_8"),
    "regret": ("corpus_regret",),
}
LABELS = ("torch_matmul", "torch_matmul #2", "matmul", "v09_whole_waves split=1", "v09_whole_waves split=4")
US = (10.0, 10.1, 8.0, 12.0, 7.5)
"""Microseconds of each, whatever the shape."""


def write_run(folder: Path, experiment: str, count: int = 400, finished: bool = True) -> Path:
    """A run in which the choice is wrong, and absurdly fast, on the first shape."""
    generator = random.Random(experiment)
    header = {
        "run": f"{experiment}-20300101-000000",
        "experiment": experiment,
        "dtype": "float16",
        "rounds": 9,
        "commit": "abc",
    }
    header |= {"device": {"name": "NVIDIA H200", "sms": 132}, "versions": {"torch": "2.11", "triton": "3.9.0"}}
    header["candidates"] = [{"label": label, "variant": label.split(" ")[0]} for label in LABELS]
    lines: list[dict] = [header]
    sample = Sample(distribution="log_uniform", low=128, high=8192, step=128, count=count, seed=3, part="report")
    for number, shape in enumerate(sample.shapes()):
        for index, us in enumerate(US):
            wrong = number == 0 and index == 2
            samples = [0.001 if wrong else us * (1 + 0.001 * generator.random()) for _ in range(5)]
            lines.append({"p": shape, "c": index, "s": "incorrect" if wrong else "ok", "us": samples, "e": 1e-4})
    if finished:
        lines.append({"finished": {"wall_s": 1.0}})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{header['run']}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for experiment in ("corpus_128", "corpus_8", "corpus_regret"):
        write_run(folder, experiment)
    return folder


@pytest.mark.parametrize("name", SHOWS)
def test_the_same_results_give_the_same_bytes_and_name_their_runs(name: str, results: Path, tmp_path: Path) -> None:
    first, second = (render(name, results, tmp_path / folder) for folder in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for experiment in SHOWS[name]:
        assert f"{experiment}-20300101-000000" in first[0].read_text()


@pytest.mark.parametrize("name", SHOWS)
def test_an_unfinished_run_is_no_result(name: str, tmp_path: Path) -> None:
    write_run(tmp_path, SHOWS[name][0], count=3, finished=False)
    with pytest.raises(MissingRun, match="no finished run"):
        render(name, tmp_path, tmp_path)


def test_a_wrong_result_is_in_no_average(results: Path) -> None:
    speedups = corpus.corpora(results)["corpus_128"].speedups(corpus.CHOSEN)
    found = corpus.Summary.of(list(speedups.values()))
    assert found.count == 399 and found.won == 1.0
    assert found.mean == pytest.approx(1.25, rel=0.002) and found.worst > 1.2
    classes = corpus.by_class(speedups)
    assert sum(map(len, classes.values())) == 399
    assert set(classes) == {stratum(shape) for shape in speedups}


def test_cells_hold_the_geometric_mean_and_are_empty_where_few_shapes_are(results: Path) -> None:
    speedups = corpus.corpora(results)["corpus_128"].speedups(corpus.CHOSEN)
    across, up, mean = win_map.cells(speedups)
    assert mean.shape == (len(up) - 1, len(across) - 1) == (win_map.ROWS, win_map.COLUMNS)
    assert np.isnan(mean).any()
    assert np.nanmin(mean) == pytest.approx(np.log2(1.25), abs=0.01) == np.nanmax(mean)


def test_regret_compares_with_the_best_other_kernel(results: Path) -> None:
    run = newest_run(results, "corpus_regret")
    found = regret.regrets(run)
    assert len(found) == 399
    assert geometric_mean(found.values()) == pytest.approx(8.0 / 7.5, rel=0.002)


def test_noise_alone_makes_no_regret(tmp_path: Path) -> None:
    """The least of many noisy medians would be 10 % below each; picked and compared on different samples it is not."""
    path = write_run(tmp_path, "corpus_regret", count=300)
    noise = random.Random(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    labels = [*LABELS[:3], *(f"v09_whole_waves split={i}" for i in range(20))]
    lines[0]["candidates"] = [{"label": label, "variant": label.split(" ")[0]} for label in labels]
    shapes = list(dict.fromkeys(tuple(line["p"]) for line in lines[1:-1]))
    rows = [
        {"p": shape, "c": index, "s": "ok", "us": [10 * (1 + 0.05 * noise.gauss(0, 1)) for _ in range(5)], "e": 1e-4}
        for shape in shapes
        for index in range(len(labels))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], *rows, lines[-1]]))
    assert geometric_mean(regret.regrets(read_run(path)).values()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("name", SHOWS)
def test_the_committed_picture_shows_the_newest_run(name: str) -> None:
    there = [run for experiment in SHOWS[name] if (run := newest_run(RESULTS, experiment))]
    picture = HERE / f"{name}.svg"
    if not there:
        assert not picture.exists(), f"{picture.name} has no measurement behind it"
        return
    assert [run.id for run in there if run.id not in picture.read_text()] == [], (
        f"{picture.name} is stale: make figures"
    )
