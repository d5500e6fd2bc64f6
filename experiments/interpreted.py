"""What runs right in Triton's interpreter: the launches that a claim asks about, as one document. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import variants
from common import documents
from common.launcher import prepare
from common.problem import Problem, make_inputs
from common.reference import reference
from experiments.claims import Interpreted

KIND = "interpreted"


def launch(wanted: Interpreted) -> dict[str, Any]:
    """Run one on small integers, whose product is exact in fp16 and fp32: `wrong` is the share of wrong elements."""
    v = variants.get(wanted.variant)
    a, b = make_inputs(Problem(*wanted.problem), values="integers", device="cpu")
    block = tuple(map(int, wanted.block.split("x")))
    prepared = prepare(v, a, b, config=v.card.default.replace(block=block, programs=wanted.programs))
    prepared.run()
    wrong = float((prepared.out.double() != reference(a, b).c).double().mean())
    segments = [prepared.schedule.segments(p) for p in range(prepared.schedule.programs)]
    return {
        "variant": wanted.variant,
        "problem": list(wanted.problem),
        "block": wanted.block,
        "programs": wanted.programs,
        "most_tiles": max(map(len, segments)),
        "wrong": wrong,
    }


def measure(asked: Iterable[Interpreted], out: Path) -> Path:
    """Run them and write the document. Call it in a process that interprets."""
    head = documents.header(source="Triton's interpreter")
    head["device"] = {"name": "no GPU needed"}
    return documents.write(out, KIND, head, [launch(one) for one in asked])
