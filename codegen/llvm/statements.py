"""Statements to blocks; a parallel loop becomes a function of its own that the thread pool calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ...core.dtypes import float32
from ...core.errors import CompileError
from ...ir.buffer import MemoryScope
from ...ir.cpu import TILE_OPERATIONS, Dot, PrefetchLine, Transpose
from ...ir.expr import Cast, Expr, Load, Var
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
from .amx import allocate_tiles, emit_tile_operation, release_tiles, set_up_tiles
from .body import Body
from .expressions import evaluate
from .frame import Frame
from .lanes import cut_store
from .memory import emit_prefetch, load, store
from .register_transpose import emit_dot, emit_transpose
from .values import Value, constant, storage
from .writer import FunctionWriter, ModuleWriter, identifier

PARALLEL_FOR = "tilewright_parallel_for"
"""``void (ptr fn, ptr env, i64 tasks)``: calls ``fn(env, begin, end)`` on ranges that cover ``0..tasks``."""
NOALIAS = "ptr noalias noundef nonnull"
"""How buffers are passed: no two of them overlap."""
SCRATCH = "tilewright_scratch"
"""``ptr (i64 bytes)``: the calling thread's scratch block, at least this large, aligned to 64."""


EmitOperation = Callable[[Body, Operation], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A parallel loop as a function, and what of its surroundings it is given."""

    loop: For
    function: str
    buffers: Sequence[str]
    variables: Sequence[str]


@dataclass(frozen=True, slots=True)
class Place:
    """What all functions of one kernel share. ``tiles``: the buffers that are tile registers. ``operation``: how
    operations are written; None: as for a processor. ``tasks``: the functions of parallel loops so far."""

    module: ModuleWriter
    entry: str
    frame: Frame
    threads: int
    tiles: frozenset[str] = frozenset()
    operation: EmitOperation | None = None
    tasks: list["Task"] = field(default_factory=list)


def emit_statement(place: Place, body: Body, stmt: Stmt) -> None:
    w = body.w
    match stmt:
        case Seq(statements=statements):
            for s in statements:
                emit_statement(place, body, s)
        case For():
            _for(place, body, stmt)
        case Store():
            for part in cut_store(stmt):
                with body.statement():
                    _store(body, part)
        case If(condition=condition, then=then):
            with body.statement():
                value = evaluate(body, condition)
            yes, after = w.label("if"), w.label("endif")
            w.branch(value, yes, after)
            w.begin(yes)
            with body.scope():
                emit_statement(place, body, then)
            w.jump(after)
            w.begin(after)
        case Allocate():
            _allocate(place, body, stmt)
        case Operation():
            with body.statement():
                (place.operation or _processor_operation)(body, stmt)
        case _:
            raise CompileError(f"{type(stmt).__name__} cannot be expressed in LLVM IR")


def _processor_operation(body: Body, stmt: Operation) -> None:
    match stmt:
        case Transpose():
            emit_transpose(body, stmt)
        case Dot():
            emit_dot(body, stmt)
        case PrefetchLine():
            emit_prefetch(body, stmt.source, stmt.source_indices, evaluate)
        case _ if isinstance(stmt, TILE_OPERATIONS):
            emit_tile_operation(body, stmt)
        case _:
            raise CompileError(f"{type(stmt).__name__} cannot be expressed in LLVM IR for a processor")


def _for(place: Place, body: Body, loop: For) -> None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise CompileError(f"loop {loop.var} is still {loop.kind.value}; passes write such loops out")
    if loop.extent < 1:
        return
    if _is_apart(place, body, loop):
        _parallel_for(place, body, loop)
    else:
        _loop(place, body, loop, constant(0, "i64"), constant(loop.extent, "i64"))


def _is_apart(place: Place, body: Body, loop: For) -> bool:
    """Whether a loop becomes a function of its own."""
    return loop.kind is LoopKind.PARALLEL and place.threads > 1 and loop.extent > 1 and not body.in_parallel


def uses_tiles(place: Place, body: Body, stmt: Stmt) -> bool:
    """Whether the function that ``stmt`` is written in works on tile registers there."""
    if isinstance(stmt, For) and _is_apart(place, body, stmt):
        return False
    return isinstance(stmt, TILE_OPERATIONS) or any(uses_tiles(place, body, s) for s in substatements(stmt))


def _loop(place: Place, body: Body, loop: For, start: Value, stop: Value) -> None:
    with body.w.counted(start, stop, loop.var) as variable, body.scope():
        body.variables[loop.var] = variable
        body.extents[loop.var] = loop.extent
        emit_statement(place, body, loop.body)
    del body.variables[loop.var], body.extents[loop.var]


def _store(body: Body, stmt: Store) -> None:
    w, value = body.w, _unrounded(stmt)
    lanes = max((i.lanes for i in stmt.indices), default=1)
    if _is_move(stmt):
        _move(body, stmt, lanes)
        return
    if stmt.mask is None:
        store(body, stmt.buffer, stmt.indices, evaluate(body, value), lanes, None, evaluate)
        return
    mask = evaluate(body, stmt.mask)
    if mask.lanes > 1:
        store(body, stmt.buffer, stmt.indices, evaluate(body, value), lanes, mask, evaluate)
        return
    yes, after = w.label("if"), w.label("endif")
    w.branch(mask, yes, after)
    w.begin(yes)
    with body.scope():
        store(body, stmt.buffer, stmt.indices, evaluate(body, value), lanes, None, evaluate)
    w.jump(after)
    w.begin(after)


def _unrounded(stmt: Store) -> Expr:
    """What is stored; without a last rounding to 16 bits, which storing does as well."""
    value, dtype = stmt.value, stmt.buffer.dtype
    if isinstance(value, Cast) and value.type == dtype and dtype.is_float and dtype.bits == 16:
        return value.value if value.value.dtype == float32 else value
    return value


def _is_move(stmt: Store) -> bool:
    """Whether 16-bit floats go from place to place as they are: no need to widen and round them."""
    value, dtype = stmt.value, stmt.buffer.dtype
    return (
        isinstance(value, Load)
        and value.dtype == dtype
        and (dtype.is_float and dtype.bits == 16)
        and stmt.mask is None
        and (value.mask is None or value.lanes > 1)
    )


def _move(body: Body, stmt: Store, lanes: int) -> None:
    value = stmt.value
    assert isinstance(value, Load)
    mask = None if value.mask is None else evaluate(body, value.mask)
    moved = load(body, value.buffer, value.indices, value.lanes, mask, evaluate, raw=True)
    store(body, stmt.buffer, stmt.indices, moved, lanes, None, evaluate, raw=True)


def _allocate(place: Place, body: Body, stmt: Allocate) -> None:
    w, buffer = body.w, stmt.buffer
    if buffer.scope is MemoryScope.SHARED:  # the block has it from the start
        emit_statement(place, body, stmt.body)
        return
    if buffer.name in place.tiles:
        with allocate_tiles(body, buffer), body.scope():
            emit_statement(place, body, stmt.body)
        return
    offset = place.frame.offsets.get(buffer.name)
    if offset is None:
        pointer = w.alloca(f"[{max(buffer.elements, 1)} x {storage(buffer.dtype)}]", buffer.name)
        _lifetime(w, "start", pointer)
    else:
        w.module.declare(f"declare noalias align 64 ptr @{SCRATCH}(i64)")
        scratch = w.call(SCRATCH, [constant(place.frame.scratch_bytes, "i64")], "ptr", hint="scratch")
        pointer = w.assign(f"getelementptr i8, {scratch.typed}, i64 {offset}", "ptr", 1, buffer.name)
    outer = body.pointers.get(buffer.name)
    body.pointers[buffer.name] = pointer
    with body.scope():
        emit_statement(place, body, stmt.body)
    if offset is None:
        _lifetime(w, "end", pointer)
    del body.pointers[buffer.name]
    if outer is not None:
        body.pointers[buffer.name] = outer


def _lifetime(w: FunctionWriter, edge: str, pointer: Value) -> None:
    if not w.module.stack_space:  # elsewhere the pointer is not the very one that was allocated
        w.module.declare(f"declare void @llvm.lifetime.{edge}.p0(ptr)")
        w.line(f"call void @llvm.lifetime.{edge}.p0({pointer.typed})")


def _parallel_for(place: Place, body: Body, loop: For) -> None:
    """Write the loop body as ``@entry.var(buffers…, outer variables…, begin, end)`` with a wrapper that unpacks
    the environment, and call the pool. Buffers are parameters so that ``noalias`` holds for each of them."""
    task = _known_task(place, body, loop) or _new_task(place, body, loop)
    w = body.w
    given = [*(body.pointer(b) for b in task.buffers), *(body.variable(v) for v in task.variables)]
    slots = [(value, 8 * i) for i, value in enumerate(given)]
    environment = w.alloca(f"[{max(len(slots), 1)} x i64]", f"{loop.var}.env", 8)
    for value, offset in slots:
        at = w.assign(f"getelementptr i8, {environment.typed}, i64 {offset}", "ptr", 1, "slot")
        w.line(f"store {value.typed}, {at.typed}, align 8")
    w.module.declare(f"declare void @{PARALLEL_FOR}(ptr, ptr, i64)")
    w.line(f"call void @{PARALLEL_FOR}(ptr @{task.function}.task, {environment.typed}, i64 {loop.extent})")
    if body.tiles_ready:  # this thread took part, and has given its tiles back
        set_up_tiles(body)


def _new_task(place: Place, body: Body, loop: For) -> Task:
    buffers, variables = _captured(body, loop)
    name = place.module.unique(f"{place.entry}.{identifier(loop.var)}")
    _write_task(place, body, loop, name, buffers, variables)
    place.tasks.append(Task(loop, name, buffers, variables))
    return place.tasks[-1]


def _known_task(place: Place, body: Body, loop: For) -> Task | None:
    """One that is there already, of a loop that differs in names alone."""
    for task in place.tasks:
        names = None if task.variables else structural_match(task.loop, loop)
        if names is not None and all(_same_place(place, body, *pair) for pair in names.items()):
            return replace(task, buffers=[names[b] for b in task.buffers])
    return None


def _same_place(place: Place, body: Body, first: str, second: str) -> bool:
    """Whether two buffers are alike in what is not said where they are used."""
    offsets, non_temporal, tiles = place.frame.offsets, body.non_temporal, place.tiles
    return offsets.get(first) == offsets.get(second) and all(
        (first in s) == (second in s) for s in (non_temporal, tiles)
    )


def _write_task(place: Place, body: Body, loop: For, name: str, buffers: list[str], variables: list[str]) -> None:
    inner = FunctionWriter(place.module)
    task = Body(inner, in_parallel=True, non_temporal=body.non_temporal)
    signature = []
    for b in buffers:
        task.pointers[b] = inner.parameter(b, "ptr")
        signature.append(f"{NOALIAS} {task.pointers[b].text}")
    for v in variables:
        task.variables[v] = inner.parameter(v, "i64")
        task.extents[v] = body.extents[v]
        signature.append(f"i64 range(i64 0, {body.extents[v]}) {task.variables[v].text}")
    begin, end = inner.parameter("begin", "i64"), inner.parameter("end", "i64")
    signature += [f"i64 range(i64 0, {loop.extent + 1}) {edge.text}" for edge in (begin, end)]
    with_tiles = uses_tiles(place, task, loop)
    if with_tiles:
        set_up_tiles(task)
    _loop(place, task, loop, begin, end)
    if with_tiles:
        release_tiles(task)
    await_streams(task)
    inner.line("ret void")
    place.module.define(name, inner.text(f"internal void @{name}({', '.join(signature)}) {place.module.attributes}"))
    place.module.define(f"{name}.task", _unpacking_wrapper(place, name, buffers, variables))


def await_streams(body: Body) -> None:
    """What went past the caches is in order with nothing that follows until then."""
    if body.non_temporal:
        body.w.line("fence seq_cst")


def _unpacking_wrapper(place: Place, name: str, buffers: list[str], variables: list[str]) -> str:
    """``name.task(env, begin, end)``: what the pool calls."""
    w = FunctionWriter(place.module)
    environment, arguments = w.parameter("env", "ptr"), []
    begin, end = w.parameter("begin", "i64"), w.parameter("end", "i64")
    for i, (hint, element) in enumerate([(b, "ptr") for b in buffers] + [(v, "i64") for v in variables]):
        at = w.assign(f"getelementptr i8, {environment.typed}, i64 {8 * i}", "ptr", 1, "slot")
        arguments.append(w.assign(f"load {element}, {at.typed}, align 8", element, 1, hint))
    operands = ", ".join(a.typed for a in [*arguments, begin, end])
    w.line(f"call void @{name}({operands})")
    w.line("ret void")
    signature = "ptr noalias readonly %env, i64 %begin, i64 %end"
    return w.text(f"internal void @{name}.task({signature}) {place.module.attributes}")


def _captured(body: Body, loop: For) -> tuple[list[str], list[str]]:
    """Buffers and loop variables from outside that the loop uses, in the order in which they came into scope."""
    buffers, variables = set(), set()
    pending: list[Expr] = []
    for stmt in walk_statements(loop):
        if isinstance(stmt, Store):
            buffers.add(stmt.buffer.name)
        elif isinstance(stmt, Operation):
            buffers.update(b.name for b in stmt.buffers)
        pending.extend(expressions(stmt))
    while pending:
        expr = pending.pop()
        if isinstance(expr, Var):
            variables.add(expr.name)
        elif isinstance(expr, Load):
            buffers.add(expr.buffer.name)
        pending.extend(expr.children)
    return [b for b in body.pointers if b in buffers], [v for v in body.variables if v in variables]
