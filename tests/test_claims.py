"""Claims: the file and its faults, the rules, and verdicts from made-up rows; none without rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import variants
from common import documents, rows
from common.errors import DamagedRun, InvalidExperiment, UnknownClaim
from common.statistics import Interval
from experiments import claims as schema
from experiments import regressions, verdicts
from experiments.__main__ import HERE, RESULTS, app
from experiments.claims import Test as ClaimTest
from experiments.verdicts import Results, by_rule, compare

CLAIMS = schema.load()
VERDICTS = set(schema.Verdict.__args__)


def test_there_are_sixteen_claims_and_every_card_that_names_one_finds_it() -> None:
    ids = [claim.id for claim in CLAIMS.claims]
    assert ids == [f"C{number:02}" for number in range(1, 17)]
    for name in [*variants.all_names(), *variants.ablation_names()]:
        assert set(variants.get(name).card.claims) <= set(ids), name


FAULTS = [
    ("    variant: v00\n", "    variant: v88\n", ["no variant 'v88'"]),
    ("  - id: C02", "  - id: C01", ["a number of its own"]),
    ("rule: gain\n", "rule: gian\n", ["rule", "'gain'"]),
    ("slow: v00_monolithic 64x64x64 P=tiles,", "slowest: x,", ["nearest: slow"]),
    ("    figure: ablations\n", "", ["figure", "required"]),
    ("        reason: no RTX 3090 here, and its", "        raison: no", ["nearest: reason"]),
    ("kind: ratio", "kind: ration", ["ration"]),
    ("experiment: ablations", "experiment: ablation", ["no experiment 'ablation'", "nearest: ablations"]),
    ("fast: v00_no_ifs 64x64x64", "fast: v00_no_if 64x64x64", ["fast", "nearest: v00_no_ifs 64x64x64 P=tiles"]),
    ("    figure: averages\n", "    figure: average\n", ["no figure 'average'", "nearest: averages"]),
    ("problem: [256, 512, 32768]", "problem: [256, 512, 32767]", ["no problem 256x512x32767", "256x512x32768"]),
    ("label: v07_atomic_min_lock", "label: v07_atomic", ["no candidate 'v07_atomic'", "v07_atomic_min_lock"]),
    ("architecture: sm_90", "architecture: sm_91", ["no architecture 'sm_91'", "sm_90"]),
    ("triton: [2.0.0,", "triton: [2.0.9,", ["no Triton '2.0.9'", "2.0.0"]),
    ("figures_read: [grid_sweep", "figures_read: [grid_sweeps", ["no experiment 'grid_sweeps'", "grid_sweep"]),
    ("        half: time\n", "        half: spills\n", ["several halves"]),
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
    line = int(re.match(rf"{path}:(\d+): ", str(error.value))[1])
    if words[0].startswith("no ") or words[0] == "fast":
        assert new.split("\n")[0] in path.read_text().splitlines()[line - 1]


def test_a_claim_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    text = schema.FILE.read_text()
    start, end = text.index("  - id: C07"), text.index("  - id: C08")
    path.write_text(text[:start] + text[end:])
    with pytest.raises(InvalidExperiment, match=rf"{path}:\d+: .*16 claims, C01 to C16: C07 missing"):
        schema.load(path)
    path.write_text(text.replace("# Sweeps that", text[start:end].replace("C07", "C17") + "# Sweeps that"))
    with pytest.raises(InvalidExperiment, match="C17 too many"):
        schema.load(path)


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
        ("gain", None, 1.021, 1.03, "reproduced"),
        ("gain", 1.1, 1.007, 1.010, "not reproduced"),
        ("gain", 1.1, 1.019, 1.3, "not reproduced"),
        ("gain", 1.1, 1.05, 1.079, "reproduced"),
        ("gain", 1.1, 1.05, 1.078, "reproduced, smaller"),
        ("gain", 1.5, 0.976, 0.979, "reversed"),
        ("gain", 1.5, 0.976, 0.982, "not reproduced"),
        ("no_gain", None, 1.007, 1.010, "reproduced"),
        ("no_gain", None, 1.019, 1.03, "not reproduced"),
        ("gain", None, 1.0, 1.2, "not reproduced"),
        ("no_gain", None, 0.9, 1.01, "reproduced"),
        ("no_gain", None, 0.9, 1.1, "not reproduced"),
        ("same", None, 0.99, 1.01, "reproduced"),
        ("same", None, 0.95, 0.97, "not reproduced"),
        ("only", 1.1, 1.05, 1.08, "reproduced"),
        ("only", 1.1, 0.99, 1.02, "reproduced, smaller"),
        ("only", 1.1, 1.118, 1.124, "reproduced"),
        ("only", 1.1, 1.123, 1.124, "not reproduced"),
        ("reaches", 0.9, 0.85, 0.883, "reproduced"),
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
        "reproduced", "reproduced, smaller", "not reproduced", "not testable here", "reversed",
    ]  # fmt: skip
    assert [compare("equal", a, b) for a, b in ((4, 4), (3, 4))] == ["reproduced", "not reproduced"]
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


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.021, 1.1, "more than 2 % above 1"),
        (0.9, 0.98, "more than 2 % below 1"),
        (0.99, 1.02, "within 2 % of 1"),
        (1.0, 1.03, "across the edge of 2 % around 1"),
    ],
)
def test_one_band_for_all_rules_is_told_with_the_verdict(low: float, high: float, words: str) -> None:
    assert verdicts.band(Interval(1.0, low, high, 9)) == words
    assert "margin" not in ClaimTest.model_fields


def test_without_rows_there_is_no_verdict(tmp_path: Path) -> None:
    for answer in verdicts.answers(Results(tmp_path), CLAIMS):
        for test, outcome in answer.pairs():
            expected = "not testable here" if test.rule == "untestable" else "not measured"
            assert outcome.verdict == expected
            assert outcome.low is None


def described(label: str) -> dict[str, object]:
    programs = "tiles" if label.endswith("tiles") else 4
    return {"label": label, "variant": label.split()[0], "programs": programs, "config": {"block": [32, 32, 32]}}


def write_run(
    folder: Path,
    name: str,
    labels: dict[str, list[list[float]]],
    statuses: dict[str, str],
    gpu: str = "GPU one",
    date: str = "20300101",
) -> None:
    """A run of as many problems as each label has lists of samples."""
    header = {
        "run": f"{name}-{date}-000000",
        "device": {"name": gpu, "sms": 4},
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
    test = CLAIMS.claims[15].asked[0]
    both = [schema.key(test.measure), schema.key(test.measure, beside=True)]
    base = {"status": "ok", "error": "", "registers": 9}
    records = [{"key": list(k), **base, "n_spills": n} for k, n in zip(both, (0, 7), strict=True)]
    head = documents.header()
    documents.write(tmp_path, "compiled", head, records)
    found = verdicts.judge(test, "C16", Results(tmp_path))
    assert (found.verdict, found.shown) == ("reproduced", "0 beside 7")
    records[1] |= {"status": "failed", "error": "no"}
    head["date"] = "2099-01-01T00:00:00+00:00"
    documents.write(tmp_path, "compiled", head, records)
    assert verdicts.judge(test, "C16", Results(tmp_path)).verdict == "not testable here"


FAST_AND_SLOW = {"a": [[2.0, 2.2, 2.1] * 5], "b": [[1.0, 1.1, 1.05] * 5]}


def test_times_of_two_devices_are_no_pair(tmp_path: Path) -> None:
    write_run(tmp_path, "x", FAST_AND_SLOW, {})
    run = Results(tmp_path).run("x")
    run.rows[1] = replace(run.rows[1], device="other")
    for problem in ([64, 64, 64], None):
        with pytest.raises(verdicts.Missing, match="on one device"):
            verdicts.ratio(run, schema.Ratio.model_validate(RATIO | {"problem": problem}))
    labels = {"torch_matmul": [[10.0] * 4], "v08_while_loop": [[5.0] * 4], "v08_while_loop P=8": [[9.0] * 4]}
    write_run(tmp_path, "y", labels, {})
    run = Results(tmp_path).run("y")
    run.rows[1] = replace(run.rows[1], device="other")
    assert verdicts.best_of(run, "v08", "first") == ([10.0], [9.0])


def test_rows_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "x", FAST_AND_SLOW | {"b": [[1.0, 1.1]]}, {})
    run = Results(tmp_path).run("x")
    with pytest.raises(DamagedRun, match=r"x-2030.*64x64x64: 15 samples of a, 2 samples of b"):
        verdicts.ratio(run, schema.Ratio.model_validate(RATIO | {"problem": [64, 64, 64]}))
    write_run(tmp_path, "y", {"v08_while_loop": [[5.0] * 4]}, {})
    run = Results(tmp_path).run("y")
    with pytest.raises(DamagedRun, match="torch_matmul"):
        verdicts.best_of(run, "v08", "first")
    with pytest.raises(DamagedRun, match="no candidate 'torch_matmul'"):
        verdicts.ratio(run, schema.Ratio.model_validate(RATIO | {"slow": "torch_matmul", "fast": "v08_while_loop"}))
    write_run(tmp_path, "z", {"torch_matmul": [[5.0]], "v08_while_loop": [[5.0]]}, {})
    with pytest.raises(DamagedRun, match="one sample"):
        verdicts.best_of(Results(tmp_path).run("z"), "v08", "held_out")


def copied(tmp_path: Path, without: tuple[str, ...] = ()) -> Path:
    for path in RESULTS.glob("*"):
        if not path.name.startswith(without or ("/",)):
            shutil.copy(path, tmp_path)
    return tmp_path


def dropped(text: str, key: str) -> str:
    """A document's text with a key taken out of every record."""
    head, *lines = text.splitlines()
    return "\n".join([head, *(re.sub(rf'"{key}": ("[^"]*"|[\d.]+), ', "", line) for line in lines)])


