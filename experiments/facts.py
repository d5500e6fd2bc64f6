"""Measured facts about results, not speed: v03's third tile, spread of NaN, rounding by peers, bits that vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import variants
from common import documents
from common.card import Config
from common.errors import UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import Prepared, Variant, prepare
from common.problem import Problem, make_inputs
from common.reference import reference

KIND = "facts"
Record = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Sizes for a GPU or for the interpreter. `k`: of the one tile whose peers grow. `problems`: run `runs` times."""

    block: tuple[int, int, int]
    k: int
    peers: tuple[int, ...]
    problems: tuple[tuple[int, int, int], ...]
    programs: int
    runs: int


GPU = Scale(
    (128, 128, 32),
    16384,
    (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    ((1536, 1792, 6016), (256, 512, 8192)),
    132,
    100,
)
SMALL = Scale((32, 32, 32), 512, (1, 2, 3, 8), ((32, 64, 256),), 5, 3)


def measure(out: Path, on_progress: Callable[[str], None] = print) -> Path:
    """Measure every fact on the GPU, or a small version of each in the interpreter; return the document."""
    scale, device = (SMALL, "cpu") if interpreting() else (GPU, "cuda")
    records: list[Record] = []
    for name, facts in (
        ("v03's third tile", third_tile(device)),
        ("spread of NaN", nan_spread(device)),
        ("rounding by peers", rounding(scale, device)),
        ("bits that vary", repeatability(scale, device)),
    ):
        on_progress(name)
        records += facts
    head = documents.header(dry_run=interpreting(), block="x".join(map(str, scale.block)))
    return documents.write(out, KIND, head, records)


def _config(variant: Variant, block: tuple[int, int, int], programs: int, order: str = "linear") -> Config:
    """The variant's default at another block, which v06's 8 warps are too many for."""
    config = variant.card.default.replace(block=block, programs=programs)
    if order in variant.card.tile_orders:
        config = config.replace(order=order)
    if variant.name.startswith("v06"):
        config = config.replace(num_warps=4, full_tiles_warps=4)
    if variant.card.decomposition == "split_k":
        config = config.replace(split=programs)
    return config


def third_tile(device: str) -> Iterator[Record]:
    """5 tiles on 6 programs of which one spans three, operands inside guard buffers full of NaN; v04 as a control.

    `wrong`: share of C's elements that differ from the exact product of small integers. `not_finite`: of those, the
    share that came from outside the operands.
    """
    for name in ("v03", "v04"):
        v = variants.get(name)
        a, b = make_inputs(Problem(64, 160, 96), values="integers", device=device)
        wide_a = torch.full((a.shape[0] + 256, a.shape[1]), torch.nan, dtype=a.dtype, device=device)
        wide_b = torch.full((b.shape[0], b.shape[1] + 256), torch.nan, dtype=b.dtype, device=device)
        wide_a[:64], wide_b[:, :160] = a, b
        a, b = wide_a[:64], wide_b[:, :160]
        config = v.card.default.replace(block=(32, 32, 32), programs=6)
        prepared = prepare(v, a, b, config=config, guarded=False)
        prepared.run()
        c, exact = prepared.out.double(), reference(a, b).c
        yield {
            "fact": "third_tile",
            "variant": v.name,
            "most_tiles": max(len(prepared.schedule.segments(p)) for p in range(6)),
            "refused": _refused(v, a, b, config),
            "wrong": float((c != exact).double().mean()),
            "not_finite": float((~torch.isfinite(c)).double().mean()),
        }


def _refused(v: Variant, a: torch.Tensor, b: torch.Tensor, config: Config) -> bool:
    try:
        prepare(v, a, b, config=config)
    except UnsupportedProblem:
        return True
    return False


def nan_spread(device: str) -> Iterator[Record]:
    """One column of B is Inf; `spread` is the share of the other columns' elements that are not finite."""
    for name in variants.portable_names():
        v = variants.get(name)
        a, b = make_inputs(Problem(64, 96, 128), device=device)
        b[:, 0] = torch.inf
        prepared = prepare(v, a, b, config=_config(v, (32, 32, 32), 4))
        prepared.run()
        spread = (~torch.isfinite(prepared.out[:, 1:])).double().mean()
        yield {"fact": "nan_spread", "variant": v.name, "spread": float(spread)}


def rounding(scale: Scale, device: str) -> Iterator[Record]:
    """One tile shared by a growing number of peers.

    `rms` and `max`: error against float64 over the root mean square of C. cuBLAS has no peers and one record.
    """
    a, b = make_inputs(Problem(*scale.block[:2], scale.k), device=device)
    exact = a.double() @ b.double()
    size = exact.square().mean().sqrt()
    for name in [*variants.portable_names(), "split_k", "torch_matmul"]:
        v = variants.get(name)
        for peers in scale.peers if name != "torch_matmul" else (1,):
            prepared = prepare(v, a, b, config=_config(v, scale.block, peers))
            prepared.run()
            error = (prepared.out.double() - exact) / size
            yield {
                "fact": "rounding",
                "variant": v.name,
                "peers": prepared.schedule.max_peers,
                "rms": float(error.square().mean().sqrt()),
                "max": float(error.abs().max()),
            }


def repeatability(scale: Scale, device: str) -> Iterator[Record]:
    """The same call many times on the same inputs.

    `distinct`: different results, bit for bit. `varying`: share of C's elements that were ever different.
    """
    for shape in scale.problems:
        a, b = make_inputs(Problem(*shape), device=device)
        for name in [*variants.portable_names(), "split_k", "torch_matmul"]:
            v = variants.get(name)
            split = 4 if name == "split_k" else scale.programs
            try:
                prepared = prepare(v, a, b, config=_config(v, scale.block, split))
            except UnsupportedProblem as error:
                yield {"fact": "repeatability", "variant": v.name, "problem": shape, "refused": str(error)}
                continue
            distinct, varying = _repeat(prepared, scale.runs)
            yield {
                "fact": "repeatability",
                "variant": v.name,
                "problem": shape,
                "runs": scale.runs,
                "most_peers": prepared.schedule.max_peers,
                "distinct": distinct,
                "varying": varying,
            }


def _repeat(prepared: Prepared, runs: int) -> tuple[int, float]:
    """Different results of so many runs by a 64-bit digest, and the share of elements that ever changed."""
    out = prepared.out
    generator = torch.Generator(device=out.device).manual_seed(1)
    weights = torch.randint(2**62, (out.numel(),), generator=generator, device=out.device)
    digests, first, changed = set(), None, torch.zeros(out.numel(), dtype=torch.bool, device=out.device)
    for _ in range(runs):
        prepared.run()
        bits = out.view(torch.int16).flatten()
        first = bits.clone() if first is None else first
        changed |= bits != first
        digests.add(int((bits.long() * weights).sum()))
    return len(digests), float(changed.double().mean())
