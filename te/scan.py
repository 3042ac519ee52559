"""Scans: reductions of all elements up to each along an axis, recognised in the condition under which they are summed.

    y[i, j] = sum over k of select(k <= j, x[i, k], 0)

As written that takes n steps for an element. Whoever recognises it keeps a running value instead.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..core.dtypes import DType
from ..ir.expr import Compare, CompareOp, Const, Expr, Logic, LogicOp, Select, Var, logical_and
from ..ir.rewrite import free_variables, substitute
from .evaluate import Array
from .join import COMBINE
from .workload import Axis, Reducer, Stage


@dataclass(frozen=True, slots=True)
class Scan:
    """``stage`` at each index of ``axis`` combines ``body`` at all indices of that axis up to it.

    ``body`` is on the axes of the stage. ``reverse``: it begins at the last index. ``exclusive``: the value at an index
    is left out of the result there, so that the first result is the identity of the reducer.
    """

    stage: Stage
    axis: Axis
    body: Expr
    reverse: bool
    exclusive: bool

    @property
    def reducer(self) -> Reducer:
        """How values are combined."""
        assert self.stage.reducer is not None
        return self.stage.reducer


_FORMS = {
    CompareOp.LE: (False, False),
    CompareOp.LT: (False, True),
    CompareOp.GE: (True, False),
    CompareOp.GT: (True, True),
}
"""What a comparison of the reduced index with that of the result means: reversed, exclusive."""
_TURNED = {
    CompareOp.LE: CompareOp.GE,
    CompareOp.LT: CompareOp.GT,
    CompareOp.GE: CompareOp.LE,
    CompareOp.GT: CompareOp.LT,
}


def scan_of(stage: Stage) -> Scan | None:
    """Return the stage as a scan; None where it is none.

    Its body is a select between a value and the identity of the reducer. The condition, or one of several that are
    joined by and, compares the only reduced axis with an axis of the same extent, which nothing else depends on.
    """
    if stage.reducer not in COMBINE or len(stage.reduce_axes) != 1 or not isinstance(stage.body, Select):
        return None
    given, (reduced,) = stage.body, stage.reduce_axes
    if not _is_identity(given.otherwise, stage.reducer):
        return None
    terms = _conjuncts(given.condition)
    for term in terms:
        found = _compared(term, reduced)
        axis = None if found is None else next((a for a in stage.axes if a.name == found[0]), None)
        if found is None or axis is None or axis.extent != reduced.extent:
            continue
        others = [t for t in terms if t is not term]
        value = replace(given, condition=logical_and(*others)) if others else given.then
        if axis.name in free_variables(value):
            return None
        reverse, exclusive = _FORMS[found[1]]
        return Scan(stage, axis, substitute(value, {reduced.name: Var(axis.name)}), reverse, exclusive)
    return None


def identity_of(reducer: Reducer, dtype: DType) -> float:
    """Return the value that changes none when it is combined with another one."""
    if reducer in (Reducer.SUM, Reducer.PROD):
        return float(reducer is Reducer.PROD)
    lowest = reducer is Reducer.MAX
    if dtype.is_float:
        return float("-inf") if lowest else float("inf")
    return dtype.integer_range[0 if lowest else 1]


def accumulate(scan: Scan, values: Array) -> Array:
    """Return the stage's tensor from the values of its body, which have the tensor's shape."""
    d = scan.stage.axes.index(scan.axis)
    combine = COMBINE[scan.reducer]
    turned = np.flip(values, d) if scan.reverse else values
    with np.errstate(all="ignore"):
        found = combine.accumulate(turned, axis=d, dtype=values.dtype)
    if scan.exclusive:
        found = np.roll(found, 1, d)
        first = tuple(slice(0, 1) if e == d else slice(None) for e in range(found.ndim))
        found[first] = identity_of(scan.reducer, scan.stage.tensor.dtype)
    return np.ascontiguousarray(np.flip(found, d)) if scan.reverse else found


def _is_identity(e: Expr, reducer: Reducer) -> bool:
    return isinstance(e, Const) and e.value == identity_of(reducer, e.dtype)


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _compared(condition: Expr, reduced: Axis) -> tuple[str, CompareOp] | None:
    """Return the variable that a condition compares the reduced axis with, and how, the reduced axis on the left."""
    match condition:
        case Compare(op=op, a=Var(name=left), b=Var(name=right)) if op in _FORMS and left != right:
            if left == reduced.name:
                return right, op
            return (left, _TURNED[op]) if right == reduced.name else None
    return None


def values_stage(scan: Scan) -> Stage:
    """Return the stage that computes the values of a scan, which are then accumulated."""
    return Stage(scan.stage.tensor, scan.stage.axes, scan.body)
