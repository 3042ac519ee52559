"""Narrows stores whose mask is constant to the lanes that are stored.

    C[ramp(96, 8)] = splat(0.0, 8) where ramp(0, 8) < splat(4, 8)    ->    C[ramp(96, 4)] = splat(0.0, 4)

A vector whose length is no power of two stays masked, in the next power of two. One lane becomes a scalar store. That
also avoids a fault of LLVM 22, which turns a truncating masked store of one lane into a store of the whole wide
element.
"""

from dataclasses import replace

from ...ir.expr import Broadcast, Compare, Const, Expr, Load, Logic, LogicOp, Ramp, ReduceLanes, Unary, UnaryOp, rebuild
from ...ir.fold import COMPARISONS
from ...ir.rewrite import map_statements
from ...ir.stmt import Kernel, Seq, Stmt, Store


def narrow(kernel: Kernel) -> Kernel:
    """Narrow the stores of ``kernel`` whose masks disable nothing but the last lanes."""
    return replace(kernel, body=map_statements(kernel.body, _statement))


def _statement(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, Store) or stmt.mask is None:
        return stmt
    lanes = constant_mask(stmt.mask)
    if lanes is None:
        return stmt
    on = sum(lanes)
    if not all(lanes[:on]):
        return stmt
    if on == 0:
        return Seq(())
    width = 1 << (on - 1).bit_length()
    if width > len(lanes):
        width = len(lanes)
    mask = None if width == on else first_lanes(stmt.mask, width)
    indices = tuple(first_lanes(i, width) for i in stmt.indices)
    return Store(stmt.buffer, indices, first_lanes(stmt.value, width), mask)


def constant_mask(mask: Expr) -> list[bool] | None:
    """Return which lanes a constant mask enables; None for a mask that is not constant."""
    match mask:
        case Const(value=value):
            return [bool(value)]
        case Broadcast(value=value, count=count):
            one = constant_mask(value)
            return None if one is None else one * count
        case Compare(op=op, a=a, b=b):
            left, right = _numbers(a), _numbers(b)
            if left is None or right is None:
                return None
            return [COMPARISONS[op](x, y) for x, y in zip(left, right, strict=True)]
        case Logic(op=logic, a=a, b=b):
            p, q = constant_mask(a), constant_mask(b)
            if p is None or q is None:
                return None
            pairs = zip(p, q, strict=True)
            return [x and y for x, y in pairs] if logic is LogicOp.AND else [x or y for x, y in pairs]
        case Unary(op=UnaryOp.NOT, value=value):
            inner = constant_mask(value)
            return None if inner is None else [not x for x in inner]
    return None


def _numbers(expr: Expr) -> list[int] | None:
    match expr:
        case Const(value=value) if isinstance(value, int):
            return [value]
        case Broadcast(value=Const(value=value), count=count) if isinstance(value, int):
            return [value] * count
        case Ramp(base=Const(value=base), stride=stride, count=count) if isinstance(base, int):
            return [base + stride * i for i in range(count)]
    return None


def first_lanes(expr: Expr, width: int) -> Expr:
    """Return the first ``width`` lanes of a vector. A scalar stays as it is."""
    if expr.lanes <= width or isinstance(expr, ReduceLanes):
        return expr
    match expr:
        case Ramp(base=base, stride=stride):
            return base if width == 1 else Ramp(base, stride, width)
        case Broadcast(value=value):
            return value if width == 1 else Broadcast(value, width)
        case Load(buffer=buffer, indices=indices, mask=mask):
            at = tuple(first_lanes(i, width) for i in indices)
            off = None if mask is None else first_lanes(mask, width)
            known = None if off is None else constant_mask(off)
            return Load(buffer, at, None if known is not None and all(known) else off)
    return rebuild(expr, [first_lanes(c, width) for c in expr.children])
