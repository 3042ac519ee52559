"""Convolutions as matrix products whose left operand is never written: implicit GEMM.

    m   output pixels of all images      n   filters      k   taps of the window, each with all channels
    a batch of products                  groups, and phases of a transposed convolution

The channels of an image must be its fastest dimension (NHWC and its kin), unless they count as taps. The window may
have one to three dimensions, with padding, strides and dilations of their own.

In a transposed convolution with stride s, every s-th output pixel along a dimension (a *phase*) is a convolution with
every s-th place of the kernel, which go through the image backwards. Places beyond the kernel count as taps only where
phases have different numbers of places.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ...ir.buffer import Buffer
from ...ir.expr import Cast, Compare, CompareOp, Const, Expr, Load, Logic, LogicOp, Select, Var, index
from ...ir.linear_form import LinearForm, linear_form
from ...ir.rewrite import free_variables, substitute
from ...te.phases import with_phases
from ...te.workload import Axis, Workload
from ..tile.delinearize import axis_indices, delinearize
from ..tile.load_analysis import conditions_inside
from .gemm import Gemm, Operand, Sides, sides_of
from .image_window import TAP, ImageWindow

MOST_PHASES = 4
"""Pixels are stored so many elements apart at most, since each store writes a part of a sector of memory."""


@lru_cache(maxsize=64)  # several sketches of convolutions ask it of a workload
def implicit_gemm_of(
    workload: Workload,
    patch: tuple[int, ...] = (),
    halo: int | None = None,
    *,
    along_n: bool | None = True,
    channels_first: bool = False,
) -> Gemm | None:
    """``workload`` as a product with a ``window``; None where it is no convolution, or not one of such images.

    ``patch``: one of ``ImageWindow.patches``; by default the rows are the output pixels in their order. ``halo``: the
    dimension along which patches have a halo. ``along_n``: whether all results must be contiguous along the filters;
    otherwise neighbours are pixels (NCHW and its kin), or a digit of the filters that lies between them. None: they may
    lie in any order, and there may be one filter. ``channels_first``: whether images are volumes with one channel, so
    that channels ahead of the pixels (NCHW and its kin) are taps along their first dimension. The image of the product
    then has a dimension for that channel, which the tensor has not.
    """
    for whole in (workload, with_phases(workload)):
        found = None if whole is None else sides_of(whole, joined=True)
        for sides in () if found is None else (found, replace(found, rows=found.columns, columns=found.rows)):
            product = _product(sides, patch, halo, along_n, channels_first)
            if product is not None:
                return product
    return None


def filters_inside(gemm: Gemm) -> list[Expr]:
    """Return all conditions on which a filter lies in its tensor, on ``TAP``, ``n``, ``k`` and the axes of the batch:
    those of ``filters_exist``, and of phases that are filters of the product. Filters are zero elsewhere."""
    load, window = gemm.b.load, gemm.window
    assert load is not None and window is not None
    extents = {a.name: a.extent for a in (*gemm.batch, gemm.n)}
    return conditions_inside(load, {**extents, TAP: window.tap_count, "k": window.channels})


def filters_exist(gemm: Gemm) -> list[Expr]:
    """Return the conditions on which a kernel has a place, on ``TAP`` and the axes of the batch: phases may have
    different numbers of places. Filters are zero elsewhere."""
    load, batch = gemm.b.load, {axis.name: axis.extent for axis in gemm.batch}
    found = list[Expr]()
    for i, extent in () if load is None else zip(load.indices, load.buffer.shape, strict=True):
        whole, names = isinstance(i, Var) and batch.get(i.name, 0) <= extent, free_variables(i)
        found += [i >= 0, i < extent] if not whole and names & set(batch) and names <= {TAP, *batch} else []
    return found


def _product(
    sides: Sides, patch: tuple[int, ...], halo: int | None, along_n: bool | None, channels_first: bool
) -> Gemm | None:
    """Return the product with the pixels of images as its rows."""
    pixels = pixels_of(sides, channels_first)
    if pixels is None or len(patch) not in (0, len(pixels.rows)):
        return None
    for phased in _with_phases(sides):
        filters = _filters_of(phased, pixels)
        if filters is None:
            continue
        window = replace(filters.window, patch=patch, halo=halo)
        rows = axis_indices(Var("m"), phased.rows.axes)
        if patch:
            named = zip(pixels.rows, window.position(Var("m")), strict=True)
            rows = {name: position for name, position in named if name is not None}
        product = phased.product(phased.rows, phased.columns, rows, part=True)
        pixel = rows.get(pixels.rows[-1] or "", index(0))
        if product is not None and (along_n is None or _is_ordered(product, pixel, along_n)):
            group = Var(product.batch[0].name) * window.channels if sides.batch else index(0)
            image = Load(pixels.image, (*window.corner(Var("m")), group + Var("k")))
            a, b = Operand(image, image, 0, 1), Operand(filters.load, filters.load, 0, 0)
            k, m = Axis("k", window.tap_count * window.channels), replace(product.m, extent=window.rows)
            return replace(product, a=a, b=b, m=m, k=k, window=window)
    return None


def _is_ordered(product: Gemm, pixel: Expr, along_n: bool) -> bool:
    """Return whether neighbours in the results are those along ``n``, and all of a pixel exist or none, or those along
    ``pixel``."""
    if not along_n:
        return _along(product, pixel)
    whole = not any("n" in free_variables(i) for r in product.results for i in r.inside)
    return whole and product.results[0].step("n") == 1


def _along(product: Gemm, pixel: Expr) -> bool:
    """Return whether neighbours in all results are those along ``pixel``, perhaps with a digit of ``n``, or a few
    phases, between them. They are of 32 or 16 bits; of 16 bits, those digits come in pairs."""
    for r in product.results:
        digits = r.digits_before(pixel)
        pairs = digits == 1 or r.last_digit % 2 == 0 < r.last_digit
        along = any("n" in free_variables(i) for i in r.indices[:-1])
        fits = r.tensor.dtype.bits == 32 or (r.tensor.dtype.bits == 16 and pairs)
        if not fits or not along or digits is None or r.phases > MOST_PHASES:
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Pixels:
    """One factor as images seen through a window. ``image``: (number, spatial dimensions, channel of all groups).
    ``rows``: the axes over images and along each spatial dimension, None where there is one pixel. ``taps``: the axis
    of ``k`` along each spatial dimension, None where the window has one place; it goes through the image ``backwards``
    or forwards. The window is that of a kernel that is not split into phases. ``channel``: the axis over channels, None
    for one channel."""

    image: Buffer
    window: ImageWindow
    rows: tuple[str | None, ...]
    taps: tuple[str | None, ...]
    backwards: tuple[bool, ...]
    channel: str | None


def pixels_of(sides: Sides, channels_first: bool = False) -> _Pixels | None:
    """Return the rows as such images; None where they are anything else. ``channels_first``: as in
    ``implicit_gemm_of``."""
    load, conditions = _guarded_load(_at_zero(sides.rows.body, sides))
    if load is None or len(sides.batch) > 1:
        return None
    if channels_first:
        volume = replace(load.buffer, shape=(*load.buffer.shape, 1), layout=None)
        load = replace(load, buffer=volume, indices=(*load.indices, index(0)))
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
    single = shape[-1] == 1 and last == LinearForm({})  # an axis over one channel is gone
    outer = list(shape[: len(forms)])
    if not single and (channel not in k or k[channel] != shape[-1]):
        return None
    if shape[len(forms) : -1] != ((groups,) if sides.batch else ()):
        return None
    rows = {a.name: a.extent for a in sides.rows.axes}
    first = _plain(forms[0]) if forms else None
    numbered = bool(forms) and (rows.get(first or "") == outer[0] or (outer[0] == 1 and forms[0] == LinearForm({})))
    if not numbered:
        forms, outer = [LinearForm({}), *forms], [1, *outer]
    found = [_side(form, rows, k) for form in forms[1:]]
    known = [side for side in found if side is not None]
    order = [name for name in (_plain(forms[0]), *(s.row for s in known)) if name is not None]
    taps = tuple(s.tap for s in known)
    used = [name for name in (channel, *taps) if name is not None]
    if (
        len(known) < len(found)
        or not 1 <= len(known) <= 3
        or order != list(rows)
        or sorted(used) != sorted(name for name, extent in k.items() if extent > 1 or not single)
    ):
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
    named = (_plain(forms[0]), *(s.row for s in known))
    return _Pixels(image, window, named, taps, tuple(s.backwards for s in known), channel)


@dataclass(frozen=True, slots=True)
class _SpatialSide:
    """One spatial dimension: pixel ``lower + stride * row + dilation * tap``, or with ``- dilation * tap`` if
    ``backwards``. ``row`` and ``tap`` are names of axes, or None."""

    row: str | None
    tap: str | None
    stride: int
    dilation: int
    lower: int
    backwards: bool


def _side(form: LinearForm, rows: Mapping[str, int], k: Mapping[str, int]) -> _SpatialSide | None:
    """Return the index of a spatial dimension; None where it is no sum of at most one axis of each kind."""
    own, taps = ([name for name in form.variables if name in names] for names in (rows, k))
    if len(own) > 1 or len(taps) > 1 or len(own) + len(taps) < len(form.variables):
        return None
    row, tap = (names[0] if names else None for names in (own, taps))
    stride, dilation = (1 if name is None else form.coefficient(name) for name in (row, tap))
    return _SpatialSide(row, tap, stride, abs(dilation), form.constant, dilation < 0) if stride > 0 else None


def _with_phases(sides: Sides) -> Iterator[Sides]:
    """Yield the sides with some axes of the filters in the batch. First these are the axes that no dimension of the
    filters has to itself, since they only say which taps a product takes. Then they are all axes but the last."""
    load, _ = _guarded_load(_at_zero(sides.columns.body, sides))
    if load is None:
        return
    plain, axes = {_plain(linear_form(i)) for i in load.indices}, sides.columns.axes
    for kept in (tuple(a for a in axes if a.name in plain), axes[-1:]):
        columns, phases = replace(sides.columns, axes=kept), tuple(a for a in axes if a not in kept)
        yield replace(sides, columns=columns, batch=(*sides.batch, *phases))


@dataclass(frozen=True, slots=True)
class _Filters:
    """The other factor as a load of filters, on ``TAP``, ``k`` (the channel), ``n`` and the batch. ``window``: that of
    one phase."""

    load: Load
    window: ImageWindow


def _filters_of(sides: Sides, pixels: _Pixels) -> _Filters | None:
    """Return the columns as such filters; None where they are anything else."""
    load, conditions = _guarded_load(_at_zero(sides.columns.body, sides))
    if load is None:
        return None
    forms, shape = [linear_form(i) for i in load.indices], load.buffer.shape
    if any(not isinstance(t, Var) for form in forms for t in form.terms):
        return None
    if not all(_keeps_inside(c, forms, shape) for c in conditions):
        return None
    window, extents = pixels.window, {a.name: a.extent for a in sides.batch}
    batch = {old.name: Var(new.name) for old, new in zip(sides.batch, sides.new_batch, strict=True)}
    places = list[_PhaseTaps]()
    for tap, taps in zip(pixels.taps, window.taps, strict=True):
        users = [(form, extent) for form, extent in zip(forms, shape, strict=True) if tap and form.coefficient(tap)]
        found = _PhaseTaps(taps, 0, 0, index(0)) if tap is None else None
        if tap is not None and len(users) == 1:
            found = _places_of(users[0][0], users[0][1], tap, taps, extents, batch)
        if found is None:
            return None
        places.append(found)
    sides_of_window = list(zip(places, window.dilations, window.lower, pixels.backwards, strict=True))
    window = replace(
        window,
        taps=tuple(p.count for p in places),
        lower=tuple(
            lower - dilation * (p.last_begin + p.count - 1) if back else lower + dilation * p.first_begin
            for p, dilation, lower, back in sides_of_window
        ),
    )
    if any(p.first_begin < p.last_begin for p in places):
        shifts = tuple(
            (p.last_begin - p.begin if back else p.begin - p.first_begin) * dilation
            for p, dilation, _, back in sides_of_window
        )
        most = max((p.last_begin - p.first_begin) * dilation for p, dilation, *_ in sides_of_window)
        window = replace(window, shifts=shifts, most_shifted=most)
    at: dict[str, Expr] = {**batch, pixels.channel or "": Var("k"), **axis_indices(Var("n"), sides.columns.axes)}
    digits = delinearize(Var(TAP), window.taps)
    for tap, p, digit, back in zip(pixels.taps, places, digits, pixels.backwards, strict=True):
        if tap is not None:
            number = index(p.count - 1) - digit if back else digit
            at[tap] = number if p.last_begin == 0 else p.begin + number
    filters = substitute(load, at)
    assert isinstance(filters, Load)
    return _Filters(filters, window)


@dataclass(frozen=True, slots=True)
class _PhaseTaps:
    """The places of a kernel along one dimension that a phase takes: ``count`` of them, from ``begin`` on, which is an
    expression on the axes of the batch, between ``first_begin`` and ``last_begin``."""

    count: int
    first_begin: int
    last_begin: int
    begin: Expr


def _places_of(
    form: LinearForm, extent: int, tap: str, taps: int, phases: Mapping[str, int], batch: Mapping[str, Expr]
) -> _PhaseTaps | None:
    """Return the places at which ``form``, on ``tap`` and at most one phase, is an index of a dimension of ``extent``:
    all ``taps`` if phases have different numbers of them. None for other forms."""
    step, others = form.coefficient(tap), [name for name in form.variables if name != tap]
    if step < 1 or len(others) > 1 or any(name not in phases for name in others):
        return None
    count = phases[others[0]] if others else 1
    per_phase = form.coefficient(others[0]) if others else 0
    inside = [
        [t for t in range(taps) if 0 <= form.constant + per_phase * phase + step * t < extent] for phase in range(count)
    ]
    begins = [places[0] if places else 0 for places in inside]
    if len(set(map(len, inside))) > 1 or not inside[0]:
        return _PhaseTaps(taps, 0, 0, index(0))
    if len(set(begins)) == 1:
        return _PhaseTaps(len(inside[0]), begins[0], begins[0], index(begins[0]))
    first = step - 1 - form.constant
    if begins != [(first - per_phase * phase) // step for phase in range(count)]:
        return _PhaseTaps(taps, 0, 0, index(0))
    begin = (index(first) - batch[others[0]] * per_phase) // step
    return _PhaseTaps(len(inside[0]), min(begins), max(begins), begin)


def _at_zero(body: Expr, sides: Sides) -> Expr:
    """``body`` with the index 0 along all axes of one element."""
    stage = sides.stage
    return substitute(body, {a.name: index(0) for a in (*stage.axes, *stage.reduce_axes) if a.extent == 1})


def _guarded_load(body: Expr) -> tuple[Load | None, Sequence[Expr]]:
    """Return the load that ``body`` is, apart from casts, and on which conditions; it is zero elsewhere."""
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
    """Return whether a condition says that some index is at least 0, or below the extent of its dimension."""
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
    """Return the variable that a form is; None where it is anything else."""
    names = form.variables
    return names[0] if len(names) == 1 and form.coefficient(names[0]) == 1 and not form.constant else None
