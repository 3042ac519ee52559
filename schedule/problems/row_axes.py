"""The axes of work on rows: which of them a reduction has, by name and in the order of memory."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from ...ir.expr import Expr, Load, Var, index, walk
from ...ir.rewrite import free_variables, loads_of, map_loads, substitute
from ...te.workload import Axis, Stage
from ..tile.delinearize import axis_indices
from .row_places import dimensions_of, is_gathered_row, with_axes_of_one

T = TypeVar("T")


def row_axis(n: int) -> str:
    """Return the name of a row axis in the bodies of a problem. No tensor has such a name."""
    return f"{_ROW_AXIS}{n}"


def column_axis(n: int) -> str:
    """Return the name of a column axis in the bodies of a problem."""
    return f"{_COLUMN_AXIS}{n}"


_ROW_AXIS, _COLUMN_AXIS = "row#", "column#"


def is_column_axis(name: str) -> bool:
    """Return whether an axis is a column axis, by its name."""
    return name.startswith(_COLUMN_AXIS)


def has_row_axis(e: Expr) -> bool:
    """Return whether an expression depends on a row axis."""
    return any(name.startswith(_ROW_AXIS) for name in free_variables(e))


def has_column_axis(e: Expr) -> bool:
    """Return whether an expression depends on a column axis."""
    return any(isinstance(v, Var) and v.name.startswith(_COLUMN_AXIS) for v in walk(e))


def in_order(axes: tuple[T, ...], order: tuple[int, ...], of_one: T) -> tuple[T, ...]:
    """Return what each dimension has, where ``axes`` has it for each axis (see ``RowwiseProblem.order``). ``of_one``:
    what a dimension of one element has."""
    return tuple(of_one if n < 0 else axes[n] for n in order) if order else axes


@dataclass(frozen=True, slots=True)
class RowAxes:
    """The axes of a reduction: the extents of rows and columns, and their ``order`` (see ``RowwiseProblem``).
    ``reduced``: what each reduced axis of the stage is, by name."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    order: tuple[int, ...]
    reduced: Mapping[str, Expr]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of row inputs and elementwise outputs."""
        return in_order((*self.rows, *self.columns), self.order, 1)

    def with_joined_columns(self, stage: Stage) -> Stage:
        """Return an output whose last axes are parts of the column axis, such as pairs of columns, with these as one
        axis; any other stage as it is."""
        extents, (*_, column), kept = tuple(a.extent for a in stage.axes), self.columns, len(self.rows)
        if stage.reducer is not None or len(self.columns) > 1 or len(extents) < kept + 2 or column < 2:
            return stage
        parts, joined = stage.axes[kept:], Axis(column_axis(0), column)
        if prod(extents[kept:]) != column or sorted(extents[:kept]) != sorted(self.rows):
            return stage
        tensor = replace(stage.tensor, shape=(*extents[:kept], column))
        body = substitute(stage.body, axis_indices(Var(joined.name), parts))
        return replace(stage, tensor=tensor, axes=(*stage.axes[:kept], joined), body=body)

    def output_order(self, stage: Stage, results: Collection[str]) -> tuple[int, ...] | None:
        """Return along which of the axes (rows, columns) each dimension of an output goes, by where it reads what was
        reduced of its row. ``results``: the names of such tensors. None where that is the order of row inputs, and
        where it is no output with contiguous columns."""
        read = next((load.indices for load in loads_of(stage.body) if load.buffer.name in results), ())
        kept, extents = len(self.rows), (*self.rows, *self.columns)
        numbers = {i.name: n for n, i in enumerate(read) if isinstance(i, Var)}
        columns = range(kept, len(extents))
        rest = iter(columns)
        order = tuple(numbers[a.name] if a.name in numbers else next(rest, -1) for a in stage.axes)
        if sorted(order) != [*range(len(extents))] or order[-len(columns) :] != tuple(columns):
            return None
        same = order == (self.order or tuple(range(len(extents))))
        return None if same or tuple(extents[n] for n in order) != tuple(a.extent for a in stage.axes) else order

    def on_problem_axes(self, stage: Stage, order: tuple[int, ...] | None = None) -> Expr:
        """Return the body of a stage on the axes of the problem. The stage reduces, has one of the shapes of outputs,
        or is an output of another ``order``. What is read along an axis of one element is read at that axis, and not
        at the constant 0."""
        at_row = tuple(Var(row_axis(n)) for n in range(len(self.rows)))
        columns = tuple(Var(column_axis(n)) for n in range(len(self.columns)))
        at_element = in_order((*at_row, *columns), self.order, index(0))
        places: dict[tuple[int, ...], tuple[Expr, ...]] = {self.rows: at_row}
        own: tuple[Expr, ...] = at_row
        if stage.reducer is not None or tuple(a.extent for a in stage.axes) == self.shape:
            places[self.shape] = at_element
            own = at_row if stage.reducer is not None else at_element
        if order is not None:
            own = in_order((*at_row, *columns), order, index(0))

        def at_axes(load: Load) -> Expr:
            shape = load.buffer.shape
            both = zip(places.get(shape, load.indices), shape, load.indices, strict=True)
            return replace(load, indices=tuple(v if extent == 1 else i for v, extent, i in both))

        values = {a.name: v for a, v in zip(stage.axes, own, strict=True)}
        values |= self.reduced if stage.reducer is not None else {}
        return map_loads(substitute(stage.body, values), at_axes)


def row_axes_of(stage: Stage, *, gathered: bool = False) -> RowAxes | None:
    """Return the axes of a reduction, by the first load that reads a dimension along each of its axes of more than one
    element, the last dimension along a reduced axis; by a load that has the axes in their order, if there is one, or
    where ``gathered`` by one of rows at loaded indices. None where there is no such load."""
    axes, kept = (*stage.axes, *stage.reduce_axes), len(stage.axes)
    plain, rows = tuple(range(len(axes))), tuple(a.extent for a in stage.axes)
    read = [dimensions_of(load, axes) for load in loads_of(stage.body)]
    read = read if any(read) else [dimensions_of(load, axes, shifted=True) for load in loads_of(stage.body)]
    if plain in (with_axes_of_one(d, axes) for d in read):
        columns = {a.name: Var(column_axis(n)) for n, a in enumerate(stage.reduce_axes)}
        return RowAxes(rows, tuple(a.extent for a in stage.reduce_axes), (), columns)
    long = [n for n, a in enumerate(axes) if a.extent > 1]
    for dimensions in read:
        longer = [d for d in dimensions if d >= 0]
        if not longer or longer[-1] < kept or sorted(longer) != long:
            continue
        in_memory = [n for n in dimensions if n >= kept]
        numbers = {n: kept + place for place, n in enumerate(in_memory)}
        reduced: dict[str, Expr] = {a.name: index(0) for a in stage.reduce_axes}
        reduced |= {axes[n].name: Var(column_axis(place)) for place, n in enumerate(in_memory)}
        order = tuple(numbers.get(n, n) for n in dimensions)
        return RowAxes(rows, tuple(axes[n].extent for n in in_memory), order, reduced)
    if gathered and len(stage.reduce_axes) == 1:
        (column,), extents = stage.reduce_axes, {a.name: a.extent for a in axes}
        if any(is_gathered_row(load, column.name, extents) for load in loads_of(stage.body)):
            return RowAxes(rows, (column.extent,), (), {column.name: Var(column_axis(0))})
    return None
