"""How many bytes L2 fetches from memory where a load of the TMA misses it.

A descriptor says it, and Triton's say 128, a line. With 256 the line beside it comes along, which the next MAC
iteration or the other half of the tile reads: memory is read in longer pieces. Source: CUDA driver API,
`cuTensorMapEncodeTiled`, `CUtensorMapL2promotion`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import triton

PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""Bytes, and the driver's number for them; 0 for no more than what is read."""
TRITONS_L2_BYTES = 128
MAP_BYTES = 128
"""Of an encoded descriptor, which ends the Python object that holds it."""


class _Asked(threading.local):
    """What the descriptors that a thread encodes are to say."""

    l2_bytes: int = TRITONS_L2_BYTES


_asked = _Asked()


@contextmanager
def promoting(l2_bytes: int) -> Iterator[None]:
    """Descriptors that Triton encodes on this thread say this. Raises RuntimeError where the driver refuses one."""
    if l2_bytes == TRITONS_L2_BYTES:
        yield
        return
    _install()
    before, _asked.l2_bytes = _asked.l2_bytes, l2_bytes
    try:
        yield
    finally:
        _asked.l2_bytes = before


def _install() -> None:
    """Put ours in the place of what Triton encodes descriptors with; it does the same unless it is asked otherwise."""
    utils = triton.runtime.driver.active.utils
    if not hasattr(utils.fill_tma_descriptor_tiled, "original"):
        utils.fill_tma_descriptor_tiled = _filler(utils.fill_tma_descriptor_tiled)


def _filler(original: Callable[..., Any]) -> Callable[..., Any]:
    def fill(
        address: int, swizzle: int, item_bytes: int, dtype: int, box: Any, shape: Any, strides: Any, nan: int
    ) -> Any:
        found = original(address, swizzle, item_bytes, dtype, box, shape, strides, nan)
        if _asked.l2_bytes != TRITONS_L2_BYTES:
            at = id(found) + type(found).__basicsize__ - MAP_BYTES
            _encode(at, address, swizzle, item_bytes, dtype, box, shape, strides, nan, PROMOTIONS[_asked.l2_bytes])
        return found

    fill.original = original
    return fill


def _encode(
    at: int, address: int, swizzle: int, item_bytes: int, dtype: int,
    box: Sequence[int], shape: Sequence[int], strides: Sequence[int], nan: int, promotion: int,
) -> None:  # fmt: skip
    """Encode a descriptor over the one at `at`; sizes and strides in elements, the last dimension contiguous."""
    rank = len(box)
    sizes = (ctypes.c_uint64 * rank)(*map(int, reversed(shape)))
    # The driver's strides are bytes, of all dimensions but the first, which is Python's last.
    steps = (ctypes.c_uint64 * max(1, rank - 1))(*(int(stride) * item_bytes for stride in reversed(strides[:-1])))
    boxes, ones = (ctypes.c_uint32 * rank)(*map(int, reversed(box))), (ctypes.c_uint32 * rank)(*[1] * rank)
    failed = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), ctypes.c_int(dtype), ctypes.c_uint32(rank), ctypes.c_void_p(address), sizes, steps, boxes,
        ones, ctypes.c_int(0), ctypes.c_int(swizzle), ctypes.c_int(promotion), ctypes.c_int(nan),
    )  # fmt: skip
    if failed:
        raise RuntimeError(f"cuTensorMapEncodeTiled: error {failed} for {tuple(shape)} in boxes of {tuple(box)}")


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
