"""Recognises gradients of depthwise convolutions towards their filters in a workload: for each channel and each tap of
its filter, the sum over all pixels of a gradient and of the pixel of the image that the tap saw."""

from dataclasses import dataclass
from math import prod

from ...core.dtypes import DType, float32
from ...ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Select, conjunction, const
from ...ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...ir.rewrite import loads_of
from ...te.functions import cast
from ...te.workload import Axis, Stage, Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad
from ..tile.stage_body import scalar_at
from .outputs import single_reduction
from .window_overlap import SINGLE, WindowAxis, WindowReduction, address_forms, window_axis

MOST_TAPS = 64
"""Taps of a filter, at most: a thread has an accumulator for each."""
WIDEST_BYTES = 4
"""Bytes of an element, at most."""


MMA_ROWS, MOST_MMA_ROWS, MOST_MMA_COLUMNS = 8, 9, 16
"""Rows of the gradient that a matrix instruction has, and the most rows of a filter in which they meet sixteen rows of
the image; the most columns of a filter, each of which has accumulators."""


@dataclass(frozen=True)
class DepthwiseGradient(WindowReduction):
    """The gradient of a depthwise convolution towards its filters, and what is computed from it.

    ``sliding_loads`` is the load of the image, ``gradients`` that of the gradient towards the outputs, whose pixels the
    reduction runs over. ``height`` and ``width`` say which rows and columns of the image these pixels see: their
    ``window`` is an axis of the taps, which are axes of the result. Either may be ``SINGLE``. Neighbours along
    ``lanes`` are neighbours in memory: a channel, or the columns of the gradient.
    """

    gradients: MaskedLoad
    height: WindowAxis
    lanes: Axis

    @property
    def pixels(self) -> MaskedLoad:
        """The load of the image."""
        return self.sliding_loads[0]

    @property
    def loads(self) -> tuple[MaskedLoad, MaskedLoad]:
        """Both loads."""
        return self.pixels, self.gradients

    @property
    def channels_last(self) -> bool:
        """Whether neighbouring channels are neighbours in memory."""
        return self.lanes in self.axes

    @property
    def tap_axes(self) -> tuple[Axis, ...]:
        """The axes of the result that number the taps, by rows and columns."""
        return tuple(w.window for w in (self.height, self.width) if w.window is not None)

    @property
    def taps(self) -> int:
        """How many taps a filter has."""
        return self.height.window_points * self.width.window_points

    @property
    def channel_axes(self) -> tuple[Axis, ...]:
        """The axes of the result that number the channels; those next to each other in memory come last."""
        found = (a for a in self.axes if a not in self.tap_axes)
        return tuple(sorted(found, key=lambda a: a == self.lanes))

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return prod(a.extent for a in self.channel_axes)

    @property
    def image_axes(self) -> tuple[Axis, ...]:
        """The axes of the reduction that number the images."""
        return tuple(a for a in self.reduction.reduce_axes if a not in (self.height.axis, self.width.axis))

    @property
    def accumulator_dtype(self) -> DType:
        """The dtype in which the products are summed."""
        return self.reduction.tensor.dtype

    @property
    def atom(self) -> MmaAtom | None:
        """The matrix instruction that multiplies rows of the image and of the gradient; None where there is none.
        Columns are neighbours in memory, and windows move by one pixel over neighbouring ones."""
        moves = {(w.stride, w.dilation) for w in (self.height, self.width)}
        rows, columns = self.height.window_points, self.width.window_points
        fits = 2 <= rows <= MOST_MMA_ROWS and 2 <= columns <= MOST_MMA_COLUMNS
        if self.channels_last or moves != {(1, 1)} or not fits:
            return None
        dtypes = {m.load.dtype for m in self.loads}
        return next((a for a in WARP_MMA_ATOMS.values() if dtypes == {a.operand} and a.operand.bits == 16), None)

    def product(self, pixel: Expr, gradient: Expr) -> Expr:
        """Return what a pixel of the image and one of the gradient add to a tap."""
        return Binary(BinaryOp.MUL, cast(pixel, self.accumulator_dtype), cast(gradient, self.accumulator_dtype))


