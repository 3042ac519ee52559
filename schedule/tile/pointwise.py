"""Bodies of stages inside tile programs: axes become index expressions, loads may come from registers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...ir.expr import (
    Broadcast,
    Expr,
    Load,
    Ramp,
    Select,
    Unary,
    UnaryOp,
    Var,
    const,
    logical_and,
    rebuild,
)
from ...ir.rewrite import free_variables, map_loads, substitute
from ..linear import Linear, linear

Replacement = Callable[[Load], Expr]
"""What stands where a body loads a tensor. It gets the load as the body has it, on the axes of the stage."""


def value_at(body: Expr, at: Mapping[str, Expr], load: Replacement | None = None) -> Expr:
    """``body`` at the point ``at`` (axis -> scalar index expression): a scalar expression for a tile program.

    ``load`` says what stands in place of each load: a load from registers, say, or the load itself (the default), whose
    indices are then put at the point like everything else. What ``load`` gives may use the stage's axes and variables
    of the program; axes are replaced in it too.
    """
    return substitute(body if load is None else map_loads(body, load), at)


def vector_at(body: Expr, at: Mapping[str, Expr], lane: str, lanes: int, load: Replacement | None = None) -> Expr:
    """``body`` at ``lanes`` neighbouring points: axis ``lane`` runs from its place in ``at`` on, the others stay.

    The same as a VECTORIZED loop around ``value_at``, as an expression: loads that follow the axis become vectors
    (contiguous ones Ramps of stride 1), those that do not are done once and spread.
    """
    replaced = body if load is None else map_loads(body, load)
    inner = {**at, lane: at[lane] + Var(_LANE)}
    return _widened(substitute(replaced, inner), lanes)


_LANE = "lane#"
"""Counts the lanes while a body is widened; no variable of a program is called so."""


def _widened(expr: Expr, lanes: int) -> Expr:
    """``expr`` in ``lanes`` lanes, its lane variable counting them."""
    if lanes == 1:
        return substitute(expr, {_LANE: const(0, Var(_LANE).dtype)})
    return _spread(_lanes_of(expr, lanes), lanes)


def _lanes_of(expr: Expr, lanes: int) -> Expr:
    """``expr`` widened where it depends on the lane, otherwise as it is."""
    if _LANE not in free_variables(expr):
        return expr
    if isinstance(expr, Var):
        return Ramp(const(0, expr.dtype), 1, lanes)
    base = _ramp(expr, lanes)
    if base is not None:
        return base
    return rebuild(expr, [_spread(_lanes_of(c, lanes), lanes) for c in expr.children])


def _ramp(expr: Expr, lanes: int) -> Expr | None:
    """An index that moves evenly with the lane as a Ramp; None for anything else."""
    form = linear(expr) if expr.dtype == Var(_LANE).dtype and not isinstance(expr, Load) else None
    if form is None or any(_LANE in free_variables(t) for t in form.terms if t != Var(_LANE)):
        return None
    stride = form.terms[Var(_LANE)]
    return Ramp((form - Linear({Var(_LANE): stride})).expr, stride, lanes)


def _spread(expr: Expr, lanes: int) -> Expr:
    return expr if expr.lanes == lanes else Broadcast(expr, lanes)


@dataclass(frozen=True, slots=True)
class Read:
    """A load of a body and the condition under which it happens (None: always), both on the stage's axes."""

    load: Load
    guard: Expr | None


def reads_of(body: Expr) -> tuple[Read, ...]:
    """The distinct guarded loads of ``body``, in the order in which they are met: what can be taken into registers
    before anything is computed. Loads in the condition of a select count as any others."""
    return tuple(dict.fromkeys(_reads(body, ())))


def _reads(expr: Expr, guards: tuple[Expr, ...]) -> Iterator[Read]:
    match expr:
        case Select(condition=condition, then=then, otherwise=otherwise):
            yield from _reads(condition, guards)
            yield from _reads(then, (*guards, condition))
            yield from _reads(otherwise, (*guards, Unary(UnaryOp.NOT, condition)))
        case Load():
            for index in expr.indices:
                yield from _reads(index, guards)
            yield Read(expr, logical_and(*guards) if guards else None)
        case _:
            for child in expr.children:
                yield from _reads(child, guards)


def with_reads(body: Expr, values: Mapping[Read, Expr]) -> Expr:
    """``body`` with each guarded load (as ``reads_of`` tells them apart) replaced by its value; others stay. The values
    must be defined wherever ``body`` is evaluated on a lane that uses them."""
    return _with_reads(body, (), values)


def _with_reads(expr: Expr, guards: tuple[Expr, ...], values: Mapping[Read, Expr]) -> Expr:
    match expr:
        case Select(condition=condition, then=then, otherwise=otherwise):
            return Select(
                _with_reads(condition, guards, values),
                _with_reads(then, (*guards, condition), values),
                _with_reads(otherwise, (*guards, Unary(UnaryOp.NOT, condition)), values),
            )
        case Load():
            return values.get(Read(expr, logical_and(*guards) if guards else None), expr)
    return rebuild(expr, [_with_reads(child, guards, values) for child in expr.children])
