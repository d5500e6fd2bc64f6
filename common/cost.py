"""The time of a launch as a formula: rounds of units of work, MAC iterations, memory, fix-up and the launch itself.

`predict` is what the choice among kernels and the fit of its constants share, and so is `corrected`: what the formula
misses of a kernel with one tile and split, smooth in the problem's sizes. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from common.card import Card, Config
from common.decomposition import cdiv
from common.residency import IDLE_SMS, Limits, programs_per_sm

SHARPNESS = 4.0
"""Exponent of the norm that joins times that overlap, but not where both are equal."""
NOMINAL_TILE = 128 * 128
"""Elements of the tile for which `peer_us` counts."""
LINE = 128
"""Bytes of a line of L2, and of the rows in which the TMA fills shared memory."""
PIECES = {128: 1.0, 64: 1.3, 32: 1.4, 16: 2.0}
"""What a row's piece of LINE bytes costs L2, in pieces that start at a line, by the largest of these that divides the
bytes from row to row. A piece elsewhere lies in two lines; where rows are an odd multiple of 16 bytes apart, every
second one starts within a sector of 32 bytes. Chosen for the least error on shapes that the fit leaves out, which is
flat around it."""
NOMINAL_LINES = 256
"""Lines of a MAC iteration of 128 x 128 x 64 in fp16 whose rows start at multiples of LINE; `line_us` is for these."""
WIDTH = 2.0
"""Octaves over which what the formula misses stays alike: the standard deviation of the Gaussians of `basis`."""
OFF_LINES = 3.0
"""Octaves that count between problems of which one has rows that start at multiples of LINE and one has not."""
HOPPER = Limits(sms=132)
"""Of an H200, in what is asked of an SM; an H100's SMs are the same."""


@dataclass(frozen=True)
class Constants:
    """What the formula knows of a kernel with one tile on one GPU.

    `launch_us`: an empty launch. `unit_us`: start and end of a whole tile, `part_us`: of a K range of a shared one.
    `step_us`: one MAC iteration of a program that has the GPU to itself; `busy_us`: how much longer it takes when all
    programs run. `line_us`, `busy_line_us`: the same where the lines that are loaded decide, for NOMINAL_LINES.
    `terabytes`: bytes of memory in TB/s, A and B read once, C written once. `fix_up_us`: putting tiles together at all;
    `peer_us`: for each K range.
    """

    launch_us: float
    unit_us: float
    step_us: float
    busy_us: float
    terabytes: float
    fix_up_us: float
    peer_us: float
    line_us: float
    busy_line_us: float
    part_us: float


NAMES = tuple(field.name for field in fields(Constants))


@dataclass(frozen=True)
class Kernels:
    """Kernels to launch, side by side: every field a number or an array of one number each.

    `split`, `programs`: of the config (programs are not looked at for clusters). `clusters`: whether the decomposition
    is `cluster_ranges`, else `whole_waves`. `at_once`: programs that an SM holds. `ctas`: of a program, see `Card`.
    """

    block_m: Any
    block_n: Any
    block_k: Any
    split: Any
    programs: Any
    clusters: Any
    at_once: Any
    ctas: Any

    @classmethod
    def of(cls, card: Card, configs: Sequence[Config]) -> Kernels:
        """Launches of one variant with these configs. ValueError where a config leaves its programs open."""
        clusters = card.decomposition == "cluster_ranges"
        if not clusters and any(c.programs is None for c in configs):
            raise ValueError("the programs of a launch by whole waves must be a number")
        columns = [(*c.block, c.split or 1, c.programs or 1, clusters, at_once(card, c), card.ctas) for c in configs]
        return cls(*np.array(columns).T)

    @classmethod
    def joined(cls, parts: Sequence[Kernels]) -> Kernels:
        """All of them in order."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


WORK = ("whole", "parts", "steps", "busy_steps", "lines", "bytes", "shared", "ranges")
"""What a launch asks of the longest-working program, of the SMs and of the memory; the rows of what `work` returns.

