"""Writes statements: loops, conditions, allocations. ``operations`` writes what only graphics processors have."""

from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Binary, BinaryOp, Compare, CompareOp, Expr, Load, Var, distinct_nodes, index
from ....ir.gpu.wgmma import WarpgroupMma
from ....ir.rewrite import free_variables, reads_of
from ....ir.stmt import Allocate, For, If, LoopKind, Operation, Seq, Stmt, Store, expressions, walk_statements
from .expressions import ExpressionEmitter, interned, use_counts
from .function import EmittedFunction, is_packed
from .operations import emit_operation
from .stores import emit_store
from .text import CppText
from .types import storage_type


def emit_statement(fn: EmittedFunction, text: CppText, stmt: Stmt) -> None:
    """Append ``stmt`` to ``text``. Raises CompileError for what cannot be written in CUDA C++."""
    check_register_indices(fn, stmt)
    first, around = len(text.lines), fn.stmt
    fn.stmt = stmt
    if stmt is fn.first:
        text.line(f"{fn.use('griddepcontrol_wait')}();")
        fn.first = None
    match stmt:
        case Seq(statements=statements):
            for below in statements:
                emit_statement(fn, text, below)
        case For():
            _loop(fn, text, stmt)
        case If(condition=condition, then=then):
            test = _scalar(fn, text, condition)
            with text.block(f"if ({test})") as inside:
                emit_statement(fn, inside, then)
        case Allocate(buffer=buffer, body=body):
            if buffer.scope is MemoryScope.TENSOR:
                text.line(f"unsigned {fn.name_of(buffer.name)};")
            elif buffer.scope is not MemoryScope.SHARED:
                text.line(_declaration(fn, buffer))
            accumulates = any(isinstance(s, WarpgroupMma) and s.d == buffer for s in walk_statements(body))
            if accumulates:
                fn.accumulators.append(buffer)
            emit_statement(fn, text, body)
            if accumulates:
                fn.accumulators.pop()
        case Store():
            emit_store(fn, text, stmt)
        case Operation():
            emit_operation(fn, text, stmt)
        case _:
            raise CompileError(f"{type(stmt).__name__} cannot stand inside a launch")
    fn.stmt = around
    text.note_origin(first, stmt)


def _scalar(fn: EmittedFunction, text: CppText, expr: Expr) -> str:
    """Return the C++ of a scalar; statements that it needs go into ``text``."""
    (expr,) = interned(expr)
    return ExpressionEmitter(fn, text, use_counts(expr)).value(expr).text


def _loop(fn: EmittedFunction, text: CppText, loop: For) -> None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        raise CompileError(f"loop {loop.var} is still {loop.kind}: only serial and unrolled loops can be written")
    var = fn.name_of(loop.var)
    type = "int" if loop.extent < 1 << 31 else "long long"
    test = f"{var} < {loop.extent}"
    bound, body = _bound(loop)
    if bound is not None:  # iterations from there on would do nothing
        end = fn.fresh(f"{var}_end")
        text.line(f"const {type} {end} = {_scalar(fn, text, bound)};")
        test += f" && {var} < {end}"
    if loop.kind is LoopKind.UNROLLED:
        fn.unrolled.add(loop.var)
        text.line("#pragma unroll")
    elif any(isinstance(s, (For, Operation)) for s in walk_statements(loop.body)):
        # Left to itself, the compiler unrolls whole nests with few iterations, and spills. It unrolls innermost loops
        # with measure.
        text.line("#pragma unroll 1")
    with text.block(f"for ({type} {var} = 0; {test}; ++{var})") as inside:
        emit_statement(fn, inside, body)


def _bound(loop: For) -> tuple[Expr | None, Stmt]:
    """Find an upper bound of a serial loop in a condition that its whole body stands under.

    for i in range(n): if i + rest < b: body    ->    for i in range(min(n, b - rest)): body

    Returns the bound and the body without the condition; None and the whole body for other loops.
    """
    match loop:
        case For(kind=LoopKind.SERIAL, body=If(condition=Compare(op=CompareOp.LT, a=a, b=b) as test, then=then)):
            rest = _without(a, loop.var)
            stays = rest is not None and loop.var not in free_variables(b) | free_variables(rest)
            if stays and rest is not None and _is_fixed(test, loop.body):
                return b if rest == index(0) else b - rest, then
    return None, loop.body


def _is_fixed(test: Expr, body: Stmt) -> bool:
    """Return whether a condition reads nothing but registers that ``body`` does not write."""
    reads = reads_of(test)
    if not all(isinstance(r, Load) and r.buffer.scope is MemoryScope.REGISTER for r in reads):
        return False
    below = list(walk_statements(body)) if reads else []
    written = {s.buffer.name for s in below if isinstance(s, Store)}
    written |= {b.name for s in below if isinstance(s, Operation) for b in s.buffers}
    return written.isdisjoint(r.buffer.name for r in reads if isinstance(r, Load))


def _without(expr: Expr, var: str) -> Expr | None:
    """Return what is left of a sum without its addend ``var``; None where ``var`` is no addend."""
    match expr:
        case Var(name=name) if name == var:
            return index(0)
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            for one, other in ((a, b), (b, a)):
                rest = _without(one, var)
                if rest is not None:
                    return other if rest == index(0) else rest + other
    return None


def _declaration(fn: EmittedFunction, buffer: Buffer) -> str:
    name = fn.name_of(buffer.name)
    count = buffer.elements
    if is_packed(buffer):
        count = -(-count // 2)
        return f"{_alignment(4 * count)}unsigned {name}[{count}];"
    return f"{_alignment(buffer.bytes)}{storage_type(buffer.dtype)} {name}[{count}];"


def _alignment(size: int) -> str:
    return next((f"__align__({n}) " for n in (16, 8) if size >= n), "")


def check_register_indices(fn: EmittedFunction, stmt: Stmt) -> None:
    """Raise CompileError unless every index of a register buffer is constant once loops are unrolled."""
    accesses = [(e.buffer, e.indices) for e in distinct_nodes(*expressions(stmt)) if isinstance(e, Load)]
    match stmt:
        case Store(buffer=buffer, indices=indices):
            accesses.append((buffer, indices))
        case Operation(accesses=found):
            accesses += found
    for buffer, indices in accesses:
        if buffer.scope is MemoryScope.REGISTER and not all(_is_constant(fn, i) for i in indices):
            raise CompileError(f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(fn: EmittedFunction, expr: Expr) -> bool:
    if isinstance(expr, Var):
        return expr.name in fn.unrolled
    return not isinstance(expr, Load) and all(_is_constant(fn, c) for c in expr.children)
