"""Workloads that reduce over axes in front of the last ones: elements next to each other go to different results.

    total[o, j] = sum over k of X[o, k, j]
    Y[o, j] = total[o, j] * B[j]

Here o is an outer axis, k is a reduced axis and j is a column axis. An output may also have an element for each element
of X, as in a norm over the channels of an image:

    Z[o, k, j] = X[o, k, j] / total[o, j]

A reduction may read others before it, as that of the squares of deviations from a mean, and it may take several columns
next to each other together, as a norm over groups of channels that stand last:

    total[o, g] = sum over k, c of X[o, k, g, c]
    square[o, g] = sum over k, c of (X[o, k, g, c] - total[o, g] / n) * (X[o, k, g, c] - total[o, g] / n)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load, Var, walk
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import loads_of, substitute
from ...te.inline import inline_stages
from ...te.squeeze import squeezed
from ...te.workload import Stage, Workload
from .gemm import skinny_gemm_of
from .row_axes import column_axis
from .row_places import is_below, variable_forms
from .rowwise import ComputedTensor, ReducedTensor, inlined_into_readers


@dataclass(frozen=True, slots=True)
class ColumnwiseProblem:
    """A workload as reductions over leading axes.

    ``outer``, ``reduced`` and ``columns`` are the extents of the axes. Bodies call these axes ``outer_axis(n)``,
    ``reduced_axis(n)`` and ``column_axis(n)``. ``inputs`` are read at exactly (outer, reduced, columns). The last index
    of ``column_loads`` is the last column axis, and no reduced axis is among the others, so that all rows of a column
    share what they read. ``outputs`` are computed from what was reduced for their own element.
    ``elementwise_outputs`` have an element at (outer, reduced, columns), and read inputs there. ``members``: how many
    of the last column axes reductions take together with the reduced axes, so that there is a result for each element
    of the other column axes. A reduction reads results of others before it, for its own element, where ``is_chained``.
    """

    outer: tuple[int, ...]
    reduced: tuple[int, ...]
    columns: tuple[int, ...]
    inputs: tuple[Buffer, ...]
    reductions: tuple[ReducedTensor, ...]
    outputs: tuple[ComputedTensor, ...]
    elementwise_outputs: tuple[ComputedTensor, ...] = ()
    column_loads: tuple[Load, ...] = ()
    members: int = 0
    is_chained: bool = False
    other_loads: tuple[Load, ...] = ()

    @property
    def is_dependent(self) -> bool:
        """Whether it has what ``columnwise_problem`` has not."""
        return bool(self.members or self.is_chained or self.other_loads)

    def is_element(self, load: Load) -> bool:
        """Return whether a load reads a tensor at (outer, reduced, columns)."""
        axes = ((outer_axis, self.outer), (reduced_axis, self.reduced), (column_axis, self.columns))
        own = variable_forms([name(n) for name, extents in axes for n in range(len(extents))])
        return load.mask is None and [affine_form(i) for i in load.indices] == own

    def is_contiguous(self, load: Load) -> bool:
        """Return whether a load reads what is contiguous along the last column axis."""
        return _is_contiguous(load, column_axis(len(self.columns) - 1), self.columns[-1])

    @property
    def result_axes(self) -> tuple[int, ...]:
        """The extents of the column axes that results have."""
        return self.columns[: len(self.columns) - self.members]

    @property
    def member_count(self) -> int:
        """How many columns next to each other are reduced together."""
        return prod(self.columns[len(self.columns) - self.members :])

    @property
    def outer_count(self) -> int:
        return prod(self.outer)

    @property
    def reduced_count(self) -> int:
        return prod(self.reduced)

    @property
    def column_count(self) -> int:
        return prod(self.columns)

    @property
    def mapped_outputs(self) -> tuple[ComputedTensor, ...]:
        """The elementwise outputs that read no result of a reduction."""
        results = {r.tensor for r in self.reductions}
        return tuple(c for c in self.elementwise_outputs if all(x.buffer not in results for x in loads_of(c.body)))

    @property
    def later_outputs(self) -> tuple[ComputedTensor, ...]:
        """The elementwise outputs that read what was reduced."""
        mapped = self.mapped_outputs
        return tuple(c for c in self.elementwise_outputs if c not in mapped)

    @property
    def read_bytes(self) -> int:
        """How many bytes of the inputs belong to one element."""
        return sum(b.dtype.bytes for b in self.inputs)

    @property
    def written_bytes(self) -> int:
        """How many bytes of the elementwise outputs belong to one element."""
        return sum(c.tensor.dtype.bytes for c in self.elementwise_outputs)

    @property
    def state_bytes(self) -> int:
        """How many bytes the states of all reductions have, for one result."""
        return sum(d.bytes for r in self.reductions for d in r.accumulation.state_dtypes)


_WIDEST_VECTOR = 16
"""A vector has so many elements at most."""


def outer_axis(n: int) -> str:
    """Return the name of an outer axis in the bodies of a problem. No tensor has such a name."""
    return f"outer#{n}"


def reduced_axis(n: int) -> str:
    """Return the name of a reduced axis in the bodies of a problem."""
    return f"{_REDUCED_AXIS}{n}"


_REDUCED_AXIS = "reduced#"


def columnwise_problem(workload: Workload) -> ColumnwiseProblem | None:
    """Return the workload as reductions over leading axes that do not read each other, each of single columns, without
    other loads, or None where it is something else."""
    problem = dependent_columnwise_problem(workload)
    return None if problem is None or problem.is_dependent else problem


@lru_cache(maxsize=64)  # sketches of columns and of windows ask it of a workload
def dependent_columnwise_problem(workload: Workload) -> ColumnwiseProblem | None:
    """Return the workload as reductions over leading axes that may read those before them, with members and other loads
    if it has them, or None where it is something else. What is no product of one row may be such work only as its
    tensors are without dimensions of one element, as a batch of such products is. The problem has them so."""
    found = _dependent_problem(workload)
    if found is not None or workload.dynamic:
        return found
    found = _dependent_problem(squeezed(workload))
    return found if found is not None and skinny_gemm_of(workload) is None else None


def _dependent_problem(workload: Workload) -> ColumnwiseProblem | None:
    stages = inlined_into_readers(inline_stages(workload))
    first = next((s for s in stages or () if s.reducer is not None), None)
    order = None if first is None else _axis_order_of(first)
    if not stages or first is None or order is None:
        return None
    outer, kept = order.outer, tuple(a.extent for a in first.axes)
    shape = order.extents_of(first)
    reductions: list[ReducedTensor] = []
    outputs: list[ComputedTensor] = []
    elementwise: list[ComputedTensor] = []
    for stage in stages:
        extents = tuple(a.extent for a in stage.axes)
        if stage.reducer is None and extents == tuple(e for part in shape for e in part):
            elementwise.append(ComputedTensor(stage.tensor, _on_elements(stage, outer, len(shape[1]))))
            continue
        own = order if stage.reducer is None else _axis_order_of(stage)
        if extents != kept or own is None or (stage.reducer is not None and own.extents_of(stage) != shape):
            return None
        body = _on_problem_axes(stage, own)
        if stage.reducer is not None:
            if stage.reducer.is_position and [*own.rows, *own.members] != [a.name for a in stage.reduce_axes]:
                return None
            reductions.append(ReducedTensor(stage.tensor, stage.reducer, body))
            if stage.name in workload.outputs:
                element = Load(stage.tensor, _kept_variables(outer, len(kept) - outer))
                outputs.append(ComputedTensor(stage.tensor, element))
        else:
            outputs.append(ComputedTensor(stage.tensor, body))
    tensors = (tuple(reductions), tuple(outputs), tuple(elementwise))
    return _with_inputs(ColumnwiseProblem(*shape, (), *tensors, members=len(order.members)))


@dataclass(frozen=True, slots=True)
class _AxisOrder:
    """In which order the whole input has the axes of a reduction: ``outer`` of the kept ones, the reduced ``rows``, the
    other kept ones, and the reduced ``members``."""

    outer: int
    rows: tuple[str, ...]
    members: tuple[str, ...]

    def extents_of(self, stage: Stage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the extents of the outer axes, the reduced axes and the column axes."""
        extent = {a.name: a.extent for a in stage.reduce_axes}
        kept = tuple(a.extent for a in stage.axes)
        columns = (*kept[self.outer :], *(extent[n] for n in self.members))
        return kept[: self.outer], tuple(extent[n] for n in self.rows), columns


