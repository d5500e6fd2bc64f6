"""Comparing variants: the budget of each step, and `diff` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_commands import run

import variants
from common import source_diff
from common.comparison import parse_levels
from common.errors import UnsupportedProblem
from common.source_diff import budget, function_diffs

WITH_PARENT = [n for n in [*variants.all_names(), *variants.ablation_names()] if variants.get(n).card.parent]
SMALL = ("--arch", "sm_80", "--block", "64x64x32")


@pytest.mark.parametrize("name", WITH_PARENT)
def test_a_step_changes_what_its_card_says_and_no_more(name: str) -> None:
    card = variants.get(name).card
    measured = budget(variants.get(name).source, variants.get(card.parent).source)
    assert not measured.faults


@pytest.mark.parametrize("name", [n for n in variants.all_names() if not variants.get(n).card.parent])
def test_who_has_no_parent_declares_no_change(name: str) -> None:
    assert variants.get(name).card.changed == () and variants.get(name).card.diff_budget == 0


def test_a_budget_notices_a_hidden_change_an_idle_word_and_too_many_lines() -> None:
    parent, child = variants.get("v05").source, variants.get("v06").source
    hidden = child.replace("inside = tile % (GROUP_M * tiles_n)", "inside = tile % (tiles_n * GROUP_M)")
    assert "tile_coordinates changed, and the card does not say so" in budget(hidden, parent).faults
    idle = child.replace('changed=("mac_loop",)', 'changed=("mac_loop", "full_tiles")')
    assert budget(idle, parent).faults == ["the card says that full_tiles changed, and nothing did"]
    tight = child.replace("diff_budget=20", "diff_budget=5")
    assert budget(tight, parent).faults == ["19 lines differ, the card allows 5"]
    assert budget(child.replace("        while tl.", "        # why\n        while tl."), parent).size == 19


def test_functions_are_matched_by_name() -> None:
    found = {d.name: d for d in function_diffs(variants.get("v00").source, variants.get("v01").source)}
    assert found["monolithic"].status == "removed" and found["tile_coordinates"].status == "unchanged"
    assert found["first_wave"].is_kernel and not found["launch"].is_kernel
    assert found["first_wave"].unified()[0].startswith("@@")


def test_only_differing_fields_of_the_cards_are_shown() -> None:
    a, b = variants.get("v05").card, variants.get("v06").card
    rows = {name: (first, second) for name, first, second in source_diff.card_differences(a, b)}
    assert rows["waits for"] == ("any", "higher")
    assert "num_stages" not in rows["default"][0] and "block 128x128x32" in rows["default"][0]
    assert "zeroed output" not in rows
    assert source_diff.card_differences(a, a) == []


def test_unknown_levels_get_the_nearest() -> None:
    with pytest.raises(UnsupportedProblem, match="ttgir"):
        parse_levels("ttgirr")
    assert parse_levels(None) == ["source", "resources"]


def test_diff_of_a_variant_with_itself_is_empty() -> None:
    done = run("diff", "v05", "cas", *SMALL, "--level", "all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "v05_cas_lock and v05_cas_lock: no difference"
    assert json.loads(run("diff", "v05", "v05", *SMALL, "--json").stdout)["empty"] is True


def test_diff_shows_card_resources_hot_loop_and_source() -> None:
    done = run("diff", "v05", "v06", *SMALL)
    assert done.returncode == 0, done.stderr
    for words in ("waits for", "programs per SM", "hot loop", "mac_loop: changed", "first_wave: unchanged", "+  "):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 150


def test_diff_as_json_holds_records_deltas_and_texts() -> None:
    found = json.loads(run("diff", "v05", "v06", *SMALL, "--level", "sass,ttir", "--json").stdout)
    assert found["empty"] is False
    first = next(entry for entry in found["kernels"] if entry["title"] == "first_wave")
    assert first["a"]["variant"] == "v05_cas_lock" and first["b"]["variant"] == "v06_two_state_lock"
    assert first["deltas"]["atomics"] == -3  # one compare-and-swap fewer in each of three calls
    full = [text for text in found["texts"] if text["title"] == "full_tiles"]
    assert {text["level"] for text in full} == {"sass", "ttir"}
    assert all(text["status"] == "equal" for text in full)
    assert any(line.startswith("-") for text in found["texts"] for line in text["diff"])


def test_the_page_holds_everything_and_asks_for_nothing(tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    done = run("diff", "v05", "v06", *SMALL, "--level", "source,sass", "--html", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "") and "<script src" not in text and "<link" not in text
    for words in ("v05_cas_lock", "v06_two_state_lock", "mac_loop", "atomic_xchg", "HMMA", "<details"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("diff", "v05", "v60"), "UnknownVariant: no variant 'v60'; nearest: v0"),
        (("diff", "v05", "v06", "--arch", "sm_91"), "sm_90"),
        (("diff", "v05", "v06", "--arch", ""), "no architecture ''"),
        (("diff", "v05", "v06", "--level", "sasss"), "sass"),
        (("diff", "v05", "v06", "--block", "100x64x32"), "power of two"),
        (("diff", "v05", "v06", "--warps", "3"), "power of two"),
        (("diff", "v05", "v06", "--stages", "0"), "from 1"),
        (("diff", "v05", "v06", "--sem", "acqrel"), "acq_rel"),
        (("diff", "v05", "v06", "--triton", "3.99.0"), "UnsupportedTriton: no Triton '3.99.0'"),
        (("diff", "v05", "v06", "--triton", "2.1"), "2.1.0"),
        (("diff", "v05", "v06", "--html", "no/such/folder/x.html"), "no folder"),
        (("diff", "v05", "v06", "--html", "tests"), "that is a folder"),
        (("diff", "v05", "v10", "--arch", "sm_80"), "written for sm_90 alone"),
        (("compile", "torch_matmul"), "no kernel of its own"),
    ],
)
def test_what_does_not_exist_is_one_line_with_the_nearest(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr


def test_the_commands_that_answer_from_the_cache_do_not_load_torch() -> None:
    code = "import sys, variants.compile_commands, common.diff_text, common.diff_page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
