"""Variants with one published kind of fault each, which the explorer must catch.

A mutant is a variant's source with a few words changed, or a launcher that forgets what it must do. `control` is the
same without the fault, which must be clean. `python -m tests.mutants DIR` writes how many schedules each one took.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import variants
from common import documents, interpreter, schedules
from common.launcher import Variant
from common.machine import Rules
from common.memory_model import READINGS
from common.protocols import SHARED_BY_FOUR, SHARED_BY_THREE, SHARED_BY_TWO, TWO_TILES, Small, small_config
from common.scenario import BLOCK, Setup, build
from common.schedules import Exploration

MOST_SCHEDULES = 10_000


@dataclass(frozen=True)
class Mutant:
    """`published`: where the kind of fault was met. `edits`: old and new text, each found once. `kinds`: what is found.

    `fault` and `control` change how it is launched; the control has no edits.
    """

    name: str
    published: str
    variant: str
    kinds: frozenset[str]
    edits: tuple[tuple[str, str], ...] = ()
    small: Small = SHARED_BY_TWO
    reading: str = "triton-3.9"
    rules: dict[str, Any] = field(default_factory=dict)
    fault: Setup = field(default_factory=Setup)
    control: Setup = field(default_factory=Setup)
    control_rules: dict[str, Any] = field(default_factory=dict)
    control_small: Small | None = None

    def explore(self, schedules_wanted: int, mutated: bool, seed: int = 0) -> Exploration:
        """Random schedules until the expected kinds are found; of the control, all that are wanted."""
        v = variants.get(self.variant)
        with tempfile.TemporaryDirectory() as folder:
            v = edited(v, self.edits, Path(folder)) if mutated and self.edits else v
            small = self.small if mutated else self.control_small or self.small
            setup = replace(self.fault if mutated else self.control, guarded=False)
            scenario = build(v, small.problem, small_config(v.card, small), setup)
            rules = Rules(READINGS[self.reading], **(self.rules if mutated else self.control_rules))
            with interpreter.exploring(scenario.kernels):
                machine = scenario.machine(rules)
                return schedules.explore(
                    machine, schedules_wanted, seed, stop=lambda found: mutated and self.kinds <= found.kinds
                )

    def caught(self) -> int:
        """The number of schedules until every expected kind was found. Raises AssertionError where it was not."""
        found = self.explore(MOST_SCHEDULES, mutated=True)
        assert self.kinds <= found.kinds, f"{self.name}: {sorted(self.kinds - found.kinds)} not found"
        return max(next(e[2] for e in found.found.values() if e[0].kind == kind) for kind in self.kinds)


def edited(variant: Variant, edits: tuple[tuple[str, str], ...], folder: Path) -> Variant:
    """The variant made of the changed source. Raises AssertionError for a text that is not there exactly once."""
    source = variant.source
    for old, new in edits:
        assert source.count(old) == 1, f"{variant.name} has {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    path = folder / f"{variant.name}_mutant.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Variant(path.stem, module)


RACE, WRONG, HANG = frozenset({"race"}), frozenset({"wrong result"}), frozenset({"deadlock"})
STORE_AND_SET = """        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
        tl.atomic_xchg(locks_ptr + tile, 1)
