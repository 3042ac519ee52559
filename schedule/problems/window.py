"""Recognises reductions over small windows, such as pooling and depthwise convolution, in a workload.

The layout is NHWC: channels are innermost, and windows move along the axes before them (width, then height).
"""

from dataclasses import dataclass
from math import prod

from ...te.workload import Axis, Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from .outputs import single_reduction
from .window_overlap import WindowAxis, WindowReduction, address_forms, window_axis

MAX_WINDOW_POINTS = 64
MOST_PLANES = 16
"""A window with so many points in a plane has so many planes at most, such as those of a volume."""
LARGE_WINDOW = 5
"""Rows of a window from which on all pixels of a thread would take so many registers that few outputs share them."""
MOST_ROWS_AND_COLUMNS = 16
"""A window of more points has at most so many rows, and so many columns."""


@dataclass(frozen=True)
class ReduceWindow(WindowReduction):
    """A reduction over windows that leave the channels alone.

    ``sliding_loads`` depend on the width or the height. ``fixed_loads``: the other loads of the reduction, such as
    those of filters. ``channel``: the innermost axis. ``width``, ``height``: how windows move along the axis before the
    channels, and along the one before that, if there is one.
    """

    fixed_loads: tuple[MaskedLoad, ...]
    channel: Axis
    width: WindowAxis
    height: WindowAxis | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the outputs."""
        return self.reduction.axes

    @property
    def output_height(self) -> int:
        """The extent of the outputs along the height; 1 where there is no such axis."""
        return self.height.axis.extent if self.height is not None else 1

    @property
    def window_height(self) -> int:
        """How many rows of the input a window has."""
        return self.height.window_points if self.height is not None else 1

    @property
    def unwindowed_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction along which no window moves."""
        windows = [s.window for s in (self.width, self.height) if s is not None]
        return tuple(a for a in self.reduction.reduce_axes if a not in windows)

    @property
    def is_looped(self) -> bool:
        """Whether a kernel goes through the planes of windows one after the other, since all at once would be long."""
        planes = prod(a.extent for a in self.unwindowed_axes)
        return 1 < planes <= MOST_PLANES and planes * self.window_height * self.width.window_points > MAX_WINDOW_POINTS

    @property
    def is_large(self) -> bool:
        return self.window_height >= LARGE_WINDOW

    def is_alike(self, along: WindowAxis | None) -> bool:
        """Return whether what a pixel contributes does not depend on where the window that has it stands along an
        axis."""
        return along is None or not self.depends_on([a.name for a in (along.axis, along.window) if a is not None])

    def reduce_axes_of(self, masked: MaskedLoad) -> tuple[Axis, ...]:
        """Return the axes of the reduction, longer than 1, that a load depends on."""
        free = masked.variables
        return tuple(a for a in self.reduction.reduce_axes if a.name in free and a.extent > 1)


def reduce_window_of(workload: Workload) -> ReduceWindow | None:
    """Return the windows of a workload that is one reduction over at most ``MAX_WINDOW_POINTS`` points and what is
    computed from it at the same point. None for any other workload, for one in which neighbouring outputs share no
    input, and for windows along the innermost axis. Windows of up to ``MOST_PLANES`` planes may have so many points in
    each. Windows without weights may have more points (see ``MOST_ROWS_AND_COLUMNS``): each row and each column of a
    tile is reduced by itself."""
    found = single_reduction(workload)
    if found is None:
        return None
    reduction, outputs = found
    long = [a for a in reduction.axes if a.extent > 1]
    if len(long) < 2:
        return None
    channel, column = long[-1], long[-2]
    loads = masked_loads_of(reduction.body)
    offsets = [flat_offset(r.load) for r in loads]
    if any(o is None or o.coefficient(channel.name) not in (0, 1) for o in offsets):
        return None
    spatial = {a.name for a in long[-3:-1]}
    sliding = tuple(r for r in loads if r.variables & spatial)
    if not any(channel.name in r.variables for r in sliding):
        return None
    forms = address_forms(sliding)
    if forms is None:
        return None
    width = window_axis(column, reduction.reduce_axes, forms)
    depth = window_axis(channel, reduction.reduce_axes, forms)
    if width is None or depth is None or depth.window is not None:  # windows over neighbouring lanes share no vectors
        return None
    height = window_axis(long[-3], reduction.reduce_axes, forms) if len(long) > 2 else None
    if len(long) > 2 and (height is None or (height.window is not None and height.window == width.window)):
        return None
    windows = [s.window for s in (width, height) if s is not None and s.window is not None and s.window.extent > 1]
    if not windows:
        return None
    fixed = tuple(r for r in loads if r not in sliding)
    problem = ReduceWindow(workload, reduction, outputs, sliding, fixed, channel, width, height)
    if prod(a.extent for a in reduction.reduce_axes) <= MAX_WINDOW_POINTS:
        return problem
    if problem.is_looped and prod(w.extent for w in windows) <= MAX_WINDOW_POINTS:
        return problem
    alike = len(windows) == 2 and not problem.unwindowed_axes and problem.is_alike(width) and problem.is_alike(height)
    return problem if alike and max(w.extent for w in windows) <= MOST_ROWS_AND_COLUMNS else None