@pytest.mark.parametrize(
    ("kind", "key"),
    [("compiled", "status"), ("compiled", "n_spills"), ("counters", "memory_percent"), ("estimates", "read_bytes")],
)
def test_a_document_that_lacks_a_key_ends_in_one_line(kind: str, key: str, tmp_path: Path) -> None:
    copied(tmp_path)
    path = documents.newest(tmp_path, kind).path
    text = dropped(path.read_text(), key)
    assert text != path.read_text()
    path.write_text(text)
    command = [sys.executable, "-m", "experiments", "claims", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and path.name in done.stderr and key in done.stderr


def test_rows_of_two_machines_are_never_put_together(tmp_path: Path) -> None:
    labels = {"v05_cas_lock": [[2.0, 2.2, 2.1]] * 3, "v06_two_state_lock": [[1.0, 1.1, 1.05]] * 3}
    labels["torch_matmul"] = labels["v05_cas_lock"]
    write_run(tmp_path, "thread_sampled", labels, {}, "GPU one", "20300101")
    write_run(tmp_path, "log_sampled", labels, {}, "GPU two", "20300102")
    for device, measured, missing in ((None, 1, 0), ("GPU two", 1, 0), ("GPU one", 0, 1)):
        (answer,) = (a for a in verdicts.committed(tmp_path, device)[0] if a.claim.id == "C10")
        assert answer.outcomes[measured].verdict == "reproduced"
        other = answer.outcomes[missing]
        assert other.verdict == "not measured" and f"on {device or 'GPU two'}" in other.source
    assert verdicts.committed(tmp_path, "GPU one")[1] == ["GPU one, Triton 9"]
    assert verdicts.committed(tmp_path, "GPU three")[1] == []


def answers_by_id() -> dict[str, verdicts.Answer]:
    return {answer.claim.id: answer for answer in verdicts.committed(RESULTS)[0]}


def test_the_committed_results_give_every_claim_a_verdict() -> None:
    for answer in answers_by_id().values():
        for test, outcome in answer.pairs():
            allowed = {schema.EVIDENCE} if test.rule == "evidence" else VERDICTS
            assert outcome.verdict in allowed, f"{answer.claim.id} {outcome.name}: {outcome.source}"
        assert all(o.verdict in VERDICTS for o in answer.deciding)


def test_a_compound_claim_has_a_verdict_for_each_half() -> None:
    halves = {name: {o.half for o in answer.deciding} for name, answer in answers_by_id().items()}
    assert halves["C05"] == {"spills", "time"}
    assert halves["C07"] == {"right in an interpreter", "does not compile"}
    assert len(halves["C11"]) == len(halves["C12"]) == 4 and len(halves["C16"]) == 2
    assert halves["C01"] == {""}


def test_a_claim_about_a_gpu_that_is_not_here_says_so_with_its_compiled_code() -> None:
    known = answers_by_id()
    for name in ("C08", "C09", "C11", "C12"):
        away = [o for o in known[name].deciding if o.verdict == "not testable here"]
        assert away and all(re.search(r"\d+ registers, \d+ spills, \d an SM beside", o.shown) for o in away), name
        assert all("no RTX 3090" in o.reason or "no A100" in o.reason or "nor an A100" in o.reason for o in away)
        assert any(o.about == "this GPU" for o in known[name].deciding)
    (nothing,) = (o for o in known["C16"].deciding if o.half == "at 128x128x32")
    assert nothing.verdict == "not testable here" and nothing.shown == "0 beside 0"


def test_a_verdict_names_the_compiler_where_an_effect_went() -> None:
    known = answers_by_id()
    for name, words in (
        ("C01", "most of it gone between Triton 2.1.0 and 3.6.0"),
        ("C02", "most of it gone between Triton 2.1.0 and 3.6.0"),
        ("C03", "gone between Triton 2.1.0 and 3.6.0"),
        ("C04", "equal up to Triton 2.1.0, no longer from 3.6.0 on"),
        ("C07", "fails up to Triton 2.1.0, compiles from 3.6.0 on"),
        ("C14", "in both, most gone between Triton 2.1.0 and 3.6.0"),
        ("C15", "in both, most gone between Triton 2.1.0 and 3.6.0"),
    ):
        lines = verdicts.by_compiler(known[name])
        assert any("sm_80" in line and words in line for line in lines), f"{name}: {lines}"
        assert any(line.endswith(f": {words}") for line in verdicts.gone(known[name]))
        assert "in compiled code: " in CliRunner().invoke(app, ["claims", name]).output, name
    assert verdicts.gone(known["C05"]) == verdicts.gone(known["C16"]) == []


def test_the_scratchpad_is_decided_on_the_whole_population_and_names_the_test_beside_it() -> None:
    first, second, *_ = CLAIMS.claims[5].tests
    assert first.measure.experiment == "thread_sampled" and first.measure.fast == "v04_hoisted_segments"
    answer = answers_by_id()["C06"]
    assert answer.outcomes[0].low > 1 + schema.MARGIN and "v02 over v01" in answer.outcomes[0].reason
    assert second.measure.fast == "v01_split_kernels" and answer.outcomes[1].verdict == "reversed"


def test_other_problems_stand_beside_the_one_that_decides() -> None:
    for name in ("C01", "C02", "C03", "C04", "C14", "C15"):
        shown = {o.name for o in verdicts.others(answers_by_id()[name])}
        assert {"the same at 256x512x2048", "the same at 1536x1792x6016"} <= shown
    wide = next(o for o in verdicts.others(answers_by_id()["C14"]) if "1536x1792x6016" in o.name)
    assert wide.verdict == "not reproduced" and wide.low > 1.1


def test_modelled_bytes_stand_beside_counted_ones_and_carry_the_models_error() -> None:
    rtx, a100, here, _ = answers_by_id()["C13"].outcomes
    assert re.fullmatch(r"\d+ MB modelled, \d+ MB counted \(of 28 calls off by \d\.\dx at most\)", here.shown)
    assert 0.8 < here.value < 1.25
    for outcome in (rtx, a100):
        assert outcome.verdict == "not testable here" and outcome.low < outcome.value < outcome.high
        assert outcome.high / outcome.low > 2


def test_the_command_prints_verdicts_and_their_machine() -> None:
    printed = CliRunner().invoke(app, ["claims"])
    assert printed.exit_code == 0, printed.output
    assert "C16" in printed.output and "measured on: NVIDIA H200" in printed.output
    assert "negligible: less than 2 % from 1" in printed.output
    data = json.loads(CliRunner().invoke(app, ["claims", "--json"]).stdout)
    assert [claim["id"] for claim in data["claims"]] == [claim.id for claim in CLAIMS.claims]
    assert data["claims"][4]["verdicts"] == {"spills": "reproduced", "time": "reproduced"}
    assert set(CliRunner().invoke(app, ["claims", "--experiments"]).stdout.split()) == set(CLAIMS.experiments())
    assert all(name in CliRunner().invoke(app, ["claims", "--rules"]).stdout for name in schema.RULES)


def test_the_command_prints_the_claims_that_are_named() -> None:
    data = json.loads(CliRunner().invoke(app, ["claims", "c5", "C01", "--json"]).stdout)
    assert [claim["id"] for claim in data["claims"]] == ["C01", "C05"]
    wrong = CliRunner().invoke(app, ["claims", "C17"])
    assert isinstance(wrong.exception, UnknownClaim) and "nearest: C10, C11" in str(wrong.exception)


def test_the_command_says_so_where_nothing_was_measured(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["claims", "--results", str(tmp_path)])
    assert printed.exit_code == 0
    assert "measured on: nothing yet" in printed.output and "not measured" in printed.output


def test_a_folder_that_is_not_there_ends_in_one_line() -> None:
    command = [sys.executable, "-m", "experiments", "claims", "--results", "/nonexistent"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "NoResults: /nonexistent: no such folder of results"


def test_v03_is_right_in_the_interpreter_on_the_threads_own_test() -> None:
    (wanted,) = CLAIMS.interpreted()
    assert (wanted.problem, wanted.block, wanted.programs) == ((256, 512, 2048), "64x64x64", 82)
    small = wanted.model_copy(update={"problem": (64, 96, 128), "block": "32x32x32", "programs": 5})
    code = "import json\nfrom experiments.claims import Interpreted\nfrom experiments.interpreted import launch\n"
    code += f"print(json.dumps(launch(Interpreted.model_validate({small.model_dump()!r}))))"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wrong"] == 0
    record = documents.newest(RESULTS, "interpreted").select(variant="v03_incremental_pointers")[0]
    assert record["wrong"] == 0 and record["most_tiles"] == 2


def test_a_wrong_result_in_the_interpreter_reproduces_nothing(tmp_path: Path) -> None:
    test = CLAIMS.claims[6].asked[0]
    record = {"variant": "v03_incremental_pointers", "problem": [256, 512, 2048], "block": "64x64x64", "programs": 82}
    documents.write(tmp_path, "interpreted", documents.header(), [record | {"most_tiles": 2, "wrong": 0.01}])
    assert verdicts.judge(test, "C07", Results(tmp_path)).verdict == "not reproduced"


def test_regressions_rerun_everything_and_report_failures(tmp_path: Path) -> None:
    names = [name for name, _ in regressions.steps(tmp_path)]
    assert set(CLAIMS.experiments()) < set(names)
    assert {"atomic_order", "grid_sweep", "waves", "order", "facts", "counters", "compiled", "interpreted"} < set(names)
    done: list[str] = []

    def run(command: Sequence[str]) -> int:
        done.append(command[3] if command[3] != "run" else Path(command[4]).stem)
        assert command[-1] == str(tmp_path)
        return int(done[-1] in ("waves", "counters"))

    assert regressions.run_all(tmp_path, None, lambda text: None, run) == ["waves", "counters"]
    assert done == names
    with pytest.raises(InvalidExperiment, match="nearest: waves"):
        regressions.steps(tmp_path, "wavse")
    assert [name for name, _ in regressions.steps(tmp_path, "waves,facts")] == ["waves", "facts"]
    copied(tmp_path)
    done.clear()
    told: list[str] = []
    regressions.run_all(tmp_path, None, told.append, run)
    assert done == [name for name in names if name not in ("compiled", "interpreted")]
    assert any("compiled needs no GPU and is there" in line for line in told)
    regressions.run_all(tmp_path, "compiled", told.append, run)
    assert done[-1] == "compiled"
    with pytest.raises(KeyboardInterrupt):
        regressions.run_all(tmp_path, None, lambda text: None, lambda command: 130)


def test_regressions_end_with_a_failure_and_show_this_gpus_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(tmp_path)
    monkeypatch.setattr("experiments.__main__._require_gpu", lambda instead: None)
    monkeypatch.setattr(regressions, "device_name", lambda: "GPU three")
    for failed, code in (([], 0), (["waves"], 1)):
        monkeypatch.setattr(regressions, "run_all", lambda *told, failed=failed: failed)
        printed = CliRunner().invoke(app, ["regressions", "--out", str(tmp_path)])
        assert printed.exit_code == code, printed.output
        assert "nothing yet on GPU three" in printed.output and "1.344" not in printed.output


def test_the_makefile_leaves_the_regressions_to_the_command() -> None:
    makefile = (HERE.parent / "Makefile").read_text()
    recipe = makefile[makefile.index("regressions: $(STAMP)") :].split("\n\n")[0]
    assert (
        "experiments regressions $(REGRESSIONS_ARGS)" in recipe
        and "; $(BIN)/python -m experiments claims; fi" in recipe
    )


def test_the_command_line_is_brief_when_asked_and_knows_its_devices_and_steps() -> None:
    run = CliRunner().invoke
    brief = [line.split()[0] for line in run(app, ["claims", "--brief"]).output.splitlines() if line.startswith("  C")]
    assert brief == [f"C{number:02}" for number in range(1, 17)]
    unknown = run(app, ["claims", "--device", "A100"])
    assert unknown.exit_code and "NVIDIA H200" in str(unknown.exception)
    misspelt = run(app, ["regressions", "--only", "wavse"])
    assert misspelt.exit_code and "nearest: waves" in str(misspelt.exception)


def test_code_that_spills_on_neither_side_says_so() -> None:
    neither = [o for o in answers_by_id()["C16"].outcomes if o.value == o.other == 0]
    assert neither and all(o.verdict == "not testable here" for o in neither)
    assert {o.reason for o in neither} == {"neither has any to avoid"}
