"""What is explored: launches of a variant on small inputs that show which MAC iterations went into which tile.

The inputs give each MAC iteration of each tile rows of its own: with n iterations a tile, row r of a tile is made by
iteration r mod n alone, and holds numbers that no other tile's iteration gives. So the output says for every iteration
whether it was added once, twice, not at all, or for another tile or launch, also where the sum would be right by luck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from common.card import Card, Config
from common.continuations import Buffer
from common.errors import UnsupportedProblem
from common.launcher import INTERPRETER_SMS, Launch, Prepared, Variant, plan, prepare
from common.machine import Check, Fill, Kernel, Machine, Rules, Stream
from common.problem import Problem, make_inputs

BLOCK = 16
"""The smallest block of Triton's dot; every dimension of an explored tile."""
MOST_BLOCKS = BLOCK
"""Blocks of each dimension, at most: more rows of tiles or iterations could not be told apart in what C holds."""
MOST_PROGRAMS = 1024
"""Programs of all launches together, at most: a state holds what each of them knows of each other."""


@dataclass(frozen=True)
class Setup:
    """How a variant is launched in a scenario.

    `launches` in a row on one stream, or one on each of `streams`. `inputs`: "traced" to see each iteration's
    contribution, "normal" to see rounding. `setting`: the launcher sets C and workspace at every launch, as it does, or
    only before the first, or not at all, as faulty launchers do. `shared_workspace`: streams use the same locks.
    `zero_output`: setting includes C where the card asks for it. `guarded`: keep the launcher's guards;
    `strict_residency`: they refuse what relies on the order of dispatch.
    """

    launches: int = 1
    streams: int = 1
    inputs: Literal["traced", "normal"] = "traced"
    setting: Literal["always", "first", "never"] = "always"
    shared_workspace: bool = False
    zero_output: bool = True
    guarded: bool = True
    strict_residency: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.strict_residency and not self.guarded:
            raise UnsupportedProblem("strict residency is a guard: not together with leaving the guards out")


DEFAULT = Setup()


@dataclass
class Scenario:
    """Streams and the memory that they work on; `tensors` keeps that memory alive."""

    streams: list[Stream]
    buffers: list[Buffer]
    prepared: list[Prepared]
    tensors: list[torch.Tensor] = field(default_factory=list)

    def machine(self, rules: Rules) -> Machine:
        """A machine at its start. To be used inside `interpreter.exploring(scenario.kernels)`."""
        return Machine(self.streams, self.buffers, rules)

    @property
    def kernels(self) -> list[object]:
        return [item.call.kernel for stream in self.streams for item in stream if isinstance(item, Kernel)]


def explorable(card: Card) -> bool:
    """Whether the kernels are Triton's: a library has none, and Gluon has no interpreter."""
    return bool(card.kernels) and card.language == "triton"


def why_not(card: Card) -> str:
    """Why a variant is not explored itself, from its card; an empty text where it is."""
    if explorable(card):
        return ""
    if not card.kernels:
        return "a library, whose kernels cannot be interpreted"
    if card.twin:
        return f"no kernel that can be interpreted: its fix-up is that of {card.twin}, which stands for it"
    if card.decomposition == "cluster_ranges" and not card.workspace and not card.zeroed_output:
        inside = "what the CTAs of a cluster do to each other is not explored"
        return f"no protocol between programs in global memory: {card.fix_up} ({inside})"
    return "no kernel that can be interpreted, and no twin: its protocol is not explored"


