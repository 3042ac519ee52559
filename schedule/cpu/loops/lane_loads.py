"""How many vectors a load takes whose lanes lie along an axis: one where they are contiguous, a few where they lie
close together, and else one for each lane."""

from ....ir.expr import Binary, BinaryOp, Broadcast, Const, Expr, Load, Var
from ....ir.lane_offsets import MOST_WINDOWS, lane_offsets, windows
from ....ir.linear_form import LANE, LinearForm, linear_form
from ....ir.rewrite import free_variables
from .tiles import stride_along


def steps_of_load(load: Load, axis: str, lanes: int) -> int:
    """Return how many loads and shuffles give ``lanes`` neighbouring elements along ``axis``."""
    if stride_along(load, axis) in (0, 1):
        return 1
    total = LinearForm({}, 0, lanes)
    for i, stride in zip(load.indices, load.buffer.strides, strict=True):
        form = _in_lanes(linear_form(i), axis, lanes)
        if form is None:
            return lanes
        total = total.plus(form, stride)
    offsets = lane_offsets(total)
    count = lanes if offsets is None else len(windows(offsets[1], lanes))
    return min(2 * count, lanes) if count <= MOST_WINDOWS else lanes


def _in_lanes(form: LinearForm, axis: str, lanes: int) -> LinearForm | None:
    """Return an index where ``axis`` begins at a multiple of ``lanes`` and grows from lane to lane, away from the
    bounds that it is kept within; None where that is not known."""
    result = LinearForm({}, form.constant, lanes)
    for atom, coefficient in form.terms.items():
        if axis not in free_variables(atom):
            result = result.plus(LinearForm({atom: 1}, 0, lanes), coefficient)
            continue
        own = LinearForm({atom: lanes, LANE: 1}, 0, lanes) if atom == Var(axis) else _of_atom(atom, axis, lanes)
        if own is None:
            return None
        result = result.plus(own, coefficient)
    return result


def _of_atom(atom: Expr, axis: str, lanes: int) -> LinearForm | None:
    if not isinstance(atom, Binary) or not isinstance(atom.b, Const):
        return None
    inner = _in_lanes(linear_form(atom.a), axis, lanes)
    if inner is None or atom.op in (BinaryOp.MIN, BinaryOp.MAX):
        return inner
    if atom.op not in (BinaryOp.FLOORDIV, BinaryOp.MOD):
        return None
    return LinearForm({Binary(atom.op, inner.to_expr(), Broadcast(atom.b, lanes)): 1}, 0, lanes)
