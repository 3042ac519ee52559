"""Recognises reductions over small windows, such as pooling and depthwise convolution, in a workload.

The layout is NHWC: channels are innermost, and windows move along the axes before them (width, then height).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ...ir.expr import Load
from ...te.borders import with_borders
from ...te.flipped_windows import unflipped
from ...te.workload import Axis, Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from .outputs import single_reduction
from .window_overlap import SINGLE, WeightedWindow, WindowAxis, address_forms, window_axis

MAX_WINDOW_POINTS = 64
MOST_PLANES = 32
"""A window with so many points in a plane has so many planes at most, such as those of a volume, or its rows."""
LEAST_RESULTS = 1 << 12
"""Of fewer results, windows with rows one after the other keep too few threads busy."""
LARGE_WINDOW = 5
"""Rows of a window from which on all pixels of a thread would take so many registers that few outputs share them."""
MOST_ROWS_AND_COLUMNS = 16
"""A window of more points has at most so many rows, and so many columns."""


@dataclass(frozen=True)
class ReduceWindow(WeightedWindow):
    """A reduction over windows that leave the channels alone. ``channel`` is the innermost axis. ``width`` is the one
    before it. ``sliding_loads`` depend on the width or the height."""

    channel: Axis

    @property
    def moving(self) -> tuple[WindowAxis, ...]:
        """How windows move along the height and along the width."""
        return (self.height, self.width)

    @property
    def unwindowed_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction along which no window moves."""
        return tuple(a for a in self.reduction.reduce_axes if a not in [w.window for w in self.moving])

    @property
    def scattered_loads(self) -> tuple[MaskedLoad, ...]:
        """Those of ``fixed_loads`` that read neighbouring channels from places that are apart, such as filters with
        their channels first."""
        offsets = {m: flat_offset(m.load) for m in self.fixed_loads}
        return tuple(m for m, o in offsets.items() if o is not None and o.coefficient(self.channel.name) not in (0, 1))

    @property
    def is_looped(self) -> bool:
        """Whether a kernel goes through the planes of windows one after the other, since all at once would be long."""
        planes = prod(a.extent for a in self.unwindowed_axes)
        return 1 < planes <= MOST_PLANES and planes * self.points > MAX_WINDOW_POINTS

    @property
    def has_border(self) -> bool:
        """Whether images have a border of what stands in them."""
        return any(isinstance(m.other, Load) for m in self.sliding_loads)

    @property
    def is_large(self) -> bool:
        """Whether windows have ``LARGE_WINDOW`` rows or more."""
        return self.height.window_points >= LARGE_WINDOW


@lru_cache(maxsize=64)  # sketches of windows and of maps ask it of a workload
def reduce_window_of(workload: Workload) -> ReduceWindow | None:
    """Return the windows of a workload that is one reduction over at most ``MAX_WINDOW_POINTS`` points and what is
    computed from it at the same point. None for any other workload, for one in which neighbouring outputs share no
    input, and for windows along the innermost axis. Windows of up to ``MOST_PLANES`` planes may have so many points in
    each. Windows without weights may have more points (see ``MOST_ROWS_AND_COLUMNS``): each row and each column of a
    tile is reduced by itself. The rows of other windows are planes, and the height has no windows."""
    found = single_reduction(workload)
    if found is None:
        return None
    reduction, outputs = found
    long = [a for a in reduction.axes if a.extent > 1]
    if len(long) < 2:
        return None
    channel, column = long[-1], long[-2]
    spatial = {a.name for a in long[-3:-1]}
    reduction = with_borders(unflipped(reduction), spatial)
    loads = masked_loads_of(reduction.body, bordered=True)
    offsets = {r: flat_offset(r.load) for r in loads}
    sliding = tuple(r for r in loads if r.variables & spatial)
    if any(o is None or (r in sliding and o.coefficient(channel.name) not in (0, 1)) for r, o in offsets.items()):
        return None
    if not any(channel.name in r.variables for r in sliding):
        return None
    forms = address_forms(sliding)
    if forms is None:
        return None
    width = window_axis(column, reduction.reduce_axes, forms)
    depth = window_axis(channel, reduction.reduce_axes, forms)
    if width is None or depth is None or depth.window is not None:  # windows over neighbouring lanes share no vectors
        return None
    height = window_axis(long[-3], reduction.reduce_axes, forms) if len(long) > 2 else SINGLE
    if height is None or (height.window is not None and height.window == width.window):
        return None
    windows = [s.window for s in (width, height) if s.window is not None and s.window.extent > 1]
    if not windows:
        return None
    fixed = tuple(r for r in loads if r not in sliding)
    problem = ReduceWindow(workload, reduction, outputs, sliding, width, fixed, height, channel)
    if prod(a.extent for a in reduction.reduce_axes) <= MAX_WINDOW_POINTS:
        return problem
    if problem.is_looped and prod(w.extent for w in windows) <= MAX_WINDOW_POINTS:
        return problem
    alike = len(windows) == 2 and not problem.unwindowed_axes and problem.is_alike(width, height)
    if alike and max(w.extent for w in windows) <= MOST_ROWS_AND_COLUMNS:
        return problem
    by_rows = replace(problem, height=SINGLE)
    is_small = by_rows.is_looped and by_rows.points <= MAX_WINDOW_POINTS
    return by_rows if is_small and reduction.tensor.elements >= LEAST_RESULTS else None
