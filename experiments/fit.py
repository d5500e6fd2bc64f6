"""Fits the constants of `variants.matmul`'s model to committed measurements: `python -m experiments fit`.

Each kernel with one tile has constants of its own. They minimise the squared logarithm of expected over measured time,
softened for outliers, over every problem and split that the runs hold. Only shapes that are for fitting may be in them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import variants
from common import cost
from common.card import Config
from common.cost import Constants, Kernels
from common.errors import InvalidExperiment
from common.population import part_of
from common.problem import Problem
from common.residency import clusters
from common.rows import Run
from experiments.plan import count_programs

EXPERIMENTS = ("matmul_training", "sides_training", "choice_training", "unaligned")
"""What is fitted to where nothing else is said: every finished run of these."""
START = Constants(3.0, 1.5, 0.2, 0.1, 3.5, 1.0, 0.3, 0.1, 0.1, 1.5)
"""Where the search begins, microseconds and TB/s."""
LEAST_ROWS = 60
"""Rows that ten constants need at least."""
LEAST_ALIGNED = 20
"""Rows that a kernel needs on matrices whose rows start at multiples of a line, to be considered for such."""
LEFT_OUT = ("programs", "split", "full_tiles_warps", "full_tiles_stages")
"""Fields of a config that are not part of a kernel with one tile."""


@dataclass(frozen=True)
class Fitted:
    """A kernel with one tile and its constants; `log_error`: the root mean square of log(expected over measured).

    `most_split`: the most K ranges that were measured. `aligned`: whether also on rows that start at multiples of a
    line.
    """

    variant: str
    config: dict[str, Any]
    programs_per_sm: int
    most_split: int
    aligned: bool
    constants: Constants
    rows: int
    log_error: float

    def as_dict(self) -> dict[str, Any]:
        """As the data file holds it."""
        rounded = {name: float(f"{value:.5g}") for name, value in dataclasses.asdict(self.constants).items()}
        return dataclasses.asdict(self) | {"constants": rounded, "log_error": round(self.log_error, 4)}


def fit(runs: Sequence[Run]) -> list[Fitted]:
    """The constants of every kernel and tile of the runs that the formula describes, in the runs' order.

    Raises InvalidExperiment where a shape is for reporting, where the runs hold nothing to fit, or where they come from
    GPUs of different kinds.
    """
    for run in runs:
        wrong = sorted({row.problem for row in run.rows if part_of(row.problem) != "training"})
        if wrong:
            raise InvalidExperiment(
                f"{run.path.name}: {len(wrong)} of its shapes are for reporting, the first {wrong[0]}: "
                "fit to a run of matmul_training"
            )
    kinds = sorted({device["name"] for run in runs for device in run.devices.values()})
    if len(kinds) > 1:
        raise InvalidExperiment(f"one set of constants is for one kind of GPU; the runs are of {', '.join(kinds)}")
    groups: dict[str, list[Samples]] = {}
    families: dict[str, tuple[str, dict[str, Any], int]] = {}
    for run in runs:
        for index, candidate in enumerate(run.candidates):
            family = _family(candidate, run.header["device"]["sms"])
            if family is None:
                continue
            key = json.dumps(family)
            families[key] = family
            groups.setdefault(key, []).append(_samples(run, index, candidate))
    found = [
        _fitted(*families[key], samples)
        for key, samples in groups.items()
        if sum(len(s.us) for s in samples) >= LEAST_ROWS
    ]
    if not found:
        names = ", ".join(run.path.name for run in runs)
        raise InvalidExperiment(f"{names}: no kernel with {LEAST_ROWS} rows to fit to")
    return found


@dataclass(frozen=True)
class Samples:
    """What problems ask of a candidate with `split` K ranges (`works`, see `cost.work`), and the microseconds it took.

    `aligned`: how many of them have rows of A and of B that start at multiples of a line.
    """

    works: np.ndarray
    us: np.ndarray
    split: int
    aligned: int


def _family(candidate: dict[str, Any], sms: int) -> tuple[str, dict[str, Any], int] | None:
    """Variant, config without programs and split, programs an SM; None for what the formula does not describe."""
    name, programs = candidate["variant"], candidate["programs"]
    if name in ("empty", "matmul"):
        return None
    card = variants.get(name).card
    if card.decomposition not in ("whole_waves", "cluster_ranges"):
        return None
    default, config = dataclasses.asdict(card.default), _config(candidate)
    plain = {k: v for k, v in config.items() if k not in LEFT_OUT and (k == "block" or v != default[k])}
    if card.decomposition == "cluster_ranges":
        return name, plain, cost.at_once(card, Config(**config))
    at_once = clusters(sms, card.ctas)
    per_sm = count_programs(programs, at_once, 0) / at_once
    return (name, plain, int(per_sm)) if per_sm >= 1 and per_sm == int(per_sm) else None


def _config(candidate: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(Config)}
    return {k: tuple(v) if k == "block" else v for k, v in candidate["config"].items() if k in known}


def _samples(run: Run, index: int, candidate: dict[str, Any]) -> Samples:
    sms, card = run.header["device"]["sms"], variants.get(candidate["variant"]).card
    config = Config(**_config(candidate))
    config = config.replace(programs=count_programs(candidate["programs"], clusters(sms, card.ctas), 0))
    measured = run.by_candidate.get(index, {})
    shapes = [shape for shape, row in measured.items() if row.status == "ok" and row.samples]
    m, n, k = np.array(shapes, dtype=int).reshape(-1, 3).T
    item = Problem(1, 1, 1, dtype=run.header["dtype"]).torch_dtype.itemsize
    row_bytes = (k * item, n * item)
    works = cost.work(m, n, k, row_bytes, item, Kernels.of(card, [config]), sms)
    aligned = int(np.sum(cost.at_lines(row_bytes)))
    return Samples(works, np.array([measured[shape].median for shape in shapes]), config.split or 1, aligned)


def _fitted(variant: str, config: dict[str, Any], per_sm: int, samples: list[Samples]) -> Fitted:
    works, measured = (
        np.concatenate([s.works for s in samples], axis=1),
        np.log(np.concatenate([s.us for s in samples])),
    )

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(cost.predict(np.exp(logs), works)) - measured

    start = np.log([getattr(START, name) for name in cost.NAMES])
    bounds = (start - np.log(200), start + np.log(200))
    solution = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1)
    error = float(np.sqrt(np.mean(residuals(solution.x) ** 2)))
    constants = Constants(*map(float, np.exp(solution.x)))
    most, aligned = max(s.split for s in samples), sum(s.aligned for s in samples) >= LEAST_ALIGNED
    return Fitted(variant, config, per_sm, most, aligned, constants, len(measured), error)


def write(found: list[Fitted], runs: Sequence[Run], path: Path) -> None:
    """Write the data file with where it comes from."""
    newest = max(runs, key=lambda run: run.header["date"])
    provenance = {
        "fitted": True,
        "runs": [run.id for run in runs],
        "commits": sorted({run.header["commit"] for run in runs}),
        "device": newest.header["device"]["name"],
        "versions": {name: newest.header["versions"][name] for name in ("torch", "triton")},
        "problems": len({row.problem for run in runs for row in run.rows}),
    }
    families = [fitted.as_dict() for fitted in found]
    path.write_text(json.dumps({"provenance": provenance, "families": families}, indent=1) + "\n")
