"""Fits the constants of `variants.matmul`'s model to committed measurements: `python -m experiments fit`.

Each kernel with one tile has constants of its own. They minimise the squared logarithm of expected over measured time,
softened for outliers, over every problem and split that the run holds. Only shapes that are for fitting may be in it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import variants
from common import cost
from common.card import Config
from common.cost import Constants, Work
from common.decomposition import WaveSchedule
from common.errors import InvalidExperiment
from common.launcher import plan
from common.population import part_of
from common.problem import Problem
from common.rows import Run
from experiments.plan import count_programs

START = Constants(3.0, 1.5, 0.2, 0.1, 3.5, 1.0, 0.3)
"""Where the search begins, microseconds and TB/s."""
LEAST_ROWS = 40
"""Rows that seven constants need at least."""
LEFT_OUT = ("programs", "split", "full_tiles_warps", "full_tiles_stages")
"""Fields of a config that are not part of a kernel with one tile."""


@dataclass(frozen=True)
class Fitted:
    """A kernel with one tile and its constants; `log_error`: the root mean square of log(expected over measured)."""

    variant: str
    config: dict[str, Any]
    programs_per_sm: int
    constants: Constants
    rows: int
    log_error: float

    def as_dict(self) -> dict[str, Any]:
        """As the data file holds it."""
        rounded = {name: float(f"{value:.5g}") for name, value in dataclasses.asdict(self.constants).items()}
        return dataclasses.asdict(self) | {"constants": rounded, "log_error": round(self.log_error, 4)}


def fit(run: Run) -> list[Fitted]:
    """The constants of every kernel and tile of a run whose decomposition is whole waves, in the run's order.

    Raises InvalidExperiment where a shape is for reporting, or where the run holds nothing to fit.
    """
    wrong = sorted({row.problem for row in run.rows if part_of(row.problem) != "training"})
    if wrong:
        raise InvalidExperiment(
            f"{run.path.name}: {len(wrong)} of its shapes are for reporting, the first {wrong[0]}: "
            "fit to a run of matmul_training"
        )
    groups: dict[str, list[tuple[Work, float]]] = {}
    families: dict[str, tuple[str, dict[str, Any], int]] = {}
    for index, candidate in enumerate(run.candidates):
        family = _family(candidate, run.header["device"]["sms"])
        if family is None:
            continue
        key = json.dumps(family)
        families[key] = family
        groups.setdefault(key, []).extend(_works(run, index, candidate))
    found = [_fitted(*families[key], samples) for key, samples in groups.items() if len(samples) >= LEAST_ROWS]
    if not found:
        raise InvalidExperiment(f"{run.path.name} holds no kernel with {LEAST_ROWS} rows to fit to")
    return found


def _family(candidate: dict[str, Any], sms: int) -> tuple[str, dict[str, Any], int] | None:
    """Variant, config without programs and split, programs an SM; None for what the model does not describe."""
    name, programs = candidate["variant"], candidate["programs"]
    if name in ("empty", "matmul") or variants.get(name).card.decomposition != "whole_waves":
        return None
    default = dataclasses.asdict(variants.get(name).card.default)
    plain = {k: v for k, v in _config(candidate).items() if k not in LEFT_OUT and (k == "block" or v != default[k])}
    per_sm = count_programs(programs, sms, 0) / sms
    return (name, plain, int(per_sm)) if per_sm >= 1 and per_sm == int(per_sm) else None


def _config(candidate: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(Config)}
    return {k: tuple(v) if k == "block" else v for k, v in candidate["config"].items() if k in known}


def _works(run: Run, index: int, candidate: dict[str, Any]) -> list[tuple[Work, float]]:
    """What each problem asks of the candidate, and the microseconds it took."""
    sms, card = run.header["device"]["sms"], variants.get(candidate["variant"]).card
    config = Config(**_config(candidate))
    config = config.replace(programs=count_programs(candidate["programs"], sms, 0))
    found = []
    for shape, row in run.by_candidate.get(index, {}).items():
        if row.status != "ok" or not row.samples:
            continue
        problem = Problem(*shape, dtype=run.header["dtype"])
        schedule = plan(card, *shape, config, sms)
        if isinstance(schedule, WaveSchedule):
            found.append((Work.of(problem, config.block, schedule), row.median))
    return found


def _fitted(variant: str, config: dict[str, Any], per_sm: int, samples: list[tuple[Work, float]]) -> Fitted:
    works, measured = cost.table([work for work, _ in samples]), np.log([us for _, us in samples])

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(cost.predict(np.exp(logs), works)) - measured

    start = np.log([getattr(START, name) for name in cost.NAMES])
    bounds = (start - np.log(200), start + np.log(200))
    solution = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1)
    error = float(np.sqrt(np.mean(residuals(solution.x) ** 2)))
    constants = Constants(*map(float, np.exp(solution.x)))
    return Fitted(variant, config, per_sm, constants, len(samples), error)


def write(found: list[Fitted], run: Run, path: Path) -> None:
    """Write the data file with where it comes from."""
    provenance = {
        "fitted": True,
        "run": run.id,
        "commit": run.header["commit"],
        "device": run.header["device"]["name"],
        "versions": {name: run.header["versions"][name] for name in ("torch", "triton")},
        "problems": len({row.problem for row in run.rows}),
    }
    families = [fitted.as_dict() for fitted in found]
    path.write_text(json.dumps({"provenance": provenance, "families": families}, indent=1) + "\n")
