"""The reference product in float64 and the error that a correct kernel may have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Check:
    """`error`: the largest error relative to what the element is made of; `tolerance`: what it may be."""

    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """False for NaN as well: NaN compares false."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Reference:
    """C in float64 and, for each element, the magnitude of the sums that lead to it."""

    c: torch.Tensor
    magnitude: torch.Tensor
    k: int
    dtype: torch.dtype

    def check(self, c: torch.Tensor, peers: int = 1) -> Check:
        """Compare a result with the reference.

        The tolerance grows with the square root of K (fp32 accumulation) and with the peers of a tile, each of
        which may round a partial sum to C's dtype. NaN where the reference has none, or a missing or extra Inf,
        is an infinite error.
        """
        if c.shape != self.c.shape:
            raise ValueError(f"the result has shape {tuple(c.shape)}, the reference {tuple(self.c.shape)}")
        return Check(self._error(c), tolerance(self.dtype, self.k, peers))

    def _error(self, c: torch.Tensor) -> float:
        if not c.numel():
            return 0.0
        rounded = self.c.to(self.dtype)
        finite = torch.isfinite(rounded)
        if not torch.equal(torch.isnan(c), torch.isnan(rounded)):
            return math.inf
        if not torch.equal(torch.where(torch.isinf(c), c, 0), torch.where(torch.isinf(rounded), rounded, 0)):
            return math.inf
        difference = torch.where(finite, (c.double() - self.c).abs() / self.magnitude, 0.0)
        return float(difference.max())


def tolerance(dtype: torch.dtype, k: int, peers: int = 1) -> float:
    """Largest error allowed, relative to `Reference.magnitude`.

    One unit of roundoff of the output dtype for each peer that may round, and the random walk of K additions in
    fp32 (TF32 inputs are not meant: they need a tolerance of their own).
    """
    output_roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    fp32_roundoff = torch.finfo(torch.float32).eps / 2
    return output_roundoff * peers + 8 * fp32_roundoff * math.sqrt(max(k, 1))


def reference(a: torch.Tensor, b: torch.Tensor) -> Reference:
    """A @ B in float64.

    An element's magnitude is |c| plus six times the typical size of its partial sums, which for independent
    entries is the product of the norms of its row and column over the square root of K.
    """
    a64, b64 = a.double(), b.double()
    k = a.shape[1]
    typical = torch.outer(a64.norm(dim=1), b64.norm(dim=0)) / math.sqrt(max(k, 1))
    c = a64 @ b64
    return Reference(c, c.abs().add_(typical, alpha=6.0).clamp_min_(1e-300), k, a.dtype)
