"""Reductions over ranges that are read from memory, such as the rows of a sparse matrix (CSR):

    Y[r] = sum over e < E of select(e >= P[r] and e < P[r + 1], V[e] * X[C[e]], 0)

A thread goes through its range alone. Loops have constant extents, so that those over whole pieces of the axis stand
around each other, and what lies behind the end of the range is skipped piece by piece::

    for a in range(side):  if begin + a * side**3 < end:
        for b in range(side):  if begin + (a * side + b) * side**2 < end:
            ...                                                              accumulate element begin + number
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from ...core.dtypes import INDEX
from ...ir.build import Writer
from ...ir.expr import Compare, CompareOp, Const, Expr, Select, Var, conjunction, index, maximum, minimum
from ...ir.rewrite import free_variables, loads_of, substitute
from ...te.functions import TURNED, cast, within
from ...te.workload import Axis, Stage
from .accumulation import Accumulation
from .masked_loads import conjuncts

LEVELS = 4
"""So many loops stand around each other."""
LEAST_EXTENT = 256
"""Axes with fewer elements are gone through whole."""


@dataclass(frozen=True, slots=True)
class ReducedRange:
    """The terms of ``stage`` along ``axis``, its only reduced one, are those from the greatest of ``begins`` to before
    the least of ``ends``; ``body`` is the value of one of them."""

    stage: Stage
    axis: Axis
    begins: tuple[Expr, ...]
    ends: tuple[Expr, ...]
    body: Expr

    @property
    def likely_terms(self) -> int:
        """How many terms a result has, if each belongs to one of them, and what it takes to find these."""
        names = set[str]().union(*(free_variables(e) for e in (*self.begins, *self.ends)))
        ranges = prod(a.extent for a in self.stage.axes if a.name in names)
        return min(self.axis.extent, -(-self.axis.extent // ranges) + LEVELS * _side(self.axis.extent, 1))


def range_of(stage: Stage) -> ReducedRange | None:
    """Return the range of a stage; None where no bound of it is read from memory."""
    body = stage.body
    if stage.reducer is None or len(stage.reduce_axes) != 1 or not isinstance(body, Select):
        return None
    (axis,) = stage.reduce_axes
    identity = Accumulation(stage.reducer, body.dtype, stage.tensor.dtype).identity[0]
    other = body.otherwise
    if stage.reducer.is_position or not isinstance(other, Const) or not isinstance(identity, Const):
        return None
    if other.value != identity.value or axis.extent < LEAST_EXTENT:
        return None
    begins: list[Expr] = []
    ends: list[Expr] = []
    others: list[Expr] = []
    for condition in conjuncts(body.condition):
        found = _bound(condition, axis.name)
        if found is None or not loads_of(found[0]):
            others.append(condition)
        else:
            (begins if found[1] else ends).append(found[0])
    if not begins and not ends:
        return None
    rest = conjunction(*others)
    value = body.then if rest is None else Select(rest, body.then, other)
    return ReducedRange(stage, axis, tuple(begins), tuple(ends), value)


def write_range(
    w: Writer,
    found: ReducedRange,
    values: Mapping[str, Expr],
    lane: Expr,
    threads: int,
    prefix: str,
    accumulate: Callable[[Mapping[str, Expr]], None],
) -> None:
    """Write loops over the terms of the result at ``values`` that thread ``lane`` of ``threads`` has."""
    begin: Expr = index(0)
    end: Expr = index(found.axis.extent)
    for expr in found.begins:
        begin = maximum(begin, substitute(expr, values))
    for expr in found.ends:
        end = minimum(end, substitute(expr, values))
    side = _side(found.axis.extent, threads)

    def write(level: int, before: Expr) -> None:
        piece = side ** (LEVELS - 1 - level) * threads
        with w.loop(f"{prefix}range_{level}", side) as n:
            first = before + n * piece
            place = first + lane if level == LEVELS - 1 else first
            with w.when(place < end):
                if level == LEVELS - 1:
                    accumulate({found.axis.name: within(place, found.axis.extent)})
                else:
                    write(level + 1, first)

    write(0, begin)


def _bound(condition: Expr, name: str) -> tuple[Expr, bool] | None:
    """Return a bound of the axis, and whether it is the first element (otherwise the end); None for anything else."""
    if not isinstance(condition, Compare):
        return None
    a, b, op = condition.a, condition.b, condition.op
    if b == Var(name):
        a, b, op = b, a, TURNED.get(op, op)
    if a != Var(name) or name in free_variables(b) or op not in TURNED:
        return None
    bound = cast(b, INDEX)
    return (bound + 1 if op in (CompareOp.GT, CompareOp.LE) else bound), op in (CompareOp.GT, CompareOp.GE)


def _side(extent: int, threads: int) -> int:
    """Return how many iterations each loop has, so that together they go through ``extent`` elements."""
    steps = -(-extent // threads)
    return next(n for n in range(1, steps + 1) if n**LEVELS >= steps)
