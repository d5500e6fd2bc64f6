"""The house as its user finds it: README, make targets, CI script, citation, rooms that keep to themselves."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import variants
from figures import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=os.environ | environment, check=False
    )


def targets() -> list[str]:
    """The targets that plain `make` prints."""
    return re.findall(r"^  make (\w+)", make().stdout, re.MULTILINE)


def test_the_table_in_the_readme_is_not_stale() -> None:
    assert readme.updated(README) == README, "README.md's table is stale: make table"


def test_the_table_has_every_variant_in_the_thread_order(tmp_path: Path) -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", readme.render_table(tmp_path), re.MULTILINE)
    assert rows == variants.all_names()
    assert rows[:9] == sorted(rows[:9])


def test_without_results_the_table_says_so(tmp_path: Path) -> None:
    table = readme.render_table(tmp_path)
    assert table.count("not measured") == 2 * len(variants.all_names()) + 3
    assert not re.search(r"\d\.\d{3} \[", table)


def test_a_stale_table_is_noticed_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(README.replace("comment 6", "comment 66", 1))
    assert readme.update(page)
    assert page.read_text() == README
    assert not readme.update(page)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        readme.updated("# Nothing here\n")


def test_plain_make_prints_the_targets_and_each_exists() -> None:
    assert {"setup", "test", "lint", "figures", "measure", "table", "clean"} <= set(targets())
    for target in targets():
        assert "No rule" not in make("-n", target).stderr


def test_every_make_command_of_the_readme_exists() -> None:
    named = {word for line in re.findall(r"^make (.*)", README, re.MULTILINE) for word in line.split("#")[0].split()}
    assert {word for word in named if "=" not in word} <= set(targets())
    assert {"figures", "test"} <= named


def test_ci_runs_lint_and_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in script
    assert script.index("make lint") < script.index("make test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a driver here")
def test_measure_says_that_there_is_no_gpu() -> None:
    done = make("measure")
    assert done.returncode != 0
    assert "no NVIDIA driver was found" in done.stderr


def test_an_old_python_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("setup", f"VENV={tmp_path}/venv", f"PYTHONS={old}")
    assert done.returncode != 0
    assert "no Python 3.11 or later" in done.stderr and str(old) in done.stderr
    assert not (tmp_path / "venv").exists()


FAKE_PYTHON = """#!/bin/sh
echo "$@" >>{log}
case "$*" in
  *"-m venv"*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
  *"pip show"*) exit {no_triton} ;;
  *"pip freeze"*) printf 'numpy==2.0.0\\ntorch==2.13.0\\ntriton==%s\\n' {triton} ;;
esac
"""


def set_up(folder: Path, driver: bool, no_triton: bool = False, triton: str = "3.9.0") -> tuple[str, str]:
    """Run the set-up with a Python that only writes down what it is asked: that log, and the constraints."""
    folder.mkdir()
    programs, log = folder / "bin", folder / "log"
    programs.mkdir()
    fakes = {"python3": FAKE_PYTHON.format(log=log, no_triton=int(no_triton), triton=triton)}
    fakes |= {"nvidia-smi": "#!/bin/sh\n"} if driver else {}
    for name, text in fakes.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    venv, path = folder / "venv", f"{programs}:{os.environ['PATH']}"
    done = make("setup", f"VENV={venv}", f"PYTHONS={programs}/python3", PATH=path)
    assert done.returncode == 0, done.stderr
    written = log.read_text()
    make("setup", f"VENV={venv}", f"PYTHONS={programs}/python3", PATH=path)
    assert log.read_text() == written, "a second set-up did the work again"
    return written, (venv / "constraints.txt").read_text()


def test_with_a_driver_the_current_torch_decides_on_triton(tmp_path: Path) -> None:
    log, constraints = set_up(tmp_path / "gpu", driver=True)
    assert "pip install --quiet torch\n" in log
    assert "triton==" not in log
    assert constraints.split() == ["torch==2.13.0", "triton==3.9.0"]
    assert log.index("--quiet torch\n") < log.index("--constraint")


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a driver here")
def test_without_a_driver_torch_is_pinned_and_triton_comes_only_if_torch_brings_none(tmp_path: Path) -> None:
    brought, _ = set_up(tmp_path / "brought", driver=False)
    assert "pip install --quiet torch==2.13.0\n" in brought and "pip install --quiet triton" not in brought
    missing, _ = set_up(tmp_path / "missing", driver=False, no_triton=True)
    assert "pip install --quiet triton==3.9.0\n" in missing


def test_the_oldest_triton_gets_a_numpy_that_its_interpreter_runs_with(tmp_path: Path) -> None:
    assert "numpy<2.4" in set_up(tmp_path / "old", driver=True, triton="3.6.0")[1]
    assert "numpy" not in set_up(tmp_path / "new", driver=True, triton="3.7.1")[1]


def test_triton_is_not_pinned_against_torch() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = [line for line in wanted if line.startswith(("torch", "triton")) and re.search(r"==|<|~=", line)]
    assert pins == []
    assert "triton>=3.6" in wanted


def test_the_citation_names_work_paper_and_thread() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["references"][0]
    assert [author["family-names"] for author in paper["authors"]] == ["Osama", "Merrill", "Cecka", "Garland", "Owens"]
    assert paper["identifiers"][0]["value"] == "arXiv:2301.03598"
    assert "triton/issues/1393" in citation["references"][1]["url"]
    assert citation["license"] == "MIT" and "MIT License" in (ROOT / "LICENSE").read_text()


def imports(path: Path) -> set[str]:
    """Top-level packages and, for this repository's own, modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(
    "room, forbidden",
    [
        ("common", "variants|experiments|figures"),
        ("figures", r"experiments\.(runner|worker|facts|counters|compiled|__main__)|triton"),
    ],
)
def test_rooms_keep_to_themselves(room: str, forbidden: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        wrong = {name for name in imports(path) if re.match(rf"({forbidden})(\.|$)", name)}
        assert not wrong, f"{path.name} imports {wrong}"


def test_no_variant_imports_another() -> None:
    names = variants.all_names() + variants.ablation_names()
    assert {"tile_order", "split_k", "data_parallel", "torch_matmul", "v00_no_ifs"} <= set(names)
    for name in names:
        found = imports(Path(variants.get(name).module.__file__))
        assert not {module for module in found if module.split(".")[0] == "variants"}, name


def test_the_readme_commands_run_without_a_gpu() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "variants", "list", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [card["name"] for card in json.loads(listed.stdout)] == variants.all_names()


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert any(link.endswith(".svg") for link in links)
