"""The kernels after the thread answer where its own refuse: any size, stride and dtype, the same bits each time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import variants
from common import workspace
from common.card import Config
from common.errors import UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import INT32_LIMIT, Prepared, Variant, prepare
from common.problem import LAYOUTS, Problem, make_inputs
from common.reference import reference

V09 = variants.get("v09")
GUARD = 64


def small(programs: int | None = 4, **changes: object) -> Config:
    return V09.card.default.replace(**({"block": (32, 32, 32), "num_warps": 4, "programs": programs} | changes))


def run(a: torch.Tensor, b: torch.Tensor, config: Config | None = None, **more: object) -> Prepared:
    prepared = prepare(V09, a, b, config=config or small(), **more)
    prepared.out.fill_(float("nan") if prepared.out.dtype.is_floating_point else -7)
    prepared.run()
    return prepared


def guarded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same matrix inside a buffer of NaN, and the buffer."""
    buffer = torch.full((x.shape[0] + 2 * GUARD, x.shape[1] + 2 * GUARD), torch.nan, dtype=x.dtype, device=x.device)
    inside = buffer[GUARD : GUARD + x.shape[0], GUARD : GUARD + x.shape[1]]
    inside.copy_(x)
    return inside, buffer


@pytest.mark.parametrize(
    ("shape", "programs"),
    [((129, 127, 33), 7), ((129, 127, 33), 4), ((33, 65, 257), 4), ((100, 104, 72), 5), ((1, 200, 40), 3)],
)
def test_sizes_that_do_not_divide_touch_no_guard(shape: tuple[int, int, int], programs: int, device: str) -> None:
    a, b = make_inputs(Problem(*shape), device=device)
    exact = reference(a, b)
    (a, around_a), (b, around_b) = guarded(a), guarded(b)
    out, around = guarded(torch.full((shape[0], shape[1]), torch.nan, dtype=a.dtype, device=device))
    before = [x.clone() for x in (around_a, around_b)]
    prepare(V09, a, b, out, small(programs)).run()
    assert exact.check(out).ok
    for x, old in zip((around_a, around_b), before, strict=True):
        assert torch.equal(x.nan_to_num(7), old.nan_to_num(7))
    around[GUARD : GUARD + shape[0], GUARD : GUARD + shape[1]] = torch.nan
    assert torch.isnan(around).all()


@pytest.mark.parametrize(("m", "n", "k"), list(itertools.product((0, 1, 40), repeat=3)))
def test_sizes_of_none_and_one(m: int, n: int, k: int, device: str) -> None:
    a, b = make_inputs(Problem(m, n, k), values="integers", device=device)
    c = run(a, b).out
    assert c.shape == (m, n)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize("layout", [*LAYOUTS, "odd", "every_other"])
@pytest.mark.parametrize("shape", [(72, 40, 136), (33, 35, 131)])
def test_any_strides_are_taken_as_they_are(layout: str, shape: tuple[int, int, int], device: str) -> None:
    a, b = make_inputs(Problem(*shape, layout="row" if layout in ("odd", "every_other") else layout), device=device)
    if layout == "odd":
        wide = torch.full((b.shape[0], 79), torch.nan, dtype=b.dtype, device=device)
        wide[:, : b.shape[1]] = b
        b = wide[:, : b.shape[1]]
    if layout == "every_other":
        a = torch.stack((a, torch.full_like(a, torch.nan)), dim=2).reshape(a.shape[0], -1)[:, ::2]
    prepared = run(a, b)
    assert prepared.a.data_ptr() == a.data_ptr() and prepared.a.stride() == a.stride()
    assert reference(a, b).check(prepared.out).ok


def test_the_strides_of_a_published_fault(device: str) -> None:
    """A row for all of A, and a B whose rows are no multiple of 16 bytes and far apart."""
    a = torch.randn(1, 2048, device=device).half().expand(64, 2048)
    b = torch.empty_strided((2048, 1953), (7920, 1), dtype=torch.float16, device=device).normal_()
    config = small(16, block=(64, 128, 128), num_warps=8)
    assert reference(a, b).check(run(a, b, config).out).ok
    for name in ("v05", "v08"):
        with pytest.raises(UnsupportedProblem, match=r"N=1953|strides"):
            variants.get(name).matmul(a, b, block=(64, 128, 64))
    # What divides is taken by a copy, or refused by its strides.
    even = b[:, :1920]
    assert reference(a, even).check(variants.get("v05").matmul(a, even, block=(64, 128, 128), programs=4)).ok
    with pytest.raises(UnsupportedProblem, match="strides"):
        variants.get("v08").matmul(a, even, block=(64, 128, 128))


