"""The kernels in Gluon: compiled for sm_90 everywhere, run where there is a Hopper GPU."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import triton

import variants
from common import tma
from common.card import Config
from common.errors import UnsupportedProblem
from common.launcher import GLUON_TRITON, Prepared, Variant, has_language, is_sum, prepare
from common.problem import Problem, make_inputs
from common.quick import QuickLaunch
from common.reference import reference
from variants.choice import costs

NAMES = [name for name in variants.names() if variants.get(name).card.language == "gluon"]
CONFIGS = [(name, config) for name in NAMES for config in variants.get(name).module.CONFIGS]
LABELS = [f"{name[:3]} {config.label()}" for name, config in CONFIGS]
LOCAL_BYTES = {"v19_square_tiles": 8}
"""Of a thread, outside the MAC loop: 144 registers of accumulators leave no place for two values of a whole tile."""
WITH_CONFIGS = pytest.mark.parametrize(("name", "config"), CONFIGS, ids=LABELS)
ROOT = Path(__file__).parent.parent
WITH_GLUON = pytest.mark.skipif(
    not has_language(variants.get("v10").card), reason=f"Gluon as of Triton {GLUON_TRITON} is needed"
)
COMPILE = """
import json, re, sys
import variants
from common.compilation import compile_variant

found = []
for name in sys.argv[1:]:
    tiles = {config.block + (config.num_warps,): config for config in variants.get(name).module.CONFIGS}
    for config in tiles.values():
        for kernel in compile_variant(variants.get(name), "sm_90", config):
            ptx = kernel.asm["ptx"]
            wgmma = len(re.findall(r"wgmma\\.mma_async", ptx))
            found.append(kernel.as_dict() | {"wgmma": wgmma, "block": config.block, "warps": config.num_warps})
            found[-1]["variant"] = name
            found[-1]["tma"] = len(re.findall(r"cp\\.async\\.bulk\\.tensor\\.2d\\.shared", ptx))
            found[-1]["partials"] = len(re.findall(r"ld\\.(?:global\\.cg|shared::cluster)\\.v[24]", ptx))
            found[-1]["split"] = config.split
            found[-1]["prefetched"] = re.findall(r"prefetch\\.param\\.tensormap \\[\\w+_param_(\\d+)\\]", ptx)
            found[-1]["loaded"] = re.findall(r"\\.param \\.align 64 \\.b8 \\w+_param_(\\d+)\\[128\\]", ptx)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled() -> list[dict]:
    """Every tile of every Gluon kernel, split as far as its configs go, in a process that does not interpret."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, *NAMES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@WITH_GLUON
def test_each_tile_compiles_for_sm_90_with_wgmma_and_tma_and_hardly_any_local_memory(compiled: list[dict]) -> None:
    assert {kernel["variant"] for kernel in compiled} == set(NAMES)
    assert {(k["variant"], *k["block"]) for k in compiled} == {(name, *config.block) for name, config in CONFIGS}
    for kernel in compiled:
        block_m, block_n, block_k = kernel["block"]
        assert kernel["local_bytes"] <= LOCAL_BYTES.get(kernel["variant"], 0), kernel
        assert kernel["shared_bytes"] <= 232448, kernel
        # One a 16-deep step of K and 64 rows of a warpgroup.
        block_m, block_n, block_k = variants.get(kernel["variant"]).card.cta_block((block_m, block_n, block_k))
        rows = max((block_n if is_sum(block_m) else block_m) // (16 * kernel["warps"]), 1)
        assert kernel["wgmma"] % (rows * block_k // 16) == 0 and kernel["wgmma"] > 0, kernel
        assert kernel["tma"] > 0, kernel
        # A thread reads the partial sums, from L2 or from the cluster's shared memory, in vectors.
        vectors = block_m * block_n // (kernel["warps"] * 32) // 4
        assert kernel["partials"] in ((0,) if kernel["split"] == 1 else (vectors, 2 * vectors)), kernel


@WITH_GLUON
def test_the_descriptors_that_are_prefetched_are_those_of_a_and_b(compiled: list[dict]) -> None:
    found = [kernel for kernel in compiled if kernel["variant"].startswith("v13")]
    assert found and all(kernel["prefetched"] == kernel["loaded"] and len(kernel["loaded"]) == 2 for kernel in found)


@WITH_GLUON
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_the_refusal_names_the_variant_that_runs(name: str) -> None:
    a, b = make_inputs(Problem(64, 64, 64))
    with pytest.raises(UnsupportedProblem, match=r"no interpreter; v09"):
        variants.get(name).matmul(a, b)


@WITH_GLUON
def test_another_architecture_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "variants", "compile", NAMES[0], "--arch", "sm_80"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "not written for sm_80" in done.stderr


@pytest.mark.parametrize(
    ("shape", "stride", "transposed"),
    [
        ((64, 64), (64, 1), False),
        ((64, 64), (1, 64), True),
        ((64, 60), (72, 1), False),
        ((64, 60), (60, 1), None),
        ((64, 64), (0, 1), None),
        ((64, 64), (128, 2), None),
        ((1, 60), (60, 1), False),
        ((64, 1), (1, 1), True),
        ((64, 1), (8, 1), False),
        ((1, 1), (1, 1), False),
    ],
)
def test_what_the_tma_can_address(shape: tuple, stride: tuple, transposed: bool | None) -> None:
    x = torch.empty_strided(shape, stride, dtype=torch.float16)
    assert tma.is_transposed(x) is transposed
    if transposed is None:
        with pytest.raises(UnsupportedProblem, match=r"A has strides .* v09 takes any"):
            tma.require("A", x)
    else:
        tma.require("A", x)


def test_an_address_that_16_does_not_divide_is_refused() -> None:
    x = torch.empty(64 * 64 + 1, dtype=torch.float16)[1:].view(64, 64)
    assert tma.is_transposed(x) is None


def protocol(name: str) -> list[str]:
    """What a variant does to partial sums and counters, in the order of the source, without the language's name."""
    found = []
    for node in ast.walk(ast.parse(variants.get(name).source)):
        if not isinstance(node, ast.FunctionDef) or "counters_ptr" not in {a.arg for a in node.args.args}:
            continue
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            text = ast.unparse(call)
            if re.match(r"(tl|gl)\.(store|load|atomic_add|debug_barrier|barrier)\(", text) and "c_ptr" not in text:
                found.append((call.lineno, call.col_offset, text))
    steps = [re.sub(r"^\w+\.(debug_)?", "", text) for _, _, text in sorted(set(found))]
    plain = [re.sub(r"\b(left|right)_", "", step).replace("part.to(int64)", "part") for step in steps]
    named = [re.sub(r"in_register_order\(.*?\)|vector", "VECTOR", step) for step in plain]
    # Two accumulators do the same one after the other.
    return [step for step, _ in itertools.groupby(named)]


