"""Writes the body of a stage as an expression of a kernel: its axes become indices, and its loads may come from
registers."""

from collections.abc import Callable, Mapping

from ...ir.expr import Broadcast, Expr, Load, Ramp, Var, const, rebuild
from ...ir.linear_form import linear_form
from ...ir.rewrite import free_variables, map_loads, substitute

LoadReplacement = Callable[[Load], Expr]
"""What replaces a load of a body. It is given the load as the body has it, on the axes of the stage."""


def scalar_at(body: Expr, at: Mapping[str, Expr], load: LoadReplacement | None = None) -> Expr:
    """``body`` at the point ``at`` (axis name -> scalar index expression), as a scalar expression.

    ``load`` replaces each load, for example by a load from registers. By default a load stays, and its indices are
    taken at the point like everything else. The replacement may use axes of the stage, which are substituted in it too,
    and variables of the kernel.
    """
    return substitute(body if load is None else map_loads(body, load), at)


def vector_at(body: Expr, at: Mapping[str, Expr], lane: str, lanes: int, load: LoadReplacement | None = None) -> Expr:
    """``body`` at ``lanes`` neighbouring points, as a vector expression: axis ``lane`` begins at its index in ``at``,
    the other axes stay.

    It equals a VECTORIZED loop around ``scalar_at``. Loads that depend on the axis become vectors (contiguous ones have
    a Ramp of stride 1); the others are done once and broadcast.
    """
    replaced = body if load is None else map_loads(body, load)
    inner = {**at, lane: at[lane] + Var(_LANE)}
    return _widened(substitute(replaced, inner), lanes)


_LANE = "lane#"
"""The variable that counts the lanes while a body is widened; no variable of a kernel has this name."""


def _widened(expr: Expr, lanes: int) -> Expr:
    """``expr`` as a vector of ``lanes`` lanes, in which the lane variable has the number of the lane."""
    if lanes == 1:
        return substitute(expr, {_LANE: const(0, Var(_LANE).dtype)})
    return _broadcast(_widened_if_needed(expr, lanes), lanes)


def _widened_if_needed(expr: Expr, lanes: int) -> Expr:
    """``expr`` widened where it depends on the lane, otherwise as it is."""
    if _LANE not in free_variables(expr):
        return expr
    if isinstance(expr, Var):
        return Ramp(const(0, expr.dtype), 1, lanes)
    base = _ramp(expr, lanes)
    if base is not None:
        return base
    return rebuild(expr, [_broadcast(_widened_if_needed(c, lanes), lanes) for c in expr.children])


def _ramp(expr: Expr, lanes: int) -> Expr | None:
    """Return an index that grows by the same stride from lane to lane, as a Ramp; None for anything else."""
    form = linear_form(expr) if expr.dtype == Var(_LANE).dtype and not isinstance(expr, Load) else None
    if form is None or any(_LANE in free_variables(t) for t in form.terms if t != Var(_LANE)):
        return None
    return Ramp(form.without((Var(_LANE),)).to_expr(), form.coefficient(_LANE), lanes)


def _broadcast(expr: Expr, lanes: int) -> Expr:
    return expr if expr.lanes == lanes else Broadcast(expr, lanes)
