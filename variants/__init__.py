"""The zoo: the ordered registry of variants.

>>> import variants
>>> v = variants.get("v08")
>>> c = v.matmul(a, b, programs=132, block=(128, 128, 32), num_warps=4, num_stages=4)
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UnknownVariant, nearest

if TYPE_CHECKING:  # names, cards and sources are read without loading torch, which takes a second
    import torch

    from common.launcher import Variant

_BASELINES = ("tile_order", "data_parallel", "split_k", "torch_matmul")


@lru_cache
def names() -> list[str]:
    """The thread's iterations in the thread's order, then what came after it."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if re.match(r"v\d\d_", m.name))


def portable_names() -> list[str]:
    """The numbered variants in plain Triton, which run on every GPU and in the interpreter."""
    return [name for name in names() if get(name).card.language == "triton"]


def baselines() -> list[str]:
    """What the iterations are compared with."""
    return list(_BASELINES)


def all_names() -> list[str]:
    """The numbered variants, then the baselines."""
    return names() + baselines()


@lru_cache
def ablation_names() -> list[str]:
    """Copies of a variant with one change each. They are found by name, and are in no list of variants."""
    return sorted(m.name for m in pkgutil.iter_modules([f"{__path__[0]}/ablations"]))


def resolve(name: str) -> str:
    """The full name for a number (`v05`), a module's name, or any unambiguous part of one.

    Raises UnknownVariant naming the candidates, or the nearest names when there is none.
    """
    wanted = str(name).lower()
    if wanted in all_names() or wanted in ablation_names():
        return wanted
    matches = [full for full in all_names() if full.split("_")[0] == wanted] or [
        full for full in all_names() if wanted and wanted in full
    ]
    matches = matches or [full for full in ablation_names() if wanted and wanted in full]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnknownVariant(f"{name!r} may be any of {', '.join(matches)}")
    known = all_names() + ablation_names()
    spelt = {full: full for full in known} | {full.split("_")[0]: full for full in all_names() if full[1:3].isdecimal()}
    raise UnknownVariant(f"no variant {name!r}; nearest: {nearest(wanted, spelt, shown=spelt.__getitem__)}")


def source_path(name: str) -> Path:
    """The source file of the variant with this name, number or part of a name. Raises UnknownVariant."""
    full = resolve(name)
    return Path(__path__[0], *(["ablations"] if full in ablation_names() else []), f"{full}.py")


@lru_cache
def _load(full: str) -> Variant:
    from common.launcher import Variant

    package = "variants.ablations" if full in ablation_names() else "variants"
    return Variant(full, importlib.import_module(f"{package}.{full}"))


def get(name: str) -> Variant:
    """The variant with this name, number or unambiguous part of a name. Raises UnknownVariant."""
    return _load(resolve(name))


def matmul(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """A (M, K) times B (K, N), or batches of them, by the kernel that a model expects to be fastest.

    Options: `bias`, `activation`, `out`, `precision`, `allow_fallback`; `variants.choice.matmul` explains them.
    """
    from variants.choice import matmul as chosen

    return chosen(a, b, **options)
