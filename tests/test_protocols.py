"""What the explorer says of the zoo: mutants are caught, cards and guards agree with it, no alarm is false."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import triton
from packaging.version import Version
from typer.testing import CliRunner

import variants
from common import documents, interpreter, protocols, schedules
from common.defects import REPAIRS, Explanation
from common.errors import NotCoResident, ProtocolFault, UnsupportedProblem
from common.exploration import Request, explore_variant, replay_variant
from common.launcher import Variant, prepare
from common.machine import Machine, Rules
from common.memory_model import READINGS
from common.problem import Problem, make_inputs
from common.protocols import (
    MOST_STATES,
    SHARED_BY_FOUR,
    SHARED_BY_TWO,
    TWO_KERNELS,
    TWO_TILES,
    Properties,
    Small,
    small_config,
)
from common.scenario import BLOCK, Setup, build, explorable, why_not
from figures import protocol_table
from tests.mutants import MOST_SCHEDULES, MUTANTS, SET_AND_STORE, STORE_AND_SET, Mutant, edited
from variants import commands, exploring

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, not interpreted")
EXPLORABLE = [name for name in variants.all_names() if explorable(variants.get(name).card)]
SEVEN_TILES = Small((7 * BLOCK, BLOCK, 2 * BLOCK), programs=3, peers=2)
"""Four shared or whole Stream-K tiles on 3 programs, and three tiles that have a program each."""
LAST_WAITS_FOR_ALL = ["v06", "v07", "v08"]


def machine_of(name: str, small: Small, rules: Rules, setup: Setup = Setup()) -> tuple[Machine, list[Any]]:  # noqa: B008
    v = variants.get(name)
    scenario = build(v, small.problem, small_config(v.card, small), setup)
    return scenario.machine(rules), scenario.kernels


# Mutants


@interpreted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_and_its_control_is_clean(mutant: Mutant) -> None:
    assert mutant.caught() <= MOST_SCHEDULES
    control = mutant.explore(100, mutated=False)
    assert control.schedules == 100
    assert control.findings == []


def test_every_mutant_has_a_committed_number_of_schedules() -> None:
    found = documents.newest(RESULTS, "mutants")
    assert found is not None
    assert [record["mutant"] for record in found.records] == [mutant.name for mutant in MUTANTS]
    assert all(1 <= record["schedules"] <= MOST_SCHEDULES for record in found.records)


# Cards


def test_every_card_says_what_the_committed_exploration_found() -> None:
    found = documents.newest(RESULTS, "protocols")
    assert found is not None
    assert [record["variant"] for record in found.records] == EXPLORABLE
    for record in found.records:
        v = variants.get(record["variant"])
        again = 'make explore EXPLORE_ARGS="--out experiments/results --changed", then make table'
        assert record["kernel_hash"] == protocols.kernel_hash(v), f"{v.name} has changed: {again}"
        assert protocols.disagreements(v.card, Properties.of(record)) == record["disagreements"] == []


@interpreted
@pytest.mark.parametrize("name", ["v04", "v06"])
def test_exploring_again_finds_what_was_committed(name: str) -> None:
    v = variants.get(name)
    again = protocols.examine(v, schedules_each=60)
    committed = documents.newest(RESULTS, "protocols").select(variant=v.name)[0]
    counted = {"schedules": 0, "states": 0, "triton": ""}
    assert replace(again, **counted) == replace(Properties.of(committed), **counted)


def test_a_card_that_says_something_else_is_told() -> None:
    record = documents.newest(RESULTS, "protocols").select(variant="v06_two_state_lock")[0]
    properties = Properties.of(record)
    card = variants.get("v06").card
    for changes, word in [
        ({"waits_for": "lower"}, "waits for"),
        ({"waits_for": "none"}, "needs co-residency"),
        ({"zeroed_output": True}, "C must be zeroed"),
        ({"defects": ()}, "races in source"),
        ({"lock_lifetime": "left at 2"}, "value that locks are left at"),
    ]:
        assert any(word in line for line in protocols.disagreements(replace(card, **changes), properties))


@interpreted
@pytest.mark.parametrize("name", ["v04", "data_parallel"])
def test_no_alarm_on_a_variant_without_locks(name: str) -> None:
    machine, kernels = machine_of(name, SEVEN_TILES, Rules(READINGS["source"]))
    assert len(kernels) == (2 if name == "v04" else 1)
    with interpreter.exploring(kernels):
        found = schedules.explore(machine, 2000, seed=1_000_000)
    assert found.schedules == 2000 and found.findings == []
    assert found.distinct > 1900


@pytest.mark.parametrize("name", protocol_table.LONG_RUNS)
def test_the_committed_long_runs_are_of_many_distinct_schedules(name: str) -> None:
    (report,) = documents.newest(RESULTS, f"explored_{name}").records
    assert report["schedules"] == 100_000 and report["distinct"] > 90_000 and report["findings"] == []
    assert report["problem"] == list(SEVEN_TILES.problem) and report["programs"] == SEVEN_TILES.programs


@interpreted
def test_a_thousand_schedules_take_less_than_a_minute() -> None:
    machine, kernels = machine_of("v06", SHARED_BY_TWO, Rules(READINGS["source"]))
    began = time.perf_counter()
    with interpreter.exploring(kernels):
        assert schedules.explore(machine, 1000).schedules == 1000
    assert time.perf_counter() - began < 60


# The guard


def small_problems() -> list[Small]:
    return [
        Small((BLOCK * tiles, BLOCK, BLOCK * iterations), programs, programs)
        for tiles in (1, 2)
        for iterations in (1, 2, 3)
        for programs in (1, 2, 3, 4)
    ]


def refused(name: str, small: Small, residents: int) -> tuple[bool, int]:
    """Whether the launcher's guard refuses the problem where so many programs are resident; its most peers."""
    v = variants.get(name)
    a, b = make_inputs(Problem(*small.problem))
    config = small_config(v.card, small).replace(block=(BLOCK, BLOCK, BLOCK))
    peers = prepare(v, a, b, config=config).schedule.max_peers
    try:
        prepare(v, a, b, config=config, max_programs=residents)
    except NotCoResident as error:
        assert f"{peers} programs share a tile" in str(error) and f"{residents} programs are resident" in str(error)
        return True, peers
    return False, peers


