"""The thread's claims as data: what is stated where, what measures it here, and the rule that makes a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

import variants
from common.architectures import ARCHITECTURES
from common.errors import UnknownClaim, UnknownVariant, nearest
from common.triton_versions import SUPPORTED
from experiments.plan import Candidate
from experiments.spec import Experiment, Size, Strict, fault, files, listed, read_yaml
from experiments.spec import load as load_experiment

HERE = Path(__file__).parent
FILE = HERE / "claims.yaml"
FIGURES = HERE.parent / "figures"
IDS = tuple(f"C{number:02}" for number in range(1, 17))
"""The thread's claims, all of which the file holds."""
MARGIN = 0.02
"""Two times that differ by less are taken for equal, by every rule. Its interval must be outside this band on one side
before a ratio counts as a gain or a loss."""
Verdict = Literal["reproduced", "reproduced, smaller", "not reproduced", "reversed", "not testable here"]
EVIDENCE = "evidence"
"""What stands for a verdict where a test asks nothing that the thread claimed."""
Rule = Literal[
    "gain",
    "no_gain",
    "same",
    "only",
    "reaches",
    "fails",
    "spills",
    "avoids",
    "adds",
    "equal",
    "right",
    "evidence",
    "untestable",
]
COMPILED_RULES = ("fails", "spills", "avoids", "adds", "equal")
RULES: dict[str, str] = {
    "gain": f"slow/fast above the band of {100 * MARGIN:g} % around 1, and its interval reaches the claimed ratio "
    "within the band; smaller where it stays below; reversed where it lies below the band",
    "no_gain": "slow/fast nowhere above the band",
    "same": "slow/fast inside the band",
    "only": "slow/fast above the band but no more than claimed, within the band; smaller where it is not above it",
    "reaches": "the interval reaches the claimed ratio within the band, or passes it",
    "fails": "the kernel does not compile",
    "spills": "the kernel spills registers, as many as claimed or more; smaller where fewer",
    "avoids": "the kernel spills nothing where `beside` does; smaller where it spills less; not testable where neither "
    "spills",
    "adds": "the kernel has more of the quantity than `beside`",
    "equal": "the kernel has as many of the quantity as `beside`",
    "right": "the kernel's result in Triton's interpreter is right",
    "evidence": "the thread claimed nothing of it: a number, no verdict",
    "untestable": "no measurement here answers it; the reason stands beside what is known",
}
"""What makes each rule "reproduced". An interval that straddles the band's edge is neither gain nor none."""
ABOUT = {"sm_80": "A100", "sm_86": "RTX 3090", "sm_90": "H100, H200"}
"""The GPUs that code for an architecture runs on."""


def known_variant(name: str) -> str:
    """The full name of a variant or an ablation. Raises ValueError with the nearest names."""
    try:
        return variants.resolve(name)
    except UnknownVariant as error:
        raise ValueError(str(error)) from None


Shape = tuple[Size, Size, Size]


class Ratio(Strict):
    """Time of `slow` over time of `fast`, labels of candidates: of one problem by rounds, or of all by problems.

    `also`: further problems, each a test of its own.
    """

    kind: Literal["ratio"]
    experiment: str
    slow: str
    fast: str
    problem: Shape | None = None
    also: tuple[Shape, ...] = ()
    mean: Literal["geometric", "arithmetic"] = "geometric"


class BestOf(Strict):
    """cuBLAS's time over the best of a variant's candidates, over all problems.

    `choice`: "first" takes the least first sample against cuBLAS's first, as the thread did; "held_out" chooses on one
    half of the samples and reports the other, cuBLAS among its repeats likewise. `problems_of`: another experiment,
    whose problems alone count.
    """

    kind: Literal["best_of"]
    experiment: str
    variant: str
    choice: Literal["first", "held_out"]
    mean: Literal["geometric", "arithmetic"] = "geometric"
    problems_of: str | None = None

    @field_validator("variant")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_variant(name)


