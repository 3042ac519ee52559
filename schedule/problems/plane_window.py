"""Recognises reductions over windows whose points have weights, or that see several planes, and whose rows are
contiguous in memory, such as depthwise convolution with channels first, in a workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...ir.expr import Var
from ...ir.gpu.mma import MmaAtom
from ...ir.rewrite import free_variables, substitute
from ...te.borders import with_borders
from ...te.flipped_windows import unflipped
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..loop_nest.nest import COMBINE
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from .outputs import outputs_of_reduction
from .window import MAX_WINDOW_POINTS
from .window_overlap import SINGLE, WeightedWindow, WindowAxis, address_forms, window_axis

MOST_FILTERS = 8
"""Filters that see one plane of the input, at most. With more, a convolution is a product of matrices."""
MOST_TERMS = 256
"""Points of a window, for all of several reductions, at most. With more, a kernel for each of them is faster."""
MOST_POSITIONS, MOST_MULTIPLIED = 64, 256
"""Positions of a row of the input that a window spans, at most, and where matrix units multiply."""
STRIPS, BLOCK_OUTPUTS, STEP_POSITIONS = 16, 8, 16
"""A matrix instruction computes, in a row of so many strips, so many neighbouring outputs of each from so many
positions."""


@dataclass(frozen=True)
class PlaneWindow(WeightedWindow):
    """A reduction over windows along the innermost axis, and perhaps the one or two before it, and what is computed
    from it, or from several reductions over the same windows.

    Neighbouring positions of a row of ``sliding_loads`` are neighbours in memory. ``fixed_loads`` are the same for all
    outputs of a plane. ``width``, ``height`` and ``depth`` say how windows move along the innermost axis, along the one
    before it, and along the one before that. ``height`` is ``SINGLE`` where they move along rows alone, each of which
    is a plane of its own then. So is ``depth`` where windows see one plane. ``others`` are further reductions, on the
    axes of the first.
    """

    depth: WindowAxis
    others: tuple[Stage, ...] = ()

    @property
    def reductions(self) -> tuple[Stage, ...]:
        """All stages that reduce."""
        return (self.reduction, *self.others)

    @property
    def single(self) -> tuple["PlaneWindow", ...]:
        """The windows with each of the reductions alone."""
        return tuple(replace(self, reduction=r, others=()) for r in self.reductions)

    @property
    def names(self) -> frozenset[str]:
        return super().names | {s.name for s in self.others}

    @property
    def toeplitz_atom(self) -> MmaAtom | None:
        return None if self.others else super().toeplitz_atom

    @property
    def moving(self) -> tuple[WindowAxis, ...]:
        """How windows move along each axis, the outermost one first."""
        return (self.depth, self.height, self.width)

    @property
    def plane_axes(self) -> tuple[Axis, ...]:
        """The axes that number the planes, or with a depth the volumes."""
        return tuple(a for a in self.reduction.axes if a not in [w.axis for w in self.moving])

    @property
    def filter_axes(self) -> tuple[Axis, ...]:
        """Those of ``plane_axes`` that filters depend on."""
        free = {name for m in self.fixed_loads for name in m.variables}
        return tuple(a for a in self.plane_axes if a.name in free)

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction that number the rows of a window."""
        return tuple(w.window for w in (self.depth, self.height) if w.window is not None)

    @property
    def window_rows(self) -> int:
        """How many rows of the input a window has."""
        return self.depth.window_points * self.height.window_points


