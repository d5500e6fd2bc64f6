"""How many programs of a compiled kernel a GPU holds at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor (SM) offers. Bytes of shared memory; 32-bit registers; threads."""

    sms: int
    registers: int = 65536
    shared_memory: int = 233472
    threads: int = 2048
    blocks: int = 32
    reserved_shared_memory: int = 1024
    shared_memory_per_block: int = 232448


REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this (CUDA occupancy calculator, compute capability 7.0 and later)."""
WARPS_UNIT = 4
"""Warps are placed on the four partitions of an SM in turn."""
SHARED_UNIT = 128

IDLE_SMS = {1: 0, 2: 0, 4: 8, 8: 12}
"""SMs that are left over when as many clusters of so many CTAs as fit are running: a cluster does not span GPCs.

Seen on an H200 (132 SMs, one CTA an SM) in runs of matmul_training: times double from 32 clusters of 4 and from 16
clusters of 8 on, not at the 33 and 16 that fill the SMs.
"""
BLOCKS_PER_SM = {(7, 5): 16, (8, 0): 32, (8, 6): 16, (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32, (12, 0): 24}
"""Largest number of resident blocks an SM, by compute capability (CUDA C++ Programming Guide, technical table)."""
LEAST_BLOCKS_PER_SM = 16
"""For a capability that the table lacks: a number too high would admit a launch that hangs."""


def clusters(sms: int, ctas: int) -> int:
    """Clusters of so many CTAs, one CTA an SM, that may be counted on to run at once; 1 on the smallest GPU.

    How many larger ones fit depends on which SMs of a GPC a unit lacks: of clusters of 4, one H200 ran 31 at once,
    another fewer than that, and one that starts late doubles the time. An eighth of the SMs is kept back for it.
    """
    return max(1, (sms if ctas <= 2 else sms * 7 // 8) // ctas)


def device_limits(device: int | torch.device | None = None) -> Limits:
    """The limits of a CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    return Limits(
        sms=properties.multi_processor_count,
        registers=properties.regs_per_multiprocessor,
        shared_memory=properties.shared_memory_per_multiprocessor,
        threads=properties.max_threads_per_multi_processor,
        blocks=BLOCKS_PER_SM.get(capability, LEAST_BLOCKS_PER_SM),
        reserved_shared_memory=1024 if capability >= (8, 0) else 0,
        shared_memory_per_block=properties.shared_memory_per_block_optin,
    )


def programs_per_sm(limits: Limits, registers: int, shared_memory: int, num_warps: int) -> int:
    """Programs of a kernel that fit on one SM; 0 when one alone does not fit.

    `registers`: of a thread. `shared_memory`: bytes of a program, static and dynamic.
    """
    threads = num_warps * 32
    shared = -(-shared_memory // SHARED_UNIT) * SHARED_UNIT + limits.reserved_shared_memory
    by_shared = limits.shared_memory // shared if shared else limits.blocks
    by_registers = limits.blocks
    if registers:
        a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        warps = limits.registers // WARPS_UNIT // a_warp * WARPS_UNIT
        by_registers = warps // num_warps
    if shared_memory > limits.shared_memory_per_block:
        return 0
    return min(by_shared, by_registers, limits.threads // threads, limits.blocks)
