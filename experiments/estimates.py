"""The modelled bytes of every profiled call, on the thread's GPUs and on those whose counters were read.

Needs no GPU, and gives the same everywhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import variants
from common import documents, traffic
from common.decomposition import GROUP_M
from common.launcher import plan
from common.problem import Problem
from common.traffic import Cache, Traffic
from experiments.plan import EMPTY, Candidate
from experiments.spec import Experiment

KIND = "estimates"
Call = tuple[Problem, Candidate]


@dataclass(frozen=True)
class Machine:
    """What the model needs of a GPU."""

    name: str
    sms: int
    cache: Cache


THREAD = (
    # NVIDIA Ampere GA102 GPU Architecture whitepaper, and the A100's
    Machine("RTX 3090", 82, Cache(6 << 20)),
    Machine("A100", 108, Cache(40 << 20, parts=2)),
)
"""The thread's GPUs."""


def machine(device: dict[str, Any]) -> Machine:
    """A GPU as a document's header describes it."""
    parts = 2 if device["capability"] in traffic.TWO_PARTS else 1
    return Machine(device["name"], device["sms"], Cache(device["l2_bytes"], parts))


def calls(experiment: Experiment) -> list[Call]:
    """Every problem with every candidate once, without the empty kernel and without repeats."""
    wanted = [c for c in experiment.all_candidates() if c.variant != EMPTY and not c.number]
    return [(problem, candidate) for problem in experiment.problems.all() for candidate in wanted]


def estimated(problem: Problem, candidate: Candidate, gpu: Machine) -> Traffic | None:
    """The traffic of a call on a GPU; None for the library, whose schedule is not known."""
    card = variants.get(candidate.variant).card
    if card.decomposition == "library":
        return None
    config = candidate.resolved(problem, gpu.sms)
    schedule = plan(card, problem.m, problem.n, problem.k, config, gpu.sms)
    group_m = GROUP_M if config.order == "swizzled" else 0
    size, resident = problem.torch_dtype.itemsize, traffic.RESIDENT_PER_SM * gpu.sms
    return traffic.estimate(schedule, config.block, size, group_m, resident, gpu.cache, apart=len(card.kernels) > 1)


def measure(experiment: Experiment, machines: list[Machine], out: Path) -> Path:
    """Model every call of an experiment on each GPU and write the document."""
    wanted, records = calls(experiment), []
    for number, (problem, candidate) in enumerate(wanted, 1):
        for gpu in machines:
            found = estimated(problem, candidate, gpu)
            if found is not None:
                shape = [problem.m, problem.n, problem.k]
                record = {"problem": shape, "label": candidate.label, "device": gpu.name, "read_bytes": found.read}
                records.append(record | {"hit_rate": round(found.hit_rate, 5)})
        print(f"estimates: {number}/{len(wanted)}", file=sys.stderr, flush=True)
    head = documents.header(source="model of the schedule", experiment=experiment.name)
    head["device"] = {"name": "no GPU needed"}
    return documents.write(out, KIND, head, records)
