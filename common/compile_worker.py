"""A process that compiles: one job a line on standard input, one record a line on standard output.

Started by `common.compiled`, with the Triton that is asked for first on its path. Texts go to the cache's files.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints must not stand among the answers
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """The record of a job as plain data; "failed" with the error's first line where the kernel does not compile."""
    from common.inspection import Inspection

    names = ("variant", "kernel", "architecture", "triton", "config")
    found = Inspection(**{name: job[name] for name in names})
    try:
        texts = compile_job(job, found)
    except Exception as error:
        found.status, found.error = "failed", reason(error)
        found.retry = "code -9" in str(error)  # the assembler was killed
        texts = {"error": traceback.format_exc()}
    with gzip.open(job["texts"], "wt", compresslevel=3) as file:
        json.dump(texts, file)
    return found.as_dict()


def reason(error: BaseException) -> str:
    """An error in one line: its kind, and the first line that says anything, the innermost cause first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^=-")]
    said = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return f"{type(error).__name__}: {said}"[:200]


def compile_job(job: dict[str, Any], found: Any) -> dict[str, str]:
    """Compile the job's kernel and fill its record; returns the texts by level."""
    from common import compilation, inspection, legacy_triton
    from common.architectures import architecture
    from common.card import Config, read_card
    from common.launcher import Variant, require_language

    path, target = Path(job["path"]), architecture(job["architecture"])
    require_language(job["variant"], read_card(path.read_text()))
    _require_version(job["triton"])
    module = legacy_triton.load(path, job["triton"]) if job["legacy"] else _load(path)
    config = Config(**job["config"] | {"block": tuple(job["config"]["block"])})
    calls = compilation.recorded_calls(Variant(job["variant"], module), *job["size"], config, target.limits.sms)
    call = next((call for call in calls if call.name == job["kernel"]), None)
    if call is None:
        started = ", ".join(call.name for call in calls) or "none"
        raise LookupError(
            f"a launch of {'x'.join(map(str, job['size']))} starts no {job['kernel']}; it starts {started}"
        )
    found.num_warps, found.num_stages = call.options["num_warps"], call.options["num_stages"]
    if job["legacy"]:
        made = legacy_triton.compile_call(call, target, job["ptxas"])
    else:
        made = compilation.compile_call(call, target)
    found.num_warps, found.dynamic_shared_bytes = made.num_warps, made.shared_bytes
    texts = dict(made.asm)
    if target.backend == "hip":
        inspection.read_amd(found, texts["amdgcn"], target)
        texts["sass"] = texts.pop("amdgcn")
        return texts
    texts["sass"] = inspection.disassemble(made.image, job["nvdisasm"])
    found.assembler = _assembler(job, target)
    inspection.read_nvidia(found, made.name, texts["ptx"], texts["sass"], made.log, target)
    return texts


def _require_version(wanted: str) -> None:
    from common.triton_versions import installed

    if installed() != wanted:
        raise LookupError(f"Triton {wanted} was asked for and this process finds {installed()}")


def _load(path: Path) -> Any:
    name = path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _assembler(job: dict[str, Any], target: Any) -> str:
    from common.triton_versions import assembler

    if job["legacy"]:
        return assembler(job["ptxas"])
    from triton.backends.nvidia.compiler import get_ptxas

    return assembler(get_ptxas(target.number).path)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
