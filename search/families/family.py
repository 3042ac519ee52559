"""A shape family: its schedules, its dispatcher, and what they cost at shapes that were held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InvalidParameter
from ...core.schedule import Schedule
from .cover import covering_set
from .expected import ExpectedTimes, Learn
from .shapes import Dimension, Shape, ShapeTable, all_shapes, check_dimensions, regret_of, spread_shapes
from .tree import Grower, Tree, leaf_of, nearest, tree_from_json, tree_to_json

HELD_OUT = 3
"""Every third measured shape is held out."""
PLAUSIBLE = 0.3
"""A schedule whose regret is larger at every shape is none that a family takes."""
MOST_SCHEDULES = 64


@dataclass(frozen=True, slots=True)
class Regret:
    """How much slower dispatched schedules are than the best of all that were timed, at ``shapes`` shapes that the
    dispatcher was not made from: 0.02 is 2 %."""

    shapes: int
    mean: float
    p95: float
    most: float


@dataclass(frozen=True, slots=True)
class Family:
    """``measured``: shapes with the place of their best schedule, which the nearest of decides where the tree does not.
    ``regret`` is None where nothing was held out."""

    dimensions: tuple[Dimension, ...]
    schedules: tuple[Schedule, ...]
    tree: Tree
    measured: tuple[tuple[Shape, int], ...]
    regret: Regret | None = None

    def choose(self, shape: Shape) -> int:
        """Return the place of the schedule for a shape. Raises InvalidParameter for one that is out of range."""
        self._check(shape)
        found = leaf_of(self.tree, shape).schedule
        return self._nearest(shape) if found is None else found

    def _nearest(self, shape: Shape) -> int:
        return self.measured[nearest([known for known, _ in self.measured], shape)][1]

    def _check(self, shape: Shape) -> None:
        if len(shape) != len(self.dimensions):
            raise InvalidParameter(f"{len(shape)} extents for {len(self.dimensions)} dimensions", field="shape")
        for extent, dimension in zip(shape, self.dimensions, strict=True):
            if extent not in dimension.extents:
                raise InvalidParameter(
                    f"{dimension.name} is {extent}; allowed: {dimension.low} to {dimension.high} by {dimension.step}",
                    field=dimension.name,
                )

    def to_json(self) -> dict[str, object]:
        regret = self.regret
        return {
            "dimensions": [{"name": d.name, "low": d.low, "high": d.high, "step": d.step} for d in self.dimensions],
            "schedules": [schedule.to_json() for schedule in self.schedules],
            "tree": tree_to_json(self.tree),
            "measured": [{"shape": list(shape), "schedule": place} for shape, place in self.measured],
            "regret": None
            if regret is None
            else {"shapes": regret.shapes, "mean": regret.mean, "p95": regret.p95, "most": regret.most},
        }

    @classmethod
    def from_json(cls, data: object) -> "Family":
        """Return the family that ``to_json`` wrote. Raises InvalidParameter for anything else."""
        members = {"dimensions", "schedules", "tree", "measured", "regret"}
        if not isinstance(data, Mapping) or set(data) != members:
            raise InvalidParameter(f"a family is an object with {', '.join(sorted(members))}", field="/")
        try:
            dimensions = tuple(Dimension(**one) for one in data["dimensions"])
            check_dimensions(dimensions)
            schedules = tuple(Schedule.from_json(one) for one in data["schedules"])
            tree = tree_from_json(data["tree"], len(dimensions), len(schedules))
            measured = tuple((tuple(map(int, one["shape"])), int(one["schedule"])) for one in data["measured"])
            regret = None if data["regret"] is None else Regret(**data["regret"])
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidParameter(f"this is no family: {error!r}", field="/") from error
        places = {place for _, place in measured}
        if not measured or not places <= set(range(len(schedules))) or len(schedules) > MOST_SCHEDULES:
            raise InvalidParameter("measured shapes name schedules of the family", field="/measured")
        return cls(dimensions, schedules, tree, measured, regret)


def make_family(
    dimensions: Sequence[Dimension], table: ShapeTable, learn: Learn, *, most: int = 8, target: float = 0.02
) -> Family:
    """Return the family of a range of shapes, made from times at some of them and from what these teach of the others.
    Two out of three measured shapes say what its regret is at the third; the family itself is made from all.

    Raises InvalidParameter where no dispatcher of at most ``most`` schedules is correct at every shape in range.
    """
    check_dimensions(dimensions)
    if not 1 <= most <= MOST_SCHEDULES or not 0 <= target <= 10:
        raise InvalidParameter(
            f"{most} schedules with a regret of {target}; allowed: 1 to {MOST_SCHEDULES}, and 0 to 10", field="most"
        )
    held_out = list(range(1, len(table.shapes) - 1, HELD_OUT))
    whole, legal = _fitted(dimensions, table, learn, most, target)
    _prove(whole, legal)
    if not held_out:
        return whole
    kept = [n for n in range(len(table.shapes)) if n not in held_out]
    trial = fitted_family(dimensions, table.rows(kept), learn, most, target)
    return replace(whole, regret=regret_at(trial, table.rows(held_out)))


def regret_at(family: Family, table: ShapeTable) -> Regret | None:
    """Return the regret of a family at shapes with times. Shapes at which the chosen schedule has no time are left
    out; None where no shape is left."""
    regret = table.regret
    places = [table.schedules.index(schedule) for schedule in family.schedules]
    found = np.array([regret[n, places[family.choose(shape)]] for n, shape in enumerate(table.shapes)])
    found = found[np.isfinite(found)]
    if not len(found):
        return None
    return Regret(len(found), float(found.mean()), float(np.percentile(found, 95)), float(found.max()))


def fitted_family(dimensions: Sequence[Dimension], table: ShapeTable, learn: Learn, most: int, target: float) -> Family:
    """Return the family that fits some times best. That it is legal everywhere is not proved."""
    return _fitted(dimensions, table, learn, most, target)[0]


def _fitted(
    dimensions: Sequence[Dimension], table: ShapeTable, learn: Learn, most: int, target: float
) -> tuple[Family, NDArray[np.bool_]]:
    """Return a family, and which of its schedules are legal at every shape in range."""
    expected = ExpectedTimes(table, learn(table))
    plausible = np.flatnonzero((table.regret <= PLAUSIBLE).any(axis=0)).tolist()
    grid, shapes = list(all_shapes(dimensions)), sorted({*table.shapes, *spread_shapes(dimensions)})
    chosen = [plausible[n] for n in covering_set(regret_of(expected.seconds(shapes, plausible)), most, target)]
    regret = regret_of(expected.seconds(grid, chosen))
    weights = 1 / np.prod(np.array(grid, np.float64), axis=1)  # shapes are spread in their logarithm
    tree = Grower(np.array(grid), regret * (weights / weights.sum())[:, None]).grow()
    best = expected.seconds(table.shapes, chosen).argmin(axis=1).tolist()
    measured = tuple(zip(table.shapes, best, strict=True))
    family = Family(tuple(dimensions), tuple(table.schedules[n] for n in chosen), tree, measured)
    return family, np.isfinite(regret)


def _prove(family: Family, legal: NDArray[np.bool_]) -> None:
    """Raise InvalidParameter unless the family chooses a legal schedule at every shape in range."""
    wrong = [s for s, may in zip(all_shapes(family.dimensions), legal, strict=True) if not may[family.choose(s)]]
    if wrong:
        raise InvalidParameter(
            f"the choice among {len(family.schedules)} schedules is not legal at {len(wrong)} shapes, such as "
            f"{list(wrong[0])}: time more schedules near it, allow more, or give the dimension a step",
            field="dimensions",
        )


def shape_in(parameters: Mapping[str, Any], dimensions: Sequence[Dimension]) -> Shape:
    """Return the extents of a shape that is given by name. Raises InvalidParameter for one that is missing."""
    for dimension in dimensions:
        if type(parameters.get(dimension.name)) is not int:
            raise InvalidParameter(f"{dimension.name} is missing: a whole number", field=dimension.name)
    return tuple(parameters[dimension.name] for dimension in dimensions)
