"""Driving Triton's interpreter: whether it is on, whether it can run here, and in which order programs go.

The interpreter runs the programs of a launch one after another in ascending order. A program that waits for a
higher-numbered one would then wait for ever: the other never starts. Running the same programs in descending order
is one of the orders that CUDA permits, and in it every such wait finds its lock already set. A variant whose card
says that it waits for "higher" programs is run in descending order, every other one in ascending order ("lower" and
"any" never wait for a program that has not run).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy
import triton
from packaging.version import Version

from common.card import WaitsFor


def interpreting() -> bool:
    """Whether kernels decorated in this process are interpreted (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def require_interpreter() -> None:
    """Raise RuntimeError, saying what to do, where this Triton's interpreter cannot run."""
    if Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4"):
        raise RuntimeError(
            f"Triton {triton.__version__}'s interpreter does not run with numpy {numpy.__version__}: "
            "install numpy<2.4, or Triton 3.9"
        )


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