def hangs(machine: Machine, residents: int, dispatch: Literal["ascending", "any"] = "ascending") -> bool:
    machine.rules = Rules(READINGS["source"], residents, dispatch, late_stores=False, races=False)
    found = schedules.exhaust(machine, MOST_STATES, stop=lambda found: "deadlock" in found.kinds)
    assert found.complete or "deadlock" in found.kinds
    return "deadlock" in found.kinds


@interpreted
@pytest.mark.parametrize("name", [*LAST_WAITS_FOR_ALL, "v02", "v05"])
def test_the_guard_refuses_exactly_what_can_hang(name: str) -> None:
    seen = set()
    for small in small_problems():
        machine, kernels = machine_of(name, small, Rules(READINGS["source"], late_stores=False, races=False))
        with interpreter.exploring(kernels):
            for residents in range(1, small.programs + 1):
                hung, (no, peers) = hangs(machine, residents), refused(name, small, residents)
                if name == "v02":
                    # Its owner waits for one peer after the other, and none of them waits before its signal.
                    assert hung == (residents == 1 and peers > 1), (small, residents)
                    assert no >= hung
                elif name == "v05":
                    assert not hung and not no
                else:
                    assert hung == no == (peers > residents), (small, residents)
                seen.add((hung, no))
    assert seen == {"v02": {(False, False), (True, True), (False, True)}, "v05": {(False, False)}}.get(
        name, {(False, False), (True, True)}
    )


