"""Barriers of a cluster that order shared memory alone.

Triton lets each CTA of a cluster arrive with release order, before it reads values from the others' shared memory,
before it writes others in their place, and where the kernel ends. That orders whatever the CTA did before, and `ptxas`
makes it a fence for the whole GPU, which waits until the stores of C have reached L2. Where a cluster's CTAs meet in
shared memory and nowhere else, less is enough: a fence that is restricted to what a CTA holds in its own shared memory,
before an arrival that orders nothing by itself.

It does not order reads of the others' memory: these may be on their way when the CTA arrives, and find what the others
write next. After such reads an arrival stays as it is, but for the last, where values read have been added and stored.

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
READ = "ld.shared::cluster"
"""How a value comes from another CTA's shared memory."""
KEY = "cluster barriers release shared memory alone, but after reads"
"""Keeps these kernels apart from others in Triton's cache."""


def release_shared_memory_alone(kernel: Kernel) -> Kernel:
    """Mark a kernel whose CTAs exchange nothing through global memory that a cluster's barrier would have to order."""
    kernel.rewrite_ptx = restricted
    return kernel


def restricted(ptx: str) -> str:
    """The code with the arrivals at the cluster's barrier restricted that need not order reads.

    Raises RuntimeError where there is none, or no end to find the last one by.
    """
    lines = ptx.split("\n")
    arrivals = [at for at, line in enumerate(lines) if ARRIVAL in line]
    ends = [at for at, line in enumerate(lines) if line.strip() == "ret;"]
    before_end = [at for at in arrivals if ends and at < ends[0]]
    if not before_end:
        raise RuntimeError(f"no {ARRIVAL!r} in the compiled kernel: Triton {triton.__version__} writes it otherwise")
    since = 0
    for at in arrivals:
        if at == before_end[-1] or not any(READ in line for line in lines[since:at]):
            lines[at] = lines[at].replace(ARRIVAL, RESTRICTED)
        since = at
    return "\n".join(lines)


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
