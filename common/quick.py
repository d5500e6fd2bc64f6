"""A prepared launch that is repeated on other tensors with little host time.

Triton's own launch looks at every argument anew and encodes every tensor descriptor anew, which takes longer than many
of the kernels here. What a call of the same shapes, strides and dtypes cannot change is laid out once for the driver;
a repeated call fills in addresses, workspace and stream. Descriptors are kept by address.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from common import workspace
from common.launcher import KernelCall, Launch, Prepared, compiled_kernel

MOST_DESCRIPTORS = 256
"""Encoded descriptors kept for one operand; allocators come back to the same addresses."""
OPERANDS = ("a", "b", "c", "bias", "partials", "counters")


def active_driver() -> Any:
    """Triton's driver for the GPU in use."""
    return triton.runtime.driver.active


@dataclass(frozen=True)
class Address:
    """Stands for a tensor in a descriptor: an address and a dtype, and no hold on the memory."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


class QuickKernel:
    """One kernel of a launch. `slots`: positions in the driver's argument list that change, and with what."""

    def __init__(self, call: KernelCall, task: Launch) -> None:
        compiled = compiled_kernel(call)
        launcher = compiled.run
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            raise RuntimeError(f"{call.name} needs scratch memory of the launcher's: launch it through Triton")
        self._launch = active_driver().utils.launch
        self._head = (call.programs, 1, 1)
        self._middle = (
            compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, compiled.packed_metadata,
            None, None, None, None, None, launcher.arg_annotations, launcher.kernel_signature,
        )  # fmt: skip
        self._arguments: list[Any] = []
        self.pointers: list[tuple[int, str]] = []
        self.descriptors: list[tuple[int, str, Callable[[int], Any]]] = []
        self._kept: dict[tuple[int, int], Any] = {}
        descriptor_facts = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        for value in _in_order(call):
            self._append(value, task, descriptor_facts)

    def _append(self, value: Any, task: Launch, descriptor_facts: Any) -> None:
        position = len(self._arguments)
        if hasattr(value, "block_shape"):
            operand = next(name for name in "abc" if getattr(task, name) is value.described)
            encode = _encoder(value, next(descriptor_facts))
            self.descriptors.append((position, operand, encode))
            self._arguments += [None, *value.shape, *value.strides]
            return
        if isinstance(value, torch.Tensor):
            operand = next(name for name in OPERANDS if getattr(task, name) is value)
            self.pointers.append((position, operand))
        self._arguments.append(value)

    def __call__(self, addresses: dict[str, int], stream: int) -> None:
        """Start on a stream, with the operands at these addresses."""
        arguments = self._arguments
        for position, operand in self.pointers:
            arguments[position] = addresses[operand]
        for position, operand, encode in self.descriptors:
            key = (position, addresses[operand])
            found = self._kept.get(key)
            if found is None:
                if len(self._kept) >= MOST_DESCRIPTORS * len(self.descriptors):
                    self._kept.clear()
                found = self._kept[key] = encode(addresses[operand])
            arguments[position] = found
        self._launch(*self._head, stream, *self._middle, tuple(arguments))


def _in_order(call: KernelCall) -> list[Any]:
    """Every argument in the order of the kernel's parameters."""
    named = [call.options[p.name] for p in call.kernel.params[len(call.args) :]]
    return [*call.args, *named]


def _encoder(descriptor: Any, facts: dict[str, Any]) -> Callable[[int], Any]:
    """A function from an address to the encoded descriptor of the same shape there."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    dtype = descriptor.base.dtype

    def encode(address: int) -> Any:
        moved = copy.copy(descriptor)
        moved.base = Address(address, dtype)
        return make_tensordesc_arg(moved, facts, None)[0]

    return encode


class QuickLaunch:
    """A prepared launch for tensors of the same shapes, strides, dtypes, device and alignment (see `fits`)."""

    def __init__(self, prepared: Prepared) -> None:
        """Compile, load and lay out."""
        task = prepared.task()
        # Three objects, also where the caller multiplies a tensor by itself: arguments are told apart by identity.
        task.a, task.b, task.c = task.a.detach(), task.b.detach(), task.c.detach()
        task.bias = None if task.bias is None else task.bias.detach()
        prepared.variant.launch(task)
        self._kernels = [QuickKernel(call, task) for call in task.calls]
        self._counters = 0 if task.counters is None or not prepared.schedule.sk_tiles else prepared.schedule.sk_tiles
        self._partials = task.partials.numel() if self._counters and task.partials is not None else 0
        self._partials_dtype = task.partials.dtype if task.partials is not None else torch.float32
        self._device = prepared.a.device
        self._index = prepared.a.device.index or 0
        self._stream_of = active_driver().get_current_stream
        self._alignment = _misaligned(prepared.a, prepared.b, prepared.out)

    def fits(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether the addresses are aligned as those that the kernels were compiled for."""
        return _misaligned(a, b, out) == self._alignment

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Launch on the current stream; with a bias where there was one."""
        addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "c": out.data_ptr(), "partials": 0, "counters": 0}
        if bias is not None:
            addresses["bias"] = bias.data_ptr()
        if self._counters:
            counters = workspace.counters(self._counters, self._device)
            partials = torch.empty(self._partials, dtype=self._partials_dtype, device=self._device)
            addresses["counters"], addresses["partials"] = counters.data_ptr(), partials.data_ptr()
        stream = self._stream_of(self._index)
        for kernel in self._kernels:
            kernel(addresses, stream)


def _misaligned(*tensors: torch.Tensor) -> tuple[bool, ...]:
    return tuple(x.data_ptr() % 16 != 0 for x in tensors)