@interpreted
@pytest.mark.parametrize(("residents", "hung"), [(4, False), (3, True)])
def test_in_another_order_of_dispatch_every_program_must_be_resident(residents: int, hung: bool) -> None:
    rules = Rules(READINGS["source"], residents, "any", late_stores=False, races=False)
    machine, kernels = machine_of("v06", SHARED_BY_FOUR, rules)
    with interpreter.exploring(kernels):
        assert ("deadlock" in schedules.exhaust(machine).kinds) == hung


@interpreted
@pytest.mark.parametrize("name", ["v02", "v06"])
def test_strict_residency_refuses_whatever_can_hang_in_any_order(name: str) -> None:
    v, seen = variants.get(name), set()
    for small in [small for small in small_problems() if small.programs < 4] + [SHARED_BY_TWO]:
        a, b = make_inputs(Problem(*small.problem))
        config = small_config(v.card, small).replace(block=(BLOCK, BLOCK, BLOCK))
        machine, kernels = machine_of(name, small, Rules(READINGS["source"]))
        with interpreter.exploring(kernels):
            for residents in range(1, small.programs + 1):
                try:
                    prepare(v, a, b, config=config, max_programs=residents, strict_residency=True)
                    refused_strictly = False
                except NotCoResident:
                    refused_strictly = True
                hung = hangs(machine, residents, "any")
                assert refused_strictly >= hung, (small, residents)
                seen.add((hung, refused(name, small, residents)[0], refused_strictly))
    # Nothing is refused, a hang that both refuse, and one that the guard alone admits.
    assert seen >= {(False, False, False), (True, True, True), (True, False, True)}


# The explorer itself, on real kernels


@interpreted
@pytest.mark.parametrize("name", ["v02", "v05", "v07"])
def test_remembered_programs_do_what_fresh_ones_do(name: str) -> None:
    rules = Rules(READINGS["source"])
    shared, kernels = machine_of(name, SHARED_BY_TWO, rules)
    with interpreter.exploring(kernels):
        schedules.explore(shared, 100)
        before = shared.interpreter_runs
        for seed in (3, 77):
            known = schedules.run(shared, lambda seed=seed: schedules.random_chooser(seed))
            fresh_machine, _ = machine_of(name, SHARED_BY_TWO, rules)
            fresh = schedules.run(fresh_machine, lambda seed=seed: schedules.random_chooser(seed))
            assert known.actions == fresh.actions
            assert {(f.kind, f.places) for f in known.findings} == {(f.kind, f.places) for f in fresh.findings}
        assert shared.interpreter_runs == before


@interpreted
@pytest.mark.parametrize(("name", "small"), [("v04", SHARED_BY_TWO), ("v08", SHARED_BY_FOUR), ("v09", TWO_KERNELS)])
def test_one_program_after_the_other_gives_the_interpreters_own_bits(name: str, small: Small) -> None:
    v = variants.get(name)
    setup = Setup(inputs="normal", seed=11)
    machine, kernels = machine_of(name, small, Rules(READINGS["source"], dispatch="any", late_stores=False), setup)
    descending = v.card.waits_for == "higher"

    def choose(actions: list[Any]) -> Any:
        return max(actions) if descending else min(actions)

    with interpreter.exploring(kernels):
        outcome = schedules.run(machine, lambda: choose)
        state = machine.start()
        for action in outcome.actions:
            machine.act(state, action)
        found = machine.division.content(next(b for b in machine.buffers if b.name == "c"), state.values)
    a, b = make_inputs(Problem(*small.problem), seed=11)
    config = small_config(v.card, small).replace(block=(BLOCK, BLOCK, BLOCK))
    wanted = v.matmul(a, b, **{f: getattr(config, f) for f in ("programs", "split", "block", "order")})
    assert np.array_equal(found.view(np.uint16), wanted.numpy().ravel().view(np.uint16))


@interpreted
def test_v03_reads_outside_from_the_third_tile_on() -> None:
    small = Small((2 * BLOCK, 5 * BLOCK, 3 * BLOCK), programs=6, peers=2)
    with pytest.raises(UnsupportedProblem, match="spans 3 tiles"):
        machine_of("v03", small, Rules(READINGS["source"]))
    machine, kernels = machine_of("v03", small, Rules(READINGS["source"]), Setup(guarded=False))
    with interpreter.exploring(kernels):
        assert schedules.explore(machine, 3).kinds & {"out of bounds", "wrong result"}


