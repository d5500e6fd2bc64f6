"""From two tensors to a launch: contract, plan, co-residency, allocation, launch - in that order.

A variant's `launch(task)` starts its kernels through `Launch.run` only, so that one place states what holds for every
launch, and tools can record a launch instead of making it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from packaging.version import Version

from common import decomposition, interpreter, residency, tma, workspace
from common.card import MOST_TILE, Card, Config
from common.cluster_release import rewriting
from common.decomposition import GROUP_M, Schedule, cdiv
from common.errors import NoDevice, NotCoResident, UnsupportedProblem, nearest

INTERPRETER_SMS = 4
"""Stands for the number of SMs where there is no GPU."""
INT32_LIMIT = 2**31
OUTPUTS = {torch.int8: torch.int32, torch.float8_e4m3fn: torch.float16, torch.float8_e5m2: torch.float16}
"""C's dtype where it is not that of A and B."""
MOST_STAGES = 64
"""Pipeline stages, at most: more than any GPU's latency asks for."""
ACTIVATIONS = ("relu", "gelu", "silu")
GLUON_TRITON = "3.9"
"""The Triton whose Gluon the kernels are written in: its interface changes from version to version."""


@dataclass(frozen=True)
class KernelCall:
    """One kernel of a launch: what `kernel[(programs,)](*args, **options)` would get."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__ if hasattr(self.kernel, "fn") else self.kernel.__name__


@dataclass
class Launch:
    """What a variant's `launch` works with: operands, schedule, config and the workspace of this launch alone.

    `locks`: int32, one a Stream-K tile, zero. `partials`: float32, (programs, BLOCK_M * BLOCK_N). `flags`: int32,
    one a program, zero. `counters`: int32, one a shared tile, zero, to be left at zero. A card that asks for
    `range_partials` gets `partials` for the accumulators of each range of each shared tile. Each is None unless the
    card asks for it. `bias`: (N,), added to every row. `activation`: one of ACTIVATIONS, applied after it.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    schedule: Schedule
    config: Config
    locks: torch.Tensor | None = None
    partials: torch.Tensor | None = None
    flags: torch.Tensor | None = None
    counters: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    activation: str | None = None
    sms: int = INTERPRETER_SMS
    start: Callable[[KernelCall], Any] | None = None
    calls: list[KernelCall] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, ...]:
        """M, N, K and the strides of A, B and C, as every kernel takes them."""
        (m, k), n = self.a.shape, self.b.shape[1]
        return (m, n, k, *self.a.stride(), *self.b.stride(), *self.c.stride())

    @property
    def blocks(self) -> dict[str, int]:
        return dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), self.config.block, strict=True))

    @property
    def group_m(self) -> int:
        """Tile rows of a group; 0 for the linear order."""
        return GROUP_M if self.config.order == "swizzled" else 0

    @property
    def acc_type(self) -> triton.language.dtype:
        return triton.language.float32 if self.a.dtype.is_floating_point else triton.language.int32

    @property
    def offset_type(self) -> triton.language.dtype:
        """int64 where an operand's offsets pass 2^31 elements."""
        wide = max(map(extent, (self.a, self.b, self.c))) >= INT32_LIMIT
        return triton.language.int64 if wide else triton.language.int32

    def first_wave_options(self) -> dict[str, int]:
        limit = {} if self.config.maxnreg is None else {"maxnreg": self.config.maxnreg}
        return {"num_warps": self.config.num_warps, "num_stages": self.config.num_stages, **limit}

    def full_tiles_options(self) -> dict[str, int]:
        """The full-tiles kernel's warps and stages: its own, or the first wave's where it has none."""
        return {
            "num_warps": self.config.full_tiles_warps or self.config.num_warps,
            "num_stages": self.config.full_tiles_stages or self.config.num_stages,
        }

    def run(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        """Start a kernel with `programs` programs; none for zero programs."""
        if programs == 0:
            return
        call = KernelCall(kernel, programs, args, options | {"enable_fp_fusion": True})
        self.calls.append(call)
        if self.start is not None:
            self.start(call)


def extent(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last, 0 for an empty one."""
    return sum((s - 1) * abs(t) for s, t in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def span(x: torch.Tensor) -> int:
    """Bytes from a tensor's first to its last, both counted; 0 for an empty one."""
    return (extent(x) + 1) * x.element_size() if x.numel() else 0


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a CUDA device the current one, on which Triton launches whatever device the arguments are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def start_kernel(call: KernelCall) -> Any:
    """Launch on the current stream (or interpret)."""
    with rewriting(call.kernel):
        return call.kernel[(call.programs,)](*call.args, **call.options)


@dataclass(frozen=True)
class Variant:
    """A module of `variants` with its card."""

    name: str
    module: ModuleType

    @property
    def card(self) -> Card:
        return self.module.CARD

    CARD = card

    @property
    def launch(self) -> Callable[[Launch], None]:
        return self.module.launch

    @cached_property
    def source(self) -> str:
        return Path(self.module.__file__).read_text()

    @cached_property
    def source_hash(self) -> str:
        """First 12 hex digits of the source's SHA-256."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:12]

    def matmul(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        max_programs: int | None = None,
        strict_residency: bool = False,
        **config: Any,
    ) -> torch.Tensor:
        """A (M, K) times B (K, N) into C (M, N), all of one dtype (see OUTPUTS for the exceptions).

        `bias` (N,) and `activation` for variants whose card has an epilogue.
        `config` takes the fields of `Config` (`programs`, `block`, `num_warps`, …); what is left out comes from the
        card. `max_programs` caps the programs taken to be resident (other kernels hold part of the GPU).
        Raises UnsupportedProblem, NotCoResident or NoDevice before anything is launched.
        """
        changes = {name: value for name, value in config.items() if value is not None}
        prepared = prepare(
            self,
            a,
            b,
            out,
            self.card.default.replace(**changes),
            bias=bias,
            activation=activation,
            max_programs=max_programs,
            strict_residency=strict_residency,
        )
        prepared.run()
        return prepared.out


@dataclass
class Prepared:
    """A launch that has passed every check. `run` may be called repeatedly, also inside a CUDA graph's capture.

    `sm_count`: SMs of the GPU that is meant, None for those of the tensors' device.
    """

    variant: Variant
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    schedule: Schedule
    config: Config
    bias: torch.Tensor | None = None
    activation: str | None = None
    sm_count: int | None = None
    relies_on_dispatch_order: bool = False
    resident_programs: int | None = None

    def run(self) -> None:
        """Copy what cannot be read as it lies, set the workspace, launch: all on the current stream of A's device."""
        with on_device(self.a.device):
            self._run()

    def _run(self) -> None:
        if not self.out.numel():
            return
        if not self.a.shape[1] and not self.variant.card.contract.epilogue:
            self.out.zero_()
            return
        task = self.task(start=start_kernel)
        if self.variant.card.zeroed_output and self.schedule.sk_tiles:
            self.out.zero_()
        if not interpreter.interpreting():
            self.variant.launch(task)
            return
        with interpreter.serial_order(self.variant.card.waits_for), interpreter.bfloat16_dots():
            self.variant.launch(task)

    def task(self, start: Callable[[KernelCall], Any] | None = None) -> Launch:
        """A launch with workspace of its own; without `start` its kernels are recorded, not launched."""
        return Launch(
            self._laid_out(self.a),
            self._laid_out(self.b),
            self.out,
            self.schedule,
            self.config,
            bias=self.bias,
            activation=self.activation,
            sms=sms(self.a.device) if self.sm_count is None else self.sm_count,
            start=start,
            **self._workspace(),
        )

    def _laid_out(self, x: torch.Tensor) -> torch.Tensor:
        """The operand, or a copy of it as it is now where the variant needs a stride of 1."""
        copied = self.variant.card.contract.layouts == "unit_stride" and (1 not in x.stride() or 0 in x.stride())
        return x.contiguous() if copied else x

    def record(self) -> list[KernelCall]:
        """The kernel calls of this launch, none of them made."""
        task = self.task()
        self.variant.launch(task)
        return task.calls

    def _workspace(self) -> dict[str, torch.Tensor]:
        device, wanted, schedule = self.a.device, self.variant.card.workspace, self.schedule
        space = {}
        if "locks" in wanted:
            space["locks"] = torch.zeros(max(schedule.sk_tiles, 1), dtype=torch.int32, device=device)
        if "flags" in wanted:
            space["flags"] = torch.zeros(max(schedule.programs, 1), dtype=torch.int32, device=device)
        if "partials" in wanted:
            shape = (max(schedule.programs, 1), self.config.block[0] * self.config.block[1])
            space["partials"] = torch.empty(shape, dtype=torch.float32, device=device)
        if "counters" in wanted:
            space["counters"] = workspace.counters(max(schedule.sk_tiles, 1), device)
        if "range_partials" in wanted:
            size = schedule.sk_tiles * schedule.most_peers * self.config.block[0] * self.config.block[1]
            dtype = torch.float32 if self.a.dtype.is_floating_point else torch.int32
            space["partials"] = torch.empty(max(size, 1), dtype=dtype, device=device)
        return space


def prepare(
    variant: Variant,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    config: Config | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    max_programs: int | None = None,
    strict_residency: bool = False,
    guarded: bool = True,
) -> Prepared:
    """Check contract, plan and co-residency, and allocate C if `out` is None; nothing is launched.

    `max_programs`: the most programs to take for resident, at least 1, where others hold part of the GPU.
    `guarded=False` leaves out the guard on a program's tiles and share, to show or to time what lies behind it.
    Raises UnsupportedProblem, NotCoResident, NoDevice, UnsupportedTriton where the interpreter cannot run, and Triton's
    OutOfResources for waiting variants.
    """
    card = variant.card
    config = config or card.default
    if max_programs is not None and (type(max_programs) is not int or max_programs < 1):
        raise UnsupportedProblem(f"max_programs={max_programs!r}: a whole number of at least 1")
    check_config(variant, config)
    if card.kernels and interpreter.interpreting():
        interpreter.require_interpreter()
    _check_operands(variant, a, b, config)
    out = _check_output(variant, a, b, out)
    _check_epilogue(variant, out, bias, activation)
    schedule = plan(card, a.shape[0], b.shape[1], a.shape[1], config, sms(a.device))
    if guarded:
        _check_schedule(variant, schedule)
    _check_counts(variant, schedule, config)
    config = config.replace(programs=schedule.programs)
    prepared = Prepared(variant, a, b, out, schedule, config, bias, activation)
    if card.needs_co_residency and schedule.sk_tiles and schedule.max_peers > 1:
        _check_co_residency(prepared, max_programs, strict_residency)
    return prepared


@lru_cache
def _cuda_sms(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@lru_cache
def _architecture(index: int) -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability(index))


def architecture(device: torch.device) -> str:
    """The architecture of a CUDA device, for example `sm_90`."""
    return _architecture(device.index or 0)


def sms(device: torch.device) -> int:
    """SMs of the device; a stand-in where kernels are interpreted."""
    return _cuda_sms(device.index or 0) if device.type == "cuda" else INTERPRETER_SMS


def plan(card: Card, m: int, n: int, k: int, config: Config, sm_count: int) -> Schedule:
    """The schedule of a problem; `config.programs` of None means one Stream-K program an SM."""
    block_m, block_n, block_k = config.block
    tiles_m, tiles_n, iters = cdiv(m, block_m), cdiv(n, block_n), cdiv(k, block_k)
    if card.decomposition == "whole_waves":
        programs = residency.clusters(sm_count, card.ctas) if config.programs is None else config.programs
        return decomposition.whole_waves(tiles_m, tiles_n, iters, programs, config.split)
    if card.decomposition == "even_slabs":
        programs = sm_count if config.programs is None else config.programs
        return decomposition.even_slabs(tiles_m, tiles_n, iters, programs, config.split, config.two_tiles)
    if card.decomposition == "cluster_ranges":
        return decomposition.cluster_ranges(tiles_m, tiles_n, iters, sm_count, config.split)
    if card.decomposition in ("data_parallel", "library") or not tiles_m * tiles_n * iters:
        return decomposition.data_parallel(tiles_m, tiles_n, iters)
    if card.decomposition == "split_k":
        split = config.split or max(1, sm_count // (tiles_m * tiles_n))
        return decomposition.split_k(tiles_m, tiles_n, iters, min(split, iters))
    programs = sm_count if config.programs is None else config.programs
    if card.decomposition == "optional_two_tile":
        return decomposition.optional_two_tile(tiles_m, tiles_n, iters, programs, config.two_tiles)
    return decomposition.always_two_tile(tiles_m, tiles_n, iters, programs)


def is_sum(size: int) -> bool:
    """Whether a side of a tile is the sum of two different powers of two of at least 32."""
    return size.bit_count() == 2 and size % 32 == 0


def check_config(variant: Variant, config: Config) -> None:
    """Raise UnsupportedProblem for a config that the variant cannot have, whatever the problem."""
    card = variant.card
    if config.order not in card.tile_orders:
        raise UnsupportedProblem(f"{variant.name}: tile order {config.order!r}; it has {', '.join(card.tile_orders)}")
    if not config.two_tiles and card.decomposition not in ("optional_two_tile", "even_slabs"):
        raise UnsupportedProblem(f"{variant.name} is always two-tile; v08 can turn it off")
    if config.split is not None and card.decomposition not in (
        "split_k",
        "whole_waves",
        "even_slabs",
        "cluster_ranges",
    ):
        raise UnsupportedProblem(f"{variant.name} takes no split; split_k does")
    if config.precision not in card.contract.precisions:
        allowed = ", ".join(card.contract.precisions)
        raise UnsupportedProblem(f"{variant.name}: precision {config.precision!r}; it has {allowed}")
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
    if card.contract.two_powers and sum(map(is_sum, config.block[:2])) != 1:
        raise UnsupportedProblem(f"{variant.name}: block {config.block}: one of BLOCK_M and BLOCK_N is 96, 160 or 192")
    for name, size, least in zip(names, config.block, card.contract.least_block, strict=True):
        if name in card.contract.three_quarters:
            if size < least or size % 3 or (size // 3) & (size // 3 - 1):
                raise UnsupportedProblem(
                    f"{variant.name}: {name}={size}: three quarters of a power of two, at least {least}"
                )
        elif size < least or (size & (size - 1) and not (card.contract.two_powers and is_sum(size))):
            raise UnsupportedProblem(f"{name}={size}: a block is a power of two of at least {least}")
    block_m, block_n, block_k = card.cta_block(config.block)
    if max(block_m * block_n, block_m * block_k, block_k * block_n) > MOST_TILE:
        raise UnsupportedProblem(f"block {config.block}: no side by another may pass {MOST_TILE} elements")
    if card.language == "gluon":
        _check_warpgroups(variant, config)
    for name in ("num_warps", "full_tiles_warps"):
        warps = getattr(config, name)
        if warps is not None and warps not in (1, 2, 4, 8, 16, 32):
            raise UnsupportedProblem(f"{name}={warps}: a power of two from 1 to 32")
    for name in ("num_stages", "full_tiles_stages"):
        stages = getattr(config, name)
        if stages is not None and not 1 <= stages <= MOST_STAGES:
            raise UnsupportedProblem(f"{name}={stages}: at least 1, at most {MOST_STAGES}")
    if config.maxnreg is not None and not (24 <= config.maxnreg <= 255 and config.maxnreg % 8 == 0):
        raise UnsupportedProblem(f"maxnreg={config.maxnreg}: a multiple of 8 from 24 to 248")
    if config.tma and not card.contract.tma:
        raise UnsupportedProblem(f"{variant.name} has no choice between pointers and the TMA; v09 has")
    if config.programs is not None and not 0 <= config.programs < 2**16 * 4:
        raise UnsupportedProblem(f"programs={config.programs}: from 0 (every tile data-parallel) to {2**18 - 1}")
    if config.split is not None and config.split < 1:
        raise UnsupportedProblem(f"split={config.split}: at least 1")


def _check_warpgroups(variant: Variant, config: Config) -> None:
    """Raise UnsupportedProblem for warps and tiles that wgmma cannot have."""
    block_m, block_n, _ = variant.card.cta_block(config.block)
    rows = block_n if is_sum(block_m) else block_m
    if config.num_warps not in (4, 8) or config.num_warps * 16 > rows:
        raise UnsupportedProblem(
            f"{variant.name}: num_warps={config.num_warps}: one or two warpgroups (4 or 8 warps) multiply, each warp "
            f"at least 16 rows; a CTA has {rows}"
        )
    if block_n > 256:
        raise UnsupportedProblem(f"{variant.name}: BLOCK_N={block_n}: a wgmma is at most 256 wide")
    clusters = variant.card.decomposition == "cluster_ranges"
    if clusters and config.split is not None and config.split not in (1, 2, 4, 8):
        raise UnsupportedProblem(f"{variant.name}: split={config.split}: a cluster has 1, 2, 4 or 8 CTAs")


def _check_operands(variant: Variant, a: torch.Tensor, b: torch.Tensor, config: Config) -> None:
    contract = variant.card.contract
    require_language(variant.name, variant.card)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise UnsupportedProblem(f"A {tuple(a.shape)} and B {tuple(b.shape)}: (M, K) and (K, N) are needed")
    if a.device != b.device:
        raise UnsupportedProblem(f"A is on {a.device}, B on {b.device}: both on one device")
    if a.device.type != "cuda" and not interpreter.interpreting() and variant.card.decomposition != "library":
        raise NoDevice("A and B are on the CPU: move them to a GPU, or set TRITON_INTERPRET=1 to interpret")
    if a.device.type == "cuda" and contract.architectures and architecture(a.device) not in contract.architectures:
        allowed = ", ".join(contract.architectures)
        raise UnsupportedProblem(f"{variant.name} is written for {allowed}; this GPU is {architecture(a.device)}")
    for name, x in (("A", a), ("B", b)):
        if str(x.dtype).removeprefix("torch.") not in contract.dtypes or x.dtype != a.dtype:
            raise UnsupportedProblem(
                f"{variant.name}: {name} is {x.dtype}; it takes {', '.join(contract.dtypes)} for both"
            )
        if x.is_neg():
            raise UnsupportedProblem(f"{name} is negated only when it is read: give {name}.resolve_neg()")
        if extent(x) >= INT32_LIMIT and not contract.wide_offsets:
            raise UnsupportedProblem(f"{variant.name}: {name}'s offsets pass 2^31 elements, its kernels count in int32")
    if a.shape[0] * b.shape[1] >= INT32_LIMIT and not contract.wide_offsets:
        raise UnsupportedProblem(f"{variant.name}: C's offsets pass 2^31 elements, its kernels count in int32")
    if contract.divisible:
        sizes = zip("MNK", (*a.shape[:1], b.shape[1], a.shape[1]), config.block, strict=True)
        for name, size, block in sizes:
            if size % block:
                raise UnsupportedProblem(f"{variant.name}: {name}={size} is not a multiple of BLOCK_{name}={block}")
    for name, x in (("A", a), ("B", b)):
        _check_layout(variant, name, x, config)


def has_language(card: Card) -> bool:
    """Whether this Triton compiles the card's language as the kernels are written in it."""
    return card.language != "gluon" or Version(triton.__version__) >= Version(GLUON_TRITON)


def require_language(name: str, card: Card) -> None:
    """Raise UnsupportedProblem where this process cannot compile the variant's language."""
    if not has_language(card):
        raise UnsupportedProblem(
            f"{name} is written in Gluon as of Triton {GLUON_TRITON}; this is {triton.__version__}: "
            "install a newer Triton, or use v09"
        )
    if card.language == "gluon" and interpreter.interpreting():
        raise UnsupportedProblem(f"{name} is written in Gluon, which has no interpreter; v09 can be interpreted")


def _check_layout(variant: Variant, name: str, x: torch.Tensor, config: Config) -> None:
    layouts = variant.card.contract.layouts
    if layouts == "contiguous" and not x.is_contiguous():
        raise UnsupportedProblem(f"{variant.name}: {name} has strides {x.stride()}; it takes contiguous inputs alone")
    if layouts == "tma" or config.tma:
        tma.require(name, x)


def _check_output(variant: Variant, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    shape, dtype = (a.shape[0], b.shape[1]), OUTPUTS.get(a.dtype, a.dtype)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=a.device)
    if tuple(out.shape) != shape or out.dtype != dtype or out.device != a.device:
        raise UnsupportedProblem(f"out is {tuple(out.shape)} {out.dtype} on {out.device}; needed: {shape} {dtype}")
    if extent(out) >= INT32_LIMIT and not variant.card.contract.wide_offsets:
        raise UnsupportedProblem("out's offsets pass 2^31 elements, the kernels count in int32")
    if out.is_neg():
        raise UnsupportedProblem("out is a view that negates what it shows: write to a tensor of its own")
    require_own_memory(out, a, b)
    return out


def require_own_memory(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise UnsupportedProblem where elements of C share memory with each other, or C with an operand."""
    if _overlaps_itself(out):
        raise UnsupportedProblem(f"out has strides {out.stride()}: elements that share memory cannot be written")
    for name, x in (("A", a), ("B", b)):
        if _share_memory(out, x):
            raise UnsupportedProblem(f"out lies in the memory of {name}, which is read while out is written")


def _overlaps_itself(x: torch.Tensor) -> bool:
    """Whether a tensor's rows, columns or matrices reach into the next ones."""
    reach = 0
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)) if x.numel() else ():
        if size > 1 and step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether the first byte of one lies between the first and the last of the other."""
    if not x.numel() or not y.numel() or x.device.type == "meta":
        return False
    x_first, y_first = x.data_ptr(), y.data_ptr()
    return x_first < y_first + span(y) and y_first < x_first + span(x)


def _check_epilogue(variant: Variant, out: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> None:
    if bias is None and activation is None:
        return
    if not variant.card.contract.epilogue:
        raise UnsupportedProblem(f"{variant.name} has no epilogue: it takes neither bias nor activation")
    if bias is not None:
        wanted = (out.shape[1],)
        if tuple(bias.shape) != wanted or bias.dtype != out.dtype or bias.device != out.device:
            raise UnsupportedProblem(
                f"bias is {tuple(bias.shape)} {bias.dtype} on {bias.device}; needed: {wanted} {out.dtype}"
            )
        if bias.is_neg():
            raise UnsupportedProblem("bias is negated only when it is read: give bias.resolve_neg()")
        if bias.stride(0) != 1 and bias.shape[0] > 1:
            raise UnsupportedProblem(f"bias has stride {bias.stride(0)}: its elements must be next to each other")
    if activation is not None:
        require_activation(activation, out.dtype)


def require_activation(activation: str, dtype: torch.dtype) -> None:
    """Raise UnsupportedProblem where no kernel applies it to a C of this dtype."""
    if activation not in ACTIVATIONS:
        near = nearest(str(activation), ACTIVATIONS)
        raise UnsupportedProblem(f"no activation {activation!r}; nearest: {near}")
    if activation in ("gelu", "silu") and not dtype.is_floating_point:
        raise UnsupportedProblem(f"activation {activation!r} needs a floating-point result, not {dtype}")


def _check_schedule(variant: Variant, schedule: Schedule) -> None:
    """Raise UnsupportedProblem where a program's share of the Stream-K tiles is one that the kernel gets wrong."""
    contract, name = variant.card.contract, variant.name
    if not schedule.sk_tiles:
        return
    if contract.equal_shares and schedule.rest:
        raise UnsupportedProblem(
            f"{name}: {schedule.programs} programs cannot have equal shares of {schedule.total} MAC iterations"
        )
    if not contract.shared_tiles and schedule.max_peers > 1:
        raise UnsupportedProblem(f"{name}: {schedule.max_peers} programs share a tile, of which one alone would count")
    if contract.most_tiles is None:
        return
    for program in range(schedule.programs):
        tiles = len(schedule.segments(program))
        if tiles > contract.most_tiles:
            raise UnsupportedProblem(
                f"{name}: program {program} spans {tiles} tiles, and the kernel is wrong from tile "
                f"{contract.most_tiles + 1} of a program on: choose more programs, or v04"
            )


def _check_counts(variant: Variant, schedule: Schedule, config: Config) -> None:
    """Raise UnsupportedProblem where the kernels, which count in int32, would run out of numbers."""
    iterations = schedule.tiles * schedule.iters_per_tile
    if iterations >= INT32_LIMIT:
        raise UnsupportedProblem(f"{variant.name}: {iterations} MAC iterations pass 2^31: choose larger blocks")
    slots = schedule.programs * config.block[0] * config.block[1]
    if "partials" in variant.card.workspace and slots >= INT32_LIMIT:
        raise UnsupportedProblem(f"{variant.name}: partial sums of {schedule.programs} programs pass 2^31 elements")


def _check_co_residency(prepared: Prepared, max_programs: int | None, strict: bool) -> None:
    """Raise NotCoResident when a tile has more peers than programs fit; with `strict`, when the grid has."""
    schedule, name = prepared.schedule, prepared.variant.name
    resident = resident_programs(prepared)
    if max_programs is not None:
        resident = max_programs if resident is None else min(resident, max_programs)
    if resident is None:
        return
    prepared.resident_programs = resident
    prepared.relies_on_dispatch_order = schedule.programs > resident
    if schedule.max_peers > resident:
        raise NotCoResident(
            f"{name}: {schedule.max_peers} programs share a tile and wait for its last one, but {resident} programs "
            "are resident at once: choose fewer programs"
        )
    if strict and prepared.relies_on_dispatch_order:
        raise NotCoResident(
            f"{name}: {schedule.programs} programs asked, {resident} are resident at once: "
            "it ends only if programs are dispatched in ascending order, which strict_residency does not accept"
        )


def resident_programs(prepared: Prepared) -> int | None:
    """Programs of the first kernel that the GPU holds at once; None where the interpreter runs them one by one."""
    if prepared.a.device.type != "cuda":
        return None
    with on_device(prepared.a.device):
        compiled = compiled_kernel(prepared.record()[0])
    limits = residency.device_limits(prepared.a.device)
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    per_sm = residency.programs_per_sm(limits, compiled.n_regs, shared, warps)
    return per_sm * limits.sms


def compiled_kernel(call: KernelCall) -> Any:
    """Compile a call (or take it from the cache) and load it, so that registers and spills can be read."""
    with rewriting(call.kernel):
        compiled = call.kernel.warmup(*call.args, grid=(call.programs,), **call.options)
    compiled._init_handles()
    return compiled
