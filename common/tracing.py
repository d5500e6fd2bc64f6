"""Traced copies of variants: clock reads put into a variant's source at run time, so that the sources stay clean.

A copy is made from the syntax tree. Its segments are found by shape: the loop with the dot, the spins (a `while` whose
body is `pass`), the stores behind it. Each segment of each program writes one record: SM, tile, iterations, and what
two clocks say. `%globaltimer` counts nanoseconds for the whole GPU but ticks coarsely, `%clock64` counts the cycles of
one SM; `common.timeline` puts them together. In the interpreter, which has neither, a counter that every read
increments stands for both.

Triton's own instrumentation (Proton) does not serve: its scopes carry a fixed name and no values, so no tile and no
iterations; it keeps them in shared memory that the kernels themselves need; and it leaves kernels of Triton's language
out unless told otherwise.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from common.errors import UnsupportedProblem
from common.interpreter import interpreting
from common.launcher import Launch, Variant

FIELDS = ("sm", "first", "last", "timed", "began", "computed", "waited", "ended", "left")
"""A record: SM; the MAC loop's range; global timer (ns) at the begin; cycles at the begin, after the MAC loop, spent
spinning, after the last store was issued; global timer at the end."""
HEAD = 8
"""Cells before the first record; the first is the interpreter's clock."""
MOST_CELLS = 1 << 25
DOTS = {"dot", "warpgroup_mma"}
STORES = {"store", "atomic_add", "async_store"}
POINTER = "trace_ptr"

CLOCKS = {
    False: """
@{jit}
def trace_clock(trace_ptr):
    return {lang}.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype={lang}.int64, is_pure=False, pack=1
    )


@{jit}
def trace_timer(trace_ptr):
    return {lang}.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype={lang}.int64, is_pure=False, pack=1
    )


@{jit}
def trace_sm(trace_ptr):
    return {lang}.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype={lang}.int32, is_pure=False, pack=1
    )
""",
    True: """
@{jit}
def trace_clock(trace_ptr):
    return {lang}.atomic_add(trace_ptr, 1)


@{jit}
def trace_timer(trace_ptr):
    return {lang}.atomic_add(trace_ptr, 1)


@{jit}
def trace_sm(trace_ptr):
    return 0
""",
}
"""How clocks are read, by whether kernels are interpreted."""

RECORD = """
@{jit}
def trace_record(trace_ptr, tile, first, last, timed, began, computed, waited):
    ended = trace_clock(trace_ptr)
    left = trace_timer(trace_ptr)
    cell = trace_ptr + {head} + (tile * {lang}.num_programs(0) + {lang}.program_id(0)) * {fields}
    {lang}.store(cell, trace_sm(trace_ptr))
    {lang}.store(cell + 1, first)
    {lang}.store(cell + 2, last)
    {lang}.store(cell + 3, timed)
    {lang}.store(cell + 4, began)
    {lang}.store(cell + 5, computed)
    {lang}.store(cell + 6, waited)
    {lang}.store(cell + 7, ended)
    {lang}.store(cell + 8, left)
"""


def traced_source(source: str, name: str, interpreted: bool = False) -> str:
    """A variant's source with clock reads. Raises UnsupportedProblem where no segment can be found in it."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and _jit(node)}
    loops = {name: _range_parameters(f) for name, f in functions.items() if _returns_accumulator(f)}
    recording = {n for n, function in functions.items() if n not in loops and _instrument(function.body, loops)}
    if not recording:
        raise UnsupportedProblem(
            f"{name} cannot be traced: no kernel of its own with a MAC loop was found in its source"
        )
    while grown := {n for n, f in functions.items() if n not in recording and _names(f) & recording}:
        recording |= grown
    for function in functions.values():
        if function.name in recording:
            function.args.args.insert(0, ast.arg(POINTER))
        _PassPointer(recording).visit(function)
    jit = ast.unparse(_jit(functions[min(recording)])).split("(")[0]
    words = {"jit": jit, "lang": "gl" if jit.startswith("gluon") else "tl", "head": HEAD, "fields": len(FIELDS)}
    helpers = ast.parse((CLOCKS[interpreted] + RECORD).format(**words)).body
    position = max(i for i, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom))) + 1
    tree.body[position:position] = helpers
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _jit(function: ast.FunctionDef) -> ast.expr | None:
    """The decorator that makes a kernel of it."""
    return next((d for d in function.decorator_list if ast.unparse(d).split("(")[0].endswith(".jit")), None)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _calls(node: ast.AST) -> set[str]:
    """Last parts of the names of everything that is called."""
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return {
        f.attr if isinstance(f, ast.Attribute) else f.id for f in called if isinstance(f, (ast.Attribute, ast.Name))
    }


def _is_mac_loop(node: ast.stmt) -> bool:
    """A loop over a range with a dot of its own, not in an inner loop."""
    if not (isinstance(node, ast.For) and isinstance(node.iter, ast.Call)):
        return False
    return any(DOTS & _calls(child) for child in node.body if not isinstance(child, (ast.For, ast.While)))


def _returns_accumulator(function: ast.FunctionDef) -> bool:
    """A MAC loop that leaves the fix-up to its caller: the segment then is where it is called."""
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    return returns and any(_is_mac_loop(node) for node in ast.walk(function) if isinstance(node, ast.stmt))


def _range_parameters(function: ast.FunctionDef) -> tuple[int, int]:
    """Where a MAC loop's function takes its first iteration and the one behind its last."""
    names = [argument.arg for argument in function.args.args]
    return (names.index("start"), names.index("stop")) if {"start", "stop"} <= set(names) else (-1, -1)


