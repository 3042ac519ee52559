"""Analyses accesses, to decide whether the elements of a vector can move in one wide instruction.

It answers three questions: Are the elements contiguous? At which multiple do they begin? Is one condition the mask of
all of them? It also bounds index expressions, so that most of them are computed in 32 bits.
"""

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
    distinct_nodes,
    index,
    rebuild,
)
from ....ir.linear_form import congruent, flat_form, linear_form

WIDEST_BYTES = 16
"""A thread moves at most this many bytes in one access."""


@dataclass(frozen=True, slots=True)
class StridedOffset:
    """The offset of lane ``l`` of a vector is ``base + stride * l`` elements, before any swizzle."""

    base: Expr
    stride: int


def strided_offset(indices: Sequence[Expr], strides: Sequence[int]) -> StridedOffset | None:
    """Return the offset of ``indices`` in a buffer with ``strides``; None where no constant stride leads from lane to
    lane."""
    flat = flat_form(indices, strides, lower=True)
    return StridedOffset(flat.base.to_expr(), flat.stride) if flat.is_strided else None


def lane_offsets(indices: Sequence[Expr], strides: Sequence[int]) -> Expr:
    """Return the offsets of all lanes as one vector expression. They need no constant stride."""
    lanes = max((i.lanes for i in indices), default=1)
    total: Expr | None = None
    for at, stride in zip(indices, strides, strict=True):
        wide = at if at.lanes == lanes else Broadcast(at, lanes)
        factor = index(stride) if lanes == 1 else Broadcast(index(stride), lanes)
        term = wide if stride == 1 else Binary(BinaryOp.MUL, wide, factor)
        total = term if total is None else Binary(BinaryOp.ADD, total, term)
    return index(0) if total is None else total


def split_multiples(expr: Expr, period: int) -> tuple[Expr, Expr]:
    """Split a scalar index into two that add up to it: a provable multiple of ``period``, and the rest."""
    form = linear_form(expr)
    whole = {a for a, c in form.terms.items() if c * _divisibility_of_term(a) % period == 0}
    constant = form.constant - form.constant % period
    return (form.only(whole) + constant).to_expr(), (form.without(whole) - constant).to_expr()


def divisibility(expr: Expr) -> int:
    """Return a number that divides every value of a scalar index (Triton's divisibility); 0 where all values are 0."""
    form = linear_form(expr)
    known = abs(form.constant)
    for term, c in form.terms.items():
        known = gcd(known, abs(c) * _divisibility_of_term(term))
        if known == 1:
            return 1
    return known


def _divisibility_of_term(term: Expr) -> int:
    match term:
        case Binary(op=BinaryOp.MOD | BinaryOp.MIN | BinaryOp.MAX, a=a, b=b):
            return gcd(divisibility(a), divisibility(b))
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            return divisibility(a) * divisibility(b)
        case Binary(op=BinaryOp.FLOORDIV, a=a, b=Const(value=divisor)) if divisor:
            known = divisibility(a)
            return known // abs(int(divisor)) if known % int(divisor) == 0 else 1
        case Select(then=then, otherwise=otherwise):
            return gcd(divisibility(then), divisibility(otherwise))
        case Cast(value=value, type=dtype) if dtype == INDEX and value.dtype.is_integer:
            return divisibility(value) if value.dtype == INDEX else 1
    return 1


def with_shared_divisions(*roots: Expr) -> tuple[Expr, ...]:
    """Return the same expressions in which a remainder has the dividend of a quotient beside it, if that gives the same
    remainder: one division then gives both. The simplifier reduces the factors of a dividend of remainders alone, so
    that ``t * 29 % 33`` may stand beside ``t * 128 // 33``."""
    parts = [e for root in roots for e in distinct_nodes(root) if isinstance(e, Binary)]
    quotients = [e for e in parts if e.op is BinaryOp.FLOORDIV]
    dividends: dict[Expr, Expr] = {}
    for e in parts:
        match e:
            case Binary(op=BinaryOp.MOD, a=a, b=Const(value=value) as b) if e.dtype == INDEX and _has_bits(int(value)):
                found = (q.a for q in quotients if q.b == b and congruent(q.a, a, int(value)))
                dividends[e] = Binary(e.op, next(found, a), b)
    if all(e == shared for e, shared in dividends.items()):
        return roots

    done: dict[int, Expr] = {}

    def visit(expr: Expr) -> Expr:
        if id(expr) not in done:
            whole = rebuild(expr, [visit(child) for child in expr.children]) if expr.children else expr
            done[id(expr)] = dividends.get(expr, whole)
        return done[id(expr)]

    return tuple(visit(root) for root in roots)


