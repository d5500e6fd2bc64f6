"""What is paid beside the multiplication: that the two problems of a pair differ in nothing but the fix-up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from common.errors import NoDevice
from common.launcher import plan
from experiments import overheads
from experiments.__main__ import app

CASES = [(name, peers) for name in overheads.FIXERS for peers in overheads.peers_of(name)]


@pytest.mark.parametrize(("name", "peers"), CASES)
@pytest.mark.parametrize("sms", [80, 132])
def test_a_pair_does_the_same_iterations_in_as_many_units(name: str, peers: int, sms: int) -> None:
    variant, config = overheads.fixer(name)
    shared, whole = (
        plan(variant.card, problem.m, problem.n, problem.k, config.replace(split=split), sms)
        for problem, split in zip(overheads.pair(name, peers, sms), (peers, 1), strict=True)
    )
    assert overheads.one_a_program(shared, peers) and overheads.one_a_program(whole, 1)
    assert not overheads.one_a_program(shared, peers + 1)
    lengths = [
        sorted(sum(segment.stop - segment.start for segment in row) for row in schedule.by_program() if row)
        for schedule in (shared, whole)
    ]
    assert lengths[0] == lengths[1] and set(lengths[0]) == {overheads.ITERATIONS}
    assert sms * 3 // 4 < len(lengths[0]) <= sms


@pytest.mark.parametrize("command", ["overheads", "main-loop"])
def test_without_a_gpu_the_command_says_so(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # the command sets it; other tests want it back
    done = CliRunner().invoke(app, [command, "--out", str(tmp_path)])
    assert isinstance(done.exception, NoDevice) and not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_on_a_gpu_both_are_measured(tmp_path: Path) -> None:
    for path in overheads.measure(tmp_path, lambda _: None):
        document = overheads.documents.read(path)
        assert document.records and all(len(record["us"]) > 5 for record in document.records)
