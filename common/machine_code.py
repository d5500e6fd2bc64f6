"""Machine code as text: instructions, their kinds, and the loops that they form.

NVIDIA code is read as `nvdisasm -c` prints it, AMD code as LLVM's assembly. A kind is a coarse word that figures and
tables add up ("global_load"); a detail says more ("global_load 128").
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

KINDS = (
    "matrix",
    "tensor_memory",
    "async_copy",
    "wait",
    "global_load",
    "global_store",
    "shared_load",
    "shared_store",
    "local_load",
    "local_store",
    "atomic",
    "reduction",
    "fence",
    "cache_invalidation",
    "barrier",
    "mbarrier",
    "branch",
    "reconvergence",
    "integer",
    "float",
    "move",
    "other",
)
"""`atomic` returns the old value, `reduction` does not. `wait`: for asynchronous copies or matrix instructions.
`barrier`: all warps of a program. `local_*`: a thread's stack, which is where spilled registers go."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. `target`: the label it may jump to. `falls_through`: whether the next one may follow."""

    opcode: str
    operands: str
    predicate: str = ""
    target: str | None = None
    falls_through: bool = True

    @property
    def text(self) -> str:
        """As it is written, without its address."""
        return " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)


@dataclass
class Code:
    """A kernel's instructions; `labels` maps a label to the number of the instruction it stands before."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def mix(self) -> Counter[str]:
        """Instructions by kind."""
        return Counter(kind(i.opcode) for i in self.instructions)

    def details(self) -> Counter[str]:
        """Instructions by detail, of the kinds that touch memory or other programs, and of matrix instructions."""
        return Counter(found for i in self.instructions if (found := detail(i.opcode)))


@dataclass(frozen=True)
class Loop:
    """A loop: the numbers of its instructions, nested loops included, and how deep it lies (1 is outermost)."""

    members: tuple[int, ...]
    depth: int
    innermost_matrix: bool = False


_SASS_SECTION = re.compile(r"^\s*\.section\s+([^,\s]+)")
_SASS_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
_SASS_LABEL = re.compile(r"^(\.?[\w$.]+):")
_SASS_TARGET = re.compile(r"`\(([^)]+)\)")
_ENDS = {"EXIT", "RET", "KILL"}
_JUMPS = {"BRA", "JMP", "BRX", "JMX"}
SASS_BYTES = 16
"""Bytes of one instruction, on Volta and later."""


def parse_sass(text: str, kernel: str) -> Code:
    """The code of one kernel in `nvdisasm -c`'s output. Raises ValueError where it has none."""
    code, inside = Code(), False
    for line in text.splitlines():
        if section := _SASS_SECTION.match(line):
            inside = section[1] == f".text.{kernel}"
        elif inside and (label := _SASS_LABEL.match(line)):
            code.labels[label[1]] = len(code.instructions)
        elif inside and (found := _SASS_LINE.match(line)):
            code.instructions.append(_sass_instruction(found[1] or "", found[2], found[3]))
    if not code.instructions:
        raise ValueError(f"the disassembly has no code of {kernel}")
    code.size = SASS_BYTES * len(code.instructions)
    while len(code.instructions) > 1 and _is_padding(code.instructions[-1]):
        code.instructions.pop()
    return code


def _sass_instruction(predicate: str, opcode: str, operands: str) -> Instruction:
    base = opcode.split(".")[0]
    target = _SASS_TARGET.search(operands) if base in _JUMPS else None
    always = not predicate and (base in _ENDS or (base in _JUMPS and re.match(r"`\(|R\d|UR\d", operands) is not None))
    return Instruction(opcode, operands, predicate, target[1] if target else None, not always)


def _is_padding(instruction: Instruction) -> bool:
    """What ptxas puts behind a kernel's end: a jump to itself, and NOPs."""
    return instruction.opcode == "NOP" or (instruction.opcode == "BRA" and not instruction.falls_through)


_AMD_LINE = re.compile(r"^\s+([sv]_\w+|buffer_\w+|global_\w+|flat_\w+|scratch_\w+|ds_\w+)\b\s*([^;]*?)\s*(?:;.*)?$")
_AMD_LABEL = re.compile(r"^(\.?LBB\w+):")


def parse_amdgcn(text: str) -> Code:
    """The code of the one kernel in LLVM's AMDGPU assembly. Raises ValueError where it has none."""
    code = Code()
    for line in text.splitlines():
        if label := _AMD_LABEL.match(line):
            code.labels[label[1]] = len(code.instructions)
        elif found := _AMD_LINE.match(line):
            opcode, operands = found[1], found[2]
            jump = opcode.startswith(("s_branch", "s_cbranch"))
            code.instructions.append(
                Instruction(
                    opcode,
                    operands,
                    target=operands if jump else None,
                    falls_through=opcode not in ("s_branch", "s_endpgm"),
                )
            )
        elif line.lstrip().startswith("s_endpgm"):
            code.instructions.append(Instruction("s_endpgm", "", falls_through=False))
    if not code.instructions:
        raise ValueError("the assembly has no code")
    size = re.search(r"; codeLenInByte = (\d+)", text)
    code.size = int(size[1]) if size else 0
    return code