def test_v09_is_the_twin_that_can_be_explored() -> None:
    """v10 and v12 do to partial sums and counters, step by step, what v09 does, which interpreter and explorer run."""
    pattern = [
        r"store\(slot \+ part",
        r"barrier\(\)",
        r"atomic_add\(counters_ptr \+ tile, 1, sem='acq_rel', scope='gpu'\)",
        r"load\(slot \+ elements, cache_modifier='.cg'\)",
        r"store\(counters_ptr \+ tile, 0\)",
    ]
    for name in ("v09", "v10", "v12", "v14", "v15", "v16", "v17"):
        steps = protocol(name)
        assert len(steps) == len(pattern), (name, steps)
        for step, wanted in zip(steps, pattern, strict=True):
            assert re.match(wanted, step), (name, step, wanted)
        source = variants.get(name).source
        assert re.search(r"atomic_add\(.*\) == (split|peers) - 1", source)
        assert re.search(r"for _ in range\((split|peers)\):", source)


def split_in(name: str, wanted: int | None) -> dict[str, int | None]:
    """A split for a config: a cluster's is a power of two."""
    clusters = variants.get(name).card.decomposition == "cluster_ranges"
    return {"split": min(1 << wanted.bit_length() - 1, 8) if clusters and wanted else wanted}


def small(name: str, block: tuple[int, int, int]) -> Config:
    """A config with few stages and this block for each CTA, or the next that it can have."""
    v, (block_m, block_n, block_k) = variants.get(name), block
    rows, columns = v.card.ctas // v.card.cta_columns, v.card.cta_columns
    odd = v.card.contract.three_quarters
    height = 192 if "BLOCK_M" in odd else block_m
    width = 3 * block_n // 2 if odd or v.card.contract.two_powers else block_n
    warps = 8 if height * width > 2**15 else 4
    return v.card.default.replace(block=(rows * height, columns * width, block_k), num_warps=warps, num_stages=3)


def run(v: Variant, a: torch.Tensor, b: torch.Tensor, config: Config) -> Prepared:
    """Run on an output full of NaN."""
    out = torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype, device=a.device)
    prepared = prepare(v, a, b, out, config)
    prepared.run()
    torch.cuda.synchronize()
    return prepared


def check(v: Variant, problem: Problem, config: Config, values: str = "normal") -> Prepared:
    a, b = make_inputs(problem, values=values, device="cuda")
    prepared = run(v, a, b, config)
    exact = reference(a, b)
    found = exact.check(prepared.out)
    assert found.ok, (problem, config.label(), config.split, found)
    if values == "integers":
        assert torch.equal(prepared.out.double(), exact.c)
    return prepared


