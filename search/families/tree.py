"""The decision tree of a dispatcher.

A node asks whether one extent is at most a bound; a leaf names a schedule, or says that the nearest measured shape
decides. The tree is grown from the top: a box of shapes is cut where the sum of regrets of the best schedules of both
parts is least. A leaf has a schedule only if that is legal at every shape of its box.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from .shapes import Shape, distance

MOST_DEPTH = 8
MOST_CHANGES = 4
"""Of the places between two measured extents where legality changes, so many are tried as cuts."""
LEAST_GAIN = 1e-3
"""A cut must lower the sum of regrets by so much."""


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
    """Grows a tree. ``points`` int64[measured, dimensions] with ``regret`` float64[measured, schedules], endless where
    a schedule has no time.
    ``grid`` int64[all, dimensions] holds every shape in range, ``legal`` bool[all, schedules]
    what may serve it."""

    points: NDArray[np.int64]
    regret: NDArray[np.float64]
    grid: NDArray[np.int64]
    legal: NDArray[np.bool_]

    def grow(self) -> Tree:
        """Return the tree of the whole range."""
        return self._grow(np.ones(len(self.points), np.bool_), np.ones(len(self.grid), np.bool_), MOST_DEPTH)

    def _grow(self, points: NDArray[np.bool_], grid: NDArray[np.bool_], depth: int) -> Tree:
        here = self._costs(points, grid)
        best = float(here.min())
        if depth and best > LEAST_GAIN:
            cut = self._best_cut(points, grid)
            if cut is not None and (best == np.inf or cut[0] < best - LEAST_GAIN):
                _, dimension, bound = cut
                low, low_grid = self.points[:, dimension] <= bound, self.grid[:, dimension] <= bound
                below = self._grow(points & low, grid & low_grid, depth - 1)
                above = self._grow(points & ~low, grid & ~low_grid, depth - 1)
                return below if below == above else Decision(dimension, bound, below, above)
        return Leaf(None if best == np.inf else int(here.argmin()))

    def _costs(self, points: NDArray[np.bool_], grid: NDArray[np.bool_]) -> NDArray[np.float64]:
        """float64[schedules]: the sum of regrets in a box, endless for a schedule that is not legal all over it."""
        return np.where(self.legal[grid].all(axis=0), self.regret[points].sum(axis=0), np.inf)

    def _best_cut(self, points: NDArray[np.bool_], grid: NDArray[np.bool_]) -> tuple[float, int, int] | None:
        """(sum of regrets of both parts, dimension, bound) of the best cut between measured extents; None without
        one. A part that nothing serves costs as much as the largest regret there is, twice."""
        found: list[tuple[float, int, int]] = []
        finite = self.regret[np.isfinite(self.regret)]
        dear = 2 * float(finite.max(initial=0.0)) + 1
        for dimension in range(self.points.shape[1]):
            extents = np.unique(self.points[points, dimension])
            for bound in self._bounds(dimension, extents, grid):
                side, side_grid = self.points[:, dimension] <= bound, self.grid[:, dimension] <= bound
                parts = ((points & side, grid & side_grid), (points & ~side, grid & ~side_grid))
                cost = sum(min(float(self._costs(*part).min()), dear * int(part[0].sum())) for part in parts)
                found.append((cost, dimension, bound))
        return min(found, default=None)

    def _bounds(self, dimension: int, extents: NDArray[np.int64], grid: NDArray[np.bool_]) -> list[int]:
        """Return where a box may be cut: half way between measured extents, in their logarithm, and where between them
        another schedule begins or ends to be legal."""
        column, legal = self.grid[grid, dimension], self.legal[grid]
        here, places = np.unique(column, return_inverse=True)
        everywhere = np.ones((len(here), legal.shape[1]), np.bool_)
        np.logical_and.at(everywhere, places, legal)
        changes = here[:-1][(everywhere[1:] != everywhere[:-1]).any(axis=1)]
        found = []
        for low, high in pairwise(extents):
            between = changes[(changes >= low) & (changes < high)]
            found += [max(int(low), int((low * high) ** 0.5)), *map(int, between[:MOST_CHANGES])]
        return [bound for bound in found if bound < extents[-1]]


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
