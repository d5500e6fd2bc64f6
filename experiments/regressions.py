"""Everything that the verdicts rest on, measured again on this machine's GPU, one step after another.

Each step is a process of its own, so that one that fails takes no other with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from common import device, documents
from common.errors import InvalidExperiment, nearest
from experiments import claims as schema

HERE = Path(__file__).parent
DOCUMENTS = ("facts", "counters", "interpreted", "compiled")
"""Commands that write a document, in this order, after the sweeps. `counters` models bytes for this GPU too."""
Step = tuple[str, list[str]]


def device_name() -> str:
    """The name of the GPU in use, as headers of runs have it."""
    return device.identity()["name"]


def steps(out: Path, only: str | None = None) -> list[Step]:
    """Name and command of every step. `only`: some of them, comma-separated. Raises InvalidExperiment."""
    here = [sys.executable, "-m", "experiments"]
    found: list[Step] = [
        (name, [*here, "run", str(HERE / f"{name}.yaml"), "--out", str(out)]) for name in schema.load().experiments()
    ]
    found += [(name, [*here, name, "--out", str(out)]) for name in DOCUMENTS]
    if only is None:
        return found
    wanted, known = [name.strip() for name in only.split(",")], [name for name, _ in found]
    for name in wanted:
        if name not in known:
            raise InvalidExperiment(f"no step {name!r}; nearest: {nearest(name, known)}")
    return [step for step in found if step[0] in wanted]


def is_there(out: Path, name: str) -> bool:
    """Whether a document that is the same on every machine holds all that the claims ask about. Raises DamagedRun."""
    claims = schema.load()
    if name == "compiled":
        asked = {"key": [list(key) for key in claims.kernels()]}
    elif name == "interpreted":
        asked = {"variant": [one.variant for one in claims.interpreted()]}
    else:
        return False
    document = documents.newest(out, name)
    ((field, values),) = asked.items()
    return document is not None and all(document.select(**{field: value}) for value in values)


def run_all(
    out: Path,
    only: str | None,
    notice: Callable[[str], None],
    run: Callable[[Sequence[str]], int] = lambda command: subprocess.run(command).returncode,
) -> list[str]:
    """Do every step but those whose document is the same everywhere and there; the names of those that failed.

    `only`: as `steps` has it; what it names is done in any case. Raises KeyboardInterrupt, and what `steps` raises.
    """
    failed, wanted = [], steps(out, only)
    for number, (name, command) in enumerate(wanted, 1):
        notice(f"regressions: {number}/{len(wanted)} {name}")
        if only is None and is_there(out, name):
            notice(f"regressions: {name} needs no GPU and is there: --only {name} makes it again")
            continue
        code = run(command)
        if code == 130:
            raise KeyboardInterrupt
        if code:
            notice(f"regressions: {name} failed with {code}")
            failed.append(name)
    return failed
