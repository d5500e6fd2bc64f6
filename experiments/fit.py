"""Fits the constants of `variants.matmul`'s model to committed measurements: `python -m experiments fit`.

Each kernel with one tile has constants of its own. They minimise the squared logarithm of expected over measured time,
softened for outliers, over every problem and split that the runs hold. Only shapes that are for fitting may be in them.
What the formula then misses of a kernel, tile and split is fitted by a sum of Gaussians, see `cost.corrected`: ridge
regression of the logarithm of measured over expected time, in the norm that belongs to the Gaussians.
"""

from __future__ import annotations

import dataclasses
import json
import re
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

EXPERIMENTS = ("matmul_training", "sides_training", "clusters_training", "choice_training", "stages_training")
"""What is fitted to where nothing else is said: every finished run of these."""
START = Constants(3.0, 1.5, 0.2, 0.1, 3.5, 1.0, 0.3, 0.1, 0.1, 1.5)
"""Where the search begins, microseconds and TB/s."""
FLOOR_US = 3.5
"""Microseconds of an empty kernel that every run is brought to. Machines of one kind differ by up to 1, and all their
kernels by as much."""
LEAST_ROWS = 60
"""Rows that ten constants need at least."""
LEAST_ALIGNED = 20
"""Rows that a kernel needs on matrices whose rows start at multiples of a line, to be considered for such."""
CENTRES = 40
"""Gaussians of a correction; more chose no better on shapes held out."""
RIDGE = 1.0
"""How much a correction's squared norm counts beside the squared residuals."""
LEAST_CORRECTED = 20
"""Rows that a split needs for a correction of its own."""
FOLDS = 5
"""Parts of the shapes, each predicted from the others."""
NOT_CHOSEN = ("v11_cluster_ranges", "v18_square_clusters")
"""Kernels that are left out of the choice: v20 has v11's tiles and clusters and takes no longer on average with any of
them; v18 is first for 7 of the 300 shapes of choice_training, by 4 %, which is no more than the model is off."""
LEFT_OUT = ("programs", "split", "full_tiles_warps", "full_tiles_stages")
"""Fields of a config that are not part of a kernel with one tile."""


@dataclass(frozen=True)
class Fitted:
    """A kernel with one tile, its constants, and for each split the weights of its correction.

    `most_split`: the most K ranges that were measured. `aligned`: whether also on rows that start at multiples of a
    line. `log_error`: the root mean square of log(expected over measured), of the formula alone on the rows that it is
    fitted to. `corrected_log_error`: with the correction, on shapes that neither constants nor weights were fitted to,
    over the rows whose launch has the split that was asked for.
    """

    variant: str
    config: dict[str, Any]
    programs_per_sm: int
    most_split: int
    aligned: bool
    constants: Constants
    rows: int
    log_error: float
    corrected_log_error: float
    corrections: dict[int, np.ndarray]

    def as_dict(self) -> dict[str, Any]:
        """As the data file holds it."""
        rounded = {name: float(f"{value:.5g}") for name, value in dataclasses.asdict(self.constants).items()}
        corrections = {str(split): [float(f"{w:.3g}") for w in weights] for split, weights in self.corrections.items()}
        errors = {name: round(getattr(self, name), 4) for name in ("log_error", "corrected_log_error")}
        return dataclasses.asdict(self) | {"constants": rounded, "corrections": corrections} | errors


@dataclass(frozen=True)
class Costs:
    """What was fitted: every kernel with one tile, and the centres of their corrections, see `cost.features`."""

    centres: np.ndarray
    families: list[Fitted]


def fit(runs: Sequence[Run]) -> Costs:
    """Constants and corrections of every kernel and tile of the runs that the formula describes, in the runs' order.

    Raises InvalidExperiment where a shape is for reporting, a run has no empty kernel, the runs hold nothing to fit, or
    they come from GPUs of different kinds.
    """
    for run in runs:
        wrong = sorted({row.problem for row in run.rows if part_of(row.problem) != "training"})
        if wrong:
            raise InvalidExperiment(
                f"{run.path.name}: {len(wrong)} of its shapes are for reporting, the first {wrong[0]}: "
                "fit to a run of matmul_training"
            )
        if run.floor_us is None:
            raise InvalidExperiment(f"{run.path.name}: no empty kernel to tell this machine's floor by; fit without it")
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
    joined = {key: Samples.joined(samples) for key, samples in groups.items()}
    enough = {key: samples for key, samples in joined.items() if len(samples.us) >= LEAST_ROWS}
    if not enough:
        names = ", ".join(run.path.name for run in runs)
        raise InvalidExperiment(f"{names}: no kernel with {LEAST_ROWS} rows to fit to")
    centres = spread(np.concatenate([samples.places for samples in enough.values()]))
    return Costs(centres, [_fitted(*families[key], samples, centres) for key, samples in enough.items()])


def spread(places: np.ndarray) -> np.ndarray:
    """CENTRES of these places, or all: first the nearest to their mean, then always the farthest from those taken."""
    places = np.unique(places, axis=0)
    found = [int(np.argmin(((places - places.mean(0)) ** 2).sum(1)))]
    nearest = ((places - places[found[0]]) ** 2).sum(1)
    while len(found) < min(CENTRES, len(places)):
        found.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, ((places - places[found[-1]]) ** 2).sum(1))
    return places[found]


