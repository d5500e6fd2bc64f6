"""Hardware counters of whole calls by Nsight Compute.

The profiler runs this module's `inside` in a process of its own, and every kernel with empty caches. Calls are told
apart by an empty kernel before each. Where it cannot run, `experiments.estimates` stands in.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import variants
from common import documents
from common.launcher import Prepared, prepare, sms
from common.problem import Problem, make_inputs
from common.timing import empty_kernel
from experiments.estimates import calls
from experiments.plan import Candidate
from experiments.spec import Experiment

KIND = "counters"
MARKER = "empty_kernel"
SUMMED = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "lts__t_sectors_lookup_hit.sum": "l2_hit_sectors",
    "lts__t_sectors_lookup_miss.sum": "l2_miss_sectors",
    "gpu__time_duration.sum": "ns",
}
WEIGHTED = {
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
}
"""Percentages of a kernel, weighted by its time in a call of several."""


def inside(experiment: Experiment) -> None:
    """Run every call once, profiled, after one that is not: compiling is no part of it."""
    torch.cuda.init()
    for problem, candidate in calls(experiment):
        prepared = _prepare(problem, candidate, experiment.seed)
        prepared.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        empty_kernel[(1,)]()
        prepared.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def _prepare(problem: Problem, candidate: Candidate, seed: int) -> Prepared:
    a, b = make_inputs(problem, seed, device="cuda")
    return prepare(variants.get(candidate.variant), a, b, config=candidate.resolved(problem, sms(a.device)))


def measure(file: Path, experiment: Experiment, out: Path) -> Path:
    """Profile an experiment's calls and write the document; without counters it holds the reason why."""
    rows, reason = profile(file)
    wanted = calls(experiment)
    groups = list(split_calls(rows)) if rows else []
    if rows and len(groups) != len(wanted):
        reason, groups = f"{len(groups)} calls were profiled, {len(wanted)} were made", []
    records = []
    for number, (problem, candidate) in enumerate(wanted):
        record = {"problem": [problem.m, problem.n, problem.k], "label": candidate.label, "variant": candidate.variant}
        records.append(record | (aggregate(groups[number]) if groups else {}))
    head = documents.header(source="ncu" if groups else "none", reason=reason, experiment=experiment.name)
    return documents.write(out, kind_of(experiment), head, records)


def kind_of(experiment: Experiment) -> str:
    """The document's kind: the claims' own experiment is `counters`, another must not take its place as the newest."""
    return KIND if experiment.name == KIND else f"{experiment.name}_{KIND}"


def profile(file: Path) -> tuple[list[dict[str, str]], str]:
    """The profiler's rows, one a kernel and metric; none and the reason where it is missing or reads nothing."""
    profiler = shutil.which("ncu")
    if profiler is None:
        return [], "ncu was not found"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        command = [profiler, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--print-units", "base"]
        command += ["--metrics", ",".join([*SUMMED, *WEIGHTED]), "--log-file", str(log)]
        command += [sys.executable, "-m", "experiments", "counters", str(file), "--inside"]
        done = subprocess.run(command, capture_output=True, text=True)
        text = log.read_text(errors="replace") if log.exists() else ""
    rows = parse(text)
    if rows:
        return rows, ""
    said = [line for line in text.splitlines() if "ERROR" in line or "WARNING" in line]
    return [], " ".join([*said, *done.stderr.split("\n")[-6:]])[:500] or f"ncu ended with {done.returncode} and no rows"


def parse(text: str) -> list[dict[str, str]]:
    """The rows of the profiler's table, which its own messages may precede."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return list(csv.DictReader(lines)) if lines and "Metric Name" in lines[0] else []


Kernels = dict[tuple[str, str], dict[str, float]]
"""Metrics of a call's kernels, by number and name."""


def split_calls(rows: list[dict[str, str]]) -> Iterator[Kernels]:
    """For each call its kernels' metrics; a marker's kernel begins a call."""
    call: Kernels | None = None
    markers: set[str] = set()
    for row in rows:
        kernel = row["ID"]
        if row["Kernel Name"].startswith(MARKER):
            if kernel not in markers:
                markers.add(kernel)
                if call is not None:
                    yield call
                call = {}
        elif call is not None:
            call.setdefault((kernel, row["Kernel Name"]), {})[row["Metric Name"]] = float(
                row["Metric Value"].replace(",", "")
            )
    if call is not None:
        yield call


def aggregate(kernels: Kernels) -> dict[str, Any]:
    """Sums over a call's kernels, percentages weighted by their time, the L2's hit rate, and the kernels' names."""
    found: dict[str, Any] = {"kernels": len(kernels), "names": [name for _, name in kernels]}
    for metric, name in SUMMED.items():
        found[name] = sum(k.get(metric, 0.0) for k in kernels.values())
    for metric, name in WEIGHTED.items():
        weighted = sum(k.get(metric, 0.0) * k.get("gpu__time_duration.sum", 0.0) for k in kernels.values())
        found[name] = round(weighted / found["ns"], 2) if found["ns"] else None
    lookups = found["l2_hit_sectors"] + found["l2_miss_sectors"]
    return found | {"l2_hit_rate": round(found["l2_hit_sectors"] / lookups, 5) if lookups else None}
