"""Recognises reductions over windows whose points have weights, or that see several planes, and whose rows are
contiguous in memory, such as depthwise convolution with channels first, in a workload."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...core.dtypes import float32
from ...ir.expr import BinaryOp
from ...ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...ir.rewrite import free_variables
from ...te.inline import inline_stages
from ...te.workload import Axis, Stage, Workload
from ..loop_nest.nest import COMBINE
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, masked_loads_of
from .depthwise import factors_of
from .outputs import outputs_of_reduction
from .window import MAX_WINDOW_POINTS
from .window_overlap import WindowAxis, address_forms, window_axis

MOST_FILTERS = 8
"""Filters that see one plane of the input, at most. With more, a convolution is a product of matrices."""
MOST_POSITIONS, MOST_MULTIPLIED = 64, 256
"""Positions of a row of the input that a window spans, at most, and where matrix units multiply."""
STRIPS, BLOCK_OUTPUTS, STEP_POSITIONS = 16, 8, 16
"""A matrix instruction computes, in a row of so many strips, so many neighbouring outputs of each from so many
positions."""


@dataclass(frozen=True)
class PlaneWindow:
    """A reduction over windows along the innermost axis, and perhaps the one or two before it, and what is computed
    from it.

    ``reduction``: the stage that reduces each window. ``outputs``: the stored stages, on the axes of the reduction;
    their bodies load the reduction at their own point, and inputs. ``sliding_loads``: the loads of the reduction that
    neighbouring outputs share: neighbouring positions of a row are neighbours in memory. ``fixed_loads``: its other
    loads, which are the same for all outputs of a plane, such as those of filters. ``width``, ``height``, ``depth``:
    how windows move along the innermost axis, along the one before it, and along the one before that. ``height`` is
    None where they move along rows alone; each row is a plane of its own then. ``depth`` is None where windows see one
    plane.
    """

    workload: Workload
    reduction: Stage
    outputs: tuple[Stage, ...]
    sliding_loads: tuple[MaskedLoad, ...]
    fixed_loads: tuple[MaskedLoad, ...]
    width: WindowAxis
    height: WindowAxis | None
    depth: WindowAxis | None = None

    @property
    def moving(self) -> tuple[WindowAxis, ...]:
        """How windows move along each axis, the outermost one first."""
        return tuple(w for w in (self.depth, self.height, self.width) if w is not None)

    @property
    def plane_axes(self) -> tuple[Axis, ...]:
        """The axes that number the planes, or with a depth the volumes."""
        moving = [w.axis for w in self.moving]
        return tuple(a for a in self.reduction.axes if a not in moving)

    @property
    def filter_axes(self) -> tuple[Axis, ...]:
        """Those of ``plane_axes`` that filters depend on."""
        free = {name for m in self.fixed_loads for name in m.variables}
        return tuple(a for a in self.plane_axes if a.name in free)

    @property
    def output_height(self) -> int:
        """The rows of outputs of a plane."""
        return self.height.axis.extent if self.height is not None else 1

    @property
    def output_depth(self) -> int:
        """The planes of outputs of a volume."""
        return self.depth.axis.extent if self.depth is not None else 1

    @property
    def window_height(self) -> int:
        """How many rows of a plane of the input a window has."""
        return self.height.window_points if self.height is not None else 1

    @property
    def window_depth(self) -> int:
        """How many planes of the input a window has."""
        return self.depth.window_points if self.depth is not None else 1

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction that number the rows of a window."""
        return tuple(w.window for w in (self.depth, self.height) if w is not None and w.window is not None)

    @property
    def window_rows(self) -> int:
        """How many rows of the input a window has."""
        return self.window_depth * self.window_height

    @property
    def points(self) -> int:
        """How many points a window has."""
        return self.window_rows * self.width.window_points

    @property
    def combine(self) -> BinaryOp:
        """How two points of a window are combined."""
        assert self.reduction.reducer is not None
        return COMBINE[self.reduction.reducer]

    def reduce_axes_of(self, masked: MaskedLoad) -> tuple[Axis, ...]:
        """Return the axes of the reduction, longer than 1, that a load depends on."""
        free = masked.variables
        return tuple(a for a in self.reduction.reduce_axes if a.name in free and a.extent > 1)