def depthwise_gradient_of(workload: Workload) -> DepthwiseGradient | None:
    """Return the gradient towards filters of a depthwise convolution that a workload is, with what is computed from it
    at the same point; None for any other workload, such as one without channels. Channels stand last, or columns do.
    Products are summed in float32."""
    found = single_reduction(workload)
    if found is None:
        return None
    reduction, outputs = found
    factors = _factors_of(reduction)
    kept = [a for a in reduction.axes if a.extent > 1]
    reduced = [a for a in reduction.reduce_axes if a.extent > 1]
    for pixels, gradients in (factors, factors[::-1]) if factors else ():
        problem = _gradient_of(workload, reduction, outputs, pixels, gradients, kept, reduced)
        if problem is not None:
            return problem
    return None


def _gradient_of(
    workload: Workload,
    reduction: Stage,
    outputs: tuple[Stage, ...],
    pixels: MaskedLoad,
    gradients: MaskedLoad,
    kept: list[Axis],
    reduced: list[Axis],
) -> DepthwiseGradient | None:
    """Return the gradient whose factors are ``pixels`` and ``gradients``; None where they are those of none."""
    forms, others = address_forms([pixels]), address_forms([gradients])
    offsets = [flat_offset(m.load) for m in (pixels, gradients)]
    if forms is None or others is None or None in offsets:
        return None
    along = [window_axis(a, kept, forms) for a in reduced]
    moving = [w for w in along if w is not None and w.window is not None]
    taps = [w.window for w in moving if w.window is not None]
    if None in along or not 1 <= len(moving) <= 2 or len(set(taps)) < len(taps):
        return None
    channels = {a.name for a in kept if a not in taps}
    seen = [m.variables & {a.name for a in kept} for m in (pixels, gradients)]
    if not channels:
        return None
    if seen != [channels | {a.name for a in taps}, channels] or prod(a.extent for a in taps) > MOST_TAPS:
        return None
    if any(w.axis.name not in gradients.variables for w in moving):
        return None
    of_pixels, of_gradients = (o for o in offsets if o is not None)
    moving.sort(key=lambda w: of_pixels.coefficient(w.axis.name), reverse=True)

    def problem(height: WindowAxis, width: WindowAxis, lanes: Axis) -> DepthwiseGradient:
        return DepthwiseGradient(workload, reduction, outputs, (pixels,), width, gradients, height, lanes)

    *above, width = moving
    for a in kept:
        if a.name in channels and of_pixels.coefficient(a.name) == of_gradients.coefficient(a.name) == 1:
            return problem(above[0], width, a) if above else problem(width, SINGLE, a)
    if width.is_contiguous(pixels.load) and of_gradients.coefficient(width.axis.name) == 1:
        return problem(above[0] if above else SINGLE, width, width.axis)
    return None


def _factors_of(reduction: Stage) -> tuple[MaskedLoad, MaskedLoad] | None:
    """Return the loads of what a stage sums the products of, as float32; None where it does anything else."""
    body = reduction.body
    if reduction.reducer != "sum" or reduction.tensor.dtype != float32 or body.dtype != float32:
        return None
    if not isinstance(body, Binary) or body.op is not BinaryOp.MUL:
        return None
    a, b = _factor(body.a), _factor(body.b)
    return None if a is None or b is None or a == b else (a, b)


def _factor(value: Expr) -> MaskedLoad | None:
    """Return the load that ``value`` is, of a float, perhaps with zeros where a mask is false."""
    match value:
        case Cast(value=inner) if value.dtype == float32:
            return _factor(inner)
        case Select(condition=condition, then=then, otherwise=Const(value=0)) if not loads_of(condition):
            found = _factor(then)
            if found is None:
                return None
            terms = [condition] if found.mask is None else [condition, found.mask]
            return MaskedLoad(found.load, conjunction(*terms), const(0, found.load.dtype))
        case Load() if value.dtype.is_float and value.dtype.bytes <= WIDEST_BYTES:
            return MaskedLoad(value)
    return None


def moved(masked: MaskedLoad, at: dict[str, Expr]) -> MaskedLoad:
    """Return ``masked`` at other indices of its axes."""
    load = masked.load
    there = Load(load.buffer, tuple(scalar_at(i, at) for i in load.indices))
    return MaskedLoad(there, None if masked.mask is None else scalar_at(masked.mask, at), masked.other)
