"""The Gluon kernels run on the CPU from what the compiler makes of them, in random orders, to the right results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ttgir import Machine, Stalled, arguments_of

import variants
from common.card import Config
from common.launcher import GLUON_TRITON, Prepared, has_language, plan
from common.problem import Problem, Values, make_inputs
from common.reference import reference

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(
    not has_language(variants.get("v10").card), reason=f"Gluon as of Triton {GLUON_TRITON} is needed"
)
LAYOUTS = ("row", "both_transposed")
COMPILE = """
import json, sys, tempfile
import torch, triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
import variants
from common.card import Config
from common.compilation import specialised
from common.launcher import Prepared, plan
from common.problem import Problem, make_inputs

target = GPUTarget("cuda", 90, 32)
backend = CUDABackend(target)


def lowered(name, config, problem):
    v, (a, b) = variants.get(name), make_inputs(problem)
    schedule = plan(v.card, problem.m, problem.n, problem.k, config, 4)
    out = torch.empty(problem.m, problem.n, dtype=a.dtype)
    call = Prepared(v, a, b, out if problem.layout == "row" else out.t().contiguous().t(), schedule, config).record()[0]
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source, options = specialised(call, target)
    options = backend.parse_options(options)
    helpers = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(target, options, *helpers, context)
    return backend.gluon_to_ttgir(module, {}, options, 90).str_nodebug()


