"""Digits of indices: axes, and quotients and remainders of axes, that an index is made of, such as y // 2 in
channel * 2 + y % 2."""

from collections.abc import Mapping, Sequence

from ...ir.expr import Binary, BinaryOp, Const, Expr, Var
from ...ir.linear_form import linear_form
from ...te.workload import Axis


def joined_digits(axis: Var, digits: dict[Expr, tuple[Expr, int]]) -> tuple[Expr, int] | None:
    """Return the value of ``axis`` from its ``digits``, and how many it has; None where some are missing. They are
    taken away from there."""
    if axis in digits:
        return digits.pop(axis)
    for part in digits:
        if isinstance(part, Binary) and part.op is BinaryOp.FLOORDIV and part.a == axis:
            low = Binary(BinaryOp.MOD, axis, part.b)
            if low in digits:
                (high, count), (rest, unit) = digits.pop(part), digits.pop(low)
                return high * unit + rest, count * unit
    return None


def digits_of(i: Expr, axes: Sequence[Axis], extent: int) -> list[tuple[Expr, int]]:
    """Return the digits that the index ``i`` is made of, with their extents, the slowest first; none where it is
    anything else. They are axes, and quotients and remainders of axes. The slowest one may have fewer values than there
    are."""
    form, extents = linear_form(i), {a.name: a.extent for a in axes}
    parts, step, found = sorted(form.terms, key=form.terms.__getitem__), 1, list[tuple[Expr, int]]()
    for part in parts:
        count = extent // step if part == parts[-1] else _extent_of(part, extents)
        if form.terms[part] != step or not 0 < _extent_of(part, extents) <= count:
            return []
        step *= count
        found.insert(0, (part, count))
    return found if step == extent and not form.constant else []


def _extent_of(part: Expr, extents: Mapping[str, int]) -> int:
    """Return how many values an axis, or a quotient or a remainder of one, has; 0 for anything else."""
    if isinstance(part, Var):
        return extents.get(part.name, 0)
    if not isinstance(part, Binary) or not isinstance(part.a, Var) or not isinstance(part.b, Const):
        return 0
    whole, unit = extents.get(part.a.name, 0), int(part.b.value)
    if unit < 1:
        return 0
    return {BinaryOp.MOD: min(unit, whole), BinaryOp.FLOORDIV: -(-whole // unit)}.get(part.op, 0)
