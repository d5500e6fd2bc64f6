"""Small kernels whose races, deadlocks and orders are known, for the tests of the explorer.

`data` and `flags` are shared; program 0 sends what program 1 receives unless said otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def message(
    data, flags, received, BARRIER: tl.constexpr, SEND: tl.constexpr, RECEIVE: tl.constexpr, SCOPE: tl.constexpr
):
    """Program 0 stores a tensor and raises a flag; program 1 waits for the flag and copies the tensor."""
    lanes = tl.arange(0, 16)
    if tl.program_id(0) == 0:
        tl.store(data + lanes, lanes + 1)
        if BARRIER:
            tl.debug_barrier()
        tl.atomic_xchg(flags, 1, sem=SEND, scope=SCOPE)
    else:
        while tl.atomic_cas(flags, 1, 1, sem=RECEIVE, scope=SCOPE) != 1:
            pass
        tl.store(received + lanes, tl.load(data + lanes))


@triton.jit
def crossed(flags):
    """Each of two programs waits for the other's flag before it raises its own."""
    me = tl.program_id(0)
    while tl.atomic_cas(flags + 1 - me, 1, 1) != 1:
        pass
    tl.atomic_xchg(flags + me, 1)


@triton.jit
def lost_update(data):
    """Each program adds 1 by a load and a store."""
    tl.store(data, tl.load(data) + 1)


@triton.jit
def counted(data):
    """Each program adds 1, twice, atomically; nobody looks at the results."""
    tl.atomic_add(data, 1, sem="relaxed")
    tl.atomic_add(data, 1, sem="relaxed")


@triton.jit
def tickets(data, places):
    """Each program takes a number and writes its own into the place of that number."""
    ticket = tl.atomic_add(data, 1)
    tl.store(places + ticket, tl.program_id(0) + 1)


@triton.jit
def late_look(data, places):
    """Looks at a first atomic's result only after a second one."""
    first = tl.atomic_add(data, 1)
    tl.atomic_add(data + 1, 1)
    tl.store(places + tl.program_id(0), first)


@triton.jit
def bounded_wait(flags, places):
    """Waits for a flag at most three times; program 1 raises it."""
    if tl.program_id(0) == 1:
        tl.atomic_xchg(flags, 1)
    else:
        seen = 0
        for _ in range(3):
            seen = tl.maximum(seen, tl.atomic_cas(flags, 1, 1))
        tl.store(places, seen)


@triton.jit
def polled_with_barrier(flags, places):
    """A polling loop of two accesses: a volatile load and a barrier."""
    if tl.program_id(0) == 0:
        while tl.load(flags, volatile=True) == 0:
            tl.debug_barrier()
        tl.store(places, 1)
    else:
        tl.store(flags, 1)


@triton.jit
def beyond(data):
    """Stores one element past the end."""
    tl.store(data + tl.arange(0, 16) + 1, 0)


@triton.jit
def doubled(data):
    """One tensor atomic that meets each of eight elements twice."""
    lanes = tl.arange(0, 16)
    tl.atomic_add(data + lanes % 8, lanes + 1)
