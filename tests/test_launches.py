"""What holds for every launch: schedule scalars make no new kernels, multiply and add fuse, adds on C are relaxed."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import variants

ROOT = Path(__file__).parent.parent
WITH_KERNELS = [name for name in variants.all_names() + variants.ablation_names() if variants.get(name).card.kernels]
ADDING = [name for name in WITH_KERNELS if variants.get(name).card.adds_to_c]
SIZES = re.compile(r"[MNK]|stride_\w+|\w+_ptr|\w+_desc")
"""What a kernel may specialise on: the problem's sizes, strides and operands."""


def functions(name: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(variants.get(name).source)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_schedule_scalars_are_named_as_not_to_be_specialised(name: str) -> None:
    for kernel in variants.get(name).card.kernels:
        function = functions(name)[kernel]
        scalars = {a.arg for a in function.args.args if a.annotation is None and not SIZES.fullmatch(a.arg)}
        named: set[str] = set()
        for decorator in function.decorator_list:
            for keyword in getattr(decorator, "keywords", ()):
                if keyword.arg == "do_not_specialize":
                    named = set(ast.literal_eval(keyword.value))
        assert scalars <= named, f"{kernel}: {scalars - named}"


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_kernels_are_started_by_the_launcher_alone(name: str) -> None:
    """`kernel[grid](…)` anywhere in a variant would go past what `Launch.run` states."""
    for node in ast.walk(ast.parse(variants.get(name).source)):
        assert not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)), ast.unparse(node)


COMPILE = """
import json, sys
import variants
from triton.backends.compiler import GPUTarget
from common.architectures import architecture
from common.compilation import compile_call, recorded_calls, specialised

SHAPES = [((4096, 4096, 4096), 132), ((2048, 1536, 8192), 16), ((512, 384, 2048), 7), ((512, 384, 2048), 1)]

def key(call):
    source, _ = specialised(call, GPUTarget("cuda", 90, 32))
    plain = [i for i, p in enumerate(call.kernel.params) if not p.is_constexpr]
    types = {i: source.signature[call.kernel.params[i].name] for i in plain}
    # A descriptor's type holds a layout, which follows from constants.
    return repr([(kind, source.attrs.get((i,))) for i, kind in types.items() if not kind.startswith("tensordesc")])

wanted, adding = json.loads(sys.argv[1])
keys, fused, atomics = {}, {}, {}
for name in wanted:
    v = variants.get(name)
    calls = [c for size, p in SHAPES for c in recorded_calls(v, *size, v.card.default.replace(programs=p), 132)]
    for call in calls:
        keys.setdefault(name, {}).setdefault(call.name, []).append(key(call))
    fused[name] = [call.options.get("enable_fp_fusion") for call in calls]
for name, sem in adding:
    v = variants.get(name)
    config = v.card.default.replace(block=(32, 32, 32), num_warps=4, programs=7, split=2 if "split" in name else None)
    (call,) = [c for c in recorded_calls(v, 64, 64, 512, config.replace(sem=sem), 132) if "SEM" in c.options][:1]
    ptx = compile_call(call, architecture("sm_90")).asm["ptx"]
    lines = [line.strip() for line in ptx.splitlines() if "red." in line or "atom." in line]
    atomics[f"{name} {sem}"] = [line for line in lines if ".f16" in line]
print(json.dumps([keys, fused, atomics]))
"""
SEMS = [(name, "relaxed") for name in ADDING if name != "v00_acquire_release"] + [
    (name, "acq_rel") for name in ("v04_hoisted_segments", "v08_while_loop")
]


@functools.cache
def compiled() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keys of specialisation, options and atomics on fp16 in PTX, from a process that compiles."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, json.dumps([WITH_KERNELS, SEMS])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_four_shapes_and_grids_share_one_kernel(name: str) -> None:
    found = compiled()[0][name]
    assert set(found) == set(variants.get(name).card.kernels)
    assert {kernel: len(set(keys)) for kernel, keys in found.items()} == dict.fromkeys(found, 1)


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_every_launch_states_that_multiply_and_add_fuse(name: str) -> None:
    stated = compiled()[1][name]
    assert stated and all(value is True for value in stated)


@pytest.mark.parametrize(("name", "sem"), SEMS)
def test_adds_on_c_have_the_order_that_was_asked_for(name: str, sem: str) -> None:
    found = compiled()[2][f"{name} {sem}"]
    assert found, "no atomic add on C"
    assert all(f".{sem}." in line and ".add" in line for line in found), found