class Compiled(Strict):
    """A kernel compiled by Triton for an architecture, with the card's config where none is given; of several versions
    or architectures each is a test of its own.

    `quantity`: `n_spills` is Triton's unit, bytes of a thread's stack over 4; `hot_` counts instructions (of a kind) in
    the largest loop that holds matrix instructions. `beside`: a variant, and its kernel, to compare with.
    """

    kind: Literal["compiled"]
    variant: str
    kernel: str
    architecture: Annotated[tuple[str, ...], Field(min_length=1)]
    triton: Annotated[tuple[str, ...], Field(min_length=1)]
    quantity: Literal["n_spills", "registers", "hot_shared_store", "hot_barrier", "hot_instructions"] = "n_spills"
    block: str | None = None
    warps: Size | None = None
    stages: Size | None = None
    beside: str | None = None
    beside_kernel: str | None = None

    @field_validator("architecture", "triton", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return listed(value)

    @field_validator("architecture")
    @classmethod
    def _targets(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _each_known("architecture", names, ARCHITECTURES)

    @field_validator("triton")
    @classmethod
    def _versions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _each_known("Triton", names, SUPPORTED)

    @field_validator("variant", "beside")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return name and known_variant(name)


def _each_known(what: str, names: tuple[str, ...], allowed: Any) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise ValueError(f"no {what} {name!r}; nearest: {nearest(name, allowed)}")
    return names


Key = tuple[str, str, str, str, str | None, int | None, int | None]
"""A compiled kernel: variant, kernel, architecture, Triton, block, warps and stages (None: the card's)."""


def key(measure: Compiled, beside: bool = False) -> Key:
    """The kernel that a test of one version and architecture is about, or the one beside it."""
    variant, kernel = measure.variant, measure.kernel
    if beside:
        variant, kernel = measure.beside or variant, measure.beside_kernel or kernel
    return variant, kernel, measure.architecture[0], measure.triton[0], measure.block, measure.warps, measure.stages


class Counter(Strict):
    """How busy memory was over how busy the SMs were, in per cent of their peaks, by the profiler."""

    kind: Literal["counter"]
    label: str
    problem: Shape


class Estimate(Strict):
    """The model's bytes of a call over those that the profiler counted: how far the model is off on this GPU."""

    kind: Literal["estimate"]
    label: str
    problem: Shape


class Interpreted(Strict):
    """A launch in Triton's interpreter, which needs no GPU and times nothing."""

    kind: Literal["interpreted"]
    variant: str
    problem: Shape
    block: str
    programs: Size

    @field_validator("variant")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_variant(name)


class ScheduleBound(Strict):
    """Mean ideal time of the tile matmul over Stream-K's on so many SMs: what an even share could gain at most."""

    kind: Literal["schedule"]
    experiment: str
    sms: Size
    block: str = "128x128x32"


class MemoryModel(Strict):
    """Time for the bytes that the model of a call's traffic reads over time for its arithmetic, at stated peaks.

    Above 1 memory is the bound; the range is what the model is off by at most where counters were read. `device`: one
    of the estimates'. `terabytes`: TB/s of memory; `tflops`: dense fp16 at the clock of the thread.
    """

    kind: Literal["memory_model"]
    label: str
    problem: Shape
    device: str
    terabytes: Annotated[float, Field(gt=0)]
    tflops: Annotated[float, Field(gt=0)]


def _kind(value: Any) -> str:
    return str(value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None))


Measure = Annotated[
    Annotated[Ratio, Tag("ratio")]
    | Annotated[BestOf, Tag("best_of")]
    | Annotated[Compiled, Tag("compiled")]
    | Annotated[Counter, Tag("counter")]
    | Annotated[Estimate, Tag("estimate")]
    | Annotated[Interpreted, Tag("interpreted")]
    | Annotated[ScheduleBound, Tag("schedule")]
    | Annotated[MemoryModel, Tag("memory_model")],
    Discriminator(_kind),
]


class Test(Strict):
    """One way to ask a claim.

    `about`: the machine that it speaks of. `claimed`: the thread's ratio or count, where it gave one. `half`: the part
    of a claim that this test decides, where a claim says several things or speaks of several machines.
    """

    name: str
    about: str = ""
    half: str = ""
    measure: Measure | None = None
    rule: Rule
    claimed: Annotated[float, Field(gt=0)] | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Test:
        if self.rule in ("only", "reaches", "spills") and self.claimed is None:
            raise ValueError(f"rule {self.rule} needs `claimed`")
        if self.rule == "untestable" and not self.reason:
            raise ValueError("rule untestable needs a `reason`")
        if self.rule != "untestable" and self.measure is None:
            raise ValueError(f"rule {self.rule} needs a `measure`")
        if not self._fits():
            raise ValueError(f"rule {self.rule} does not go with a measure of this kind")
        if (
            self.rule in ("avoids", "adds", "equal")
            and isinstance(self.measure, Compiled)
            and self.measure.beside is None
        ):
            raise ValueError(f"rule {self.rule} needs `beside`, the variant to compare with")
        return self

    def _fits(self) -> bool:
        if self.rule in ("untestable", "evidence"):
            return True
        if isinstance(self.measure, Interpreted) or self.rule == "right":
            return isinstance(self.measure, Interpreted) and self.rule == "right"
        return (self.rule in COMPILED_RULES) == isinstance(self.measure, Compiled)

    @property
    def machine(self) -> str:
        """What it speaks of: as said, or what the code was compiled for, or the GPU that measures."""
        if self.about or not isinstance(self.measure, Compiled):
            return self.about or "this GPU"
        return ABOUT.get(self.measure.architecture[0], self.measure.architecture[0])

    def each(self) -> Iterator[Test]:
        """This test for one problem, or one Triton and architecture, at a time; the first alone decides its half."""
        measures: list[tuple[str, Any]] = [(self.name, self.measure)]
        if isinstance(self.measure, Ratio):
            plain = self.measure.model_copy(update={"also": ()})
            measures = [(self.name, plain)]
            for problem in self.measure.also:
                name = f"the same at {'x'.join(map(str, problem))}"
                measures.append((name, plain.model_copy(update={"problem": problem})))
        elif isinstance(self.measure, Compiled):
            measures = [
                (f"{self.name}, {target}, Triton {version}", self.measure.model_copy(update=one))
                for target in self.measure.architecture
                for version in self.measure.triton
                for one in ({"architecture": (target,), "triton": (version,)},)
            ]
        for number, (name, measure) in enumerate(measures):
            half = self.half if not number else ""
            yield self.model_copy(update={"name": name, "measure": measure, "half": half})


class Claim(Strict):
    """A claim of the thread. The first of its tests gives the verdict, or each of those with a `half` the verdict of
    that part; the others are evidence with verdicts of their own. `figure`: the picture that shows it."""

    id: Annotated[str, Field(pattern=r"^C\d\d$")]
    statement: str
    place: str
    variant: str
    hardware: str
    versions: str
    numbers: str
    figure: str
    tests: Annotated[tuple[Test, ...], Field(min_length=1)]

    @field_validator("variant")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_variant(name)

    @field_validator("figure")
    @classmethod
    def _drawn(cls, name: str) -> str:
        known = _known_figures()
        if name not in known:
            raise ValueError(f"no figure {name!r}; nearest: {nearest(name, known)}")
        return name

    @model_validator(mode="after")
    def _halves(self) -> Claim:
        halves = [test.half for test in self.tests if test.half]
        if halves and (len(halves) != len(set(halves)) or len(halves) < 2):
            raise fault(("tests",), "several halves, each decided by one test, or none")
        return self

    @cached_property
    def asked(self) -> tuple[Test, ...]:
        """Its tests, one a problem or compiled kernel."""
        return tuple(one for test in self.tests for one in test.each())


class Claims(Strict):
    """All claims, by number. `figures_read`: sweeps that their figures show beside those of the tests."""

    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]
    figures_read: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> Claims:
        ids = [claim.id for claim in self.claims]
        if ids != sorted(set(ids)):
            raise fault(("claims",), "claims are in order and each has a number of its own")
        missing = [name for name in IDS if name not in ids]
        if missing or len(ids) > len(IDS):
            wrong = f"{', '.join(missing)} missing" if missing else f"{', '.join(sorted({*ids} - {*IDS}))} too many"
            raise fault(("claims",), f"the thread makes {len(IDS)} claims, {IDS[0]} to {IDS[-1]}: {wrong}")
        return self

    @model_validator(mode="after")
    def _known(self) -> Claims:
        for position, name in enumerate(self.figures_read):
            _sweep(name, ("figures_read", position))
        for number, claim in enumerate(self.claims):
            for position, test in enumerate(claim.tests):
                _check_names(test.measure, ("claims", number, "tests", position, "measure"))
        return self

    def experiments(self) -> list[str]:
        """The sweeps that any test or figure reads, each once."""
        found = [getattr(test.measure, "experiment", None) for claim in self.claims for test in claim.tests]
        measured = [name for name in found if name]
        return list(dict.fromkeys([*measured, *self.figures_read]))

    def kernels(self) -> list[Key]:
        """The compiled kernels that any test asks about, each once."""
        measures = [test.measure for claim in self.claims for test in claim.asked]
        asked = [measure for measure in measures if isinstance(measure, Compiled)]
        found = [key(measure, beside) for measure in asked for beside in (False, True) if measure.beside or not beside]
        return list(dict.fromkeys(found))

    def interpreted(self) -> list[Interpreted]:
        """The launches in the interpreter that any test asks about, each once."""
        measures = [test.measure for claim in self.claims for test in claim.tests]
        return list(dict.fromkeys(measure for measure in measures if isinstance(measure, Interpreted)))


