"""Where results go, measurements apart from what the interpreter made, and how wide a page of text is."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from common.errors import NotWritable

_EXPERIMENTS = Path(__file__).parent.parent / "experiments"
RESULTS = _EXPERIMENTS / "results"
DRY_RUNS = _EXPERIMENTS / "dry_runs"
"""Not in git: a dry run is no measurement."""


def destination(out: Path | None, dry_run: bool = False) -> Path:
    """The folder that was asked for, or the usual one of measurements or of dry runs; it is there and can be written.

    Raises NotWritable, so that nothing is measured that could not be kept.
    """
    folder = out if out is not None else DRY_RUNS if dry_run else RESULTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise NotWritable(f"{folder}: {error.strerror or error}") from None


def width(otherwise: int) -> int | None:
    """Columns of what is printed: None, for the terminal's own, else what COLUMNS says, else `otherwise`."""
    if sys.stdout.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdecimal() and int(told) else otherwise