def traced_inputs(m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """A, B in float16 and what C should hold: in each row of a tile what one iteration adds, 1 to 9 in every column."""
    iterations = -(-k // BLOCK)
    generator = np.random.default_rng(seed)
    a, b = np.zeros((m, k), dtype=np.float16), generator.integers(1, 10, (k, n)).astype(np.float16)
    rows = np.arange(m)
    # Which of an iteration's columns tells the tile's row of tiles.
    a[rows, np.minimum(rows % BLOCK % iterations * BLOCK + rows // BLOCK % BLOCK, k - 1)] = 1
    return torch.from_numpy(a), torch.from_numpy(b), a.astype(np.float64) @ b.astype(np.float64)


def missing_and_double(expected: np.ndarray, iterations: int, launch: str = "") -> Callable[[np.ndarray], str]:
    """A function that says of a flat C which iterations of which tiles are not there exactly once."""

    def describe(found: np.ndarray) -> str:
        if np.array_equal(found.astype(np.float64), expected.ravel()):
            return ""
        c, texts = found.astype(np.float64).reshape(expected.shape), []
        for row, column in np.argwhere(c != expected):
            value, wanted = c[row, column], expected[row, column]
            tile, iteration = (int(row) // BLOCK, int(column) // BLOCK), int(row) % BLOCK % iterations
            times = value / wanted if wanted else np.nan
            how = {0.0: "is missing", 2.0: "was added twice", 3.0: "was added three times"}.get(times)
            text = f"tile {tile}: iteration {iteration} {how}" if how else f"tile {tile}: foreign or partial values"
            if text not in texts:
                texts.append(text)
        return launch + "; ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")

    return describe


def build(
    variant: Variant,
    problem: tuple[int, int, int],
    config: Config,
    setup: Setup = DEFAULT,
    residents: int | None = None,
) -> Scenario:
    """Launches of a variant on a problem (M, N, K) with blocks of 16; nothing is run.

    `residents`: what the launcher's guard is told of the programs that run at once. Raises UnsupportedProblem and
    NotCoResident as the launcher does if `setup.guarded`, and UnsupportedProblem for what is too large to explore.
    """
    _check_size(variant, problem, config, setup)
    scenario = Scenario([[] for _ in range(setup.streams)], [], [])
    config = config.replace(block=(BLOCK, BLOCK, BLOCK))
    first: Launch | None = None
    for number in range(setup.launches * setup.streams):
        several = setup.launches * setup.streams > 1
        a, b, check = _inputs(problem, setup, number, f"launch {number + 1}: " if several else "")
        share_output = first is not None and setup.streams == 1
        out = first.c if share_output else torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype)
        if setup.guarded:
            strict = setup.strict_residency
            prepared = prepare(variant, a, b, out, config, max_programs=residents, strict_residency=strict)
        else:
            schedule = plan(variant.card, *problem, config, INTERPRETER_SMS)
            prepared = Prepared(variant, a, b, out, schedule, config.replace(programs=schedule.programs))
        task = prepared.task()
        if first is not None and (setup.streams == 1 or setup.shared_workspace):
            for name in ("locks", "partials", "flags", "counters"):
                setattr(task, name, getattr(first, name))
        _add(scenario, scenario.streams[number % setup.streams], variant, task, check, setup, number, several)
        scenario.prepared.append(prepared)
        _check_programs(sum(item.call.programs for s in scenario.streams for item in s if isinstance(item, Kernel)))
        first = first or task
    return scenario


def _check_size(variant: Variant, problem: tuple[int, int, int], config: Config, setup: Setup) -> None:
    """Raise UnsupportedProblem for a variant without a kernel to explore, and for what is empty or too large."""
    if why := why_not(variant.card):
        raise UnsupportedProblem(f"{variant.name} cannot be explored: {why}")
    if (config.programs or 0) < 0 or (config.split or 1) < 1:
        raise UnsupportedProblem(
            f"programs={config.programs}, split={config.split}: 0 programs or more, 1 part or more"
        )
    if min(*problem, setup.launches, setup.streams) < 1:
        raise UnsupportedProblem(
            f"problem {problem}, {setup.launches} launches on {setup.streams} streams: each is at least 1"
        )
    for name, size, what in zip("MNK", problem, ("rows of tiles", "columns of tiles", "iterations"), strict=True):
        if size > MOST_BLOCKS * BLOCK:
            raise UnsupportedProblem(
                f"{name}={size}: at most {MOST_BLOCKS} {what} of {BLOCK} are explored, {name}={MOST_BLOCKS * BLOCK}"
            )
    _check_programs(max(config.programs or 0, setup.launches * setup.streams))


def _check_programs(programs: int) -> None:
    if programs > MOST_PROGRAMS:
        raise UnsupportedProblem(f"{programs} programs: at most {MOST_PROGRAMS} are explored, of all launches together")


def _inputs(
    problem: tuple[int, int, int], setup: Setup, number: int, launch: str
) -> tuple[torch.Tensor, torch.Tensor, Callable[[np.ndarray], str]]:
    if setup.inputs == "normal":
        a, b = make_inputs(Problem(*problem), seed=setup.seed + number)
        return a, b, lambda found: "" if np.isfinite(found).all() else f"{launch}C holds NaN or Inf"
    a, b, expected = traced_inputs(*problem, seed=setup.seed + number)
    return a, b, missing_and_double(expected, -(-problem[2] // BLOCK), launch)


def _add(
    scenario: Scenario,
    stream: Stream,
    variant: Variant,
    task: Launch,
    check: Callable[[np.ndarray], str],
    setup: Setup,
    number: int,
    several: bool,
) -> None:
    """Put one launch at a stream's end: fills, kernels, check."""
    fresh = len(scenario.buffers)
    names = {name: getattr(task, name) for name in ("a", "b", "c", "locks", "flags", "partials", "counters")}
    buffers = {name: _buffer(scenario, name, t, name not in "ab") for name, t in names.items() if t is not None}
    sets = setup.setting == "always" or (setup.setting == "first" and number == 0)
    for name in ("locks", "flags") if sets else ():
        if name in buffers:
            stream.append(Fill(buffers[name], np.zeros_like(buffers[name].data)))
    # Counters are set once, when they are allocated: every launch leaves them as it found them.
    if sets and buffers.get("counters") in scenario.buffers[fresh:]:
        stream.append(Fill(buffers["counters"], np.zeros_like(buffers["counters"].data)))
    if sets and variant.card.zeroed_output and setup.zero_output and task.schedule.sk_tiles:
        stream.append(Fill(buffers["c"], np.zeros_like(buffers["c"].data)))
    variant.launch(task)
    stream += [Kernel(call, f"launch {number + 1}" if several else "") for call in task.calls]
    stream.append(Check(buffers["c"], check))


def _buffer(scenario: Scenario, name: str, tensor: torch.Tensor, shared: bool) -> Buffer:
    for known in scenario.buffers:
        if known.address == tensor.data_ptr():
            return known
    scenario.tensors.append(tensor)
    data = tensor.detach().reshape(-1).numpy().copy()
    if shared:
        # Nobody has set it: what happens to be there must not look like a lock's or a sum's first value.
        data[:] = np.nan if data.dtype.kind == "f" else 0x5A5A5A
    taken = sum(b.name.split("#")[0] == name for b in scenario.buffers)
    buffer = Buffer(name if not taken else f"{name}#{taken + 1}", tensor.data_ptr(), data, shared)
    scenario.buffers.append(buffer)
    return buffer