Loops = dict[str, tuple[int, int]]


def _instrument(block: list[ast.stmt], loops: Loops) -> bool:
    """Put clock reads around the segment of a block, or of a block inside it; whether there was one."""
    for position, node in enumerate(block):
        if _is_mac_loop(node):
            assert isinstance(node, ast.For) and isinstance(node.iter, ast.Call)
            first, last = ["0", *map(ast.unparse, node.iter.args)][-2:]
            if any(isinstance(child, ast.If) and STORES & _calls(child) for child in node.body):
                _one_loop(block, position, first, last)
            else:
                _segment(block, position, first, last)
            return True
        called = _loop_called(node, loops)
        if called is not None:
            first, last = loops[called.func.id]
            _segment(block, position, ast.unparse(called.args[first]), ast.unparse(called.args[last]))
            return True
    inner = [getattr(node, part) for node in block for part in ("body", "orelse") if getattr(node, part, None)]
    return any([_instrument(child, loops) for child in inner])


def _loop_called(node: ast.stmt, loops: Loops) -> Any:
    """The call of a MAC loop's function whose result this statement keeps."""
    call = node.value if isinstance(node, ast.Assign) else None
    known = (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and loops.get(call.func.id, (-1, -1)) != (-1, -1)
    )
    return call if known else None


def _tile(block: list[ast.stmt]) -> str:
    """What a block calls its tile: `tile` where it sets that, else what it asks the coordinates of."""
    nodes = [n for statement in block for n in ast.walk(statement)]
    if any(isinstance(n, ast.Name) and n.id == "tile" and isinstance(n.ctx, ast.Store) for n in nodes):
        return "tile"
    asked = [n.args[0] for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "tile_coordinates"]
    return ast.unparse(asked[0]) if asked else "tile"


def _segment(block: list[ast.stmt], position: int, first: str, last: str) -> None:
    """A block that does one segment: its begin, the end of its MAC loop, its spins and its end."""
    tile = _tile(block)
    behind = [_TimeSpins().visit(node) for node in block[position + 1 :]]
    computed = _code("trace_computed = trace_clock(trace_ptr)\ntrace_waited = trace_computed - trace_computed")
    block[position + 1 :] = [*computed, *behind, *_record(tile, first, last, "trace_waited")]
    block[:0] = _begin()


def _one_loop(block: list[ast.stmt], position: int, first: str, last: str) -> None:
    """A block whose MAC loop goes on from tile to tile: a segment ends in the loop's `if`, the last one behind it."""
    loop = block[position]
    assert isinstance(loop, ast.For)
    tile_end = next(child for child in loop.body if isinstance(child, ast.If) and STORES & _calls(child))
    stored = max(i for i, child in enumerate(tile_end.body) if STORES & _calls(child)) + 1
    until = f"{ast.unparse(loop.target)} + 1"
    again = [*_record("tile", "trace_first", until, "0"), *_begin(), *_code(f"trace_first = {until}")]
    computed = _code("trace_computed = trace_clock(trace_ptr)")
    tile_end.body[:] = [*computed, *tile_end.body[:stored], *again, *tile_end.body[stored:]]
    rest = next(child for child in block[position + 1 :] if isinstance(child, ast.If) and STORES & _calls(child))
    rest.body[:] = [*computed, *rest.body, *_record("tile", "trace_first", last, "0")]
    block[position:position] = [*_begin(), *_code(f"trace_first = {first}")]


def _begin() -> list[ast.stmt]:
    return _code("trace_timed = trace_timer(trace_ptr)\ntrace_began = trace_clock(trace_ptr)")


def _record(tile: str, first: str, last: str, waited: str) -> list[ast.stmt]:
    return _code(
        f"trace_record(trace_ptr, {tile}, {first}, {last}, trace_timed, trace_began, trace_computed, {waited})"
    )


