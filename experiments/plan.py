"""From groups of candidates to the list that a run measures, and from a candidate and a problem to a config."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass

import variants
from common.card import Config
from common.decomposition import cdiv
from common.errors import InvalidExperiment
from common.problem import Problem
from common.residency import clusters

EMPTY = "empty"
"""The candidate that launches an empty kernel: the floor of the harness."""
CHOSEN = "matmul"
"""The candidate that `variants.matmul` chooses, problem by problem."""
NO_VARIANTS = (EMPTY, CHOSEN)
PROGRAMS = ("sms", "2*sms", "3*sms", "tiles")
"""Stream-K programs that the problem and the GPU decide; beside them a fraction of the SMs, `0.4*sms`."""
_LAUNCH = ("block", "warps", "stages", "order", "two_tiles", "split", "maxnreg")
_FULL_TILES = ("full_tiles_warps", "full_tiles_stages")
_FRACTION = re.compile(r"(\d+\.\d+)\*sms")


def fraction(programs: int | str) -> float | None:
    """The x of `x*sms`, None for other counts of programs."""
    found = _FRACTION.fullmatch(str(programs))
    return float(found[1]) if found else None


def count_programs(programs: int | str, sms: int, tiles: int) -> int:
    """Stream-K programs as a number; a fraction of the SMs is rounded to the nearest even number, at least 2."""
    share = fraction(programs)
    if share is not None:
        return max(2, 2 * round(share * sms / 2))
    return int({"sms": sms, "2*sms": 2 * sms, "3*sms": 3 * sms, "tiles": tiles}.get(programs, programs))


class ThereTwice(InvalidExperiment):
    """Two candidates are the same. `position`: of the second."""

    def __init__(self, label: str, position: int) -> None:
        super().__init__(f"candidate {label!r} is there twice: write `repeat: 2` to measure it twice")
        self.position = position


@dataclass(frozen=True)
class Candidate:
    """A variant with a config; `programs`: a count, one of PROGRAMS, or `x*sms`. `number` counts repeats from 0.

    `detail` tells candidates apart in their label that differ in warps or stages alone. `kernel`: the variant among
    whose tiles and splits the candidate is chosen, all where it is empty.
    """

    variant: str
    programs: int | str
    config: Config
    number: int = 0
    detail: str = ""
    kernel: str = ""

    @property
    def label(self) -> str:
        """The variant's name and what differs from one program an SM and, in the thread's variants, 128x128x32."""
        parts = [self.variant]
        if self.variant not in (*NO_VARIANTS, "torch_matmul"):
            parts += self._differences()
        if self.kernel:
            parts.append(self.kernel)
        if self.detail:
            parts.append(self.detail)
        if self.number:
            parts.append(f"#{self.number + 1}")
        return " ".join(parts)

    def _differences(self) -> list[str]:
        config, parts, card = self.config, [], variants.get(self.variant).card
        usual = Config() if card.contract.divisible else card.default
        if config.block != usual.block:
            parts.append("x".join(map(str, config.block)))
        if self.programs != "sms":
            parts.append(f"P={self.programs}")
        if config.order != card.default.order:
            parts.append(config.order)
        if config.split is not None:
            parts.append(f"split={config.split}")
        if not config.two_tiles:
            parts.append("one-tile")
        if config.sem != "relaxed":
            parts.append(config.sem)
        if config.tma:
            parts.append("tma")
        if config.maxnreg is not None:
            parts.append(f"r{config.maxnreg}")
        return parts

    def resolved(self, problem: Problem, sms: int) -> Config:
        """The config with `programs` as a number."""
        card = variants.get(self.variant).card
        if card.decomposition in ("data_parallel", "library"):
            return self.config
        tiles = cdiv(problem.m, self.config.block[0]) * cdiv(problem.n, self.config.block[1])
        return self.config.replace(programs=count_programs(self.programs, clusters(sms, card.ctas), tiles))


def tell_apart(candidates: list[Candidate]) -> list[Candidate]:
    """The same candidates, with warps and stages in those labels that would come twice without.

    Raises ThereTwice where two are the same all the same.
    """
    count = Counter(c.label for c in candidates)
    found = [dataclasses.replace(c, detail=_launch(c.config)) if count[c.label] > 1 else c for c in candidates]
    labels = [c.label for c in found]
    for position, label in enumerate(labels):
        if label in labels[:position]:
            raise ThereTwice(label, position)
    return found


def without_effect(variant: str) -> set[str]:
    """What an experiment may say of candidates that changes nothing about this one."""
    found = set() if variant == CHOSEN else {"kernel"}
    if variant in NO_VARIANTS:
        return {"programs", *_LAUNCH, *_FULL_TILES, "sem", *found}
    card = variants.get(variant).card
    if not card.adds_to_c:
        found.add("sem")
    if card.decomposition in ("data_parallel", "split_k", "cluster_ranges", "library"):
        found.add("programs")
    if "full_tiles" not in card.kernels:
        found.update(_FULL_TILES)
    return found | set(_LAUNCH if card.decomposition == "library" else ())


def _launch(config: Config) -> str:
    first, full = (config.num_warps, config.num_stages), (config.full_tiles_warps, config.full_tiles_stages)
    own = [mine or shared for mine, shared in zip(full, first, strict=True)]
    return "w{} s{}".format(*first) + ("" if tuple(own) == first else "/w{} s{}".format(*own))
