"""Barriers of a cluster that order shared memory alone.

Triton lets each CTA of a cluster arrive with release order, before it reads values from the others' shared memory,
before it writes others in their place, and where the kernel ends. That orders whatever the CTA did before, and `ptxas`
makes it a fence for the whole GPU, which waits until the stores of C have reached L2. Where a cluster's CTAs meet in
shared memory and nowhere else, less is enough: a fence that is restricted to what a CTA holds in its own shared memory,
before an arrival that orders nothing by itself. The wait stays an acquire.

The fence does not order reads of the others' memory: these may be on their way when the CTA arrives, and find what the
others write next. After such reads an arrival stays as it is, but for the last. No write follows that one, and what was
read is an operand of the stores of C, which Triton puts before it without a branch: no warp gets there before the
values that it has read are in registers. PTX does not promise that order; a test finds it in the machine code.

Source: PTX ISA 8.6, `membar`/`fence` (`.sync_restrict`) and `barrier.cluster` (an arrival that is relaxed, after a
fence). Triton's hook for stages: `triton.knobs.runtime.add_stages_inspection_hook`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import triton

from common.errors import UnsupportedTriton

Kernel = TypeVar("Kernel")
ARRIVAL = "barrier.cluster.arrive.aligned;"
"""As Triton writes it; release order is PTX's default."""
RESTRICTED = "fence.release.sync_restrict::shared::cta.cluster;\n\tbarrier.cluster.arrive.relaxed.aligned;"
READ = "ld.shared::cluster"
"""How a value comes from another CTA's shared memory."""
WRITE = re.compile(r"\b(?:st|red|atom|mbarrier)\.\S*shared::cluster|multicast::cluster")
"""How a CTA would write to another's shared memory, which the restricted fence does not order."""
KEY = f"cluster barriers by {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}"
"""Keeps these kernels apart in Triton's cache: from others, and from those of another version of this file."""


def release_shared_memory_alone(kernel: Kernel) -> Kernel:
    """Mark a kernel whose CTAs exchange nothing through global memory that a cluster's barrier would have to order."""
    kernel.rewrite_ptx = restricted
    return kernel


def restricted(ptx: str) -> str:
    """The code with the arrivals at the cluster's barrier restricted that need not order reads.

    Raises UnsupportedTriton where there is none, where the last one cannot be found, and where CTAs write to each
    other's memory.
    """
    lines = ptx.split("\n")
    arrivals = [at for at, line in enumerate(lines) if ARRIVAL in line]
    ends = [at for at, line in enumerate(lines) if line.strip() == "ret;"]
    before_end = [at for at in arrivals if ends and at < ends[0]]
    if not before_end or WRITE.search(ptx):
        what = f"no {ARRIVAL!r}" if not before_end else f"{WRITE.search(ptx)[0]!r}"
        raise UnsupportedTriton(f"{what} in the compiled kernel: Triton {triton.__version__} writes it otherwise")
    since = 0
    for at in arrivals:
        if at == before_end[-1] or not any(READ in line for line in lines[since:at]):
            lines[at] = lines[at].replace(ARRIVAL, RESTRICTED)
        since = at
    return "\n".join(lines)


class _Asked(threading.local):
    """How the kernel that a thread is launching is to be rewritten."""

    rewrite: Callable[[str], str] | None = None


class _Installed:
    """Triton has one hook for all threads: ours is there while any of them is within, and serves each its own way."""

    def __init__(self) -> None:
        self.lock, self.within, self.before, self.mine = threading.Lock(), 0, None, None

    def __enter__(self) -> None:
        with self.lock:
            self.within += 1
            if self.within == 1:
                self.before = triton.knobs.runtime.add_stages_inspection_hook
                self.mine = triton.knobs.runtime.add_stages_inspection_hook = partial(_hook, self.before)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.within -= 1
            # Whoever has put theirs in the place of ours meanwhile keeps it.
            if self.within == 0 and triton.knobs.runtime.add_stages_inspection_hook is self.mine:
                triton.knobs.runtime.add_stages_inspection_hook = self.before


_asked, _installed = _Asked(), _Installed()


@contextmanager
def rewriting(kernel: Any) -> Iterator[None]:
    """Compile and look up a kernel as it was marked, on this thread; others' launches meanwhile stay as they are."""
    rewrite = getattr(kernel, "rewrite_ptx", None)
    if rewrite is None:
        yield
        return
    with _installed:
        outer, _asked.rewrite = _asked.rewrite, rewrite
        try:
            yield
        finally:
            _asked.rewrite = outer


def _hook(before: Any, *compilation: Any) -> tuple[str, str]:
    """What Triton asks for a key without arguments, and to change the stages of a compilation with them."""
    key, digest = (before(*compilation) if before else None) or ("", "")
    rewrite = _asked.rewrite
    if rewrite is None:
        return key, digest
    if compilation and compilation[2].num_ctas > 1:
        stages = compilation[1]
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: rewrite(make(source, metadata))
    return key + KEY, digest + KEY
