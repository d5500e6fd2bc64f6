"""What the figures have in common when they read a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from common import documents, style
from common.documents import Document
from common.rows import Run, newest_run

BASELINE = "torch_matmul"
"""cuBLAS, the denominator of every speed-up."""
POPULATIONS = {
    "thread_sampled": "the thread's population: dimensions uniform in 256…8192",
    "log_sampled": "the paper's population: dimensions log-uniform in 128…8192",
}
HERE = Path(__file__).parent


class MissingRun(LookupError):
    """An experiment that a figure shows has no finished run."""


@dataclass(frozen=True)
class ThreadAverage:
    """An average that the thread published for a variant, over the thread's own population and PyTorch."""

    variant: str
    claim: str
    speedup: float
    gpu: str
    source: str


@dataclass(frozen=True)
class Peak:
    """A device's stated peaks: dense fp16 tensor TFLOP/s and TB/s of memory."""

    device: str
    tflops: float
    terabytes: float
    source: str

    @property
    def ridge(self) -> float:
        """Flop per byte from which on arithmetic, not memory, is the bound."""
        return self.tflops / self.terabytes


def require(results: Path, experiment: str) -> Run:
    """The newest finished run of an experiment. Raises MissingRun saying how to make one."""
    run = newest_run(results, experiment)
    if run is None:
        raise MissingRun(
            f"{results} has no finished run of {experiment}: python -m experiments run experiments/{experiment}.yaml"
        )
    return run


def require_document(results: Path, kind: str) -> Document:
    """The newest document of a kind. Raises MissingRun saying how to make one."""
    found = documents.newest(results, kind)
    if found is None:
        raise MissingRun(f"{results} has no document of {kind}: python -m experiments {kind}")
    return found


def populations(results: Path) -> dict[str, Run]:
    """The runs of the sampled populations that have one. Raises MissingRun where none has."""
    found = {name: run for name in POPULATIONS if (run := newest_run(results, name))}
    if not found:
        raise MissingRun(f"{results} has no finished run of {' or of '.join(POPULATIONS)}: make measure")
    return found


def labels(run: Run) -> list[str]:
    """The candidates compared with cuBLAS: variants in the thread's order, then baselines, as the run lists them."""
    others = [c for c in run.candidates if c["variant"] not in (BASELINE, "empty")]
    return [c["label"] for c in sorted(others, key=lambda c: (not is_numbered(c["variant"]), _number(c["variant"])))]


def is_numbered(variant: str) -> bool:
    """Whether this is one of the thread's iterations."""
    return variant[:1] == "v" and variant[1:3].isdecimal()


def short(label: str) -> str:
    """A variant's name, or a candidate's label, with the variant's number alone: v07 of v07_atomic_min_lock."""
    return re.sub(r"^(v\d\d)_\w+", r"\1", label)


def _number(variant: str) -> int:
    return int(variant[1:3]) if is_numbered(variant) else 0


def has(run: Run, label: str) -> bool:
    """Whether the run measured this candidate."""
    return any(c["label"] == label for c in run.candidates)


def variant_of(run: Run, label: str) -> str:
    return run.candidates[run.index(label)]["variant"]


def repeat_label(run: Run) -> str | None:
    """cuBLAS measured a second time; its ratio to the first is the noise floor."""
    second = [c["label"] for c in run.candidates if c["variant"] == BASELINE][1:]
    return second[0] if second else None


def left_out(run: Run, label: str) -> dict[str, int]:
    """Rows without a speed, by status."""
    return {status: count for status, count in run.counts(label).items() if status != "ok"}


def looks(runs: dict[str, Run]) -> Iterator[tuple[str, Run, str, str]]:
    """Name, run, colour and marker of each population that has a run."""
    for (name, run), colour, marker in zip(runs.items(), style.PALETTE, "os", strict=False):
        yield name, run, colour, marker


def describe(run: Run) -> str:
    """Run id, device and versions in one line of small print."""
    versions = run.header["versions"]
    return f"{run.id}: {run.header['device']['name']}, torch {versions['torch']}, Triton {versions['triton']}"


def describe_document(document: Document) -> str:
    """Id, device and versions of a document in one line of small print."""
    device, versions = document.header["device"]["name"], document.header["versions"]
    return f"{document.id}: {device}, torch {versions['torch']}, Triton {versions['triton']}"


def thread_averages() -> list[ThreadAverage]:
    """Source: triton-lang/triton#1393, the comments named in the file."""
    return [ThreadAverage(**entry) for entry in yaml.safe_load((HERE / "thread_averages.yaml").read_text())]


def peak(device: str) -> Peak | None:
    """The stated peaks of a device by its name, None for one that the file does not hold."""
    known = [Peak(**entry) for entry in yaml.safe_load((HERE / "device_peaks.yaml").read_text())]
    return next((p for p in known if device.startswith(p.device)), None)
