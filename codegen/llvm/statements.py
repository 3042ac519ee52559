"""Statements become blocks. A parallel loop becomes an outlined function that the thread pool calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ...core.dtypes import float32
from ...core.errors import CompileError
from ...ir.buffer import MemoryScope
from ...ir.cpu import TILE_OPERATIONS, Dot, PrefetchLine, Transpose
from ...ir.expr import Cast, Expr, Load, Var, distinct_nodes
from ...ir.stmt import (
    Allocate,
    For,
    If,
    LoopKind,
    Operation,
    Seq,
    Stmt,
    Store,
    expressions,
    substatements,
    walk_statements,
)
from ..passes.deduplicate import structural_match
from .amx import allocate_tiles, configure_tiles, emit_tile_operation, release_tiles
from .expressions import evaluate
from .frame_layout import FrameLayout
from .function_context import FunctionContext
from .memory import emit_prefetch, load, store
from .register_transpose import emit_dot, emit_transpose
from .split_lanes import split_store
from .values import LlvmValue, constant, storage
from .writer import FunctionText, FunctionWriter, ModuleWriter, identifier

PARALLEL_FOR = "tilewright_parallel_for"
"""``void (ptr fn, ptr env, i64 tasks)`` calls ``fn(env, begin, end)`` on ranges that cover ``0..tasks``."""
NOALIAS = "ptr noalias noundef nonnull"
"""The attributes of a buffer parameter: no two buffers overlap."""
SCRATCH = "tilewright_scratch"
"""``ptr (i64 bytes)`` returns the calling thread's scratch block: at least that large, aligned to 64 bytes."""


EmitOperation = Callable[[FunctionContext, Operation], None]


