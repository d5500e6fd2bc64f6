"""The reference product in float64 and the error that a correct kernel may have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from common.card import Card
from common.decomposition import Schedule


@dataclass(frozen=True)
class Check:
    """`error`: the largest error relative to what the element is made of; `tolerance`: what it may be."""

    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """False for a NaN or infinite error, whatever the tolerance."""
        return math.isfinite(self.error) and self.error <= self.tolerance


@dataclass(frozen=True)
class Reference:
    """C in float64 and, for each element, the magnitude of the sums that lead to it."""

    c: torch.Tensor
    magnitude: torch.Tensor
    k: int
    dtype: torch.dtype

    def check(self, c: torch.Tensor, roundings: int = 1) -> Check:
        """Compare a result with the reference.

        `roundings`: how often an element is rounded to C's dtype on its way, see `roundings`. NaN where the reference
        has none, or a missing or extra Inf, is an infinite error.
        """
        return self.judge(float(self.error(c)), roundings)

    def judge(self, error: float, roundings: int = 1) -> Check:
        """What `check` says of a result with this error."""
        return Check(error, tolerance(self.dtype, self.k, roundings))

    def error(self, c: torch.Tensor) -> torch.Tensor:
        """The error as a tensor of no dimensions, for which the host does not wait where the reference is finite."""
        if c.shape != self.c.shape:
            raise ValueError(f"the result has shape {tuple(c.shape)}, the reference {tuple(self.c.shape)}")
        if not c.numel():
            return torch.zeros((), device=c.device)
        relative = (self.c - c).div_(self.magnitude).abs_()
        if self._is_finite:
            return relative.amax().nan_to_num_(math.inf, posinf=math.inf)
        rounded = self.c.to(self.dtype)
        special = ~torch.isfinite(rounded)
        agrees = torch.where(torch.isnan(rounded), torch.isnan(c), c == rounded)
        return (
            torch.where(special, torch.where(agrees, 0.0, math.inf), relative)
            .amax()
            .nan_to_num_(math.inf, posinf=math.inf)
        )

    @cached_property
    def _is_finite(self) -> bool:
        return bool(torch.isfinite(self.c.to(self.dtype)).all())


def tolerance(dtype: torch.dtype, k: int, roundings: int = 1) -> float:
    """Largest error allowed, relative to `Reference.magnitude`.

    Random walks both: one unit of roundoff of the output dtype a step for each rounding of the running sum, and K
    additions in fp32. Of honest fp16 adds of up to 264 partial sums, the worst of 4 million elements reaches half of
    it; a partial sum lost or added twice is above it as long as a tile has fewer than about 1,000. (TF32 inputs are
    not meant: they need a tolerance of their own.)
    """
    output_roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    fp32_roundoff = torch.finfo(torch.float32).eps / 2
    return output_roundoff * math.sqrt(roundings) + 8 * fp32_roundoff * math.sqrt(max(k, 1))


def roundings(card: Card, schedule: Schedule) -> int:
    """How often an element of C is rounded to C's dtype: by each peer where peers add to C itself, else once."""
    return schedule.max_peers if card.adds_to_c else 1


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
