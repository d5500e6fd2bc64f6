"""The GPUs that kernels are compiled for without being there, and what one multiprocessor of each offers.

Sources: CUDA C++ Programming Guide, technical specifications by compute capability; AMD CDNA 3 instruction set, LLVM's
AMDGPU usage guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.errors import UnsupportedProblem, nearest
from common.residency import BLOCKS_PER_SM, Limits, programs_per_sm

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """A target of offline compilation. `gpu`: the one that stands for it, whose SMs decide the default grid."""

    name: str
    gpu: str
    limits: Limits
    backend: Literal["cuda", "hip"] = "cuda"
    warp_size: int = 32

    @property
    def number(self) -> int | str:
        """What Triton calls it: 90 for `sm_90`, the name itself for AMD."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name

    @property
    def assembly(self) -> str:
        """The name of the target's assembly among Triton's stages."""
        return "ptx" if self.backend == "cuda" else "amdgcn"

    def resident_programs(self, registers: int, shared_bytes: int, num_warps: int) -> int:
        """Programs of a kernel that one multiprocessor holds at once; 0 where one alone does not fit."""
        if self.backend == "cuda":
            return programs_per_sm(self.limits, registers, shared_bytes, num_warps)
        return _programs_per_compute_unit(self.limits, registers, shared_bytes, num_warps)


def _cuda(name: str, gpu: str, sms: int, shared_kib: int, threads: int) -> Architecture:
    shared = shared_kib * KIB
    blocks = BLOCKS_PER_SM[divmod(int(name.removeprefix("sm_")), 10)]
    return Architecture(
        name,
        gpu,
        Limits(sms, shared_memory=shared, threads=threads, blocks=blocks, shared_memory_per_block=shared - KIB),
    )


ARCHITECTURES = {
    arch.name: arch
    for arch in (
        _cuda("sm_80", "A100", 108, 164, 2048),
        _cuda("sm_86", "RTX 3090", 82, 100, 1536),
        _cuda("sm_90", "H100/H200", 132, 228, 2048),
        _cuda("sm_100", "B200", 148, 228, 2048),
        _cuda("sm_120", "RTX Pro 6000", 188, 100, 1536),
        Architecture(
            "gfx942",
            "MI300X",
            Limits(
                304,
                registers=512,
                shared_memory=64 * KIB,
                threads=2048,
                blocks=32,
                reserved_shared_memory=0,
                shared_memory_per_block=64 * KIB,
            ),
            "hip",
            64,
        ),
    )
}
"""gfx942's `registers` are the vector registers of a lane that one SIMD shares among its waves."""

SIMDS, WAVES_PER_SIMD, VECTOR_REGISTER_UNIT = 4, 8, 8
"""Of a compute unit of gfx942; its waves get vector registers in multiples of the unit."""


def architecture(name: str) -> Architecture:
    """The architecture called `sm_90` and the like. Raises UnsupportedProblem naming the nearest ones."""
    if name not in ARCHITECTURES:
        known = ARCHITECTURES.values()
        spelt = {word: f"{each.name} ({each.gpu})" for each in known for word in (each.name, *each.gpu.split("/"))}
        raise UnsupportedProblem(f"no architecture {name!r}; nearest: {nearest(name, spelt, shown=spelt.__getitem__)}")
    return ARCHITECTURES[name]


def parse_architectures(text: str) -> list[Architecture]:
    """Architectures from a comma-separated list, `all` for every one. Raises UnsupportedProblem."""
    names = list(ARCHITECTURES) if text.strip() == "all" else [part.strip() for part in text.split(",")]
    return [architecture(name) for name in dict.fromkeys(names)]


def _programs_per_compute_unit(limits: Limits, registers: int, shared_bytes: int, num_warps: int) -> int:
    if shared_bytes > limits.shared_memory_per_block:
        return 0
    unit = VECTOR_REGISTER_UNIT
    waves = min(WAVES_PER_SIMD, limits.registers // (-(-max(registers, 1) // unit) * unit)) * SIMDS
    by_shared = limits.shared_memory // shared_bytes if shared_bytes else limits.blocks
    return min(waves // num_warps, by_shared, limits.blocks)
