"""Few long rows, reduced by two launches (sketch ``cuda_rowwise_split``).

    total[i] = sum over j, k of X[i, j, k]    ->    partial[i, j] = sum over k of X[i, j, k]
                                                    total[i] = sum over j of partial[i, j]

A row of ``cuda_rowwise`` has one CTA, or the CTAs of one cluster, so that a sum of everything leaves most of a device
idle. Here the first launch reduces parts of rows, which are the many rows of a problem of their own, and the second
one joins them. The knobs are those of the first launch. Parts end where an axis does. A row of a single axis is cut
into equal parts. If its length has no fitting divisor, the last part overlaps the one before. Parts are joined in a
fixed order, so that results are the same in every run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, prod

import numpy as np
from numpy.typing import NDArray

from ....core.dtypes import int32
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.expr import WARP_LANES, Expr, Load, Select, Var, const, rebuild
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel, seq
from ....te.workload import Reducer, Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.rowwise import (
    ComputedTensor,
    ReducedTensor,
    RowwiseProblem,
    column_axis,
    row_axis,
    rowwise_problem,
)
from ...sketch import Peaks
from ...space.columns import Bools, Columns, columns_of_setting
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile.names import free_prefix
from ...tile_sketch import Plan, TileSketch
from .kernel import launch_rows
from .sizes import RowStorage, RowwiseSizes
from .space import QUANTITIES, RowwisePlan

JOINED = "join_parts"
"""The second launch has this name."""
PART, SHORTEST, LONGEST = 8192, 512, 32768
"""A part has about so many elements; where an axis is cut, at least and at most so many."""
MOST_ROWS = 64
"""With more rows than these, clusters keep a device busy."""


@dataclass(frozen=True)
class SplitPlan(Plan):
    """``parts``: the plan of the first launch. ``joined``: that of the second, which reads the ``partials``."""

    workload: Workload
    parts: RowwisePlan
    joined: RowwisePlan
    partials: tuple[Buffer, ...]

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return self.parts.knobs

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return self.parts.constraints

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return self.parts.promising(columns, peaks)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> NDArray[np.float64]:
        setting = columns_of_setting(self.joined.knobs, self._joined_setting)
        seconds: NDArray[np.float64] = self.parts.prior_seconds(columns, peaks)
        return seconds + float(self.joined.prior_seconds(setting, peaks)[0])

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        return self.parts.derive(columns)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        w = self.workload
        first = launch_rows(w, self.parts.problem, self.parts.sizes_of(setting))
        second = launch_rows(w, self.joined.problem, self._joined_sizes, JOINED)
        return Kernel(KERNEL_NAME, w.inputs, w.output_buffers, self.partials, seq(first, second))

    @cached_property
    def _joined_setting(self) -> Mapping[str, KnobValue]:
        """As many threads as a row of parts has vectors for, which read it once."""
        knobs = {knob.name: knob.values for knob in self.joined.knobs}
        threads = int(max(knobs["threads_per_row"]))
        chosen = {"threads_per_row": threads, "rows_per_cta": max(1, WARP_LANES // threads)}
        return {**{name: v[0] for name, v in knobs.items()}, **chosen, "row_storage": RowStorage.GLOBAL.text}

    @property
    def _joined_sizes(self) -> RowwiseSizes[int]:
        return self.joined.sizes_of(self._joined_setting)


def split_problem(p: RowwiseProblem, tensors: frozenset[str]) -> tuple[RowwiseProblem, RowwiseProblem] | None:
    """The problems of both launches, the second of which reads what the first one writes; None where a row is too
    short to be cut, where it is needed after it has been reduced, where more than one value is reduced, and where
    something is broadcast along rows. ``tensors``: names that are taken.

    What joins positions are two tensors: the best value of each part, and where it stands in the whole row.
    """
    shape = _cut(p.columns)
    if shape is None or len(p.reductions) != 1 or p.elementwise_outputs or p.broadcast_loads or p.dynamic:
        return None
    (outer, inner), (reduction,), kept = shape, p.reductions, len(p.rows)
    how, is_position = reduction.accumulation, reduction.reducer.is_position
    partial = Buffer(free_prefix("partial", tensors), (*p.rows, *outer), how.accumulator_dtype)
    at = Buffer(free_prefix("partial_position", tensors), partial.shape, int32)
    written = (partial, at) if is_position else (partial,)
    first = replace(p, rows=partial.shape, columns=inner, joined_extent=p.column_count if len(p.columns) == 1 else 0)
    body, position = _of_part(p, first, reduction)
    reduced = (
        ReducedTensor(at, reduction.reducer, body, position, partial)
        if is_position
        else ReducedTensor(partial, reduction.reducer, body)
    )
    parts = [Var(row_axis(n)) for n in range(len(partial.shape))]
    outputs = tuple(ComputedTensor(tensor, Load(tensor, tuple(parts))) for tensor in written)
    first = replace(first, reductions=(reduced,), per_row_outputs=outputs)
    places = (*parts[:kept], *(Var(column_axis(d)) for d in range(len(outer))))
    joined = replace(reduction, body=Load(partial, places), position=Load(at, places) if is_position else None)
    return first, replace(p, columns=outer, row_inputs=written, reductions=(joined,))


def _of_part(p: RowwiseProblem, first: RowwiseProblem, reduction: ReducedTensor) -> tuple[Expr, Expr]:
    """The body of ``reduction`` and the place in the whole row, on the axes of ``first``, the problem of parts of the
    rows of ``p``. A column that the last part shares with the one before has no effect there: best values may be
    found twice, and of others it has the identity."""
    kept, rows = len(p.rows), [Var(row_axis(n)) for n in range(len(first.rows))]
    columns = [Var(column_axis(d)) for d in range(len(first.columns))]
    if not first.joined_extent:
        places: list[Expr] = [*rows[kept:], *columns]
        return substitute(reduction.body, {column_axis(d): place for d, place in enumerate(places)}), columns[0]
    own, begin = p.row_inputs, first.part_begin(rows[-1])
    place = begin + columns[0]
    of_row = (*(Var(row_axis(n)) for n in range(kept)), Var(column_axis(0)))

    def at_place(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in own and e.indices == of_row:
            return e  # a row input, which is read at the part's own column
        if e == of_row[-1]:
            return place
        return rebuild(e, [at_place(c) for c in e.children]) if e.children else e

    body = at_place(reduction.body)
    if first.rows[-1] * first.column_count > first.joined_extent and reduction.reducer in _COUNTING:
        identity = const(int(reduction.reducer is Reducer.PROD), body.dtype)
        body = Select(place >= rows[-1] * first.column_count, body, identity)
    return body, place


_COUNTING = (Reducer.SUM, Reducer.PROD)
"""Reducers to which it matters how often a value is there."""
Extents = tuple[int, ...]


def _cut(columns: Extents) -> tuple[Extents, Extents] | None:
    """The extents of the parts of a row, and of what a part has. A row of a single axis without a fitting divisor has
    parts of an odd length, whose vectors may begin anywhere in memory (see ``sizes``)."""
    found: list[tuple[Extents, Extents]] = [(columns[:d], columns[d:]) for d in range(1, len(columns))]
    if len(columns) == 1:
        lengths = range(SHORTEST, min(LONGEST, columns[0] // 2) + 1)
        found = [((columns[0] // n,), (n,)) for n in lengths if columns[0] % n == 0]
        if not found and columns[0] >= 2 * PART:
            found = [((-(-columns[0] // (PART - 1)),), (PART - 1,))]
    found = [(outer, inner) for outer, inner in found if prod(outer) > 1]
    return min(found, key=lambda both: abs(log(prod(both[1]) / PART)), default=None)


def _plan(workload: Workload, target: Target) -> SplitPlan | None:
    problem = rowwise_problem(workload)
    if problem is None or problem.row_count > MOST_ROWS:
        return None
    names = frozenset(b.name for b in (*workload.inputs, *(s.tensor for s in workload.stages)))
    found = split_problem(problem, names)
    if found is None:
        return None
    parts, joined = (RowwisePlan(workload, target, p) for p in found)
    return SplitPlan(workload, parts, joined, joined.problem.row_inputs)


CUDA_ROWWISE_SPLIT = TileSketch("cuda_rowwise_split", 1, QUANTITIES, _plan)
