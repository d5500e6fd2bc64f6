"""`matmul`: which kernel, tile, split and number of programs a problem gets, by a model of their times.

Nothing is timed per shape. The model's constants and corrections are data (`costs.json`, written by `python -m
experiments fit` from committed measurements of shapes that no result is reported on). What was chosen is kept, so that
the next call of the same kind costs the host little more than the launch.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import variants
from common import cost
from common.card import Config, Precision
from common.cost import Constants, Kernels
from common.errors import InvalidExperiment, NoDevice, UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import (
    OUTPUTS,
    Prepared,
    Variant,
    architecture,
    prepare,
    require_activation,
    require_own_memory,
    sms,
    span,
)
from common.problem import Problem
from common.quick import QuickLaunch
from common.residency import IDLE_SMS
from common.residency import clusters as clusters_at_once

COSTS = Path(__file__).parent / "costs.json"
PORTABLE = "v09_whole_waves"
"""The kernel that takes any tensors."""
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""K ranges of a shared tile that are considered."""
FIRST_TMA = 90
"""The first architecture that has the TMA; on others the same tile loads by pointers."""
MOST_KEPT = 8192
"""Choices kept; when there are more, all are forgotten and made again."""


@dataclass(frozen=True)
class Family:
    """A kernel with one tile: `config` without programs and split, programs an SM, the most K ranges measured, whether
    also on rows that start at multiples of a line, and what is known of its time; `corrections`: weights by split."""

    variant: str
    config: Config
    programs_per_sm: int
    most_split: int
    aligned: bool
    constants: Constants
    corrections: dict[int, list[float]]

    def fits(self, arch: str, shared_memory: int) -> bool:
        """Whether a GPU of this architecture, with so many bytes of shared memory a program, can run it.

        BLOCK_K is that of operands of 2 bytes; others have their own, of as many bytes.
        """
        card = variants.get(self.variant).card
        wanted = card.contract.architectures
        return (not wanted or arch in wanted) and cost.ring_bytes(card, self.config) <= shared_memory

    @property
    def least_split(self) -> int:
        """The fewest K ranges that were measured."""
        return min(self.corrections, default=1)

    def correction(self, split: int) -> list[float] | float:
        """Weights of the largest measured split up to this one: what the formula misses of a kernel and tile hardly
        changes from one split to the next. 0 where there are none."""
        measured = [known for known in self.corrections if known <= split]
        return self.corrections[max(measured)] if measured else 0.0


@dataclass(frozen=True)
class Choice:
    """A candidate with the time that the model expects, in microseconds."""

    variant: Variant
    config: Config
    expected_us: float


def launch_label(variant: Variant, config: Config) -> str:
    """Variant, block, warps, stages, programs and K ranges in few letters."""
    return f"{variant.name[:3]} {config.label()} P{config.programs} S{config.split}"


def costs_hash() -> str:
    """First 12 hex digits of the SHA-256 of all that decides a choice: this file, the formula and its constants."""
    parts = (Path(__file__), Path(cost.__file__), COSTS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:12]


@dataclass(frozen=True)
class Costs:
    """What the data file holds: the candidates, and the centres of their corrections, see `cost.basis`."""

    families: tuple[Family, ...]
    centres: np.ndarray


@lru_cache
def costs() -> Costs:
    """The data file. Raises InvalidExperiment where it is of an older kind, without corrections."""
    data = json.loads(COSTS.read_text())
    if "centres" not in data:
        raise InvalidExperiment(f"{COSTS.name} holds no corrections of its times: python -m experiments fit writes it")
    found = []
    for entry in data["families"]:
        changes = entry["config"] | {"block": tuple(entry["config"]["block"])}
        config = variants.get(entry["variant"]).card.default.replace(**changes)
        constants = Constants(**entry["constants"])
        corrections = {int(split): weights for split, weights in entry["corrections"].items()}
        measured = (entry["programs_per_sm"], entry["most_split"], entry["aligned"])
        found.append(Family(entry["variant"], config, *measured, constants, corrections))
    return Costs(tuple(found), np.array(data["centres"]))


