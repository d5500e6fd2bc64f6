"""`torch.matmul`, on NVIDIA GPUs cuBLAS: the library that every speed-up is counted against."""

from __future__ import annotations

import torch

from common.card import Card, Config, Contract
from common.launcher import Launch

CARD = Card(
    idea="the vendor's library through torch.matmul",
    position="baseline",
    decomposition="library",
    fix_up="chosen by the library",
    kernels=(),
    default=Config(programs=0),
    contract=Contract(
        dtypes=("float16", "bfloat16", "float32", "float64"), divisible=False, layouts="any", wide_offsets=True
    ),
)


def launch(task: Launch) -> None:
    """Call the library; it brings kernels of its own."""
    torch.matmul(task.a, task.b, out=task.c)
