"""A kernel as a module of LLVM IR: an exported ``i32 @name(ptr args)`` over an array of buffer pointers, and one
for its prologue, where it has one."""

from collections.abc import Sequence

from ...core.errors import CompileError
from ...core.target import Target
from ...ir.buffer import Buffer
from ...ir.cpu import tiles_of
from ...ir.prologue import split_prologue
from ...ir.stmt import Kernel, Operation, Stmt, walk_statements
from ..backend import Source, parameters_of
from .amx import ask_for_tiles, release_tiles, set_up_tiles
from .architectures import architecture_of, function_attributes
from .body import Body
from .frame import plan_frame
from .machine import triple_of
from .statements import NOALIAS, Place, await_streams, emit_statement, uses_tiles
from .writer import FunctionWriter, ModuleWriter, identifier


def emit(kernel: Kernel, target: Target) -> Source:
    """The LLVM IR of ``kernel``, whose loops are serial or parallel. Raises CompileError for anything else."""
    prologue, body = split_prologue(kernel)
    entry = f"tw_{identifier(kernel.name)}"  # no name of the C library starts so
    first = "" if prologue is None else f"{entry}_prologue"
    module = _module(target)
    module.reserve(entry)
    tiles = _tiles(kernel.body)
    frame = plan_frame(kernel.body, tiles)
    if prologue is not None:
        module.reserve(first)
        given = [b for b in kernel.parameters if b.name in kernel.constants or b in kernel.workspace]
        _define(Place(module, first, frame, target.threads, tiles), kernel, given, prologue)
    _define(Place(module, entry, frame, target.threads, tiles), kernel, kernel.parameters, body)
    text = f'; {kernel.name} for {target}\ntarget triple = "{triple_of(target)}"\n\n{module.text()}'
    return Source("llvm-ir", text, entry, parameters_of(kernel), prologue=first, minimal_passes=kernel.minimal_passes)


def _tiles(stmt: Stmt) -> frozenset[str]:
    """The buffers that are tile registers."""
    operations = (s for s in walk_statements(stmt) if isinstance(s, Operation))
    return frozenset(tile.name for s in operations for tile, _ in tiles_of(s))


def _define(place: Place, kernel: Kernel, given: Sequence[Buffer], stmt: Stmt) -> None:
    """The function ``place.entry``, which runs ``stmt`` on those of the parameters of ``kernel`` that are ``given``."""
    module, entry = place.module, place.entry
    main = module.unique(f"{entry}.main")
    w = FunctionWriter(module)
    body = Body(w, non_temporal=kernel.non_temporal)
    for buffer in given:
        if buffer.name in body.pointers:
            raise CompileError(f"two parameters are called {buffer.name}")
        body.pointers[buffer.name] = w.parameter(buffer.name, "ptr")
    signature = ", ".join(f"{NOALIAS} {p.text}" for p in body.pointers.values())
    try:
        with_tiles = uses_tiles(place, body, stmt)
        if with_tiles:
            set_up_tiles(body)
        emit_statement(place, body, stmt)
        if with_tiles:
            release_tiles(body)
        await_streams(body)
    except RecursionError as error:
        raise CompileError("an expression or loop nest is nested too deeply to be compiled") from error
    w.line("ret void")
    module.define(main, w.text(f"internal void @{main}({signature}) {module.attributes}"))
    module.define(entry, _entry(module, entry, main, kernel, given, with_tiles=bool(_tiles(stmt))))


def _module(target: Target) -> ModuleWriter:
    half = architecture_of(target).half
    return ModuleWriter(target.features, attributes=function_attributes(target), half=half)


def _entry(
    module: ModuleWriter, entry: str, main: str, kernel: Kernel, given: Sequence[Buffer], *, with_tiles: bool
) -> str:
    w = FunctionWriter(module)
    args = w.parameter("args", "ptr")
    if with_tiles:
        ask_for_tiles(w)
    pointers = []
    for position, buffer in enumerate(kernel.parameters):
        if buffer not in given:
            continue
        at = w.assign(f"getelementptr ptr, {args.typed}, i64 {position}", "ptr", 1, "slot")
        pointers.append(w.assign(f"load ptr, {at.typed}, align 8", "ptr", 1, buffer.name))
    w.line(f"call void @{main}({', '.join(p.typed for p in pointers)})")
    w.line("ret i32 0")
    return w.text(f"i32 @{entry}(ptr noalias readonly %args) {module.attributes}")
