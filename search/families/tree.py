"""The decision tree of a dispatcher.

A node asks whether one extent is at most a bound; a leaf names a schedule, or says that the nearest measured shape
decides. The tree is grown from the top: a box of shapes is cut where the sum of regrets of the best schedules of both
parts is least. Every shape in range takes part, with its expected regrets. A leaf has a schedule only if that is legal
at every shape of its box.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from .shapes import Shape, distance

MOST_DEPTH = 12
LEAST_GAIN = 1e-4
"""A cut must lower the mean regret by so much."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """``schedule`` is a place in the family's list; None: the nearest measured shape decides."""

    schedule: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """``below`` decides where the extent of ``dimension``, by its place, is at most ``at_most``; else ``above``."""

    dimension: int
    at_most: int
    below: "Tree"
    above: "Tree"


Tree = Decision | Leaf


def leaf_of(tree: Tree, shape: Shape) -> Leaf:
    """Return the leaf that decides for a shape."""
    while isinstance(tree, Decision):
        tree = tree.below if shape[tree.dimension] <= tree.at_most else tree.above
    return tree


@dataclass(frozen=True, eq=False)
class Grower:
    """Grows a tree. ``grid`` int64[shapes, dimensions] holds every shape in range, ``costs`` float64[shapes, schedules]
    what each schedule adds to the mean regret where it serves a shape, endless where it is not legal."""

    grid: NDArray[np.int64]
    costs: NDArray[np.float64]

    def grow(self) -> Tree:
        """Return the tree of the whole range."""
        return self._grow(np.arange(len(self.grid)), MOST_DEPTH)

    def _grow(self, box: NDArray[np.intp], depth: int) -> Tree:
        """Return the tree of a box of shapes, by their rows."""
        sums = self.costs[box].sum(axis=0)
        best = float(sums.min())
        if depth and best > LEAST_GAIN:
            cut = self._best_cut(box)
            if cut is not None and (best == np.inf or cut[0] < best - LEAST_GAIN):
                _, dimension, bound = cut
                low = self.grid[box, dimension] <= bound
                below, above = self._grow(box[low], depth - 1), self._grow(box[~low], depth - 1)
                return below if below == above else Decision(dimension, bound, below, above)
        return Leaf(None if best == np.inf else int(sums.argmin()))

    def _best_cut(self, box: NDArray[np.intp]) -> tuple[float, int, int] | None:
        """(costs of both parts, dimension, bound) of the best cut; None where there is a single shape. A part that
        nothing serves costs more than any schedule for each of its shapes."""
        found: list[tuple[float, int, int]] = []
        for dimension in range(self.grid.shape[1]):
            extents, places = np.unique(self.grid[box, dimension], return_inverse=True)
            sums, dear = np.zeros((len(extents), self.costs.shape[1])), self._dear * np.bincount(places)
            np.add.at(sums, places, self.costs[box])
            below = _least(np.cumsum(sums, axis=0), np.cumsum(dear))
            above = _least(np.cumsum(sums[::-1], axis=0), np.cumsum(dear[::-1]))[::-1]
            both = below[:-1] + above[1:]
            if len(both):
                at = int(both.argmin())
                found.append((float(both[at]), dimension, int(extents[at])))
        return min(found, default=None)

    @cached_property
    def _dear(self) -> float:
        return 2 * float(self.costs[np.isfinite(self.costs)].max(initial=0.0)) + LEAST_GAIN


def _least(sums: NDArray[np.float64], dear: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the cost of the best schedule of each row, or ``dear`` where none is legal."""
    least = sums.min(axis=1)
    return np.where(np.isfinite(least), least, dear)


def tree_to_json(tree: Tree) -> dict[str, object]:
    """``{"schedule": n}``, n null where the nearest decides, or ``{"dimension", "at_most", "below", "above"}``."""
    if isinstance(tree, Leaf):
        return {"schedule": tree.schedule}
    below, above = tree_to_json(tree.below), tree_to_json(tree.above)
    return {"dimension": tree.dimension, "at_most": tree.at_most, "below": below, "above": above}


def tree_from_json(data: object, dimensions: int, schedules: int, depth: int = MOST_DEPTH) -> Tree:
    """Return the tree that ``tree_to_json`` wrote. Raises InvalidParameter for anything else."""
    if isinstance(data, dict) and set(data) == {"schedule"}:
        place = data["schedule"]
        if place is None or (type(place) is int and 0 <= place < schedules):
            return Leaf(place)
    if isinstance(data, dict) and set(data) == {"dimension", "at_most", "below", "above"} and depth:
        dimension, bound = data["dimension"], data["at_most"]
        if type(dimension) is int and 0 <= dimension < dimensions and type(bound) is int and 0 < bound < 1 << 62:
            below = tree_from_json(data["below"], dimensions, schedules, depth - 1)
            above = tree_from_json(data["above"], dimensions, schedules, depth - 1)
            return Decision(dimension, bound, below, above)
    raise InvalidParameter(
        f"a tree has leaves and nodes on at most {MOST_DEPTH} levels, for {schedules} schedules, {dimensions} extents",
        field="/tree",
    )


def nearest(shapes: Sequence[Shape], shape: Shape) -> int:
    """Return the place of the measured shape that is nearest; the first of equals."""
    return min(range(len(shapes)), key=lambda n: distance(shapes[n], shape))
