"""Flat numbers of threads and blocks taken apart into the places along several axes."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ...ir.expr import Expr, index
from ...te.workload import Axis


def digits(number: Expr, extents: Sequence[int]) -> tuple[Expr, ...]:
    """The places along axes of ``extents`` (the last one fastest) of a flat ``number`` below their product."""
    places: list[Expr] = []
    rest = number
    left = [n for n, extent in enumerate(extents) if extent > 1]
    for n in reversed(range(len(extents))):
        if extents[n] == 1:
            places.append(index(0))
        elif n == left[0]:
            places.append(rest)
        else:
            places.append(rest % extents[n])
            rest = rest // extents[n]
    return tuple(reversed(places))


def places(number: Expr, axes: Sequence[Axis]) -> Mapping[str, Expr]:
    """Axis -> its place in a flat ``number``."""
    return dict(zip((a.name for a in axes), digits(number, [a.extent for a in axes]), strict=True))


def points(axes: Iterable[Axis]) -> int:
    """How many points the axes span."""
    return prod(a.extent for a in axes)
