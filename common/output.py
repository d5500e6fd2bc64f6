"""Where results go: measurements beside the experiments, what the interpreter made apart from them."""

from __future__ import annotations

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