@dataclass(frozen=True)
class Samples:
    """What problems ask of candidates (`works`, see `cost.work`), and the microseconds that these took; one row each.

    `places`: `cost.features` of the problems. `split`: K ranges of the candidate; `real`: whether its launch has them.
    `aligned`: whether rows of A and of B start at multiples of a line.
    """

    works: np.ndarray
    us: np.ndarray
    places: np.ndarray
    split: np.ndarray
    real: np.ndarray
    aligned: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """All of them in order."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in dataclasses.fields(cls)))

    def __getitem__(self, rows: np.ndarray) -> Samples:
        """These rows alone."""
        return Samples(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def _family(candidate: dict[str, Any], sms: int) -> tuple[str, dict[str, Any], int] | None:
    """Variant, config without programs and split, programs an SM; None for what the formula does not describe."""
    name, programs = candidate["variant"], candidate["programs"]
    if name in ("empty", "matmul", *NOT_CHOSEN):
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
    kernels, split = Kernels.of(card, [config]), config.split or 1
    works = cost.work(m, n, k, row_bytes, item, kernels, sms)
    real = np.broadcast_to(cost.effective_split(m, n, k, kernels) == split, len(shapes))
    places = cost.features(m, n, k, row_bytes, item)
    us = np.array([measured[shape].median for shape in shapes]) - (run.floor_us - FLOOR_US)
    return Samples(works.T, us, places, np.full(len(shapes), split), real, cost.at_lines(row_bytes))


def _fitted(variant: str, config: dict[str, Any], per_sm: int, samples: Samples, centres: np.ndarray) -> Fitted:
    constants = _constants(samples)
    most, aligned = int(samples.split.max()), bool(samples.aligned.sum() >= LEAST_ALIGNED)
    return Fitted(
        variant,
        config,
        per_sm,
        most,
        aligned,
        Constants(*map(float, constants)),
        len(samples.us),
        _root_mean_square(_missed(constants, samples)),
        _root_mean_square(_held_out(constants, samples, centres)),
        _corrections(constants, samples, centres),
    )


def _root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def _missed(constants: np.ndarray, samples: Samples) -> np.ndarray:
    """The logarithm of measured over expected time."""
    return np.log(samples.us) - np.log(cost.predict(constants, samples.works.T))


def _constants(samples: Samples, near: np.ndarray | None = None) -> np.ndarray:
    """In the order of `cost.NAMES`. `near`: where the search begins, if not at START."""
    middle = np.log([getattr(START, name) for name in cost.NAMES])
    bounds = (middle - np.log(200), middle + np.log(200))
    start = middle if near is None else np.clip(np.log(near), *bounds)
    solution = least_squares(
        lambda logs: _missed(np.exp(logs), samples), start, bounds=bounds, loss="soft_l1", f_scale=0.1
    )
    return np.exp(solution.x)


def _corrections(constants: np.ndarray, samples: Samples, centres: np.ndarray) -> dict[int, np.ndarray]:
    """The weights of each split with enough rows.

    A launch whose split was cut down is another split's, and never chosen: its rows are left out.
    """
    norm, found = cost.basis(centres, centres), {}
    for split in np.unique(samples.split):
        rows = samples[(samples.split == split) & samples.real]
        if len(rows.us) >= LEAST_CORRECTED:
            near = cost.basis(rows.places, centres)
            # Centres that lie close together would otherwise make the equations all but singular.
            equations = near.T @ near + RIDGE * norm + 1e-6 * np.eye(len(centres))
            found[int(split)] = np.linalg.solve(equations, near.T @ _missed(constants, rows))
    return found


def _held_out(found: np.ndarray, samples: Samples, centres: np.ndarray) -> np.ndarray:
    """What formula and correction together miss of each shape, fitted to the other FOLDS - 1 parts of the shapes.

    `found`: the constants of all shapes, from where those of fewer are found sooner.
    """
    shapes, which = np.unique(samples.places, axis=0, return_inverse=True)
    part = np.random.default_rng(0).permutation(len(shapes))[which.reshape(-1)] % FOLDS
    missed = []
    for fold in range(FOLDS):
        others, held = samples[part != fold], samples[(part == fold) & samples.real]
        constants = _constants(others, found)
        logs, near = _missed(constants, held), cost.basis(held.places, centres)
        for split, weights in _corrections(constants, others, centres).items():
            logs -= np.where(held.split == split, near @ weights, 0)
        missed.append(logs)
    return np.concatenate(missed)


def write(costs: Costs, runs: Sequence[Run], path: Path) -> None:
    """Write the data file with where it comes from, every list in one line."""
    newest = max(runs, key=lambda run: run.header["date"])
    provenance = {
        "fitted": True,
        "runs": [run.id for run in runs],
        "commits": sorted({run.header["commit"] for run in runs}),
        "device": newest.header["device"]["name"],
        "versions": {name: newest.header["versions"][name] for name in ("torch", "triton")},
        "problems": len({row.problem for run in runs for row in run.rows}),
    }
    centres = [[float(f"{x:.5g}") for x in centre] for centre in costs.centres]
    families = [fitted.as_dict() for fitted in costs.families]
    text = json.dumps({"provenance": provenance, "centres": centres, "families": families}, indent=1)
    path.write_text(re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")
