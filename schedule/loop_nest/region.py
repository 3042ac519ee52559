"""Which part of a tensor a piece of a nest reads: boxes whose corner follows the loops around it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.bounds import Interval, Ranges, interval_of
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, map_loads
from ...ir.simplify import simplify
from ...ir.stmt import For, If, Stmt, Store, substatements
from .tree import Access, ranges_of, with_statements


@dataclass(frozen=True, slots=True)
class Span:
    """``extent`` positions of one dimension, from ``base`` on; ``base`` is in terms of the loops around.

    ``below`` and ``above``: whether the first or the last position may lie outside the dimension.
    """

    base: LinearForm
    extent: int
    below: bool = False
    above: bool = False


@dataclass(frozen=True, slots=True)
class _Reach:
    """What one index takes: ``fixed`` (a form without constant) plus something from ``low`` to ``high``."""

    fixed: LinearForm
    low: int
    high: int


def region(accesses: Sequence[Access], shape: tuple[int, ...], around: Ranges) -> tuple[Span, ...]:
    """The smallest box found that holds all ``accesses`` of a tensor of ``shape``, one span for each dimension.

    ``around`` are the ranges of the variables that are fixed where the box is needed; the loops of each access
    range inside. A dimension that needs all positions, or whose accesses do not move together, is taken whole.
    """
    spans = []
    for dimension, extent in enumerate(shape):
        reaches = []
        for access in accesses:
            ranges = {**around, **ranges_of(access.loops)}
            reaches.append(_reach(linear_form(simplify(access.indices[dimension], ranges)), around, ranges))
        spans.append(_span(reaches, extent, around))
    return tuple(spans)


def _span(reaches: Sequence[_Reach | None], extent: int, around: Ranges) -> Span:
    whole = Span(LinearForm({}), extent)
    known = [reach for reach in reaches if reach is not None]
    if not known or len(known) < len(reaches) or any(reach.fixed != known[0].fixed for reach in known):
        return whole
    fixed = known[0].fixed
    low, high = min(reach.low for reach in known), max(reach.high for reach in known)
    if not fixed.terms:  # the box stands still: cut it to the dimension
        low, high = max(low, 0), min(high, extent - 1)
        return Span(LinearForm({}, low), high - low + 1) if low <= high else Span(LinearForm({}), 1)
    if high - low + 1 >= extent:
        return whole
    base = fixed + low
    reach = interval_of(base.to_expr(), around)
    return Span(base, high - low + 1, reach.low < 0, reach.high + high - low >= extent)


def _reach(form: LinearForm, around: Ranges, ranges: Ranges) -> _Reach | None:
    """The values of an index while the variables not in ``around`` range; None when nothing useful is known."""
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
    return _Reach(fixed, low, high)


def _quotient(term: Expr, around: Ranges, ranges: Ranges) -> tuple[LinearForm, Interval] | None:
    """``(fixed + ranging) // n`` as a fixed quotient plus a span; a span alone for a remainder."""
    if not isinstance(term, Binary) or not isinstance(term.b, Const) or int(term.b.value) <= 0:
        return None
    divisor = int(term.b.value)
    if term.op is BinaryOp.MOD:
        return LinearForm({}), Interval(0, divisor - 1)
    if term.op is not BinaryOp.FLOORDIV:
        return None
    inside = _reach(linear_form(term.a), around, ranges)
    if inside is None:
        return None
    start = simplify((inside.fixed + inside.low).to_expr() // divisor, around)
    return linear_form(start), Interval(0, -(-(inside.high - inside.low) // divisor))


def rebased(stmt: Stmt, old: str, new: Buffer, spans: Sequence[Span], ranges: Ranges) -> Stmt:
    """``stmt`` with every access of the buffer ``old`` turned to ``new``, which holds the box ``spans`` of it.

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


def inside_dimension(span: Span, position: Expr, extent: int) -> list[Expr]:
    """The conditions under which ``position``, within ``span``, is one of the ``extent`` of its dimension."""
    conditions = []
    if span.below:
        conditions.append(position >= 0)
    if span.above:
        conditions.append(position < extent)
    return conditions