@pytest.mark.parametrize("programs", [3, 16])
@pytest.mark.parametrize("layout", ["row", "a_transposed", "b_transposed", "both_transposed", "strided"])
@pytest.mark.parametrize("shape", [(72, 40, 136), (128, 64, 264), (8, 200, 8)])
def test_loads_by_the_tma(shape: tuple[int, int, int], layout: str, programs: int, device: str) -> None:
    a, b = make_inputs(Problem(*shape, layout=layout), device=device)
    config = small(programs, tma=True, block=(64, 64, 64))
    prepared = run(a, b, config)
    assert prepared.record()[0].options["TMA"]
    assert reference(a, b).check(prepared.out).ok
    out = torch.full((shape[1], shape[0]), torch.nan, dtype=a.dtype, device=device).t()
    prepare(V09, a, b, out, config).run()
    assert torch.equal(out, prepared.out)


def test_the_tma_refuses_what_it_cannot_address(device: str) -> None:
    a, b = make_inputs(Problem(72, 40, 136), device=device)
    with pytest.raises(UnsupportedProblem, match="A has strides"):
        prepare(V09, a[:, 1:], b[1:], config=small(tma=True))
    with pytest.raises(UnsupportedProblem, match="no choice"):
        prepare(variants.get("v04"), a, b, config=Config(tma=True))
    assert torch.equal(run(a[:, :0], b[:0], small(tma=True)).out, torch.zeros(72, 40, dtype=a.dtype, device=device))


def test_c_may_have_any_strides_too(device: str) -> None:
    a, b = make_inputs(Problem(40, 72, 64), values="integers", device=device)
    for out in (
        torch.full((72, 40), torch.nan, dtype=a.dtype, device=device).t(),
        torch.full((40, 144), torch.nan, dtype=a.dtype, device=device)[:, ::2],
    ):
        prepare(V09, a, b, out, small()).run()
        assert torch.equal(out.double(), a.double() @ b.double())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes(dtype: str, device: str) -> None:
    if dtype.startswith("float8") and device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    generator = torch.Generator(device="cpu").manual_seed(0)
    shape = (40, 72, 300)
    a = torch.randint(-2, 3, (shape[0], shape[2]), generator=generator).to(device).to(getattr(torch, dtype))
    b = torch.randint(-2, 3, (shape[2], shape[1]), generator=generator).to(device).to(getattr(torch, dtype))
    prepared = run(a, b)
    exact = a.double() @ b.double()
    assert prepared.schedule.split > 1
    assert torch.equal(prepared.out.double(), exact.to(prepared.out.dtype).double())
    assert prepared.out.dtype == {"int8": torch.int32}.get(dtype, torch.float16 if "float8" in dtype else a.dtype)


def test_fp32_is_exact_unless_tf32_is_asked_for(device: str) -> None:
    a = torch.eye(46, device=device)
    b = torch.arange(46 * 46, dtype=torch.float32, device=device).reshape(46, 46) + 2.0**-12
    assert torch.equal(run(a, b).out, b)
    with pytest.raises(UnsupportedProblem, match="precision 'tf32'"):
        prepare(variants.get("v08"), a.half(), b.half(), config=Config(precision="tf32"))


@pytest.mark.gpu
def test_tf32_rounds_when_asked_for() -> None:
    b = torch.arange(46 * 46, dtype=torch.float32, device="cuda").reshape(46, 46) + 2.0**-12
    c = run(torch.eye(46, device="cuda"), b, small(precision="tf32")).out
    assert not torch.equal(c, b)
    torch.testing.assert_close(c, b, rtol=2**-10, atol=0)


def test_the_bits_do_not_depend_on_the_launch_or_who_comes_last(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_inputs(Problem(40, 40, 1500), device=device)
    config = small(programs=16, split=7)
    first = run(a, b, config).out
    for _ in range(3 if interpreting() else 50):
        assert torch.equal(run(a, b, config).out, first)
    if not interpreting():
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    ascending = builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: ascending(builder.grid_dim[0] - 1 - x, y, z))
    assert torch.equal(run(a, b, config).out, first)


def test_partial_sums_are_fp32_whatever_c_is(device: str) -> None:
    a, b = make_inputs(Problem(32, 32, 4096, dtype="bfloat16"), device=device)
    exact = a.double() @ b.double()
    one, many = (run(a, b, small(16, split=split)).out for split in (1, 16))
    assert (many.double() - exact).square().mean() < 1.05 * (one.double() - exact).square().mean()


