"""The gradient of a convolution towards its filters as a matrix product whose right operand is never written.

    m   filters      n   taps of the window, each with all channels      k   output pixels of all images

Its left operand is the gradient of the output, (pixel, filter). The right one is what the window sees of the images:

    B[k, (tap, channel)] = image[number(k), start(k) + dilation * tap, channel]

The channels of both tensors must be their fastest dimension (NHWC and its kin). The window may have one to three
dimensions, with padding, strides and dilations of their own. Each tap has its channels rounded up to whole units. What
belongs to no channel is zero, and no result has a place for it.

Pixels may come in the order of memory, or patch by patch (``image_window``). If patches have a halo, the taps that read
from one follow one another along n, unit by unit:

    n   (other taps, unit of channels, tap along the halo, channel of a unit)
"""

from dataclasses import dataclass, replace

from ...ir.buffer import Buffer
from ...ir.expr import Expr, Load, Var, index
from ...ir.linear_form import linear_form
from ...ir.rewrite import loads_of
from ...te.workload import Axis, Workload
from ..tile.delinearize import delinearize
from .gemm import Gemm, Operand, Side, Sides, has_constant_strides, sides_of
from .image_window import ImageWindow
from .implicit_gemm import pixels_of


@dataclass(frozen=True, slots=True)
class ProductColumn:
    """What a column of the right operand is: a ``channel`` of the place ``taps`` of the window."""

    taps: tuple[Expr, ...]
    channel: Expr

    def offsets(self, window: ImageWindow) -> tuple[Expr, ...]:
        """Return how far the tap lies from the corner of ``window`` along each dimension, in pixels."""
        return tuple(tap * dilation for tap, dilation in zip(self.taps, window.dilations, strict=True))


def column_of(window: ImageWindow, n: Expr, unit: int) -> ProductColumn:
    """Return what column ``n`` is of a product whose channels come in units of so many."""
    if window.halo is None:
        tap, channel = (n // window.channels, n % window.channels) if window.tap_count > 1 else (index(0), n)
        return ProductColumn(delinearize(tap, window.taps), channel)
    *others, block, together, channel = delinearize(
        n,
        (
            *(taps for d, taps in enumerate(window.taps) if d != window.halo),
            *(window.channels // unit, window.halo_taps, unit),
        ),
    )
    return ProductColumn((*others[: window.halo], together, *others[window.halo :]), block * unit + channel)


def weight_gradient_of(
    workload: Workload, unit: int, patch: tuple[int, ...] = (), halo: int | None = None
) -> Gemm | None:
    """``workload`` as a product with a ``b_window``, whose ``channels`` are a multiple of ``unit``; None where it is no
    such gradient, or not one of such images. ``patch`` and ``halo`` are those of the window. Patches must have all
    pixels, and no others."""
    found = sides_of(workload, joined=True)
    for sides in () if found is None else (found, replace(found, rows=found.columns, columns=found.rows)):
        product = _product(sides, unit, patch, halo)
        if product is not None:
            return product
    return None


def _product(sides: Sides, unit: int, patch: tuple[int, ...], halo: int | None) -> Gemm | None:
    """Return the product whose columns are what a window sees of images."""
    pixels, own = _in_order(sides), sides.columns
    seen = None if sides.batch else pixels_of(replace(sides, rows=Side(own.body, pixels), k=own.axes))
    if seen is None or seen.channel is None or any(seen.backwards):
        return None
    channels = seen.window.channels
    window = replace(seen.window, channels=-(-channels // unit) * unit, patch=patch, halo=halo)
    column, n = column_of(window, Var("n"), unit), Axis("n", window.tap_count * window.channels)
    at = {name: tap for name, tap in zip(seen.taps, column.taps, strict=True) if name is not None}
    at[seen.channel] = column.channel
    product = replace(sides, k=pixels).product(sides.rows, own, columns=at, part=True)
    if product is None or product.a.load is None or not has_constant_strides(replace(product, b=product.a, results=())):
        return None
    a = _in_patches(product, window) if patch else product.a
    image = Load(seen.image, (*window.corner(Var("k")), column.channel))
    results = product.results
    if channels < window.channels:
        results = tuple(replace(r, inside=(*r.inside, column.channel < channels)) for r in results)
    b = Operand(image, image, 1, seen.image.shape[-1])
    return None if a is None else replace(product, a=a, b=b, n=n, results=results, b_window=window)


def _in_patches(gemm: Gemm, window: ImageWindow) -> Operand | None:
    """Return the left operand with its pixels patch by patch; None where it has any others."""
    a, filters = gemm.a, gemm.m.extent
    assert a.load is not None
    tensor = a.load.buffer
    if (a.row, a.k, tensor.elements, window.rows) != (1, filters, filters * gemm.k.extent, gemm.k.extent):
        return None
    images = Buffer(tensor.name, (window.images, *window.positions, filters), tensor.dtype, tensor.scope)
    load = Load(images, (*window.position(Var("k")), Var("m")))
    return replace(a, body=load, load=load)


def _in_order(sides: Sides) -> tuple[Axis, ...]:
    """Return the axes of the sum in the order of the dimensions that the columns read by them."""
    indices = (i for load in loads_of(sides.columns.body) for i in load.indices)
    found = dict.fromkeys(name for i in indices for name in linear_form(i).variables)
    return tuple(axis for name in found for axis in sides.k if axis.name == name)
