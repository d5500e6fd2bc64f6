"""The schema of an experiment and its loader; every fault names file, line and key."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

import variants
from common.card import Config
from common.errors import InvalidExperiment, UnknownVariant, UnsupportedProblem, nearest
from common.launcher import check_config
from common.population import TRAINING_SHARE, Part, part_of, stratified
from common.problem import Layout, Problem
from experiments.plan import EMPTY, NO_VARIANTS, PROGRAMS, Candidate, ThereTwice, fraction, tell_apart, without_effect
from experiments.tables import chosen

MOST_ROUNDS = 25
"""More samples than this do not fit into a row of at most 300 bytes."""


_SCIENTIFIC = re.compile(r"\+?\d+(\.\d*)?[eE]\+?\d{1,2}")
"""A whole number as `1e3`, which PyYAML reads as a text."""


def _whole_number(value: Any) -> Any:
    """The same value with texts like `1e3` as whole numbers, where they are whole."""
    if isinstance(value, list):
        return [_whole_number(item) for item in value]
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value) and Decimal(value) == int(Decimal(value)):
        return int(Decimal(value))
    return value


class Strict(BaseModel):
    """Unknown keys are refused. A text that can only be a number or a truth value is read as one; a truth value is
    never read as a number, nor a number as a truth value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_mixing(cls, value: Any, info: ValidationInfo) -> Any:
        expected = cls.model_fields[info.field_name].annotation
        for item in listed(value):
            if isinstance(item, bool) and expected is not bool:
                raise ValueError(f"{'on' if item else 'off'} is a truth value: another kind of value is needed here")
            if expected is bool and not isinstance(item, (bool, str)):
                raise ValueError(f"{item!r} is no truth value: write on or off")
        return _whole_number(value) if re.search(r"\bint\b", str(expected)) else value


