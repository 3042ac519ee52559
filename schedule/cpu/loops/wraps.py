"""Loads whose index wraps around once are split there, so that both parts are contiguous.

C[i, j < 2047] = A[i, (j + 1000) % 2047]     ->     C[i, j] = select(j + 1000 < 2047, A[i, j + 1000], A[i, j - 1047])

The loop over ``j`` is then partitioned where the condition changes (``codegen.passes.partition``).
"""

from dataclasses import replace

from ....ir.expr import Binary, BinaryOp, Const, Expr, Load, Select, index, walk
from ....ir.linear_form import affine_form
from ....ir.rewrite import map_expr, map_loads
from ....te.workload import Axis, Stage, Workload


def split_wraps(workload: Workload) -> Workload:
    """Return ``workload`` with every load split whose quotient or remainder by a constant changes once along the last
    axis.

    Indices that wrap around more often stay as they are.
    """
    return replace(workload, stages=tuple(replace(s, body=_split(s)) for s in workload.stages))


def _split(stage: Stage) -> Expr:
    if not stage.axes:
        return stage.body
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}

    def split(load: Load) -> Expr:
        for atom in (e for i in load.indices for e in walk(i)):
            quotient = _first_of_two_quotients(atom, stage.axes[-1], extents)
            if quotient is not None:
                assert isinstance(atom, Binary)
                first, second = (split(_with_quotient(load, atom, q)) for q in (quotient, quotient + 1))
                return Select(atom.a < (quotient + 1) * _divisor(atom), first, second)
        return load

    return map_loads(stage.body, split)


def _first_of_two_quotients(atom: Expr, axis: Axis, extents: dict[str, int]) -> int | None:
    """Return the lesser of the two values of ``a // n``, where ``atom`` is ``a // n`` or ``a % n`` and varies along
    ``axis``; None where there are not two values."""
    if not (isinstance(atom, Binary) and atom.op in (BinaryOp.FLOORDIV, BinaryOp.MOD) and isinstance(atom.b, Const)):
        return None
    form, divisor = affine_form(atom.a), _divisor(atom)
    if form is None or divisor <= 0 or not form.coefficient(axis.name):
        return None
    ends = [(0, c * (extents[name] - 1)) for name, c in form.coefficients.items()]
    low = (form.constant + sum(min(e) for e in ends)) // divisor
    high = (form.constant + sum(max(e) for e in ends)) // divisor
    return low if high == low + 1 else None


def _divisor(atom: Binary) -> int:
    assert isinstance(atom.b, Const)
    return int(atom.b.value)


def _with_quotient(load: Load, atom: Binary, quotient: int) -> Load:
    """Return ``load`` where ``atom.a // atom.b`` has the value ``quotient``."""

    def known(e: Expr) -> Expr:
        if isinstance(e, Binary) and (e.a, e.b) == (atom.a, atom.b):
            if e.op is BinaryOp.FLOORDIV:
                return index(quotient)
            if e.op is BinaryOp.MOD:
                return e.a - quotient * _divisor(atom)
        return e

    return replace(load, indices=tuple(map_expr(i, known) for i in load.indices))
