"""Compiled kernels on demand: what is wanted, a cache of what was made, processes that make the rest.

Neither this module nor what it imports loads torch or Triton: an answer from the cache comes at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import triton_versions
from common.architectures import Architecture, architecture
from common.card import Card, Config, read_card
from common.inspection import Inspection

CACHE = triton_versions.CACHE / "kernels"
SIZE, LARGE_SIZE = (4096, 4096, 4096), (8192, 8192, 4096)
"""The problem whose launch is compiled: M, N and K that 16 divides. The large one starts both kernels on GPUs of more
than 200 SMs too."""
LEVELS = ("ttir", "ttgir", "llir", "ptx", "sass")
"""Texts of a kernel, from the source to the machine. For AMD `sass` is LLVM's assembly and there is no `ptx`."""
SLOW = ("sm_80", "sm_86")
"""Where ptxas takes longest."""
HERE = Path(__file__).parent
_DECIDE = ("architectures", "card", "compilation", "compile_worker", "decomposition", "inspection", "launcher")
_DECIDE += ("legacy_triton", "machine_code", "residency", "cluster_release")
"""Modules of this room whose change may change a record."""


@dataclass(frozen=True)
class Job:
    """One kernel to compile: of the variant in `path`, as a launch of `size` (M, N, K) with `config` starts it."""

    variant: str
    path: Path
    kernel: str
    architecture: str
    config: Config
    triton: str
    size: tuple[int, int, int] = SIZE

    @functools.cached_property
    def key(self) -> str:
        """Where the cache keeps it: a hash of everything that the result depends on."""
        asked = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "path"}
        asked["config"] = dataclasses.asdict(self.config)
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        digest.update(self.path.read_bytes())
        digest.update(_own_code())
        return digest.hexdigest()[:32]

    @property
    def record_file(self) -> Path:
        return CACHE / f"{self.key}.json"

    @property
    def texts_file(self) -> Path:
        return CACHE / f"{self.key}.texts.gz"

    def message(self) -> str:
        """The job as the worker reads it."""
        legacy = triton_versions.is_legacy(self.triton)
        return json.dumps(
            {
                "variant": self.variant,
                "path": str(self.path),
                "kernel": self.kernel,
                "architecture": self.architecture,
                "config": dataclasses.asdict(self.config),
                "triton": self.triton,
                "size": self.size,
                "legacy": legacy,
                "ptxas": triton_versions.tool(self.triton, "ptxas") if legacy else "",
                "nvdisasm": triton_versions.tool(triton_versions.installed(), "nvdisasm"),
                "texts": str(self.texts_file),
            }
        )


@functools.lru_cache
def _own_code() -> bytes:
    return b"".join((HERE / f"{name}.py").read_bytes() for name in _DECIDE)


def jobs_of(
    name: str,
    path: Path,
    architectures: Iterable[Architecture],
    changes: dict[str, Any] | None = None,
    version: str | None = None,
    card: Card | None = None,
) -> list[Job]:
    """The jobs of a variant: every kernel of its card for each architecture, the card's config with `changes`.

    Architectures for which the variant was not written are left out.
    """
    card = card or read_card(path.read_text())
    config = card.default.replace(**(changes or {}))
    version = version or triton_versions.installed()
    return [
        Job(name, path, kernel, target.name, config, version, size_for(target))
        for target in architectures
        if written_for(card, target.name)
        for kernel in card.kernels
    ]


def size_for(target: Architecture) -> tuple[int, int, int]:
    """The problem that starts every kernel of a variant on an architecture's GPU."""
    return SIZE if target.limits.sms <= 200 else LARGE_SIZE


def written_for(card: Card, architecture: str) -> bool:
    """Whether a variant's contract names the architecture, or none at all."""
    return not card.contract.architectures or architecture in card.contract.architectures


