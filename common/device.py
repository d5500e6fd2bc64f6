"""What a measurement ran on: device, versions, clocks, power and throttle reasons."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import triton

try:
    import pynvml
except ImportError:
    pynvml = None


SAME_READING_S = 0.05
"""Seconds within which the driver is not asked again: it averages power over longer, and an answer takes long."""


class Telemetry:
    """Clock (MHz), power (W) and throttle reasons (NVML bit mask) of one GPU; nulls where NVML is missing.

    `most_share`: of the time that asking may take; a driver that answers slowly is asked the more seldom. `oldest_s`:
    the age in seconds of the oldest reading that was handed out.
    """

    def __init__(self, uuid: str | None, most_share: float = 1.0) -> None:
        self._handle = None
        self._most_share, self._took, self.oldest_s = most_share, 0.0, 0.0
        self._read_at, self._reading = -math.inf, (None, None, None)
        if pynvml is None or uuid is None:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            self._handle = None  # MIG slices and containers without NVML: measured all the same

    def read(self) -> tuple[int | None, int | None, int | None]:
        """SM clock, power and throttle reasons, None for what the driver does not tell.

        At most SAME_READING_S old, or what asking took over `most_share`, if that is longer.
        """
        asked = time.monotonic()
        if asked - self._read_at > max(SAME_READING_S, self._took / self._most_share):
            self._reading = (
                self._ask("nvmlDeviceGetClockInfo", pynvml and pynvml.NVML_CLOCK_SM),
                self._ask("nvmlDeviceGetPowerUsage", scale=1000),
                self._ask("nvmlDeviceGetCurrentClocksEventReasons"),
            )
            self._read_at = time.monotonic()
            self._took = self._read_at - asked
        else:
            self.oldest_s = max(self.oldest_s, asked - self._read_at)
        return self._reading

    def _ask(self, function: str, *args: object, scale: int = 1) -> int | None:
        if self._handle is None:
            return None
        try:
            return int(getattr(pynvml, function)(self._handle, *args)) // scale
        except (pynvml.NVMLError, AttributeError):
            return None

    def driver(self) -> str | None:
        """The driver's version."""
        return str(pynvml.nvmlSystemGetDriverVersion()) if self._handle is not None else None


def identity() -> dict[str, Any]:
    """Name, UUID, SMs, L2 bytes and memory of the current GPU; the processor's where kernels are interpreted."""
    if not torch.cuda.is_available():
        return {"name": "interpreter", "uuid": None, "machine": platform.machine()}
    properties = torch.cuda.get_device_properties()
    return {
        "name": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }


def versions() -> dict[str, Any]:
    """Versions of everything that decides a speed, and cuBLAS's settings."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if torch.cuda.is_available():
        found |= {
            "cuda": torch.version.cuda,
            "cublas": _cublas_version(),
            "ptxas": _ptxas_version(),
            "driver": Telemetry(identity()["uuid"]).driver(),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "default"),
            "blas_library": str(torch.backends.cuda.preferred_blas_library()),
            "fp16_reduced_precision_reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        }
    return found


def _cublas_version() -> str | None:
    from importlib import metadata

    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _ptxas_version() -> str | None:
    try:
        text = subprocess.run([triton.knobs.nvidia.ptxas.path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, AttributeError, RuntimeError, subprocess.CalledProcessError):
        return None
    return text.stdout.strip().splitlines()[-1]


def commit() -> tuple[str, bool | None]:
    """The git commit, and whether files differ from it.

    ZOO_COMMIT goes before the repository's: a copied tree may have none, or one that the copy has outrun.
    """
    if stated := os.environ.get("ZOO_COMMIT"):
        return stated, None
    git = ["git", "-C", str(Path(__file__).parent)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], **options).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown", None
    return head, bool(changed)