@pytest.mark.gpu
def test_partial_sums_are_no_worse_than_the_librarys() -> None:
    a, b = make_inputs(Problem(512, 4096, 14336, dtype="bfloat16"), device="cuda")
    exact = a.double() @ b.double()
    mine = run(a, b, V09.card.default.replace(split=5, programs=600)).out
    assert (mine.double() - exact).abs().max() <= 2 * ((a @ b).double() - exact).abs().max()


def test_overflow_is_inf_everywhere_and_only_in_fp16(device: str) -> None:
    k = 8192 if interpreting() else 262144
    for dtype, finite in (("float16", False), ("bfloat16", True), ("float32", True)):
        a = torch.full((40, k), 16.0, dtype=getattr(torch, dtype), device=device)
        c = run(a, a.t(), small(16, split=8, block=(32, 32, 128))).out
        assert torch.isfinite(c).all() if finite else torch.isinf(c).all()


def test_a_row_or_column_of_inf_stays_alone(device: str) -> None:
    a, b = make_inputs(Problem(96, 96, 128), device=device)
    a[5], b[:, 40] = torch.inf, torch.inf
    c = run(a, b).out
    expected = torch.zeros(96, 96, dtype=torch.bool, device=device)
    expected[5], expected[:, 40] = True, True
    assert torch.equal(~torch.isfinite(c), expected)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_bias_and_activation_come_once_after_the_sum(split: int, activation: str | None, device: str) -> None:
    a, b = make_inputs(Problem(40, 72, 200), device=device)
    bias = torch.randn(72, device=device).half()
    c = run(a, b, small(16, split=split), bias=bias, activation=activation).out
    expected = a.double() @ b.double() + bias.double()
    if activation:
        expected = getattr(torch.nn.functional, activation)(expected)
    torch.testing.assert_close(c.double(), expected, rtol=2e-3, atol=2e-3)


def test_relu_keeps_nan_and_no_k_leaves_the_bias(device: str) -> None:
    a, b = make_inputs(Problem(40, 40, 40), device=device)
    a[3] = torch.nan
    assert torch.isnan(run(a, b, activation="relu").out[3]).all()
    bias = torch.arange(-20, 20, device=device).half()
    c = run(a[:, :0], b[:0], bias=bias, activation="relu").out
    assert torch.equal(c, bias.relu().expand(40, 40))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"activation": "rel"}, "nearest: relu"),
        ({"bias": torch.zeros(71, dtype=torch.float16)}, r"bias is \(71,\)"),
        ({"bias": torch.zeros(72)}, "float32"),
    ],
)
def test_an_epilogue_that_cannot_be_is_refused(more: dict, message: str, device: str) -> None:
    a, b = make_inputs(Problem(40, 72, 40), device=device)
    more = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in more.items()}
    with pytest.raises(UnsupportedProblem, match=message):
        run(a, b, **more)
    with pytest.raises(UnsupportedProblem, match="no epilogue"):
        variants.get("v04").matmul(a[:32, :32], b[:32, :32], block=(32, 32, 32), activation="relu")


