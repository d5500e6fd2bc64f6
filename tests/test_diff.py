"""Comparing variants: the budget of each step, and `diff` as a person meets it."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from test_commands import run
from typer.testing import CliRunner

import variants
from common import source_diff, triton_versions
from common.architectures import parse_architectures
from common.comparison import Side, TextDiff, compare, parse_levels, text_diff
from common.diff_page import highlighted
from common.diff_text import print_comparison, print_records
from common.errors import UnsupportedProblem
from common.inspection import Inspection
from common.normalise import normalise
from common.source_diff import budget, function_diffs
from variants import compile_commands
from variants.compile_commands import WIDTH, app

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
    for words in (
        "v05_cas_lock",
        "v06_two_state_lock",
        "mac_loop",
        "atomic_xchg",
        "HMMA",
        "<details",
        "atomic CAS GPU",
    ):
        assert words in text
    full = Path("/dev/full")
    if full.exists():
        done = run("diff", "v05", "v06", *SMALL, "--html", str(full))
        assert done.returncode == 2 and "NotWritable" in done.stderr and "Traceback" not in done.stderr


def test_no_line_of_a_page_is_marked_as_a_fault_of_its_language() -> None:
    mlir = ["  %5 = tt.splat %0 : !tt.ptr<f16> -> tensor<128x1x!tt.ptr<f16>>", "  scf.if %1 {"]
    lines = highlighted(mlir, "ttgir")
    assert all("err" not in line for line in lines) and any("<span" in line for line in lines)
    assert [html.unescape(re.sub("<[^>]*>", "", line)) for line in lines] == mlir


def test_what_was_left_out_is_said() -> None:
    done = run("diff", "v09", "v10", "--arch", "sm_80,sm_90", "--block", "64x64x64", "--level", "source")
    assert done.stdout.splitlines()[0] == "v10_warp_specialised is written for sm_90 alone: sm_80 left out"
    done = run("compile", "v10", "--arch", "sm_80,sm_90")
    assert "sm_80 left out" in done.stderr and "sm_90" in done.stdout
    found = json.loads(run("diff", "v05", "v06", "--arch", "gfx942", "--level", "ptx", "--json").stdout)
    assert found["notes"] == ["gfx942 has no ptx"] and found["texts"] == []


def printed(width: int, show: Callable[[Console], None]) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    show(console)
    return console.file.getvalue().splitlines()


def test_a_narrow_terminal_loses_no_word_of_the_source_and_no_number() -> None:
    a, b = (
        Side(n, variants.source_path(n), variants.get(n).card.default, triton_versions.installed())
        for n in ("v05_cas_lock", "v06_two_state_lock")
    )
    found = compare(a, b, parse_architectures("sm_80"), ["source"])
    narrow, wide = (printed(width, lambda console: print_comparison(found, ["source"], console)) for width in (80, 150))
    changed = next(line for line in wide if line.startswith("+") and "tl.dot(" in line)
    assert len(changed.rstrip()) > 80 and "".join(changed.split()) in "".join("".join(narrow).split())
    config = {"block": [128, 128, 32], "num_warps": 4, "num_stages": 3}
    records = [
        Inspection("v03_incremental_pointers", "first_wave", arch, "3.9.0", config, registers=254, code_bytes=123456)
        for arch in ("sm_80", "sm_86")
    ]
    for width in (80, 150):
        lines = printed(width, lambda console: print_records(records, console))
        assert max(map(len, lines)) <= width
        for arch in ("sm_80", "sm_86"):
            assert any(arch in line and "254" in line and "123456" in line for line in lines)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("", WIDTH), ("wide", WIDTH), ("0", WIDTH)])
def test_a_pipe_is_as_wide_as_columns_says(columns: str, width: int) -> None:
    done = CliRunner().invoke(app, ["diff", "v05", "v06", "--level", "source"], env={"COLUMNS": columns})
    assert done.exit_code == 0 and width - 8 < max(map(len, done.stdout.splitlines())) <= width


def test_a_page_says_its_size_and_a_large_one_what_makes_it_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "diff.html"
    arguments = ["diff", "v05", "v06", "--level", "source", "--arch", "sm_80,sm_90", "--html", str(page)]
    done = CliRunner().invoke(app, arguments)
    size = page.stat().st_size
    assert done.stdout == f"{page}: {size / 1e6:.3g} MB\n" and done.stderr == "" and size < compile_commands.LARGE_PAGE
    monkeypatch.setattr(compile_commands, "LARGE_PAGE", size - 1)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and done.stderr.endswith("smaller: --arch with fewer of sm_80, sm_90\n")
    told = compile_commands.smaller(["source", "ttir", "sass", "resources"], ["sm_90"])
    assert told.endswith("smaller: --level with fewer of ttir, sass")


MLIR = """  %0 = arith.constant 1 : i32
  %1 = tt.load %arg0 : i32
  %2 = arith.subi %1, %0 : i32
  tt.store %arg1, %2 : i32
