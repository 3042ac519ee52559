"""Operators of ATen that put elements in order, or look for places in an order.

The rank of an element is how many come before it: a sum of comparisons with all others of its line. It takes n² steps
for a line of n elements, in registers, and is faster than sorting where lines are short.
"""

from collections.abc import Sequence
from typing import Any

from ...core.dtypes import DTYPES
from ...graph.graph import Value
from .rule import Emitter, NodeMaker, cast, need, number, operand, reshape, rule

MOST_RANKED = 16
"""The length of lines that are put in order, at most: longer ones take longer than torch's own sorting."""
MOST_BOUNDARIES = 512
"""With how many boundaries a value is compared, at most."""
_INT32, _INT64 = DTYPES["int32"], DTYPES["int64"]


def _pairs(b: NodeMaker, x: Value, d: int) -> tuple[Value, Value]:
    """Return ``x`` with a dimension for the elements of a line that each is compared with, and with one for itself."""
    ahead, n, behind = x.shape[:d], x.shape[d], x.shape[d + 1 :]
    need(len(x.shape) < 8, "so many dimensions")
    return reshape(b, x, (*ahead, 1, n, *behind)), reshape(b, x, (*ahead, n, 1, *behind))


def _numbers(b: NodeMaker, count: int, d: int, rank: int) -> Value:
    return reshape(b, b.node("range", count=count, dtype="int32"), tuple(count if e == d else 1 for e in range(rank)))


def _not_after(b: NodeMaker, x: Value, y: Value) -> Value:
    """Return whether ``x`` is at most ``y``, where NaN is greater than all numbers."""
    found = b.node("le", x, y)
    return b.node("logical_or", found, b.node("ne", y, y)) if x.dtype.is_float else found


def ranks(b: NodeMaker, x: Value, d: int, descending: bool = False) -> Value:
    """Return how many elements of its line come before each: int32 of the shape of ``x``. Equal ones are in the order
    of their places, and NaN is greater than all numbers."""
    other, own = _pairs(b, x, d)
    rank = len(x.shape) + 1
    earlier = b.node("lt", _numbers(b, x.shape[d], d + 1, rank), _numbers(b, x.shape[d], d, rank))
    first, second = (own, other) if descending else (other, own)
    # What is earlier comes before its equals, and what is later comes before what is not at most as great.
    before = b.node("where", earlier, _not_after(b, first, second),
                    b.node("logical_not", _not_after(b, second, first)))  # fmt: skip
    return b.node("sum", cast(b, before, _INT32), dims=(d + 1,))


def places_of_ranks(b: NodeMaker, rank: Value, d: int, first: int, count: int) -> Value:
    """Return the places of the elements with ``count`` ranks from ``first`` on along a dimension: int32."""
    each, _ = _pairs(b, rank, d)
    wanted = b.node("range", count=count, start=first, dtype="int32")
    wanted = reshape(b, wanted, tuple(count if e == d else 1 for e in range(len(each.shape))))
    places = _numbers(b, rank.shape[d], d + 1, len(each.shape))
    chosen = b.node("where", b.node("eq", each, wanted), places, number(b, 0, _INT32))
    return b.node("sum", chosen, dims=(d + 1,))


def _in_order(b: NodeMaker, x: Value, d: int, first: int, count: int, descending: bool = False) -> list[Value]:
    """Return the elements with these ranks, and their places."""
    need(x.shape[d] <= MOST_RANKED, "so long lines")
    comparable = cast(b, x, _INT32) if x.dtype.is_bool else x
    places = places_of_ranks(b, ranks(b, comparable, d, descending), d, first, count)
    return [b.node("gather_elements", x, places, dim=d), cast(b, places, _INT64)]