_SASS_KINDS: tuple[tuple[str, str], ...] = (
    ("matrix", r"[HIDBQO]G?MMA|UTC\w*MMA"),
    ("tensor_memory", r"LDTM|STTM|LDT|STT|UTCCP|UTCATOMSWS"),
    ("async_copy", r"LDGSTS|UBLKCP|UBLKRED|UTMALDG|UTMASTG|UTMAREDG|UTMAPF|UBLKPF"),
    ("wait", r"LDGDEPBAR|DEPBAR|WARPGROUP|UTMACMDFLUSH|ARRIVES|WARPGROUPSET"),
    ("global_load", r"LDG|LD"),
    ("global_store", r"STG|ST"),
    ("shared_load", r"LDS|LDSM"),
    ("shared_store", r"STS|STSM|STAS"),
    ("local_load", r"LDL"),
    ("local_store", r"STL"),
    ("atomic", r"ATOMG?|ATOMS"),
    ("reduction", r"REDG?|REDS|REDAS"),
    ("fence", r"MEMBAR|ERRBAR|FENCE"),
    ("cache_invalidation", r"CCTL|CCTLL|CCTLT|UTMACCTL"),
    ("barrier", r"BAR|UCGABAR\w*|B2R"),
    ("mbarrier", r"SYNCS|UTCBAR"),
    ("branch", r"U?BRA|BRX|JMP|JMX|CALL|RET|EXIT|BREAK|KILL|ACQBULK|ACQSHMINIT"),
    ("reconvergence", r"BSSY|BSYNC|WARPSYNC\w*|BMOV"),
    ("float", r"[FHD](ADD|MUL|FMA|SETP?|MNMX|SEL|CMP)\w*|MUFU|F2\w+|I2F\w*|I2I\w*|FRND|FCHK|FSWZADD"),
    (
        "move",
        r"U?MOV|CS2U?R|S2U?R|R2U?R|UR2R|R2P|P2R|UP2UR|UR2UP|U?SEL|U?PRMT|LDCU?|ULDC|SHFL|VOTEU?|PLOP3|UPLOP3|MOVM|REDUX|ELECT",
    ),
    (
        "integer",
        r"U?(IMAD|IADD\w*|VIADD\w*|I?LEA|LOP3?|SHF|SHL|SHR|ISETP|IABS|VIMNMX\w*|IMNMX|POPC|FLO|BREV|SGXT|BMSK)",
    ),
    ("integer", r"U?I[A-Z]\w*|U?V[A-Z]\w*"),
)
_AMD_KINDS: tuple[tuple[str, str], ...] = (
    ("matrix", r"v_s?mfma_\w+"),
    ("wait", r"s_waitcnt\w*"),
    ("barrier", r"s_barrier\w*"),
    ("branch", r"s_c?branch\w*|s_endpgm|s_setpc\w*|s_swappc\w*"),
    ("fence", r"buffer_wbl2\w*"),
    ("cache_invalidation", r"buffer_inv\w*|s_dcache_inv\w*"),
    ("reduction", r"(global|buffer|flat)_atomic_(pk_)?add\w*"),
    ("atomic", r"(global|buffer|flat|ds)_(atomic|cmpst|wrxchg)\w*"),
    ("local_load", r"scratch_load\w*"),
    ("local_store", r"scratch_store\w*"),
    ("global_load", r"(global|buffer|flat)_load\w*"),
    ("global_store", r"(global|buffer|flat)_store\w*"),
    ("shared_load", r"ds_read\w*|ds_load\w*"),
    ("shared_store", r"ds_write\w*|ds_store\w*"),
    ("move", r"[sv]_(mov|cndmask|cselect|readfirstlane|accvgpr|perm|swap|load|bpermute)\w*|ds_b?permute\w*"),
    ("float", r"v_\w+_(f16|f32|f64|bf16)\w*|v_pk_\w+"),
    (
        "integer",
        r"[sv]_\w+_[iub](1|8|16|24|32|64)\w*|[sv]_(and|or|xor|not|lshl|lshr|ashr|add|sub|mul|mad|bfe|bfi|cmp)\w*",
    ),
)
_COMPILED = {
    True: tuple((name, re.compile(pattern)) for name, pattern in _SASS_KINDS),
    False: tuple((name, re.compile(pattern)) for name, pattern in _AMD_KINDS),
}


def kind(opcode: str) -> str:
    """The kind of an instruction, one of KINDS."""
    sass = opcode[0].isupper()
    base = opcode.split(".")[0] if sass else opcode
    return next((name for name, pattern in _COMPILED[sass] if pattern.fullmatch(base)), "other")


_SIZED = {"global_load", "global_store", "shared_load", "shared_store", "local_load", "local_store", "async_copy"}
_WITH_OPERATION = {"atomic", "reduction", "fence", "cache_invalidation", "matrix"}
_DROPPED = {"E", "EF", "EL", "STRONG", "RN", "DESC", "BYPASS", "LTC128B", "CONSTANT", "SYNC", "ACCESS"}