def test_a_kernel_that_cannot_be_interpreted_names_its_twin() -> None:
    with pytest.raises(UnsupportedProblem, match="its fix-up is that of v09"):
        machine_of("v10", SHARED_BY_TWO, Rules(READINGS["source"]))
    with pytest.raises(UnsupportedProblem, match="a library"):
        machine_of("torch_matmul", SHARED_BY_TWO, Rules(READINGS["source"]))


def test_hazards_elsewhere_and_reports_that_were_not_read_are_told() -> None:
    hazards = [{"count": 3, "elsewhere": 0}, {"count": 2, "elsewhere": 0}]
    assert protocol_table._hand_over([{"status": "clean"}]) == []
    (told,) = protocol_table._hand_over([{"hazards": hazards}, {"said": ["of another tool"]}])
    assert told.startswith("5 hazards, all in the four bytes") and told.endswith("what to run")
    (told,) = protocol_table._hand_over([{"hazards": [*hazards, {"count": 1, "elsewhere": 1}], "said": ["more"]}])
    assert told.startswith("6 hazards, 1 addresses of them beside") and told.endswith("and more in 1 launches")


def test_every_variant_has_a_row_or_a_reason_for_having_none() -> None:
    table = protocol_table.render(RESULTS)
    for name in variants.all_names():
        number = re.escape(name[:3] if name[1:3].isdigit() else name)
        without = re.search(rf"^- No row for [^:]*`{number}`[^:]*: (.*)\.$", table, re.MULTILINE)
        assert (f"| `{name}` |" in table) != (without is not None), name
        assert (without[1] if without else "") == why_not(variants.get(name).card)


