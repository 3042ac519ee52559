"""Ranges of shapes, and what was measured at some of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...core.schedule import Schedule

Shape = tuple[int, ...]
"""One extent for each dimension of a family, in its order."""
MOST_SHAPES = 16_384
"""A range has at most so many shapes: a dispatcher is checked at every one of them, which takes about 1 ms each."""
MOST_EXTENT = 1 << 40
SPREAD = 200
"""How many shapes between measured ones a covering set is chosen at, about."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A parameter of the operator that varies: ``low``, ``low + step``, … up to ``high``."""

    name: str
    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MOST_EXTENT or not 1 <= self.step <= MOST_EXTENT:
            raise InvalidParameter(
                f"{self.name} from {self.low} to {self.high} by {self.step}; allowed: 1 <= low <= high <= 2^40 and a "
                "step of at least 1",
                field="dimensions",
            )

    @property
    def extents(self) -> range:
        return range(self.low, self.high + 1, self.step)


def check_dimensions(dimensions: Sequence[Dimension]) -> None:
    """Raise InvalidParameter unless there are 1 to 3 dimensions of different names with at most ``MOST_SHAPES``
    shapes."""
    names = {dimension.name for dimension in dimensions}
    if not 1 <= len(dimensions) <= 3 or len(names) < len(dimensions):
        raise InvalidParameter(f"{len(dimensions)} dimensions; allowed: 1 to 3 different ones", field="dimensions")
    count = math.prod(len(dimension.extents) for dimension in dimensions)
    if count > MOST_SHAPES:
        raise InvalidParameter(
            f"{count} shapes; allowed: {MOST_SHAPES}, so give dimensions a larger step", field="dimensions"
        )


def all_shapes(dimensions: Sequence[Dimension]) -> Iterator[Shape]:
    """Return every shape in range, the last dimension fastest."""
    return product(*(dimension.extents for dimension in dimensions))


def spread_shapes(dimensions: Sequence[Dimension]) -> list[Shape]:
    """Return about ``SPREAD`` shapes in range, evenly spaced in the logarithms of their extents."""
    count = round(SPREAD ** (1 / len(dimensions)))
    found = []
    for dimension in dimensions:
        wanted = np.geomspace(dimension.low, dimension.extents[-1], count)
        steps = np.unique(np.rint((wanted - dimension.low) / dimension.step).astype(np.int64))
        found.append([dimension.extents[int(step)] for step in steps])
    return list(product(*found))


def regret_of(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[shapes, schedules]: time / the best time at that shape - 1; endless where there is no time."""
    known = np.isfinite(seconds)
    least = seconds.min(axis=1, keepdims=True, initial=np.inf)
    regret: NDArray[np.float64] = np.divide(seconds, least, out=np.full_like(seconds, np.inf), where=known) - 1
    return regret


def distance(a: Shape, b: Shape) -> float:
    """Return how unlike two shapes are: the product of the ratios of their extents, from 1 on."""
    return math.prod(max(x / y, y / x) for x, y in zip(a, b, strict=True))


def log_distances(a: Sequence[Shape], b: Sequence[Shape]) -> NDArray[np.float64]:
    """float64[a, b]: logarithms of ``distance``."""
    found = np.zeros((len(a), len(b)))
    for x, y in zip(*(np.log(np.array(shapes, np.float64)).T for shapes in (a, b)), strict=True):
        found += np.abs(np.subtract.outer(x, y))
    return found


@dataclass(frozen=True, eq=False)
class ShapeTable:
    """``seconds``: float64[shapes, schedules], endless where a schedule was not timed at a shape."""

    shapes: tuple[Shape, ...]
    schedules: tuple[Schedule, ...]
    seconds: NDArray[np.float64]

    @classmethod
    def of(cls, times: Mapping[Shape, Mapping[Schedule, float]]) -> "ShapeTable":
        """Return the table of what was timed. Raises InvalidParameter where a shape has no time."""
        shapes = tuple(sorted(times))
        schedules = tuple(dict.fromkeys(s for shape in shapes for s in times[shape]))
        seconds = np.array([[times[shape].get(s, np.inf) for s in schedules] for shape in shapes])
        if not shapes or not np.isfinite(seconds.reshape(len(shapes), -1)).any(axis=1).all():
            raise InvalidParameter("a family needs at least one time at each of its shapes", field="shapes")
        return cls(shapes, schedules, seconds)

    @property
    def regret(self) -> NDArray[np.float64]:
        """float64[shapes, schedules]: see ``regret_of``."""
        return regret_of(self.seconds)

    def rows(self, places: Sequence[int]) -> "ShapeTable":
        """Return the table of some of the shapes."""
        return ShapeTable(tuple(self.shapes[n] for n in places), self.schedules, self.seconds[list(places)])