@dataclass(frozen=True)
class Candidates:
    """Every kernel, tile and split that a GPU can run, side by side; `weights`: (centres, launches)."""

    launches: list[tuple[Variant, Config]]
    kernels: Kernels
    constants: np.ndarray
    aligned: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def candidates(sm_count: int, arch: str, shared_memory: int, item_bytes: int, precision: Precision) -> Candidates:
    """For a GPU and operands of so many bytes."""
    launches, parts, constants, aligned, weights = [], [], [], [], []
    centres = len(costs().centres)
    for family in costs().families:
        if not family.fits(arch, shared_memory):
            continue
        variant = variants.get(family.variant)
        card = variant.card
        clusters = card.decomposition == "cluster_ranges"
        config = _for_item(family.config, item_bytes, precision)
        programs = None if clusters else family.programs_per_sm * clusters_at_once(sm_count, card.ctas)
        config = config.replace(programs=programs)
        if _number(arch) < FIRST_TMA:
            config = config.replace(tma=False)
        splits = [s for s in SPLITS if family.least_split <= s <= family.most_split and (not clusters or s in IDLE_SMS)]
        configs = [config.replace(split=split) for split in splits]
        launches += [(variant, c) for c in configs]
        parts.append(Kernels.of(card, configs))
        constants += [[getattr(family.constants, name) for name in cost.NAMES]] * len(configs)
        aligned += [family.aligned] * len(configs)
        weights += [np.broadcast_to(family.correction(split), centres) for split in splits]
    columns = np.array(constants).T, np.array(aligned), np.array(weights).T
    return Candidates(launches, Kernels.joined(parts), *columns)


def ranked(
    problem: Problem,
    sm_count: int,
    arch: str,
    shared_memory: int,
    precision: Precision = "ieee",
    row_bytes: tuple[int, int] | None = None,
) -> list[Choice]:
    """Every candidate that the GPU can run, soonest first. `row_bytes`: from one row of A, or of B, to the next; None
    where both are contiguous."""
    return list(_soonest_first(problem, sm_count, arch, shared_memory, precision, row_bytes))


def _soonest_first(
    problem: Problem,
    sm_count: int,
    arch: str,
    shared_memory: int,
    precision: Precision,
    row_bytes: tuple[int, int] | None,
) -> Iterator[Choice]:
    """`ranked`, each made when it is asked for: mostly the first alone is."""
    item, (m, n, k) = problem.torch_dtype.itemsize, (problem.m, problem.n, problem.k)
    row_bytes = row_bytes or (k * item, n * item)
    found = candidates(sm_count, arch, shared_memory, item, precision)
    times = cost.predict(found.constants, cost.work(m, n, k, row_bytes, item, found.kernels, sm_count))
    near = cost.basis(cost.features(m, n, k, row_bytes, item), costs().centres)
    times = cost.corrected(times, near, found.weights)
    possible = cost.effective_split(m, n, k, found.kernels) == found.kernels.split
    if cost.at_lines(row_bytes):
        possible &= found.aligned
    order = np.argsort(np.where(possible, times, np.inf), kind="stable")[: possible.sum()]
    for i in order:
        yield Choice(*found.launches[i], float(times[i]))


def _number(arch: str) -> int:
    """90 for `sm_90`."""
    return int("".join(filter(str.isdecimal, arch)))


