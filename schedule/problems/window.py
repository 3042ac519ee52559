"""What a workload of small windows is made of: which axes slide, what is read anew from output to output."""

from dataclasses import dataclass
from math import prod

from ...ir.rewrite import free_variables
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..loop_nest.nest import COMBINE
from ..tile.register_reads import flat_offset
from ..tile.stage_body import Read, reads_of
from .outputs import outputs_of_reduction
from .window_overlap import Slide, forms_of, slide_of

MAX_WINDOW_POINTS = 64


@dataclass(frozen=True)
class Windows:
    """``reduction``: the stage that sums or compares. ``outputs``: what is stored, on the same axes; bodies read the
    reduction at their own point, and inputs. ``moving``: reads that change from output to output of a thread;
    ``fixed``: the others. ``column``, ``row``: the slides along the axis next to the channels, and the one next to
    that."""

    workload: Workload
    reduction: Stage
    outputs: tuple[Stage, ...]
    moving: tuple[Read, ...]
    fixed: tuple[Read, ...]
    channel: Axis
    column: Slide
    row: Slide | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.reduction.axes

    @property
    def rows(self) -> int:
        """Outputs along the axis of rows."""
        return self.row.axis.extent if self.row is not None else 1

    @property
    def others(self) -> tuple[Axis, ...]:
        """Axes of the reduction that no slide has."""
        sliding = [s.window for s in (self.column, self.row) if s is not None]
        return tuple(a for a in self.reduction.reduce_axes if a not in sliding)

    def window_of(self, read: Read) -> tuple[Axis, ...]:
        """The axes of the reduction, longer than 1, that a read depends on."""
        free = _free(read)
        return tuple(a for a in self.reduction.reduce_axes if a.name in free and a.extent > 1)


def windows_of(workload: Workload) -> Windows | None:
    """The windows of a workload that is one reduction over few points, and what follows from it at the same point; None
    for any other: without neighbours that share what they read, or with windows along the innermost axis."""
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    if len(reductions) != 1:
        return None
    reduction = reductions[0]
    if reduction.reducer not in COMBINE or prod(a.extent for a in reduction.reduce_axes) > MAX_WINDOW_POINTS:
        return None
    long = [a for a in reduction.axes if a.extent > 1]
    if len(long) < 2:
        return None
    channel, column = long[-1], long[-2]
    reads = reads_of(reduction.body)
    offsets = [flat_offset(r.load) for r in reads]
    if any(o is None or o.coefficient(channel.name) not in (0, 1) for o in offsets):
        return None
    outputs = outputs_of_reduction(inlined, reduction)
    spatial = {a.name for a in long[-3:-1]}
    moving = tuple(r for r in reads if _free(r) & spatial)
    if outputs is None or not any(channel.name in _free(r) for r in moving):
        return None
    forms = forms_of(moving)
    if forms is None:
        return None
    across = slide_of(column, reduction.reduce_axes, forms)
    along = slide_of(channel, reduction.reduce_axes, forms)
    if across is None or along is None or along.window is not None:  # windows over neighbouring lanes share no vectors
        return None
    row = slide_of(long[-3], reduction.reduce_axes, forms) if len(long) > 2 else None
    if len(long) > 2 and (row is None or (row.window is not None and row.window == across.window)):
        return None
    windows = [s.window for s in (across, row) if s is not None and s.window is not None and s.window.extent > 1]
    if not windows:
        return None
    fixed = tuple(r for r in reads if r not in moving)
    return Windows(workload, reduction, outputs, moving, fixed, channel, across, row)


def _free(read: Read) -> frozenset[str]:
    guard = free_variables(read.guard) if read.guard is not None else frozenset()
    return free_variables(read.load) | guard