def test_three_launches_leave_the_counters_at_zero(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.zeros(64, dtype=torch.int32, device=device)
    monkeypatch.setattr(workspace, "counters", lambda count, device: shared)
    for seed in range(3):
        a, b = make_inputs(Problem(64, 64, 512), seed, "integers", device)
        prepared = run(a, b, small(16))
        assert prepared.schedule.split == 4
        assert torch.equal(prepared.out.double(), a.double() @ b.double())
        assert not shared.any()


def test_offsets_past_int32_are_counted_in_int64(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    wide = torch.empty(2**17, 2**15, dtype=torch.float16, device="meta")
    task = Prepared(
        V09, wide, wide[:128].t(), torch.empty(2**17, 128, dtype=torch.float16, device="meta"), *_plan(wide)
    )
    assert str(task.record()[0].options["OFFSET"]) == "int64"
    a, b = make_inputs(Problem(64, 64, 64), values="integers", device=device)
    assert str(run(a, b).record()[0].options["OFFSET"]) == "int32"
    monkeypatch.setattr("common.launcher.INT32_LIMIT", 1000)
    assert torch.equal(run(a, b).out.double(), a.double() @ b.double())


def _plan(a: torch.Tensor) -> tuple[object, Config]:
    from common.launcher import plan

    config = V09.card.default.replace(programs=132)
    return plan(V09.card, a.shape[0], 128, a.shape[1], config, 132), config


@pytest.mark.gpu
def test_offsets_past_int32_are_right() -> None:
    rows = INT32_LIMIT // 4096 + 130
    a = torch.zeros(rows, 4096, dtype=torch.float16, device="cuda")
    a[-1] = 1
    c = V09.matmul(a, torch.ones(4096, 64, dtype=torch.float16, device="cuda"))
    assert not c[:-1].any() and (c[-1] == 4096).all()


def captured(v: Variant, problem: Problem, config: Config) -> tuple[Prepared, torch.cuda.CUDAGraph]:
    prepared = prepare(v, *make_inputs(problem, device="cuda"), config=config)
    prepared.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.run()
    return prepared, graph


@pytest.mark.gpu
def test_graphs_replayed_at_once_on_two_streams_beside_eager_launches() -> None:
    problem, config = Problem(384, 384, 8192), V09.card.default.replace(block=(64, 64, 64), num_warps=4, split=3)
    graphs = [captured(V09, problem, config) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in graphs]
    fresh = [make_inputs(problem, seed, "integers", "cuda") for seed in range(3)]
    for (prepared, _), (a, b) in zip(graphs, fresh, strict=False):
        prepared.a.copy_(a)
        prepared.b.copy_(b)
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, (_, graph) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = V09.matmul(*fresh[2], block=(64, 64, 64), num_warps=4, split=3)
    torch.cuda.synchronize()
    found = [prepared.out for prepared, _ in graphs] + [eager]
    for (a, b), c in zip(fresh, found, strict=True):
        assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.gpu
def test_a_workspace_that_grows_leaves_a_captured_graph_right() -> None:
    problem = Problem(256, 256, 4096)
    prepared, graph = captured(V09, problem, V09.card.default.replace(block=(64, 64, 64), num_warps=4, split=4))
    for size in (1024, 2048):
        V09.matmul(
            *make_inputs(Problem(size, size, 2048), device="cuda"),
            block=(16, 16, 64),
            num_warps=1,
            split=2,
            programs=10000,
        )
    torch.cuda.empty_cache()
    filler = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(16)]
    a, b = make_inputs(problem, 5, "integers", "cuda")
    prepared.a.copy_(a)
    prepared.b.copy_(b)
    graph.replay()
    assert torch.equal(prepared.out.double(), a.double() @ b.double()) and len(filler) == 16


COMPILE = """
import json, sys, variants
from common.compilation import compile_variant
v = variants.get("v09")
block, warps, stages, programs, tma, arch = json.loads(sys.argv[1])
config = v.card.default.replace(
    block=tuple(block), num_warps=warps, num_stages=stages, programs=programs * 132, tma=tma, split=3
)
(found,) = compile_variant(v, arch, config, (1536, 1792, 6016))
print(json.dumps({"local": found.local_bytes, "ptx": found.asm["ptx"], "ttgir": found.asm["ttgir"]}))
"""


@pytest.mark.parametrize(
    ("config", "arch"),
    [
        (((128, 256, 64), 8, 3, 1, True), "sm_90"),
        (((128, 128, 64), 4, 3, 2, True), "sm_90"),
        (((128, 128, 64), 8, 4, 1, False), "sm_90"),
        (((64, 128, 64), 4, 4, 2, False), "sm_80"),
    ],
)
def test_compiled_kernels_are_pipelined_and_spill_nothing(config: tuple, arch: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, json.dumps([*config, arch])]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["local"] == 0
    by_tma = config[-1]
    assert ("cp.async.bulk.tensor" in found["ptx"]) == by_tma and ("cp.async.cg" in found["ptx"]) != by_tma
    assert ("wgmma.mma_async" in found["ptx"]) == (arch == "sm_90") and ("mma.sync" in found["ptx"]) == (
        arch == "sm_80"
    )
    # The innermost loops with a dot load nothing that the dot waits for at once, and nothing under a mask of K.
    assert "tt.load" not in "".join(_loops_with_a_dot(found["ttgir"]))


def _loops_with_a_dot(ttgir: str) -> list[str]:
    """The text of each innermost loop that multiplies."""
    inner = [part.split("scf.yield")[0] for part in ttgir.split("scf.for")[1:]]
    found = [part for part in inner if "warp_group_dot" in part or "tt.dot" in part]
    assert found, "no loop multiplies"
    return found
