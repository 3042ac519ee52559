"""The decision tree of a dispatcher.

A node asks whether one extent is at most a bound; a leaf names a schedule, or says that the nearest measured shape
decides. The tree is grown from the top: of all cuts along one dimension that leave the least sum of regrets, the one in
the middle is made first. (A single cut may gain nothing where schedules take turns, as they do wherever a wave of tiles
is full.) Every shape in range takes part, with its expected regrets. A leaf has a schedule only if that is legal at
every shape of its box.
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
"""A cut must lower the mean regret by so much. A range that gains less is not worth two branches."""


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
        cut = self._best_cut(box) if depth and best > LEAST_GAIN else None
        if cut is not None:
            _, dimension, bound = cut
            low = self.grid[box, dimension] <= bound
            below, above = self._grow(box[low], depth - 1), self._grow(box[~low], depth - 1)
            return below if below == above else Decision(dimension, bound, below, above)
        return Leaf(None if best == np.inf else int(sums.argmin()))

    def _best_cut(self, box: NDArray[np.intp]) -> tuple[float, int, int] | None:
        """(cost, dimension, bound) of the cut in the middle of those that cut the box best along one dimension; None
        where none pays. A part that nothing serves costs more than any schedule for each of its shapes."""
        found: list[tuple[float, int, int]] = []
        for dimension in range(self.grid.shape[1]):
            extents, places = np.unique(self.grid[box, dimension], return_inverse=True)
            sums = np.zeros((len(extents), self.costs.shape[1]))
            np.add.at(sums, places, self.costs[box])
            cost, cuts = _best_cuts(np.column_stack([sums, self._dear * np.bincount(places)]))
            if cuts:
                found.append((cost, dimension, int(extents[cuts[len(cuts) // 2] - 1])))
        return min(found, default=None)

    @cached_property
    def _dear(self) -> float:
        return 2 * float(self.costs[np.isfinite(self.costs)].max(initial=0.0)) + LEAST_GAIN


def _best_cuts(costs: NDArray[np.float64]) -> tuple[float, list[int]]:
    """Return the least cost of rows that are cut into parts with one column each, and the first rows of all parts but
    the first. Each cut costs ``LEAST_GAIN``.

    Which column the row before is best in is all that has to be known of the rows above (Viterbi's algorithm).
    """
    least, stays, before = costs[0], np.ones(costs.shape, dtype=bool), np.zeros(len(costs), np.int64)
    for row in range(1, len(costs)):
        before[row] = least.argmin()
        other = least[before[row]] + LEAST_GAIN
        stays[row] = least <= other
        least = np.where(stays[row], least, other) + costs[row]
    column, cuts = int(least.argmin()), list[int]()
    for row in range(len(costs) - 1, 0, -1):
        if not stays[row, column]:
            column = int(before[row])
            cuts.append(row)
    return float(least.min()), cuts[::-1]


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