def detail(opcode: str) -> str | None:
    """Kind and width in bits, or kind, operation and scope; None for kinds without one."""
    name = kind(opcode)
    if name in _SIZED:
        return f"{name} {_width(opcode)}"
    if name in _WITH_OPERATION:
        if not opcode[0].isupper():
            return f"{name} {opcode}"
        base, *modifiers = opcode.split(".")
        words = [word for word in modifiers if word not in _DROPPED]
        return " ".join([name, base if name in ("matrix", "fence", "cache_invalidation") else "", *words]).replace(
            "  ", " "
        )
    return None


def _width(opcode: str) -> int:
    """Bits that a thread moves."""
    if not opcode[0].isupper():
        words = {
            "dwordx4": 128,
            "dwordx3": 96,
            "dwordx2": 64,
            "b128": 128,
            "b96": 96,
            "b64": 64,
            "short": 16,
            "b16": 16,
        }
        words |= {"ushort": 16, "ubyte": 8, "sbyte": 8, "byte": 8, "b8": 8}
        return next((bits for word, bits in words.items() if word in opcode), 32)
    modifiers = opcode.split(".")[1:]
    matrices = {"M88": 32, "MT88": 32}
    if found := [m for m in modifiers if m in matrices]:
        return 32 * next((int(m) for m in modifiers if m in ("2", "4")), 1) if found else 32
    sizes = {"256": 256, "128": 128, "96": 96, "64": 64, "U16": 16, "S16": 16, "16": 16, "U8": 8, "S8": 8}
    return next((sizes[m] for m in modifiers if m in sizes), 32)


def loops(code: Code) -> list[Loop]:
    """Every loop, outermost first: the strongly connected parts of the control flow, then those inside each.

    A part's first block in the order of addresses is taken for its header, so irreducible loops are found too.
    """
    blocks, successors = _blocks(code)
    found: list[tuple[list[int], int]] = []
    pending = [(list(range(len(blocks))), 0)]
    while pending:
        nodes, depth = pending.pop()
        for part in _cycles(nodes, successors):
            found.append((part, depth + 1))
            pending.append((part[1:], depth + 1))
    members = [([i for block in part for i in blocks[block]], depth) for part, depth in found]
    with_matrix = [frozenset(m) for m, _ in members if any(_is_matrix(code, i) for i in m)]
    result = []
    for numbers, depth in members:
        own = frozenset(numbers)
        innermost = own in with_matrix and not any(other < own for other in with_matrix)
        result.append(Loop(tuple(numbers), depth, innermost))
    return sorted(result, key=lambda loop: (loop.members[0], loop.depth))


def _is_matrix(code: Code, number: int) -> bool:
    return kind(code.instructions[number].opcode) == "matrix"


def hot_loops(code: Code) -> list[Loop]:
    """The innermost loops that hold matrix instructions, the one with the most instructions first."""
    return sorted((loop for loop in loops(code) if loop.innermost_matrix), key=lambda loop: -len(loop.members))


def part(code: Code, loop: Loop) -> Code:
    """The instructions of a loop alone."""
    return Code([code.instructions[i] for i in loop.members])


def _blocks(code: Code) -> tuple[list[range], list[list[int]]]:
    """Basic blocks as ranges of instruction numbers, and each one's successors."""
    count = len(code.instructions)
    jumps = [
        i for i, instruction in enumerate(code.instructions) if instruction.target or not instruction.falls_through
    ]
    starts = sorted({0, *(i for i in code.labels.values() if i < count), *(i + 1 for i in jumps if i + 1 < count)})
    blocks = [range(start, stop) for start, stop in zip(starts, [*starts[1:], count], strict=True)]
    number = {block.start: position for position, block in enumerate(blocks)}
    successors: list[list[int]] = []
    for position, block in enumerate(blocks):
        last = code.instructions[block[-1]]
        following = [position + 1] if last.falls_through and position + 1 < len(blocks) else []
        if last.target is not None and (place := code.labels.get(last.target)) in number:
            following.append(number[place])
        successors.append(following)
    return blocks, successors


def _cycles(nodes: list[int], successors: list[list[int]]) -> list[list[int]]:
    """The strongly connected parts of a part of the graph that hold a cycle, each in ascending order."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    place = {node: i for i, node in enumerate(nodes)}
    edges = [(place[a], place[b]) for a in nodes for b in successors[a] if b in place]
    if not edges:
        return []
    rows, columns = zip(*edges, strict=True)
    graph = coo_array(([1] * len(edges), (rows, columns)), shape=(len(nodes), len(nodes)))
    _, labels = connected_components(graph, connection="strong")
    parts: dict[int, list[int]] = {}
    for node, label in zip(nodes, labels, strict=True):
        parts.setdefault(int(label), []).append(node)
    itself = {a for a in nodes if a in successors[a]}
    return [part for part in parts.values() if len(part) > 1 or part[0] in itself]