"""


def texts(a: str, b: str, level: str) -> TextDiff:
    return text_diff(level, "toy", "sm_90", normalise(a, level), normalise(b, level))


def test_one_line_more_leaves_the_names_of_the_others_and_another_operand_is_seen() -> None:
    longer = "  %0 = arith.constant 7 : i32\n" + re.sub(r"%(\d)", lambda f: f"%{int(f[1]) + 1}", MLIR)
    found = texts(MLIR, longer, "ttir")
    assert found.size == 1 and found.status == "different"
    assert [line.text for line in found.b[1:]] == [line.text for line in found.a]
    swapped = texts(MLIR, MLIR.replace("subi %1, %0", "subi %0, %1"), "ttir")
    assert swapped.size == 2 and swapped.status == "different"
    assert texts(MLIR, MLIR.replace("%2", "%difference"), "ttir").status == "equal"


def test_regions_beside_each_other_may_use_the_same_names() -> None:
    one = "scf.if %c {\n  %1 = tt.load %a : i32\n} else {\n  %1 = tt.load %b : f32\n  tt.store %b, %1 : f32\n}"
    other = "scf.if %c {\n  %1 = tt.load %a : i32\n} else {\n  %2 = tt.load %b : f32\n  tt.store %b, %2 : f32\n}"
    assert texts(one, other, "ttir").status == "equal"


def test_machine_code_on_other_registers_is_said_to_be_that() -> None:
    line = "        /*0010*/                   IADD3 R4, {}, RZ ;"
    assert texts(line.format("R7, R8"), line.format("R7, R7"), "sass").status == "equal but for registers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("diff", "v05", "v60"), "UnknownVariant: no variant 'v60'; nearest: v06_two_state_lock"),
        (("diff", "v5", "v06"), "nearest: v05_cas_lock"),
        (("diff", "v05", "v06", "--arch", "sm_91"), "sm_90"),
        (("diff", "v05", "v06", "--arch", ""), "no architecture ''"),
        (("diff", "v05", "v06", "--arch", "a100"), "nearest: sm_80 (A100)"),
        (("diff", "v05", "v06", "--level", "SASS"), "nearest: sass"),
        (("diff", "v05", "v06", "--block", "100x64x32"), "nearest: 128x64x32"),
        (("diff", "v05", "v06", "--warps", "3"), "nearest: 4"),
        (("diff", "v05", "v06", "--stages", "0"), "nearest: 1"),
        (("diff", "v05", "v06", "--sem", "acqrel"), "acq_rel"),
        (("diff", "v05", "v06", "--triton", "3.99.0"), "UnsupportedTriton: no Triton '3.99.0'"),
        (("diff", "v05", "v06", "--triton", "2.1"), "2.1.0"),
        (("diff", "v05", "v06", "--html", "no/such/folder/x.html"), "no folder"),
        (("diff", "v05", "v06", "--html", "tests"), "that is a folder"),
        (("diff", "v05", "v10", "--arch", "sm_80"), "written for sm_90 alone"),
        (("compile", "torch_matmul"), "no kernel of its own"),
        (("goldens", "--triton", "3.7.0"), "no table of Triton 3.7.0"),
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