def _has_bits(number: int) -> bool:
    """Return whether more than one bit of a number is set: it is no power of two."""
    return number & (number - 1) != 0


def contiguous_elements(buffer: Buffer) -> int:
    """Return how many elements stay contiguous, from a multiple of that number on: a swizzle permutes such chunks."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    return 1 << 30 if swizzle is None else 1 << swizzle.base


def vector_accesses(starts: Sequence[tuple[Buffer, Expr]], lanes: int) -> list[tuple[int, int]]:
    """Split ``lanes`` contiguous elements into accesses that suit every buffer of ``starts``, such as both ends of a
    copy. ``starts`` holds (buffer, offset of the first element).

    Returns (first lane, bytes) of each access. Its bytes are a power of two, at most 16, and provably divide its
    offset in bytes.
    """
    size = starts[0][0].dtype.bytes
    known = [(divisibility(base), contiguous_elements(buffer) * size) for buffer, base in starts]
    found: list[tuple[int, int]] = []
    lane = 0
    while lane < lanes:
        width = WIDEST_BYTES
        for multiple, contiguous in known:
            at = gcd(multiple, lane)
            width = min(width, contiguous, WIDEST_BYTES if at == 0 else size * (at & -at))
        while width > (lanes - lane) * size:
            width //= 2
        found.append((lane, width))
        lane += width // size
    return found


def uniform_mask(mask: Expr) -> Expr | None:
    """Return the scalar condition that all lanes of a mask provably equal; None where lanes may differ."""
    match mask:
        case _ if mask.lanes == 1:
            return mask
        case Broadcast(value=value):
            return value
        case Logic(op=op, a=a, b=b):
            left, right = uniform_mask(a), uniform_mask(b)
            return None if left is None or right is None else Logic(op, left, right)
        case Unary(op=UnaryOp.NOT, value=value):
            inner = uniform_mask(value)
            return None if inner is None else Unary(UnaryOp.NOT, inner)
        case Compare(op=CompareOp.LT | CompareOp.GE as op, a=a, b=b) if a.dtype == INDEX:
            return _uniform_order(op, a, b, mask.lanes)
    return None


def _uniform_order(op: CompareOp, a: Expr, b: Expr, lanes: int) -> Expr | None:
    """Return ``base < bound`` for the mask ``base + stride * lane < bound``; None where lanes may differ.

    All lanes agree where ``base`` and ``bound`` are multiples of a number that exceeds ``stride * (lanes - 1)``.
    """
    left, right = linear_form(a), linear_form(b)
    if not (left.is_strided and right.is_strided) or right.stride:
        return None
    base, bound = left.base.to_expr(), right.base.to_expr()
    if left.stride:
        unit = gcd(divisibility(base), divisibility(bound))
        if left.stride < 0 or (unit and unit < left.stride * (lanes - 1) + 1):
            return None
    return Compare(op, base, bound)


class IndexRanges:
    """Bounds the integer expressions of one function, each of them once."""

    def __init__(self, variables: Mapping[str, Interval]) -> None:
        self._variables = variables
        self._known: dict[int, tuple[Expr, Interval]] = {}

    def of(self, expr: Expr) -> Interval:
        """Return the bounds over all lanes, or the range of the dtype where nothing better is known."""
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
        """Return whether ``a op b`` provably does not overflow."""
        bounds = binary_interval(expr.op, self.of(expr.a), self.of(expr.b))
        return bounds is not None and bounds.within(dtype_interval(expr.dtype))
