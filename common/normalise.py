"""Compiler texts with everything taken out that says nothing: locations, addresses, and the numbers of names.

Equal code becomes equal text. Names (SSA values, registers, labels) are numbered anew in the order in which they
appear. A line's shape leaves the numbers out: two texts are aligned by shapes, so that one more instruction at the
top does not make every later line differ. Where a name is given once, the second text then takes the first one's, so
that a line with other operands is seen to differ; machine code and PTX give a register one value after another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import UnsupportedProblem, nearest


@dataclass(frozen=True)
class Line:
    """A line with its names renumbered, and the same without their numbers."""

    text: str
    shape: str


NAMED_ONCE = ("ttir", "ttgir", "llir")
"""Levels at which a name stands for one value."""

_MLIR_NAME = re.compile(r"[%^][\w$.-]+")
_MLIR_GIVEN = re.compile(r"%[\w$.-]+(?=(?::\d+)? = )|(?<=[(,\s])%[\w$.-]+(?=: )")
"""A name where it is given a value: results, and the arguments of loops and blocks. Regions side by side use the same
names for different values."""
_LLVM_NAME = re.compile(r'%"[^"]+"|%[\w$.-]+|(?<=^)\d+(?=:)')
_PTX_NAME = re.compile(r"%[a-z]+\d+\b|\$L__BB[\d_]+")
_PTX_REGISTER = re.compile(r"(%(?:r|rd|rs|p|f|fd|rq|b|h|hh))\d+")
_SASS_NAME = re.compile(r"(?<![\w.])(?:UR|UP|SB|R|P|B)\d+\b|`?\(?\.L_x_\d+\)?|^\.L_x_\d+")
_AMD_NAME = re.compile(r"(?<![\w.])[vsa](?:\d+\b|\[\d+:\d+\])|\.LBB\w+")
_REUSE = re.compile(r"\.reuse\b")


def normalise(text: str, level: str, machine: str = "cuda") -> list[Line]:
    """The lines of a text of one level (`ttir`, `ttgir`, `llir`, `ptx` or `sass`). Raises UnsupportedProblem."""
    if level not in _LEVELS:
        raise UnsupportedProblem(f"no level {level!r}; nearest: {nearest(level, _LEVELS)}")
    keep, names = _LEVELS[level if machine == "cuda" or level != "sass" else "amdgcn"]
    numbers: dict[str, str] = {}
    counts: dict[str, int] = {}

    def renumber(found: re.Match[str]) -> str:
        name = found[0]
        if name not in numbers:
            family = _family(name)
            numbers[name] = f"{family}{counts.get(family, 0)}"
            counts[family] = counts.get(family, 0) + 1
        return numbers[name]

    lines = []
    for raw in text.splitlines():
        kept = keep(raw)
        if kept:
            if names is _MLIR_NAME:
                for name in _MLIR_GIVEN.findall(kept):
                    numbers.pop(name, None)
            shape = _REUSE.sub("", names.sub(lambda found: _family(found[0]), kept))
            lines.append(Line(names.sub(renumber, kept), shape))
    return lines


def named_alike(a: list[Line], b: list[Line], same: Iterable[tuple[int, int]], level: str) -> list[Line]:
    """The second text with the first one's names. `same`: numbers of lines of equal shape, in either text.

    A name of the second text becomes the one that first stands in its place; what has no partner gets a new number.
    Only for NAMED_ONCE.
    """
    names = _LEVELS[level][1]
    counts = Counter(_family(name) for name in {name for line in a for name in names.findall(line.text)})
    partner: dict[str, str] = {}
    taken: set[str] = set()
    for i, j in same:
        for theirs, mine in zip(names.findall(a[i].text), names.findall(b[j].text), strict=True):
            if mine not in partner and theirs not in taken:
                partner[mine] = theirs
                taken.add(theirs)

    def rename(found: re.Match[str]) -> str:
        name = found[0]
        if name not in partner:
            family = _family(name)
            partner[name] = f"{family}{counts[family]}"
            counts[family] += 1
        return partner[name]

    return [Line(names.sub(rename, line.text), line.shape) for line in b]


def _family(name: str) -> str:
    """What a name is: `%` of MLIR and LLVM, `%rd` of PTX, `R` of SASS, `v` of AMD, `L` of a label."""
    if "L_x_" in name or "L__BB" in name or "LBB" in name:
        return "L"
    if name.startswith("^"):
        return "^bb"
    if found := _PTX_REGISTER.fullmatch(name):
        return found[1]
    if name[0] == "%" or name[0].isdigit():
        return "%"
    return re.match(r"[A-Za-z]*", name)[0]


def _mlir(line: str) -> str:
    if line.startswith("#loc"):
        return ""
    return re.sub(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", line).rstrip()


def _llvm(line: str) -> str:
    if re.match(r"![\w.]+ =|; ModuleID|source_filename|attributes #|declare |^\s*#dbg_", line):
        return ""
    return re.sub(r",? !\w+ !\d+|\s*;.*$", "", line).rstrip()


def _ptx(line: str) -> str:
    line = line.split("//")[0].rstrip()
    if re.match(
        r"\s*(\.loc|\.file|\.section|\.b8|\.b32 (\.debug|\$L|\d)|\.b64|\$L__(tmp|func|info|debug|sec)|[{}]\s*$)", line
    ):
        return ""
    return line


_SASS_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+([^;]*?)\s*;")


def _sass(line: str) -> str:
    if found := _SASS_INSTRUCTION.match(line):
        return "    " + re.sub(r"\s+", " ", found[1])
    return line.strip() if re.match(r"\.L_x_\d+:", line) else ""


def _amdgcn(line: str) -> str:
    line = line.split(";")[0].rstrip()
    if re.match(r"\.?LBB\w+:", line):
        return line
    return "    " + re.sub(r"\s+", " ", line.strip()) if re.match(r"\s+[a-z]+_", line) else ""


_LEVELS = {
    "ttir": (_mlir, _MLIR_NAME),
    "ttgir": (_mlir, _MLIR_NAME),
    "llir": (_llvm, _LLVM_NAME),
    "ptx": (_ptx, _PTX_NAME),
    "sass": (_sass, _SASS_NAME),
    "amdgcn": (_amdgcn, _AMD_NAME),
}
