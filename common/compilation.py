"""Offline compilation: every kernel of a launch for a GPU that need not be there.

Arguments are specialised as a launch would specialise them: strides of 1 become constants, pointers and sizes that 16
divides say so, and schedule scalars (`do_not_specialize`) stay plain.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from common.card import Config
from common.errors import UnsupportedProblem, nearest
from common.interpreter import interpreting
from common.launcher import KernelCall, Prepared, Variant, plan

ARCHITECTURES = {"sm_80": 108, "sm_86": 82, "sm_90": 132, "sm_100": 148, "sm_120": 188}
"""Architectures and the SMs of the GPU that stands for each: A100, RTX 3090, H100/H200, B200, RTX Pro 6000."""

POINTER_TYPES = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}


@dataclass(frozen=True)
class CompiledKernel:
    """What a compiled kernel says about itself. `local_bytes`: a thread's stack, spills included."""

    variant: str
    kernel: str
    architecture: str
    config: Config
    registers: int
    local_bytes: int
    shared_bytes: int
    asm: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Everything but the code, for `--json`. `n_spills` is Triton's unit: local bytes divided by 4."""
        return {
            "variant": self.variant,
            "kernel": self.kernel,
            "architecture": self.architecture,
            "config": self.config.label(),
            "registers": self.registers,
            "local_bytes": self.local_bytes,
            "n_spills": self.local_bytes // 4,
            "shared_bytes": self.shared_bytes,
        }


def target(architecture: str) -> GPUTarget:
    """Triton's target for `sm_90` and the like; UnsupportedProblem naming the known ones otherwise."""
    if architecture not in ARCHITECTURES:
        raise UnsupportedProblem(f"no architecture {architecture!r}; nearest: {nearest(architecture, ARCHITECTURES)}")
    return GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)


def recorded_calls(variant: Variant, m: int, n: int, k: int, config: Config, sm_count: int) -> list[KernelCall]:
    """The kernel calls of a launch on tensors that hold no memory."""
    a = torch.empty(m, k, dtype=torch.float16, device="meta")
    b = torch.empty(k, n, dtype=torch.float16, device="meta")
    out = torch.empty(m, n, dtype=torch.float16, device="meta")
    schedule = plan(variant.card, m, n, k, config, sm_count)
    return Prepared(
        variant, a, b, out, schedule, config.replace(programs=schedule.programs), sm_count=sm_count
    ).record()


def specialised(call: KernelCall) -> ASTSource:
    """The call's signature as a launch would specialise it (contiguous, aligned tensors)."""
    params = call.kernel.params
    values = dict(zip((p.name for p in params), call.args, strict=False)) | {
        p.name: call.options[p.name] for p in params if p.name in call.options
    }
    signature, constants, attributes = {}, {}, {}
    for position, param in enumerate(params):
        value = values[param.name]
        plain = param.do_not_specialize
        if param.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not plain):
            signature[param.name], constants[(position,)] = "constexpr", value
        elif isinstance(value, TensorDescriptor):
            element = POINTER_TYPES[value.base.dtype].removeprefix("*")
            signature[param.name] = f"tensordesc<{element}{value.block_shape}>"
        elif hasattr(value, "__mangle__"):
            signature[param.name] = value.__mangle__()
        elif isinstance(value, torch.Tensor):
            signature[param.name] = POINTER_TYPES[value.dtype]
            attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[param.name] = "i32"
            if value % 16 == 0 and not plain:
                attributes[(position,)] = [["tt.divisibility", 16]]
    return _source_type(call)(call.kernel, signature, constants, attributes)


def _source_type(call: KernelCall) -> type[ASTSource]:
    if not call.kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def compile_variant(
    variant: Variant, architecture: str, config: Config | None = None, size: tuple[int, int, int] = (4096, 4096, 4096)
) -> list[CompiledKernel]:
    """Compile each kernel that a launch of this size starts on the architecture's GPU.

    Raises UnsupportedProblem for an unknown architecture, RuntimeError where kernels are interpreted.
    """
    gpu = target(architecture)
    if interpreting():
        raise RuntimeError("TRITON_INTERPRET is set: this process interprets kernels and cannot compile them")
    allowed = variant.card.contract.architectures
    if allowed and architecture not in allowed:
        raise UnsupportedProblem(f"{variant.name} is written for {', '.join(allowed)}, not for {architecture}")
    config = config or variant.card.default
    return [
        _compile(variant, call, gpu, architecture, config)
        for call in recorded_calls(variant, *size, config, ARCHITECTURES[architecture])
    ]


def _compile(variant: Variant, call: KernelCall, gpu: GPUTarget, architecture: str, config: Config) -> CompiledKernel:
    parameters = {param.name for param in call.kernel.params}
    options = {name: value for name, value in call.options.items() if name not in parameters}
    compiled = triton.compile(specialised(call), target=gpu, options=options)
    registers, stack = resources(compiled.asm["cubin"], compiled.metadata.name)
    return CompiledKernel(
        variant.name, call.name, architecture, config, registers, stack, compiled.metadata.shared, compiled.asm
    )


def resources(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as `cuobjdump --dump-resource-usage` reads them off the code."""
    text = _cuobjdump(cubin)
    found = re.search(rf"Function {re.escape(kernel)}:\s*\n?\s*REG:(\d+) STACK:(\d+)", text)
    if not found:
        raise RuntimeError(f"cuobjdump names no resources of {kernel}: {text[:200]}")
    return int(found[1]), int(found[2])


@functools.lru_cache(maxsize=512)
def _cuobjdump(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