@lru_cache
def _known_figures() -> tuple[str, ...]:
    """Names of the modules that draw, without importing any."""
    return tuple(sorted(path.stem for path in FIGURES.glob("*.py") if "\ndef draw(" in path.read_text()))


@lru_cache
def _known_sweeps() -> dict[str, Path]:
    return {path.stem: path for path in files(HERE)}


@lru_cache
def _read_sweep(name: str) -> tuple[Experiment, tuple[Candidate, ...], frozenset[Shape]]:
    experiment = load_experiment(_known_sweeps()[name])
    shapes = frozenset((problem.m, problem.n, problem.k) for problem in experiment.problems.all())
    return experiment, tuple(experiment.all_candidates()), shapes


def _sweep(name: str, place: tuple[str | int, ...]) -> tuple[Experiment, tuple[Candidate, ...], frozenset[Shape]]:
    if name not in _known_sweeps():
        raise fault(place, f"no experiment {name!r}; nearest: {nearest(name, _known_sweeps())}")
    return _read_sweep(name)


def _check_names(measure: Any, place: tuple[str | int, ...]) -> None:
    """Raise a fault at the key whose experiment, candidate or problem is not there."""
    if isinstance(measure, (Counter, Estimate, MemoryModel)):
        _, candidates, shapes = _sweep("counters", place)
        _check_label(measure.label, candidates, "counters", (*place, "label"))
        _check_shapes((measure.problem,), shapes, "counters", (*place, "problem"))
        return
    name = getattr(measure, "experiment", None)
    if name is None:
        return
    _, candidates, shapes = _sweep(name, (*place, "experiment"))
    if isinstance(measure, Ratio):
        _check_label(measure.slow, candidates, name, (*place, "slow"))
        _check_label(measure.fast, candidates, name, (*place, "fast"))
        _check_shapes((measure.problem,) if measure.problem else (), shapes, name, (*place, "problem"))
        _check_shapes(measure.also, shapes, name, (*place, "also"))
    elif isinstance(measure, BestOf):
        known = sorted({candidate.variant for candidate in candidates})
        if measure.variant not in known:
            text = f"{name} has no candidates of {measure.variant!r}; nearest: {nearest(measure.variant, known)}"
            raise fault((*place, "variant"), text)
        if measure.problems_of:
            _sweep(measure.problems_of, (*place, "problems_of"))


