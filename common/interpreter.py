"""Everything that touches the internals of Triton's interpreter.

*Serial runs.* The interpreter runs the programs of a launch one after another in ascending order. A program that waits
for a higher-numbered one would then wait for ever: the other never starts. Running the same programs in descending
order is one of the orders that CUDA permits, and in it every such wait finds its lock already set. A variant whose card
says that it waits for "higher" programs is run in descending order, every other one in ascending order ("lower" and
"any" never wait for a program that has not run).

*Single programs.* `run_program` runs one program of a kernel and hands each of its memory accesses and barriers to a
function instead of doing it, so that the explorer decides what a program reads, and when.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import numpy
import triton
import triton.language as tl
from packaging.version import Version

from common.card import WaitsFor
from common.errors import UnsupportedTriton

EXPLORABLE = ("3.6", "3.9")
"""Minor versions of Triton whose interpreter `run_program` was written for and is tested with."""


def interpreting() -> bool:
    """Whether kernels decorated in this process are interpreted (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def require_interpreter() -> None:
    """Raise UnsupportedTriton, saying what to do, where this Triton's interpreter cannot run."""
    if Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4"):
        raise UnsupportedTriton(
            f"Triton {triton.__version__}'s interpreter does not run with numpy {numpy.__version__}: "
            "install numpy<2.4, or Triton 3.9"
        )


def require_explorable(version: str = triton.__version__) -> None:
    """Raise UnsupportedTriton where `run_program` does not know this version's interpreter."""
    if "{0.major}.{0.minor}".format(Version(version)) not in EXPLORABLE:
        raise UnsupportedTriton(
            f"exploring drives the interpreter of Triton {' and '.join(EXPLORABLE)} from inside, and this is "
            f"{version}: install one of these versions"
        )


@contextlib.contextmanager
def bfloat16_dots() -> Iterator[None]:
    """Within the block, interpreted dots read bfloat16 as numbers; Triton's interpreter multiplies the bit patterns."""
    from triton.runtime.interpreter import TensorHandle
    from triton.runtime.interpreter import interpreter_builder as builder

    original = builder.create_dot

    def widened(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != triton.language.bfloat16:
            return x
        return TensorHandle((x.data.astype(numpy.uint32) << 16).view(numpy.float32), triton.language.float32)

    builder.create_dot = lambda a, b, *rest: original(widened(a), widened(b), *rest)
    try:
        yield
    finally:
        del builder.create_dot


@contextlib.contextmanager
def serial_order(waits_for: WaitsFor) -> Iterator[None]:
    """Within the block, interpreted launches run their programs in an order that the waiting relation allows."""
    if waits_for != "higher":
        yield
        return
    from triton.runtime.interpreter import interpreter_builder as builder

    ascending = builder.set_grid_idx
    builder.set_grid_idx = lambda x, y, z: ascending(builder.grid_dim[0] - 1 - x, y, z)
    try:
        yield
    finally:
        del builder.set_grid_idx


@dataclass(frozen=True, eq=False)
class Access:
    """One access of a program to memory, or a CTA barrier.

    `operation`: the read-modify-write's name for an atomic ("add", "xchg", "cas", "load", "store", …), else empty.
    `addresses`: bytes, of the lanes that are not masked, in row-major order. `operands`: what is stored, added,
    compared with and so on, one value a lane. `dtype`: of the element in memory. `scalar`: not a tensor, so one thread
    does it. `sem`, `scope`: memory order and scope of an atomic. `where`: file and line. `site`: identifies the place
    in the code with its callers; `state()`: what the program's variables hold there.
    """

    kind: Literal["load", "store", "atomic", "barrier"]
    addresses: numpy.ndarray
    dtype: numpy.dtype
    operation: str = ""
    operands: tuple[numpy.ndarray, ...] = ()
    scalar: bool = False
    sem: str = ""
    scope: str = ""
    where: str = ""
    site: tuple[tuple[int, int], ...] = ()
    frames: tuple[FrameType, ...] = ()

    def state(self) -> tuple[Any, ...]:
        """Every variable of the kernel functions that are being run; to be asked before the program goes on."""
        return tuple((name, _content(value)) for frame in self.frames for name, value in sorted(frame.f_locals.items()))


class Suspended(BaseException):
    """Leaves a program at an access that has no answer yet. No `Exception`: the interpreter wraps those in its own."""

    def __init__(self, access: Access) -> None:
        self.access = access


Answer = Callable[[Access], tuple[numpy.ndarray | None, Callable[[], None] | None]]
"""Gives what an access reads (one value an active lane, or None) and what to call when the program looks at it."""


def run_program(kernel: Any, program: int, programs: int, arguments: dict[str, Any], answer: Answer) -> None:
    """Run one program of a kernel inside `exploring()`; each access is answered by `answer`, which may raise Suspended.

    `arguments`: every parameter by name; tensors stand for their address alone.
    """
    from triton.runtime import interpreter as internals

    builder = internals.interpreter_builder
    values = {
        name: value if name in _constexprs(kernel.fn) else internals._implicit_cvt(value)
        for name, value in arguments.items()
    }
    builder.set_grid_dim(programs, 1, 1)
    builder.set_grid_idx(program, 0, 0)
    _Builder.answer = answer
    kernel.rewrite()(**values)


def kernel_arguments(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by parameter name, without the launch options that are no parameters."""
    names = inspect.signature(kernel.fn).parameters
    return inspect.getcallargs(kernel.fn, *args, **{k: v for k, v in options.items() if k in names})


def _constexprs(function: Any) -> set[str]:
    from triton.runtime.jit import _normalize_ty

    return {name for name, kind in inspect.get_annotations(function).items() if _normalize_ty(kind) == "constexpr"}


@contextlib.contextmanager
def exploring(kernels: list[Any]) -> Iterator[None]:
    """Within the block `run_program` may run programs of these kernels.

    Triton patches its language anew at every call of a device function, which takes most of the interpreter's time;
    here it is patched once. Raises UnsupportedTriton, and RuntimeError where kernels are not interpreted.
    """
    require_explorable()
    require_interpreter()
    if not interpreting():
        raise RuntimeError("exploring needs interpreted kernels: set TRITON_INTERPRET=1 before a variant is imported")
    from triton.runtime import interpreter as internals

    builder, function = internals.interpreter_builder, internals.InterpretedFunction
    # `tl.cdiv` sees the language as `core`, kernels see it as `tl`: both are patched.
    scopes = [internals._patch_lang(fn) for fn in [*{kernel.fn for kernel in kernels}, tl.cdiv.fn]]
    called = function.__call__
    function.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)
    hooks = {name: getattr(_Builder, name) for name in vars(_Builder) if name.startswith("create_")}
    for name, hook in hooks.items():
        setattr(builder, name, hook)
    try:
        yield
    finally:
        function.__call__ = called
        for name in hooks:
            delattr(builder, name)
        for scope in reversed(scopes):
            scope.restore()


class _Builder:
    """The interpreter's memory operations, made accesses. Arguments that say nothing about memory differ by version."""

    answer: Answer

    @staticmethod
    def create_masked_load(ptrs: Any, mask: Any, other: Any, *_: Any, **__: Any) -> Any:
        return _read("load", ptrs, (), mask, other)

    @staticmethod
    def create_masked_store(ptrs: Any, value: Any, mask: Any, *_: Any, **__: Any) -> None:
        _read("store", ptrs, (value,), mask)

    @staticmethod
    def create_load(ptr: Any, *_: Any, **__: Any) -> Any:
        return _read("load", ptr, ())

    @staticmethod
    def create_store(ptr: Any, value: Any, *_: Any, **__: Any) -> None:
        _read("store", ptr, (value,))

    @staticmethod
    def create_atomic_cas(ptr: Any, compared: Any, value: Any, sem: Any, scope: Any) -> Any:
        return _read("atomic", ptr, (compared, value), operation="cas", sem=sem, scope=scope)

    @staticmethod
    def create_atomic_rmw(operation: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        return _read("atomic", ptr, (value,), mask, operation=_name(operation), sem=sem, scope=scope)

    @staticmethod
    def create_atomic_load(ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        return _read("atomic", ptr, (), mask, operation="load", sem=sem, scope=scope)

    @staticmethod
    def create_atomic_store(ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> None:
        _read("atomic", ptr, (value,), mask, operation="store", sem=sem, scope=scope)

    @staticmethod
    def create_atomic_poll(ptr: Any, expected: Any, timeout_ns: Any, sem: Any, scope: Any) -> Any:
        if timeout_ns is not None:
            raise NotImplementedError("a poll with a timeout depends on the clock, which an exploration does not have")
        while not (_read("atomic", ptr, (), operation="load", sem=sem, scope=scope).data == expected.data).all():
            pass
        return type(ptr)(numpy.ones(ptr.data.shape, dtype=bool), tl.int1)

    @staticmethod
    def create_barrier() -> None:
        where, site, frames = _place()
        nothing = numpy.empty(0, dtype=numpy.uint64)
        _Builder.answer(Access("barrier", nothing, numpy.dtype(bool), where=where, site=site, frames=frames))


def _name(enumerated: Any) -> str:
    """`ATOMIC_OP.FADD` as `add`, `MEM_SEMANTIC.ACQUIRE_RELEASE` as `acq_rel`."""
    name = enumerated.name.lower()
    return {"acquire_release": "acq_rel", "fadd": "add", "umin": "min", "umax": "max"}.get(name, name)


def _read(
    kind: Any,
    ptrs: Any,
    operands: tuple[Any, ...],
    mask: Any = None,
    other: Any = None,
    operation: str = "",
    sem: Any = None,
    scope: Any = None,
) -> Any:
    """Make an access of the lanes that the mask leaves, have it answered, and give the handle that a kernel gets."""
    from triton.runtime import interpreter as internals

    element = ptrs.get_element_ty()
    dtype = internals._get_np_dtype(element)
    shape = ptrs.data.shape
    lanes = slice(None) if mask is None or mask.data.all() else numpy.broadcast_to(mask.data, shape).ravel()
    where, site, frames = _place()
    access = Access(
        kind,
        ptrs.data.ravel()[lanes],
        dtype,
        operation,
        tuple(numpy.broadcast_to(o.data, shape).ravel()[lanes].astype(dtype) for o in operands),
        # A scalar pointer is an array of one element with one dimension, or none.
        scalar=ptrs.data.size == 1,
        sem=_name(sem) if sem is not None else "",
        scope=_name(scope) if scope is not None else "",
        where=where,
        site=site,
        frames=frames,
    )
    values, looked_at = _Builder.answer(access)
    if values is None:
        return None
    filled = numpy.zeros(shape, dtype=dtype) if other is None else numpy.broadcast_to(other.data, shape).astype(dtype)
    filled.ravel()[lanes] = values
    return filled_handle(internals.TensorHandle, filled, element, looked_at)


def filled_handle(base: type, data: numpy.ndarray, dtype: Any, looked_at: Callable[[], None] | None) -> Any:
    """A handle of the interpreter's class; with `looked_at`, one that calls it when its data are read."""
    if looked_at is None:
        return base(data, dtype)
    handle = _watched_class(base)(data, dtype)
    handle.looked_at = looked_at
    return handle


_WATCHED: dict[type, type] = {}


def _watched_class(base: type) -> type:
    if base not in _WATCHED:

        class Watched(base):
            looked_at: Callable[[], None] | None = None

            @property
            def data(self) -> numpy.ndarray:
                if self.looked_at is not None:
                    self.looked_at()
                return self.__dict__["content"]

            @data.setter
            def data(self, value: numpy.ndarray) -> None:
                self.__dict__["content"] = value

        _WATCHED[base] = Watched
    return _WATCHED[base]


def _place() -> tuple[str, tuple[tuple[int, int], ...], tuple[FrameType, ...]]:
    """Where the running kernel is: file and line, the place with its callers, and the kernel's own frames."""
    frame: FrameType | None = sys._getframe(2)
    site: list[tuple[int, int]] = []
    kernel_frames: list[FrameType] = []
    where = ""
    while frame is not None and frame.f_code is not run_program.__code__:
        path = frame.f_code.co_filename
        site.append((id(frame.f_code), frame.f_lasti))
        if "/triton/" not in path and path != __file__:
            kernel_frames.append(frame)
            where = where or f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return where, tuple(site), tuple(kernel_frames)


def _content(value: Any) -> Any:
    handle = getattr(value, "handle", None)
    data = getattr(handle, "__dict__", {}).get("content", None)
    if data is None:
        data = getattr(handle, "data", None)
    if isinstance(data, numpy.ndarray):
        return data.tobytes()
    return getattr(value, "value", value) if isinstance(value, tl.constexpr) else repr(value)
