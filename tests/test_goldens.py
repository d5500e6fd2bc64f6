"""What every kernel takes, compiled again and compared with the committed table of its Triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common import compiled, goldens, triton_versions
from common.inspection import Inspection
from variants.compile_commands import golden_jobs

HERE = triton_versions.installed()


def checked(job: compiled.Job) -> bool:
    """The measured GPU's kernels, and the thread's GPU at the common launch: `make goldens` compares every row."""
    at_common = job.config.block == goldens.COMMON["block"] and (job.config.num_warps, job.config.num_stages) == (4, 3)
    return job.architecture == "sm_90" or (job.architecture == "sm_86" and at_common and job.kernel != "full_tiles")


@pytest.mark.skipif(not goldens.file(HERE).exists(), reason=f"no table of Triton {HERE}")
def test_no_kernel_takes_other_than_the_table_says() -> None:
    found = [goldens.row(record) for record in compiled.inspect(list(filter(checked, golden_jobs(HERE))))]
    differences = goldens.differences(goldens.read(HERE), found, whole=False)
    assert not differences, "\n".join([*map(str, differences), "to accept: make goldens ACCEPT=1"])


@pytest.mark.parametrize("version", goldens.DRIFT)
def test_each_version_has_a_table_of_what_its_jobs_ask(version: str) -> None:
    rows = goldens.read(version)
    asked = {(job.variant, job.kernel, job.architecture) for job in golden_jobs(version)}
    assert {(row["variant"], row["kernel"], row["architecture"]) for row in rows} == asked
    assert len({goldens.key(row) for row in rows}) == len(rows)
    assert all(int(row["registers"]) > 0 for row in rows if row["status"] == "ok")
    assert all(row["error"] for row in rows if row["status"] != "ok")


def record(**changes: object) -> Inspection:
    config = {"block": [128, 128, 32], "num_warps": 4, "num_stages": 3}
    return Inspection("v", "k", "sm_80", "3.9.0", config, **{"registers": 100, "stack_bytes": 0, **changes})


def test_a_kernel_that_begins_to_spill_is_noticed(tmp_path: Path) -> None:
    goldens.file("3.9.0", tmp_path).write_text(goldens.table("3.9.0", [record()]))
    committed = goldens.read("3.9.0", tmp_path)
    assert goldens.differences(committed, [goldens.row(record())]) == []
    (found,) = goldens.differences(committed, [goldens.row(record(stack_bytes=96))])
    assert "stack_bytes 0 → 96" in str(found) and "sm_80" in str(found)


@pytest.mark.parametrize(
    ("architecture", "changes", "noticed"),
    [
        ("gfx942", {"registers": 102}, False),
        ("gfx942", {"registers": 104}, True),
        ("gfx942", {"spill_store_bytes": 4}, True),
        ("sm_80", {"registers": 102}, True),
    ],
)
def test_only_what_llvm_leaves_open_for_amd_may_differ(architecture: str, changes: dict, noticed: bool) -> None:
    committed, now = (goldens.row(record(**more)) for more in ({}, changes))
    committed["architecture"] = now["architecture"] = architecture
    assert bool(goldens.differences([committed], [now])) == noticed


def test_a_row_that_is_new_or_gone_is_noticed(tmp_path: Path) -> None:
    committed = [goldens.row(record())]
    assert "absent in the table, there now" in str(goldens.differences([], committed)[0])
    assert "there in the table, absent now" in str(goldens.differences(committed, [])[0])
    assert goldens.differences(committed, [], whole=False) == []


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    goldens.file("3.9.0", tmp_path).write_text("# Triton 3.9.0\nvariant,kernel\nv,k\n")
    with pytest.raises(ValueError, match="make goldens"):
        goldens.read("3.9.0", tmp_path)
    assert goldens.read("1.0.0", tmp_path) == []


def test_a_version_that_cannot_be_is_one_line() -> None:
    command = [sys.executable, "-m", "variants", "goldens", "--triton", "9.9.9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "UnsupportedTriton: no Triton '9.9.9'" in done.stderr and "Traceback" not in done.stderr


def test_the_old_language_is_written_as_the_thread_wrote_it() -> None:
    from common.legacy_triton import translate

    source = "tl.atomic_add(p, x, sem=SEM)\nacc = tl.dot(tl.load(a), b, acc, out_dtype=T)\ny = tl.dot(a, b)\n"
    first = translate(source, "2.0.0")
    assert first == "tl.atomic_add(p, x)\nacc = acc + tl.dot(tl.load(a), b)\ny = tl.dot(a, b)"
    second = translate(source, "2.1.0")
    assert second.splitlines()[:2] == ["tl.atomic_add(p, x, sem=SEM)", "acc = acc + tl.dot(tl.load(a), b, out_dtype=T)"]
