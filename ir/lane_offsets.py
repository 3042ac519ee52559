"""Index vectors whose lanes differ by known numbers, whatever the loops around them do.

    (ramp(i*16, 1, 16)) // 2     i*8  plus  0, 0, 1, 1, 2, 2, ..
    (ramp(i*16, 1, 16)) % 2      0    plus  0, 1, 0, 1, ..

Such lanes are loaded as whole vectors and shuffled, and comparisons of such vectors may be constants.
"""

from collections.abc import Sequence
from math import gcd

from .expr import Binary, BinaryOp, Const, Expr, index
from .lanes import scalar_of
from .linear_form import LANE, LinearForm, linear_form

LaneOffsets = tuple[LinearForm, tuple[int, ...]]
"""A scalar form, and what each lane adds to it."""

MOST_WINDOWS = 4
"""At most so many vectors are loaded and shuffled together; where more are needed, lanes are gathered."""


def lane_offsets(form: LinearForm) -> LaneOffsets | None:
    """Return the scalar part of an index vector and what each lane adds to it; None where that is not known.

    A quotient or a remainder by a constant is known where the scalar part of what is divided is a multiple of the
    divisor, or where all lanes have the same quotient. The lesser or the greater of two vectors is known where neither
    has a variable.
    """
    scalar = LinearForm({a: c for a, c in form.terms.items() if a != LANE and a.lanes == 1}, form.constant)
    offsets = [form.stride * lane for lane in range(form.lanes)]
    for atom, coefficient in form.terms.items():
        if atom.lanes == 1:
            continue
        found = _of_atom(atom)
        if found is None:
            return None
        scalar = scalar.plus(found[0], coefficient)
        offsets = [o + coefficient * f for o, f in zip(offsets, found[1], strict=True)]
    return scalar, tuple(offsets)


def _of_atom(atom: Expr) -> LaneOffsets | None:
    if not isinstance(atom, Binary):
        return None
    a, b = (lane_offsets(linear_form(e).widened(atom.lanes)) for e in (atom.a, atom.b))
    if a is None or b is None:
        return None
    match atom.op:
        case BinaryOp.MIN | BinaryOp.MAX if a[0].is_constant and b[0].is_constant:
            pick = min if atom.op is BinaryOp.MIN else max
            pairs = zip(a[1], b[1], strict=True)
            return LinearForm({}), tuple(pick(a[0].constant + x, b[0].constant + y) for x, y in pairs)
        case BinaryOp.FLOORDIV | BinaryOp.MOD:
            divisor = scalar_of(atom.b)
            if isinstance(divisor, Const) and int(divisor.value) > 0:
                return _divided(atom.op, *a, int(divisor.value))
    return None


def _divided(op: BinaryOp, scalar: LinearForm, offsets: Sequence[int], divisor: int) -> LaneOffsets | None:
    """Return the quotients or remainders of ``scalar`` plus each of ``offsets``; None where they are not known."""
    unit = gcd(divisor, *scalar.terms.values())
    rest = scalar.constant % unit  # of a scalar part that is a multiple of unit but for this
    if unit == divisor:
        if op is BinaryOp.MOD:
            return LinearForm({}), tuple((rest + o) % divisor for o in offsets)
        whole = LinearForm({a: c // divisor for a, c in scalar.terms.items()}, scalar.constant // divisor)
        return whole, tuple((rest + o) // divisor for o in offsets)
    if not all(0 <= rest + o < unit for o in offsets):
        return None
    same = linear_form(Binary(op, (scalar - rest).to_expr(), index(divisor)))
    return same, tuple(rest + o if op is BinaryOp.MOD else 0 for o in offsets)


def windows(offsets: Sequence[int], widest: int) -> list[tuple[int, int]]:
    """Return (first offset, elements) of the vectors of at most ``widest`` elements that cover ``offsets``, in
    ascending order. None of them reads beyond the last offset that it covers, or before the first of all."""
    found: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if found and offset < found[-1][0] + widest:
            found[-1] = (found[-1][0], offset - found[-1][0] + 1)
        else:
            found.append((offset, 1))
    return found