def _for_item(config: Config, item_bytes: int, precision: Precision) -> Config:
    """BLOCK_K keeps its bytes, which shared memory and its rows are made for."""
    block_m, block_n, block_k = config.block
    scaled = max(16, block_k * 2 // item_bytes)
    return config.replace(block=(block_m, block_n, scaled), precision=precision)


def choose(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    precision: Precision = "ieee",
    kernel: str | None = None,
) -> Prepared:
    """The launch of the candidate that the model expects to end soonest among those that take these tensors.

    `kernel`: among this variant's tiles and splits alone. Nothing is launched. Raises UnsupportedProblem with the
    portable kernel's reason where none takes them, NoDevice for tensors on the CPU, UnknownVariant.
    """
    only = variants.resolve(kernel) if kernel else None
    if a.device.type != "cuda" and not (interpreting() and a.device.type == "cpu"):
        raise NoDevice(
            f"A is on {a.device}: the kernels need an NVIDIA GPU. Move the tensors there, or ask for "
            "allow_fallback=True, which calls torch.matmul"
        )
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise UnsupportedProblem(f"A {tuple(a.shape)} and B {tuple(b.shape)}: (M, K) and (K, N) are needed")
    refused = None
    for choice in _candidates(a, b, precision):
        if only not in (None, choice.variant.name):
            continue
        try:
            return prepare(choice.variant, a, b, out, choice.config, bias=bias, activation=activation)
        except UnsupportedProblem as error:
            if refused is None or choice.variant.name == PORTABLE:
                refused = error
    raise refused or UnsupportedProblem(
        f"no {'kernel' if only is None else f'tile of {only}'} takes {a.dtype} on this GPU"
    )


def _candidates(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> Iterator[Choice]:
    """One choice a kernel and tile, soonest first; the card's own config where the model has nothing to say."""
    dtype = str(a.dtype).removeprefix("torch.")
    problem = Problem(a.shape[0], b.shape[1], a.shape[1], dtype=dtype)
    portable = variants.get(PORTABLE)
    if not problem.flops or interpreting():
        yield Choice(portable, _for_item(portable.card.default, a.element_size(), precision), float("inf"))
        return
    exact_fp32 = a.dtype == torch.float32 and precision == "ieee"
    if not exact_fp32:
        yield from _modelled(a, b, problem, precision)
    default = _for_item(portable.card.default, a.element_size(), precision)
    # Without tensor cores a smaller tile keeps the accumulator and both operands in registers.
    block = (64, 64, 16) if exact_fp32 else (64, 64, default.block[2])
    yield Choice(portable, default.replace(block=block, num_warps=4, num_stages=3), float("inf"))


def _modelled(a: torch.Tensor, b: torch.Tensor, problem: Problem, precision: Precision) -> Iterator[Choice]:
    """The soonest choice of each kernel and tile."""
    shared = torch.cuda.get_device_properties(a.device).shared_memory_per_block_optin
    seen = set()
    rows = tuple(max(x.stride()) * x.element_size() for x in (a, b))
    for choice in _soonest_first(problem, sms(a.device), architecture(a.device), shared, precision, rows):
        kind = (choice.variant.name, choice.config.block)
        if kind not in seen:
            seen.add(kind)
            yield choice


Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
_kept: dict[tuple[Any, ...], Call] = {}


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str | None,
    precision: Precision,
) -> torch.Tensor:
    """A (M, K) times B (K, N), as chosen before where such a call was made before."""
    try:
        key = (
            a.shape, a.stride(), a.dtype, a.get_device(), a.is_neg(), a.data_ptr() % 16,
            b.shape, b.stride(), b.dtype, b.get_device(), b.is_neg(), b.data_ptr() % 16,
            _described(out), _described(bias), activation, precision,
        )  # fmt: skip
    except RuntimeError as error:  # sparse tensors, and those of vmap
        raise UnsupportedProblem(f"A, B, out or bias has no memory with strides: {error}") from None
    call = _kept.get(key)
    if call is None:
        prepared = choose(a, b, out, bias=bias, activation=activation, precision=precision)
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        call = _kept[key] = _repeated(prepared)
    return call(a, b, out, bias)


def _described(x: torch.Tensor | None) -> tuple[Any, ...] | None:
    return None if x is None else (x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.data_ptr() % 16)


def _repeated(prepared: Prepared) -> Call:
    """The launch as a function of its tensors: the short way where there is one."""
    if prepared.out.numel() and prepared.a.shape[1] and not interpreting():
        try:
            return _short_way(QuickLaunch(prepared), prepared)
        except (AttributeError, TypeError, RuntimeError):
            pass  # another Triton's launcher, or a kernel that needs more of it than the short way gives
    return functools.partial(_long_way, prepared.variant, prepared.config, prepared.activation)


def _short_way(quick: QuickLaunch, prepared: Prepared) -> Call:
    shape, dtype, device = tuple(prepared.out.shape), prepared.out.dtype, prepared.a.device
    index = device.index
    a_bytes, b_bytes, out_bytes = (span(x) for x in (prepared.a, prepared.b, prepared.out))

    def call(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            out = torch.empty(shape, dtype=dtype, device=device)
        else:  # all that was checked once holds for every call of the kind, but where the tensors lie
            first, a_first, b_first = out.data_ptr(), a.data_ptr(), b.data_ptr()
            if -out_bytes < first - a_first < a_bytes or -out_bytes < first - b_first < b_bytes:
                require_own_memory(out, a, b)
        if index == torch.cuda.current_device():
            quick(a, b, out, bias)
        else:
            with torch.cuda.device(index):
                quick(a, b, out, bias)
        return out

    return call


def _long_way(
    variant: Variant,
    config: Config,
    activation: str | None,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    prepared = prepare(variant, a, b, out, config, bias=bias, activation=activation)
    prepared.run()
    return prepared.out


class _Linear(torch.autograd.Function):
    """A @ B + bias with the products of its gradients made by the same kernels."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, precision: Precision) -> Any:
        ctx.save_for_backward(a, b)
        ctx.precision, ctx.has_bias = precision, bias is not None
        return _product(a, b, None, bias, None, precision)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        options = {"precision": ctx.precision}
        for_a = matmul(gradient, b.t(), **options) if ctx.needs_input_grad[0] else None
        for_b = matmul(a.t(), gradient, **options) if ctx.needs_input_grad[1] else None
        for_bias = gradient.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return for_a, for_b, for_bias, None


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | None = None,
    precision: Precision = "ieee",
    allow_fallback: bool = False,
) -> torch.Tensor:
    """A (M, K) or (batch, M, K) times B (K, N) or (batch, K, N), by the kernel that a model expects to be fastest.

    Any sizes and strides. fp16, bf16 and fp32 give their own dtype, int8 gives int32, fp8 gives fp16. `bias`: (N,) of
    C's dtype, added to every row; `activation`: relu, gelu or silu, applied after it. `precision`: "tf32" rounds fp32
    operands. `out`: C, written in place and returned. Differentiable in A, B and bias. The same call gives the same
    bits. Raises NoDevice for tensors on the CPU and UnsupportedProblem for what no kernel takes, before anything is
    launched; with `allow_fallback` torch.matmul answers instead.
    """
    differentiable = _differentiable(a, b, bias, out)
    if differentiable and out is not None:
        raise UnsupportedProblem("out= and gradients do not go together: leave out= out, or use torch.no_grad()")
    try:
        if a.dim() != 2 or b.dim() != 2:
            c = _batched(a, b, bias, activation, out, precision, differentiable)
        elif differentiable:
            c = _differentiated(a, b, bias, activation, precision)
        else:
            c = _product(a, b, out, bias, activation, precision)
    except (UnsupportedProblem, NoDevice):
        if not allow_fallback:
            raise
        c = _library(a, b, bias, activation, out, precision)
    if out is not None and not out.is_inference():
        torch.autograd.graph.increment_version(out)  # a graph that saved it must notice, as after any write in place
    return c


def _differentiable(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None) -> bool:
    """Whether a gradient may be asked of one of them. Raises UnsupportedProblem for what is no tensor."""
    try:
        return torch.is_grad_enabled() and (
            a.requires_grad
            or b.requires_grad
            or (bias is not None and bias.requires_grad)
            or (out is not None and out.requires_grad)
        )
    except AttributeError:
        kinds = ", ".join(type(x).__name__ for x in (a, b, bias, out))
        raise UnsupportedProblem(f"A, B, bias and out are tensors, the last two if any; these are {kinds}") from None


def _differentiated(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, precision: Precision
) -> torch.Tensor:
    """The product in the graph of gradients, its activation by torch."""
    if activation is not None:
        require_activation(activation, a.dtype)  # before anything is launched
    if a.dtype in OUTPUTS:
        raise UnsupportedProblem(f"{a.dtype} has no gradients, for they would be fp16: convert A and B, or detach them")
    return _activated(_Linear.apply(a, b, bias, precision), activation)


def _activated(c: torch.Tensor, activation: str | None) -> torch.Tensor:
    return getattr(torch.nn.functional, activation)(c) if activation else c


def _batched(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor | None,
    precision: Precision,
    differentiable: bool,
) -> torch.Tensor:
    """One launch a batch, or a single one where B is shared and A's batches lie one after another."""
    if not (a.dim() in (2, 3) and b.dim() in (2, 3)) or a.shape[-1] != b.shape[-2]:
        raise UnsupportedProblem(f"A {tuple(a.shape)} and B {tuple(b.shape)}: matrices, or batches of them, are needed")
    sizes = {x.shape[0] for x in (a, b) if x.dim() == 3 and x.shape[0] != 1}
    if len(sizes) > 1:
        raise UnsupportedProblem(f"A {tuple(a.shape)} and B {tuple(b.shape)}: batches of one size, or of 1, are needed")
    batch = sizes.pop() if sizes else 1
    shape = (batch, a.shape[-2], b.shape[-1])
    options: dict[str, Any] = {"bias": bias, "activation": activation, "precision": precision}
    if out is not None:
        if tuple(out.shape) != shape:
            raise UnsupportedProblem(f"out is {tuple(out.shape)}; needed: {shape}")
        require_own_memory(out, a, b)
    if b.dim() == 2 and a.is_contiguous() and (out is None or out.is_contiguous()):
        rows = batch * shape[1]
        flat = None if out is None else out.view(rows, shape[2])
        c = matmul(a.view(rows, a.shape[-1]), b, out=flat, **options)
        return c.view(shape) if out is None else out
    if not batch:
        one = [None if x is None else x.new_empty(x.shape[-2:]) for x in (a, b, out)]
        choose(*one, **options)
        return _library(a, b, bias, activation, out, precision) if differentiable else _empty(a, shape, out)
    left = a.expand(batch, *a.shape[-2:])
    right = b.expand(batch, *b.shape[-2:])
    if differentiable:
        return torch.stack([matmul(x, y, **options) for x, y in zip(left, right, strict=True)])
    out = _empty(a, shape, out)
    for x, y, c in zip(left, right, out, strict=True):
        matmul(x, y, out=c, **options)
    return out


def _empty(a: torch.Tensor, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(shape, dtype=OUTPUTS.get(a.dtype, a.dtype), device=a.device) if out is None else out


def _library(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor | None,
    precision: Precision,
) -> torch.Tensor:
    """The same by torch.matmul, of operands of C's dtype where that is wider than theirs."""
    dtype = OUTPUTS.get(a.dtype, a.dtype)
    if activation is not None:
        require_activation(activation, dtype)
    Config(precision=precision)  # it says what is allowed
    c = torch.matmul(a.to(dtype), b.to(OUTPUTS.get(b.dtype, b.dtype)))
    c = _activated(c if bias is None else c + bias, activation)
    if out is None:
        return c
    if out.shape != c.shape or out.dtype != c.dtype:
        raise UnsupportedProblem(f"out is {tuple(out.shape)} {out.dtype}; needed: {tuple(c.shape)} {c.dtype}")
    return out.copy_(c)
