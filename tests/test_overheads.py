"""What is paid beside the multiplication: that the two problems of a pair differ in nothing but the fix-up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import variants
from common.errors import NoDevice
from common.launcher import plan
from experiments import overheads
from experiments.__main__ import app

CARD = variants.get(overheads.FIXER).card


@pytest.mark.parametrize("peers", overheads.PEERS)
@pytest.mark.parametrize("sms", [80, 132])
def test_a_pair_does_the_same_iterations_in_as_many_units(peers: int, sms: int) -> None:
    shared, whole = (
        plan(CARD, problem.m, problem.n, problem.k, CARD.default.replace(split=split), sms)
        for problem, split in zip(overheads.pair(peers, sms, CARD.default.block), (peers, 1), strict=True)
    )
    assert shared.split == peers and shared.dp_tiles == 0 and whole.sk_tiles == 0
    lengths = [
        sorted(segment.stop - segment.start for row in schedule.by_program() for segment in row)
        for schedule in (shared, whole)
    ]
    assert lengths[0] == lengths[1] == [overheads.ITERATIONS] * (sms // peers * peers)


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # the command sets it; other tests want it back
    done = CliRunner().invoke(app, ["overheads", "--out", str(tmp_path)])
    assert isinstance(done.exception, NoDevice) and not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_on_a_gpu_both_are_measured(tmp_path: Path) -> None:
    for path in overheads.measure(tmp_path, lambda _: None):
        document = overheads.documents.read(path)
        assert document.records and all(len(record["us"]) > 5 for record in document.records)
