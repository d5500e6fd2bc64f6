"""Claims: the file and its faults, the rules, and verdicts from made-up rows; none without rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import variants
from common import documents, rows
from common.errors import InvalidExperiment
from common.statistics import Interval
from experiments import claims as schema
from experiments import verdicts
from experiments.__main__ import HERE, RESULTS, app
from experiments.claims import Test as ClaimTest
from experiments.spec import load as load_experiment
from experiments.verdicts import Results, by_rule, compare

CLAIMS = schema.load()
VERDICTS = set(schema.Verdict.__args__)


def test_there_are_sixteen_claims_and_every_card_that_names_one_finds_it() -> None:
    ids = [claim.id for claim in CLAIMS.claims]
    assert ids == [f"C{number:02}" for number in range(1, 17)]
    for name in [*variants.all_names(), *variants.ablation_names()]:
        assert set(variants.get(name).card.claims) <= set(ids), name


def test_every_label_of_a_claim_is_a_candidate_of_its_experiment() -> None:
    for claim in CLAIMS.claims:
        for test in claim.tests:
            if isinstance(test.measure, schema.Ratio):
                experiment = load_experiment(HERE / f"{test.measure.experiment}.yaml")
                labels = {c.label for c in experiment.all_candidates()}
                assert {test.measure.slow, test.measure.fast} <= labels, test.name
                shapes = {(p.m, p.n, p.k) for p in experiment.problems.all()}
                assert test.measure.problem is None or test.measure.problem in shapes


FAULTS = [
    ("    variant: v00\n", "    variant: v88\n", ["no variant 'v88'"]),
    ("  - id: C02", "  - id: C01", ["a number of its own"]),
    ("rule: gain\n", "rule: gian\n", ["rule", "'gain'"]),
    ("slow: v00_monolithic 64x64x64 P=tiles,", "slowest: x,", ["nearest: slow"]),
    ("    figure: ablations\n", "", ["figure", "required"]),
    ("        reason: no RTX 3090 here, and", "        raison: no", ["nearest: reason"]),
    ("kind: ratio", "kind: ration", ["ration"]),
]


@pytest.mark.parametrize(("old", "new", "words"), FAULTS)
def test_a_fault_of_the_file_is_named(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    text = schema.FILE.read_text()
    assert old in text
    path = tmp_path / "claims.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidExperiment) as error:
        schema.load(path)
    assert re.match(rf"{path}:\d+: ", str(error.value))
    assert all(word in str(error.value) for word in words), str(error.value)


RATIO = {"kind": "ratio", "experiment": "x", "slow": "a", "fast": "b"}


def rule(name: str, claimed: float | None = None) -> ClaimTest:
    return ClaimTest.model_validate({"name": "t", "measure": RATIO, "rule": name, "claimed": claimed})


@pytest.mark.parametrize(
    ("name", "claimed", "low", "high", "expected"),
    [
        ("gain", 1.5, 1.4, 1.6, "reproduced"),
        ("gain", 1.5, 1.6, 1.8, "reproduced"),
        ("gain", 1.5, 1.1, 1.2, "reproduced, smaller"),
        ("gain", 1.5, 0.99, 1.7, "not reproduced"),
        ("gain", 1.5, 0.8, 0.9, "reversed"),
        ("gain", None, 1.01, 1.02, "reproduced"),
        ("gain", None, 1.0, 1.2, "not reproduced"),
        ("no_gain", None, 0.9, 1.01, "reproduced"),
        ("no_gain", None, 0.9, 1.1, "not reproduced"),
        ("same", None, 0.99, 1.01, "reproduced"),
        ("same", None, 0.95, 0.97, "not reproduced"),
        ("only", 1.1, 1.05, 1.08, "reproduced"),
        ("only", 1.1, 0.99, 1.02, "reproduced, smaller"),
        ("only", 1.1, 1.3, 1.4, "not reproduced"),
        ("only", 1.1, 0.8, 0.9, "reversed"),
        ("reaches", 0.9, 0.85, 0.92, "reproduced"),
        ("reaches", 0.9, 0.6, 0.7, "not reproduced"),
    ],
)
def test_rules(name: str, claimed: float | None, low: float, high: float, expected: str) -> None:
    assert by_rule(rule(name, claimed), Interval((low + high) / 2, low, high, 9)) == expected


def test_rules_of_compiled_code() -> None:
    assert [compare("avoids", a, b) for a, b in ((0, 4), (2, 4), (4, 4), (0, 0), (5, 4))] == [
        "reproduced", "reproduced, smaller", "not reproduced", "not reproduced", "reversed",
    ]  # fmt: skip
    assert [compare("adds", a, b) for a, b in ((9, 4), (4, 4), (3, 4))] == ["reproduced", "not reproduced", "reversed"]


def test_a_rule_needs_what_it_compares_with() -> None:
    for broken in (
        {"rule": "reaches"},
        {"rule": "untestable"},
        {"rule": "gain", "measure": None},
        {"rule": "spills", "claimed": 3},
    ):
        with pytest.raises(ValueError, match="rule"):
            ClaimTest.model_validate({"name": "t", "measure": RATIO} | broken)


def test_without_rows_there_is_no_verdict(tmp_path: Path) -> None:
    for answer in verdicts.answers(Results(tmp_path), CLAIMS):
        for outcome, test in zip(answer.outcomes, answer.claim.tests, strict=True):
            expected = "not testable here" if test.rule == "untestable" else "not measured"
            assert outcome.verdict == expected
            assert outcome.low is None


def described(label: str) -> dict[str, object]:
    programs = "tiles" if label.endswith("tiles") else 4
    return {"label": label, "variant": label.split()[0], "programs": programs, "config": {"block": [32, 32, 32]}}


def write_run(folder: Path, name: str, labels: dict[str, list[list[float]]], statuses: dict[str, str]) -> None:
    """A run of as many problems as each label has lists of samples."""
    header = {
        "run": f"{name}-20300101-000000",
        "device": {"name": "GPU one", "sms": 4},
        "versions": {"triton": "9"},
        "dtype": "float16",
        "rounds": 3,
        "candidates": [described(label) for label in labels],
    }
    lines = [json.dumps(header)]
    for index, (label, problems) in enumerate(labels.items()):
        for number, samples in enumerate(problems):
            row = rows.Row((64 * (number + 1), 64, 64), index, statuses.get(label, "ok"), tuple(samples))
            lines.append(rows.encode(row))
    (folder / f"{header['run']}.jsonl").write_text("\n".join([*lines, '{"finished":{"wall_s":1}}']) + "\n")


def test_a_ratio_of_one_problem_pairs_rounds_and_leaves_wrong_results_out(tmp_path: Path) -> None:
    write_run(
        tmp_path, "x", {"a": [[2.0, 2.2, 2.1] * 5], "b": [[1.0, 1.1, 1.05] * 5], "c": [[0.1] * 15]}, {"c": "incorrect"}
    )
    measure = schema.Ratio.model_validate(RATIO | {"problem": [64, 64, 64]})
    found = verdicts.ratio(Results(tmp_path).run("x"), measure)
    assert found.value == pytest.approx(2.0) and found.low > 1.8
    wrong = schema.Ratio.model_validate(RATIO | {"fast": "c", "problem": [64, 64, 64]})
    with pytest.raises(verdicts.Missing, match="no right result"):
        verdicts.ratio(Results(tmp_path).run("x"), wrong)
    with pytest.raises(verdicts.Missing, match="no candidate 'd'"):
        verdicts.ratio(Results(tmp_path).run("x"), schema.Ratio.model_validate(RATIO | {"fast": "d"}))


def test_the_best_of_many_is_flattered_unless_chosen_elsewhere(tmp_path: Path) -> None:
    lucky = [[5.0, 10.0, 10.0, 10.0], [10.0, 10.0, 10.0, 10.0]]
    labels = {
        "torch_matmul": [[10.0] * 4] * 2,
        "torch_matmul #2": [[10.0] * 4] * 2,
        "v08_while_loop": lucky,
        "v08_while_loop P=8": [[10.0] * 4] * 2,
        "v08_while_loop P=tiles": [[9.0] * 4, [1.0] * 4],
    }
    write_run(tmp_path, "x", labels, {})
    run = Results(tmp_path).run("x")
    base, best = verdicts.best_of(run, "v08", "first")
    assert (base, best) == ([10.0, 10.0], [5.0, 10.0])  # P = tiles counts below 2 x 4 programs: 4 tiles, not 8
    base, best = verdicts.best_of(run, "v08", "held_out")
    assert base == pytest.approx([10.0, 10.0]) and best == pytest.approx([90**0.5, 10.0])


def test_an_ideal_even_share_gains_what_the_last_wave_wastes() -> None:
    measure = schema.ScheduleBound(kind="schedule", experiment="headline", sms=132)
    assert 1.0 < verdicts.schedule_bound(measure).value < 132
    one = schema.ScheduleBound(kind="schedule", experiment="headline", sms=1)
    assert verdicts.schedule_bound(one).value == pytest.approx(1.0)


def test_compiled_code_is_judged_from_its_document(tmp_path: Path) -> None:
    test = next(t for t in CLAIMS.claims[15].tests if t.rule == "avoids")
    both = [schema.key(test.measure), schema.key(test.measure, beside=True)]
    records = [{"key": list(k), "status": "ok", "error": "", "n_spills": n} for k, n in zip(both, (0, 7), strict=True)]
    head = documents.header()
    documents.write(tmp_path, "compiled", head, records)
    found = verdicts.judge(test, "C16", Results(tmp_path))
    assert (found.verdict, found.shown) == ("reproduced", "0 beside 7")
    records[1] |= {"status": "failed", "error": "no"}
    head["date"] = "2099-01-01T00:00:00+00:00"
    documents.write(tmp_path, "compiled", head, records)
    assert verdicts.judge(test, "C16", Results(tmp_path)).verdict == "not testable here"


def test_the_committed_results_give_every_claim_a_verdict() -> None:
    for answer in verdicts.committed(RESULTS)[0]:
        for outcome in answer.outcomes:
            assert outcome.verdict in VERDICTS, f"{answer.claim.id} {outcome.name}: {outcome.source}"


def test_the_command_prints_verdicts_and_their_machine() -> None:
    printed = CliRunner().invoke(app, ["claims"])
    assert printed.exit_code == 0, printed.output
    assert "C16" in printed.output and "measured on: NVIDIA H200" in printed.output
    data = json.loads(CliRunner().invoke(app, ["claims", "--json"]).stdout)
    assert [claim["id"] for claim in data["claims"]] == [claim.id for claim in CLAIMS.claims]
    assert set(CliRunner().invoke(app, ["claims", "--experiments"]).stdout.split()) == set(CLAIMS.experiments())
    assert all(name in CliRunner().invoke(app, ["claims", "--rules"]).stdout for name in schema.RULES)


def test_the_command_says_so_where_nothing_was_measured(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["claims", "--results", str(tmp_path)])
    assert printed.exit_code == 0
    assert "measured on: nothing yet" in printed.output and "not measured" in printed.output