def _code(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


class _TimeSpins(ast.NodeTransformer):
    """Adds the cycles of every spin to `trace_waited`."""

    def visit_While(self, node: ast.While) -> Any:
        if not all(isinstance(child, ast.Pass) for child in node.body):
            return self.generic_visit(node)
        before = _code("trace_spun = trace_clock(trace_ptr)")
        return [*before, node, *_code("trace_waited += trace_clock(trace_ptr) - trace_spun")]


class _PassPointer(ast.NodeTransformer):
    """Hands the buffer to every recording function, called or named in a list of (function, arguments)."""

    def __init__(self, recording: set[str]) -> None:
        self.recording = recording

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.recording:
            node.args.insert(0, ast.Name(POINTER, ast.Load()))
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.Tuple:
        self.generic_visit(node)
        match node.elts:
            case [ast.Name(id=name), ast.Tuple() as arguments] if name in self.recording:
                arguments.elts.insert(0, ast.Name(POINTER, ast.Load()))
        return node


@dataclass
class Recorder:
    """The buffers of a traced launch, one a kernel, each with a record for every program and tile.

    `programs`: of each kernel of the last launch.
    """

    buffers: list[torch.Tensor] = field(default_factory=list)
    programs: list[int] = field(default_factory=list)

    def buffer(self, number: int, programs: int, tiles: int, device: torch.device) -> torch.Tensor:
        """The buffer of the launch's kernel `number`, made when it is first asked for."""
        cells = HEAD + programs * tiles * len(FIELDS)
        if cells > MOST_CELLS:
            raise UnsupportedProblem(
                f"{programs} programs times {tiles} tiles are too many to trace: take a smaller problem or larger tiles"
            )
        if number == len(self.buffers) or self.buffers[number].device != device or len(self.buffers[number]) != cells:
            self.buffers[number:] = [torch.zeros(cells, dtype=torch.int64, device=device)]
        return self.buffers[number]

    def clear(self) -> None:
        """Forget every record; the counter that stands for the clock in the interpreter begins at 1."""
        for buffer in self.buffers:
            buffer.zero_()[0] = 1

    def records(self, buffers: list[torch.Tensor] | None = None) -> list[dict[str, int]]:
        """What was recorded, or what copies of the buffers hold: FIELDS, `kernel`, `program` (counted over all kernels)
        and `tile`."""
        found, programs_before = [], 0
        for kernel, (buffer, programs) in enumerate(zip(buffers or self.buffers, self.programs, strict=True)):
            table = buffer[HEAD:].view(-1, programs, len(FIELDS)).cpu()
            for tile, program in table[:, :, FIELDS.index("ended")].nonzero().tolist():
                place = {"kernel": kernel, "program": programs_before + program, "tile": tile}
                found.append(place | dict(zip(FIELDS, table[tile, program].tolist(), strict=True)))
            programs_before += programs
        return found


@dataclass(frozen=True)
class TracedVariant(Variant):
    """A variant whose kernels are traced copies; prepared and launched like any other."""

    recorder: Recorder = field(default_factory=Recorder)
    code: str = ""


def traced(variant: Variant) -> TracedVariant:
    """The traced copy of a variant. Raises UnsupportedProblem where it cannot be traced."""
    code = traced_source(variant.source, variant.name, interpreting())
    recorder = Recorder()
    module = _loaded(variant, code)

    def launch(task: Launch) -> None:
        recorder.programs = []
        module.launch(_WithBuffers(task, recorder))

    stand_in = SimpleNamespace(CARD=variant.card, launch=launch, __file__=variant.module.__file__)
    return TracedVariant(variant.name, stand_in, recorder, code)


def _loaded(variant: Variant, code: str) -> ModuleType:
    """The copy as a module. Triton reads the source of a kernel again, so it is left where `inspect` looks."""
    file = f"<traced {variant.name} {variant.source_hash}{' interpreted' if interpreting() else ''}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module = ModuleType(f"traced_{variant.name}")
    module.__file__ = file
    exec(compile(code, file, "exec"), module.__dict__)
    return module


class _WithBuffers:
    """A launch that hands every kernel its buffer in front of its arguments."""

    def __init__(self, task: Launch, recorder: Recorder) -> None:
        self._task, self._recorder = task, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def run(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        if programs == 0:
            return
        number = len(self._recorder.programs)
        buffer = self._recorder.buffer(number, programs, self._task.schedule.tiles, self._task.a.device)
        if number and interpreting():
            buffer[0] = self._recorder.buffers[number - 1][0]
        self._recorder.programs.append(programs)
        self._task.run(kernel, programs, buffer, *args, **options)
