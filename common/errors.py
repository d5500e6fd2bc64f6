"""The exceptions a caller can meet. Each is raised before anything is launched or written."""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Callable, Iterable


class UnsupportedProblem(ValueError):
    """The problem breaks a variant's contract: a dimension, dtype or layout that the kernel was not written for."""


class NotCoResident(RuntimeError):
    """A tile is shared by more programs than the GPU holds at once, so programs that wait could wait for ever."""


class UnknownVariant(LookupError):
    """No variant has this name; the message lists the nearest ones."""


class UnknownClaim(LookupError):
    """The thread makes no claim of this number; the message lists the nearest ones."""


class InvalidExperiment(ValueError):
    """An experiment file does not match the schema; the message names file, line, key and what is allowed."""


class DamagedRun(ValueError):
    """A file of results is no run, or not all of it can be read; the message names file and line."""


class NoCandidate(DamagedRun, LookupError):
    """A run lacks a candidate that is to be shown or compared; the message lists those that it has."""


class NoResults(LookupError):
    """There is no such folder of results, or nothing in it is from the device that was asked for."""


class NotWritable(OSError):
    """Nothing can be written where results or pictures should go."""


class WrongResult(RuntimeError):
    """A kernel's result is wrong, so nothing about its speed is recorded."""


class ProtocolFault(RuntimeError):
    """A kernel fails in a way that no property of its card describes."""


class NoWorker(RuntimeError):
    """A worker could not import, find its device or say so in time; what is measured so far is kept."""


class NoDevice(RuntimeError):
    """The call needs an NVIDIA GPU and none was found."""


class UnsupportedTriton(RuntimeError):
    """The Triton that is installed or asked for is none of those that the project drives, or cannot be fetched."""


OWN_ERRORS = (
    UnsupportedProblem,
    NotCoResident,
    UnknownVariant,
    UnknownClaim,
    InvalidExperiment,
    DamagedRun,
    NoResults,
    NotWritable,
    WrongResult,
    NoWorker,
    NoDevice,
    UnsupportedTriton,
)
"""What ends a command line with one line and exit code 2."""


def run_command_line(app: Callable[[], object]) -> None:
    """Run a command line; the project's own errors end it with one line and exit code 2."""
    try:
        app()
    except OWN_ERRORS as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def nearest(word: str, allowed: Iterable[str], count: int = 3, shown: Callable[[str], str] = str) -> str:
    """Name the allowed words nearest to `word`, or all of them when none is near; capitals count for nothing.

    `shown`: what stands for an allowed word in the answer, where one thing has several names.
    """
    spelt = {name.lower(): shown(name) for name in allowed}

    def closeness(name: str) -> tuple[float, int, float]:
        matcher = difflib.SequenceMatcher(None, name, word.lower())
        letters = zip(name, word.lower(), strict=False)
        beginning = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], letters))
        return matcher.ratio(), beginning, matcher.quick_ratio()  # the last takes letters in any order

    close = [name for name in sorted(spelt, key=closeness, reverse=True)[:count] if closeness(name)[0] > 0.4] or spelt
    return ", ".join(dict.fromkeys(spelt[name] for name in close))
