"""What a MAC iteration of a main loop takes beside what its parts would: tensor cores, and shared memory.

Every tile is one program's, and the same tiles are multiplied along a short and a long K; what the long one takes more
is iterations of the main loop alone. Once with one program on the whole GPU, once with one on every SM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import variants
from common import documents
from common.card import Config
from common.device import Telemetry, identity
from common.launcher import Variant
from common.problem import Problem
from common.timing import METHOD, Stopwatch
from experiments.overheads import samples

KIND = "main_loop"
SHORT, LONG = 16, 80
"""MAC iterations of the two problems."""
SHARED_BYTES = 128
"""Read or written in a clock in an SM's shared memory. Source: CUDA C++ programming guide, compute capability 9.0."""
TENSOR_MACS = 2048
"""Dense multiply-adds in 16 bits that an SM's tensor cores do in a clock. Source: NVIDIA H100 architecture paper."""
SLAB = 64
"""Rows that a wgmma multiplies."""
ITEM_BYTES = 2


@dataclass(frozen=True)
class Loop:
    """A kernel with one tile, and its wgmmas: `widths`: columns of each that multiplies the same rows; `in_registers`:
    whether it has these rows in registers, which are read from shared memory once."""

    variant: str
    changes: dict[str, Any]
    widths: tuple[int, ...]
    in_registers: bool = False

    @property
    def resolved(self) -> tuple[Variant, Config]:
        variant = variants.get(self.variant)
        return variant, variant.card.default.replace(split=1, **self.changes)

    @property
    def rows(self) -> int:
        """Of a tile, on the side that is not cut into widths."""
        block_m, block_n, _ = self.resolved[1].block
        return block_m * block_n // sum(self.widths)

    def tensor_clocks(self) -> float:
        """Of an iteration, if the tensor cores were all."""
        return self.rows * sum(self.widths) * self.resolved[1].block[2] / TENSOR_MACS

    def shared_clocks(self) -> float:
        """Of an iteration, if shared memory were all: what wgmmas read of both operands and what the TMA writes."""
        line = self.resolved[1].block[2] * ITEM_BYTES
        slabs, columns = self.rows // SLAB, sum(self.widths)
        rows_read = self.rows * (1 if self.in_registers else len(self.widths))
        return (rows_read + slabs * columns + self.rows + columns) * line / SHARED_BYTES

    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        variant, config = self.resolved
        said = {"variant": variant.name, "config": config.label(), "widths": self.widths}
        said |= {"in_registers": self.in_registers}
        return said | {"tensor_clocks": self.tensor_clocks(), "shared_clocks": self.shared_clocks()}


def _tile(variant: str, block: tuple[int, int], warps: int, stages: int, widths: tuple[int, ...], **more: Any) -> Loop:
    return Loop(variant, {"block": (*block, 64), "num_warps": warps, "num_stages": stages}, widths, **more)


LOOPS = (
    _tile("v10", (64, 64), 4, 8, (64,)),
    _tile("v10", (64, 128), 4, 7, (128,)),
    _tile("v10", (128, 128), 4, 5, (128,)),
    _tile("v10", (128, 128), 8, 5, (128,)),
    _tile("v10", (128, 256), 8, 3, (256,)),
    *(
        _tile(name, block, warps, stages, widths, in_registers=name == "v21")
        for block, warps, stages, widths in (
            ((64, 160), 4, 6, (128, 32)),
            ((64, 192), 4, 5, (128, 64)),
            ((160, 64), 4, 6, (128, 32)),
            ((128, 160), 8, 5, (128, 32)),
            ((192, 128), 8, 4, (128, 64)),
        )
        for name in ("v17", "v21")
    ),
)
"""Kernels whose programs are single CTAs."""


def problems(loop: Loop, programs: int) -> tuple[Problem, Problem]:
    """Of as many tiles as programs, along the short and the long K."""
    block_m, block_n, block_k = loop.resolved[1].block
    across = next(n for n in range(int(programs**0.5), 0, -1) if programs % n == 0)
    m, n = programs // across * block_m, across * block_n
    return Problem(m, n, SHORT * block_k), Problem(m, n, LONG * block_k)


def main_loop() -> list[dict[str, Any]]:
    """A record for each of LOOPS and number of programs. Raises WrongResult.

    `us`: microseconds of an iteration, round by round. `mhz`: the SM's clock as it was last read.
    """
    sms = torch.cuda.get_device_properties().multi_processor_count
    stopwatch, telemetry, found = Stopwatch(), Telemetry(identity()["uuid"]), []
    for number, loop in enumerate(LOOPS):
        variant, config = loop.resolved
        for programs in (1, sms):
            short, long = samples(stopwatch, variant, (config, config), problems(loop, programs), number)
            more = [round((y - x) / (LONG - SHORT), 4) for x, y in zip(short, long, strict=True)]
            found.append(loop.facts() | {"programs": programs, "us": more, "mhz": telemetry.read()[0]})
    return found


def measure(out: Path, on_progress: Callable[[str], None] = print) -> Path:
    """Measure every loop; return the document."""
    on_progress("main loop")
    return documents.write(out, KIND, documents.header(timing=METHOD), main_loop())
