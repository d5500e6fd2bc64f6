"""The launcher refuses what a kernel cannot do, before anything is launched or written."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

import common.launcher
import variants
from common.errors import NotCoResident, UnsupportedProblem
from common.launcher import prepare
from common.problem import Problem, make_inputs
from common.residency import Limits, programs_per_sm

HISTORICAL = [name for name in variants.names() if variants.get(name).card.contract.divisible]
WAITING = [name for name in variants.names() if variants.get(name).card.needs_co_residency]


@pytest.fixture
def on_132_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.launcher, "resident_programs", lambda prepared: 132)


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.usefixtures("on_132_sms")
def test_more_peers_than_resident_programs_is_refused(name: str, device: str) -> None:
    a, b = make_inputs(Problem(128, 128, 32 * 1056), device=device)
    config = variants.get(name).card.default.replace(block=(128, 128, 32), programs=1056)
    with pytest.raises(NotCoResident, match=r"1056 programs share a tile.* 132 programs"):
        prepare(variants.get(name), a, b, config=config)


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.usefixtures("on_132_sms")
def test_more_programs_than_resident_is_marked_and_refused_when_strict(name: str, device: str) -> None:
    a, b = make_inputs(Problem(512, 512, 2048), device=device)
    config = variants.get(name).card.default.replace(block=(64, 64, 64), programs=140)
    assert prepare(variants.get(name), a, b, config=config).relies_on_dispatch_order
    with pytest.raises(NotCoResident, match="140 programs asked, 132"):
        prepare(variants.get(name), a, b, config=config, strict_residency=True)
    config = config.replace(programs=130)
    assert not prepare(variants.get(name), a, b, config=config, strict_residency=True).relies_on_dispatch_order


@pytest.mark.usefixtures("on_132_sms")
def test_max_programs_caps_what_is_resident(device: str) -> None:
    a, b = make_inputs(Problem(64, 64, 1024), device=device)
    config = variants.get("v06").card.default.replace(block=(64, 64, 64), programs=8)
    assert prepare(variants.get("v06"), a, b, config=config, max_programs=8).resident_programs == 8
    with pytest.raises(NotCoResident, match=r"8 programs share a tile.* 7 programs"):
        prepare(variants.get("v06"), a, b, config=config, max_programs=7)


@pytest.mark.parametrize("value", [0, -1, 2.5, float("nan"), "4", True])
@pytest.mark.parametrize("name", ["v04", "v06"])
def test_max_programs_is_a_count(name: str, value: object, device: str) -> None:
    a, b = make_inputs(Problem(32, 32, 64), device=device)
    with pytest.raises(UnsupportedProblem, match="a whole number of at least 1"):
        prepare(variants.get(name), a, b, max_programs=value)


@pytest.mark.usefixtures("on_132_sms")
def test_v05_waits_for_a_running_program_and_is_never_refused(device: str) -> None:
    a, b = make_inputs(Problem(64, 64, 64 * 300), device=device)
    config = variants.get("v05").card.default.replace(block=(64, 64, 64), programs=300)
    assert prepare(variants.get("v05"), a, b, config=config).schedule.max_peers == 300


def test_historical_variants_are_the_threads() -> None:
    assert [name[:3] for name in HISTORICAL] == [f"v0{i}" for i in range(9)]


@pytest.mark.parametrize("name", HISTORICAL)
@pytest.mark.parametrize(
    ("problem", "message"),
    [((129, 127, 33), "M=129"), ((128, 127, 33), "N=127"), ((128, 128, 33), "K=33")],
)
def test_the_first_dimension_that_does_not_divide_is_named(
    name: str, problem: tuple[int, int, int], message: str, device: str
) -> None:
    m, n, k = problem
    around = [
        torch.full((rows + 64, columns + 64), torch.nan, device=device).half() for rows, columns in ((m, k), (k, n))
    ]
    a, b = around[0][32 : 32 + m, 32 : 32 + k], around[1][32 : 32 + k, 32 : 32 + n]
    for inside, values in zip((a, b), make_inputs(Problem(*problem), device=device), strict=True):
        inside.copy_(values)
    before = [x.nan_to_num(7) for x in around]
    out = torch.full((m, n), float("nan"), dtype=torch.float16, device=device)
    with pytest.raises(UnsupportedProblem, match=message):
        variants.get(name).matmul(a, b, out, block=(64, 64, 64))
    assert torch.isnan(out).all()
    assert all(torch.equal(x.nan_to_num(7), old) for x, old in zip(around, before, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": (48, 64, 64)}, "BLOCK_M=48"),
        ({"num_warps": 3}, "num_warps=3"),
        ({"full_tiles_warps": 3}, "full_tiles_warps=3"),
        ({"num_stages": 0}, "num_stages=0"),
        ({"num_stages": 1000}, "num_stages=1000"),
        ({"full_tiles_stages": 1000}, "full_tiles_stages=1000"),
        ({"programs": -1}, "programs=-1"),
        ({"order": "diagonal"}, "order='diagonal'"),
        ({"two_tiles": False}, "always two-tile"),
        ({"split": 2}, "takes no split"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict, message: str, device: str) -> None:
    a, b = make_inputs(Problem(64, 64, 64), device=device)
    v = variants.get("v05")
    with pytest.raises(UnsupportedProblem, match=message):
        prepare(v, a, b, config=v.card.default.replace(**{"block": (64, 64, 64), **changes}))


def test_operands_that_do_not_fit_are_refused(device: str) -> None:
    v = variants.get("v04")
    half = torch.ones(64, 64, dtype=torch.float16, device=device)
    for a, b, message in [
        (half, half[:32], "are needed"),
        (half[0], half, "are needed"),
        (half.float(), half.float(), "float32"),
        (half, half.bfloat16(), "bfloat16"),
    ]:
        with pytest.raises(UnsupportedProblem, match=message):
            v.matmul(a, b, block=(64, 64, 64))
    with pytest.raises(UnsupportedProblem, match="out is"):
        v.matmul(half, half, half.float(), block=(64, 64, 64))
    with pytest.raises(UnsupportedProblem, match="share memory"):
        v.matmul(half, half, half[:1].expand(64, 64), block=(64, 64, 64))


def test_offsets_past_int32_are_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_inputs(Problem(2**17, 2**14, 32), device=device)
    with pytest.raises(UnsupportedProblem, match=r"C's offsets pass 2\^31 elements"):
        prepare(variants.get("v04"), a, b)
    monkeypatch.setattr("common.launcher.INT32_LIMIT", 2**21)
    with pytest.raises(UnsupportedProblem, match=r"A's offsets pass 2\^31 elements"):
        prepare(variants.get("v04"), a, b)


@pytest.mark.parametrize(
    ("strides", "message"),
    [((0, 1), "share memory"), ((1, 1), "share memory"), ((32, 1), "share memory"), ((1, 63), "share memory")],
)
def test_an_output_that_overlaps_itself_is_refused(strides: tuple, message: str, device: str) -> None:
    half = torch.zeros(64, 64, dtype=torch.float16, device=device)
    out = torch.zeros(64 * 64, dtype=torch.float16, device=device).as_strided((64, 64), strides)
    with pytest.raises(UnsupportedProblem, match=message):
        variants.get("v04").matmul(half, half, out, block=(64, 64, 64))


def test_an_output_in_an_operands_memory_is_refused(device: str) -> None:
    both = torch.zeros(128, 64, dtype=torch.float16, device=device)
    upper, across, lower = both[:64], both[32:96], both[64:]
    v = variants.get("v04")
    for a, b, name in ((upper, lower, "A"), (lower, upper, "B")):
        for out in (upper, across):
            with pytest.raises(UnsupportedProblem, match=f"memory of ({name}|A)"):
                v.matmul(a, b, out, block=(64, 64, 64))
    v.matmul(upper, upper, lower, block=(64, 64, 64))


@pytest.mark.parametrize("name", ["v04", "data_parallel"])
@pytest.mark.parametrize("layout", ["expanded", "strided"])
def test_a_prepared_launch_reads_a_copied_operand_anew(name: str, layout: str, device: str) -> None:
    wide = torch.ones(1 if layout == "expanded" else 64, 128, dtype=torch.float16, device=device)
    a = wide[:, ::2].expand(64, 64)
    b = torch.ones(64, 64, dtype=torch.float16, device=device)
    v = variants.get(name)
    prepared = prepare(v, a, b, config=v.card.default.replace(block=(64, 64, 64)))
    for value in (1, 2, 3):
        wide.fill_(value)
        prepared.run()
        assert (prepared.out == 64 * value).all()


def test_counts_past_int32_are_refused() -> None:
    a, v = torch.empty(2**17, 2**14, dtype=torch.float16, device="meta"), variants.get("v04")
    library = variants.get("torch_matmul")
    common.launcher._check_operands(library, a, a.t(), library.card.default)
    config = variants.get("v02").card.default.replace(block=(128, 128, 32), programs=2**17)
    schedule = common.launcher.plan(variants.get("v02").card, 8192, 8192, 8192, config, 132)
    with pytest.raises(UnsupportedProblem, match=r"131072 programs pass 2\^31"):
        common.launcher._check_counts(variants.get("v02"), schedule, config)
    huge = common.launcher.plan(v.card, 2**20, 2**20, 2**20, v.card.default, 132)
    with pytest.raises(UnsupportedProblem, match="MAC iterations"):
        common.launcher._check_counts(v, huge, v.card.default)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": (32, 32)}, "block="),
        ({"block": "32x32x32"}, "block="),
        ({"block": (32.0, 32, 32)}, "block="),
        ({"programs": "4"}, "programs="),
        ({"programs": 2.5}, "programs="),
        ({"programs": True}, "programs="),
        ({"num_warps": None}, "num_warps="),
        ({"sem": "foo"}, "relaxed, acq_rel"),
        ({"two_tiles": "off"}, "two_tiles="),
        ({"num_warp": 4}, "nearest: num_warps"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(UnsupportedProblem, match=message):
        variants.get("v08").card.default.replace(**changes)


def test_a_variant_has_what_the_interface_names() -> None:
    v = variants.get("v08")
    assert v.CARD is v.card and callable(v.launch) and callable(v.matmul)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "fits"),
    [
        (255, 65536, 4, 2),  # 8 warps of 8,192 registers
        (128, 0, 4, 4),
        (32, 100_000, 4, 2),  # shared memory decides
        (32, 0, 1, 32),  # blocks decide
        (16, 0, 32, 2),  # threads decide
        (64, 240_000, 4, 0),
    ],
)
def test_programs_per_sm_of_an_h200(registers: int, shared: int, warps: int, fits: int) -> None:
    assert programs_per_sm(Limits(sms=132), registers, shared, warps) == fits


@pytest.mark.gpu
@pytest.mark.parametrize("name", WAITING)
def test_the_largest_admitted_problem_runs_and_the_next_is_refused(name: str, device: str) -> None:
    v = variants.get(name)
    config = v.card.default.replace(block=(64, 64, 64), num_warps=4, full_tiles_warps=4)
    a, b = make_inputs(Problem(64, 64, 64), device=device)
    a, b = make_inputs(Problem(64, 64, 64 * 4096), values="integers", device=device)
    probe = prepare(v, a, b, config=config.replace(programs=2))
    resident = probe.resident_programs
    prepared = prepare(v, a, b, config=config.replace(programs=resident))
    prepared.run()
    torch.cuda.synchronize()
    assert torch.equal(prepared.out.double(), a.double() @ b.double())
    with pytest.raises(NotCoResident):
        prepare(v, a, b, config=config.replace(programs=resident + 1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", [n for n in (*variants.portable_names(), *variants.baselines()) if n != "torch_matmul"]
)
def test_a_captured_graph_replays_right_with_changed_inputs(name: str, device: str) -> None:
    v = variants.get(name)
    problem = Problem(256, 384, 512)
    a, b = make_inputs(problem, values="integers", device=device)
    prepared = prepare(v, a, b, config=v.card.default.replace(block=(64, 64, 64), num_warps=4, num_stages=3))
    prepared.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.run()
    for seed in range(100):
        fresh_a, fresh_b = make_inputs(problem, seed, "integers", device)
        a.copy_(fresh_a)
        b.copy_(fresh_b)
        graph.replay()
        assert torch.equal(prepared.out.double(), a.double() @ b.double())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["data_parallel", "v06", "v08"])
def test_a_config_that_needs_too_much_shared_memory_names_both_numbers(name: str, device: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(512, 512, 4096), device=device)
    config = v.card.default.replace(block=(256, 256, 128), num_warps=8, num_stages=8)
    with pytest.raises(OutOfResources, match=r"Required: \d+, Hardware limit: \d+"):
        prepare(v, a, b, config=config).run()
