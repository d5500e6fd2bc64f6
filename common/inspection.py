"""What can be read off a compiled kernel without running it: resources, instructions, loops, barriers before locks."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import machine_code
from common.architectures import Architecture
from common.machine_code import Code


@dataclass
class Inspection:
    """One kernel of one variant for one architecture, by one version of Triton.

    `registers`, `stack_bytes`, `spill_store_bytes`, `spill_load_bytes`: of a thread; the last two count the bytes that
    spill instructions move, so a slot that is read twice counts twice. `static_shared_bytes`,
    `dynamic_shared_bytes`: of a program. `programs_per_sm`: how many one multiprocessor holds at once. `code_bytes`:
    machine code. `mix`, `details`: instructions by kind and by detail (`common.machine_code`). `hot_loops`: loops that
    hold matrix instructions and no deeper such loop; `hot_mix`, `hot_details`: of the one with the most instructions.
    `loops`: (depth, instructions, whether a hot loop), in the order of addresses. `lock_barriers`: for each place
    that sets a lock or flag, whether a barrier of all warps stands between the last store of data and it.
    `status`: "ok", or "failed" with `error`. `retry`: the process that compiled was killed, so nothing is known.
    """

    variant: str
    kernel: str
    architecture: str
    triton: str
    config: dict[str, Any]
    status: str = "ok"
    error: str = ""
    retry: bool = False
    assembler: str = ""
    num_warps: int = 0
    num_stages: int = 0
    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    programs_per_sm: int = 0
    code_bytes: int = 0
    instructions: int = 0
    mix: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)
    hot_loops: int = 0
    hot_mix: dict[str, int] = field(default_factory=dict)
    hot_details: dict[str, int] = field(default_factory=dict)
    loops: list[tuple[int, int, bool]] = field(default_factory=list)
    lock_barriers: list[bool] = field(default_factory=list)

    @property
    def n_spills(self) -> int:
        """Triton's unit: bytes of a thread's local memory divided by 4. Not a count of instructions."""
        return self.stack_bytes // 4

    @property
    def loop_depth(self) -> int:
        """Loops around the most deeply nested instruction."""
        return max((depth for depth, _, _ in self.loops), default=0)

    @property
    def launch_label(self) -> str:
        """Block, warps and stages of this kernel; the config's where it did not compile."""
        warps = self.num_warps or self.config["num_warps"]
        stages = self.num_stages or self.config["num_stages"]
        return f"{'x'.join(map(str, self.config['block']))} w{warps} s{stages}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for files and `--json`."""
        return dataclasses.asdict(self) | {"n_spills": self.n_spills, "loop_depth": self.loop_depth}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Inspection:
        """The record that `as_dict` gave."""
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {name: value for name, value in data.items() if name in known}
        kept["loops"] = [tuple(loop) for loop in kept["loops"]]
        return cls(**kept)


def read_nvidia(found: Inspection, name: str, ptx: str, sass: str, log: str, architecture: Architecture) -> None:
    """Fill a record from a kernel's PTX, its disassembly and what `ptxas -v` said."""
    resources = ptxas_resources(log, name)
    found.registers = resources["registers"]
    found.stack_bytes = resources["stack"]
    found.spill_store_bytes = resources["spill_stores"]
    found.spill_load_bytes = resources["spill_loads"]
    found.static_shared_bytes = resources["shared"]
    found.lock_barriers = lock_barriers(ptx)
    _read_code(found, machine_code.parse_sass(sass, name), architecture)


def read_amd(found: Inspection, assembly: str, architecture: Architecture) -> None:
    """Fill a record from LLVM's assembly, whose metadata states what the kernel takes.

    LLVM counts spilled registers, not the bytes moved: a spilled vector register is 4 bytes of a lane.
    """

    def stated(key: str) -> int:
        value = re.search(rf"\.{key}:\s+(\d+)", assembly)
        if value is None:
            raise ValueError(f"the assembly states no {key}")
        return int(value[1])

    found.registers = stated("vgpr_count")
    found.stack_bytes = stated("private_segment_fixed_size")
    found.spill_store_bytes = found.spill_load_bytes = 4 * stated("vgpr_spill_count")
    found.static_shared_bytes = stated("group_segment_fixed_size")
    found.assembler = "LLVM"
    _read_code(found, machine_code.parse_amdgcn(assembly), architecture)


def _read_code(found: Inspection, code: Code, architecture: Architecture) -> None:
    shared = found.static_shared_bytes + found.dynamic_shared_bytes
    if architecture.backend == "hip":
        shared = max(found.static_shared_bytes, found.dynamic_shared_bytes)  # both name the same allocation
    found.programs_per_sm = architecture.resident_programs(found.registers, shared, found.num_warps)
    found.code_bytes, found.instructions = code.size, len(code.instructions)
    found.mix, found.details = dict(code.mix()), dict(code.details())
    every, hot = machine_code.loops(code), machine_code.hot_loops(code)
    found.loops = [(loop.depth, len(loop.members), loop.innermost_matrix) for loop in every]
    found.hot_loops = len(hot)
    if hot:
        inside = machine_code.part(code, hot[0])
        found.hot_mix, found.hot_details = dict(inside.mix()), dict(inside.details())


def ptxas_resources(log: str, kernel: str) -> dict[str, int]:
    """Registers and bytes of stack, spills and static shared memory in `ptxas -v`'s words. Raises ValueError."""
    about = re.search(
        rf"Compiling entry function '{re.escape(kernel)}'.*?(?=Compiling entry function|\Z)", log, re.DOTALL
    )
    spills = about and re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", about[0]
    )
    used = about and re.search(r"Used (\d+) registers", about[0])
    if not spills or not used:
        raise ValueError(f"ptxas said nothing of {kernel}: {log[:200]!r}")
    shared = re.search(r"Used [^\n]*?(\d+) bytes smem", about[0])
    return {
        "registers": int(used[1]),
        "stack": int(spills[1]),
        "spill_stores": int(spills[2]),
        "spill_loads": int(spills[3]),
        "shared": int(shared[1]) if shared else 0,
    }


_SETS_BY_EXCHANGE = re.compile(r"\batom(\.\w+)*\.exch\.")
_SETS_BY_STORE = re.compile(r"\bst(\.\w+)*\.global(\.(?!v\d)\w+)*\.[bus]32\s")
_DATA_STORE = re.compile(
    r"\bst(\.\w+)*\.global(\.\w+)*\.v\d|\bst(\.\w+)*\.global(\.\w+)*\.[bu]16|\bred\.|atom(\.\w+)*\.add"
)
_BARRIER = re.compile(r"\b(bar|barrier)(\.cta)?\.sync")


def lock_barriers(ptx: str) -> list[bool]:
    """For each setting of a lock or flag: whether a barrier stands between the last store of data and it.

    A lock is set by an exchange or, in a kernel without one, by a scalar 32-bit store: data is stored in vectors.
    """
    lines = [line.split("//")[0] for line in ptx.splitlines()]
    setters = [i for i, line in enumerate(lines) if _SETS_BY_EXCHANGE.search(line)]
    setters = setters or [i for i, line in enumerate(lines) if _SETS_BY_STORE.search(line)]
    found = []
    for setter in setters:
        before = (line for line in reversed(lines[:setter]) if _BARRIER.search(line) or _DATA_STORE.search(line))
        nearest = next(before, None)
        if nearest is not None:
            found.append(_BARRIER.search(nearest) is not None)
    return found


def disassemble(image: bytes, nvdisasm: str) -> str:
    """The machine code of a cubin as `nvdisasm -c` prints it. Raises CalledProcessError."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(image)
        return subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
