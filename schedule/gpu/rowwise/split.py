"""Few long rows, in parts, by several launches (sketch ``cuda_rowwise_split``).

    total[i] = sum over j, k of X[i, j, k]    ->    partial[i, j] = sum over k of X[i, j, k]
    Y[i, j, k] = X[i, j, k] / total[i]              total[i] = sum over j of partial[i, j]
                                                    Y[i, j, k] = X[i, j, k] / total[i]

A row of ``cuda_rowwise`` has one CTA, or the CTAs of one cluster, so that a sum of everything leaves most of a device
idle. Here a launch reduces parts of rows, which are the many rows of a problem of their own, and a second one joins
them. Each reduction has two such launches, and what is computed from whole rows has another one; outputs that read no
reduction are written by the first one. Reductions share their launches where none reads what another one gives, and two
also where the second one of a row follows from those of its parts (``_Shared``), as in a softmax. The knobs are those
of the launches that read rows.

Parts end where an axis does. A row of a single axis is cut into equal parts. If its length has no fitting divisor, the
last part overlaps the one before; rows of which elements are computed have such a divisor. Rows of odd segments are
split however many there are, since parts that are whole segments have wide vectors. Parts are joined in a fixed
order, so that results are the same in every run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, prod

import numpy as np

from ....core.dtypes import float32, float64, int32
from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer
from ....ir.expr import WARP_LANES, Binary, Expr, Load, Select, Unary, UnaryOp, Var, const, maximum, rebuild
from ....ir.rewrite import loads_of, map_loads, substitute
from ....ir.stmt import Kernel, seq
from ....te.workload import Reducer, Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.row_axes import column_axis, row_axis
from ...problems.rowwise import ComputedTensor, ReducedTensor, RowwiseProblem, rowwise_problem
from ...sketch import Peaks
from ...space.columns import Bools, Columns, Derived, Floats, columns_of_setting
from ...space.constraint import Constraint
from ...space.knob import Knob
from ...tile.names import NameSupply
from ...tile_sketch import Plan, TileSketch
from ..peaks import gpu_peaks
from ..reduction_prior import KEPT_IN_L2_BYTES
from .kernel import launch_rows
from .sizes import RowStorage, RowwiseSizes
from .space import LONG_ROW_BYTES, QUANTITIES, RowwisePlan, vector_widths

JOINED, WRITTEN = "join_parts", "write_parts"
"""The launches that join parts, and the one that computes elements, have these names."""
PART, SHORTEST, LONGEST = 8192, 512, 32768
"""A part has about so many elements; where an axis is cut, at least and at most so many."""
MOST_ROWS = 64
"""With more rows than these, clusters keep a device busy."""
WRITING = 1.25
"""How many times as long it takes where elements are computed: a softmax of 16x1048576 takes an H200 28.4 us, one of
32x262144 15.8 us, and without this the estimates are 22.8 and 13.2 us."""


@dataclass(frozen=True)
class Step:
    """One launch: its ``name``, and the plan of its problem. ``joins``: it joins parts."""

    name: str
    plan: RowwisePlan
    joins: bool

    def sizes(self, setting: Mapping[str, KnobValue]) -> RowwiseSizes[int]:
        """Return the sizes of the launch in a setting of the knobs, which those that join parts do not follow."""
        found: RowwiseSizes[int] = self.plan.sizes_of(self.joining if self.joins else setting)
        return found

    @cached_property
    def joining(self) -> Mapping[str, KnobValue]:
        """As many threads as a row of parts has vectors for, which read it once."""
        knobs = {knob.name: knob.values for knob in self.plan.knobs}
        threads = int(max(knobs["threads_per_row"]))
        chosen = {"threads_per_row": threads, "rows_per_cta": max(1, WARP_LANES // threads)}
        return {**{name: v[0] for name, v in knobs.items()}, **chosen, "row_storage": RowStorage.GLOBAL.text}


@dataclass(frozen=True)
class SplitPlan(Plan):
    """``steps``: the launches, the first of which reduces parts. ``between``: what they leave for one another."""

    workload: Workload
    steps: tuple[Step, ...]
    between: tuple[Buffer, ...]

    @property
    def _parts(self) -> RowwisePlan:
        return self.steps[0].plan

    @property
    def knobs(self) -> tuple[Knob, ...]:
        return self._parts.knobs

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(c for step in self.steps if not step.joins for c in step.plan.constraints)

    def promising(self, columns: Columns, peaks: Peaks) -> Bools:
        return self._parts.promising(columns, peaks)

    def prior_seconds(self, columns: Columns, peaks: Peaks) -> Floats:
        seconds: Floats = np.zeros(len(columns))
        measured = gpu_peaks(self._parts.target, peaks)
        l2_bytes_per_second = measured.l2_bytes_per_cycle * measured.multiprocessors * measured.clock_hz
        saved = 1 / measured.memory_bytes_per_second - 1 / l2_bytes_per_second
        for number, step in enumerate(self.steps):
            plan, rows = step.plan, step.plan.problem
            if step.joins:
                setting = columns_of_setting(plan.knobs, step.joining)
                seconds = seconds + float(plan.prior_seconds(setting, peaks)[0])
                continue
            read = rows.row_count * rows.row_bytes
            seconds = seconds + plan.prior_seconds(columns, peaks)
            seconds = seconds - (saved * read if number and read <= KEPT_IN_L2_BYTES else 0.0)
        return seconds * (WRITING if self.steps[-1].name == WRITTEN else 1.0)

    def derive(self, columns: Columns) -> Derived:
        return self._parts.derive(columns)

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        w = self.workload
        launches = [launch_rows(w, s.plan.problem, s.sizes(setting), s.name) for s in self.steps]
        return Kernel(KERNEL_NAME, w.inputs, w.output_buffers, self.between, seq(*launches))


@dataclass(frozen=True)
class SplitProblem:
    """The problems of all launches, in their order: (name, problem, whether it joins parts). ``between``: the tensors
    that some write for others."""

    launches: tuple[tuple[str, RowwiseProblem, bool], ...]
    between: tuple[Buffer, ...]


def split_problem(p: RowwiseProblem, workload: Workload) -> SplitProblem | None:
    """``p`` in several launches. None where a row is too short to be cut, where something is broadcast along rows of a
    single axis, where rows of which elements are computed are read at another column, where outputs have other
    dimensions or rows begin elsewhere, where a position is reduced beside something else, and where elements are
    computed from rows that fit a cluster.

    What joins positions are two tensors: the best value of each part, and where it stands in the whole row.
    """
    shape = _cut(p.columns)
    if shape is None or p.dynamic or not p.reductions or p.row_offsets or p.gathered:
        return None
    if p.other_loads and p.elementwise_outputs:
        return None
    if p.broadcast_loads and len(p.columns) == 1:
        return None
    if any(c.order is not None or c.parts for c in p.elementwise_outputs):
        return None
    if len(p.reductions) > 1 and any(r.reducer.is_position for r in p.reductions):
        return None
    (outer, inner), names = (
        shape,
        NameSupply({b.name for b in (*workload.inputs, *(s.tensor for s in workload.stages))}),
    )
    is_exact = prod(outer) * prod(inner) == p.column_count
    if p.elementwise_outputs and not (is_exact and p.row_bytes >= LONG_ROW_BYTES):
        return None
    extent = p.column_count if len(p.columns) == 1 else 0
    of_part = replace(p, rows=(*p.rows, *outer), columns=inner, joined_extent=extent, reductions=())
    of_part = replace(of_part, elementwise_outputs=(), per_row_outputs=())
    broadcasts = dict.fromkeys(_of_part(p, of_part, load) for load in p.broadcast_loads)
    neighbours = dict.fromkeys(_of_part(p, of_part, load) for load in p.other_loads)
    of_part = replace(
        of_part,
        broadcast_loads=tuple(load for load in broadcasts if isinstance(load, Load)),
        other_loads=tuple(load for load in neighbours if isinstance(load, Load)),
    )
    launches: list[tuple[str, RowwiseProblem, bool]] = []
    between: list[Buffer] = []
    known = {b.name for b in workload.output_buffers}
    at_row = tuple(Var(row_axis(n)) for n in range(len(p.rows)))
    shared = _shared(p, of_part, is_exact=is_exact)
    groups = [p.reductions] if shared is not None else p.passes
    results = {r.tensor for r in p.reductions}
    depends = [any(load.buffer in results for load in loads_of(c.body)) for c in p.elementwise_outputs]
    outputs = [ComputedTensor(c.tensor, _of_part(p, of_part, c.body)) for c in p.elementwise_outputs]
    written_first = tuple(c for c, waits in zip(outputs, depends, strict=True) if not waits)
    written_last = tuple(c for c, waits in zip(outputs, depends, strict=True) if waits)
    for n, group in enumerate(groups):
        is_last = n == len(groups) - 1
        first, joined = _reduced_in_parts(p, of_part, group, shared, names)
        first = first if n else replace(first, elementwise_outputs=written_first)
        between += joined.row_inputs
        needed = not is_last or bool(written_last)
        found = tuple(ComputedTensor(r.tensor, Load(r.tensor, at_row)) for r in group if needed)
        between += [c.tensor for c in found if c.tensor.name not in known]
        done = {r.tensor for g in groups[: n + needed] for r in g}
        others = tuple(c for c in p.per_row_outputs if c.tensor not in done) if is_last else ()
        launches.append((_numbered(KERNEL_NAME, n), first, False))
        launches.append((_numbered(JOINED, n), replace(joined, per_row_outputs=(*found, *others)), True))
    if written_last:
        launches.append((WRITTEN, replace(of_part, elementwise_outputs=written_last), False))
    return SplitProblem(tuple(launches), tuple(between))


def _numbered(name: str, n: int) -> str:
    return f"{name}_{n}" if n else name


@dataclass(frozen=True)
class _Shared:
    """How two reductions share their launches, where the second one reads the result of the first one.

    ``in_part``: what the second one of a part reads instead, given that result of the part. ``joined``: what the second
    one adds up over parts, given both results of a part, and that of the first one of the row.
    """

    in_part: Callable[[Expr], Expr]
    joined: Callable[[Expr, Expr, Expr], Expr]


def _shared(p: RowwiseProblem, of_part: RowwiseProblem, *, is_exact: bool) -> _Shared | None:
    """Return how the reductions of ``p`` share their launches: a maximum with the sum of the exponentials of what is
    below it, and a sum with that of the squares of deviations from the mean. None for others."""
    if any(r.tensor.dtype != r.accumulation.accumulator_dtype for r in p.reductions):
        return None
    if p.has_moments and is_exact:
        return _shared_moments(p, of_part)
    if not p.has_exponentials:
        return None
    return _Shared(above_infinity, lambda t, s, whole: s * Unary(UnaryOp.EXP, above_infinity(t) - whole))


def above_infinity(t: Expr) -> Expr:
    """Return the greatest element ``t`` of a part, or a finite number where that is -inf: less than that the elements
    of the part are still -inf, and not NaN."""
    return maximum(t, const(-_GREATEST[t.dtype], t.dtype))


_GREATEST = {float32: float(np.finfo(np.float32).max), float64: float(np.finfo(np.float64).max)}


def _shared_moments(p: RowwiseProblem, of_part: RowwiseProblem) -> _Shared:
    """The squares of a row are those of its parts, and those of the deviations of their means from its own."""
    total, squares = p.reductions
    assert isinstance(squares.body, Binary) and isinstance(squares.body.a, Binary)
    mean, dtype = squares.body.a.b, total.tensor.dtype

    def of_whole(t: Expr) -> Expr:
        return t * const(p.column_count / of_part.column_count, dtype)

    def joined(t: Expr, s: Expr, whole: Expr) -> Expr:
        apart = _instead(mean, total.tensor, of_whole(t)) - _instead(mean, total.tensor, whole)
        return s + apart * apart * const(of_part.column_count, s.dtype)

    return _Shared(of_whole, joined)


def _reduced_in_parts(
    p: RowwiseProblem,
    of_part: RowwiseProblem,
    reductions: tuple[ReducedTensor, ...],
    shared: _Shared | None,
    names: NameSupply,
) -> tuple[RowwiseProblem, RowwiseProblem]:
    """Return the problems of the launch that reduces parts and of the one that joins them, which reads what the first
    one writes. Several ``reductions`` are ``shared``, or none of them reads what another one gives."""
    kept, outer, place = len(p.rows), of_part.rows[len(p.rows) :], _place_in_row(of_part, len(p.rows))
    parts, at_row = (tuple(Var(row_axis(n)) for n in range(rank)) for rank in (len(of_part.rows), kept))
    places = (*parts[:kept], *(Var(column_axis(d)) for d in range(len(outer))))
    written: list[Buffer] = []
    reduced: list[ReducedTensor] = []
    joined: list[ReducedTensor] = []
    for reduction in reductions:
        is_position, before = reduction.reducer.is_position, reductions[0].tensor
        partial = Buffer(names.fresh("partial"), of_part.rows, reduction.accumulation.accumulator_dtype)
        body, together = _of_part(p, of_part, reduction.body), Load(partial, places)
        value: Expr = together
        if shared is not None and reduced:
            body = _instead(body, before, shared.in_part(Load(written[0], parts)))
            value = shared.joined(Load(written[0], places), together, Load(before, at_row))
        if of_part.joined_extent and of_part.rows[-1] * of_part.column_count > of_part.joined_extent:
            # The last part has columns of the part before. Best values may be found twice; others count as identities.
            if reduction.reducer in _COUNTING:
                identity = const(int(reduction.reducer is Reducer.PROD), body.dtype)
                body = Select(place >= Var(row_axis(kept)) * of_part.column_count, body, identity)
        written.append(partial)
        if is_position:
            at = Buffer(names.fresh("partial_position"), of_part.rows, int32)
            written.append(at)
            reduced.append(ReducedTensor(at, reduction.reducer, body, place, partial))
            joined.append(replace(reduction, body=value, position=Load(at, places)))
        else:
            reduced.append(ReducedTensor(partial, reduction.reducer, body))
            joined.append(replace(reduction, body=value))
    outputs = tuple(ComputedTensor(tensor, Load(tensor, parts)) for tensor in written)
    first = replace(of_part, reductions=tuple(reduced), per_row_outputs=outputs)
    second = replace(p, columns=outer, row_inputs=tuple(written), order=(), reductions=tuple(joined))
    second = replace(second, elementwise_outputs=(), broadcast_loads=(), other_loads=())
    return first, second


def _instead(body: Expr, tensor: Buffer, value: Expr) -> Expr:
    """``body`` with ``value`` instead of what it reads of ``tensor``."""
    return map_loads(body, lambda load: value if load.buffer == tensor else load)


def _place_in_row(of_part: RowwiseProblem, kept: int) -> Expr:
    """Return the column of the whole row, on the axes of a part; of several columns the last one."""
    own = Var(column_axis(len(of_part.columns) - 1))
    return of_part.part_begin(Var(row_axis(kept))) + own if of_part.joined_extent else own


def _of_part(p: RowwiseProblem, of_part: RowwiseProblem, body: Expr) -> Expr:
    """Return a body of ``p`` on the axes of its parts. Row inputs are read at the part's own columns."""
    kept = len(p.rows)
    if not of_part.joined_extent:
        places = [*(Var(row_axis(n)) for n in range(kept, len(of_part.rows)))]
        places += [Var(column_axis(d)) for d in range(len(of_part.columns))]
        return substitute(body, {column_axis(d): place for d, place in enumerate(places)})
    column, place = Var(column_axis(0)), _place_in_row(of_part, kept)

    def at_place(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in p.row_inputs and e.indices == p.own_indices:
            return e
        if e == column:
            return place
        return rebuild(e, [at_place(c) for c in e.children]) if e.children else e

    return at_place(body)


_COUNTING = (Reducer.SUM, Reducer.PROD)
"""Reducers to which it matters how often a value is there."""
Extents = tuple[int, ...]


def _cut(columns: Extents) -> tuple[Extents, Extents] | None:
    """Return the extents of the parts of a row, and of what a part has. A row of a single axis without a fitting
    divisor has parts of an odd length, whose vectors may begin anywhere in memory (see ``sizes``)."""
    found: list[tuple[Extents, Extents]] = [(columns[:d], columns[d:]) for d in range(1, len(columns))]
    if len(columns) == 1:
        lengths = range(SHORTEST, min(LONGEST, columns[0] // 2) + 1)
        found = [((columns[0] // n,), (n,)) for n in lengths if columns[0] % n == 0]
        if not found and columns[0] >= 2 * PART:
            found = [((-(-columns[0] // (PART - 1)),), (PART - 1,))]
    found = [(outer, inner) for outer, inner in found if prod(outer) > 1]
    return min(found, key=lambda both: abs(log(prod(both[1]) / PART)), default=None)


def _plan(workload: Workload, target: Target) -> SplitPlan | None:
    problem = rowwise_problem(workload, reads_elsewhere=True)
    found = None if problem is None else split_problem(problem, workload)
    if problem is None or found is None:
        return None
    wider = max(vector_widths(found.launches[0][1])) > max(vector_widths(problem))
    if problem.row_count > MOST_ROWS and not (problem.order and wider):
        return None
    steps = (Step(name, RowwisePlan(workload, target, part), joins) for name, part, joins in found.launches)
    return SplitPlan(workload, tuple(steps), found.between)


CUDA_ROWWISE_SPLIT = TileSketch("cuda_rowwise_split", 2, QUANTITIES, _plan)
