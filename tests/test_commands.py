"""The command line as a person meets it, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import variants


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "variants", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=kept | environment, check=False)


def test_list_as_json_holds_the_nine_and_the_baselines_with_full_cards() -> None:
    found = {entry["name"]: entry for entry in json.loads(run("list", "--json").stdout)}
    assert list(found) == variants.all_names()
    for name, entry in found.items():
        assert entry["idea"] == variants.get(name).card.idea
        assert {"waits_for", "fix_up", "default", "contract", "claims", "defects", "zeroed_output"} <= set(entry)


def test_show_prints_the_source() -> None:
    assert run("show", "cas").stdout.strip() == variants.get("v05").source.strip()


def test_run_in_the_interpreter_reports_the_plan() -> None:
    result = run("run", "v08", "--m", "96", "--n", "96", "--k", "64", "--block", "32x32x32", "--interpret", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0 and report["status"] == "ok"
    assert report["tiles"] == 9 and report["stream_k_tiles"] == 5 and report["data_parallel_tiles"] == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_run_without_a_gpu_says_what_to_do() -> None:
    result = run("run", "v08", "--m", "128", "--n", "128", "--k", "128")
    assert result.returncode == 2
    assert "no NVIDIA GPU was found" in result.stderr and "--interpret" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "v99"), "UnknownVariant"),
        (("run", "v05", "--m", "100", "--n", "64", "--k", "64", "--interpret"), "M=100"),
        (("run", "v05", "--m", "-1", "--n", "64", "--k", "64", "--interpret"), "M=-1"),
        (("run", "v05", "--m", "64", "--n", "64", "--k", "64", "--interpret", "--block", "64x64"), "128x128x32"),
        (("run", "v05", "--m", "64", "--n", "64", "--k", "64", "--interpret", "--no-two-tiles"), "always two-tile"),
        (("run", "v05", "--m", "64", "--n", "64", "--k", "64", "--interpret", "--seed", "9" * 23), "--seed"),
        (("run", "v05", "--m", "9999360", "--n", "9999360", "--k", "64", "--interpret"), "does not fit in memory"),
        (("compile", "v05", "--arch", "sm_91"), "sm_90"),
        (("compile", "v05", "--block", "100x100x32"), "power of two"),
        (("compile", "v05", "--block", "512x512x512"), "131072"),
        (("compile", "v05", "--warps", "3"), "--warps 3"),
        (("compile", "v05", "--stages", "0"), "--stages 0"),
    ],
)
def test_faults_end_with_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and "Traceback" not in result.stderr


def test_compile_reads_registers_of_a_gpu_that_is_not_here() -> None:
    result = run("compile", "v08", "v00", "--arch", "sm_86,sm_90", "--json")
    rows = json.loads(result.stdout)
    assert {(row["variant"], row["kernel"], row["architecture"]) for row in rows} == {
        (variant, kernel, arch)
        for variant, kernels in (("v08_while_loop", ["first_wave", "full_tiles"]), ("v00_monolithic", ["monolithic"]))
        for kernel in kernels
        for arch in ("sm_86", "sm_90")
    }
    assert all(0 < row["registers"] <= 255 and row["n_spills"] == row["stack_bytes"] // 4 for row in rows)