jobs = [(name, Config(**c | {"block": tuple(c["block"])}), Problem(*p)) for name, c, p in json.load(sys.stdin)]
print(json.dumps([lowered(*job) for job in jobs]))
"""


def config(name: str, split: int | None, stages: int, **changes: object) -> Config:
    default = variants.get(name).card.default
    return default.replace(**{"block": (64, 64, 64), "num_warps": 4, "num_stages": stages, "split": split} | changes)


CASES = [
    ("v10", config("v10", 1, 2)),
    ("v10", config("v10", 3, 3)),
    ("v10", config("v10", 2, 4)),
    ("v12", config("v12", 3, 3, two_tiles=False)),
    ("v12", config("v12", 5, 2, two_tiles=True)),
    ("v11", config("v11", 1, 3)),
    ("v11", config("v11", 2, 2)),
    ("v11", config("v11", 4, 3)),
    ("v13", config("v13", 2, 3)),
    ("v14", config("v14", 1, 2, block=(64, 96, 64))),
    ("v14", config("v14", 3, 3, block=(64, 96, 64))),
    ("v15", config("v15", 1, 2, block=(128, 64, 64))),
    ("v15", config("v15", 3, 3, block=(128, 64, 64))),
    ("v16", config("v16", 2, 3, block=(128, 96, 64))),
    ("v17", config("v17", 1, 3, block=(64, 96, 64))),
    ("v17", config("v17", 3, 2, block=(96, 64, 64))),
    ("v17", config("v17", 1, 3, block=(160, 64, 64))),
    ("v18", config("v18", 1, 2, block=(128, 128, 64))),
    ("v18", config("v18", 3, 3, block=(128, 128, 64))),
    ("v19", config("v19", 1, 2, block=(384, 96, 64))),
    ("v19", config("v19", 3, 3, block=(384, 96, 64))),
    ("v20", config("v20", 2, 3)),
    ("v21", config("v21", 1, 3, block=(64, 96, 64))),
    ("v21", config("v21", 3, 2, block=(96, 64, 64))),
    ("v21", config("v21", 2, 3, block=(160, 64, 64))),
]
LABELS = [f"{name} {c.num_stages} stages split {c.split}" for name, c in CASES]
SIZES = (200, 264, 712)
"""4 x 5 tiles with edges of 12 elements, 12 iterations of which the last has 8: five whole waves of four programs."""


@pytest.fixture(scope="module")
def kernels() -> dict[tuple[int, str], str]:
    """The lowered kernel of every case in every layout, made in a process that does not interpret."""
    wanted = [(index, layout) for index in range(len(CASES)) for layout in LAYOUTS]
    jobs = []
    for index, layout in wanted:
        name, c = CASES[index]
        jobs.append((name, vars(c), (*SIZES, "float16", layout)))
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command, jobs = [sys.executable, "-c", COMPILE], json.dumps(jobs)
    done = subprocess.run(command, cwd=ROOT, env=environment, input=jobs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(wanted, json.loads(done.stdout), strict=True))


def prepared(
    index: int, layout: str, sizes: tuple[int, int, int], sms: int = 4, values: Values = "integers"
) -> Prepared:
    name, c = CASES[index]
    v = variants.get(name)
    a, b = make_inputs(Problem(*sizes, layout=layout), values=values)
    out = torch.full(sizes[:2], torch.nan, dtype=a.dtype)
    if layout != "row":
        out = out.t().contiguous().t()
    return Prepared(v, a, b, out, plan(v.card, *sizes, c, sms), c)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", range(len(CASES)), ids=LABELS)
def test_right_in_every_order(kernels: dict, index: int, layout: str) -> None:
    for seed, resident in ((1, 1), (2, 3), (3, 100)):
        case = prepared(index, layout, SIZES, sms=4 + seed)
        task = case.task()
        case.variant.launch(task)
        (call,) = task.calls
        Machine(kernels[index, layout], seed, resident).run(call.programs, arguments_of(call))
        assert torch.equal(case.out.double(), case.a.double() @ case.b.double()), (seed, resident)
        assert task.counters is None or not task.counters.any()


@pytest.mark.parametrize("sizes", [(8, 16, 8), (64, 64, 64), (136, 72, 1096)])
@pytest.mark.parametrize("index", range(len(CASES)), ids=LABELS)
def test_other_sizes_need_no_other_kernel(kernels: dict, index: int, sizes: tuple[int, int, int]) -> None:
    case = prepared(index, "row", sizes)
    (call,) = case.record()
    Machine(kernels[index, "row"], 5).run(call.programs, arguments_of(call))
    assert torch.equal(case.out.double(), case.a.double() @ case.b.double())


@pytest.mark.parametrize("index", [1, 4, 7, 10])
def test_bits_do_not_depend_on_the_order(kernels: dict, index: int) -> None:
    results = []
    for seed in range(4):
        case = prepared(index, "row", SIZES, values="normal")
        (call,) = case.record()
        Machine(kernels[index, "row"], seed).run(call.programs, arguments_of(call))
        results.append(case.out)
        assert reference(case.a, case.b).check(case.out).ok
    assert all(torch.equal(result, results[0]) for result in results)


def damaged(text: str, pattern: str, replacement: str) -> str:
    found = re.sub(pattern, replacement, text, count=1)
    assert found != text
    return found


@pytest.mark.parametrize("name", ["v10", "v11", "v12", "v14"])
def test_a_stage_that_is_never_handed_back_stalls(kernels: dict, name: str) -> None:
    index = next(i for i, (variant, _) in enumerate(CASES) if variant == name)
    broken = damaged(kernels[index, "row"], r"ttng\.arrive_barrier .*", "ttg.barrier all")
    case = prepared(index, "row", SIZES)
    (call,) = case.record()
    with pytest.raises(Stalled, match="program 0"):
        Machine(broken, 1).run(call.programs, arguments_of(call))


@pytest.mark.parametrize("name", ["v10", "v11", "v12", "v14"])
def test_a_stage_that_is_handed_back_too_early_gives_wrong_numbers(kernels: dict, name: str) -> None:
    index = next(i for i, (variant, _) in enumerate(CASES) if variant == name)
    broken = damaged(kernels[index, "row"], r"pendings = [12]\b", "pendings = 6")
    case = prepared(index, "row", SIZES)
    (call,) = case.record()
    Machine(broken, 1).run(call.programs, arguments_of(call))
    assert not torch.equal(case.out.double(), case.a.double() @ case.b.double())


def test_registers_that_are_written_while_a_wgmma_reads_them_give_wrong_numbers(kernels: dict) -> None:
    index = next(i for i, (variant, _) in enumerate(CASES) if variant == "v21")
    broken = damaged(kernels[index, "row"], r"pendings = 2\b", "pendings = 4")
    case = prepared(index, "row", SIZES)
    (call,) = case.record()
    Machine(broken, 1).run(call.programs, arguments_of(call))
    assert not torch.equal(case.out.double(), case.a.double() @ case.b.double())


@pytest.mark.parametrize("index", [1, 2, 3, 4, 10])
def test_a_counter_that_is_not_set_back_is_noticed(kernels: dict, index: int) -> None:
    broken = damaged(kernels[index, "row"], r"tt\.store (%\w+), (%c0_i32\w*) : !tt\.ptr<i32>", "ttg.barrier all")
    case = prepared(index, "row", SIZES)
    task = case.task()
    case.variant.launch(task)
    Machine(broken, 1).run(task.calls[0].programs, arguments_of(task.calls[0]))
    assert task.counters.any() or not case.schedule.sk_tiles