def _axis_order_of(stage: Stage) -> _AxisOrder | None:
    """Return the order by the first load that reads the whole input. None where no load has reduced axes together in
    front of at least one kept axis, and the others behind all kept ones."""
    kept, reduced = [a.name for a in stage.axes], [a.name for a in stage.reduce_axes]
    for load in loads_of(stage.body):
        forms = [affine_form(i) for i in load.indices]
        order = [n for f in forms for n in (*kept, *reduced) if f == LinearForm({Var(n): 1})]
        if len(order) != len(forms) or sorted(order) != sorted([*kept, *reduced]):
            continue
        outer = next((n for n, name in enumerate(order) if name in reduced), len(order))
        end = next((n for n in range(outer, len(order)) if order[n] in kept), len(order))
        rows, columns = tuple(order[outer:end]), order[end : end + len(kept) - outer]
        if rows and columns and order[:outer] + columns == kept:
            return _AxisOrder(outer, rows, tuple(order[end + len(columns) :]))
    return None


def _on_problem_axes(stage: Stage, order: _AxisOrder) -> Expr:
    """Return the body on the axes of the problem."""
    columns = len(stage.axes) - order.outer
    values = {a.name: v for a, v in zip(stage.axes, _kept_variables(order.outer, columns), strict=True)}
    rows = {name: Var(reduced_axis(n)) for n, name in enumerate(order.rows)}
    members = {name: Var(column_axis(columns + n)) for n, name in enumerate(order.members)}
    return substitute(stage.body, values | rows | members)


