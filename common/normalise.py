"""Compiler texts with everything taken out that says nothing: locations, addresses, and the numbers of names.

Equal code becomes equal text. Names (SSA values, registers, labels) are numbered anew in the order in which they
appear. A line's shape leaves the numbers out: two texts are aligned by shapes, so that one more instruction at the
top does not make every later line differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.errors import UnsupportedProblem, nearest


@dataclass(frozen=True)
class Line:
    """A line with its names renumbered, and the same without their numbers."""

    text: str
    shape: str


_MLIR_NAME = re.compile(r"[%^][\w$.-]+")
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
            shape = _REUSE.sub("", names.sub(lambda found: _family(found[0]), kept))
            lines.append(Line(names.sub(renumber, kept), shape))
    return lines


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
