"""Writes the steps in which overlapping windows are reduced (``problems.window_steps``), in registers of a thread."""

from collections.abc import Callable

from ...core.dtypes import DType
from ...ir.buffer import MemoryScope
from ...ir.expr import Binary, BinaryOp, Expr, Load, index
from ..problems.window_steps import Part, WindowSteps
from ..tile.names import FreshNameWriter

Values = Callable[[int, Expr], Expr]
"""What is at a number and a lane."""


def reduce_parts(
    w: FreshNameWriter,
    steps: WindowSteps,
    combine: BinaryOp,
    position: Values,
    *,
    name: str,
    dtype: DType,
    lanes: int,
) -> Values:
    """Reduce windows of what ``position`` gives for a position and one of ``lanes`` neighbours. Parts are kept in a
    buffer of a name like ``name``. Return the value of a window by its number."""
    places = {part: n for n, (part, _, _) in enumerate(steps.steps)}
    parts = w.allocate(name, (len(places), lanes), dtype, MemoryScope.REGISTER)

    def of(part: Part, v: Expr) -> Expr:
        return Load(parts, (index(places[part]), v)) if part in places else position(part[0], v)

    for part, a, b in steps.steps:
        with w.vectorized("v", lanes) as v:
            w.store(parts, (index(places[part]), v), Binary(combine, of(a, v), of(b, v)))
    return lambda number, v: of(steps.windows[number], v)
