"""Convolutions as matrix products whose outputs lie along the width: the right operand is an image seen through a
window.

A window that moves pixel by pixel sees the same pixels again and again, shifted. Lay the rows of the padded image
behind one another: every operand of the products is in them, at a distance that is the same for all columns. The
columns of the product are then the pixels of that row of rows; those in the padding are computed and thrown away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.dtypes import INDEX
from ...ir.expr import Expr, Load, Var, rebuild, walk
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, loads_of, substitute
from ...te.workload import Axis, Workload
from ..tile.delinearize import axis_indices
from .gemm import Gemm, Side, Sides, element_form, has_constant_strides, sides_of

MOST_STEP = 4
"""From one pixel to the next in a row, windows move by so many elements at most: vectors of them are shuffled from the
vectors that they lie in."""
ROW, PIXEL, CHANNEL = "image_row", "image_pixel", "image_channel"
"""The names of the axes of an image."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window of ``extents``, whose positions are the fastest axes of ``k``. From one position to the next along an
    axis it moves by ``row_steps`` rows or by ``pixel_steps`` pixels; one of the two is 0.

    ``body``: the padded image, on ``ROW``, ``PIXEL``, ``CHANNEL`` and the batch. ``padded_width``: pixels of one of its
    rows. ``halo_rows``: how many rows more than the outputs it has.
    """

    body: Expr
    padded_width: int
    halo_rows: int
    extents: tuple[int, ...]
    row_steps: tuple[int, ...]
    pixel_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionColumns:
    """The columns ``n`` of a product as ``rows`` rows of ``width`` output pixels.

    ``body``: the right operand on ``ROW``, ``PIXEL``, ``k`` and the batch; for neighbouring pixels of a row it reads
    elements that are ``step`` apart. ``window``: None where windows do not move pixel by pixel.
    """

    body: Expr
    rows: int
    width: int
    step: int
    window: SlidingWindow | None


def convolution_of(workload: Workload) -> tuple[Gemm, ConvolutionColumns] | None:
    """``workload`` as a product with such a right operand; None where it is none. The rest of the product is as in
    ``gemm_of``."""
    found = sides_of(workload, joined=True)
    for sides in () if found is None else found.alternatives():
        for filters, pixels in ((sides.rows, sides.columns), (sides.columns, sides.rows)):
            product = sides.product(filters, pixels)
            if product is None or len(pixels.axes) < 2 or product.results[0].step("n") != 1:
                continue
            *rows, pixel = pixels.axes
            at = {**sides.shared_indices, **axis_indices(Var(ROW), rows), pixel.name: Var(PIXEL)}
            window = _window_of(sides, pixels) if len(rows) == 1 else None
            body = substitute(pixels.body, at)
            step = _step(body)
            if step is not None and has_constant_strides(replace(product, b=product.a)):
                rows_of_pixels = pixels.extent // pixel.extent
                return product, ConvolutionColumns(body, rows_of_pixels, pixel.extent, step, window)
    return None


def _step(body: Expr) -> int | None:
    """Return how far apart elements are that neighbouring pixels of a row read; None where that varies, or is more than
    ``MOST_STEP``."""
    steps = set[int]()
    for load in loads_of(body):
        form = element_form(load)
        uneven = [t for t in form.terms if t != Var(PIXEL) and Var(PIXEL) in walk(t)]
        steps.add(0 if uneven else form.terms.get(Var(PIXEL), 0))
    return max(steps) if steps and min(steps) >= 1 and max(steps) <= MOST_STEP else None


def _window_of(sides: Sides, pixels: Side) -> SlidingWindow | None:
    """Return the window through which ``pixels`` are seen: the last axes of ``k`` that do nothing but move its rows or
    its pixels."""
    row, pixel = pixels.axes
    steps: dict[str, dict[str, int]] = {row.name: {}, pixel.name: {}}
    forms = _index_forms(pixels.body)
    window: list[Axis] = []
    for axis in reversed(sides.k):
        found = _moves(axis, steps, forms)
        if found is None:
            break
        moved, step = found
        steps[moved][axis.name] = step
        window.insert(0, axis)
    channels = sides.k[: len(sides.k) - len(window)]
    at = {**sides.shared_indices, **axis_indices(Var(CHANNEL), channels), row.name: Var(ROW), pixel.name: Var(PIXEL)}
    body = _at_first_position(pixels.body, steps)
    if body is None or not window:
        return None
    row_steps, pixel_steps = (tuple(steps[name].get(a.name, 0) for a in window) for name in (row.name, pixel.name))

    def reach(per_position: Sequence[int]) -> int:
        """Return how far the last position of the window is from the first."""
        return sum((a.extent - 1) * step for a, step in zip(window, per_position, strict=True))

    extents = tuple(a.extent for a in window)
    padded_width = pixel.extent + reach(pixel_steps)
    return SlidingWindow(substitute(body, at), padded_width, reach(row_steps), extents, row_steps, pixel_steps)


def _index_forms(body: Expr) -> list[LinearForm]:
    """Return all indices, and what conditions compare, as linear forms."""
    if body.dtype == INDEX and not isinstance(body, Load):
        return [linear_form(body)]
    return [form for child in body.children for form in _index_forms(child)]


def _moves(axis: Axis, steps: Mapping[str, Mapping[str, int]], forms: list[LinearForm]) -> tuple[str, int] | None:
    """Return which of two axes ``axis`` moves, and how far, by the first form that it is in; None where it moves
    none."""
    for form in forms:
        own = form.coefficient(axis.name)
        for name in steps if own else ():
            per = form.coefficient(name)
            if per > 0 and own > 0 and own % per == 0:
                return name, own // per
    return None


def _at_first_position(body: Expr, steps: Mapping[str, Mapping[str, int]]) -> Expr | None:
    """``body`` at the first position of the window. None unless it is the same at all others, moved by ``steps``."""
    if body.dtype == INDEX and not isinstance(body, Load):
        form = linear_form(body)
        inner = {name for moved in steps.values() for name in moved}
        in_other_terms = {name for t in form.terms if not isinstance(t, Var) for name in free_variables(t)}
        if in_other_terms & (inner | set(steps)):
            return None
        for name, moved in steps.items():
            per = form.coefficient(name)
            if any(form.coefficient(axis) != per * step for axis, step in moved.items()):
                return None
        return form.without(map(Var, inner)).to_expr()
    children = [_at_first_position(child, steps) for child in body.children]
    return None if any(c is None for c in children) else rebuild(body, [c for c in children if c is not None])
