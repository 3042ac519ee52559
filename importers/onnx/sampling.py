"""``GridSample`` of ONNX: each dimension of an image has a few taps with weights, whose places the grid says."""

from collections.abc import Sequence

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from ..aten.rule import reshape, slice_
from .call import Call, cast, need, rule
from .elementwise import like

_INT64 = DTYPES["int64"]


@rule("GridSample")
def _grid_sample(c: Call) -> Value:
    x, grid = c.value(0), c.value(1)
    rank = len(x.shape) - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(c.get("mode", "linear"), c.get("mode", "linear"))
    padding, align = c.get("padding_mode", "zeros"), bool(c.get("align_corners", 0))
    need(mode in ("linear", "nearest", "cubic") and padding in ("zeros", "border", "reflection"), f"{mode}, {padding}")
    need(x.dtype.is_float and grid.dtype == x.dtype and rank < 4, "integers")
    count = grid.elements // (grid.shape[0] * rank)
    taps: list[tuple[Value, Value]] = []  # places in the image, and weights, of all combinations so far
    for d in range(rank):
        column = rank - 1 - d  # the last dimension comes first
        at = reshape(c, slice_(c, grid, len(grid.shape) - 1, column, column + 1), (x.shape[0], 1, count))
        own = _taps(c, at, x.shape[d + 2], mode, padding, align)
        taps = [_combined(c, t, o, x.shape[d + 2]) for t in taps for o in own] if taps else own
    flat = reshape(c, x, (*x.shape[:2], x.elements // (x.shape[0] * x.shape[1])))
    total: Value | None = None
    for place, weight in taps:
        places = c.node("expand", place, shape=(x.shape[0], x.shape[1], count))
        term = c.node("mul", c.node("gather_elements", flat, places, dim=2), weight)
        total = term if total is None else c.node("add", total, term)
    assert total is not None
    return reshape(c, total, (*x.shape[:2], *grid.shape[1:-1]))


def _combined(c: Call, before: tuple[Value, Value], own: tuple[Value, Value], extent: int) -> tuple[Value, Value]:
    row = c.node("mul", before[0], like(c, before[0], extent))
    return c.node("add", row, own[0]), c.node("mul", before[1], own[1])


def _taps(c: Call, at: Value, extent: int, mode: str, padding: str, align: bool) -> list[tuple[Value, Value]]:
    """Return where a dimension of ``extent`` is read for coordinates from -1 to 1, and the weights of these places."""
    half = c.node("mul", c.node("add", at, like(c, at, 1.0)), like(c, at, 0.5))
    at = c.node("mul", half, like(c, at, extent - 1.0 if align else extent))
    at = at if align else c.node("add", at, like(c, at, -0.5))
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    if mode == "nearest":
        at = c.node("round", at)
    beyond = c.node("logical_or", c.node("lt", at, like(c, at, low)), c.node("gt", at, like(c, at, high)))
    if padding == "border":
        at = c.node("where", beyond, _clipped(c, at, 0.0, extent - 1.0), at)
    elif padding == "reflection":
        at = c.node("where", beyond, _reflected(c, at, low, high), at)
    if mode == "nearest":
        return [_tap(c, at, like(c, at, 1.0), extent, padding, low, high)]
    first = c.node("floor", at)
    part = c.node("sub", at, first)
    weights = _linear(c, part) if mode == "linear" else _cubic(c, part)
    start = 0 if mode == "linear" else -1
    places = [c.node("add", first, like(c, first, float(start + n))) for n in range(len(weights))]
    return [_tap(c, p, w, extent, padding, low, high) for p, w in zip(places, weights, strict=True)]


def _tap(c: Call, place: Value, weight: Value, extent: int, padding: str, low: float, high: float,
         ) -> tuple[Value, Value]:  # fmt: skip
    """A whole place as an index. One outside of the image counts nothing, or is moved into it."""
    if padding == "reflection":
        place = _reflected(c, place, low, high)
    inside = _clipped(c, place, 0.0, extent - 1.0)
    if padding == "zeros":
        weight = c.node("where", c.node("eq", inside, place), weight, like(c, weight, 0.0))
    return cast(c, inside, _INT64), weight


def _clipped(c: Call, x: Value, low: float, high: float) -> Value:
    return c.node("minimum", c.node("maximum", x, like(c, x, low)), like(c, x, high))


def _reflected(c: Call, x: Value, low: float, high: float) -> Value:
    """``x`` mirrored at both ends as often as it takes."""
    span = high - low
    if span == 0.0:
        return c.node("mul", x, like(c, x, 0.0))
    away = c.node("abs", c.node("add", x, like(c, x, -low)))
    turns = c.node("floor", c.node("mul", away, like(c, x, 0.5 / span)))
    rest = c.node("sub", away, c.node("mul", turns, like(c, x, 2.0 * span)))
    near = c.node("minimum", rest, c.node("sub", like(c, x, 2.0 * span), rest))
    return c.node("add", near, like(c, x, low))


def _linear(c: Call, t: Value) -> Sequence[Value]:
    return [c.node("sub", like(c, t, 1.0), t), t]


def _cubic(c: Call, t: Value) -> Sequence[Value]:
    """Keys' weights with a = -0.75 of the four places around t: they are cubic in the distance."""
    a = -0.75

    def polynomial(x: Value, *coefficients: float) -> Value:
        total = like(c, x, coefficients[0])
        for k in coefficients[1:]:
            total = c.node("add", c.node("mul", total, x), like(c, x, k))
        return total

    near, far = (a + 2.0, -(a + 3.0), 0.0, 1.0), (a, -5.0 * a, 8.0 * a, -4.0 * a)
    other = c.node("sub", like(c, t, 1.0), t)
    further, last = c.node("add", t, like(c, t, 1.0)), c.node("add", other, like(c, t, 1.0))
    return [polynomial(further, *far), polynomial(t, *near), polynomial(other, *near), polynomial(last, *far)]
