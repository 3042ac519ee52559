"""Bodies of stages inside tile programs: axes become index expressions, loads may come from registers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ir.expr import (
    Broadcast,
    Const,
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
    walk,
)
from ...ir.linear_form import linear_form
from ...ir.rewrite import free_variables, map_loads, substitute

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
    form = linear_form(expr) if expr.dtype == Var(_LANE).dtype and not isinstance(expr, Load) else None
    if form is None or any(_LANE in free_variables(e) for e in form.without((Var(_LANE),)).terms):
        return None
    return Ramp(form.without((Var(_LANE),)).to_expr(), form.coefficient(_LANE), lanes)


def _spread(expr: Expr, lanes: int) -> Expr:
    return expr if expr.lanes == lanes else Broadcast(expr, lanes)


@dataclass(frozen=True, slots=True)
class Read:
    """A load of a body, the condition on axes under which it happens (None: always), and what stands for it elsewhere
    (None: nothing asks), all on the stage's axes."""

    load: Load
    guard: Expr | None = None
    otherwise: Const | None = None


def reads_of(body: Expr) -> tuple[Read, ...]:
    """The distinct guarded loads of ``body``, in the order in which they are met: what can be taken into registers
    before anything is computed. A select between a load and a constant is one guarded read. Conditions on data do not
    count as guards: they keep no load in bounds."""
    found: dict[Read, None] = {}

    def note(read: Read, expr: Expr) -> Expr:
        found[read] = None
        return expr

    _visit(body, (), note)
    return tuple(found)


def with_reads(body: Expr, values: Mapping[Read, Expr]) -> Expr:
    """``body`` with each guarded read (as ``reads_of`` tells them apart) replaced by its value; others stay. A value
    must be defined where the guard holds, and be ``otherwise`` elsewhere if there is one."""
    return _visit(body, (), lambda read, expr: values.get(read, expr))


def _visit(expr: Expr, guards: tuple[Expr, ...], f: Callable[[Read, Expr], Expr]) -> Expr:
    """``expr`` with everything that is one guarded read replaced by ``f`` of it and the expression that it was."""
    match expr:
        case Select(condition=condition, then=Load() as load, otherwise=Const() as otherwise) if _on_axes(condition):
            return f(Read(load, logical_and(*guards, condition), otherwise), expr)
        case Select(condition=condition, then=then, otherwise=otherwise):
            below = _visit(condition, guards, f)
            if not _on_axes(condition):
                return rebuild(expr, [below, _visit(then, guards, f), _visit(otherwise, guards, f)])
            unless = Unary(UnaryOp.NOT, condition)
            children = [below, _visit(then, (*guards, condition), f), _visit(otherwise, (*guards, unless), f)]
            return rebuild(expr, children)
        case Load():
            return f(Read(expr, logical_and(*guards) if guards else None), expr)
    return rebuild(expr, [_visit(child, guards, f) for child in expr.children])


def _on_axes(condition: Expr) -> bool:
    return not any(isinstance(e, Load) for e in walk(condition))
