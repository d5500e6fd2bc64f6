"""Facts about results: the small version of each, on the real kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import documents
from experiments import facts

ROOT = Path(__file__).parent.parent

SMALL = facts.Scale((32, 32, 32), 256, (1, 4), ((32, 64, 128),), 5, 2)


def test_the_third_tile_of_v03_is_wrong_and_refused(device: str) -> None:
    v03, v04 = facts.third_tile(device)
    assert v03["refused"] and v03["wrong"] > 0 and v03["most_tiles"] == 3
    assert not v04["refused"] and v04["wrong"] == 0


def test_rounding_grows_with_peers_but_not_on_a_scratchpad(device: str) -> None:
    found = {(r["variant"], r["peers"]): r["rms"] for r in facts.rounding(SMALL, device)}
    assert found["v05_cas_lock", 4] > 1.3 * found["v05_cas_lock", 1]
    assert found["v02_scratchpad_barrier", 4] == pytest.approx(found["v02_scratchpad_barrier", 1], rel=0.02)
    assert ("torch_matmul", 1) in found and ("torch_matmul", 4) not in found


def test_a_call_with_one_program_a_tile_repeats_its_bits(device: str) -> None:
    records = list(facts.repeatability(SMALL, device))
    library = next(r for r in records if r["variant"] == "torch_matmul")
    assert (library["distinct"], library["varying"], library["runs"]) == (1, 0.0, 2)
    assert all(1 <= r["distinct"] <= 2 for r in records if "refused" not in r)


def test_a_digest_tells_results_apart(device: str) -> None:
    class Counting:
        """Gives another result at every run."""

        def __init__(self) -> None:
            import torch

            self.out = torch.zeros(4, 4, dtype=torch.float16, device=device)

        def run(self) -> None:
            self.out[0, 0] += 1

    distinct, varying = facts._repeat(Counting(), 5)
    assert distinct == 5
    assert varying == pytest.approx(1 / 16)


def test_a_dry_run_writes_a_document_that_counts_as_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments", "facts", "--device", "interpreter", "--out", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("facts-*.json")
    assert str(path) in done.stdout and documents.read(path).header["dry_run"]
    assert documents.newest(tmp_path, "facts") is None
