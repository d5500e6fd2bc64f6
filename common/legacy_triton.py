"""Compiling today's variants with Triton 2.0 and 2.1, the versions of the thread's time, without a GPU.

Their language lacks two things that the variants say: `tl.dot` has no accumulator argument, and in 2.0 atomics take no
`sem`. Both are rewritten to what the thread wrote then. Their `compile` builds a launcher and a handle at its end, both
of which ask for a GPU; they are left out.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
from packaging.version import Version

from common.architectures import Architecture
from common.compilation import Compiled
from common.errors import UnsupportedProblem
from common.launcher import KernelCall

POINTER_TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}


class _Rewriter(ast.NodeTransformer):
    """`tl.dot(a, b, acc, out_dtype=T)` to `acc + tl.dot(a, b)`; no `sem` where the version has none."""

    def __init__(self, version: str) -> None:
        self.first = Version(version) < Version("2.1")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name.startswith("tl.atomic_") and self.first:
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "sem"]
        if name != "tl.dot" or len(node.args) < 3:
            return node
        product = ast.Call(node.func, node.args[:2], [] if self.first else node.keywords)
        return ast.BinOp(node.args[2], ast.Add(), product)


def translate(source: str, version: str) -> str:
    """A variant's source in the language of an old Triton."""
    return ast.unparse(ast.fix_missing_locations(_Rewriter(version).visit(ast.parse(source))))


def load(path: Path, version: str) -> ModuleType:
    """A variant's module, translated. Its text stays on disk while the process lives: old Tritons read it again."""
    place = Path(tempfile.mkdtemp(prefix="stream-k-zoo-")) / path.name
    place.write_text(translate(path.read_text(), version))
    spec = importlib.util.spec_from_file_location(path.stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def compile_call(call: KernelCall, architecture: Architecture, ptxas: str) -> Compiled:
    """Compile one recorded kernel. Raises UnsupportedProblem for an architecture that this Triton does not know."""
    if architecture.name not in ("sm_80", "sm_86"):
        raise UnsupportedProblem(f"Triton {triton.__version__} compiles for sm_80 and sm_86, not {architecture.name}")
    signature, constants, config = _specialised(call)
    options = {name: call.options[name] for name in ("num_warps", "num_stages")}
    # A cache of its own: 2.0.0's key leaves out the architecture, so what it made for one would be taken for another.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        made = _without_launcher()(
            call.kernel, signature=signature, constants=constants, configs=[config], cc=architecture.number, **options
        )
    texts = {stage: made.asm[stage] for stage in ("ttir", "ttgir", "llir", "ptx")}
    image, log = _assemble(texts["ptx"], architecture, ptxas)
    shared = made.metadata["shared"]
    return Compiled(call.name, made.metadata["name"], texts, image, log, shared, options["num_warps"])


def _without_launcher() -> Any:
    """This Triton's `compile`, made to return what it compiled instead of a handle on a GPU."""
    module = sys.modules["triton.compiler"]
    if Version(triton.__version__) >= Version("2.1"):
        module = sys.modules["triton.compiler.compiler"]
    module.make_stub = lambda *ignored: None
    module.CompiledKernel = lambda *parts: SimpleNamespace(metadata=parts[-2], asm=parts[-1])
    return module.compile


def _specialised(call: KernelCall) -> tuple[dict[int, str], dict[int, Any], Any]:
    """Types, constants and attributes by position, as the old launchers found them.

    A pointer or an integer that 16 divides says so, 1 becomes a constant; neither for `do_not_specialize`.
    """
    from triton.compiler import instance_descriptor

    kernel = call.kernel
    values = dict(zip(kernel.arg_names, call.args, strict=False)) | call.options
    signature, constants, by_sixteen, ones = {}, {}, set(), set()
    for position, name in enumerate(kernel.arg_names):
        value, plain = values[name], position in kernel.do_not_specialize
        if position in kernel.constexprs:
            constants[position] = value
        elif isinstance(value, torch.Tensor):
            signature[position] = POINTER_TYPES[value.dtype]
            by_sixteen.add(position)
        else:
            signature[position] = "i32"
            if value == 1 and not plain:
                ones.add(position)
                constants[position] = 1
            elif value % 16 == 0 and not plain:
                by_sixteen.add(position)
    return signature, constants, instance_descriptor(divisible_by_16=by_sixteen, equal_to_1=ones)


def _assemble(ptx: str, architecture: Architecture, ptxas: str) -> tuple[bytes, str]:
    """The cubin and what `ptxas -v` says, by the assembler of this Triton's wheel with the options it uses.

    Raises RuntimeError with its words where it refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(re.sub(r"\x00", "", ptx))
        command = [ptxas, "-v", f"--gpu-name={architecture.name}", str(source), "-o", str(image)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas ended with code {done.returncode}: {done.stderr.strip()}")
        return image.read_bytes(), done.stderr
