"""Scatters, written as reductions of the terms whose index is that of the element:

    G[v, d] = sum over i of select(I[i] == v, D[i, d], 0)

Each term belongs to one element along ``v``, or to none where its index lies outside. So the gradient of an embedding
is written, and a histogram, a sum of segments, messages of a graph, and what experts give back to tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt

import numpy as np

from ..core.dtypes import INDEX
from ..ir.expr import Cast, Compare, CompareOp, Expr, Load, Var, index, logical_and, walk
from ..ir.rewrite import free_variables, loads_of, substitute
from .conditions import conditions_of_terms, identity, without_condition
from .evaluate import Array, Evaluator
from .join import COMBINE
from .workload import Axis, Stage

_LIMIT = 1 << 21
"""How many terms are evaluated at once."""


@dataclass(frozen=True)
class Scatter:
    """``stage`` reduces ``term`` to the elements whose indices along ``keys``, some of its axes, the expressions
    ``places`` give. These are of the index type, on axes of the reduction and on others of the stage. ``term`` is the
    body without the conditions, on all axes."""

    stage: Stage
    keys: tuple[Axis, ...]
    places: tuple[Expr, ...]
    term: Expr

    @cached_property
    def batch(self) -> tuple[Axis, ...]:
        """The axes of the stage of which each index has places of its own."""
        read = frozenset().union(*map(free_variables, self.places))
        return tuple(a for a in self.stage.axes if a.name in read)

    @cached_property
    def rest(self) -> tuple[Axis, ...]:
        """The other axes of the stage, along which all elements have the same terms."""
        return tuple(a for a in self.stage.axes if a not in self.keys and a not in self.batch)

    @property
    def key_count(self) -> int:
        return prod(a.extent for a in self.keys)

    @property
    def term_count(self) -> int:
        """How many terms there are for each index of the batch and of the rest."""
        return prod(a.extent for a in self.stage.reduce_axes)

    @property
    def usual_length(self) -> int:
        """How many terms hardly any element has more of, where all keys are as likely."""
        return usual_count(self.term_count, self.key_count)

    @property
    def is_inside(self) -> Expr:
        """Whether a term belongs to some element."""
        tests = [t for p, a in zip(self.places, self.keys, strict=True) for t in (p >= 0, p < a.extent)]
        return logical_and(*tests)

    @property
    def key(self) -> Expr:
        """The number of the element along ``keys``, in row-major order, that a term which is inside belongs to."""
        key: Expr = index(0)
        for place, axis in zip(self.places, self.keys, strict=True):
            key = place if key == index(0) else key * axis.extent + place
        return key


def usual_count(terms: int, places: int) -> int:
    """Return how many of ``terms`` hardly any of as many ``places``, which are as likely, has more of."""
    mean = terms / places
    return min(terms, round(mean + 6 * sqrt(mean) + 6))


def scatter_of(stage: Stage) -> Scatter | None:
    """Return a reduction as a scatter; None where it is none."""
    keys, places, term = list[Axis](), list[Expr](), stage.body
    for condition in conditions_of_terms(stage):
        found = _place_of(condition, stage)
        if found is not None and found[0] not in keys:
            keys.append(found[0])
            places.append(found[1])
            term = without_condition(term, condition)
    read = frozenset().union(*map(free_variables, places))
    if not keys or read & {a.name for a in keys} or not read & {a.name for a in stage.reduce_axes}:
        return None
    order = sorted(range(len(keys)), key=lambda n: stage.axes.index(keys[n]))
    return Scatter(stage, tuple(keys[n] for n in order), tuple(places[n] for n in order), term)


def scattered_to(stages: tuple[Stage, ...]) -> dict[str, int]:
    """Return the tensors that say where terms of scatters belong: the extent of the axis, the least of several."""
    found = dict[str, int]()
    for scatter in filter(None, map(scatter_of, stages)):
        for place, axis in zip(scatter.places, scatter.keys, strict=True):
            for load in (e for e in walk(place) if isinstance(e, Load)):
                found[load.buffer.name] = min(axis.extent, found.get(load.buffer.name, axis.extent))
    return found


def scatter(s: Scatter, tensors: Mapping[str, Array]) -> Array:
    """Return the stage's tensor: float64 for floats, exact for integers (modulo the dtype). Terms are sorted by their
    element."""
    stage = s.stage
    assert stage.reducer is not None
    dtype = np.dtype(np.float64) if stage.tensor.dtype.is_float else stage.tensor.dtype.numpy
    batches, rest = prod(a.extent for a in s.batch), [a.extent for a in s.rest]
    combine = COMBINE[stage.reducer]
    result = np.full((batches * s.key_count, *rest), identity(stage), dtype)
    term = substitute(s.term, {a.name: p for a, p in zip(s.keys, s.places, strict=True)})
    for part in _parts(s):
        shape = [stop - start for start, stop in part.values()]
        with np.errstate(all="ignore"):
            evaluate = Evaluator(tensors, part)
            inside = np.broadcast_to(evaluate(s.is_inside), shape).reshape(-1)
            number = np.broadcast_to(evaluate(s.key) + _batch_number(s, evaluate) * s.key_count, shape).reshape(-1)
            ranges = part | {a.name: (0, a.extent) for a in s.rest}
            value = np.broadcast_to(Evaluator(tensors, ranges)(term), [*shape, *rest]).reshape(-1, *rest)
            kept = np.flatnonzero(inside)
            kept = kept[np.argsort(number[kept], kind="stable")]
            if len(kept):
                elements, first = np.unique(number[kept], return_index=True)
                result[elements] = combine(result[elements], combine.reduceat(value[kept], first, axis=0, dtype=dtype))
    axes = [a.name for a in (*s.batch, *s.keys, *s.rest)]
    whole = result.reshape([a.extent for a in (*s.batch, *s.keys, *s.rest)])
    return np.ascontiguousarray(whole.transpose([axes.index(a.name) for a in stage.axes]))


def _batch_number(s: Scatter, evaluate: Evaluator) -> Array:
    number: Expr = index(0)
    for axis in s.batch:
        number = number * axis.extent + Var(axis.name)
    return evaluate(number)


def _parts(s: Scatter) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the ranges of the axes of batch and reduction, of about ``_LIMIT`` terms each."""
    whole = {a.name: (0, a.extent) for a in (*s.batch, *s.stage.reduce_axes)}
    longest = max((*s.batch, *s.stage.reduce_axes), key=lambda a: a.extent)
    points = prod(a.extent for a in (*s.batch, *s.stage.reduce_axes, *s.rest))
    step = max(1, _LIMIT * longest.extent // points)
    for start in range(0, longest.extent, step):
        yield {**whole, longest.name: (start, min(start + step, longest.extent))}


def _place_of(condition: Expr, stage: Stage) -> tuple[Axis, Expr] | None:
    """Return the axis of the stage that a condition equates with a loaded integer, and that; None where it says
    anything else."""
    if not isinstance(condition, Compare) or condition.op is not CompareOp.EQ:
        return None
    for one, other in ((condition.a, condition.b), (condition.b, condition.a)):
        inner = one.value if isinstance(one, Cast) else one
        axis = next((a for a in stage.axes if inner == Var(a.name)), None)
        if axis is None or not one.dtype.is_integer or axis.extent - 1 > one.dtype.integer_range[1]:
            continue
        if loads_of(other) and axis.name not in free_variables(other):
            return axis, other if other.dtype == INDEX else Cast(other, INDEX)
    return None


def with_usual_terms(stage: Stage) -> tuple[Stage, int]:
    """Return a reduction without the conditions of a scatter, and how many of its terms an element has at most, almost
    always."""
    found = scatter_of(stage)
    if found is None:
        return stage, prod(a.extent for a in stage.reduce_axes)
    return replace(stage, body=found.term), found.usual_length
