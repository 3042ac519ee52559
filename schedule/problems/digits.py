"""Axes of an output from where it reads a sum: indices may be made of digits, which are quotients and remainders."""

from collections.abc import Mapping, Sequence

from ...ir.expr import Binary, BinaryOp, Const, Expr, Var, index
from ...ir.linear_form import linear_form
from ...ir.rewrite import loads_of
from ...te.workload import Axis, Stage
from ..tile.delinearize import delinearize


def axes_in(
    stage: Stage, axes: Sequence[Axis], totals: Sequence[str], at: Mapping[str, Expr]
) -> tuple[dict[str, Expr], tuple[Expr, ...]] | None:
    """Return the axes of an output stage as expressions on ``m`` and ``n``, found from where the stage reads a sum, and
    the conditions on which that is inside of them. Indices of the sum may be made of digits, such as where channels
    become pixels: sum[y // 2, channel * 2 + y % 2]."""
    own: dict[str, Expr] = {a.name: index(0) for a in stage.axes if a.extent == 1}
    load = next((e for e in loads_of(stage.body) if e.buffer.name in totals), None)
    if load is None:
        return None
    digits: dict[Expr, tuple[Expr, int]] = {}  # a part of an index -> its value, and how many it has
    for i, axis in zip(load.indices, axes, strict=True):
        if axis.extent > 1:
            found = _digits(i, stage.axes, axis.extent)
            if not found or any(part in digits for part, _ in found):
                return None
            values = delinearize(at[axis.name], [count for _, count in found])
            digits |= {part: (value, count) for (part, count), value in zip(found, values, strict=True)}
    inside = list[Expr]()
    for axis in stage.axes:
        if axis.name in own:
            continue
        joined = _joined(Var(axis.name), digits)
        if joined is None:
            return None
        own[axis.name], first, count = joined
        inside += [own[axis.name] >= 0] if first < 0 else []
        inside += [own[axis.name] < axis.extent] if first + count > axis.extent else []
    return None if digits else (own, tuple(inside))


def _joined(axis: Var, digits: dict[Expr, tuple[Expr, int]]) -> tuple[Expr, int, int] | None:
    """Return the value of ``axis`` from its ``digits``, the least value, and how many there are; None where some are
    missing. They are taken away from there."""
    if axis in digits:
        return digits[axis][0], 0, digits.pop(axis)[1]
    for part in digits:
        if not isinstance(part, Binary) or part.op is not BinaryOp.FLOORDIV:
            continue
        low, shift = Binary(BinaryOp.MOD, part.a, part.b), _shift_of(part.a, axis)
        if low in digits and shift is not None:
            (high, count), (rest, unit) = digits.pop(part), digits.pop(low)
            value = high * unit + rest
            return (value - shift if shift else value), -shift, count * unit
    return None


def _shift_of(e: Expr, axis: Var) -> int | None:
    """Return how much further than ``axis`` an index is; None where it is anything else."""
    difference = linear_form(e) - linear_form(axis)
    return difference.constant if difference.is_constant else None


def _digits(i: Expr, axes: Sequence[Axis], extent: int) -> list[tuple[Expr, int]]:
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
    """Return how many values an axis, or a quotient or a remainder of one, has, from 0 on; 0 for anything else. A
    shifted axis begins within the first quotient."""
    if isinstance(part, Var):
        return extents.get(part.name, 0)
    if not isinstance(part, Binary) or not isinstance(part.b, Const):
        return 0
    unit, named = int(part.b.value), [name for name in linear_form(part.a).variables if name in extents]
    shift = _shift_of(part.a, Var(named[0])) if len(named) == 1 else None
    if shift is None or not 0 <= shift < unit:
        return 0
    whole = extents[named[0]] + shift
    return {BinaryOp.MOD: min(unit, whole), BinaryOp.FLOORDIV: -(-whole // unit)}.get(part.op, 0)