"""
SET_AND_STORE = """        tl.atomic_xchg(locks_ptr + tile, 1)
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty))
"""
ADD = "        tl.atomic_add(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), sem=SEM)\n"
EDGE = Small((24, BLOCK, 4 * BLOCK), programs=3, peers=2)

MUTANTS = (
    Mutant(
        "flag without a barrier", "ROCm/triton#745, tritonbench#1266", "v02", RACE | WRONG, reading="triton-3.6",
        edits=(("tl.debug_barrier()", "pass"),),
    ),
    Mutant(
        "counter without a barrier", "ROCm/triton#745", "v09", RACE | WRONG, reading="source",
        edits=(("tl.debug_barrier()", "pass"),),
    ),
    Mutant("lock before the store", "ROCm/triton#745", "v06", RACE | WRONG, edits=((STORE_AND_SET, SET_AND_STORE),)),
    Mutant(
        "lock set without release", "PTX ISA, memory consistency model", "v06", RACE | WRONG,
        edits=(("tl.atomic_xchg(locks_ptr + tile, 1)", 'tl.atomic_xchg(locks_ptr + tile, 1, sem="relaxed")'),),
    ),
    Mutant(
        "lock polled without acquire", "PTX ISA, memory consistency model", "v06", RACE,
        edits=(("tl.atomic_cas(locks_ptr + tile, 1, 1)", 'tl.atomic_cas(locks_ptr + tile, 1, 1, sem="relaxed")'),),
    ),
    Mutant(
        "lock of one CTA", "PTX ISA, memory consistency model", "v06", RACE | WRONG,
        edits=(
            ("tl.atomic_xchg(locks_ptr + tile, 1)", 'tl.atomic_xchg(locks_ptr + tile, 1, scope="cta")'),
            ("tl.atomic_cas(locks_ptr + tile, 1, 1)", 'tl.atomic_cas(locks_ptr + tile, 1, 1, scope="cta")'),
        ),
    ),
    Mutant(
        "wait for a program that is not resident", "kernl, streamk-old", "v06", HANG, small=SHARED_BY_FOUR,
        rules={"residents": 3}, control_rules={"residents": 4},
    ),
    Mutant(
        "more programs than resident, dispatched in another order", "CUDA promises no order", "v08", HANG,
        rules={"residents": 2, "dispatch": "any"}, control_rules={"residents": 2},
    ),
    Mutant(
        "lock never set", "a wait without a signal", "v05", HANG,
        edits=(("tl.atomic_xchg(locks_ptr + tile, 2)", "pass"),),
    ),
    Mutant(
        "lock reset that a neighbour still waits for", "a reset in the kernel", "v06", HANG, small=SHARED_BY_THREE,
        edits=((ADD, ADD + "        tl.atomic_xchg(locks_ptr + tile, 0)\n"),),
    ),
    Mutant(
        "locks left set for the next launch", "a lock that is set once", "v06", RACE | WRONG, small=TWO_TILES,
        fault=Setup(launches=2, setting="first"), control=Setup(launches=2),
    ),
    Mutant(
        "counter left for the next launch", "a counter that is not reset", "v09", WRONG, small=TWO_TILES,
        edits=(("tl.store(counters_ptr + tile, 0)", "pass"),),
        fault=Setup(launches=2), control=Setup(launches=2),
    ),
    Mutant(
        "C zeroed outside the graph", "a replay without its memset", "v04", WRONG, small=TWO_TILES,
        fault=Setup(launches=2, setting="first"), control=Setup(launches=2),
    ),
    Mutant(
        "C not zeroed", "an accumulation into what was there", "v04", frozenset({"uninitialised", "wrong result"}),
        fault=Setup(zero_output=False),
    ),
    Mutant(
        "locks shared by two streams", "a workspace cached by shape", "v06", RACE | WRONG, small=TWO_TILES,
        fault=Setup(streams=2, shared_workspace=True), control=Setup(streams=2),
    ),
    Mutant(
        "partial sums shared by two streams", "a workspace cached by shape", "v02", RACE | WRONG, small=TWO_TILES,
        fault=Setup(streams=2, shared_workspace=True), control=Setup(streams=2),
    ),
    Mutant(
        "edge row added twice", "wrapped rows with an atomic add", "v04", WRONG, small=EDGE, control_small=TWO_TILES,
    ),
    Mutant(
        "one iteration twice, another not at all", "right by luck where all inputs are alike", "v04", WRONG,
        edits=(("ks = (start % iters_per_tile) * BLOCK_K + tl", "ks = start * 0 + tl"),),
    ),
)  # fmt: skip


def main(folder: Path) -> None:
    """Catch every mutant and write how many schedules it took."""
    records = []
    for mutant in MUTANTS:
        records.append(
            {
                "mutant": mutant.name,
                "published": mutant.published,
                "variant": variants.get(mutant.variant).name,
                "reading": mutant.reading,
                "found": sorted(mutant.kinds),
                "schedules": mutant.caught(),
            }
        )
        print(records[-1])
    print(documents.write(folder, "mutants", documents.header(), records))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