def plane_window_of(workload: Workload) -> PlaneWindow | None:
    """Return the windows of a workload that is one reduction over windows along the innermost axis, or along the two or
    three innermost ones, and what is computed from it at the same point. None for any other workload, for windows that
    span more positions of a row than registers hold, for those of which neighbours share no input, where points of a
    window of one plane have no weights, and for planes of the input with more than ``MOST_FILTERS`` filters. Several
    reductions over the same windows need no weights; they have ``MOST_TERMS`` at most."""
    inlined = inline_stages(workload)
    given = [s for s in inlined.stages if s.reducer is not None]
    if not given or any(s.reducer not in COMBINE or _extents(s) != _extents(given[0]) for s in given):
        return None
    kept, reduced = ([a for a in axes if a.extent > 1] for axes in (given[0].axes, given[0].reduce_axes))
    reduction, *others = (with_borders(unflipped(_on_axes_of(given[0], s)), {a.name for a in kept[-3:]}) for s in given)
    loads = tuple(dict.fromkeys(m for s in (reduction, *others) for m in masked_loads_of(s.body, bordered=True)))
    found = next(filter(None, (_windows(loads, kept[-n:], reduced) for n in (2, 1, 3) if len(kept) >= n)), None)
    if found is None:
        return None
    moving = {w.axis.name for w in found}
    sliding = tuple(m for m in loads if m.variables & moving)
    fixed = tuple(m for m in loads if m not in sliding)
    points = {w.window.name for w in found if w.window is not None}
    has_weights = any(m.variables & points for m in fixed)
    is_volume = len(found) == 3 and found[-1].window is not None
    *above, width = found
    moves = all(width.is_contiguous(m.load) and all(w.names <= free_variables(m.load) for w in above) for m in sliding)
    if not (has_weights or is_volume or others) or not moves:
        return None
    outputs = outputs_of_reduction(inlined, reduction, *others)
    if outputs is None or (others and len(given) * prod(a.extent for a in reduced) > MOST_TERMS):
        return None
    depth, height = (SINGLE, SINGLE, *above)[-2:]
    problem = PlaneWindow(workload, reduction, outputs, sliding, width, fixed, height, depth, tuple(others))
    seen = {name for m in sliding for name in m.variables}
    filters_of_plane = prod(a.extent for a in problem.plane_axes if a.name not in seen)
    return problem if filters_of_plane <= MOST_FILTERS and _is_small_enough(problem) else None


def _extents(stage: Stage) -> list[list[int]]:
    return [[a.extent for a in axes] for axes in (stage.axes, stage.reduce_axes)]


def _on_axes_of(first: Stage, stage: Stage) -> Stage:
    """``stage`` on the axes of ``first``, which have the same extents."""
    pairs = zip((*stage.axes, *stage.reduce_axes), (*first.axes, *first.reduce_axes), strict=True)
    body = substitute(stage.body, {a.name: Var(b.name) for a, b in pairs})
    return replace(stage, axes=first.axes, reduce_axes=first.reduce_axes, body=body)


def _is_small_enough(problem: PlaneWindow) -> bool:
    """Return whether registers hold the filter, or a row of it and the positions that it sees."""
    if problem.height is SINGLE and problem.points > MAX_WINDOW_POINTS:
        return problem.toeplitz_atom is not None and problem.width.positions(1) <= MOST_MULTIPLIED
    words = max(1, problem.reduction.tensor.dtype.bytes // 4) * len(problem.sliding_loads)
    return words * problem.width.positions(1) <= MOST_POSITIONS


def _windows(
    loads: Sequence[MaskedLoad], axes: Sequence[Axis], reduced: Sequence[Axis]
) -> tuple[WindowAxis, ...] | None:
    """Return how windows move along ``axes``, the last of which are a height and a width. None unless the axes of the
    reduction are those of such windows, which move along the first of ``axes``, and neighbours share some of the
    input."""
    moving = {a.name for a in axes}
    forms = address_forms([m for m in loads if m.variables & moving])
    if forms is None:
        return None
    found = tuple(w for a in axes if (w := window_axis(a, reduced, forms)) is not None)
    windows = [w for w in found if w.window is not None]
    if len(found) < len(axes) or not windows or (len(axes) > 1 and found[0].window is None):
        return None
    if len(windows) != len(reduced) or {w.window for w in windows} != set(reduced):
        return None
    return found if all(w.stride < w.window_points for w in windows) else None
