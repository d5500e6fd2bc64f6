"""What a variant says about itself as data; lists, guards, tests and figures read it, nothing is written twice."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from common.errors import UnsupportedProblem, nearest

Order = Literal["linear", "swizzled"]
Decomposition = Literal[
    "always_two_tile",
    "optional_two_tile",
    "data_parallel",
    "split_k",
    "whole_waves",
    "even_slabs",
    "cluster_ranges",
    "library",
]
WaitsFor = Literal["none", "higher", "lower", "any"]
Workspace = Literal["locks", "partials", "flags", "counters", "range_partials"]
Precision = Literal["ieee", "tf32"]
Sem = Literal["relaxed", "acq_rel"]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


MOST_TILE = 2**17
"""Elements of a tile of C, at most: 128 a thread with 32 warps, where compilers take minutes and registers end."""


@dataclass(frozen=True)
class Config:
    """How a variant is launched.

    `block`: BLOCK_M, BLOCK_N, BLOCK_K. `num_warps`, `num_stages`: of the first wave. `full_tiles_warps`,
    `full_tiles_stages`: of the full-tiles kernel, None to follow the first wave. `programs`: Stream-K programs,
    None for one an SM, 0 for none. `order`: tile order. `two_tiles`: the second decomposition's switch.
    `split`: K ranges of a shared tile (`split_k` and `whole_waves`), None to leave it to the decomposition. `sem`:
    memory order of the atomic adds on C. `precision`: how fp32 operands are multiplied, exactly or rounded to TF32.
    `tma`: load by the Tensor Memory Accelerator, which not all layouts allow. `maxnreg`: registers that a thread may
    have at the start, so that more programs fit an SM; None to leave it to the compiler.
    """

    block: tuple[int, int, int] = (128, 128, 32)
    num_warps: int = 4
    num_stages: int = 3
    full_tiles_warps: int | None = None
    full_tiles_stages: int | None = None
    programs: int | None = None
    order: Order = "linear"
    two_tiles: bool = True
    split: int | None = None
    sem: Sem = "relaxed"
    precision: Precision = "ieee"
    tma: bool = False
    maxnreg: int | None = None

    def __post_init__(self) -> None:
        """Raise UnsupportedProblem for a value of a kind that the field cannot hold."""
        if not isinstance(self.block, tuple) or len(self.block) != 3 or not all(map(_whole, self.block)):
            raise UnsupportedProblem(f"block={self.block!r}: three whole numbers, for example (128, 128, 32)")
        optional = ("full_tiles_warps", "full_tiles_stages", "programs", "split", "maxnreg")
        for name in ("num_warps", "num_stages", *optional):
            value = getattr(self, name)
            if not _whole(value) and not (value is None and name in optional):
                raise UnsupportedProblem(f"{name}={value!r}: a whole number")
        for name, kind in (("order", Order), ("sem", Sem), ("precision", Precision)):
            if getattr(self, name) not in get_args(kind):
                allowed = ", ".join(get_args(kind))
                raise UnsupportedProblem(f"{name}={getattr(self, name)!r}: one of {allowed}")
        if not isinstance(self.two_tiles, bool):
            raise UnsupportedProblem(f"two_tiles={self.two_tiles!r}: True or False")

    def replace(self, **changes: Any) -> Config:
        """A copy with the given fields changed. Raises UnsupportedProblem for a field that does not exist."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise UnsupportedProblem(f"a config has no {name!r}; nearest: {nearest(name, known)}")
        return dataclasses.replace(self, **changes)

    def label(self) -> str:
        """A short name for tables: block, warps, stages, and registers where they are limited."""
        more = (" tma" if self.tma else "") + (f" r{self.maxnreg}" if self.maxnreg else "")
        return f"{'x'.join(map(str, self.block))} w{self.num_warps} s{self.num_stages}{more}"