@pytest.mark.parametrize("name", [n for n in variants.all_names() if "no protocol" in why_not(variants.get(n).card)])
def test_what_has_no_protocol_in_global_memory_touches_nothing_there_but_its_own_part_of_c(name: str) -> None:
    tree = ast.parse(variants.get(name).source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    touched = [ast.unparse(call) for call in calls if re.match(r"gl\.(load|store|atomic)", ast.unparse(call.func))]
    assert len(touched) == 1 and touched[0].startswith("gl.store(c_ptr + offsets"), touched


def test_a_variant_without_a_reason_from_its_card_is_said_to_be_unexplored() -> None:
    card = variants.get("v11").card
    assert "distributed shared memory" in why_not(card)
    for changes in ({"workspace": ("counters",)}, {"zeroed_output": True}, {"decomposition": "whole_waves"}):
        assert "its protocol is not explored" in why_not(replace(card, **changes))
    assert why_not(variants.get("v06").card) == ""


# Twins and compilers


def fix_up(name: str, function: str) -> list[tuple[str, ...]]:
    """The accesses of a kernel to partial sums and counters, and its barriers, in the order of the source.

    A function that is given a slot is read where it is called.
    """
    tree = ast.parse(variants.get(name).source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = []
    calls = [node for node in ast.walk(functions[function]) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(call.func, ast.Name) and call.func.id in functions:
            helper = functions[call.func.id]
            if "slot" in [argument.arg for argument in helper.args.args]:
                found += fix_up(name, helper.name)
        if not isinstance(call.func, ast.Attribute):
            continue
        what = call.func.attr
        where = ast.unparse(call.args[0]).split()[0].split("+")[0] if call.args else ""
        orders = tuple(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords if k.arg in ("sem", "scope"))
        if what in ("barrier", "debug_barrier"):
            found.append(("barrier",))
        elif what in ("store", "load", "atomic_add", "atomic_xchg", "atomic_cas") and where in ("slot", "counters_ptr"):
            found.append((what, where, *orders))
    return found


@pytest.mark.parametrize("name", [n for n in variants.all_names() if variants.get(n).card.twin])
def test_a_gluon_kernel_has_its_twins_fix_up(name: str) -> None:
    twin = fix_up(variants.get(name).card.twin, "persistent_tiles")
    assert twin == [
        ("store", "slot"),
        ("barrier",),
        ("atomic_add", "counters_ptr", "sem='acq_rel'", "scope='gpu'"),
        ("load", "slot"),
        ("store", "counters_ptr"),
    ]
    assert [step for step, _ in itertools.groupby(fix_up(name, "multiply"))] == twin


BARRIERS = """
import json, re
import variants
from common.compilation import compile_variant

found = {}
for name in ("v06", "v07", "v08"):
    v = variants.get(name)
    config = v.card.default.replace(block=(64, 64, 32), num_warps=4, num_stages=2)
    kernel = next(k for k in compile_variant(v, "sm_90", config) if k.kernel == "first_wave")
    seen, between = False, []
    for line in kernel.asm["ptx"].splitlines():
        if re.search(r"st\\.global\\.v\\d", line):
            seen, barrier = True, False
        elif "bar.sync" in line:
            barrier = True
        elif seen and re.search(r"atom\\.global.*exch|st\\.global\\.b32", line):
            between.append(barrier)
            seen = False
    found[name] = sorted(set(between))
print(json.dumps(found))
"""


def test_the_installed_triton_compiles_the_barriers_of_its_reading() -> None:
    version = Version(triton.__version__)
    reading = READINGS.get(f"triton-{version.major}.{version.minor}")
    if reading is None:
        pytest.skip(f"no reading for Triton {version}")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", textwrap.dedent(BARRIERS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"v06": [reading.before_scalar_atomic], "v07": [False], "v08": [reading.before_scalar_atomic]}


# The command


def run(*arguments: str, interpret: str = "1") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "variants", "explore", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": interpret}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@interpreted
@pytest.mark.parametrize(
    ("edits", "rules", "known"),
    [
        ((("tl.atomic_xchg(locks_ptr + tile, 1)", "tl.atomic_xchg(locks_ptr + tile, 0)"),), {}, ""),
        ((("tl.atomic_xchg(locks_ptr + tile, 1)", "tl.atomic_xchg(locks_ptr + tile, 0)"),), {"residents": 3}, ""),
        ((), {"residents": 3}, "not_co_resident"),
    ],
    ids=["never set", "never set, few resident", "few resident"],
)
def test_a_card_explains_the_hangs_alone_that_more_residents_would_end(
    edits: tuple[tuple[str, str], ...], rules: dict[str, int], known: str, tmp_path: Path
) -> None:
    v = variants.get("v06")
    v = edited(v, edits, tmp_path) if edits else v
    request = Request(SHARED_BY_FOUR, Setup(guarded=False), ("triton-3.9",), schedules=20, **rules)
    (report,) = explore_variant(v, request)
    hangs = {finding["known"] for finding in report["findings"] if finding["kind"] == "deadlock"}
    assert hangs == {known}, report["findings"]
    again = next(finding["again"] for finding in report["findings"] if finding["kind"] == "deadlock")
    assert ("--residents 3" in again) == bool(rules) and "--unguarded" in again and "--k 64 --programs 4" in again


SETS = {"v05": "tl.atomic_xchg(locks_ptr + tile, 2)", "v07": "tl.store(locks_ptr + tile, 1)"}
SETS |= {name: "tl.atomic_xchg(locks_ptr + tile, 1)" for name in ("v06", "v08")}
POLLS = {"v05": "tl.atomic_cas(locks_ptr + tile, 2, 2)", "v07": "tl.atomic_min(locks_ptr + tile, 1)"}
POLLS |= {name: "tl.atomic_cas(locks_ptr + tile, 1, 1)" for name in ("v06", "v08")}
ONE_SHARED = Small((BLOCK, BLOCK, 2 * BLOCK), programs=2, peers=2)


def with_option(call: str, option: str) -> tuple[str, str]:
    return call, f"{call[:-1]}, {option})"


def faults_beside_the_cards() -> list[Any]:
    """Published kinds of faults in variants whose card has a kind of race of its own."""
    found = []
    for name, sets in SETS.items():
        kinds: dict[str, tuple[tuple[tuple[str, str], ...], Setup]] = {
            "polled without acquire": ((with_option(POLLS[name], 'sem="relaxed"'),), Setup()),
            "not waited for": (((f"while {POLLS[name]} != {2 if name == 'v05' else 1}:", "while False:"),), Setup()),
            "one iteration twice": (
                (("ks = (start % iters_per_tile) * BLOCK_K + tl", "ks = start * 0 + tl"),),
                Setup(),
            ),
            "left set for the next launch": ((), Setup(launches=2, setting="first")),
            "shared by two streams": ((), Setup(streams=2, shared_workspace=True)),
        }
        if name != "v07":
            kinds["set without release"] = ((with_option(sets, 'sem="relaxed"'),), Setup())
            options = [with_option(call, 'scope="cta"') for call in (sets, POLLS[name])]
            kinds["of one CTA"] = (tuple(options), Setup())
        found += [pytest.param(name, *fault, id=f"{name} {kind}") for kind, fault in kinds.items()]
    return found


def defects_found(v: Variant, small: Small, setup: Setup, reading: str, strategy: str) -> set[str]:
    """The defects that explain what is found, with an empty text for what none explains."""
    scenario = build(v, small.problem, small_config(v.card, small), setup)
    rules = Rules(READINGS[reading], late_stores=strategy != "exhaustive")
    with interpreter.exploring(scenario.kernels):
        machine, explanation = scenario.machine(rules), Explanation(v.card, scenario, rules)
        if strategy == "exhaustive":
            found = explanation.searched(schedules.exhaust(machine), schedules.exhaust)
        else:
            found = schedules.explore(machine, 20, strategy=strategy, judge=explanation)
    return {finding.defect for finding in found.findings}


@interpreted
@pytest.mark.parametrize(("name", "edits", "setup"), faults_beside_the_cards())
def test_a_card_explains_no_fault_but_its_own(
    name: str, edits: tuple[tuple[str, str], ...], setup: Setup, tmp_path: Path
) -> None:
    v = variants.get(name)
    v = edited(v, edits, tmp_path) if edits else v
    small = ONE_SHARED if setup == Setup() else TWO_TILES
    for reading in READINGS:
        assert "" in defects_found(v, small, setup, reading, "random")
        if setup == Setup():
            assert "" in defects_found(v, small, setup, reading, "exhaustive")


@interpreted
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("strategy", ["random", "pct", "exhaustive"])
def test_a_card_explains_the_races_of_its_own_lock(name: str, strategy: str) -> None:
    v = variants.get(name)
    for small in (ONE_SHARED, TWO_KERNELS):
        for reading in READINGS:
            known = {defect.id for defect in v.card.defects if reading in defect.readings}
            found = defects_found(v, small, Setup(), reading, strategy)
            assert "" not in found and known == {word for defect in found for word in defect.split(" and ")}


def test_a_defect_of_a_lock_names_its_readings_and_no_other_does() -> None:
    for name in variants.all_names():
        for defect in variants.get(name).card.defects:
            assert set(defect.readings) <= set(READINGS)
            assert bool(defect.readings) == (defect.id in REPAIRS), (name, defect.id)


@interpreted
@pytest.mark.parametrize(
    ("name", "edits"),
    [
        ("v06", (with_option(SETS["v06"], 'sem="relaxed"'),)),
        ("v04", (("ks = (start % iters_per_tile) * BLOCK_K + tl", "ks = start * 0 + tl"),)),
    ],
)
def test_a_fault_beside_the_cards_own_disagrees_with_it_in_every_reading(
    name: str, edits: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    v = edited(variants.get(name), edits, tmp_path)
    told = protocols.disagreements(v.card, protocols.examine(v, 20))
    for reading in READINGS:
        assert any(line.startswith(f"{reading}: ") and "no defect of the card" in line for line in told), told


@interpreted
@pytest.mark.parametrize(("schedules", "reading"), [(1, "triton-3.9"), (3, "source")])
def test_a_workspace_shared_by_streams_is_no_missing_barrier(schedules: int, reading: str) -> None:
    setup = Setup(streams=2, shared_workspace=True)
    small = Small((2 * BLOCK, BLOCK, 2 * BLOCK), programs=3, peers=2)
    (report,) = explore_variant(variants.get("v06"), Request(small, setup, (reading,), schedules=schedules))
    races = [f for f in report["findings"] if f["kind"] == "race" and "locks[" in f["message"]]
    assert races and not any(finding["known"] for finding in races)
    assert "fill of locks" in races[0]["message"] and "of two launches, on streams" in races[0]["message"]


@interpreted
def test_an_unguarded_third_tile_explains_nothing_where_there_is_none(tmp_path: Path) -> None:
    v = edited(variants.get("v03"), (("accumulator *= 0", "accumulator *= 1"),), tmp_path)
    (report,) = explore_variant(v, Request(TWO_KERNELS, readings=("source",), schedules=5))
    assert {finding["known"] for finding in report["findings"]} == {""}


@interpreted
def test_a_fault_that_no_card_describes_is_a_line_of_its_own(tmp_path: Path) -> None:
    broken = edited(variants.get("v06"), (("tl.atomic_xchg(locks_ptr + tile, 1)", "pass"),), tmp_path)
    with pytest.raises(ProtocolFault, match="v06_two_state_lock_mutant, source: deadlock within its conditions"):
        protocols.examine(broken, 20)


@pytest.mark.parametrize("strategy", ["random", "exhaustive"])
def test_the_command_reports_what_it_found_and_replays_it(strategy: str) -> None:
    done = run("v06", "--schedules", "20", "--reading", "source", "--strategy", strategy, "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    finding = next(f for f in report["findings"] if f["kind"] == "race")
    assert finding["known"] == "no_barrier_before_lock" and finding["schedule"] <= max(20, report["states"])
    *_, explore, name = words = shlex.split(finding["again"])[:5]
    assert (explore, name) == ("explore", "v06_two_state_lock")
    again = run(*shlex.split(finding["again"])[len(words) - 1 :], interpret="0").stdout.splitlines()
    assert f"race: {finding['message']}" in again
    assert [line.strip() for line in again if line.startswith("  ")] == finding["trace"]


@interpreted
@pytest.mark.parametrize("strategy", ["random", "pct", "exhaustive"])
@pytest.mark.parametrize(
    ("name", "small", "edits", "options"),
    [
        ("v06", SHARED_BY_TWO, (), {}),
        ("v07", SHARED_BY_TWO, (), {"residents": 3, "dispatch": "any"}),
        ("v06", SHARED_BY_FOUR, (), {"residents": 3}),
        ("v06", TWO_TILES, ((STORE_AND_SET, SET_AND_STORE),), {}),
    ],
    ids=["races", "in any order", "a hang", "wrong results"],
)
def test_what_was_found_is_replayed_exactly(
    name: str, small: Small, edits: tuple[tuple[str, str], ...], options: dict[str, Any], strategy: str, tmp_path: Path
) -> None:
    v = edited(variants.get(name), edits, tmp_path) if edits else variants.get(name)
    request = Request(small, Setup(guarded=False), ("triton-3.9", "source"), strategy=strategy, schedules=20, **options)
    for report in explore_variant(v, request):
        assert report["distinct"] is None if strategy == "exhaustive" else 1 < report["distinct"] <= 20
        for finding in report["findings"]:
            assert ("--strategy exhaustive" in finding["again"]) == (strategy == "exhaustive")
            again = replay_variant(v, replace(request, readings=(report["reading"],)), finding["replay"])
            assert again["trace"] == finding["trace"]
            assert (finding["kind"], finding["message"]) in {(f["kind"], f["message"]) for f in again["findings"]}
    assert report["findings"]


def test_schedules_bound_an_exhaustive_search_too() -> None:
    command = ("v04", "--m", "16", "--k", "32", "--programs", "2", "--strategy", "exhaustive", "--reading", "source")
    cut = run(*command, "--schedules", "1")
    assert cut.returncode == 0 and "states, cut short after 1 schedules: there are more" in cut.stdout
    every = run(*command)
    assert (
        every.returncode == 0
        and "states, all that there are with each store visible at once" in every.stdout
        and "cut short" not in every.stdout
    )


def test_the_command_fails_on_what_no_card_names_and_shows_a_hang() -> None:
    begun = run("v04", "--replay", "0 1", "--reading", "source")
    assert begun.stdout.endswith("nothing found\nthe schedule ends here, before the launch does\n")
    edge = run("v04", "--m", "24", "--programs", "3", "--unguarded", "--schedules", "3", "--reading", "source")
    assert edge.returncode == 1 and "was added twice" in edge.stdout
    hang = run("v06", "--residents", "1", "--unguarded", "--schedules", "2", "--reading", "triton-3.9")
    assert hang.returncode == 0
    assert "program 0 waits for locks[0] from program 1 (not dispatched)" in hang.stdout
    assert "the launcher refuses this launch: v06" in hang.stdout and "strict_residency" not in hang.stdout


def test_a_hang_that_the_guard_admits_names_what_refuses_it() -> None:
    launch = ("v06", "--residents", "2", "--dispatch", "any", "--schedules", "20", "--reading", "triton-3.9")
    hang = run(*launch)
    assert hang.returncode == 0 and "strict_residency=True (`run --strict-residency`) refuses it: v06" in hang.stdout
    strict = run(*launch, "--strict-residency")
    assert strict.returncode == 2 and "4 programs asked, 2 are resident at once" in strict.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("v06", "--residents", "1"), "NotCoResident: v06"),
        (("v06", "--reading", "gpu"), "choose source"),
        (("--residents", "2", "--schedules", "1", "--replay", "0"), "--residents, --replay: only with NAME"),
        (("v06", "--changed"), "--changed is for every variant"),
        (("--changed",), "give --out"),
        (("v06", "--reading", "all", "--replay", "0"), "give --reading source"),
        (("v06", "--reading", "source", "--replay", "0", "--seed", "1"), "--seed: not together with --replay"),
        (("v06", "--m", "-16"), "each is at least 1"),
        (("v06", "--unguarded", "--strict-residency"), "strict residency is a guard"),
        (("v06", "--k", "512"), "K=512: at most 16 iterations of 16 are explored, K=256"),
        (("v06", "--m", "1000000"), "M=1000000: at most 16 rows of tiles of 16 are explored, M=256"),
        (("v06", "--n", "1000000"), "N=1000000: at most 16 columns of tiles of 16 are explored, N=256"),
        (("v06", "--programs", "1000000000", "--unguarded"), "1000000000 programs: at most 1024"),
        (("v06", "--streams", "1000000000"), "1000000000 programs: at most 1024"),
        (("data_parallel", "--m", "256", "--n", "256", "--launches", "5"), "1280 programs: at most 1024"),
    ],
)
def test_the_commands_faults_end_with_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    told = " ".join(done.stderr.replace("│", " ").split())
    assert done.returncode == 2 and message in told and "Traceback" not in told


@interpreted
def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop_at_three(so_far: schedules.Exploration) -> None:
        if so_far.schedules == 3:
            assert so_far.seconds > 0
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def counting(name: str, total: int | None) -> Any:
        yield stop_at_three

    monkeypatch.setattr(exploring, "counting", counting)
    done = CliRunner().invoke(commands.app, ["explore", "v06", "--reading", "source"])
    assert done.exit_code == 130 and "interrupted: this is what was found so far" in done.output
    assert "reading source: 3 schedules" in done.output and "race: program 0" in done.output
