"""Tensor descriptors for the Tensor Memory Accelerator (TMA) of Hopper and later GPUs.

A descriptor names a matrix in global memory whose rows are contiguous, start at multiples of 16 bytes and are cut into
blocks; a block's part outside the matrix is read as zeros and not written. A matrix whose columns are contiguous is
described as its transpose. Source of the limits: CUDA driver API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from common.errors import UnsupportedProblem

ALIGNMENT = 16
"""Bytes that must divide a descriptor's address and its row stride."""


def is_transposed(x: torch.Tensor) -> bool | None:
    """Whether a 2-D tensor is described by its transpose; None where the TMA cannot read or write it as it is.

    A dimension of size 1 may have any stride: it is never stepped along.
    """
    if x.data_ptr() % ALIGNMENT:
        return None
    for transposed, matrix in ((False, x), (True, x.t())):
        (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
        contiguous = column_stride == 1 or columns == 1
        aligned = row_stride > 0 and row_stride * x.element_size() % ALIGNMENT == 0
        if contiguous and (aligned or rows == 1):
            return transposed
    return None


def require(name: str, x: torch.Tensor) -> None:
    """Raise UnsupportedProblem, saying why and what to do, where no descriptor of the tensor can exist."""
    if x.numel() and is_transposed(x) is None:
        past = x.data_ptr() % ALIGNMENT
        raise UnsupportedProblem(
            f"{name} has strides {x.stride()} and starts {past} bytes past a multiple of {ALIGNMENT}: the TMA needs "
            f"one stride of 1, the other a multiple of {ALIGNMENT // x.element_size()} elements, and an address that "
            f"{ALIGNMENT} divides; v09 takes any strides"
        )


def _row_stride(matrix: torch.Tensor) -> int:
    """The stride that a descriptor states: a single row's may be anything, but must be a multiple all the same."""
    step = ALIGNMENT // matrix.element_size()
    return matrix.stride(0) if matrix.shape[0] > 1 else -(-matrix.shape[1] // step) * step


def plain_descriptor(x: torch.Tensor, block: tuple[int, int]) -> Any:
    """The descriptor for plain Triton of a 2-D tensor (or of its transpose) in blocks of `block`, see `descriptor`."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    matrix, shape = (x.t(), block[::-1]) if is_transposed(x) else (x, block)
    found = TensorDescriptor(matrix, list(matrix.shape), [_row_stride(matrix), 1], list(shape))
    found.described = x
    return found


@lru_cache(maxsize=256)
def _layout(shape: tuple[int, ...], dtype: torch.dtype, bases: tuple[tuple[int, ...], ...]) -> Any:
    """A block's layout in shared memory, kept: finding it takes half of a descriptor's time."""
    from triton.experimental.gluon import language as gl

    element = getattr(gl, str(dtype).removeprefix("torch."))
    return gl.NVMMASharedLayout.get_default_for(list(shape), element, cga_layout=list(map(list, bases)) or None)


def descriptor(
    x: torch.Tensor, block: tuple[int, int], ctas: int = 1, along: int | tuple[int | None, ...] | None = 0
) -> Any:
    """The Gluon descriptor of a 2-D tensor (or of its transpose, see `is_transposed`) in blocks of `block`.

    `block` counts along the tensor's own dimensions. A cluster of `ctas` (a power of two) loads blocks that are next to
    each other in dimension `along`, one each, or all the same block for None. A tuple says it for each bit of a CTA's
    number. The descriptor keeps the tensor as `described`.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    bits = along if isinstance(along, tuple) else (along,) * (ctas.bit_length() - 1)
    if 1 << len(bits) != ctas:
        raise ValueError(f"{ctas} CTAs have numbers of {ctas.bit_length() - 1} bits, along={along}")
    shape, bases = list(block), []
    for dimension in bits:
        bases.append([0, 0])
        if dimension is not None:
            bases[-1][dimension] = shape[dimension] // block[dimension]
            shape[dimension] *= 2
    matrix = x
    if is_transposed(x):
        matrix, shape, bases = x.t(), shape[::-1], [base[::-1] for base in bases]
    layout = _layout(tuple(shape), x.dtype, tuple(map(tuple, bases)))
    found = TensorDescriptor(matrix, list(matrix.shape), [_row_stride(matrix), 1], shape, layout)
    found.described = x
    return found
