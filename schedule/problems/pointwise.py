"""Pointwise problems: outputs of one shape whose elements are computed from few elements of the inputs.

Chains of functions, row and column broadcasts, masked shifts and slices walk through the inputs in the order of the
outputs: threads load vectors. Others load each element alone, and store vectors: gathers, reversed axes, rows whose
length no vector divides, and small windows along the innermost axis, whose reduction becomes an expression of all its
points:

    y[i] = max over r < 3 of x[2 * i + r]    ->    y[i] = max(max(x[2 * i], x[2 * i + 1]), x[2 * i + 2])

The same is done with a few reductions of few elements, such as the greatest element of a window and its position.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from ...ir.expr import Expr, Load, Var, const, index, walk
from ...ir.rewrite import free_variables, loads_of, map_loads, substitute
from ...te.congruences import with_congruent_terms
from ...te.dynamic import row_extent
from ...te.functions import cast
from ...te.inline import inline_stages
from ...te.workload import Axis, Reducer, Stage, Workload
from ..tile.accumulation import Accumulation
from ..tile.delinearize import axis_indices
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from ..tile.register_loads import depends_on, without_unneeded_mask
from .columnwise import columnwise_problem
from .outputs import MAX_NODES, resolved_outputs, single_reduction
from .permute import permute_of
from .rowwise import RowwiseProblem, rowwise_problem
from .window import reduce_window_of

WIDEST_VECTOR = 16
"""Elements of the widest vector on any target."""
LONG_ROW = 32
"""Elements of a row that a warp has something to do with."""
LEAST_CONTIGUOUS_BYTES = 16
"""Contiguous bytes that a load must have along the innermost axis where its other axes are in another order."""
MOST_POINTS = 64
"""Points of a window at most: the loads of all of them are in registers."""
MOST_INTERLEAVED = 4
"""Elements of a pixel, at most: with more, tiles in shared memory are the only way to turn them."""
MOST_OF_SEVERAL = 16
"""Elements that several reductions read at most, or one that gives a position: with more, other kernels are faster."""
MOST_OF_SMALL_PRODUCT = 16
"""A product of matrices is small if each sum has so many terms at most, and so many sums share an element."""


@dataclass(frozen=True)
class Pointwise:
    """``stages``: the outputs; their bodies are on ``axes`` and compute the element at ``output_indices``. ``loads``:
    the masked loads of the bodies -> the same loads without the masks that nothing needs. ``scattered``: some load
    walks through its buffer in another order than through the outputs, so that each element is loaded alone.
    ``row``: the elements of a row of the outputs, where all their axes are a single one; else 0."""

    workload: Workload
    stages: tuple[Stage, ...]
    axes: tuple[Axis, ...]
    output_indices: tuple[Expr, ...]
    loads: Mapping[MaskedLoad, MaskedLoad]
    scattered: bool = False
    row: int = 0

    @property
    def elements(self) -> int:
        """How many elements each output has; at most, where the workload has a dynamic dimension."""
        return prod(a.extent for a in self.axes)

    @property
    def element_unit(self) -> int:
        """A number that divides how many elements each output has in a call."""
        dynamic = row_extent(self.workload)
        return self.elements if dynamic is None else self.elements // dynamic.most

    @property
    def dynamic(self) -> Expr | None:
        """The extent of the first dimension in a call, where that is dynamic."""
        dynamic = row_extent(self.workload)
        return None if dynamic is None else Var(dynamic.var)

    @property
    def lane_axis(self) -> Axis:
        """The innermost axis longer than 1: the outputs are contiguous along it."""
        return next((a for a in reversed(self.axes) if a.extent > 1), self.axes[-1] if self.axes else Axis("", 1))

    @property
    def distinct_loads(self) -> tuple[MaskedLoad, ...]:
        """The loads without repeats."""
        return tuple(dict.fromkeys(self.loads.values()))

    @property
    def vector_loads(self) -> tuple[MaskedLoad, ...]:
        """The distinct loads that differ along the innermost axis; the others load one element for a whole vector."""
        return tuple(r for r in self.distinct_loads if depends_on(r, self.lane_axis.name))

    @property
    def output_offset_load(self) -> Load:
        """The element of the first output that the point of ``axes`` computes."""
        return Load(self.stages[0].tensor, self.output_indices)


def pointwise_of(workload: Workload) -> Pointwise | None:
    """Return the pointwise problem that ``workload`` is; None where its outputs differ in shape, and where it is a
    problem of another class: where it reduces more than a small window, and where it permutes axes."""
    problem = on_own_axes(workload)
    if problem is None or problem.lane_axis.extent % WIDEST_VECTOR == 0 or resolved_outputs(workload) is None:
        return problem
    return replace(_flattened(problem), scattered=not _is_flat(problem))


@functools.lru_cache(maxsize=64)  # sketches of maps and of tiles ask it of a workload
def on_own_axes(workload: Workload) -> Pointwise | None:
    """Return the pointwise problem that ``workload`` is (see ``pointwise_of``) on the axes of its outputs, however
    short their rows are."""
    stages = resolved_outputs(workload)
    if stages is None:
        return _windows(workload)
    axes = stages[0].axes
    problem = _on_axes(workload, stages, axes, tuple(Var(a.name) for a in axes))
    scattered = not all(_in_output_order(r, problem) for r in problem.loads.values())
    if scattered and not _is_interleaved(problem) and permute_of(workload) is not None:
        return None
    return replace(problem, scattered=scattered)


def with_joined_rows(problem: Pointwise) -> Pointwise:
    """Return the same problem with short rows joined to longer ones: as many of the last axes are one as it takes until
    that is whole vectors of 16 bytes of each output, or has ``LONG_ROW`` elements."""
    unit = WIDEST_VECTOR // min(s.tensor.dtype.bytes for s in problem.stages)
    joined, extent = 1, problem.axes[-1].extent if problem.axes else LONG_ROW
    while joined < len(problem.axes) and extent % unit and extent < LONG_ROW:
        joined += 1
        extent *= problem.axes[-joined].extent
    if joined == 1:
        return problem
    kept, rest = problem.axes[:-joined], problem.axes[-joined:]
    row = Axis("row#", extent)
    at = axis_indices(Var(row.name), rest)
    stages = tuple(replace(s, body=substitute(s.body, at)) for s in problem.stages)
    indices = tuple(substitute(i, at) for i in problem.output_indices)
    return replace(_on_axes(problem.workload, stages, (*kept, row), indices), scattered=problem.scattered)


def _is_interleaved(problem: Pointwise) -> bool:
    """Return whether rows are as short as pixels, or every load reads neighbours of such rows: few elements of a line
    that a warp reads are none of its own."""
    lane = problem.lane_axis
    offsets = [flat_offset(m.load) for m in problem.loads]
    near = all(o is not None and abs(o.coefficient(lane.name)) <= MOST_INTERLEAVED for o in offsets)
    return near or lane.extent <= MOST_INTERLEAVED


def _windows(workload: Workload) -> Pointwise | None:
    """Return the problem of a workload that is one reduction over small windows, each point of which belongs to few
    outputs, and what is computed from it, or a few reductions of few elements. None where a sketch for reductions takes
    it."""
    found = single_reduction(workload)
    stages = _of_few_elements(workload) if found is None else _of_windows(*found)
    if stages is None or columnwise_problem(workload) is not None:
        return None
    window = reduce_window_of(workload)
    if window is not None and not window.has_border:
        return None
    rows = rowwise_problem(workload)
    if rows is not None and rows.is_plain and not rows.order and not _is_short(rows):
        return None
    axes = stages[0].axes
    return replace(_on_axes(workload, stages, axes, tuple(Var(a.name) for a in axes)), scattered=True)


def _is_short(rows: RowwiseProblem) -> bool:
    """Return whether rows have less than a vector of 16 bytes of each input."""
    return prod(rows.columns) * max((b.dtype.bytes for b in rows.row_inputs), default=1) < LEAST_CONTIGUOUS_BYTES


def _of_windows(reduction: Stage, outputs: Sequence[Stage]) -> tuple[Stage, ...] | None:
    """Return what is computed from a reduction over small windows, without the reduction."""
    reduction = with_congruent_terms(reduction, whole=True)
    if prod(a.extent for a in reduction.reduce_axes) > MOST_POINTS or _is_product(reduction):
        return None
    value = _of_all_points(reduction)
    stages = tuple(
        replace(s, body=map_loads(s.body, lambda load: value if load.buffer.name == reduction.name else load))
        for s in outputs
    )
    return None if any(n >= MAX_NODES for s in stages for n, _ in enumerate(walk(s.body))) else stages


def _of_few_elements(workload: Workload) -> tuple[Stage, ...] | None:
    """Return the outputs of a workload without its reductions, which all are of few elements of inputs."""
    inlined = inline_stages(workload)
    inputs = {b.name for b in workload.inputs}
    for s in (s for s in inlined.stages if s.reducer is not None):
        loads = {load for load in loads_of(s.body) if free_variables(load) & {a.name for a in s.reduce_axes}}
        many = prod(a.extent for a in s.reduce_axes) * max(1, len(loads)) > MOST_OF_SEVERAL
        if many or _is_product(s) or not {load.buffer.name for load in loads_of(s.body)} <= inputs:
            return None
    written = (s if s.reducer is None else Stage(s.tensor, s.axes, _of_all_points(s)) for s in inlined.stages)
    stages = resolved_outputs(replace(inlined, stages=tuple(written)))
    if stages is None or len({load for s in stages for load in loads_of(s.body)}) > MOST_OF_SEVERAL:
        return None
    return stages


def _is_product(reduction: Stage) -> bool:
    """Return whether a reduction is a product of matrices: no load depends on all axes, and either more than a few
    outputs share each of its elements or they are sums of more than a few."""
    kept = {a.name: a.extent for a in reduction.axes}
    read = [free_variables(load) for load in loads_of(reduction.body)]
    shared = min(prod(n for name, n in kept.items() if name not in names) for names in (*read, set[str]()))
    return shared > 1 and max(shared, prod(a.extent for a in reduction.reduce_axes)) > MOST_OF_SMALL_PRODUCT


def _of_all_points(reduction: Stage) -> Expr:
    """Return what a reduction computes, as an expression without reduced axes. The greatest and the least element of
    a window are those along its last axis of those of its columns, which windows beside each other share. The best
    value so far, which a position goes with, is an operation of two values: a choice would have all values before it
    twice."""
    assert reduction.reducer is not None
    how = Accumulation(reduction.reducer, reduction.body.dtype, reduction.tensor.dtype)
    best = replace(how, reducer=reduction.reducer.extreme)
    names = [a.name for a in reduction.reduce_axes]
    points = list(product(*(range(a.extent) for a in reduction.reduce_axes)))
    values = {p: substitute(reduction.body, {n: index(i) for n, i in zip(names, p, strict=True)}) for p in points}
    if reduction.reducer in (Reducer.MAX, Reducer.MIN):
        columns = dict[int, tuple[Expr, ...]]()
        for point, value in values.items():
            column = point[-1]
            begun = columns.get(column)
            columns[column] = how.accumulate(begun, value, index(0)) if begun else (cast(value, how.accumulator_dtype),)
        return how.result(functools.reduce(how.combine, columns.values()))
    state = how.identity
    for n, value in enumerate(values.values()):
        (_, *position), chosen = how.accumulate(state, value, index(n)), best.accumulate(state, value, index(n))
        state = (*chosen, *position)
    return how.result(state)


def _on_axes(
    workload: Workload, stages: tuple[Stage, ...], axes: tuple[Axis, ...], output_indices: tuple[Expr, ...]
) -> Pointwise:
    loads = dict.fromkeys(r for s in stages for r in masked_loads_of(s.body))
    return Pointwise(workload, stages, axes, output_indices, {r: without_unneeded_mask(r, axes) for r in loads})


def _is_flat(problem: Pointwise) -> bool:
    """Return whether every load has the offset of the output element, so that all axes may be treated as a single
    one."""
    whole = flat_offset(problem.output_offset_load)
    same = all(r.mask is None and flat_offset(r.load) == whole for r in problem.loads.values())
    values = (map_loads(s.body, lambda load: const(0, load.dtype)) for s in problem.stages)
    return same and not any(free_variables(v) for v in values)


def _flattened(problem: Pointwise) -> Pointwise:
    """Return the same problem on one axis. A vector may then reach from one row into the next, so that the length of
    the rows does not limit the width of vectors."""
    flat = Axis("flat#", problem.elements)
    at = axis_indices(Var(flat.name), problem.axes)
    stages = tuple(replace(s, body=substitute(s.body, at)) for s in problem.stages)
    flattened = _on_axes(problem.workload, stages, (flat,), tuple(at[a.name] for a in problem.axes))
    return replace(flattened, row=problem.lane_axis.extent)


def _in_output_order(masked: MaskedLoad, problem: Pointwise) -> bool:
    """Return whether a load walks through its buffer as the outputs are walked through: with stride 1 or 0 along the
    innermost axis, and with larger strides along outer axes. The outer strides may be in any order where enough
    elements are contiguous."""
    offset = flat_offset(masked.load)
    if offset is None or any(loads_of(i) for i in masked.load.indices):
        return False
    strides = [offset.coefficient(a.name) for a in problem.axes if a.extent > 1]
    if not strides:
        return True
    if strides[-1] not in (0, 1):
        return False
    moving = [s for s in strides if s]
    ordered = all(a > b for a, b in pairwise(moving))
    contiguous_bytes = problem.lane_axis.extent * masked.load.dtype.bytes
    return ordered or (strides[-1] == 1 and contiguous_bytes >= LEAST_CONTIGUOUS_BYTES)