@dataclass(frozen=True, slots=True)
class OutlinedLoop:
    """A parallel loop that was outlined into a function, and the outer buffers and variables that it captures."""

    loop: For
    function: str
    buffers: Sequence[str]
    variables: Sequence[str]


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What all functions of one kernel share. ``tiles`` names the buffers that are tile registers.
    ``emit_operation`` writes operations; None means those of a processor. ``outlined`` lists the parallel loops that
    have a function so far."""

    module: ModuleWriter
    entry: str
    frame: FrameLayout
    threads: int
    tiles: frozenset[str] = frozenset()
    emit_operation: EmitOperation | None = None
    outlined: list[OutlinedLoop] = field(default_factory=list)


def emit_statement(kernel_ctx: KernelContext, ctx: FunctionContext, stmt: Stmt) -> None:
    """Write a statement of the kernel IR, and all statements in it, into the function of ``ctx``."""
    w = ctx.w
    around, w.module.origin = w.module.origin, stmt  # no context manager, which would cost frames of deep nests
    match stmt:
        case Seq(statements=statements):
            for s in statements:
                emit_statement(kernel_ctx, ctx, s)
        case For():
            _for(kernel_ctx, ctx, stmt)
        case Store():
            for chunk in split_store(stmt):
                with ctx.statement():
                    _store(ctx, chunk)
        case If(condition=condition, then=then):
            with ctx.statement():
                value = evaluate(ctx, condition)
            yes, after = w.label("if"), w.label("endif")
            w.branch(value, yes, after)
            w.begin_block(yes)
            with ctx.scope():
                emit_statement(kernel_ctx, ctx, then)
            w.jump(after)
            w.begin_block(after)
        case Allocate():
            _allocate(kernel_ctx, ctx, stmt)
        case Operation():
            with ctx.statement():
                (kernel_ctx.emit_operation or _emit_cpu_operation)(ctx, stmt)
        case _:
            raise CompileError(f"{type(stmt).__name__} cannot be expressed in LLVM IR")
    w.module.origin = around


def _emit_cpu_operation(ctx: FunctionContext, stmt: Operation) -> None:
    match stmt:
        case Transpose():
            emit_transpose(ctx, stmt)
        case Dot():
            emit_dot(ctx, stmt)
        case PrefetchLine():
            emit_prefetch(ctx, stmt.source, stmt.source_indices, evaluate)
        case _ if isinstance(stmt, TILE_OPERATIONS):
            emit_tile_operation(ctx, stmt)
        case _:
            raise CompileError(f"{type(stmt).__name__} cannot be expressed in LLVM IR for a processor")


def _for(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For) -> None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise CompileError(f"loop {loop.var} is still {loop.kind.value}; passes write such loops out")
    if loop.extent < 1:
        return
    if _is_outlined(kernel_ctx, ctx, loop):
        _parallel_for(kernel_ctx, ctx, loop)
    else:
        _loop(kernel_ctx, ctx, loop, constant(0, "i64"), constant(loop.extent, "i64"))


def _is_outlined(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For) -> bool:
    """Say whether a loop becomes a function of its own."""
    return loop.kind is LoopKind.PARALLEL and kernel_ctx.threads > 1 and loop.extent > 1 and not ctx.in_parallel


def uses_tiles(kernel_ctx: KernelContext, ctx: FunctionContext, stmt: Stmt) -> bool:
    """Say whether ``stmt`` uses tile registers in the function that it is written in."""
    if isinstance(stmt, For) and _is_outlined(kernel_ctx, ctx, stmt):
        return False
    return isinstance(stmt, TILE_OPERATIONS) or any(uses_tiles(kernel_ctx, ctx, s) for s in substatements(stmt))


def _loop(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For, start: LlvmValue, stop: LlvmValue) -> None:
    with ctx.w.counted_loop(start, stop, loop.var) as variable, ctx.scope():
        ctx.variables[loop.var] = variable
        ctx.extents[loop.var] = loop.extent
        emit_statement(kernel_ctx, ctx, loop.body)
    del ctx.variables[loop.var], ctx.extents[loop.var]


def _store(ctx: FunctionContext, stmt: Store) -> None:
    w, value = ctx.w, _unrounded(stmt)
    lanes = max((i.lanes for i in stmt.indices), default=1)
    if _is_raw_copy(stmt):
        _copy_raw(ctx, stmt, lanes)
        return
    if stmt.mask is None:
        store(ctx, stmt.buffer, stmt.indices, evaluate(ctx, value), lanes, None, evaluate)
        return
    mask = evaluate(ctx, stmt.mask)
    if mask.lanes > 1:
        store(ctx, stmt.buffer, stmt.indices, evaluate(ctx, value), lanes, mask, evaluate)
        return
    yes, after = w.label("if"), w.label("endif")
    w.branch(mask, yes, after)
    w.begin_block(yes)
    with ctx.scope():
        store(ctx, stmt.buffer, stmt.indices, evaluate(ctx, value), lanes, None, evaluate)
    w.jump(after)
    w.begin_block(after)


def _unrounded(stmt: Store) -> Expr:
    """Return the value that is stored, without a last rounding to 16 bits: storing rounds as well."""
    value, dtype = stmt.value, stmt.buffer.dtype
    if isinstance(value, Cast) and value.type == dtype and dtype.is_float and dtype.bits == 16:
        return value.value if value.value.dtype == float32 else value
    return value


def _is_raw_copy(stmt: Store) -> bool:
    """Say whether a store only copies 16-bit floats, so that they need not be widened and rounded."""
    value, dtype = stmt.value, stmt.buffer.dtype
    return (
        isinstance(value, Load)
        and value.dtype == dtype
        and (dtype.is_float and dtype.bits == 16)
        and stmt.mask is None
        and (value.mask is None or value.lanes > 1)
    )


def _copy_raw(ctx: FunctionContext, stmt: Store, lanes: int) -> None:
    value = stmt.value
    assert isinstance(value, Load)
    mask = None if value.mask is None else evaluate(ctx, value.mask)
    moved = load(ctx, value.buffer, value.indices, value.lanes, mask, evaluate, raw=True)
    store(ctx, stmt.buffer, stmt.indices, moved, lanes, None, evaluate, raw=True)


def _allocate(kernel_ctx: KernelContext, ctx: FunctionContext, stmt: Allocate) -> None:
    w, buffer = ctx.w, stmt.buffer
    if buffer.scope is MemoryScope.SHARED:  # It is allocated for the whole block.
        emit_statement(kernel_ctx, ctx, stmt.body)
        return
    if buffer.name in kernel_ctx.tiles:
        with allocate_tiles(ctx, buffer), ctx.scope():
            emit_statement(kernel_ctx, ctx, stmt.body)
        return
    offset = kernel_ctx.frame.offsets.get(buffer.name)
    if offset is None:
        pointer = w.alloca(f"[{max(buffer.elements, 1)} x {storage(buffer.dtype)}]", buffer.name)
        _lifetime(w, "start", pointer)
    else:
        w.module.declare(f"declare noalias align 64 ptr @{SCRATCH}(i64)")
        scratch = w.call(SCRATCH, [constant(kernel_ctx.frame.scratch_bytes, "i64")], "ptr", hint="scratch")
        pointer = w.assign(f"getelementptr i8, {scratch.typed}, i64 {offset}", "ptr", 1, buffer.name)
    outer = ctx.pointers.get(buffer.name)
    ctx.pointers[buffer.name] = pointer
    with ctx.scope():
        emit_statement(kernel_ctx, ctx, stmt.body)
    if offset is None:
        _lifetime(w, "end", pointer)
    del ctx.pointers[buffer.name]
    if outer is not None:
        ctx.pointers[buffer.name] = outer


def _lifetime(w: FunctionWriter, edge: str, pointer: LlvmValue) -> None:
    if not w.module.stack_address_space:  # With a cast the pointer is not the alloca itself.
        w.module.declare(f"declare void @llvm.lifetime.{edge}.p0(ptr)")
        w.line(f"call void @llvm.lifetime.{edge}.p0({pointer.typed})")


def _parallel_for(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For) -> None:
    """Outline the loop body as ``@entry.var(buffers…, outer variables…, begin, end)``, with a wrapper that unpacks
    the environment, and call the pool. Buffers are parameters so that ``noalias`` holds for each of them."""
    outlined = _equal_outlined_loop(kernel_ctx, ctx, loop) or _outline(kernel_ctx, ctx, loop)
    w = ctx.w
    given = [*(ctx.pointer(b) for b in outlined.buffers), *(ctx.variable(v) for v in outlined.variables)]
    slots = [(value, 8 * i) for i, value in enumerate(given)]
    environment = w.alloca(f"[{max(len(slots), 1)} x i64]", f"{loop.var}.env", 8)
    for value, offset in slots:
        at = w.assign(f"getelementptr i8, {environment.typed}, i64 {offset}", "ptr", 1, "slot")
        w.line(f"store {value.typed}, {at.typed}, align 8")
    w.module.declare(f"declare void @{PARALLEL_FOR}(ptr, ptr, i64)")
    w.line(f"call void @{PARALLEL_FOR}(ptr @{outlined.function}.task, {environment.typed}, i64 {loop.extent})")
    if ctx.tiles_configured:  # This thread ran tasks, which released its tiles.
        configure_tiles(ctx)


def _outline(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For) -> OutlinedLoop:
    buffers, variables = _captured(ctx, loop)
    name = kernel_ctx.module.unique(f"{kernel_ctx.entry}.{identifier(loop.var)}")
    _define_outlined(kernel_ctx, ctx, loop, name, buffers, variables)
    kernel_ctx.outlined.append(OutlinedLoop(loop, name, buffers, variables))
    return kernel_ctx.outlined[-1]


def _equal_outlined_loop(kernel_ctx: KernelContext, ctx: FunctionContext, loop: For) -> OutlinedLoop | None:
    """Return a loop that was outlined before and differs from ``loop`` in names alone, or None."""
    for known in kernel_ctx.outlined:
        names = None if known.variables else structural_match(known.loop, loop)
        if names is not None and all(_same_storage(kernel_ctx, ctx, *pair) for pair in names.items()):
            return replace(known, buffers=[names[b] for b in known.buffers])
    return None


def _same_storage(kernel_ctx: KernelContext, ctx: FunctionContext, first: str, second: str) -> bool:
    """Say whether two buffers have the same kind of storage and the same offset, which the statements do not show."""
    offsets, non_temporal, tiles = kernel_ctx.frame.offsets, ctx.non_temporal, kernel_ctx.tiles
    return offsets.get(first) == offsets.get(second) and all(
        (first in s) == (second in s) for s in (non_temporal, tiles)
    )


def _define_outlined(
    kernel_ctx: KernelContext, ctx: FunctionContext, loop: For, name: str, buffers: list[str], variables: list[str]
) -> None:
    inner = FunctionWriter(kernel_ctx.module)
    inner_ctx = FunctionContext(inner, in_parallel=True, non_temporal=ctx.non_temporal)
    signature = []
    for b in buffers:
        inner_ctx.pointers[b] = inner.parameter(b, "ptr")
        signature.append(f"{NOALIAS} {inner_ctx.pointers[b].text}")
    for v in variables:
        inner_ctx.variables[v] = inner.parameter(v, "i64")
        inner_ctx.extents[v] = ctx.extents[v]
        signature.append(f"i64 range(i64 0, {ctx.extents[v]}) {inner_ctx.variables[v].text}")
    begin, end = inner.parameter("begin", "i64"), inner.parameter("end", "i64")
    signature += [f"i64 range(i64 0, {loop.extent + 1}) {edge.text}" for edge in (begin, end)]
    with_tiles = uses_tiles(kernel_ctx, inner_ctx, loop)
    if with_tiles:
        configure_tiles(inner_ctx)
    _loop(kernel_ctx, inner_ctx, loop, begin, end)
    if with_tiles:
        release_tiles(inner_ctx)
    fence_non_temporal_stores(inner_ctx)
    inner.line("ret void")
    kernel_ctx.module.define(
        name, inner.text(f"internal void @{name}({', '.join(signature)}) {kernel_ctx.module.attributes}")
    )
    kernel_ctx.module.define(f"{name}.task", _unpacking_wrapper(kernel_ctx, name, buffers, variables))


def fence_non_temporal_stores(ctx: FunctionContext) -> None:
    """Write a fence after non-temporal stores, which are ordered with nothing else."""
    if ctx.non_temporal:
        ctx.w.line("fence seq_cst")


def _unpacking_wrapper(kernel_ctx: KernelContext, name: str, buffers: list[str], variables: list[str]) -> FunctionText:
    """Write ``name.task(env, begin, end)``, which the pool calls."""
    w = FunctionWriter(kernel_ctx.module)
    environment, arguments = w.parameter("env", "ptr"), []
    begin, end = w.parameter("begin", "i64"), w.parameter("end", "i64")
    for i, (hint, element) in enumerate([(b, "ptr") for b in buffers] + [(v, "i64") for v in variables]):
        at = w.assign(f"getelementptr i8, {environment.typed}, i64 {8 * i}", "ptr", 1, "slot")
        arguments.append(w.assign(f"load {element}, {at.typed}, align 8", element, 1, hint))
    operands = ", ".join(a.typed for a in [*arguments, begin, end])
    w.line(f"call void @{name}({operands})")
    w.line("ret void")
    signature = "ptr noalias readonly %env, i64 %begin, i64 %end"
    return w.text(f"internal void @{name}.task({signature}) {kernel_ctx.module.attributes}")


def _captured(ctx: FunctionContext, loop: For) -> tuple[list[str], list[str]]:
    """Return the outer buffers and loop variables that the loop uses, in the order in which they came into scope."""
    buffers, variables = set(), set()
    used: list[Expr] = []
    for stmt in walk_statements(loop):
        if isinstance(stmt, Store):
            buffers.add(stmt.buffer.name)
        elif isinstance(stmt, Operation):
            buffers.update(b.name for b in stmt.buffers)
        used.extend(expressions(stmt))
    for expr in distinct_nodes(*used):
        if isinstance(expr, Var):
            variables.add(expr.name)
        elif isinstance(expr, Load):
            buffers.add(expr.buffer.name)
    return [b for b in ctx.pointers if b in buffers], [v for v in ctx.variables if v in variables]
