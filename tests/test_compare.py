"""Comparing two runs, tables with tritonbench's metrics, shape lists of other benchmarks."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from common import rows
from common.errors import InvalidExperiment
from common.rows import Row, encode
from experiments import tables
from experiments.__main__ import RESULTS, app
from experiments.compare import compare, load_run, noise_floor
from experiments.shapes import load_shapes
from experiments.spec import load, restricted

HERE = Path(__file__).parent.parent / "experiments"
LABELS = ("empty", "torch_matmul", "torch_matmul #2", "v05_cas_lock", "v08_while_loop")
SHAPES = [(128 * m, 256, 512) for m in range(1, 21)]


def write(folder: Path, name: str, factors: dict[str, float] | None = None, **changes: Any) -> Path:
    """A run of 20 problems; `factors` make candidates slower. `wrong`: a candidate that is wrong on every problem."""
    generator, wrong = random.Random(1), changes.pop("wrong", None)
    header = {
        "run": f"{name}-20300101-000000",
        "experiment": name,
        "dtype": "float16",
        "rounds": 3,
        "commit": "0" * 12,
        "device": {"name": "NVIDIA H200", "uuid": "GPU-1"},
        "versions": {"torch": "2.11.0", "triton": "3.9.0"},
        "candidates": [{"label": label, "variant": label.split(" ")[0], "source_hash": "1"} for label in LABELS],
    }
    lines = [json.dumps(header | changes)]
    for number, shape in enumerate(SHAPES):
        for position, label in enumerate(LABELS):
            time = (10 + number) * (factors or {}).get(label, 1.0)
            samples = tuple(time * generator.uniform(0.999, 1.001) for _ in range(3))
            row = Row(shape, position, "ok", samples, 1e-4)
            lines.append(encode(Row(shape, position, "incorrect", (), 0.5) if label == wrong else row))
    lines.append(json.dumps({"finished": {"cublas_to_itself_95": [0.99, 1.01]}}))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{header['run']}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def runs(tmp_path: Path):
    """Two runs: the second with factors."""

    def made(factors: dict[str, float] | None = None, **changes: Any) -> tuple[Path, Path]:
        return write(tmp_path, "before"), write(tmp_path, "after", factors, **changes)

    return made


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize(("factor", "verdict", "code"), [(1.0, "same", 0), (1.2, "slower", 1), (0.8, "faster", 0)])
def test_a_slower_candidate_is_found_and_ends_with_1(runs, factor: float, verdict: str, code: int) -> None:
    a, b = runs({"v05_cas_lock": factor})
    done = invoke("compare", a, b, "--json")
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    by_label = {c["label"]: c for c in found["candidates"]}
    assert by_label["v05_cas_lock"]["verdict"] == verdict
    assert by_label["v08_while_loop"]["verdict"] == "same"
    assert by_label["v05_cas_lock"]["low"] <= factor * 1.001 and by_label["v05_cas_lock"]["high"] >= factor * 0.999
    assert by_label["v05_cas_lock"]["slower"] == (20 if factor > 1 else 0)
    assert found["floor"] == pytest.approx(0.0101, abs=1e-3)
    assert verdict in invoke("compare", a, b).stdout


def test_what_is_within_the_noise_floor_is_the_same(runs) -> None:
    a, b = runs({"v05_cas_lock": 1.008})
    assert invoke("compare", a, b).exit_code == 0
    assert invoke("compare", a, b, "--floor", "0.001").exit_code == 1


def test_a_lost_result_is_worse_and_a_won_one_is_not(runs) -> None:
    a, b = runs(wrong="v08_while_loop")
    done = invoke("compare", a, b)
    assert done.exit_code == 1 and "ok -> incorrect on 20 problems" in done.stdout
    assert invoke("compare", b, a).exit_code == 0
    found = compare(load_run(a), load_run(b))
    assert next(c for c in found.candidates if c.label == "v08_while_loop").verdict == "nothing to compare"


def test_another_gpu_is_compared_over_cublas(runs) -> None:
    everything_twice = dict.fromkeys(LABELS, 2.0) | {"v05_cas_lock": 3.0}
    a, b = runs(everything_twice, device={"name": "NVIDIA A100", "uuid": "GPU-2"})
    found = compare(load_run(a), load_run(b), over_cublas=True)
    assert found.differences["device"] == ("NVIDIA H200", "NVIDIA A100")
    assert {c.label: c.verdict for c in found.candidates} == {"v05_cas_lock": "slower", "v08_while_loop": "same"}
    assert next(c for c in found.candidates if c.label == "v05_cas_lock").ratio == pytest.approx(1.5, rel=0.01)


def test_one_problem_takes_its_interval_from_the_samples(runs) -> None:
    a, b = (load_run(path) for path in runs({"v05_cas_lock": 1.2}))
    for run in (a, b):
        run.rows = [row for row in run.rows if row.problem == SHAPES[0]]
    found = next(c for c in compare(a, b).candidates if c.label == "v05_cas_lock")
    assert found.low < found.ratio < found.high and found.verdict == "slower"


def test_what_cannot_be_compared_is_said(runs, tmp_path: Path) -> None:
    a, b = runs()
    other = load_run(b)
    other.rows = []
    with pytest.raises(InvalidExperiment, match="no problem in common"):
        compare(load_run(a), other)
    with pytest.raises(InvalidExperiment, match="--only v55: no variant"):
        compare(load_run(a), load_run(b), only="v55")
    (tmp_path / "x.jsonl").write_text("no json\n")
    for path in (tmp_path / "x.jsonl", tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(InvalidExperiment, match=re.escape(str(path))):
            load_run(path)


def keep(path: Path, shapes: list[tuple[int, int, int]], *labels: str) -> Path:
    """The run with these problems and candidates alone."""
    head, *lines, end = path.read_text().splitlines()
    header, found = json.loads(head), [json.loads(line) for line in lines]
    kept = [c for c in header["candidates"] if not labels or c["label"] in labels]
    new = {header["candidates"].index(c): place for place, c in enumerate(kept)}
    found = [row | {"c": new[row["c"]]} for row in found if tuple(row["p"]) in shapes and row["c"] in new]
    path.write_text("\n".join(map(json.dumps, [header | {"candidates": kept}, *found, json.loads(end)])) + "\n")
    return path


def test_what_only_one_run_has_is_counted_and_little_overlap_is_said(runs) -> None:
    a, b = runs()
    keep(a, SHAPES[:12], "torch_matmul", "v05_cas_lock")
    keep(b, SHAPES[9:], "torch_matmul", "v08_while_loop")
    done = invoke("compare", a, b)
    assert done.exit_code == 0 and done.stdout.strip().endswith("worse: no, on 3 of A's 12 and B's 11 problems")
    assert "candidates of A alone: 1 (v05_cas_lock)\ncandidates of B alone: 1 (v08_while_loop)" in done.stdout
    assert done.stderr == "compared: 3 of A's 12 and B's 11 problems; the verdict holds for these alone\n"
    assert json.loads(invoke("compare", a, b, "--json").stdout)["overlap"] == {
        "problems": 3,
        "problems_only_a": 9,
        "problems_only_b": 8,
        "candidates_only_a": ["v05_cas_lock"],
        "candidates_only_b": ["v08_while_loop"],
    }


@pytest.mark.parametrize(
    ("problems", "need", "code", "said"),
    [
        (20, "1", 0, ""),
        (10, "0.5", 0, ""),
        (10, "0.6", 1, "--need 0.6 asks"),
        (9, "0", 0, "for these alone"),
    ],
)
def test_a_smaller_share_than_needed_ends_with_1(runs, problems: int, need: str, code: int, said: str) -> None:
    a, b = runs()
    keep(b, SHAPES[:problems])
    for pair in ((a, b), (b, a)):
        done = invoke("compare", *pair, "--need", need)
        assert done.exit_code == code and said in done.stderr and bool(said) is bool(done.stderr), done.output


def test_runs_without_times_are_compared_by_status_alone_and_say_so(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        path = write(tmp_path, name, dry_run=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[1:-1]:
            line.pop("us")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        runs.append(str(path))
    assert invoke("compare", *runs).stdout.strip().endswith("worse: no, by status alone: no time is in both")


def test_a_file_that_is_no_run_is_not_said_to_be_half_written(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A heading\n")
    with warnings.catch_warnings(), pytest.raises(InvalidExperiment, match=r"README\.md:1"):
        warnings.simplefilter("error")
        load_run(tmp_path / "README.md")


def test_a_run_compared_with_itself_has_no_ratio_but_one() -> None:
    newest = rows.newest_run(RESULTS, "headline")
    found = compare(newest, newest)
    assert not found.worse and not found.changes and not found.differences
    assert {c.ratio for c in found.candidates} == {1.0}
    assert 0 < noise_floor(newest, newest) < 0.2


# Tables


def test_metrics_are_tritonbenchs(runs) -> None:
    path, _ = runs(wrong="v05_cas_lock")
    _, wrong = runs(wrong="v05_cas_lock")
    done = invoke("show", path, "--only", "v05,torch", "--metrics", "latency,speedup,tflops,gbps,accuracy", "--csv")
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(table) == 20
    first = table[0]
    assert (first["M"], first["N"], first["K"]) == ("128", "256", "512")
    assert float(first["v05_cas_lock-latency"]) == pytest.approx(0.010, rel=0.01)
    assert float(first["v05_cas_lock-tflops"]) == pytest.approx(2 * 128 * 256 * 512 / 10e-6 / 1e12, rel=0.01)
    assert float(first["torch_matmul-speedup"]) == 1
    moved = 2 * (128 * 512 + 512 * 256 + 128 * 256)
    assert float(first["v05_cas_lock-gbps"]) == pytest.approx(moved / 10e-6 / 1e9, rel=0.01)
    assert "v08_while_loop-latency" not in first
    same = json.loads(invoke("show", path, "--only", "v05,torch", "--metrics", "latency,tflops", "--json").stdout)
    for line, record in zip(table, same, strict=True):
        assert record == {column: float(line[column]) for column in record} and len(record) == 9
    broken = json.loads(invoke("show", wrong, "--only", "v05", "--metrics", "latency,accuracy,status", "--json").stdout)
    assert broken[0]["v05_cas_lock-latency"] is None and broken[0]["v05_cas_lock-accuracy"] == 0
    assert broken[0]["v05_cas_lock-status"] == "incorrect"


def test_an_experiments_name_stands_for_its_newest_run() -> None:
    done = invoke("show", "headline", "--only", "v05")
    assert done.exit_code == 0 and "4096" in done.stdout
    assert invoke("show", str(HERE / "headline.yaml"), "--only", "v05").stdout == done.stdout
    for arguments, words in (
        (("show", "headline", "--csv", "--json"), "--csv and --json: one of both"),
        (("run", HERE / "headline.yaml", "--csv", "--json"), "--csv and --json: one of both"),
        (("show", "headlines"), "no finished run of it; nearest: headline"),
        (
            ("run", "headline", "--device", "interpreter"),
            "headline: no such file; experiments/*.yaml, nearest: headline",
        ),
        (("show", "headline", "--metrics", "latencies"), "nearest: latency"),
        (("show", "headline", "--only", "v05,v88"), "--only v88"),
    ):
        result = invoke(*arguments)
        assert isinstance(result.exception, InvalidExperiment) and words in str(result.exception)


# Shapes of other benchmarks

GOOD = [(192, 512, 640), (8, 16, 32)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "M,N,K\n192,512,640\n8,16,32\n"),
        ("b.csv", "name;k;count;n;m\nx;640;3;512;192\ny;32;1;16;8\n\n"),
        ("c.txt", "192\t512\t640\n8\t16\t32\n8\t16\t32\n"),
        ("d.json", "[[192, 512, 640], [8, 16, 32]]"),
        ("e.json", '[{"M": 192, "n": "512", "K": 640}, {"m": 8, "n": 16, "k": 32}]'),
        (
            "f.json",
            "{\"gemm\": [{\"count\": 1, \"inputs\": \"((), {'M': '192', 'N': '512', 'K': '640'})\"}, [8, 16, 32]]}",
        ),
        (
            "g.json",
            '{"aten.mm.default": {"((T([192, 640], f16), T([640, 512], f16)), {})": 3,'
            ' "((T([8, 32], f16), T([32, 16], f16)), {})": 1}}',
        ),
    ],
)
def test_shapes_of_other_benchmarks_are_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert list(load_shapes(tmp_path / name)) == GOOD


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "no shape in it"),
        ("a.csv", "rows,columns\n1,2\n", "M, N and K are needed"),
        ("a.csv", "M,N,K\n1,2\n", ":2: 2 columns, 3 are needed"),
        ("a.csv", "M,N,K\n1,2,x\n", ":2: "),
        ("a.csv", "1,2,-3\n", "1 or more"),
        ("a.csv", "M,N,K\n1,2,nan\n", "three whole numbers"),
        ("a.json", "[[1, 2, 0]]", "1 or more"),
        ("a.json", "[[1, 2", ":1: not readable as JSON"),
        ("a.json", '{"M": 1, "N": 2.5, "K": 3}', "three whole numbers"),
        ("a.json", '["T([1, 2], f16), T([3, 4], f16)"]', "A is 1x2 and B is 3x4"),
        ("a.json", "{}", "no shape in it"),
        ("a.json", "[[1, 2, 3], [4, 5]]", "[4, 5] is no M, N, K"),
        ("a.json", "[[1, 2, 3], [4, 5, 6.5]]", "three whole numbers"),
        ("a.json", "[[1, 2, 3, 4]]", "three whole numbers"),
        ("a.json", '[{"M": 1, "N": 2, "K": 3}, {"M": 1, "N": 2}]', "M, N: M, N and K are needed"),
    ],
)
def test_a_bad_shape_file_is_refused_with_its_place(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidExperiment) as error:
        load_shapes(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name)) and words in str(error.value)


def test_a_restricted_experiment_has_a_name_of_its_own(tmp_path: Path) -> None:
    whole = load(HERE / "headline.yaml")
    some = restricted(whole, "v05,v08", ((64, 64, 64),), "My shapes-2")
    assert some.name == "headline_only_my_shapes_2"
    assert {c.variant for c in some.all_candidates()} == {"empty", "torch_matmul", "v05_cas_lock", "v08_while_loop"}
    assert [str(p) for p in some.problems.all()] == ["64x64x64"]
    assert restricted(whole, None, None) == whole
    with pytest.raises(InvalidExperiment, match="--only v77"):
        restricted(whole, "v77", None)
    write(tmp_path, some.name)
    assert rows.newest_run(tmp_path, "headline") is None


def test_only_and_a_shape_file_reach_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("64,64,64\n64,64,128\n")
    (tmp_path / "x.yaml").write_text(
        "name: small\nquestion: '?'\nproblems: {shapes: [[32, 32, 32]]}\n"
        "candidates: [{variant: torch_matmul, repeat: 2}, {variant: [v04, v08], block: 32x32x32, warps: 4}]\n"
    )
    arguments = ("run", tmp_path / "x.yaml", "--device", "interpreter", "--out", tmp_path / "out", "--only", "v04")
    done = invoke(*arguments, "--input-loader", tmp_path / "mine.csv", "--metrics", "status", "--csv")
    assert done.exit_code == 0, done.output
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["K"] for row in table] == ["64", "128"]
    assert table[0]["v04_hoisted_segments 32x32x32-status"] == "ok"
    assert not [column for column in table[0] if "v08" in column]
    assert list((tmp_path / "out").glob("small_only_mine-*.jsonl.xz"))


@pytest.mark.parametrize("options", [(), ("--json",), ("--csv",)])
def test_a_sweep_without_one_right_result_ends_with_1(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = write(tmp_path, "headline")
    head, *lines, end = path.read_text().splitlines()
    crashed = [encode(Row(shape, 0, "crashed", (), None, "signal 11")) for shape in SHAPES[1:]]
    monkeypatch.setattr("experiments.runner.Sweep.run", lambda self: path)
    arguments = ("run", HERE / "headline.yaml", "--device", "interpreter", "--out", tmp_path, *options)
    for rest, code, told in (((lines[0],), 0, False), ((), 1, True)):
        path.write_text("\n".join([head, *rest, *crashed, end]) + "\n")
        done = invoke(*arguments)
        assert done.exit_code == code and ("not one of 19 rows is ok" in done.stderr) is told, done.output
        assert done.stdout
    table = json.loads(invoke(*arguments[:6], "--metrics", "status", "--json").stdout)
    assert {row["empty-status"] for row in table} == {"crashed"} and len(table) == 19


def test_every_metric_says_what_it_is() -> None:
    assert all(text for text, _ in tables.METRICS.values())
    assert tables.parse_metrics("latency, gbps") == ["latency", "gbps"]