def cached(job: Job) -> Inspection | None:
    """What the cache holds of a job; a damaged entry counts as none."""
    try:
        return Inspection.from_dict(json.loads(job.record_file.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def texts(job: Job) -> dict[str, str]:
    """A compiled job's texts by level. Compiles it where the cache has lost them."""
    try:
        with gzip.open(job.texts_file, "rt") as file:
            return json.load(file)
    except (OSError, ValueError, EOFError):
        job.record_file.unlink(missing_ok=True)
        inspect([job])
        with gzip.open(job.texts_file, "rt") as file:
            return json.load(file)


def inspect(jobs: list[Job], progress: Callable[[int, int], None] | None = None) -> list[Inspection]:
    """The records of all jobs, in their order: from the cache, the rest compiled in one process a core.

    `progress` is called with the jobs done and all jobs to compile. Raises UnsupportedTriton before any is started.
    """
    found = {job: cached(job) for job in jobs}
    missing = [job for job, record in found.items() if record is None]
    if missing:
        CACHE.mkdir(parents=True, exist_ok=True)
        for version in {job.triton for job in missing}:
            triton_versions.folder(version)
        found |= _Workers(missing, progress).run()
    return [found[job] for job in jobs]


def kind_of(job: Job) -> tuple[str, str]:
    """What jobs of one process have in common: the version of Triton and the backend."""
    return job.triton, architecture(job.architecture).backend


class _Workers:
    """Threads that each drive one process at a time, and take a new one for another kind of job or after a crash."""

    def __init__(self, jobs: list[Job], progress: Callable[[int, int], None] | None) -> None:
        self.waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()

        # The longest first, so that no core is left with a long one at the end.
        def late(job: Job) -> tuple[object, ...]:
            return (*kind_of(job), job.kernel == "full_tiles", job.architecture not in SLOW)

        for job in sorted(jobs, key=late):
            self.waiting.put(job)
        self.total, self.progress = len(jobs), progress
        self.done: dict[Job, Inspection] = {}
        self.failure: BaseException | None = None
        self.workers: list[_Worker] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()

    def run(self) -> dict[Job, Inspection]:
        count = min(os.cpu_count() or 1, self.total)
        threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(0.05)
        except BaseException:
            self.stopping.set()
            for worker in self.workers:
                worker.kill()
            for thread in threads:
                thread.join(10)
            raise
        if self.failure is not None:
            raise self.failure
        return self.done

    def _drive(self) -> None:
        worker: _Worker | None = None
        try:
            while not self.stopping.is_set():
                try:
                    job = self.waiting.get_nowait()
                except queue.Empty:
                    return
                if worker is None or worker.kind != kind_of(job):
                    if worker is not None:
                        worker.close()
                    worker = _Worker(*kind_of(job))
                    self.workers.append(worker)
                    if self.stopping.is_set():  # whoever stopped the others may not have seen this one
                        worker.kill()
                record = worker.ask(job)
                if worker.process.poll() is not None:
                    worker.close()
                    worker = None
                if not self.stopping.is_set():
                    self._store(job, record)
        except BaseException as error:  # handed to the thread that waits
            self.failure = error
            self.stopping.set()
        finally:
            if worker is not None:
                worker.close()

    def _store(self, job: Job, record: Inspection) -> None:
        if not record.retry:
            temporary = job.record_file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            temporary.write_text(json.dumps(record.as_dict()))
            temporary.replace(job.record_file)
        with self.lock:
            self.done[job] = record
            if self.progress:
                self.progress(len(self.done), self.total)


class _Worker:
    """A process of `common.compile_worker` with one version of Triton, for one maker's GPUs."""

    def __init__(self, version: str, backend: str) -> None:
        self.kind = (version, backend)
        place = triton_versions.folder(version)
        path = [str(place)] if place else []
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        inherited = os.environ.get("PYTHONPATH")  # where the environment's own Triton may lie
        environment["PYTHONPATH"] = os.pathsep.join([*path, str(HERE.parent), *([inherited] if inherited else [])])
        self.scratch = tempfile.TemporaryDirectory(prefix="stream-k-zoo-", ignore_cleanup_errors=True)
        environment["TRITON_CACHE_DIR"] = environment["TMPDIR"] = self.scratch.name
        self.errors = Path(self.scratch.name, "errors")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "common.compile_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=HERE.parent,
                start_new_session=True,  # Ctrl-C would end its assembler, and that would pass for a failure
            )

    def ask(self, job: Job) -> Inspection:
        """The record of a job; "failed" where the compiler took the process with it."""
        assert self.process.stdin and self.process.stdout
        said_before = self.errors.stat().st_size
        try:
            self.process.stdin.write(job.message() + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            record = Inspection.from_dict(json.loads(line))
            if record.error.endswith("PassManager::run failed"):
                record.error = f"{record.error}: {self._last_words(said_before)}"
            return record
        code = self.process.wait()
        config = dataclasses.asdict(job.config)
        record = Inspection(job.variant, job.kernel, job.architecture, job.triton, config, status="failed")
        word = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        record.error = f"the compiler ended with {word}: {self._last_words(said_before)}"
        record.retry = code in (-signal.SIGKILL, -signal.SIGTERM)
        with gzip.open(job.texts_file, "wt") as file:
            json.dump({"error": record.error}, file)
        return record

    def _last_words(self, start: int) -> str:
        """The compiler's own first word of an error since a place in its standard error."""
        said = self.errors.read_bytes()[start:].decode(errors="replace")
        found = re.search(r"error: [^\n]*", said) or re.search(r"Assertion [^\n]* failed", said)
        lines = said.split("\n")
        return (found[0] if found else next((line for line in reversed(lines) if line.strip()), "no word"))[:160]

    def kill(self) -> None:
        """End the process and the assemblers that it started, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and remove its files."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # An assembler that was killed may have one file more to make: what it leaves is removed at the next try.
        for _ in range(20):
            shutil.rmtree(self.scratch.name, ignore_errors=True)
            if not Path(self.scratch.name).exists():
                break
            time.sleep(0.05)
        self.scratch.cleanup()
