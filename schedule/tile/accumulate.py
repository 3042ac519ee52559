"""The running result of a reduction, in registers."""

from collections.abc import Mapping, Sequence

from ...core.dtypes import INDEX
from ...ir.buffer import Buffer, Scope
from ...ir.build import Writer
from ...ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Logic,
    LogicOp,
    Select,
    index,
)
from ...te.workload import Stage
from ..nest import COMBINE, identity
from .reduce import Team, team_reduce, team_scratch


class Accumulator:
    """One running result for each element of ``shape`` (none: a single one), kept by every thread for itself.

    For a reduction to a position (argmax, argmin) it is the best value so far and where it stood; of equal values the
    first wins, however the points are shared out.
    """

    def __init__(self, w: Writer, stage: Stage, shape: Sequence[int], name: str) -> None:
        assert stage.reducer is not None
        self._w = w
        self._op = COMBINE[stage.reducer.extreme]
        self._axis = stage.reduce_axes[0].name
        self._dtype = stage.body.dtype
        self._tensor = stage.tensor.dtype
        self._name = name
        self._value = w.allocate(name, tuple(shape), self._dtype, Scope.REGISTER)
        self._place: Buffer | None = None
        if stage.reducer.is_position:
            self._place = w.allocate(f"{name}_at", tuple(shape), INDEX, Scope.REGISTER)

    def start(self, at: Sequence[Expr]) -> None:
        """Nothing combined yet."""
        at = tuple(at)
        self._w.store(self._value, at, identity(self._op, self._dtype))
        if self._place is not None:
            self._w.store(self._place, at, index(_NOWHERE))

    def add(self, at: Sequence[Expr], value: Expr, values: Mapping[str, Expr]) -> None:
        """Combine with ``value``, the point where the axes have ``values``."""
        at = tuple(at)
        if self._place is None:
            self._w.store(self._value, at, Binary(self._op, Load(self._value, at), value))
            return
        held = [Load(self._value, at), Load(self._place, at)]
        best, place = self._combine(held, [value, values[self._axis]])
        self._w.store(self._place, at, place)  # before the value that decides it
        self._w.store(self._value, at, best)

    def across(self, team: Team) -> None:
        """Combine the results of the team's threads; all of them have it afterwards. Of a single element only."""
        dtypes = [self._dtype] if self._place is None else [self._dtype, INDEX]
        scratch = team_scratch(self._w, self._name, team, dtypes)
        values = [self._value] if self._place is None else [self._value, self._place]
        team_reduce(self._w, self._name, team, values, self._combine, scratch)

    def value(self, at: Sequence[Expr]) -> Expr:
        """The result, of the reduced tensor's dtype."""
        at = tuple(at)
        if self._place is None:
            return Load(self._value, at)
        place = Load(self._place, at)
        return place if self._tensor == INDEX else Cast(place, self._tensor)

    def _combine(self, a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
        """Of two partial results what they make together; of two positions the better, of equals the first."""
        if self._place is None:
            return [Binary(self._op, a[0], b[0])]
        better = Compare(CompareOp.GT if self._op is BinaryOp.MAX else CompareOp.LT, b[0], a[0])
        tie = Logic(LogicOp.AND, Compare(CompareOp.EQ, b[0], a[0]), b[1] < a[1])
        return [Binary(self._op, a[0], b[0]), Select(Logic(LogicOp.OR, better, tie), b[1], a[1])]


_NOWHERE = (1 << 62) - 1
"""A position behind every other."""
