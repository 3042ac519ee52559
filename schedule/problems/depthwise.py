"""Recognises depthwise convolutions with channels last that matrix units can compute, from rows that TMA brings.

For one channel, the outputs of a row of the image are a product with a Toeplitz matrix of the filter's row: eight
neighbouring outputs see at most sixteen positions of the input.
"""

from dataclasses import dataclass

from ...ir.buffer import Buffer
from ...ir.expr import Load, Var
from ...ir.gpu.mma import MmaAtom
from ...ir.linear_form import affine_form
from ...ir.rewrite import free_variables
from ...te.region import Region
from ...te.workload import Axis, Workload
from ..tile.load_analysis import flat_offset
from ..tile.masked_loads import MaskedLoad, conjuncts
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

    @property
    def width(self) -> WindowAxis:
        """How windows move along a row."""
        return self.window.width

    @property
    def height(self) -> WindowAxis:
        """How windows move across the rows."""
        return self.window.height

    @property
    def image_axes(self) -> tuple[Axis, ...]:
        """The axes that number the images."""
        moving = (self.window.channel, self.width.axis, self.height.axis)
        return tuple(a for a in self.window.axes if a not in moving)

    @property
    def rows(self) -> int:
        """How many rows of the input an output sees."""
        return self.height.window_points

    @property
    def has_filter_vectors(self) -> bool:
        """Whether filters of neighbouring channels lie in the order of memory and at multiples of 16 bytes."""
        form = flat_offset(self.filters)
        if form is None or form.coefficient(self.window.channel.name) != 1:
            return False
        taps = [form.coefficient(a.name) for a in self.window.reduction.reduce_axes if a.extent > 1]
        return all(n % CHUNK_CHANNELS == 0 for n in (form.constant, *taps))

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
    if window is None or not window.is_large or any(a.extent > 1 for a in window.unwindowed_axes):
        return None
    atom = window.toeplitz_atom if window.width.positions(OUTPUTS) <= POSITIONS else None
    if atom is None:
        return None
    (pixels,), (filters,) = window.sliding_loads, window.fixed_loads
    image = _image_of(window, pixels) if _is_by_channel(window, filters) else None
    return None if image is None else Depthwise(window, image, filters.load, atom)


def _image_of(window: ReduceWindow, pixels: MaskedLoad) -> Load | None:
    """Return the load of ``pixels`` from a tensor without dimensions of one element: (..., row, column, channel). None
    unless the rows that outputs see are a box of it, and their padding what lies outside of it; and where its pixels
    do not begin at multiples of 16 bytes."""
    load, reduction, height = pixels.load, window.reduction, window.height
    sides = [(n, i) for n, i in zip(load.buffer.shape, load.indices, strict=True) if n > 1]
    long = {a.name for a in (*reduction.axes, *reduction.reduce_axes) if a.extent > 1}
    if not 3 <= len(sides) <= MOST_SIDES or len([a for a in window.axes if a.name in long]) > MOST_SIDES:
        return None
    if height.dilation > 1 or window.channel.extent % CHUNK_CHANNELS or sides[-1][0] % CHUNK_CHANNELS:
        return None
    if pixels.other is not None and (isinstance(pixels.other, Load) or pixels.other.value != 0):
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
    """Return whether each channel has filters of its own, which are those of all images."""
    others = {a.name for a in window.axes if a.extent > 1 and a != window.channel}
    variables = free_variables(filters.load)
    return window.channel.name in variables and variables.isdisjoint(others)
