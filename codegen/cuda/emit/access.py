"""Analysis of one access: its offset in elements, its stride from lane to lane, divisibility, uniform masks, ranges.

These are the questions that decide whether the elements of a vector move in one wide instruction: are they
contiguous, at which multiple do they begin, and is one condition the mask of all of them?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from ....core.dtypes import INDEX
from ....ir.affine import sum_of
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

WIDEST_BYTES = 16
"""How many bytes one thread moves in its widest access."""


@dataclass(frozen=True, slots=True)
class StridedOffset:
    """The offset of lane ``l`` of a vector is ``base + stride * l`` elements, before any swizzle."""

    base: Expr
    stride: int


@dataclass(frozen=True, slots=True)
class _Form:
    """``constant + sum(coefficient * scalar term) + step * lane``."""

    terms: Mapping[Expr, int]
    constant: int = 0
    step: int = 0

    def plus(self, other: "_Form", factor: int = 1) -> "_Form":
        terms = dict(self.terms)
        for term, c in other.terms.items():
            terms[term] = terms.get(term, 0) + factor * c
        kept = {t: c for t, c in terms.items() if c}
        return _Form(kept, self.constant + factor * other.constant, self.step + factor * other.step)


def _form(expr: Expr, vectors: bool = False) -> _Form | None:
    """The form of an index; None where its lanes do not step evenly (with ``vectors`` what does not is a term)."""
    match expr:
        case Const(value=value):
            return _Form({}, int(value))
        case Broadcast(value=value):
            return _form(value, vectors)
        case Ramp(base=base, stride=stride):
            inner = _form(base, vectors)
            return None if inner is None else inner.plus(_Form({}, 0, stride))
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB as op, a=a, b=b):
            left, right = _form(a, vectors), _form(b, vectors)
            if left is None or right is None:
                return None
            return left.plus(right, 1 if op is BinaryOp.ADD else -1)
        case Binary(op=BinaryOp.MUL, a=a, b=b):
            left, right = _form(a, vectors), _form(b, vectors)
            if left is not None and right is not None:
                if not right.terms and not right.step:
                    return _Form({}).plus(left, right.constant)
                if not left.terms and not left.step:
                    return _Form({}).plus(right, left.constant)
        case Unary(op=UnaryOp.NEG, value=value):
            inner = _form(value, vectors)
            return None if inner is None else _Form({}).plus(inner, -1)
    return _Form({expr: 1}) if vectors or expr.lanes == 1 else None


def strided_offset(indices: Sequence[Expr], strides: Sequence[int]) -> StridedOffset | None:
    """The offset of ``indices`` in a buffer with ``strides``; None where no constant stride leads from lane to lane."""
    total = _Form({})
    for at, stride in zip(indices, strides, strict=True):
        form = _form(at, vectors=True)
        assert form is not None
        total = total.plus(form, stride)
    total = _recombined(total)
    if any(term.lanes > 1 for term in total.terms):
        return None
    return StridedOffset(sum_of(total.terms.items(), total.constant), total.step)


def _recombined(form: _Form) -> _Form:
    """``form`` with the quotients and remainders of one number put together again.

    A flat index that runs over several dimensions is taken apart as ``x // n`` and ``x % n``. With the strides of
    contiguous dimensions it comes back: ``x // n * n + x % n`` is ``x``, ``x // n % m * n + x % n`` is ``x % (n * m)``.
    """
    for low, c in form.terms.items():
        if not isinstance(low, Binary) or low.op is not BinaryOp.MOD:
            continue
        n = _divisor(low)
        for high, weight in form.terms.items():
            if n is None or weight != c * n or not isinstance(high, Binary):
                continue
            whole = high.a if high.op is BinaryOp.MOD else high
            m = _divisor(high) if high.op is BinaryOp.MOD else 0
            if not isinstance(whole, Binary) or whole.op is not BinaryOp.FLOORDIV or m is None:
                continue
            if _divisor(whole) != n or not _congruent(whole.a, low.a, n):
                continue
            rest = {t: f for t, f in form.terms.items() if t is not low and t is not high}
            number = whole.a if not m else Binary(BinaryOp.MOD, whole.a, _broadcast(index(n * m), whole.a.lanes))
            joined = _form(number, vectors=True)
            assert joined is not None
            return _recombined(_Form(rest, form.constant, form.step).plus(joined, c))
    return form


def _divisor(expr: Binary) -> int | None:
    """The positive constant that ``expr`` divides by; None where the divisor is something else."""
    b = expr.b.value if isinstance(expr.b, Broadcast) else expr.b
    return int(b.value) if isinstance(b, Const) and b.value > 0 else None


def _congruent(a: Expr, b: Expr, n: int) -> bool:
    """Whether two indices provably differ by a multiple of ``n``."""
    left, right = _form(a, vectors=True), _form(b, vectors=True)
    if left is None or right is None:
        return False
    difference = left.plus(right, -1)
    return all(c % n == 0 for c in (*difference.terms.values(), difference.constant, difference.step))


def _broadcast(scalar: Expr, lanes: int) -> Expr:
    return scalar if lanes == 1 else Broadcast(scalar, lanes)


def lane_offsets(indices: Sequence[Expr], strides: Sequence[int]) -> Expr:
    """The offset of every lane as one vector expression, for offsets without a constant stride."""
    lanes = max((i.lanes for i in indices), default=1)
    total: Expr | None = None
    for at, stride in zip(indices, strides, strict=True):
        wide = at if at.lanes == lanes else Broadcast(at, lanes)
        factor = index(stride) if lanes == 1 else Broadcast(index(stride), lanes)
        term = wide if stride == 1 else Binary(BinaryOp.MUL, wide, factor)
        total = term if total is None else Binary(BinaryOp.ADD, total, term)
    return index(0) if total is None else total


def split_multiples(expr: Expr, period: int) -> tuple[Expr, Expr]:
    """A scalar index as the sum of two: the first is provably a multiple of ``period``, the second is the rest."""
    form = _form(expr)
    if form is None:
        return index(0), expr
    whole = {term: c for term, c in form.terms.items() if c * _divisibility_of_term(term) % period == 0}
    rest = {term: c for term, c in form.terms.items() if term not in whole}
    constant = form.constant % period
    return sum_of(whole.items(), form.constant - constant), sum_of(rest.items(), constant)


def divisibility(expr: Expr) -> int:
    """A number that divides every value of a scalar index (Triton's divisibility); 0 for an index that is always 0."""
    form = _form(expr)
    if form is None:
        return 1
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


def contiguous_elements(buffer: Buffer) -> int:
    """How many elements stay contiguous, from a multiple of that number on: a swizzle permutes chunks of so many."""
    swizzle = None if buffer.layout is None else buffer.layout.swizzle
    return 1 << 30 if swizzle is None else 1 << swizzle.base


def vector_accesses(starts: Sequence[tuple[Buffer, Expr]], lanes: int) -> list[tuple[int, int]]:
    """How ``lanes`` contiguous elements are split into accesses that suit every buffer of ``starts`` (buffer, offset of
    the first element), such as both ends of a copy.

    Gives (first lane, bytes) of each access. Its bytes are a power of two, at most 16, and provably divide its offset.
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
    """The scalar condition that all lanes of a mask provably equal; None where lanes may differ."""
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
    """``base < bound`` for the mask ``base + stride * lane < bound``; None where lanes may differ.

    All lanes agree where ``base`` and ``bound`` are multiples of a number that exceeds ``stride * (lanes - 1)``.
    """
    left, right = _form(a), _form(b)
    if left is None or right is None or right.step:
        return None
    base = sum_of(left.terms.items(), left.constant)
    bound = sum_of(right.terms.items(), right.constant)
    if left.step:
        unit = gcd(divisibility(base), divisibility(bound))
        if left.step < 0 or (unit and unit < left.step * (lanes - 1) + 1):
            return None
    return Compare(op, base, bound)


class IndexRanges:
    """Lower and upper bounds of the integer expressions of one function. They are computed once for each expression."""

    def __init__(self, variables: Mapping[str, Interval]) -> None:
        self._variables = variables
        self._known: dict[int, tuple[Expr, Interval]] = {}

    def of(self, expr: Expr) -> Interval:
        """The bounds over all lanes; the range of the dtype where nothing better is known."""
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
        """Whether ``a op b`` provably does not overflow."""
        bounds = binary_interval(expr.op, self.of(expr.a), self.of(expr.b))
        return bounds is not None and bounds.within(dtype_interval(expr.dtype))