Size = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Sample(Strict):
    """Seeded shapes. `uniform`: each dimension uniform over the multiples of `step` in [low, high]. `log_uniform`:
    each dimension's logarithm uniform there, rounded to the nearest multiple of `step`. No shape comes twice. `part`:
    only shapes that are for fitting, or only those that are for reporting. `stratified`: so many of the `count`, spread
    over the classes of tiles and of K, in random order."""

    distribution: Literal["uniform", "log_uniform"]
    low: Annotated[int, Field(gt=0)]
    high: Annotated[int, Field(gt=0)]
    step: Annotated[int, Field(gt=0)]
    count: Annotated[int, Field(gt=0)]
    seed: Seed = 123
    part: Part | None = None
    stratified: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _enough_shapes(self) -> Sample:
        multiples = self.high // self.step - (self.low - 1) // self.step
        if multiples < 1 or multiples**3 < 2 * self.count:
            raise ValueError(f"[{self.low}, {self.high}] in steps of {self.step} holds too few shapes for {self.count}")
        if self.part == "training" and multiples**3 < 2 * TRAINING_SHARE * self.count:
            raise ValueError(f"too few of these shapes are for fitting: {self.count} are wanted")
        if self.stratified is not None and self.stratified > self.count:
            raise ValueError(f"stratified: {self.stratified} of {self.count} shapes")
        return self

    def shapes(self) -> list[tuple[int, int, int]]:
        generator, found = random.Random(self.seed), {}
        while len(found) < self.count:
            shape = tuple(self._dimension(generator) for _ in range(3))
            if self.part is None or part_of(shape) == self.part:
                found[shape] = None
        return stratified(found, self.stratified, self.seed) if self.stratified else list(found)

    def _dimension(self, generator: random.Random) -> int:
        if self.distribution == "uniform":
            return self.step * generator.randint(-(-self.low // self.step), self.high // self.step)
        value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        first, last = -(-self.low // self.step), self.high // self.step
        return self.step * min(max(round(value / self.step), first), last)


class Problems(Strict):
    """Shapes as a list of [M, N, K], a sample, or several samples one after another."""

    shapes: Annotated[tuple[tuple[Size, Size, Size], ...], Field(min_length=1)] | None = None
    sample: Sample | None = None
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)] | None = None
    dtype: Literal["float16"] = "float16"
    layout: Layout = "row"

    @model_validator(mode="after")
    def _one_source(self) -> Problems:
        if sum(x is not None for x in (self.shapes, self.sample, self.samples)) != 1:
            raise ValueError("give either shapes or sample or samples")
        if self.shapes is not None and len(set(self.shapes)) != len(self.shapes):
            raise ValueError("a shape comes twice")
        return self

    def all(self) -> list[Problem]:
        samples = self.samples or (self.sample,)
        shapes = self.shapes or dict.fromkeys(shape for sample in samples if sample for shape in sample.shapes())
        return [Problem(*shape, dtype=self.dtype, layout=self.layout) for shape in shapes]


def fault(place: tuple[str | int, ...], reason: str) -> PydanticCustomError:
    """A fault of a model that lies at one of its keys, or deeper."""
    return PydanticCustomError("impossible", "{reason}", {"reason": reason, "place": place})


def listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def resolved(name: str) -> str:
    """A variant's whole name. Raises ValueError, as fields are refused."""
    try:
        return variants.resolve(name)
    except UnknownVariant as error:
        raise ValueError(str(error)) from None


class Candidates(Strict):
    """One or more candidates: lists of `variant`, `programs` and `split` are multiplied out. What is left out is the
    card's. The variant `matmul` is what `variants.matmul` chooses for each problem, among the tiles and splits of
    `kernel` alone where that is named.

    `warps` and `stages` are those of every kernel of a variant, `full_tiles_warps` and `full_tiles_stages` those of its
    full-tiles kernel where that differs. `programs`: a count, or `sms`, `2*sms`, `3*sms`, `tiles`,
    or a fraction of the SMs, `0.4*sms`, which is rounded to an even number. `maxnreg`: registers of a thread of the
    first wave, at most.
    """

    variant: Annotated[tuple[str, ...], Field(min_length=1)]
    programs: Annotated[tuple[int | str, ...], Field(min_length=1)] = ("sms",)
    block: str | None = None
    warps: Size | None = None
    stages: Size | None = None
    full_tiles_warps: Size | None = None
    full_tiles_stages: Size | None = None
    order: Literal["linear", "swizzled"] | None = None
    two_tiles: bool = True
    sem: Literal["relaxed", "acq_rel"] = "relaxed"
    split: tuple[Size, ...] | None = None
    tma: bool = False
    maxnreg: Size | None = None
    kernel: str | None = None
    repeat: Annotated[int, Field(ge=1, le=9)] = 1

    @field_validator("variant", "programs", "split", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return None if value is None else listed(value)

    @field_validator("variant")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if name in NO_VARIANTS else resolved(name) for name in names)

    @field_validator("kernel")
    @classmethod
    def _a_variant(cls, name: str | None) -> str | None:
        return None if name is None else resolved(name)

    @field_validator("programs")
    @classmethod
    def _counted(cls, values: tuple[int | str, ...]) -> tuple[int | str, ...]:
        found = tuple(int(v) if isinstance(v, str) and v.isdecimal() else v for v in values)
        for value in found:
            if value in PROGRAMS or fraction(value) or (isinstance(value, int) and value >= 0):
                continue
            allowed = nearest(str(value), PROGRAMS)
            raise ValueError(
                f"{value!r}: a count of 0 or more, or {', '.join(PROGRAMS)}, or 0.4*sms; nearest: {allowed}"
            )
        return found

    @field_validator("block")
    @classmethod
    def _block(cls, text: str | None) -> str | None:
        if text is not None and not (len(text.split("x")) == 3 and all(p.isdecimal() for p in text.split("x"))):
            raise ValueError(f"{text!r}: write BLOCK_MxBLOCK_NxBLOCK_K, for example 128x128x32")
        return text

    @model_validator(mode="after")
    def _possible(self) -> Candidates:
        """What is said must be possible and mean something for every variant here; a fault is put down to one key where
        that key alone has it."""
        fields = type(self).model_fields
        said = {key: getattr(self, key) for key in fields if getattr(self, key) != fields[key].default}
        for key, name in itertools.product(said, self.variant):
            if key in without_effect(name):
                raise fault((key,), f"{name}: {key} changes nothing about it; leave it out")
        if self._impossible() is None:
            return self
        for key in said:
            reason = self.model_construct(**{"variant": self.variant, key: said[key]})._impossible()
            if reason is not None:
                raise fault((key,), reason)
        raise fault((), str(self._impossible()))

    def _impossible(self) -> str | None:
        """Why a candidate cannot be, whatever the problem."""
        for candidate in (c for c in self.expand() if c.variant not in NO_VARIANTS):
            programs = candidate.programs if isinstance(candidate.programs, int) else None
            try:
                check_config(variants.get(candidate.variant), candidate.config.replace(programs=programs))
            except UnsupportedProblem as error:
                return str(error)
        return None

    def expand(self) -> list[Candidate]:
        return [
            Candidate(name, programs, self._config(name, split), number, kernel=self.kernel or "")
            for name, programs, split, number in itertools.product(
                self.variant, self.programs, self.split or (None,), range(self.repeat)
            )
        ]

    def _config(self, name: str, split: int | None) -> Config:
        base = Config() if name in NO_VARIANTS else variants.get(name).card.default
        changes: dict[str, Any] = {"order": self.order, "split": split, "maxnreg": self.maxnreg}
        changes["block"] = self.block and tuple(map(int, self.block.split("x")))
        changes |= {"num_warps": self.warps, "full_tiles_warps": self.full_tiles_warps or self.warps}
        changes |= {"num_stages": self.stages, "full_tiles_stages": self.full_tiles_stages or self.stages}
        changes = {key: value for key, value in changes.items() if value is not None}
        return base.replace(**changes, two_tiles=self.two_tiles, sem=self.sem, tma=self.tma)


class Experiment(Strict):
    """What is measured: problems times candidates.

    `rounds`: samples of each. `time_limit_s`: seconds that one step of one candidate (compile and check, or one sample)
    may take. `tolerance`: replaces the one that follows from K and the peers of a tile. `timing`: `graph` takes device
    time from replays of CUDA graphs, `do_bench` the means of Triton's function of that name, host gaps included.
    `reduced_precision`: whether cuBLAS may add partial sums in fp16, as torch lets it by default.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    question: str
    problems: Problems
    candidates: Annotated[tuple[Candidates, ...], Field(min_length=1)]
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 9
    timing: Literal["graph", "do_bench"] = "graph"
    time_limit_s: Annotated[float, Field(gt=0)] = 60.0
    seed: Seed = 123
    tolerance: Annotated[float, Field(gt=0)] | None = None
    reduced_precision: bool = True

    @model_validator(mode="after")
    def _told_apart(self) -> Experiment:
        try:
            self.all_candidates()
        except ThereTwice as error:
            groups = [number for number, group in enumerate(self.candidates) for _ in group.expand()]
            raise fault(("candidates", groups[error.position]), str(error)) from None
        return self

    def all_candidates(self) -> list[Candidate]:
        """Every candidate, in the file's order; the position is the `c` of a row."""
        return tell_apart([candidate for group in self.candidates for candidate in group.expand()])

    def fingerprint(self) -> str:
        """Changes when what is measured changes; a run is only resumed under the same one."""
        # Runs are older than these fields.
        newer: dict[str, Any] = {"reduced_precision": True} if self.reduced_precision else {}
        newer["candidates"] = {i: {"kernel"} for i, group in enumerate(self.candidates) if group.kernel is None}
        return hashlib.sha256(self.model_dump_json(exclude=newer).encode()).hexdigest()[:12]


def restricted(
    experiment: Experiment, only: str | None, shapes: tuple[tuple[int, int, int], ...] | None, of: str = ""
) -> Experiment:
    """The experiment with some variants alone, or with other shapes, which then has another name: figures and tables
    of the whole one do not read it.

    `only`: variants, comma-separated; cuBLAS and the empty kernel stay, for ratios and the floor need them. `of`: where
    the shapes are from. Raises InvalidExperiment where a name fits no candidate.
    """
    changes: dict[str, Any] = {}
    if only is not None:
        wanted = {c.split(" ")[0] for c in chosen([c.label for c in experiment.all_candidates()], only)}
        wanted |= {EMPTY, "torch_matmul"}
        kept = [(group, tuple(name for name in group.variant if name in wanted)) for group in experiment.candidates]
        groups = tuple(group.model_copy(update={"variant": names}) for group, names in kept if names)
        changes |= {"candidates": groups, "name": f"{experiment.name}_only"}
    if shapes is not None:
        same = experiment.problems
        changes["problems"] = Problems(shapes=shapes, dtype=same.dtype, layout=same.layout)
        changes["name"] = f"{changes.get('name', experiment.name)}_{re.sub('[^a-z0-9]+', '_', of.lower()).strip('_')}"
    return experiment.model_copy(update=changes)


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice, which YAML would let overwrite the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InvalidExperiment(f"{self.name}:{line}: a key is a word, not a list or mapping")
            if key in seen:
                raise InvalidExperiment(f"{self.name}:{line}: {key}: comes twice, first in line {seen[key]}")
            seen[key] = line
        return super().construct_mapping(node, deep)


NOT_EXPERIMENTS = ("claims.yaml",)
"""Data of other kinds that lies beside the experiments."""


def files(folder: Path) -> list[Path]:
    """The experiments of a folder, by name."""
    return sorted(path for path in folder.glob("*.yaml") if path.name not in NOT_EXPERIMENTS)


def load(path: Path) -> Experiment:
    """Read and validate an experiment. Raises InvalidExperiment with file, line, key and what is allowed."""
    if not path.exists():
        near = nearest(path.stem, [known.stem for known in files(Path(__file__).parent)])
        raise InvalidExperiment(f"{path}: no such file; experiments/*.yaml, nearest: {near}")
    return read_yaml(path, Experiment, _allowed)


Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path, model: type[Model], allowed: Callable[[list[Any]], list[str]]) -> Model:
    """Read a YAML file as a model. `allowed`: the keys of the mapping at a location.

    Raises InvalidExperiment with file, line, key and what is allowed.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidExperiment(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    loader = _Loader(text)
    loader.name = str(path)
    try:
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InvalidExperiment(f"{path}:{line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidExperiment):
            raise
        raise InvalidExperiment(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InvalidExperiment(f"{path}:1: this is a mapping with {', '.join(model.model_fields)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = error.errors()
        # Pydantic also counts a list whose entries all failed as empty: only the entries' faults help.
        deepest = [f for f in faults if not any(f is not o and o["loc"][: len(f["loc"])] == f["loc"] for o in faults)]
        lines = [_explain(path, node, fault, allowed) for fault in deepest]
        raise InvalidExperiment("\n".join(dict.fromkeys(lines))) from None


def _explain(path: Path, root: yaml.Node, fault: dict[str, Any], allowed_at: Callable[[list[Any]], list[str]]) -> str:
    """One line for a fault: `file:line: key: what is wrong; what is allowed`."""
    location = [*fault["loc"], *fault.get("ctx", {}).get("place", ())]
    line, found = _line(root, location)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing":
        found = location
    if fault["type"] == "extra_forbidden":
        allowed = allowed_at(location[:-1])
        message = f"unknown key; nearest: {nearest(str(location[-1]), allowed)}; allowed: {', '.join(allowed)}"
    elif "input" in fault and isinstance(fault["input"], (str, int, float)) and "Value error" not in fault["msg"]:
        message += f", not {fault['input']!r}"
    return f"{path}:{line}: {'.'.join(map(str, found))}{': ' if found else ''}{message}"


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
    models: dict[Any, type[BaseModel]] = {
        "problems": Problems,
        "sample": Sample,
        "samples": Sample,
        "candidates": Candidates,
    }
    model = next((models[part] for part in reversed(location) if part in models), Experiment)
    return list(model.model_fields)
