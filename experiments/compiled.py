"""Evidence from compiled code: every kernel that a claim asks about, by each Triton that it names, as one document.

Needs no GPU, and gives the same everywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import variants
from common import compiled as compiling
from common import documents
from common.architectures import architecture
from common.compiled import Job
from common.inspection import Inspection
from experiments.claims import Claims, Key

KIND = "compiled"
_PATHS = re.compile(r"(?<![\w.])(/[\w.+-]+)+/")
"""Folders of files that a compiler names when it fails: those of the machine that built it."""


def _job(wanted: Key) -> Job:
    name, kernel, target, triton, block, warps, stages = wanted
    v = variants.get(name)
    changes: dict[str, Any] = {"num_warps": warps, "full_tiles_warps": warps}
    changes |= {"num_stages": stages, "full_tiles_stages": stages}
    changes["block"] = block and tuple(map(int, block.split("x")))
    config = v.card.default.replace(**{name: value for name, value in changes.items() if value})
    return Job(v.name, Path(v.module.__file__), kernel, architecture(target).name, config, triton)


def measure(claims: Claims, out: Path) -> Path:
    """Compile what the claims ask about and write the document. Raises UnsupportedTriton where a version is missing."""
    wanted = claims.kernels()
    made = compiling.inspect([_job(one) for one in wanted], _told)
    head = documents.header(source="offline compilation")
    head["device"] = {"name": "no GPU needed"}
    return documents.write(out, KIND, head, list(_records(wanted, made)))


def _told(done: int, total: int) -> None:
    print(f"compiled: {done}/{total}", file=sys.stderr, flush=True)


def _records(wanted: list[Key], made: Iterable[Inspection]) -> Iterable[dict[str, Any]]:
    for one, found in zip(wanted, made, strict=True):
        yield {
            "key": list(one),
            "status": found.status,
            "error": _PATHS.sub("", found.error)[:160],
            "config": f"{'x'.join(map(str, found.config['block']))} w{found.num_warps} s{found.num_stages}",
            "registers": found.registers,
            "n_spills": found.n_spills,
            "programs_per_sm": found.programs_per_sm,
            "hot_shared_store": found.hot_mix.get("shared_store", 0),
            "hot_barrier": found.hot_mix.get("barrier", 0),
            "hot_async_copy": found.hot_mix.get("async_copy", 0),
            "hot_instructions": sum(found.hot_mix.values()),
        }
