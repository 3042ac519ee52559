"""Images seen through windows, as the right operands of products: convolutions whose outputs lie along the width.

A window that moves pixel by pixel sees the same pixels again and again, shifted: the rows of an image with its margins,
behind one another, have every operand of the products in them, at distances that are the same for all columns. The
columns are then the places of that row of rows; those in its margins are computed and thrown away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.dtypes import INDEX
from ...ir.expr import Expr, Load, Var, rebuild, walk
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, loads_of, substitute
from ...te.workload import Axis, Workload
from ..tile.delinearize import places
from .gemm import Gemm, Side, Sides, flat_steps, goes_along, sides_of

ROW, PIXEL, CHANNEL = "image_row", "image_pixel", "image_channel"
"""What the axes of an image are called."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of ``extents``, whose places are the fastest of ``k``; neighbours are ``rows_apart`` and
    ``pixels_apart``, one of the two 0. ``body``: the image with its margins, on ``ROW``, ``PIXEL``, ``CHANNEL`` and the
    batch. ``pixels``: of its rows; ``more_rows``: than the outputs have."""

    body: Expr
    pixels: int
    more_rows: int
    extents: tuple[int, ...]
    rows_apart: tuple[int, ...]
    pixels_apart: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """The columns ``n`` of a product as ``rows`` of ``pixels``. ``body``: the right operand on ``ROW``, ``PIXEL``,
    ``k`` and the batch; it reads neighbours for neighbouring pixels of a row. ``windows``: None where they do not move
    one by one."""

    body: Expr
    rows: int
    pixels: int
    windows: Windows | None


def image_product_of(workload: Workload) -> tuple[Gemm, Image] | None:
    """``workload`` as a product with such a right operand; None where it is none. The rest of the product is as in
    ``gemm_of``."""
    found = sides_of(workload, joined=True)
    for sides in () if found is None else found.alternatives():
        for short, tall in ((sides.rows, sides.columns), (sides.columns, sides.rows)):
            product = sides.product(short, tall)
            if product is None or len(tall.axes) < 2 or product.results[0].step("n") != 1:
                continue
            *rows, pixel = tall.axes
            at = {**sides.shared_places, **places(Var(ROW), rows), pixel.name: Var(PIXEL)}
            windows = _windows_of(sides, tall) if len(rows) == 1 else None
            image = Image(substitute(tall.body, at), tall.extent // pixel.extent, pixel.extent, windows)
            if goes_along(replace(product, b=product.a)) and _reads_neighbours(image):
                return product, image
    return None


def _reads_neighbours(image: Image) -> bool:
    for load in loads_of(image.body):
        form = flat_steps(load)
        apart = [e for e in form.without((Var(PIXEL),)).terms if Var(PIXEL) in walk(e)]
        if form.coefficient(PIXEL) != 1 or apart:
            return False
    return True


def _windows_of(sides: Sides, tall: Side) -> Windows | None:
    """The windows through which ``tall`` is seen: the last axes of ``k`` that only ever move its rows or its pixels."""
    row, pixel = tall.axes
    steps: dict[str, dict[str, int]] = {row.name: {}, pixel.name: {}}
    forms = _index_forms(tall.body)
    window: list[Axis] = []
    for axis in reversed(sides.k):
        found = _moves(axis, steps, forms)
        if found is None:
            break
        moved, step = found
        steps[moved][axis.name] = step
        window.insert(0, axis)
    channels = sides.k[: len(sides.k) - len(window)]
    at = {**sides.shared_places, **places(Var(CHANNEL), channels), row.name: Var(ROW), pixel.name: Var(PIXEL)}
    body = _unmoved(tall.body, steps)
    if body is None or not window:
        return None
    rows, pixels = (tuple(steps[name].get(a.name, 0) for a in window) for name in (row.name, pixel.name))

    def more(apart: Sequence[int]) -> int:
        return sum((a.extent - 1) * step for a, step in zip(window, apart, strict=True))

    extents = tuple(a.extent for a in window)
    return Windows(substitute(body, at), pixel.extent + more(pixels), more(rows), extents, rows, pixels)


def _index_forms(body: Expr) -> list[LinearForm]:
    """All indices and what conditions compare, as linear forms."""
    if body.dtype == INDEX and not isinstance(body, Load):
        return [linear_form(body)]
    return [form for child in body.children for form in _index_forms(child)]


def _moves(axis: Axis, steps: Mapping[str, Mapping[str, int]], forms: list[LinearForm]) -> tuple[str, int] | None:
    """Which of two axes ``axis`` moves, and how far, by the first form that it is in; None where it moves none."""
    for form in forms:
        own = form.coefficient(axis.name)
        for name in steps if own else ():
            per = form.coefficient(name)
            if per > 0 and own > 0 and own % per == 0:
                return name, own // per
    return None


def _unmoved(body: Expr, steps: Mapping[str, Mapping[str, int]]) -> Expr | None:
    """``body`` at the first place of every window; None unless at all others it is the same, moved by ``steps``."""
    if body.dtype == INDEX and not isinstance(body, Load):
        form = linear_form(body)
        inner = {name for moved in steps.values() for name in moved}
        apart = {name for e in form.terms if not isinstance(e, Var) for name in free_variables(e)}
        if apart & (inner | set(steps)):
            return None
        for name, moved in steps.items():
            per = form.coefficient(name)
            if any(form.coefficient(axis) != per * step for axis, step in moved.items()):
                return None
        return form.without(map(Var, inner)).to_expr()
    children = [_unmoved(child, steps) for child in body.children]
    return None if any(c is None for c in children) else rebuild(body, [c for c in children if c is not None])
