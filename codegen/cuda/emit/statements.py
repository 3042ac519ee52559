"""Statements to C++: loops, conditions, allocations. (Operations stand in ``operations``.)"""

from ....core.errors import CompileError
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Binary, BinaryOp, Compare, CompareOp, Expr, Load, Var, index
from ....ir.gpu.wgmma import WarpgroupMma
from ....ir.rewrite import free_variables, is_pure
from ....ir.stmt import Allocate, For, If, LoopKind, Operation, Seq, Stmt, Store, expressions, walk_statements
from .expressions import Code, interned, uses_of
from .function import Function, is_packed
from .operations import operation_text
from .stores import emit_store
from .text import Text
from .types import stored


def emit_statement(fn: Function, text: Text, stmt: Stmt) -> None:
    """Append ``stmt`` to ``text``. Raises CompileError for what CUDA C++ has no form of here."""
    check_registers(fn, stmt)
    if stmt is fn.first:
        text.line(f"{fn.use('await_earlier_launch')}();")
        fn.first = None
    match stmt:
        case Seq(statements=statements):
            for below in statements:
                emit_statement(fn, text, below)
        case For():
            _loop(fn, text, stmt)
        case If(condition=condition, then=then):
            (condition,) = interned(condition)
            code = Code(fn, text, uses_of(condition))
            test = code.value(condition)
            with text.block(f"if ({test.text})") as inside:
                emit_statement(fn, inside, then)
        case Allocate(buffer=buffer, body=body):
            if buffer.scope is not MemoryScope.SHARED:
                text.line(_declaration(fn, buffer))
            sums = any(isinstance(s, WarpgroupMma) and s.d == buffer for s in walk_statements(body))
            if sums:
                fn.sums.append(buffer)
            emit_statement(fn, text, body)
            if sums:
                fn.sums.pop()
        case Store():
            emit_store(fn, text, stmt)
        case Operation():
            text.line(operation_text(fn, text, stmt))
        case _:
            raise CompileError(f"{type(stmt).__name__} has no place inside a launch")


def _loop(fn: Function, text: Text, loop: For) -> None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        raise CompileError(f"loop {loop.var} is still {loop.kind}: only serial and unrolled loops can be written")
    var = fn.name_of(loop.var)
    type = "int" if loop.extent < 1 << 31 else "long long"
    test = f"{var} < {loop.extent}"
    ending, body = _ending(loop)
    if ending is not None:  # what lies beyond it would do nothing
        (ending,) = interned(ending)
        end = fn.fresh(f"{var}_end")
        text.line(f"const {type} {end} = {Code(fn, text, uses_of(ending)).value(ending).text};")
        test += f" && {var} < {end}"
    if loop.kind is LoopKind.UNROLLED:
        fn.unrolled.add(loop.var)
        text.line("#pragma unroll")
    elif any(isinstance(s, (For, Operation)) for s in walk_statements(loop.body)):
        # left alone, the compiler writes out whole nests with few iterations, and spills; a loop that holds no other
        # it unrolls with measure
        text.line("#pragma unroll 1")
    with text.block(f"for ({type} {var} = 0; {test}; ++{var})") as inside:
        emit_statement(fn, inside, body)


def _ending(loop: For) -> tuple[Expr | None, Stmt]:
    """What the variable of a serial loop stays below, where all of its body stands under such a condition, and the rest
    of the body."""
    match loop:
        case For(kind=LoopKind.SERIAL, body=If(condition=Compare(op=CompareOp.LT, a=a, b=b) as test, then=then)):
            rest = _without(a, loop.var)
            if rest is not None and is_pure(test) and loop.var not in free_variables(b) | free_variables(rest):
                return b if rest == index(0) else b - rest, then
    return None, loop.body


def _without(expr: Expr, var: str) -> Expr | None:
    """The rest of a sum with the addend ``var``; None where it is none."""
    match expr:
        case Var(name=name) if name == var:
            return index(0)
        case Binary(op=BinaryOp.ADD, a=a, b=b):
            for one, other in ((a, b), (b, a)):
                rest = _without(one, var)
                if rest is not None:
                    return other if rest == index(0) else rest + other
    return None


def _declaration(fn: Function, buffer: Buffer) -> str:
    name = fn.name_of(buffer.name)
    count = buffer.elements
    if is_packed(buffer):
        count = -(-count // 2)
        return f"{_alignment(4 * count)}unsigned {name}[{count}];"
    return f"{_alignment(buffer.bytes)}{stored(buffer.dtype)} {name}[{count}];"


def _alignment(size: int) -> str:
    return next((f"__align__({n}) " for n in (16, 8) if size >= n), "")


def check_registers(fn: Function, stmt: Stmt) -> None:
    """Raise CompileError unless every index of a register buffer is constant once the loops are written out."""
    accesses: list[tuple[Buffer, tuple[Expr, ...]]] = []
    pending = list(expressions(stmt))
    seen: set[int] = set()
    while pending:
        expr = pending.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            pending.extend(expr.children)
            if isinstance(expr, Load):
                accesses.append((expr.buffer, expr.indices))
    match stmt:
        case Store(buffer=buffer, indices=indices):
            accesses.append((buffer, indices))
        case Operation(accesses=places):
            accesses += places
    for buffer, indices in accesses:
        if buffer.scope is MemoryScope.REGISTER and not all(_is_constant(fn, i) for i in indices):
            raise CompileError(f"register buffer {buffer.name} is accessed at an index that varies")


def _is_constant(fn: Function, expr: Expr) -> bool:
    if isinstance(expr, Var):
        return expr.name in fn.unrolled
    return not isinstance(expr, Load) and all(_is_constant(fn, c) for c in expr.children)