@pytest.mark.gpu
@WITH_CONFIGS
@pytest.mark.parametrize("shape", [(128, 256, 64), (512, 768, 448), (1536, 1792, 1024), (200, 328, 72), (8, 16, 8)])
def test_each_config_is_right_whole_split_and_at_edges(name: str, config: Config, shape: tuple) -> None:
    for split in (1, 2, 3, 7, 13, None) if config.split is None else (config.split,):
        for values in ("normal", "integers"):
            check(variants.get(name), Problem(*shape), config.replace(split=split), values)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [(64, 64, 64), (128, 128, 64)])
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, "float16") for layout in ("a_transposed", "b_transposed", "both_transposed", "strided")]
    + [("row", "bfloat16")],
)
def test_layouts_and_dtypes(name: str, block: tuple, layout: str, dtype: str) -> None:
    config = small(name, block)
    for split in (1, 2):
        check(variants.get(name), Problem(264, 200, 456, dtype, layout), config.replace(split=split))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("programs", [1, 3, 7, 132])
def test_programs_that_do_several_units(name: str, programs: int) -> None:
    config = small(name, (64, 64, 64)).replace(programs=programs)
    for split in (1, 2, 5):
        check(variants.get(name), Problem(448, 384, 640), config.replace(**split_in(name, split)), "integers")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 8, 8), (129, 136, 40), (8, 1, 64), (1, 1, 8), (1000, 1000, 1000), (257, 127, 264)]
)
def test_ragged_shapes(name: str, m: int, n: int, k: int) -> None:
    layout = "row" if n % 8 == 0 else "b_transposed"
    for split in (1, 2, None):
        check(variants.get(name), Problem(m, n, k, layout=layout), variants.get(name).card.default.replace(split=split))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_the_operands_is_read_or_written(name: str) -> None:
    m, n, k = 200, 136, 72
    a, b = make_inputs(Problem(m, n, k), values="integers", device="cuda")
    around = [
        torch.full((rows + 128, columns + 128), torch.nan, dtype=a.dtype, device="cuda")
        for rows, columns in ((m, k), (k, n), (m, n))
    ]
    wide_a, wide_b, wide_c = (x[64:-64, 64:-64] for x in around)
    wide_a.copy_(a)
    wide_b.copy_(b)
    for split in (1, 2):
        variants.get(name).matmul(wide_a, wide_b, wide_c, split=split)
        assert torch.equal(wide_c.double(), a.double() @ b.double())
        wide_c.fill_(torch.nan)
        assert torch.isnan(around[2]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_an_output_that_the_tma_cannot_write(name: str) -> None:
    a, b = make_inputs(Problem(200, 136, 72), values="integers", device="cuda")
    exact = a.double() @ b.double()
    columns = torch.empty(136, 200, dtype=a.dtype, device="cuda").t()
    spread = torch.empty(200, 136 * 3, dtype=a.dtype, device="cuda")[:, ::3]
    for out in (columns, spread):
        assert torch.equal(variants.get(name).matmul(a, b, out.fill_(torch.nan), split=2).double(), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", [2, 3, 8])
def test_bits_do_not_depend_on_who_comes_last(name: str, split: int) -> None:
    a, b = make_inputs(Problem(640, 512, 4096), device="cuda")
    config = variants.get(name).card.default.replace(**split_in(name, split))
    first = run(variants.get(name), a, b, config).out
    for _ in range(50):
        assert torch.equal(run(variants.get(name), a, b, config).out, first)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_replayed_100_times_with_other_inputs(name: str) -> None:
    problem, v = Problem(256, 384, 1024), variants.get(name)
    a, b = make_inputs(problem, values="integers", device="cuda")
    prepared = run(v, a, b, v.card.default.replace(**split_in(name, 3)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.run()
    for seed in range(100):
        for x, fresh in zip((a, b), make_inputs(problem, seed, "integers", "cuda"), strict=True):
            x.copy_(fresh)
        graph.replay()
        assert torch.equal(prepared.out.double(), a.double() @ b.double())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_streams_and_graphs_at_the_same_time(name: str) -> None:
    v = variants.get(name)
    config = v.card.default.replace(split=4)
    jobs = []
    for seed in range(3):
        a, b = make_inputs(Problem(384, 384, 4096), seed, "integers", "cuda")
        jobs.append((run(v, a, b, config), a.double() @ b.double(), torch.cuda.Stream()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        jobs[2][0].run()
    for prepared, _, _ in jobs:
        prepared.out.fill_(torch.nan)
    torch.cuda.synchronize()
    for _ in range(20):
        for prepared, _, stream in jobs[:2]:
            with torch.cuda.stream(stream):
                prepared.run()
        with torch.cuda.stream(jobs[2][2]):
            graph.replay()
    torch.cuda.synchronize()
    for prepared, exact, _ in jobs:
        assert torch.equal(prepared.out.double(), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_inf_stays_in_its_row_and_overflow_is_inf_everywhere(name: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(512, 512, 512), device="cuda")
    a[3] = torch.inf
    out = v.matmul(a, b, programs=4, **split_in(name, 3))
    assert torch.isfinite(out[:3]).all() and torch.isfinite(out[4:]).all() and not torch.isfinite(out[3]).any()
    ones = torch.full((128, 16384), 16.0, dtype=torch.float16, device="cuda")
    assert torch.isposinf(v.matmul(ones, ones.t(), split=4)).all()
    assert torch.isfinite(v.matmul(ones.bfloat16(), ones.t().bfloat16(), split=4)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_empty_dimensions(name: str, m: int, n: int, k: int) -> None:
    a, b = make_inputs(Problem(m, n, k), device="cuda")
    c = variants.get(name).matmul(a, b)
    assert c.shape == (m, n) and not c.any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["expanded", "offset"])
def test_what_the_tma_cannot_address_is_refused_before_anything_is_written(name: str, layout: str) -> None:
    a, b = make_inputs(Problem(64, 64, 64, layout=layout), device="cuda")
    out = torch.full((64, 64), torch.nan, dtype=a.dtype, device="cuda")
    with pytest.raises(UnsupportedProblem, match="v09 takes any strides"):
        variants.get(name).matmul(a, b, out)
    assert torch.isnan(out).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_another_shape_compiles_nothing(name: str) -> None:
    v = variants.get(name)

    def count() -> int:
        return sum(len(kernels) for kernels, *_ in getattr(v.module, v.card.kernels[0]).device_caches.values())

    check(v, Problem(512, 512, 512), v.card.default.replace(split=2))
    before = count()
    for m, n, k in [(16, 256, 1024), (1024, 1152, 72), (128, 648, 8), (1, 8, 8)]:
        check(v, Problem(m, n, k), v.card.default.replace(split=2))
    assert count() == before


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*NAMES, "v09"])
@pytest.mark.parametrize("split", [1, 2])
def test_a_quick_launch_takes_other_tensors_and_little_host_time(name: str, split: int) -> None:
    problem, v = Problem(256, 384, 1024), variants.get(name)
    a, b = make_inputs(problem, device="cuda")
    quick = QuickLaunch(prepare(v, a, b, config=v.card.default.replace(split=split)))
    for seed in range(5):
        a, b = make_inputs(problem, seed, "integers", "cuda")
        out = torch.full((256, 384), torch.nan, dtype=a.dtype, device="cuda")
        assert quick.fits(a, b, out)
        quick(a, b, out)
        assert torch.equal(out.double(), a.double() @ b.double())
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            quick(a, b, out)
        times.append((time.perf_counter() - began) / 50)
    if name in {variants.resolve(family.variant) for family in costs().families}:
        # Others are not chosen by `matmul`; v19's eight descriptors take longer.
        assert statistics.median(times) < 20e-6


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_launch_of_a_matrix_with_itself_forgets_that(name: str) -> None:
    v = variants.get(name)
    a, b = make_inputs(Problem(128, 128, 128), values="integers", device="cuda")
    out = torch.empty_like(a)
    quick = QuickLaunch(prepare(v, a, a, out))
    quick(a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())


def test_an_older_triton_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr("numpy.__version__", "2.3.5")
    a, b = make_inputs(Problem(64, 64, 64))
    with pytest.raises(
        UnsupportedProblem, match=r"as of Triton 3\.9; this is 3\.6\.0: install a newer Triton, or use v09"
    ):
        prepare(variants.get("v10"), a, b)
    assert prepare(variants.get("v09"), a, b, config=variants.get("v09").card.default).schedule.tiles


@WITH_GLUON
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("ctas", "along"), [(1, 0), (2, 0), (2, 1), (4, 0), (2, None)])
def test_a_descriptor_has_the_layout_of_its_block_whatever_came_before(dtype, ctas: int, along: int | None) -> None:
    """Layouts are kept: none may be handed out for another block, dtype or cluster."""
    from triton.experimental.gluon import language as gl

    for transposed in (False, True):
        for block in ((128, 64), (64, 64), (64, 128)):
            x = torch.empty((512, 256), dtype=dtype)
            x = x.t().contiguous().t() if transposed else x
            found = tma.descriptor(x, block, ctas, along)
            sizes = [size * ctas if dimension == along else size for dimension, size in enumerate(block)]
            split = along
            if transposed:
                sizes, split = sizes[::-1], None if along is None else 1 - along
            bases = [
                [(1 << bit) * (split == dimension) for dimension in range(2)] for bit in range(ctas.bit_length() - 1)
            ]
            element = getattr(gl, str(dtype).removeprefix("torch."))
            assert found.layout == gl.NVMMASharedLayout.get_default_for(sizes, element, cga_layout=bases or None)
            assert found.block_shape == sizes and found.described is x
