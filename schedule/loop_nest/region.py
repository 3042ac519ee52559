"""Which region of a tensor a part of a nest reads: a box whose corner follows the loops around that part."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.bounds import Interval, Ranges, interval_of
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, map_loads
from ...ir.simplify import simplify
from ...ir.stmt import For, If, Stmt, Store, substatements, with_statements
from .tree import Access, ranges_of


@dataclass(frozen=True, slots=True)
class Span:
    """``extent`` indices of one dimension, from ``base`` on, which is linear in the variables of the loops around.

    ``below`` and ``above``: whether the first or the last index may lie outside the dimension.
    """

    base: LinearForm
    extent: int
    below: bool = False
    above: bool = False


@dataclass(frozen=True, slots=True)
class _IndexRange:
    """The values of one index: ``fixed``, a form without a constant, plus something from ``low`` to ``high``."""

    fixed: LinearForm
    low: int
    high: int


def region(accesses: Sequence[Access], shape: tuple[int, ...], around: Ranges) -> tuple[Span, ...]:
    """Return a box that holds all ``accesses`` of a tensor of ``shape``, as small as it is found: one span for each
    dimension.

    ``around``: the ranges of the variables that are fixed where the box is needed. The loops of each access are inside
    of them. A dimension that needs all indices, or whose accesses do not move together, is taken whole.
    """
    spans = []
    for dimension, extent in enumerate(shape):
        found = []
        for access in accesses:
            ranges = {**around, **ranges_of(access.loops)}
            found.append(_index_range(linear_form(simplify(access.indices[dimension], ranges)), around, ranges))
        spans.append(_span(found, extent, around))
    return tuple(spans)


def _span(found: Sequence[_IndexRange | None], extent: int, around: Ranges) -> Span:
    """Return the span of one dimension that holds all ranges ``found``."""
    whole = Span(LinearForm({}), extent)
    known = [r for r in found if r is not None]
    if not known or len(known) < len(found) or any(r.fixed != known[0].fixed for r in known):
        return whole
    fixed = known[0].fixed
    low, high = min(r.low for r in known), max(r.high for r in known)
    if not fixed.terms:  # the box does not move: cut it to the dimension
        low, high = max(low, 0), min(high, extent - 1)
        return Span(LinearForm({}, low), high - low + 1) if low <= high else Span(LinearForm({}), 1)
    if high - low + 1 >= extent:
        return whole
    base = fixed + low
    first = interval_of(base.to_expr(), around)
    return Span(base, high - low + 1, first.low < 0, first.high + high - low >= extent)


def _index_range(form: LinearForm, around: Ranges, ranges: Ranges) -> _IndexRange | None:
    """Return the values of an index over all values of the variables that are not in ``around``; None where they are
    not known."""
    fixed = LinearForm({})
    low = high = form.constant
    for term, coefficient in form.terms.items():
        names = free_variables(term)
        if names <= around.keys():
            fixed = fixed.plus(linear_form(term), coefficient)
            continue
        if names & around.keys():
            quotient = _quotient(term, around, ranges)
            if quotient is None:
                return None
            start, span = quotient[0].scaled(coefficient), quotient[1].scaled(coefficient)
            fixed = fixed + (start - start.constant)
            span = Interval(span.low + start.constant, span.high + start.constant)
        else:
            span = interval_of(term, ranges).scaled(coefficient)
        low, high = low + span.low, high + span.high
    return _IndexRange(fixed, low, high)


def _quotient(term: Expr, around: Ranges, ranges: Ranges) -> tuple[LinearForm, Interval] | None:
    """``(fixed + varying) // n`` as a fixed quotient plus an interval; an interval alone for a remainder."""
    if not isinstance(term, Binary) or not isinstance(term.b, Const) or int(term.b.value) <= 0:
        return None
    divisor = int(term.b.value)
    if term.op is BinaryOp.MOD:
        return LinearForm({}), Interval(0, divisor - 1)
    if term.op is not BinaryOp.FLOORDIV:
        return None
    inside = _index_range(linear_form(term.a), around, ranges)
    if inside is None:
        return None
    start = simplify((inside.fixed + inside.low).to_expr() // divisor, around)
    return linear_form(start), Interval(0, -(-(inside.high - inside.low) // divisor))


def rebased(stmt: Stmt, old: str, new: Buffer, spans: Sequence[Span], ranges: Ranges) -> Stmt:
    """``stmt`` with every access of the buffer ``old`` redirected to ``new``, which holds the box ``spans`` of it.

    ``ranges``: the variables bound outside ``stmt``.
    """

    def moved(indices: tuple[Expr, ...], known: Ranges) -> tuple[Expr, ...]:
        pairs = zip(indices, spans, strict=True)
        return tuple((linear_form(simplify(i, known)) - span.base).to_expr() for i, span in pairs)

    def visit(s: Stmt, known: Ranges) -> Stmt:
        def load(e: Load) -> Expr:
            return Load(new, moved(e.indices, known)) if e.buffer.name == old else e

        match s:
            case For(var=var, extent=extent, body=body):
                return with_statements(s, (visit(body, {**known, var: Interval(0, extent - 1)}),))
            case Store(buffer=buffer, indices=indices, value=value):
                value = map_loads(value, load)
                if buffer.name == old:
                    return Store(new, moved(indices, known), value)
                return s if value is s.value else Store(buffer, indices, value)
            case If(condition=condition, then=then):
                return If(map_loads(condition, load), visit(then, known))
        return with_statements(s, tuple(visit(below, known) for below in substatements(s)))

    return visit(stmt, ranges)


def inside_dimension(span: Span, index: Expr, extent: int) -> list[Expr]:
    """Return the conditions under which ``index``, within ``span``, lies in its dimension of ``extent``."""
    conditions = []
    if span.below:
        conditions.append(index >= 0)
    if span.above:
        conditions.append(index < extent)
    return conditions