@dataclass(frozen=True)
class Contract:
    """What a kernel accepts.

    `dtypes`: names of torch dtypes. `divisible`: BLOCK_M, BLOCK_N and BLOCK_K must divide M, N and K.
    `layouts`: "unit_stride" takes any 2-D strides with a stride of 1 in one dimension and copies other inputs;
    "contiguous" refuses everything else; "tma" refuses what the TMA cannot address; "any" takes all strides as they
    are. `architectures`: those that the kernel is written for, none named for all. `least_block`: the smallest BLOCK_M,
    BLOCK_N, BLOCK_K. `three_quarters`: which of them are three quarters of a power of two. `two_powers`: one of BLOCK_M
    and BLOCK_N is the sum of two powers of two. `most_tiles`: no program may touch more Stream-K tiles than this.
    `equal_shares`: every Stream-K program must do as many MAC iterations. `shared_tiles`: whether the result is right
    where several programs share a tile. `wide_offsets`: counts in int64 where 2^31 elements are passed. `epilogue`:
    adds a bias and applies an activation. `precisions`: how it can multiply fp32. `tma`: loads by the TMA where the
    config says so.
    """

    dtypes: tuple[str, ...] = ("float16",)
    divisible: bool = True
    layouts: Literal["unit_stride", "contiguous", "tma", "any"] = "unit_stride"
    tma: bool = False
    architectures: tuple[str, ...] = ()
    least_block: tuple[int, int, int] = (16, 16, 16)
    three_quarters: tuple[str, ...] = ()
    two_powers: bool = False
    most_tiles: int | None = None
    equal_shares: bool = False
    shared_tiles: bool = True
    wide_offsets: bool = False
    epilogue: bool = False
    precisions: tuple[Precision, ...] = ("ieee",)


@dataclass(frozen=True)
class Defect:
    """A known weakness and the test that shows it.

    `readings`: of a lock that is raised too early, those of `common.memory_model` in which it is; empty for other
    defects.
    """

    id: str
    summary: str
    test: str
    readings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """One iteration of the thread, or one baseline, as data.

    `parent`: the variant this one was made from. `position`: where in the thread. `changed`: the jit functions that
    differ from the parent's. `diff_budget`: lines that the jit bodies' diff to the parent may have.
    `zeroed_output`: C must be zero before the launch. `waits_for`: the programs for which a program may wait,
    by number, "any" for whichever came first. `workspace`: what the launcher allocates and sets at every launch.
    `language`: Gluon needs Triton 3.9 and has no interpreter. `twin`: the Triton variant with the same fix-up, which
    stands for a Gluon one where interleavings are explored. `ctas`: CTAs of a program, which are a cluster; a block is
    theirs together. `cta_columns`: how many of them lie side by side, the rest below each other. `rejected`: why a step
    did not help, in one sentence; the module stays so that its figures can be measured again.
    """

    idea: str
    position: str
    decomposition: Decomposition
    fix_up: str
    kernels: tuple[str, ...]
    default: Config
    parent: str | None = None
    reconstructed: bool = False
    rejected: str = ""
    changed: tuple[str, ...] = ()
    diff_budget: int = 0
    tile_orders: tuple[Order, ...] = ("linear",)
    zeroed_output: bool = False
    waits_for: WaitsFor = "none"
    workspace: tuple[Workspace, ...] = ()
    lock_lifetime: str = "no lock"
    language: Literal["triton", "gluon"] = "triton"
    twin: str | None = None
    ctas: int = 1
    cta_columns: int = 1
    contract: Contract = Contract()
    claims: tuple[str, ...] = ()
    defects: tuple[Defect, ...] = ()

    def cta_block(self, block: tuple[int, int, int]) -> tuple[int, int, int]:
        """What one CTA has of a program's block."""
        return block[0] * self.cta_columns // self.ctas, block[1] // self.cta_columns, block[2]

    @property
    def needs_co_residency(self) -> bool:
        """Whether a program may wait for one that is not yet running."""
        return self.waits_for in ("higher", "lower")

    @property
    def adds_to_c(self) -> bool:
        """Whether peers add their partial sums to C itself, each rounding it to C's dtype."""
        return "atomic_add" in self.fix_up

    def as_dict(self) -> dict[str, Any]:
        """The card as plain data, for `--json`."""
        return dataclasses.asdict(self) | {"needs_co_residency": self.needs_co_residency}


def read_card(source: str) -> Card:
    """The `CARD` of a variant's source text, without importing it: reading a card needs neither torch nor Triton.

    Raises ValueError where the text has no card, or one that is made of more than this module's classes.
    """
    values = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["CARD"]
    ]
    if len(values) != 1:
        raise ValueError(f"a variant has one CARD, this source has {len(values)}")
    made_of = {cls.__name__: cls for cls in (Card, Config, Contract, Defect)}
    try:
        return eval(compile(ast.Expression(values[0]), "CARD", "eval"), {"__builtins__": {}}, made_of)
    except NameError as error:
        raise ValueError(f"CARD is made of literals, Config, Contract and Defect alone: {error}") from None