`whole`, `parts`: tiles and K ranges of shared tiles, one after another. `steps`: MAC iterations one after another.
`busy_steps`: all MAC iterations over all SMs. `lines`: of L2 that a program reads in an iteration, counted by PIECES,
over NOMINAL_LINES. `bytes`: to and from memory. `shared`: 1 where a tile is shared. `ranges`: its K ranges, in nominal
tiles.
"""


def work(m: Any, n: Any, k: Any, row_bytes: tuple[Any, Any], item_bytes: int, kernels: Kernels, sms: int) -> Any:
    """One row for each of WORK, one column a launch: one problem for many kernels, or many problems for one kernel.

    `row_bytes`: from one row of A, or of B, to the next. Counts what `whole_waves` and `cluster_ranges` of
    `common.decomposition` do.
    """
    x = kernels
    tiles, iters = cdiv(m, x.block_m) * cdiv(n, x.block_n), cdiv(k, x.block_k)
    split = effective_split(m, n, k, kernels)
    shared = np.where(split > 1, np.where(x.clusters, tiles, tiles % x.programs), 0)
    longest = cdiv(iters, split)
    idle = np.select([x.split == size for size in IDLE_SMS], list(IDLE_SMS.values()), 0)
    at_a_time = np.where(x.clusters, np.maximum(sms - idle, 1) * x.at_once, x.programs)
    whole, parts = cdiv(tiles - shared, at_a_time), cdiv(shared * split, at_a_time)
    lines = 0.0
    for elements, step in zip((x.block_m * x.block_k, x.block_k * x.block_n), row_bytes, strict=True):
        lines = lines + elements * item_bytes / LINE * _pieces(step)
    rows = (
        whole,
        parts,
        whole * iters + parts * longest,
        ((tiles - shared) * iters + shared * split * longest) * x.ctas / sms,
        lines / x.ctas / NOMINAL_LINES,
        item_bytes * (m * k + k * n + m * n),
        parts > 0,
        np.where(parts > 0, split * x.block_m * x.block_n / x.ctas / NOMINAL_TILE, 0),
    )
    return np.array(np.broadcast_arrays(*rows), dtype=float)


def effective_split(m: Any, n: Any, k: Any, kernels: Kernels) -> Any:
    """K ranges of a shared tile; 1 where no tile is shared."""
    x = kernels
    tiles, iters = cdiv(m, x.block_m) * cdiv(n, x.block_n), cdiv(k, x.block_k)
    waves = np.where(tiles % x.programs > 0, np.minimum(x.split, iters), 1)
    return np.where(x.clusters, x.split, waves)


def ring_bytes(card: Card, config: Config) -> int:
    """Shared memory of a CTA's stages, of operands of 2 bytes."""
    block_m, block_n, block_k = card.cta_block(config.block)
    return (block_m + block_n) * block_k * 2 * config.num_stages


def at_once(card: Card, config: Config) -> int:
    """Programs that an SM holds of a kernel with a loading warp, by their registers and stages."""
    warps = config.num_warps + 4
    registers = config.maxnreg or HOPPER.registers // (warps * 32)
    return max(1, programs_per_sm(HOPPER, registers, ring_bytes(card, config), warps))


def at_lines(row_bytes: tuple[Any, Any]) -> Any:
    """Whether rows of A and of B that are so many bytes apart start at multiples of LINE."""
    return (row_bytes[0] % LINE == 0) & (row_bytes[1] % LINE == 0)


def _pieces(step: Any) -> Any:
    """Of PIECES, for rows that are `step` bytes apart."""
    sizes = list(PIECES)[:-1]
    return np.select([np.asarray(step) % size == 0 for size in sizes], [PIECES[size] for size in sizes], PIECES[16])


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a**SHARPNESS + b**SHARPNESS) ** (1 / SHARPNESS)


def predict(constants: np.ndarray, works: np.ndarray) -> np.ndarray:
    """Microseconds. `constants`: in the order of NAMES, (10,) or (10, launches). `works`: what `work` returns."""
    launch, unit, step, busy, terabytes, fix_up, peer, line, busy_line, part = constants
    whole, parts, steps, busy_steps, lines, moved, shared, ranges = works
    one_step, one_busy = _joined(step, line * lines), _joined(busy, busy_line * lines)
    arithmetic = unit * whole + part * parts + one_step * steps + one_busy * busy_steps
    return launch + _joined(arithmetic, moved / terabytes / 1e6) + shared * fix_up + peer * ranges


def features(m: Any, n: Any, k: Any, row_bytes: tuple[Any, Any], item_bytes: int) -> np.ndarray:
    """Where problems lie among others, in octaves: (4,), or (problems, 4) of arrays.

    The binary logarithms of M, N and K, K in elements of 2 bytes, and OFF_LINES where rows of A or of B do not start at
    multiples of LINE.
    """
    off = np.where(at_lines(row_bytes), 0.0, OFF_LINES)
    return np.stack(np.broadcast_arrays(np.log2(m), np.log2(n), np.log2(k * item_bytes / 2), off), axis=-1)


def basis(places: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """How near problems lie to centres, both as from `features`: 1 there, 0 far away. (centres,), or a row each."""
    return np.exp(((places[..., None, :] - centres) ** 2).sum(-1) / (-2 * WIDTH**2))


def corrected(times: np.ndarray, near: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Times of `predict`, longer or shorter by what the same kernel, tile and split took near the problem.

    `near`: what `basis` returns. `weights`: (centres,) or (centres, launches). Far from every centre the time is the
    formula's: Gaussians fade where nothing was measured, where polynomials would grow.
    """
    return times * np.exp(near @ weights)
