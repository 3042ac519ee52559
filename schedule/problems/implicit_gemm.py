"""Convolutions as matrix products whose left operand is never written: implicit GEMM.

    m   output pixels of all images      n   filters      k   taps of the window, each with all channels
    a batch of products                  groups

The channels of an image must be its fastest dimension (NHWC and its kin). The window may have one to three dimensions,
with padding, strides and dilations of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.buffer import Buffer
from ...ir.expr import Cast, Compare, CompareOp, Const, Expr, Load, Logic, LogicOp, Select, Var, index
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import substitute
from ...te.workload import Axis, Workload
from ..tile.delinearize import axis_indices, delinearize
from .gemm import Gemm, Operand, Sides, sides_of
from .image_window import TAP, ImageWindow


def implicit_gemm_of(workload: Workload, patch: tuple[int, ...] = ()) -> Gemm | None:
    """``workload`` as a product with a ``window``; None where it is no convolution, or not one of such images.

    ``patch``: one of ``ImageWindow.patches``; by default the rows are the output pixels in their order.
    """
    found = sides_of(workload, joined=True)
    for sides in () if found is None else (found, replace(found, rows=found.columns, columns=found.rows)):
        product = _product(sides, patch)
        if product is not None:
            return product
    return None


def _product(sides: Sides, patch: tuple[int, ...]) -> Gemm | None:
    """The product with the pixels of images as its rows."""
    pixels = _pixels_of(sides)
    if pixels is None:
        return None
    weights, window, rows = _weights_of(sides, pixels), pixels.window, None
    if patch:
        window = replace(window, patch=patch)
        named = zip(pixels.rows, window.position(Var("m")), strict=True)
        rows = {name: position for name, position in named if name is not None}
    product = sides.product(sides.rows, sides.columns, rows) if weights is not None else None
    if product is None or weights is None or product.results[0].step("n") != 1:
        return None
    group = index(0) if not product.batch else Var(product.batch[0].name) * window.channels
    image = Load(pixels.image, (*window.corner(Var("m")), group + Var("k")))
    a, b = Operand(image, image, 0, 1), Operand(weights, weights, 0, 0)
    return replace(product, a=a, b=b, k=Axis("k", window.tap_count * window.channels), window=window)


@dataclass(frozen=True, slots=True)
class _Pixels:
    """One factor as images seen through a window. ``image``: (number, spatial dimensions, channel of all groups).
    ``rows``: the axes over images and along each spatial dimension, None where there is one pixel. ``taps``: the axis
    of ``k`` along each spatial dimension, None where the window has one place. ``channel``: that over channels."""

    image: Buffer
    window: ImageWindow
    rows: tuple[str | None, ...]
    taps: tuple[str | None, ...]
    channel: str


def _pixels_of(sides: Sides) -> _Pixels | None:
    """The rows as such images; None where they are anything else."""
    load, conditions = _guarded_load(_at_zero(sides.rows.body, sides))
    if load is None or len(sides.batch) > 1:
        return None
    forms, shape = [linear_form(i) for i in load.indices], load.buffer.shape
    if any(not isinstance(t, Var) for form in forms for t in form.terms):
        return None
    if not all(_keeps_inside(c, forms, shape) for c in conditions):
        return None
    *forms, last = forms
    groups = 1
    if sides.batch:
        if not forms or _plain(forms.pop()) != sides.batch[0].name:
            return None
        groups = sides.batch[0].extent
    channel, k = _plain(last), {a.name: a.extent for a in sides.k}
    outer = list(shape[: len(forms)])
    if channel not in k or k[channel] != shape[-1] or shape[len(forms) : -1] != ((groups,) if sides.batch else ()):
        return None
    rows = {a.name: a.extent for a in sides.rows.axes}
    first = _plain(forms[0]) if forms else None
    numbered = bool(forms) and (rows.get(first or "") == outer[0] or (outer[0] == 1 and not forms[0].terms))
    if not numbered:
        forms, outer = [LinearForm({}), *forms], [1, *outer]
    found = [_side(form, rows, k) for form in forms[1:]]
    known = [side for side in found if side is not None]
    order = [name for name in (_plain(forms[0]), *(s.row for s in known)) if name is not None]
    taps = tuple(s.tap for s in known)
    used = [channel, *(tap for tap in taps if tap is not None)]
    if len(known) < len(found) or not 1 <= len(known) <= 3 or order != list(rows) or sorted(used) != sorted(k):
        return None
    window = ImageWindow(
        outer[0],
        tuple(1 if s.tap is None else k[s.tap] for s in known),
        tuple(s.dilation for s in known),
        tuple(1 if s.row is None else rows[s.row] for s in known),
        tuple(s.stride for s in known),
        tuple(s.lower for s in known),
        shape[-1],
    )
    image = Buffer(load.buffer.name, (*outer, groups * shape[-1]), load.buffer.dtype)
    return _Pixels(image, window, (_plain(forms[0]), *(s.row for s in known)), taps, channel)


@dataclass(frozen=True, slots=True)
class _SpatialSide:
    """One spatial dimension: pixel ``lower + stride * row + dilation * tap``. ``row`` and ``tap`` are names of axes, or
    None."""

    row: str | None
    tap: str | None
    stride: int
    dilation: int
    lower: int


def _side(form: LinearForm, rows: Mapping[str, int], k: Mapping[str, int]) -> _SpatialSide | None:
    """The index of a spatial dimension; None where it is no sum of at most one axis of each kind."""
    own, taps = ([name for name in form.variables if name in names] for names in (rows, k))
    if len(own) > 1 or len(taps) > 1 or len(own) + len(taps) < len(form.variables):
        return None
    if any(c < 1 for c in form.coefficients.values()):
        return None
    row, tap = (names[0] if names else None for names in (own, taps))
    stride, dilation = (1 if name is None else form.coefficient(name) for name in (row, tap))
    return _SpatialSide(row, tap, stride, dilation, form.constant)


def _weights_of(sides: Sides, pixels: _Pixels) -> Load | None:
    """The columns as a load of filters, on ``TAP``, ``k`` (the channel), ``n`` and the batch; None where they are
    anything else."""
    body = _at_zero(sides.columns.body, sides)
    load = body.value if isinstance(body, Cast) else body
    if not isinstance(load, Load) or any(
        linear_form(i).constant or len(linear_form(i).terms) > 1 for i in load.indices
    ):
        return None
    digits = delinearize(Var(TAP), pixels.window.taps)
    at: dict[str, Expr] = {tap: digit for tap, digit in zip(pixels.taps, digits, strict=True) if tap is not None}
    at[pixels.channel] = Var("k")
    at |= {old.name: Var(new.name) for old, new in zip(sides.batch, sides.new_batch, strict=True)}
    found = substitute(load, {**at, **axis_indices(Var("n"), sides.columns.axes)})
    assert isinstance(found, Load)
    return found


def _at_zero(body: Expr, sides: Sides) -> Expr:
    """``body`` with the index 0 along all axes of one element."""
    stage = sides.stage
    return substitute(body, {a.name: index(0) for a in (*stage.axes, *stage.reduce_axes) if a.extent == 1})


def _guarded_load(body: Expr) -> tuple[Load | None, Sequence[Expr]]:
    """The load that ``body`` is, apart from casts, and on which conditions; it is zero elsewhere."""
    while isinstance(body, Cast):
        body = body.value
    if isinstance(body, Select):
        inner, conditions = _guarded_load(body.then)
        otherwise = body.otherwise.value if isinstance(body.otherwise, Cast) else body.otherwise
        if not isinstance(otherwise, Const) or otherwise.value != 0:
            return None, ()
        return inner, (*conditions, *_conjuncts(body.condition))
    return (body, ()) if isinstance(body, Load) else (None, ())


def _conjuncts(condition: Expr) -> Sequence[Expr]:
    if isinstance(condition, Logic) and condition.op is LogicOp.AND:
        return (*_conjuncts(condition.a), *_conjuncts(condition.b))
    return (condition,)


def _keeps_inside(condition: Expr, forms: Sequence[LinearForm], shape: Sequence[int]) -> bool:
    """Whether a condition says that some index is at least 0, or below the extent of its dimension."""
    if not isinstance(condition, Compare):
        return False
    difference = linear_form(condition.a) - linear_form(condition.b)
    for form, extent in zip(forms, shape, strict=True):
        match condition.op:
            case CompareOp.GE if difference == form:
                return True
            case CompareOp.GT if difference == form + 1:
                return True
            case CompareOp.LT if difference == form - extent:
                return True
            case CompareOp.LE if difference == form - (extent - 1):
                return True
    return False


def _plain(form: LinearForm) -> str | None:
    """The variable that a form is; None where it is anything else."""
    names = form.variables
    return names[0] if len(names) == 1 and form.coefficient(names[0]) == 1 and not form.constant else None
