"""Recognises depthwise convolutions with channels last that matrix units can compute, from rows that TMA brings.

For one channel, the outputs of a row of the image are a product with a Toeplitz matrix of the filter's row: eight
neighbouring outputs see at most sixteen positions of the input.
"""

from dataclasses import dataclass

from ...core.dtypes import float32
from ...ir.buffer import Buffer
from ...ir.expr import Binary, BinaryOp, Cast, Expr, Load, Var
from ...ir.gpu.mma import WARP_MMA_ATOMS, MmaAtom
from ...ir.linear_form import affine_form
from ...ir.rewrite import free_variables
from ...te.region import Region
from ...te.workload import Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, conjuncts, masked_loads_of
from .window import ReduceWindow, reduce_window_of
from .window_overlap import WindowAxis

MOST_SIDES = 5
"""Dimensions of a box that TMA moves."""
CHUNK_CHANNELS = 8
"""Channels of 16 bytes."""
OUTPUTS, POSITIONS = 8, 16
"""Neighbouring outputs of a Toeplitz matrix, and the positions that it has room for."""


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution, and what is computed from it. ``pixels`` and ``filters`` are its factors, which ``atom``
    multiplies. Windows move by one pixel. ``pixels`` is a load of a tensor with the dimensions row, column and channel
    at the end. It may read outside of it, where zeros are."""

    window: ReduceWindow
    pixels: Load
    filters: Load
    atom: MmaAtom
    height: WindowAxis

    @property
    def width(self) -> WindowAxis:
        return self.window.width

    @property
    def rows(self) -> int:
        """How many rows of the input an output sees."""
        return self.height.window_points

    @property
    def stores_pixels(self) -> bool:
        """Whether there is one output, of the dtype of the pixels, so that it may lie in their place."""
        outputs = self.window.outputs
        return len(outputs) == 1 and outputs[0].tensor.dtype == self.pixels.dtype


def depthwise_of(workload: Workload) -> Depthwise | None:
    """Return the depthwise convolution that a workload is; None for any other workload. Its factors have 16 bits, its
    sums are float32, and its windows move by one pixel, have several rows, and reach over at most nine pixels of each.
    Smaller windows take no longer than memory does without matrix units."""
    window = reduce_window_of(workload)
    if window is None or window.height is None or window.combine is not BinaryOp.ADD or not window.is_large:
        return None
    if any(a.extent > 1 for a in window.unwindowed_axes) or window.reduction.tensor.dtype != float32:
        return None
    if window.width.stride != 1 or window.height.stride != 1 or window.width.positions(OUTPUTS) > POSITIONS:
        return None
    factors = factors_of(window.reduction.body)
    if len(window.sliding_loads) != 1 or len(window.fixed_loads) != 1 or factors is None:
        return None
    (pixels,), (filters,) = window.sliding_loads, window.fixed_loads
    if {pixels, filters} != set(factors) or filters.mask is not None or not _is_by_channel(window, filters):
        return None
    dtype = pixels.load.dtype
    atom = next((a for a in WARP_MMA_ATOMS.values() if a.operand == dtype and dtype.bits == 16), None)
    if atom is None or filters.load.dtype != dtype:
        return None
    image = _image_of(window, window.height, pixels)
    return None if image is None else Depthwise(window, image, filters.load, atom, window.height)


def _image_of(window: ReduceWindow, height: WindowAxis, pixels: MaskedLoad) -> Load | None:
    """Return the load of ``pixels`` from a tensor without dimensions of one element: (..., row, column, channel). None
    unless the rows that outputs see are a box of it, and their padding what lies outside of it; and where its pixels
    do not begin at multiples of 16 bytes."""
    load, reduction = pixels.load, window.reduction
    sides = [(n, i) for n, i in zip(load.buffer.shape, load.indices, strict=True) if n > 1]
    long = {a.name for a in (*reduction.axes, *reduction.reduce_axes) if a.extent > 1}
    if not 3 <= len(sides) <= MOST_SIDES or len([a for a in window.axes if a.name in long]) > MOST_SIDES:
        return None
    if height.dilation > 1 or window.channel.extent % CHUNK_CHANNELS or sides[-1][0] % CHUNK_CHANNELS:
        return None
    if pixels.other is not None and pixels.other.value != 0:
        return None
    *outer, row, column, channel = (i for _, i in sides)
    moving = {window.channel.name}
    for axis, at in ((height, row), (window.width, column)):
        steps = {a.name: n for a, n in ((axis.axis, 1), (axis.window, axis.dilation)) if a is not None and a.extent > 1}
        form = affine_form(at)
        if form is None or {n: c for n, c in form.coefficients.items() if n in long} != steps:
            return None
        moving |= set(steps)
    if channel != Var(window.channel.name) or any(free_variables(i) & moving for i in outer):
        return None
    region = Region({a.name: (0, a.extent - 1) for a in (*reduction.axes, *reduction.reduce_axes)})
    for extent, at in sides:
        region = region.where(at >= 0, True).where(at < extent, True)
    if any(not region.where(term, False).is_empty for term in conjuncts(pixels.mask)):
        return None
    return Load(Buffer(load.buffer.name, tuple(n for n, _ in sides), load.buffer.dtype), tuple(i for _, i in sides))


def _is_by_channel(window: ReduceWindow, filters: MaskedLoad) -> bool:
    """Return whether each channel has filters of its own, which are those of all images, in the order of memory and at
    multiples of 16 bytes."""
    form = flat_offset(filters.load)
    if form is None or form.coefficient(window.channel.name) != 1:
        return False
    others = {a.name for a in window.axes if a.extent > 1 and a != window.channel}
    if not free_variables(filters.load).isdisjoint(others):
        return False
    taps = [form.coefficient(a.name) for a in window.reduction.reduce_axes if a.extent > 1]
    return all(n % CHUNK_CHANNELS == 0 for n in (form.constant, *taps))


def factors_of(body: Expr) -> tuple[MaskedLoad, MaskedLoad] | None:
    """Return the two loads that ``body`` multiplies as float32; None where it is anything else."""
    match body:
        case Binary(op=BinaryOp.MUL, a=Cast(value=a, type=left), b=Cast(value=b, type=right)) if (
            left == right == float32
        ):
            found = (*masked_loads_of(a), *masked_loads_of(b))
            return (found[0], found[1]) if len(found) == 2 else None
    return None
