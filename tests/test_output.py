"""Where results go is tried before anything starts, and what cannot run says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
import triton
from typer.testing import CliRunner

import figures.__main__
import variants
from common import output
from common.errors import NotWritable, UnsupportedTriton
from experiments.__main__ import app
from experiments.__main__ import main as experiments_main
from experiments.runner import Sweep

ROOT = Path(__file__).parent.parent
ON_THE_CPU = ["--device", "interpreter"]
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
EXPERIMENT = """\
name: small
question: Does it run?
problems: {shapes: [[64, 64, 64]]}
candidates: [{variant: v08, block: 32x32x32}]
"""


class Started(Exception):
    """A sweep that was begun; `args`: where it would write."""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment's file; its sweep says that it was begun and measures nothing."""

    def run(self: Sweep) -> Path:
        raise Started(self.out)

    monkeypatch.setattr(Sweep, "run", run)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return str(path)


def test_a_dry_run_goes_where_no_figure_and_no_commit_finds_it(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not output.DRY_RUNS.is_relative_to(output.RESULTS)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert f"{output.DRY_RUNS.relative_to(ROOT)}/" in ignored
    monkeypatch.setattr(output, "DRY_RUNS", tmp_path / "dry")
    started = CliRunner().invoke(app, ["run", experiment, *ON_THE_CPU]).exception
    assert isinstance(started, Started) and started.args == (tmp_path / "dry",)
    started = CliRunner().invoke(app, ["run", experiment, *ON_THE_CPU, "--out", str(tmp_path / "mine")]).exception
    assert started.args == (tmp_path / "mine",)


def test_measurements_go_to_the_committed_ones() -> None:
    assert output.destination(None) == output.RESULTS


@pytest.mark.parametrize("out", ["/etc/passwd/x", "/proc/x"])
def test_a_folder_that_cannot_be_is_refused_before_anything_starts(
    out: str, experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = CliRunner().invoke(app, ["run", experiment, *ON_THE_CPU, "--out", out]).exception
    assert isinstance(refused, NotWritable) and str(refused).startswith(f"{out}: ")
    with pytest.raises(SystemExit) as ended:
        figures.__main__.main(["schedule"], Path(out), tmp_path)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"--out {out}: ") and printed.err.count("\n") == 1 and not printed.out


@pytest.fixture
def an_old_triton_with_a_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(numpy, "__version__", "2.4.0")


@needs_no_gpu
@pytest.mark.usefixtures("an_old_triton_with_a_new_numpy")
def test_matmul_says_what_the_interpreter_lacks() -> None:
    a = torch.ones(32, 32, dtype=torch.float16)
    out = torch.full((32, 32), torch.nan, dtype=torch.float16)
    with pytest.raises(UnsupportedTriton, match=r"install numpy<2\.4, or Triton 3\.9"):
        variants.get("v04").matmul(a, a, out, block=(32, 32, 32))
    assert torch.isnan(out).all()


@pytest.mark.usefixtures("an_old_triton_with_a_new_numpy")
def test_an_experiment_says_what_the_interpreter_lacks(
    experiment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "run", experiment, *ON_THE_CPU])
    with pytest.raises(SystemExit) as ended:
        experiments_main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("UnsupportedTriton: Triton 3.6.0's interpreter does not run with numpy")


SESSION = """\
import sys, numpy, triton, pytest
numpy.__version__, triton.__version__ = "2.4.0", "3.6.0"
sys.exit(pytest.main(["tests/test_output.py", "-p", "no:cacheprovider"]))
"""


@needs_no_gpu
def test_a_session_of_tests_says_what_the_interpreter_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", SESSION], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "install numpy<2.4, or Triton 3.9" in done.stderr and "passed" not in done.stdout
