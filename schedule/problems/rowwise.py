"""Workloads that work on rows: reductions of each row, and outputs computed from the row and from what was reduced.

    total[i] = sum over k of X[i, k]
    Y[i, j] = X[i, j] - total[i] * G[j] + B[i]

Here i is a row axis, and j and k are the column axis. X is a row input, since it is read at its own row and column.
G is broadcast along the rows. B and total depend on the row alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod

from ...core.dtypes import float32, float64
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Const, Expr, Load, Ramp, Unary, UnaryOp, Var, index, minimum, walk
from ...ir.linear_form import LinearForm, affine_form
from ...ir.rewrite import free_variables, map_loads, substitute
from ...te.dynamic import row_extent
from ...te.inline import MAX_INLINED_NODES, inline_stages
from ...te.workload import Reducer, Stage, Workload
from ..tile.accumulation import Accumulation


@dataclass(frozen=True, slots=True)
class ReducedTensor:
    """``tensor[kept axes] = reducer of body over the reduced axes``.

    ``position``: what is kept of the best value, where the reducer gives a position; None: its column. ``best``: the
    tensor by whose name outputs read that best value.
    """

    tensor: Buffer
    reducer: Reducer
    body: Expr
    position: Expr | None = None
    best: Buffer | None = None

    @property
    def accumulation(self) -> Accumulation:
        """How values of the body are accumulated."""
        return Accumulation(self.reducer, self.body.dtype, self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """``tensor[axes] = body``, where nothing is reduced."""

    tensor: Buffer
    body: Expr


@dataclass(frozen=True, slots=True)
class RowwiseProblem:
    """A workload as work on rows.

    ``rows`` and ``columns`` are the extents of the axes. Bodies call these axes ``row_axis(n)`` and ``column_axis(n)``.
    ``row_inputs`` are read at exactly (rows, columns). The last indices of ``broadcast_loads`` are the columns, and
    their other indices are row axes or constants, so that many rows share what they read. Every other load depends on
    the row alone. A reduction reads only ``reductions`` that stand before it, and those at its own row.
    ``elementwise_outputs`` have row and column axes, ``per_row_outputs`` have row axes only. ``dynamic``: the extent of
    the first row axis in a call, where that is dynamic. ``joined_extent``: 0, or the extent of the last axis of the row
    inputs, where the last row axis and the column axis are this one axis, the parts of which are rows. The last part
    ends where the axis ends, so that it may have columns of the part before.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    row_inputs: tuple[Buffer, ...]
    broadcast_loads: tuple[Load, ...]
    reductions: tuple[ReducedTensor, ...]
    elementwise_outputs: tuple[ComputedTensor, ...]
    per_row_outputs: tuple[ComputedTensor, ...]
    dynamic: Expr | None = None
    joined_extent: int = 0

    def input_indices(self, rows: Sequence[Expr], columns: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where row inputs are read, at an index of each row axis and each column axis."""
        if not self.joined_extent:
            return (*rows, *columns)
        (column,), begin = columns, self.part_begin(rows[-1])
        if isinstance(column, Ramp):
            return (*rows[:-1], replace(column, base=begin + column.base))
        return (*rows[:-1], begin + column)

    @property
    def own_indices(self) -> tuple[Expr, ...]:
        """The indices at which bodies read row inputs. They call a column of a part of a joined axis ``column_axis``,
        too."""
        rows = len(self.rows) - (self.joined_extent > 0)
        axes = (*map(row_axis, range(rows)), *map(column_axis, range(len(self.columns))))
        return tuple(map(Var, axes))

    def part_begin(self, part: Expr) -> Expr:
        """Return where row number ``part`` along the last row axis begins in the axis of ``joined_extent`` elements."""
        begin = part * self.column_count
        if self.rows[-1] * self.column_count == self.joined_extent:
            return begin
        return minimum(begin, index(self.joined_extent - self.column_count))

    def row_begin(self, rows: Sequence[Expr]) -> Expr:
        """Return the offset of a row in the row inputs, in elements."""
        shape = (*self.rows, *self.columns)
        at = self.input_indices(rows, [index(0)] * len(self.columns))
        if self.joined_extent:
            shape = (*self.rows[:-1], self.joined_extent)
        return sum((i * prod(shape[n + 1 :]) for n, i in enumerate(at)), start=index(0))

    @property
    def row_count(self) -> int:
        """How many rows there are; at most, where the first row axis is dynamic."""
        return prod(self.rows)

    @property
    def row_end(self) -> Expr:
        """How many rows a call has."""
        if self.dynamic is None:
            return index(self.row_count)
        return self.dynamic if self.row_unit == 1 else self.dynamic * self.row_unit

    @property
    def row_unit(self) -> int:
        """A number that divides how many rows a call has."""
        return self.row_count if self.dynamic is None else prod(self.rows[1:])

    @property
    def column_count(self) -> int:
        return prod(self.columns)

    @property
    def read_bytes(self) -> int:
        """How many bytes of the row inputs belong to one row and one column."""
        return sum(b.dtype.bytes for b in self.row_inputs)

    @property
    def written_bytes(self) -> int:
        """How many bytes of the elementwise outputs belong to one row and one column."""
        return sum(c.tensor.dtype.bytes for c in self.elementwise_outputs)

    @property
    def row_bytes(self) -> int:
        """How many bytes of the row inputs belong to one row."""
        return self.column_count * self.read_bytes

    @property
    def state_bytes(self) -> int:
        """How many bytes the states of all reductions have, for one row."""
        return sum(d.bytes for r in self.reductions for d in r.accumulation.state_dtypes)

    @property
    def output_broadcasts(self) -> tuple[Load, ...]:
        """The broadcast loads of the elementwise outputs."""
        return self.broadcasts_in([c.body for c in self.elementwise_outputs])

    @property
    def has_moments(self) -> bool:
        """Whether there are two reductions: a sum, and that of the squares of deviations from its mean."""
        if len(self.reductions) != 2 or any(r.reducer is not Reducer.SUM for r in self.reductions):
            return False
        total, squares = self.reductions
        if not total.body.dtype.is_float:
            return False
        match squares.body:
            case Binary(op=BinaryOp.MUL, a=Binary(op=BinaryOp.SUB, a=value, b=mean) as a, b=b) if a == b:
                return value == total.body and self._is_mean(mean, total.tensor)
        return False

    @property
    def has_exponentials(self) -> bool:
        """Whether there are two reductions: a maximum, and the sum of the exponentials of what is below it, in float32
        or float64."""
        if [r.reducer for r in self.reductions] != [Reducer.MAX, Reducer.SUM]:
            return False
        top, total = self.reductions
        at_row = Load(top.tensor, tuple(Var(row_axis(n)) for n in range(len(self.rows))))
        return top.tensor.dtype in (float32, float64) and total.body == Unary(UnaryOp.EXP, top.body - at_row)

    def _is_mean(self, mean: Expr, total: Buffer) -> bool:
        match mean:
            case Binary(op=BinaryOp.MUL, a=Load(buffer=buffer), b=Const(value=share)):
                return buffer == total and abs(float(share) * self.column_count - 1) < _ROUNDED
            case Binary(op=BinaryOp.DIV, a=Load(buffer=buffer), b=Const(value=count)):
                return buffer == total and float(count) == self.column_count
        return False

    def broadcasts_in(self, bodies: Sequence[Expr]) -> tuple[Load, ...]:
        """Return the broadcast loads of some bodies, each once."""
        loads = {load for body in bodies for load in _loads(body)}
        return tuple(load for load in self.broadcast_loads if load in loads)


def row_axis(n: int) -> str:
    """Return the name of a row axis in the bodies of a problem. No tensor has such a name."""
    return f"{_ROW_AXIS}{n}"


def column_axis(n: int) -> str:
    """Return the name of a column axis in the bodies of a problem."""
    return f"{_COLUMN_AXIS}{n}"


_ROW_AXIS, _COLUMN_AXIS = "row#", "column#"
_ROUNDED = 1e-6
"""The reciprocal of a number in float32 is off by less than this."""


def has_row_axis(e: Expr) -> bool:
    """Return whether an expression depends on a row axis."""
    return any(name.startswith(_ROW_AXIS) for name in free_variables(e))


def has_column_axis(e: Expr) -> bool:
    """Return whether an expression depends on a column axis."""
    return any(isinstance(v, Var) and v.name.startswith(_COLUMN_AXIS) for v in walk(e))


def rowwise_problem(workload: Workload) -> RowwiseProblem | None:
    """Return the workload as work on rows, or None where it is no such work.

    It is none where a reduction is over other axes than the last ones or than those of the other reductions, and where
    something is read that belongs to another row or column.
    """
    stages = inlined_into_readers(inline_stages(workload))
    reducing = [s for s in stages if s.reducer is not None] if stages else []
    if not stages or not reducing:
        return None
    rows = tuple(a.extent for a in reducing[0].axes)
    columns = tuple(a.extent for a in reducing[0].reduce_axes)
    reductions: list[ReducedTensor] = []
    elementwise: list[ComputedTensor] = []
    per_row: list[ComputedTensor] = []
    for stage in stages:
        extents = tuple(a.extent for a in stage.axes)
        reduced = tuple(a.extent for a in stage.reduce_axes)
        if stage.reducer is not None and (extents, reduced) == (rows, columns):
            reductions.append(ReducedTensor(stage.tensor, stage.reducer, _on_problem_axes(stage, len(rows))))
        elif stage.reducer is None and extents == rows + columns:
            elementwise.append(ComputedTensor(stage.tensor, _on_problem_axes(stage, len(rows))))
        elif stage.reducer is None and extents == rows:
            per_row.append(ComputedTensor(stage.tensor, _on_problem_axes(stage, len(rows))))
        else:
            return None
    for r in reductions:
        if r.tensor.name in workload.outputs:
            at_row = tuple(Var(row_axis(n)) for n in range(len(rows)))
            per_row.append(ComputedTensor(r.tensor, Load(r.tensor, at_row)))
    problem = _with_loads(rows, columns, reductions, elementwise, per_row)
    extent = row_extent(workload)
    if problem is None or extent is None:
        return problem
    return replace(problem, dynamic=Var(extent.var)) if rows else None


def inlined_into_readers(workload: Workload) -> tuple[Stage, ...] | None:
    """Return the stages, with every stage that does not reduce inlined into those that read it, outputs included.

    What is left reads only inputs and reductions. None where a body would grow beyond ``MAX_INLINED_NODES``.
    """
    inlined: dict[str, Stage] = {}
    stages: list[Stage] = []
    for stage in workload.stages:

        def body_of(load: Load) -> Expr:
            found = inlined.get(load.buffer.name)
            if found is None:
                return load
            return substitute(found.body, {a.name: i for a, i in zip(found.axes, load.indices, strict=True)})

        body = map_loads(stage.body, body_of)
        if len(list(islice(walk(body), MAX_INLINED_NODES + 1))) > MAX_INLINED_NODES:
            return None
        new = Stage(stage.tensor, stage.axes, body, stage.reduce_axes, stage.reducer)
        stages.append(new)
        if stage.reducer is None:
            inlined[stage.name] = new
    return tuple(stages)


def _on_problem_axes(stage: Stage, rank: int) -> Expr:
    """Return the body on the axes of the problem, of which the first ``rank`` are row axes. What is read along an axis
    of one element is read at that axis, and not at the constant 0."""
    axes = [*stage.axes, *stage.reduce_axes]
    own = [Var(row_axis(n) if n < rank else column_axis(n - rank)) for n in range(len(axes))]
    extents = tuple(a.extent for a in axes)

    def at_axes(load: Load) -> Expr:
        shape = load.buffer.shape
        if shape not in (extents, extents[:rank]):
            return load
        places = zip(own, shape, load.indices, strict=False)
        return replace(load, indices=tuple(v if extent == 1 else i for v, extent, i in places))

    body = substitute(stage.body, {a.name: v for a, v in zip(axes, own, strict=True)})
    return map_loads(body, at_axes)


def _with_loads(
    rows: tuple[int, ...],
    columns: tuple[int, ...],
    reductions: Sequence[ReducedTensor],
    elementwise: Sequence[ComputedTensor],
    per_row: Sequence[ComputedTensor],
) -> RowwiseProblem | None:
    """Return the problem, or None where a load is not one that it allows."""
    row_names = [row_axis(n) for n in range(len(rows))]
    column_names = [column_axis(n) for n in range(len(columns))]
    row_inputs: dict[str, Buffer] = {}
    broadcasts: dict[Load, None] = {}
    results = {r.tensor.name: r for r in reductions}
    for body in (*(r.body for r in reductions), *(c.body for c in (*elementwise, *per_row))):
        for load in _loads(body):
            kind = _kind_of(load, row_names, column_names)
            if kind is None:
                return None
            if load.buffer.name in results:
                if [affine_form(i) for i in load.indices] != _variables(row_names):
                    return None
            elif kind == "row input":
                row_inputs[load.buffer.name] = load.buffer
            elif kind == "broadcast":
                broadcasts[load] = None
    if any(free_variables(c.body) & set(column_names) for c in per_row):
        return None
    if not row_inputs or any(not _reads(r.body, row_inputs) for r in reductions):
        return None
    return RowwiseProblem(
        rows,
        columns,
        tuple(row_inputs.values()),
        tuple(broadcasts),
        tuple(reductions),
        tuple(elementwise),
        tuple(per_row),
    )


def _loads(body: Expr) -> Iterator[Load]:
    return (e for e in walk(body) if isinstance(e, Load))


def _reads(body: Expr, tensors: Mapping[str, Buffer]) -> bool:
    return any(load.buffer.name in tensors for load in _loads(body))


def _variables(names: Sequence[str]) -> list[LinearForm | None]:
    """Return the affine forms of indices that are just these variables."""
    return [LinearForm({Var(n): 1}) for n in names]


def _kind_of(load: Load, rows: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return which of the loads in ``RowwiseProblem`` it is: ``row input``, ``broadcast`` or ``row``; None for any
    other."""
    forms = [affine_form(i) for i in load.indices]
    if load.mask is not None or any(f is None for f in forms):
        return None
    if forms == _variables([*rows, *columns]):
        return "row input"
    leading, last = forms[: len(forms) - len(columns)], forms[len(forms) - len(columns) :]
    row_forms = _variables(rows)
    if last == _variables(columns) and all(f is not None and (f.is_constant or f in row_forms) for f in leading):
        return "broadcast"
    if not any(f is not None and set(f.variables) & set(columns) for f in forms):
        return "row"
    return None
