"""The thread's claims as data: what is stated where, what measures it here, and the rule that makes a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

import variants
from common.errors import UnknownVariant
from experiments.spec import Size, Strict, read_yaml

FILE = Path(__file__).parent / "claims.yaml"
Verdict = Literal["reproduced", "reproduced, smaller", "not reproduced", "reversed", "not testable here"]
Rule = Literal["gain", "no_gain", "same", "only", "reaches", "fails", "spills", "avoids", "adds", "untestable"]
COMPILED_RULES = ("fails", "spills", "avoids", "adds")
RULES: dict[str, str] = {
    "gain": "slow/fast above 1 and its interval reaches the claimed ratio; smaller where it stays below",
    "no_gain": "slow/fast no more than 1 + margin",
    "same": "slow/fast within the margin of 1 on both sides",
    "only": "slow/fast above 1 but no more than claimed, within the margin; smaller where the interval holds 1",
    "reaches": "the interval reaches the claimed ratio or passes it",
    "fails": "the kernel does not compile",
    "spills": "the kernel spills registers, as many as claimed or more; smaller where fewer",
    "avoids": "the kernel spills nothing where `beside` does; smaller where it spills less",
    "adds": "the kernel has more of the quantity than `beside`",
    "untestable": "no measurement here answers it; the reason stands beside what is known",
}
"""What makes each rule "reproduced"."""


def known_variant(name: str) -> str:
    """The full name of a variant or an ablation. Raises ValueError with the nearest names."""
    try:
        return variants.resolve(name)
    except UnknownVariant as error:
        raise ValueError(str(error)) from None


class Ratio(Strict):
    """Time of `slow` over time of `fast`, labels of candidates: of one problem by rounds, or of all by problems."""

    kind: Literal["ratio"]
    experiment: str
    slow: str
    fast: str
    problem: tuple[Size, Size, Size] | None = None
    mean: Literal["geometric", "arithmetic"] = "geometric"


class BestOf(Strict):
    """cuBLAS's time over the best of a variant's candidates, over all problems.

    `choice`: "first" takes the least first sample against cuBLAS's first, as the thread did; "held_out" chooses on one
    half of the samples and reports the other, cuBLAS among its repeats likewise.
    """

    kind: Literal["best_of"]
    experiment: str
    variant: str
    choice: Literal["first", "held_out"]
    mean: Literal["geometric", "arithmetic"] = "geometric"


class Compiled(Strict):
    """A kernel compiled by one Triton for one architecture, with the card's config where none is given.

    `quantity`: `n_spills` is Triton's unit, bytes of a thread's stack over 4; `hot_` counts instructions of a kind in
    the largest loop that holds matrix instructions. `beside`: a variant, and its kernel, to compare with.
    """

    kind: Literal["compiled"]
    variant: str
    kernel: str
    architecture: str
    triton: str
    quantity: Literal["n_spills", "registers", "hot_shared_store", "hot_barrier"] = "n_spills"
    block: str | None = None
    warps: Size | None = None
    stages: Size | None = None
    beside: str | None = None
    beside_kernel: str | None = None

    @field_validator("variant", "beside")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return name and known_variant(name)


Key = tuple[str, str, str, str, str | None, int | None, int | None]
"""A compiled kernel: variant, kernel, architecture, Triton, block, warps and stages (None: the card's)."""


def key(measure: Compiled, beside: bool = False) -> Key:
    """The kernel that a test is about, or the one beside it."""
    variant, kernel = measure.variant, measure.kernel
    if beside:
        variant, kernel = measure.beside or variant, measure.beside_kernel or kernel
    return variant, kernel, measure.architecture, measure.triton, measure.block, measure.warps, measure.stages


class Counter(Strict):
    """How busy memory was over how busy the SMs were, in per cent of their peaks, by the profiler."""

    kind: Literal["counter"]
    label: str
    problem: tuple[Size, Size, Size]


class ScheduleBound(Strict):
    """Mean ideal time of the tile matmul over Stream-K's on so many SMs: what an even share could gain at most."""

    kind: Literal["schedule"]
    experiment: str
    sms: Size
    block: str = "128x128x32"


class MemoryModel(Strict):
    """Time for the bytes that a schedule misses in an ideal L2 over time for its arithmetic, both at stated peaks.

    Above 1 memory is the bound. `terabytes`: TB/s of memory; `tflops`: dense fp16 at the clock of the thread.
    """

    kind: Literal["memory_model"]
    variant: str
    problem: tuple[Size, Size, Size]
    sms: Size
    l2_megabytes: Size
    terabytes: Annotated[float, Field(gt=0)]
    tflops: Annotated[float, Field(gt=0)]


def _kind(value: Any) -> str:
    return str(value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None))


Measure = Annotated[
    Annotated[Ratio, Tag("ratio")]
    | Annotated[BestOf, Tag("best_of")]
    | Annotated[Compiled, Tag("compiled")]
    | Annotated[Counter, Tag("counter")]
    | Annotated[ScheduleBound, Tag("schedule")]
    | Annotated[MemoryModel, Tag("memory_model")],
    Discriminator(_kind),
]


class Test(Strict):
    """One way to ask a claim.

    `about`: the machine or compiler that it speaks of. `claimed`: the thread's ratio or count, where it gave one.
    """

    name: str
    about: str = "this GPU"
    measure: Measure | None = None
    rule: Rule
    claimed: Annotated[float, Field(gt=0)] | None = None
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    reason: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Test:
        if self.rule in ("only", "reaches", "spills") and self.claimed is None:
            raise ValueError(f"rule {self.rule} needs `claimed`")
        if self.rule == "untestable" and not self.reason:
            raise ValueError("rule untestable needs a `reason`")
        if self.rule != "untestable" and self.measure is None:
            raise ValueError(f"rule {self.rule} needs a `measure`")
        compiled = self.rule in COMPILED_RULES
        if self.rule != "untestable" and compiled != isinstance(self.measure, Compiled):
            raise ValueError(f"rule {self.rule} does not go with a measure of this kind")
        if self.rule in ("avoids", "adds") and isinstance(self.measure, Compiled) and self.measure.beside is None:
            raise ValueError(f"rule {self.rule} needs `beside`, the variant to compare with")
        return self


class Claim(Strict):
    """A claim of the thread. The first of its tests gives the verdict, the others are evidence with verdicts of their
    own. `figure`: the picture that shows it."""

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


class Claims(Strict):
    """All claims, by number."""

    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> Claims:
        ids = [claim.id for claim in self.claims]
        if ids != sorted(set(ids)):
            raise ValueError("claims are in order and each has a number of its own")
        return self

    def experiments(self) -> list[str]:
        """The sweeps that any test reads, each once."""
        found = [getattr(test.measure, "experiment", None) for claim in self.claims for test in claim.tests]
        return list(dict.fromkeys(name for name in found if name))

    def kernels(self) -> list[Key]:
        """The compiled kernels that any test asks about, each once."""
        measures = [test.measure for claim in self.claims for test in claim.tests]
        asked = [measure for measure in measures if isinstance(measure, Compiled)]
        found = [key(measure, beside) for measure in asked for beside in (False, True) if measure.beside or not beside]
        return list(dict.fromkeys(found))


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


_KINDS = (Ratio, BestOf, Compiled, Counter, ScheduleBound, MemoryModel)