def plane_window_of(workload: Workload) -> PlaneWindow | None:
    """Return the windows of a workload that is one reduction over windows along the innermost axis, or along the two or
    three innermost ones, and what is computed from it at the same point. None for any other workload, for windows that
    span more positions of a row than registers hold, for those of which neighbours share no input, where points of a
    window of one plane have no weights, and for planes of the input with more than ``MOST_FILTERS`` filters."""
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    if len(reductions) != 1 or reductions[0].reducer not in COMBINE:
        return None
    (reduction,) = reductions
    kept, reduced = ([a for a in axes if a.extent > 1] for axes in (reduction.axes, reduction.reduce_axes))
    loads = masked_loads_of(reduction.body)
    found = next(filter(None, (_windows(loads, kept[-n:], reduced) for n in (2, 1, 3) if len(kept) >= n)), None)
    if found is None:
        return None
    moving = {w.axis.name for w in found}
    sliding = tuple(m for m in loads if m.variables & moving)
    fixed = tuple(m for m in loads if m not in sliding)
    points = {w.window.name for w in found if w.window is not None}
    has_weights = any(m.variables & points for m in fixed)
    is_volume = len(found) == 3 and found[-1].window is not None
    if not (has_weights or is_volume) or not all(_moves(m, found) for m in sliding):
        return None
    outputs = outputs_of_reduction(inlined, reduction)
    if outputs is None:
        return None
    *above, width = found
    depth, height = (None, None, *above)[-2:]
    problem = PlaneWindow(workload, reduction, outputs, sliding, fixed, width, height, depth)
    seen = {name for m in sliding for name in m.variables}
    filters_of_plane = prod(a.extent for a in problem.plane_axes if a.name not in seen)
    return problem if filters_of_plane <= MOST_FILTERS and _is_small_enough(problem) else None


def _is_small_enough(problem: PlaneWindow) -> bool:
    """Return whether registers hold the filter, or a row of it and the positions that it sees."""
    if problem.height is None and problem.points > MAX_WINDOW_POINTS:
        return toeplitz_atom(problem) is not None and problem.width.positions(1) <= MOST_MULTIPLIED
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


def _moves(masked: MaskedLoad, moving: Sequence[WindowAxis]) -> bool:
    """Return whether a load moves with the window along the width, by elements next to each other, and along the
    axes above it."""
    offset, free = flat_offset(masked.load), free_variables(masked.load)
    *above, width = moving
    if offset is None or offset.coefficient(width.axis.name) != width.stride:
        return False
    if width.window is not None and offset.coefficient(width.window.name) != width.dilation:
        return False
    return {a.name for w in above for a in (w.axis, w.window) if a is not None} <= free


def toeplitz_atom(problem: PlaneWindow) -> MmaAtom | None:
    """Return the matrix instruction that multiplies rows of the input by Toeplitz matrices of the filter's rows; None
    where there is none. Windows are sums of products of one element of the input and of the filter, of 16-bit floats as
    float32, and move by one position."""
    if problem.combine is not BinaryOp.ADD or any(w.stride != 1 for w in problem.moving):
        return None
    factors, dtype = factors_of(problem.reduction.body), problem.sliding_loads[0].load.dtype
    if factors is None or set(factors) != {*problem.sliding_loads, *problem.fixed_loads} or len(factors) != 2:
        return None
    if problem.reduction.tensor.dtype != float32 or any(m.load.dtype != dtype for m in factors):
        return None
    if problem.fixed_loads[0].mask is not None:
        return None
    return next((a for a in WARP_MMA_ATOMS.values() if a.operand == dtype and dtype.bits == 16), None)
