"""Recognises reductions over windows whose points have weights and whose rows are contiguous in memory, such as
depthwise convolution with channels first, in a workload."""

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
    """A reduction over windows along the innermost axis, and perhaps the one before it, and what is computed from it.

    ``reduction``: the stage that reduces each window. ``outputs``: the stored stages, on the axes of the reduction;
    their bodies load the reduction at their own point, and inputs. ``sliding_loads``: the loads of the reduction that
    neighbouring outputs share: neighbouring positions of a row are neighbours in memory. ``fixed_loads``: its other
    loads, which are the same for all outputs of a plane, such as those of filters. ``width``, ``height``: how windows
    move along the innermost axis and along the one before it. ``height`` is None where they move along rows alone; each
    row is a plane of its own then.
    """

    workload: Workload
    reduction: Stage
    outputs: tuple[Stage, ...]
    sliding_loads: tuple[MaskedLoad, ...]
    fixed_loads: tuple[MaskedLoad, ...]
    width: WindowAxis
    height: WindowAxis | None

    @property
    def plane_axes(self) -> tuple[Axis, ...]:
        """The axes that number the planes."""
        moving = [self.width.axis, *([self.height.axis] if self.height is not None else [])]
        return tuple(a for a in self.reduction.axes if a not in moving)

    @property
    def filter_axes(self) -> tuple[Axis, ...]:
        """Those of ``plane_axes`` that filters depend on."""
        free = {name for m in self.fixed_loads for name in _free(m)}
        return tuple(a for a in self.plane_axes if a.name in free)

    @property
    def output_height(self) -> int:
        """The rows of outputs of a plane."""
        return self.height.axis.extent if self.height is not None else 1

    @property
    def window_height(self) -> int:
        """How many rows of the input a window has."""
        return self.height.window_points if self.height is not None else 1

    @property
    def points(self) -> int:
        """How many points a window has."""
        return self.window_height * self.width.window_points

    @property
    def combine(self) -> BinaryOp:
        """How two points of a window are combined."""
        assert self.reduction.reducer is not None
        return COMBINE[self.reduction.reducer]

    def reduce_axes_of(self, masked: MaskedLoad) -> tuple[Axis, ...]:
        """Return the axes of the reduction, longer than 1, that a load depends on."""
        free = _free(masked)
        return tuple(a for a in self.reduction.reduce_axes if a.name in free and a.extent > 1)


def plane_window_of(workload: Workload) -> PlaneWindow | None:
    """Return the windows of a workload that is one reduction over windows along the innermost axis, or along the two
    innermost ones, and what is computed from it at the same point. None for any other workload, for windows that span
    more positions of a row than registers hold, for those of which neighbours share no input, where points of a window
    have no weights, and for planes of the input with more than ``MOST_FILTERS`` filters."""
    inlined = inline_stages(workload)
    reductions = [s for s in inlined.stages if s.reducer is not None]
    if len(reductions) != 1 or reductions[0].reducer not in COMBINE:
        return None
    (reduction,) = reductions
    kept, reduced = ([a for a in axes if a.extent > 1] for axes in (reduction.axes, reduction.reduce_axes))
    if not kept or not 1 <= len(reduced) <= 2:
        return None
    loads = masked_loads_of(reduction.body)
    found = _windows(loads, kept[-2:], reduced) or _windows(loads, kept[-1:], reduced)
    if found is None:
        return None
    height, width = found
    moving = {w.axis.name for w in found if w is not None}
    sliding = tuple(m for m in loads if _free(m) & moving)
    fixed = tuple(m for m in loads if m not in sliding)
    points = {w.window.name for w in found if w is not None and w.window is not None}
    if not any(_free(m) & points for m in fixed) or not all(_moves(m, width, height) for m in sliding):
        return None
    outputs = outputs_of_reduction(inlined, reduction)
    if outputs is None:
        return None
    problem = PlaneWindow(workload, reduction, outputs, sliding, fixed, width, height)
    seen = {name for m in sliding for name in _free(m)}
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
) -> tuple[WindowAxis | None, WindowAxis] | None:
    """Return how windows move along (height, width), which ``axes`` are, or along a width alone. None unless the axes
    of the reduction are those of such windows, and neighbours share some of the input."""
    moving = {a.name for a in axes}
    forms = address_forms([m for m in loads if _free(m) & moving])
    if forms is None:
        return None
    *above, width = [window_axis(a, reduced, forms) for a in axes]
    height = above[0] if above else None
    if width is None or (above and (height is None or height.window is None)):
        return None
    windows = [w for w in (height, width) if w is not None and w.window is not None]
    if len(windows) != len(reduced) or {w.window for w in windows} != set(reduced):
        return None
    return (height, width) if all(w.stride < w.window_points for w in windows) else None


def _moves(masked: MaskedLoad, width: WindowAxis, height: WindowAxis | None) -> bool:
    """Return whether a load moves with the window along the width, by elements next to each other, and along the
    height."""
    offset, free = flat_offset(masked.load), free_variables(masked.load)
    if offset is None or offset.coefficient(width.axis.name) != width.stride:
        return False
    if width.window is not None and offset.coefficient(width.window.name) != width.dilation:
        return False
    return height is None or {a.name for a in (height.axis, height.window) if a is not None} <= free


def _free(masked: MaskedLoad) -> frozenset[str]:
    """Return the variables that the load and its mask depend on."""
    mask = free_variables(masked.mask) if masked.mask is not None else frozenset()
    return free_variables(masked.load) | mask


def toeplitz_atom(problem: PlaneWindow) -> MmaAtom | None:
    """Return the matrix instruction that multiplies rows of the input by Toeplitz matrices of the filter's rows; None
    where there is none. Windows are sums of products of one element of the input and of the filter, of 16-bit floats as
    float32, and move by one position."""
    moving = [w for w in (problem.width, problem.height) if w is not None]
    if problem.combine is not BinaryOp.ADD or any(w.stride != 1 for w in moving):
        return None
    factors, dtype = factors_of(problem.reduction.body), problem.sliding_loads[0].load.dtype
    if factors is None or set(factors) != {*problem.sliding_loads, *problem.fixed_loads} or len(factors) != 2:
        return None
    if problem.reduction.tensor.dtype != float32 or any(m.load.dtype != dtype for m in factors):
        return None
    if problem.fixed_loads[0].mask is not None:
        return None
    return next((a for a in WARP_MMA_ATOMS.values() if a.operand == dtype and dtype.bits == 16), None)
