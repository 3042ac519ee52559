"""Recognises reductions over windows of planes, such as pooling with channels first, in a workload.

A window of several rows and columns is reduced along its rows first, and what that gives along its columns.
"""

from dataclasses import dataclass

from ...ir.rewrite import free_variables
from ...te.workload import Axis, Workload
from ..tile.masked_loads import masked_loads_of
from .outputs import single_reduction
from .window_overlap import WindowAxis, WindowReduction, address_forms, window_axis

MOST_POSITIONS = 64
"""Positions of the input that a window spans along either axis, at most."""


@dataclass(frozen=True)
class SeparableWindow(WindowReduction):
    """A reduction over windows along the two innermost axes, of which ``height`` is the first. What is reduced depends
    on where in the plane a point of a window lies, and not on the window. ``sliding_loads`` depend on the place in the
    plane."""

    height: WindowAxis

    @property
    def plane_axes(self) -> tuple[Axis, ...]:
        """The axes that number the planes."""
        return tuple(a for a in self.reduction.axes if a not in (self.height.axis, self.width.axis))


def separable_window_of(workload: Workload) -> SeparableWindow | None:
    """Return the windows of a workload that is one reduction over windows along the two innermost axes and what is
    computed from it at the same point. None for any other workload, for windows that span more than ``MOST_POSITIONS``
    positions along an axis, for those of which neighbours share no input, and where points of a window have weights."""
    found = single_reduction(workload)
    if found is None:
        return None
    reduction, outputs = found
    kept, reduced = ([a for a in axes if a.extent > 1] for axes in (reduction.axes, reduction.reduce_axes))
    if len(kept) < 2 or len(reduced) != 2:
        return None
    row, column = kept[-2:]
    moving = {row.name, column.name, *(a.name for a in reduced)}
    sliding = tuple(m for m in masked_loads_of(reduction.body) if free_variables(m.load) & moving)
    forms = address_forms(sliding)
    if forms is None:
        return None
    height, width = (window_axis(axis, reduced, forms) for axis in (row, column))
    if height is None or width is None or height.window is None or width.window is None:
        return None
    if height.window == width.window or max(w.positions(1) for w in (height, width)) > MOST_POSITIONS:
        return None
    if height.stride >= height.window_points or width.stride >= width.window_points:
        return None
    if not all(width.is_contiguous(m.load) and height.names <= free_variables(m.load) for m in sliding):
        return None
    problem = SeparableWindow(workload, reduction, outputs, sliding, width, height)
    return problem if problem.is_alike(height, width) else None
