"""Where an access lies: its offset in elements, how it steps from lane to lane, and what divides it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from ....core.dtypes import INDEX
from ....ir.bounds import Interval, binary_interval, dtype_interval, interval_of
from ....ir.buffer import Buffer
from ....ir.expr import (
    Binary,
    BinaryOp,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Logic,
    Ramp,
    Select,
    Unary,
    UnaryOp,
    Var,
    index,
)
from ....ir.linear_form import flat_form, linear_form

WIDEST_BYTES = 16
"""The widest access of one thread."""


@dataclass(frozen=True, slots=True)
class Place:
    """``base + step * lane`` elements from the start of a buffer, before any swizzle."""

    base: Expr
    step: int


def place_of(indices: Sequence[Expr], strides: Sequence[int]) -> Place | None:
    """The place at ``indices``; None where the lanes do not step evenly."""
    flat = flat_form(indices, strides, lower=True)
    return Place(flat.base.to_expr(), flat.stride) if flat.is_strided else None


def flat_place(indices: Sequence[Expr], strides: Sequence[int]) -> Expr:
    """The place of every lane as one (vector) expression, for lanes that do not step evenly."""
    lanes = max((i.lanes for i in indices), default=1)
    total: Expr | None = None
    for at, stride in zip(indices, strides, strict=True):
        wide = at if at.lanes == lanes else Broadcast(at, lanes)
        factor = index(stride) if lanes == 1 else Broadcast(index(stride), lanes)
        term = wide if stride == 1 else Binary(BinaryOp.MUL, wide, factor)
        total = term if total is None else Binary(BinaryOp.ADD, total, term)
    return index(0) if total is None else total


def parted(expr: Expr, period: int) -> tuple[Expr, Expr]:
    """A scalar index as a sum of two: one that ``period`` provably divides, and the rest."""
    form = linear_form(expr)
    whole = {a for a, c in form.terms.items() if c * _multiple_of_term(a) % period == 0}
    constant = form.constant - form.constant % period
    return (form.only(whole) + constant).to_expr(), (form.without(whole) - constant).to_expr()


def multiple_of(expr: Expr) -> int:
    """A number that divides every value of a scalar index; 0 for an index that is always 0."""
    form = linear_form(expr)
    known = abs(form.constant)
    for term, c in form.terms.items():
        known = gcd(known, abs(c) * _multiple_of_term(term))
        if known == 1:
            return 1
    return known


def _multiple_of_term(term: Expr) -> int:
    match term:
        case Binary(op=BinaryOp.MOD | BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
            return gcd(multiple_of(a), multiple_of(b))
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return multiple_of(a) * multiple_of(b)
        case Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=divisor)) if divisor:
            known = multiple_of(a)
            return known // abs(int(divisor)) if known % int(divisor) == 0 else 1
        case Select(then=then, otherwise=otherwise):
            return gcd(multiple_of(then), multiple_of(otherwise))
        case Cast(value=value, type=dtype) if dtype == INDEX and value.dtype.is_integer:
            return multiple_of(value) if value.dtype == INDEX else 1
    return 1


def contiguous_run(buffer: Buffer) -> int:
    """How many neighbours, from a multiple of that on, lie side by side: all but where a swizzle parts them."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    return 1 << 30 if swizzle is None else 1 << swizzle.base


def pieces(places: Sequence[tuple[Buffer, Expr]], lanes: int) -> list[tuple[int, int]]:
    """(first lane, bytes) of the accesses that ``lanes`` neighbours are moved in, from each of ``places`` (buffer,
    first element) on: a power of two of bytes, at most 16, at an offset that is provably a multiple of it
    in all of them."""
    size = places[0][0].dtype.bytes
    known = [(multiple_of(base), contiguous_run(buffer) * size) for buffer, base in places]
    found: list[tuple[int, int]] = []
    lane = 0
    while lane < lanes:
        piece = WIDEST_BYTES
        for multiple, run in known:
            at = gcd(multiple, lane)
            piece = min(piece, run, WIDEST_BYTES if at == 0 else size * (at & -at))
        while piece > (lanes - lane) * size:
            piece //= 2
        found.append((lane, piece))
        lane += piece // size
    return found


def one_for_all(mask: Expr) -> Expr | None:
    """The scalar that every lane of a mask is provably equal to; None where they may differ."""
    match mask:
        case _ if mask.lanes == 1:
            return mask
        case Broadcast(value=value):
            return value
        case Logic(op=op, a=a, b=b):
            left, right = one_for_all(a), one_for_all(b)
            return None if left is None or right is None else Logic(op, left, right)
        case Unary(op=UnaryOp.NOT, value=value):
            inner = one_for_all(value)
            return None if inner is None else Unary(UnaryOp.NOT, inner)
        case Compare(op=CompareOp.LT | CompareOp.GE as op, a=a, b=b) if a.dtype == INDEX:
            return _uniform_order(op, a, b, mask.lanes)
    return None


def _uniform_order(op: CompareOp, a: Expr, b: Expr, lanes: int) -> Expr | None:
    """``base + lane < bound`` where both are multiples of a number of lanes that covers all: then ``base < bound``."""
    left, right = linear_form(a), linear_form(b)
    if not (left.is_strided and right.is_strided) or right.stride:
        return None
    base, bound = left.base.to_expr(), right.base.to_expr()
    if left.stride:
        unit = gcd(multiple_of(base), multiple_of(bound))
        if left.stride < 0 or (unit and unit < left.stride * (lanes - 1) + 1):
            return None
    return Compare(op, base, bound)


class Ranges:
    """Bounds of integer expressions of one function; remembers them while the expressions live."""

    def __init__(self, variables: Mapping[str, Interval]) -> None:
        self._variables = variables
        self._known: dict[int, tuple[Expr, Interval]] = {}

    def of(self, expr: Expr) -> Interval:
        """Bounds over all lanes; all of the dtype where nothing is known."""
        found = self._known.get(id(expr))
        if found is None:
            found = self._known[id(expr)] = (expr, self._bounds(expr))
        return found[1]

    def _bounds(self, expr: Expr) -> Interval:
        whole = dtype_interval(expr.dtype)
        match expr:
            case Var(name=name):
                return self._variables.get(name, whole)
            case Binary(op=op, a=a, b=b):
                exact = binary_interval(op, self.of(a), self.of(b))
                return exact if exact is not None and exact.within(whole) else whole
            case Broadcast(value=value):
                return self.of(value)
            case Ramp(base=base, stride=stride, count=count):
                return self.of(base) + Interval(0, count - 1).scaled(stride)
            case Const() | Compare():
                return interval_of(expr, {}) if isinstance(expr, Const) else Interval(0, 1)
            case Select(then=then, otherwise=otherwise):
                return self.of(then).union(self.of(otherwise))
            case Cast(value=value) if not value.dtype.is_float:
                inner = self.of(value)
                return inner if inner.within(whole) else whole
            case Unary(op=UnaryOp.NEG, value=value):
                negated = self.of(value).scaled(-1)
                return negated if negated.within(whole) else whole
        return whole

    def exact(self, expr: Binary) -> bool:
        """Whether ``a op b`` provably does not wrap around."""
        bounds = binary_interval(expr.op, self.of(expr.a), self.of(expr.b))
        return bounds is not None and bounds.within(dtype_interval(expr.dtype))
