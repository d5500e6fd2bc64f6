"""The schema of an experiment and its loader; every fault names file, line and key."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

import variants
from common.card import Config
from common.errors import InvalidExperiment, UnknownVariant, nearest
from common.problem import Layout, Problem

EMPTY = "empty"
"""The candidate that launches an empty kernel: the floor of the harness."""
PROGRAMS = ("sms", "2*sms", "tiles")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sample(Strict):
    """Seeded shapes. `uniform`: each dimension uniform over the multiples of `step` in [low, high]. `log_uniform`:
    each dimension's logarithm uniform there, rounded to the nearest multiple of `step`. No shape comes twice."""

    distribution: Literal["uniform", "log_uniform"]
    low: Annotated[int, Field(gt=0)]
    high: Annotated[int, Field(gt=0)]
    step: Annotated[int, Field(gt=0)]
    count: Annotated[int, Field(gt=0)]
    seed: int = 123

    @model_validator(mode="after")
    def _enough_shapes(self) -> Sample:
        multiples = self.high // self.step - (self.low - 1) // self.step
        if multiples < 1 or multiples**3 < 2 * self.count:
            raise ValueError(f"[{self.low}, {self.high}] in steps of {self.step} holds too few shapes for {self.count}")
        return self

    def shapes(self) -> list[tuple[int, int, int]]:
        generator, found = random.Random(self.seed), {}
        while len(found) < self.count:
            found[tuple(self._dimension(generator) for _ in range(3))] = None
        return list(found)

    def _dimension(self, generator: random.Random) -> int:
        if self.distribution == "uniform":
            return self.step * generator.randint(-(-self.low // self.step), self.high // self.step)
        value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return max(self.step, self.step * round(value / self.step))


class Problems(Strict):
    """Either shapes as a list of [M, N, K], or a sample."""

    shapes: tuple[tuple[int, int, int], ...] | None = None
    sample: Sample | None = None
    dtype: Literal["float16"] = "float16"
    layout: Layout = "row"

    @model_validator(mode="after")
    def _one_source(self) -> Problems:
        if (self.shapes is None) == (self.sample is None):
            raise ValueError("give either shapes or sample")
        return self

    def all(self) -> list[Problem]:
        shapes = self.sample.shapes() if self.sample else self.shapes
        return [Problem(*shape, dtype=self.dtype, layout=self.layout) for shape in shapes]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class Candidates(Strict):
    """One or more candidates: lists of `variant` and `programs` are multiplied out. What is left out is the card's."""

    variant: tuple[str, ...]
    programs: tuple[int | Literal["sms", "2*sms", "tiles"], ...] = ("sms",)
    block: str | None = None
    warps: int | None = None
    stages: int | None = None
    order: Literal["linear", "swizzled"] | None = None
    two_tiles: bool = True
    sem: Literal["relaxed", "acq_rel"] = "relaxed"
    split: int | None = None
    repeat: Annotated[int, Field(ge=1, le=9)] = 1

    @field_validator("variant", "programs", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return _listed(value)

    @field_validator("variant")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(name if name == EMPTY else variants.resolve(name) for name in names)
        except UnknownVariant as error:
            raise ValueError(str(error)) from None

    @field_validator("block")
    @classmethod
    def _block(cls, text: str | None) -> str | None:
        if text is not None and not (len(text.split("x")) == 3 and all(p.isdecimal() for p in text.split("x"))):
            raise ValueError(f"{text!r}: write BLOCK_MxBLOCK_NxBLOCK_K, for example 128x128x32")
        return text

    def expand(self) -> list[Candidate]:
        return [
            Candidate(name, programs, self._config(name), number)
            for name, programs, number in itertools.product(self.variant, self.programs, range(self.repeat))
        ]

    def _config(self, name: str) -> Config:
        base = Config() if name == EMPTY else variants.get(name).card.default
        changes: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages, "order": self.order}
        changes["block"] = self.block and tuple(map(int, self.block.split("x")))
        changes = {key: value for key, value in changes.items() if value is not None}
        return base.replace(**changes, two_tiles=self.two_tiles, sem=self.sem, split=self.split)


@dataclass(frozen=True)
class Candidate:
    """A variant with a config; `programs` may be an expression that the problem and GPU decide."""

    variant: str
    programs: int | str
    config: Config
    number: int = 0

    @property
    def label(self) -> str:
        """The variant's name and what differs from 128x128x32 at one program an SM."""
        if self.variant in (EMPTY, "torch_matmul"):
            return self.variant + (f" #{self.number + 1}" if self.number else "")
        config, parts = self.config, [self.variant]
        default = variants.get(self.variant).card.default
        if config.block != (128, 128, 32):
            parts.append("x".join(map(str, config.block)))
        if self.programs != "sms":
            parts.append(f"P={self.programs}")
        if config.order != default.order:
            parts.append(config.order)
        if not config.two_tiles:
            parts.append("one-tile")
        if config.sem != "relaxed":
            parts.append(config.sem)
        if self.number:
            parts.append(f"#{self.number + 1}")
        return " ".join(parts)

    def resolved(self, problem: Problem, sms: int) -> Config:
        """The config with `programs` as a number."""
        if variants.get(self.variant).card.decomposition in ("data_parallel", "library"):
            return self.config
        tiles = -(-problem.m // self.config.block[0]) * -(-problem.n // self.config.block[1])
        values = {"sms": sms, "2*sms": 2 * sms, "tiles": tiles}
        return self.config.replace(programs=values.get(self.programs, self.programs))


class Experiment(Strict):
    """What is measured: problems times candidates."""

    name: str
    question: str
    problems: Problems
    candidates: tuple[Candidates, ...]
    rounds: Annotated[int, Field(ge=1, le=1000)] = 9
    time_limit_s: Annotated[float, Field(gt=0)] = 60.0
    seed: int = 123
    tolerance: Annotated[float, Field(gt=0)] | None = None

    def all_candidates(self) -> list[Candidate]:
        found = [candidate for group in self.candidates for candidate in group.expand()]
        labels = [candidate.label for candidate in found]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise InvalidExperiment(f"{self.name}: candidate {sorted(twice)[0]!r} is there twice")
        return found

    def fingerprint(self) -> str:
        """Changes when what is measured changes; a run is only resumed under the same one."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice, which YAML would let overwrite the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise InvalidExperiment(f"{self.name}:{key_node.start_mark.line + 1}: key {key!r} comes twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Experiment:
    """Read and validate an experiment. Raises InvalidExperiment with file, line, key and what is allowed."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidExperiment(f"{path}: {error.strerror}") from None
    loader = _Loader(text)
    loader.name = str(path)
    try:
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidExperiment(f"{path}:{line}: {error.problem}") from None
    if not isinstance(data, dict):
        raise InvalidExperiment(f"{path}:1: an experiment is a mapping with {', '.join(Experiment.model_fields)}")
    try:
        experiment = Experiment.model_validate(data)
        experiment.all_candidates()
    except ValidationError as error:
        raise InvalidExperiment(_explain(path, node, error)) from None
    except InvalidExperiment as error:
        raise InvalidExperiment(f"{path}: {error}") from None
    return experiment


def _explain(path: Path, root: yaml.Node, error: ValidationError) -> str:
    first = error.errors()[0]
    location = [part for part in first["loc"] if not (isinstance(part, str) and "[" in part)]
    line, found = _line(root, location)
    key = ".".join(str(part) for part in found or location)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        allowed = _allowed(location[:-1])
        message = f"unknown key; allowed: {nearest(str(location[-1]), allowed)}"
    return f"{path}:{line}: {key}: {message}"


def _line(node: yaml.Node, location: list[Any]) -> tuple[int, list[Any]]:
    """The line of the deepest part of a location that is in the file, and that part."""
    line, found = node.start_mark.line + 1, []
    for part in location:
        if isinstance(node, yaml.MappingNode):
            match = [(k, v) for k, v in node.value if k.value == part]
            if not match:
                break
            line, node = match[0][0].start_mark.line + 1, match[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
        found.append(part)
    return line, found


def _allowed(location: list[Any]) -> list[str]:
    models: dict[Any, type[BaseModel]] = {"problems": Problems, "sample": Sample, "candidates": Candidates}
    model = next((models[part] for part in reversed(location) if part in models), Experiment)
    return list(model.model_fields)