def _on_elements(stage: Stage, outer: int, reduced: int) -> Expr:
    """Return the body of a stage that has an element for each element of the inputs on the axes of the problem."""
    columns = range(len(stage.axes) - outer - reduced)
    names = [*map(outer_axis, range(outer)), *map(reduced_axis, range(reduced)), *map(column_axis, columns)]
    return substitute(stage.body, {a.name: Var(name) for a, name in zip(stage.axes, names, strict=True)})


def _kept_variables(outer: int, columns: int) -> tuple[Expr, ...]:
    return (*(Var(outer_axis(n)) for n in range(outer)), *(Var(column_axis(n)) for n in range(columns)))


def _with_inputs(problem: ColumnwiseProblem) -> ColumnwiseProblem | None:
    """Return the problem with its inputs, or None where a load is not allowed.

    A reduction may load an input at its own element, anything that does not depend on the columns, or on no more than
    the first column axes where the last one has whole vectors, column loads, such as the mean of its column, the result
    of a reduction before it for its own column, and anything else that is no result. An elementwise output may load
    these, too. Another output may load the result of a reduction for its own element, and anything that is no input.
    """
    outer = [outer_axis(n) for n in range(len(problem.outer))]
    columns = [column_axis(n) for n in range(len(problem.columns))]
    inputs: dict[str, Buffer] = {}
    column_loads: dict[Load, None] = {}
    other_loads: dict[Load, None] = {}
    results = {r.tensor.name for r in problem.reductions}
    of_column = variable_forms([*outer, *columns[: len(problem.result_axes)]])
    # a vector of whole rows of columns has one place along the other column axes
    varying = set(columns[-1:] if problem.columns[-1] % _WIDEST_VECTOR == 0 else columns)
    axes = ((outer_axis, problem.outer), (reduced_axis, problem.reduced), (column_axis, problem.columns))
    extents = {name(n): extent for name, own in axes for n, extent in enumerate(own)}

    def is_allowed(load: Load) -> bool:
        """Whether a load by a row is allowed; what it reads is noted."""
        forms = [affine_form(i) for i in load.indices]
        ends = zip(forms, load.buffer.shape, strict=True)
        if not all(f is None or is_below(f, extents, end) for f, end in ends):
            return False  # it is read under a condition alone, and elements and columns are read whole
        if problem.is_element(load):
            inputs[load.buffer.name] = load.buffer
        elif load.buffer.name in results:
            return False
        elif _is_column_load(load, columns, problem.columns[-1]):
            column_loads[load] = None
        elif any(f is None or set(f.variables) & varying for f in forms):
            other_loads[load] = None
        return True

    found, is_chained = set[str](), False
    for reduction in problem.reductions:
        loads = loads_of(reduction.body)
        chained = [e for e in loads if e.buffer.name in found and [affine_form(i) for i in e.indices] == of_column]
        is_chained |= bool(chained)
        if not all(is_allowed(e) for e in loads if e not in chained) or not any(e.buffer.name in inputs for e in loads):
            return None
        found.add(reduction.tensor.name)
    for output in problem.elementwise_outputs:
        for load in loads_of(output.body):
            own_column = [affine_form(i) for i in load.indices] == of_column
            if not (own_column if load.buffer.name in results else is_allowed(load)):
                return None
    for output in problem.outputs:
        for load in loads_of(output.body):
            own_element = [affine_form(i) for i in load.indices] == of_column
            if load.buffer.name in inputs or (load.buffer.name in results and not own_element):
                return None
    if any(load.buffer.name in inputs for load in column_loads):
        return None
    return replace(
        problem,
        inputs=tuple(inputs.values()),
        column_loads=tuple(column_loads),
        is_chained=is_chained,
        other_loads=tuple(other_loads),
    )


def _is_column_load(load: Load, columns: Sequence[str], extent: int) -> bool:
    """Return whether a load reads next to each other what columns next to each other need, the same for all rows.
    ``extent`` is that of the last column axis."""
    forms = [affine_form(i) for i in load.indices]
    plain = all(f is not None and not _has_reduced_axis(f) for f in forms)
    return plain and _is_contiguous(load, columns[-1], extent)


def _is_contiguous(load: Load, axis: str, extent: int) -> bool:
    """Return whether elements next to each other along the last column axis, of ``extent``, are so in memory."""
    if load.mask is not None or load.buffer.shape[-1:] != (extent,):
        return False
    *leading, last = (affine_form(i) for i in load.indices)
    plain = all(f is not None and axis not in f.variables for f in leading)
    return last == LinearForm({Var(axis): 1}) and plain


def _has_reduced_axis(form: LinearForm) -> bool:
    return any(name.startswith(_REDUCED_AXIS) for name in form.variables)


def has_reduced_axis(e: Expr) -> bool:
    """Return whether an expression depends on a reduced axis."""
    return any(isinstance(v, Var) and v.name.startswith(_REDUCED_AXIS) for v in walk(e))
