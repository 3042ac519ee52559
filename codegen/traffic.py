"""How many bytes of global memory a kernel's loads and stores ask for; caches may serve some of them."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import prod

from ..ir.buffer import Buffer, Scope
from ..ir.expr import Binary, BinaryOp, Compare, CompareOp, Const, Expr, Load, Logic, LogicOp, Var
from ..ir.gpu import BulkCopy, CopyAsync, TensorCopy
from ..ir.stmt import Allocate, For, If, Kernel, Launch, Seq, Stmt, Store, expressions


def accessed_bytes(kernel: Kernel) -> int:
    """Bytes that all loads and stores of global buffers ask for, repeats included.

    Conditions that pick some values of one variable (the first thread, every 32nd) are counted as such, all others as
    if they held.
    """
    return int(_bytes(kernel.body, {}))


def _bytes(stmt: Stmt, extents: Mapping[str, int]) -> Fraction:
    match stmt:
        case Seq(statements=statements):
            return sum((_bytes(s, extents) for s in statements), Fraction(0))
        case For(var=var, extent=extent, body=body):
            return extent * _bytes(body, {**extents, var: extent})
        case Launch(bounds=bounds, body=body):
            times = 1
            for bound in bounds:
                times *= bound.extent
            return times * _bytes(body, {**extents, **{b.var: b.extent for b in bounds}})
        case If(condition=condition, then=then):
            return _loaded([condition]) + _share(condition, extents) * _bytes(then, extents)
        case Allocate(body=body):
            return _bytes(body, extents)
        case Store(buffer=buffer, indices=indices, mask=mask):
            lanes = max((i.lanes for i in indices), default=1)
            own = _of(buffer, lanes) + _loaded(expressions(stmt))
            return own if mask is None else _share(mask, extents) * own
        case CopyAsync(source=source, elements=elements) | BulkCopy(source=source, elements=elements):
            return _of(source, elements) + _loaded(expressions(stmt))
        case TensorCopy(source=source, box=box):
            return _of(source, prod(box)) + _loaded(expressions(stmt))
    return _loaded(expressions(stmt))


def _of(buffer: Buffer, elements: int) -> Fraction:
    return Fraction(elements * buffer.dtype.bytes if buffer.scope is Scope.GLOBAL else 0)


def _loaded(roots: Iterable[Expr]) -> Fraction:
    """Of the loads in expressions, each shared one counted once."""
    total, seen, pending = Fraction(0), set[int](), list(roots)
    while pending:
        expr = pending.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            pending.extend(expr.children)
            if isinstance(expr, Load):
                total += _of(expr.buffer, expr.lanes)
    return total


def _share(condition: Expr, extents: Mapping[str, int]) -> Fraction:
    """For how many of the values of its one variable ``condition`` holds; 1 where it is of another form."""
    match condition:
        case Logic(op=LogicOp.AND, a=a, b=b):
            return _share(a, extents) * _share(b, extents)
        case Compare(op=op, a=Var(name=name), b=Const(value=value)) if name in extents:
            return _picked(op, int(value), extents[name])
        case Compare(op=op, a=Binary(op=BinaryOp.MOD, a=Var(name=name), b=Const(value=period)), b=Const(value=value)):
            if name in extents and 0 < int(period) <= extents[name]:
                return _picked(op, int(value), int(period))
    return Fraction(1)


def _picked(op: CompareOp, value: int, extent: int) -> Fraction:
    below = min(max(value, 0), extent)
    match op:
        case CompareOp.EQ:
            return Fraction(int(0 <= value < extent), extent)
        case CompareOp.LT:
            return Fraction(below, extent)
        case CompareOp.GE:
            return Fraction(extent - below, extent)
    return Fraction(1)
