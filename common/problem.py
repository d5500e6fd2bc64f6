"""A GEMM problem and its seeded inputs in every layout that the tests and experiments use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from common.errors import UnsupportedProblem

Layout = Literal["row", "a_transposed", "b_transposed", "both_transposed", "strided", "expanded", "offset"]
Values = Literal["normal", "integers"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

EXACT_LIMIT = {torch.float16: 2048, torch.bfloat16: 256, torch.float32: 2**24}
"""Every integer up to this magnitude is exact in the dtype."""


@dataclass(frozen=True)
class Problem:
    """C[M, N] = A[M, K] @ B[K, N]; A, B and C have the same dtype."""

    m: int
    n: int
    k: int
    dtype: str = "float16"
    layout: Layout = "row"

    def __post_init__(self) -> None:
        for name, size in (("M", self.m), ("N", self.n), ("K", self.k)):
            if size < 0:
                raise UnsupportedProblem(f"{name}={size} is negative; dimensions are 0 or more")

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add each."""
        return 2 * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes moved if A and B are read once and C is written once."""
        size = self.torch_dtype.itemsize
        return size * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in flop per byte."""
        return self.flops / max(self.min_bytes, 1)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def make_inputs(
    problem: Problem, seed: int = 123, values: Values = "normal", device: str | torch.device = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded A of shape (M, K) and B of shape (K, N) in the problem's dtype and layout.

    "normal": standard normal. "integers": small integers whose partial and final sums stay exact in the dtype
    (at most 2,048 in magnitude in fp16), in whatever order they are added.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        if values == "normal":
            return torch.randn(rows, columns, generator=generator, device=device).to(problem.torch_dtype)
        return torch.randint(-1, 2, (rows, columns), generator=generator, device=device).to(problem.torch_dtype)

    a, b = draw(problem.m, problem.k), draw(problem.k, problem.n)
    if values == "integers":
        a = _bounded(a, EXACT_LIMIT.get(problem.torch_dtype, 2**31 - 1), generator)
    return _lay_out(a, b, problem.layout)


def _bounded(a: torch.Tensor, limit: int, generator: torch.Generator) -> torch.Tensor:
    """Keep at most `limit` non-zero elements a row, so that no sum of +-1 products can pass the limit."""
    if a.shape[1] <= limit:
        return a
    keep = torch.rand(a.shape, generator=generator, device=a.device).argsort(dim=1) < limit
    return a * keep


def _lay_out(a: torch.Tensor, b: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    if layout == "a_transposed":
        return a.t().contiguous().t(), b
    if layout == "b_transposed":
        return a, b.t().contiguous().t()
    if layout == "both_transposed":
        return a.t().contiguous().t(), b.t().contiguous().t()
    if layout == "strided":
        return _strided(a), _strided(b)
    if layout == "expanded":
        return a[:1].expand(a.shape), b
    if layout == "offset":
        return _offset(a), _offset(b)
    return a, b


def _strided(x: torch.Tensor) -> torch.Tensor:
    """The same values as a window of a wider matrix: a row stride larger than the row."""
    wide = torch.full((x.shape[0], x.shape[1] + 16), float("nan"), dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def _offset(x: torch.Tensor) -> torch.Tensor:
    """The same values, starting one element into a buffer, so that the base is not 16-byte aligned."""
    buffer = torch.full((x.numel() + 1,), float("nan"), dtype=x.dtype, device=x.device)
    buffer[1:] = x.reshape(-1)
    return buffer[1:].view(x.shape)
