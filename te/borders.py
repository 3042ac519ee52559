"""Windows over images with a border of what stands in them (replicated, reflected, circular), as windows of which all
places but those in the border are next to each other:

    sum over r < 3 of X[min(max(y + r - 1, 0), 9)] * W[r]

    ->  sum over r < 3 of select(y + r - 1 >= 0 and y + r - 1 < 10, X[y + r - 1], X[min(max(y + r - 1, 0), 9)]) * W[r]

What is read in the border may be any function of the place (``te.places``).
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..ir.expr import Expr, Load, Select, Var, logical_and
from ..ir.linear_form import LinearForm
from ..ir.rewrite import free_variables, map_loads
from .evaluate import Evaluator
from .functions import within
from .places import moved_place, window_place_of
from .region import box_bounds
from .workload import Stage

MOST_PLACES = 1 << 20
"""Places along a dimension that are looked at, at most."""


def with_borders(reduction: Stage, moving: Collection[str]) -> Stage:
    """Return a reduction with such a select for each load with a border. Its other side may be read wherever windows
    stand along the axes ``moving``, also beyond the last outputs."""
    box = {a.name: (0, a.extent - 1) for a in (*reduction.axes, *reduction.reduce_axes)}
    reduced = {a.name for a in reduction.reduce_axes}

    def bordered(load: Load) -> Expr:
        indices, others, inside = list[Expr](), list[Expr](), list[Expr]()
        for i, extent in zip(load.indices, load.buffer.shape, strict=True):
            place = window_place_of(i, reduced)
            offset = None if place is None else _offset_of(i, place, box_bounds(place, box), extent)
            if place is None:
                indices.append(i)
                others.append(i if free_variables(i).isdisjoint(moving) else within(i, extent))
            elif offset is None:
                return load
            else:
                indices.append((place + offset).to_expr())
                others.append(i)
                inside += [indices[-1] >= 0, indices[-1] < extent]
        return (
            Select(logical_and(*inside), replace(load, indices=tuple(indices)), replace(load, indices=tuple(others)))
            if inside
            else load
        )

    return replace(reduction, body=map_loads(reduction.body, bordered))


def _offset_of(i: Expr, place: LinearForm, ends: tuple[int, int], extent: int) -> int | None:
    """Return what an index adds to a place between ``ends``, where that lies in a dimension of ``extent``; None where
    it is not the same for all of these."""
    low, high = ends
    if high - low >= MOST_PLACES:
        return None
    places = np.arange(low, high + 1)
    read = np.broadcast_to(
        Evaluator({}, {"place": (low, high + 1)})(moved_place(i, place, LinearForm({Var("place"): 1}))), places.shape
    )
    offset = int(read[len(read) // 2] - places[len(read) // 2])
    inside = (places + offset >= 0) & (places + offset < extent)
    return offset if inside.any() and np.array_equal(read[inside], places[inside] + offset) else None
