"""Offline compilation: a kernel of a launch for a GPU that need not be there.

Arguments are specialised by Triton's own code, the one that a launch runs, so what is compiled is what would run:
strides of 1 become constants, pointers and sizes that 16 divides say so, schedule scalars (`do_not_specialize`) stay
plain. Gluon kernels are compiled as such.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import torch
import triton

from common.architectures import Architecture, architecture
from common.card import Config
from common.cluster_release import rewriting
from common.inspection import ptxas_resources
from common.interpreter import interpreting
from common.launcher import KernelCall, Prepared, Variant, plan, require_language


@dataclass
class Compiled:
    """What the compiler made of one kernel.

    `name`: the entry point's. `asm`: the stages' texts (`ttir`, `ttgir`, `llir`, `ptx` or `amdgcn`). `image`: the
    cubin, empty for AMD. `log`: what `ptxas -v` said. `shared_bytes`: dynamic shared memory, for a launch to ask for.
    """

    kernel: str
    name: str
    asm: dict[str, str]
    image: bytes
    log: str
    shared_bytes: int
    num_warps: int

    @property
    def registers(self) -> int:
        """Of a thread, on NVIDIA."""
        return ptxas_resources(self.log, self.name)["registers"]

    @property
    def local_bytes(self) -> int:
        """A thread's stack, spills included, on NVIDIA."""
        return ptxas_resources(self.log, self.name)["stack"]

    def as_dict(self) -> dict[str, Any]:
        """Everything but the code."""
        measured = {name: getattr(self, name) for name in ("registers", "local_bytes", "shared_bytes", "num_warps")}
        return {"kernel": self.kernel} | measured


def recorded_calls(variant: Variant, m: int, n: int, k: int, config: Config, sm_count: int) -> list[KernelCall]:
    """The kernel calls of a launch on contiguous fp16 tensors that hold no memory."""
    dtype = getattr(torch, variant.card.contract.dtypes[0])
    a = torch.empty(m, k, dtype=dtype, device="meta")
    b = torch.empty(k, n, dtype=dtype, device="meta")
    out = torch.empty(m, n, dtype=dtype, device="meta")
    schedule = plan(variant.card, m, n, k, config, sm_count)
    resolved = config.replace(programs=schedule.programs)
    return Prepared(variant, a, b, out, schedule, resolved, sm_count=sm_count).record()


def specialised(call: KernelCall, gpu: Any) -> tuple[Any, dict[str, Any]]:
    """The call's source with its signature as a launch on the target would specialise it, and the compiler's options.

    `gpu`: a `triton.backends.compiler.GPUTarget`.
    """
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel, backend = call.kernel, make_backend(gpu)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, keywords = binder(*call.args, **call.options)
    options, signature, constants, attributes = kernel._pack_args(backend, keywords, bound, specialization, keywords)
    source_class = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as source_class
    return source_class(kernel, signature, constants, attributes), options.__dict__


def compile_call(call: KernelCall, target: Architecture) -> Compiled:
    """Compile one recorded kernel for an architecture, past Triton's cache, which keeps no log of ptxas.

    Raises RuntimeError where kernels are interpreted, and what Triton raises where a kernel does not compile.
    """
    from triton.backends.compiler import GPUTarget

    if interpreting():
        raise RuntimeError("TRITON_INTERPRET is set: this process interprets kernels and cannot compile them")
    gpu = GPUTarget(target.backend, target.number, target.warp_size)
    source, options = specialised(call, gpu)
    said = io.StringIO()
    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        triton.knobs.compilation.always_compile = True
        triton.knobs.nvidia.dump_ptxas_log = True
        with rewriting(call.kernel):
            compiled = triton.compile(source, target=gpu, options=options)
    stages = ("ttir", "ttgir", "llir", target.assembly)
    asm = {stage: str(compiled.asm[stage]) for stage in stages if stage in compiled.asm}
    image = compiled.asm["cubin"] if target.backend == "cuda" else b""
    metadata = compiled.metadata
    log, warps = said.getvalue(), metadata.num_warps
    return Compiled(call.name, metadata.name, asm, image, log, metadata.shared, warps)


def compile_variant(
    variant: Variant, target: str, config: Config | None = None, size: tuple[int, int, int] = (4096, 4096, 4096)
) -> list[Compiled]:
    """Compile each kernel that a launch of this size starts on the architecture's GPU, in this process.

    `common.compiled` does it in parallel and keeps what it made. Raises UnsupportedProblem for an unknown architecture
    or a language that this Triton does not compile, and what `compile_call` raises.
    """
    require_language(variant.name, variant.card)
    gpu, config = architecture(target), config or variant.card.default
    return [compile_call(call, gpu) for call in recorded_calls(variant, *size, config, gpu.limits.sms)]