def _check_label(label: str, candidates: tuple[Candidate, ...], name: str, place: tuple[str | int, ...]) -> None:
    labels = [candidate.label for candidate in candidates]
    if label not in labels:
        raise fault(place, f"{name} has no candidate {label!r}; nearest: {nearest(label, labels)}")


def _check_shapes(wanted: tuple[Shape, ...], shapes: frozenset[Shape], name: str, place: tuple[str | int, ...]) -> None:
    there = ["x".join(map(str, shape)) for shape in sorted(shapes)]
    for shape in wanted:
        text = "x".join(map(str, shape))
        if shape not in shapes:
            raise fault(place, f"{name} has no problem {text}; nearest: {nearest(text, there[:1000])}")


def chosen_ids(names: Iterable[str]) -> list[str]:
    """Claims by their numbers, `c5` being C05. Raises UnknownClaim with the nearest numbers."""
    found = []
    for name in names:
        number = re.fullmatch(r"[cC]?(\d{1,2})", name)
        wanted = f"C{int(number[1]):02}" if number else name.upper()
        if wanted not in IDS:
            raise UnknownClaim(f"no claim {name!r}; nearest: {nearest(wanted, IDS)}")
        found.append(wanted)
    return found


def load(path: Path = FILE) -> Claims:
    """Read the claims. Raises InvalidExperiment with file, line, key and what is allowed."""
    return read_yaml(path, Claims, _allowed)


def _allowed(location: list[Any]) -> list[str]:
    kinds = {model.model_fields["kind"].annotation.__args__[0]: model for model in _KINDS}
    if location and location[-1] in kinds:
        return list(kinds[location[-1]].model_fields)
    if "tests" in location:
        return list(Test.model_fields)
    return list(Claim.model_fields if "claims" in location else Claims.model_fields)


_KINDS = (Ratio, BestOf, Compiled, Counter, Estimate, Interpreted, ScheduleBound, MemoryModel)