@rule("sort.default", "sort.stable")
def _sort(b: Emitter, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> list[Value]:
    need(bool(x.shape), "a scalar")
    d = dim % len(x.shape)
    return _in_order(b, x, d, 0, x.shape[d], descending)


@rule("argsort.default", "argsort.stable")
def _argsort(b: Emitter, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Value:
    return _sort(b, x, dim, descending)[1]


def greatest(b: NodeMaker, x: Value, d: int, count: int, largest: bool) -> list[Value]:
    """Return the greatest elements of each line, or the least, and their places."""
    return _in_order(b, x, d, 0, count, largest)


def _of_rank(b: Emitter, x: Value, d: int, n: int, keep: bool) -> list[Value]:
    """Return the element of rank ``n`` of each line. Which place is given of equal ones torch does not say, so that
    none is given."""
    (found, _) = _in_order(b, x, d, n, 1)
    return [found if keep else reshape(b, found, (*x.shape[:d], *x.shape[d + 1 :]))]


@rule("kthvalue.default")
def _kth(b: Emitter, x: Value, k: int, dim: int = -1, keep: bool = False) -> list[Value]:
    need(bool(x.shape), "a scalar")
    return _of_rank(b, x, dim % len(x.shape), k - 1, keep)


@rule("median.dim", "nanmedian.dim", "median.default", "nanmedian.default")
def _median(b: Emitter, x: Value, dim: int | None = None, keep: bool = False) -> Value | list[Value]:
    """The lower one of two in the middle. A line with NaN has NaN as its median, unless these are left out."""
    need(bool(x.shape), "a scalar")
    whole = dim is None
    x = reshape(b, x, (x.elements,)) if whole else x
    d = 0 if dim is None else dim % len(x.shape)
    if not x.dtype.is_float:
        found = _of_rank(b, x, d, (x.shape[d] - 1) // 2, keep)
        return found[0] if whole else found
    need(x.shape[d] <= MOST_RANKED, "so long lines")
    numbers = b.node("sum", cast(b, b.node("eq", x, x), _INT32), dims=(d,), keep=True)
    rank, last = ranks(b, x, d), number(b, x.shape[d] - 1, _INT32)
    half = b.node("shift_right", b.node("sub", numbers, number(b, 1, _INT32)), number(b, 1, _INT32))
    some_nan = last if "nan" not in b.target else half
    wanted = b.node("where", b.node("eq", numbers, number(b, x.shape[d], _INT32)), half, some_nan)
    wanted = b.node("maximum", wanted, number(b, 0, _INT32))
    chosen = b.node("where", b.node("eq", rank, wanted), x, number(b, 0.0, x.dtype))
    result = b.node("sum", chosen, dims=(d,), keep=keep)
    return result if whole else [result]


# Places in an order that is given


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(b: Emitter, boundaries: Value, x: Any, *, out_int32: bool = False, right: bool = False,
                  side: str | None = None, sorter: Any = None) -> Value:  # fmt: skip
    need(sorter is None and bool(boundaries.shape), "boundaries in another order")
    dtype = b.common(boundaries, x)
    if not isinstance(x, Value):
        need(len(boundaries.shape) == 1, "a number among lines")
    return _places_among(b, operand(b, x, dtype), cast(b, boundaries, dtype), right or side == "right")


@rule("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(b: Emitter, x: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    dtype = b.common(boundaries, x)
    return _places_among(b, operand(b, x, dtype), cast(b, boundaries, dtype), right)


def _places_among(b: Emitter, x: Value, boundaries: Value, right: bool) -> Value:
    """Return how many boundaries are below each value, or at most as great. What is NaN is behind all."""
    count = boundaries.shape[-1]
    need(count <= MOST_BOUNDARIES and len(x.shape) < 8, "so many boundaries")
    around: Sequence[int] = boundaries.shape[:-1] if len(boundaries.shape) > 1 else [1] * max(len(x.shape) - 1, 0)
    lines = reshape(b, boundaries, (*around, 1, count)) if x.shape else boundaries
    above = b.node("gt" if right else "ge", lines, reshape(b, x, (*x.shape, 1)))
    found = b.node("sum", cast(b, b.node("logical_not", above), _INT32), dims=(len(x.shape),))
    return cast(b, found, b.dtype)
