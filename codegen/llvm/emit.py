"""A kernel becomes a module of LLVM IR. It exports ``i32 @name(ptr args)``, where ``args`` is an array of pointers
to buffers. A kernel with a prologue exports a second function for it."""

from collections.abc import Sequence

from ...core.errors import CompileError
from ...core.target import Target
from ...ir.buffer import Buffer
from ...ir.cpu import tiles_of
from ...ir.prologue import split_prologue
from ...ir.stmt import Kernel, Operation, Stmt, walk_statements
from ..backend import KernelParameter, Origin, Source
from .amx import configure_tiles, release_tiles, request_tile_permission
from .architectures import architecture_of, function_attributes
from .frame_layout import plan_frame_layout
from .function_context import FunctionContext
from .machine import triple_of
from .statements import NOALIAS, KernelContext, emit_statement, fence_non_temporal_stores, uses_tiles
from .writer import FunctionText, FunctionWriter, ModuleWriter, identifier


def emit(kernel: Kernel, target: Target) -> Source:
    """Return the LLVM IR of ``kernel``, whose loops are serial or parallel. Raises CompileError for anything else."""
    prologue, body = split_prologue(kernel)
    entry = f"tw_{identifier(kernel.name)}"  # No name of the C library starts like this.
    first = "" if prologue is None else f"{entry}_prologue"
    module = _module(target)
    module.reserve(entry)
    tiles = _tiles(kernel.body)
    frame = plan_frame_layout(kernel.body, tiles)
    if prologue is not None:
        module.reserve(first)
        given = [b for b in kernel.parameters if b.name in kernel.constants or b in kernel.workspace]
        _define(KernelContext(module, first, frame, target.threads, tiles), kernel, given, prologue)
    _define(KernelContext(module, entry, frame, target.threads, tiles), kernel, kernel.parameters, body)
    return Source(
        "llvm-ir",
        f'; {kernel.name} for {target}\ntarget triple = "{triple_of(target)}"\n\n{module.text()}',
        entry,
        parameters_of(kernel),
        prologue=first,
        minimal_passes=kernel.minimal_passes,
        origins=source_origins(kernel, module),
    )


def source_origins(kernel: Kernel, module: ModuleWriter) -> tuple[tuple[Origin, ...], ...]:
    """Return what the lines of a source were written for: two lines of head, an empty one, and the module."""
    head: list[tuple[Origin, ...]] = [(kernel,), (kernel,), ()]
    return (*head, *(() if origin is None else (origin,) for origin in module.origins()))


def _tiles(stmt: Stmt) -> frozenset[str]:
    """Return the names of the buffers that are tile registers."""
    operations = (s for s in walk_statements(stmt) if isinstance(s, Operation))
    return frozenset(tile.name for s in operations for tile, _ in tiles_of(s))


def _define(kernel_ctx: KernelContext, kernel: Kernel, given: Sequence[Buffer], stmt: Stmt) -> None:
    """Define the function ``kernel_ctx.entry``, which runs ``stmt``. Of the parameters of ``kernel`` it uses those
    that are ``given``."""
    module, entry = kernel_ctx.module, kernel_ctx.entry
    module.origin = kernel
    main = module.unique(f"{entry}.main")
    w = FunctionWriter(module)
    ctx = FunctionContext(w, non_temporal=kernel.non_temporal)
    for buffer in given:
        if buffer.name in ctx.pointers:
            raise CompileError(f"two parameters are called {buffer.name}")
        ctx.pointers[buffer.name] = w.parameter(buffer.name, "ptr")
    signature = ", ".join(f"{NOALIAS} {p.text}" for p in ctx.pointers.values())
    try:
        with_tiles = uses_tiles(kernel_ctx, ctx, stmt)
        if with_tiles:
            configure_tiles(ctx)
        emit_statement(kernel_ctx, ctx, stmt)
        if with_tiles:
            release_tiles(ctx)
        fence_non_temporal_stores(ctx)
    except RecursionError as error:
        raise CompileError("an expression or loop nest is nested too deeply to be compiled") from error
    w.line("ret void")
    module.define(main, w.text(f"internal void @{main}({signature}) {module.attributes}"))
    module.define(entry, _entry(module, entry, main, kernel, given, with_tiles=bool(_tiles(stmt))))


def _module(target: Target) -> ModuleWriter:
    float16_extensions = architecture_of(target).float16_extensions
    return ModuleWriter(target.features, attributes=function_attributes(target), float16_extensions=float16_extensions)


def parameters_of(kernel: Kernel) -> tuple[KernelParameter, ...]:
    """Return what a launch of ``kernel`` is given."""
    roles = (("input", kernel.inputs), ("output", kernel.outputs), ("workspace", kernel.workspace))
    return tuple(KernelParameter(b.name, role, b.shape, b.dtype) for role, buffers in roles for b in buffers)


def _entry(
    module: ModuleWriter, entry: str, main: str, kernel: Kernel, given: Sequence[Buffer], *, with_tiles: bool
) -> FunctionText:
    w = FunctionWriter(module)
    args = w.parameter("args", "ptr")
    if with_tiles:
        request_tile_permission(w)
    pointers = []
    for position, buffer in enumerate(kernel.parameters):
        if buffer not in given:
            continue
        at = w.assign(f"getelementptr ptr, {args.typed}, i64 {position}", "ptr", 1, "slot")
        pointers.append(w.assign(f"load ptr, {at.typed}, align 8", "ptr", 1, buffer.name))
    w.line(f"call void @{main}({', '.join(p.typed for p in pointers)})")
    w.line("ret i32 0")
    return w.text(f"i32 @{entry}(ptr noalias readonly %args) {module.attributes}")
