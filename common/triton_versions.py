"""Which Triton compiles: the installed one, or another version in a folder of its own, fetched when it is asked for.

A fetched version is a folder that stands before the environment's packages on the path of the process that compiles;
the environment's own Triton is untouched. What it needs beside itself (torch, numpy) comes from the environment.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from common.errors import UnsupportedTriton, nearest

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"
"""Everything that can be made again: compiled kernels and fetched versions of Triton."""
SUPPORTED = ("2.0.0", "2.1.0", "3.6.0", "3.7.0", "3.8.0", "3.9.0")
"""Versions whose compiler the project drives; 2.0.0 and 2.1.0 are those of the thread's time."""
LAST_PYTHON = {"2.0.0": (3, 11), "2.1.0": (3, 11)}
"""The last Python that a version has wheels for."""


@lru_cache
def installed() -> str:
    """The environment's own version, without importing it."""
    return importlib.metadata.version("triton")


def is_legacy(version: str) -> bool:
    """Whether this version's compiler is the first one, driven by `common.legacy_triton`."""
    return Version(version) < Version("3")


def check(version: str) -> str:
    """The version if the project can drive it. Raises UnsupportedTriton naming the nearest ones."""
    try:
        release = Version(version).release
    except InvalidVersion:
        release = ()
    known = any(len(release) == 3 and Version(name).release[:2] == release[:2] for name in SUPPORTED)
    if version == installed() or known:
        return version
    raise UnsupportedTriton(f"no Triton {version!r} that the project drives; nearest: {nearest(version, SUPPORTED)}")


def folder(version: str) -> Path | None:
    """Where this version lies, None for the environment's own. Fetches it on first use. Raises UnsupportedTriton."""
    if check(version) == installed():
        return None
    place = CACHE / f"triton-{version}-py{sys.version_info.major}{sys.version_info.minor}"
    if not (place / ".complete").exists():
        _fetch(version, place)
    return place


def _fetch(version: str, place: Path) -> None:
    last = LAST_PYTHON.get(version)
    if last and sys.version_info[:2] > last:
        raise UnsupportedTriton(
            f"Triton {version} has wheels for Python {last[0]}.{last[1]} at most and this is "
            f"{sys.version_info.major}.{sys.version_info.minor}: set up with make PYTHON=python{last[0]}.{last[1]}"
        )
    print(f"fetching Triton {version} into {place.relative_to(ROOT)}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--upgrade", "--target", str(place), f"triton=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise UnsupportedTriton(f"Triton {version} cannot be fetched: {lines[0].removeprefix('ERROR: ')}")
    (place / ".complete").touch()


def package(version: str) -> Path:
    """The folder of the `triton` package of a version. Raises UnsupportedTriton."""
    place = folder(version)
    if place is not None:
        return place / "triton"
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise UnsupportedTriton("no Triton is installed here: make setup")
    return Path(spec.origin).parent


def tool(version: str, name: str) -> str:
    """The path of a program that a version's wheel carries (`ptxas`, `nvdisasm`). Raises UnsupportedTriton."""
    for place in ("backends/nvidia/bin", "third_party/cuda/bin"):
        path = package(version) / place / name
        if path.exists():
            return str(path)
    raise UnsupportedTriton(f"Triton {version} carries no {name}")


def parse_versions(text: str | None) -> list[str]:
    """Versions from a comma-separated list, the installed one for None. Raises UnsupportedTriton."""
    return [check(part.strip()) for part in text.split(",")] if text else [installed()]


def assembler(ptxas: str) -> str:
    """The version of a ptxas, for example "12.8"."""
    said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    return f"ptxas {found[1]}" if found else "ptxas"
