"""Barriers of a cluster that order shared memory alone.

Triton lets each CTA of a cluster arrive with release order, before it exchanges values through distributed shared
memory and again where the kernel ends. That orders whatever the CTA stored before, and `ptxas` makes it a fence for the
whole GPU, which waits until the stores of C have reached L2. Where a cluster's CTAs meet in shared memory and nowhere
else, a release of shared memory is enough: a fence restricted to it, before an arrival that orders nothing by itself.

Source: PTX ISA 8.6, `membar`/`fence` (`.sync_restrict`) and `barrier.cluster` (an arrival that is relaxed, after a
fence). Triton's hook for stages: `triton.knobs.runtime.add_stages_inspection_hook`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import triton

Kernel = TypeVar("Kernel")
ARRIVAL = "barrier.cluster.arrive.aligned;"
"""As Triton writes it; release order is PTX's default."""
RESTRICTED = "fence.release.sync_restrict::shared::cta.cluster;\n\tbarrier.cluster.arrive.relaxed.aligned;"
KEY = "cluster barriers release shared memory alone"
"""Keeps these kernels apart from others in Triton's cache."""


def release_shared_memory_alone(kernel: Kernel) -> Kernel:
    """Mark a kernel whose CTAs exchange nothing through global memory that a cluster's barrier would have to order."""
    kernel.rewrite_ptx = restricted
    return kernel


def restricted(ptx: str) -> str:
    """The code with every arrival at the cluster's barrier restricted. Raises RuntimeError where there is none."""
    if ARRIVAL not in ptx:
        raise RuntimeError(f"no {ARRIVAL!r} in the compiled kernel: Triton {triton.__version__} writes it otherwise")
    return ptx.replace(ARRIVAL, RESTRICTED)


@contextmanager
def rewriting(kernel: Any) -> Iterator[None]:
    """Compile and look up a kernel as it was marked, on this thread; others' launches meanwhile stay as they are."""
    rewrite = getattr(kernel, "rewrite_ptx", None)
    if rewrite is None:
        yield
        return
    before = triton.knobs.runtime.add_stages_inspection_hook
    triton.knobs.runtime.add_stages_inspection_hook = _hook(rewrite, before, threading.get_ident())
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = before


def _hook(rewrite: Callable[[str], str], before: Any, thread: int) -> Callable[..., tuple[str, str]]:
    """What Triton asks for a key without arguments, and to change the stages of a compilation with them."""

    def hook(*compilation: Any) -> tuple[str, str]:
        key, digest = (before(*compilation) if before else None) or ("", "")
        if threading.get_ident() != thread:
            return key, digest
        if compilation and compilation[2].num_ctas > 1:
            stages = compilation[1]
            make = stages["ptx"]
            stages["ptx"] = lambda source, metadata: rewrite(make(source, metadata))
        return key + KEY, digest + KEY

    return hook
