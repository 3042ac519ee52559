"""Recognises reductions over windows that move along rows, such as 1-D pooling with channels first, in a workload."""

from dataclasses import dataclass

from ...ir.rewrite import free_variables
from ...te.borders import with_borders
from ...te.workload import Axis, Workload
from ..tile.masked_loads import masked_loads_of
from .columnwise import columnwise_problem
from .outputs import single_reduction
from .rowwise import rowwise_problem
from .window import MAX_WINDOW_POINTS
from .window_overlap import WindowReduction, address_forms, window_axis


@dataclass(frozen=True)
class RowWindow(WindowReduction):
    """A reduction over windows along the innermost axis alone. Neighbouring positions of ``sliding_loads`` are
    neighbours in memory."""

    @property
    def columns(self) -> int:
        """The elements of a row of the outputs."""
        return self.width.axis.extent

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """The axes that number the rows of the outputs."""
        return tuple(a for a in self.reduction.axes if a != self.width.axis)


def row_window_of(workload: Workload) -> RowWindow | None:
    """Return the windows of a workload that is one reduction over windows along the innermost axis and what is computed
    from it at the same point. None for any other workload, for windows of more than ``MAX_WINDOW_POINTS`` positions,
    and for one in which neighbouring outputs share no input."""
    found = single_reduction(workload)
    if found is None:
        return None
    reduction, outputs = found
    kept, reduced = ([a for a in axes if a.extent > 1] for axes in (reduction.axes, reduction.reduce_axes))
    if not kept or len(reduced) != 1:
        return None
    column, window = kept[-1], reduced[0]
    reduction = with_borders(reduction, {column.name})
    loads = masked_loads_of(reduction.body, bordered=True)
    sliding = tuple(m for m in loads if column.name in free_variables(m.load))
    forms = address_forms(sliding)
    width = None if forms is None else window_axis(column, [window], forms)
    if width is None or width.window is None or width.stride >= window.extent or width.positions(1) > MAX_WINDOW_POINTS:
        return None
    if not all(width.is_contiguous(m.load) for m in sliding):
        return None
    if not any({a.name for a in kept} <= free_variables(m.load) for m in sliding):
        return None  # a product of matrices
    rows = rowwise_problem(workload)
    if columnwise_problem(workload) is not None:
        return None
    if rows is not None and rows.is_plain and not rows.order:
        return None
    return RowWindow(workload, reduction, outputs, sliding, width)
