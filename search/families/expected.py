"""How long schedules may take at shapes where they were not timed.

    error at a measured shape    logarithm of (time / prior), less the median of all schedules there
    expected at any shape        prior * exp(error, interpolated between the shapes where the schedule was timed)

A prior knows what sizes say: waves of tiles, tiles that stick out, bytes. What it is off by, compared with other
schedules, changes slowly with the shape. It is interpolated by inverse distances of the logarithms of extents
(Shepard's method). The less is known nearby, the longer a schedule is expected to take. Times of one shape can be
compared with each other, and not with those of another shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import Schedule
from .shapes import Shape, ShapeTable, log_distances

Floats = NDArray[np.float64]
Prior = Callable[[Sequence[Shape], Sequence[Schedule]], Floats]
"""float64[shapes, schedules]: how long each schedule may take at a shape, compared with others there, as far as it is
known without times at that shape. It is endless where a schedule cannot be built or is not correct."""
Learn = Callable[[ShapeTable], Prior]
"""What times teach of shapes where there are none."""
POWER = 4
"""The weight of a shape is its distance to the power of minus this."""
CLOSE = 1e-3
"""Distances are at least so much: a measured shape has its own times."""
CAUTION = 0.1
"""A schedule is expected to take so much longer (a logarithm) where the nearest shape at which it was timed is at a
distance of 1, which is a factor of e."""


@dataclass(frozen=True, eq=False)
class ExpectedTimes:
    """``table``: what was timed."""

    table: ShapeTable
    prior: Prior

    def seconds(self, shapes: Sequence[Shape], places: Sequence[int]) -> Floats:
        """float64[shapes, places]: expected times of the schedules at these places of the table, endless where one is
        not legal."""
        schedules = [self.table.schedules[place] for place in places]
        prior = self.prior(shapes, schedules)
        errors, distances = self._errors[:, list(places)], log_distances(shapes, self.table.shapes)
        known = np.isfinite(errors)
        weights = np.maximum(distances, CLOSE) ** -POWER
        error = (weights @ np.where(known, errors, 0.0)) / np.maximum(weights @ known, CLOSE)
        nearest = np.array([distances[:, timed].min(axis=1, initial=np.inf) for timed in known.T]).T
        found: Floats = prior * np.exp(error + CAUTION * nearest)
        return found

    @cached_property
    def _errors(self) -> Floats:
        """float64[measured shapes, schedules]; NaN where there is no time."""
        seconds = self.table.seconds
        prior = self.prior(self.table.shapes, self.table.schedules)
        known = np.isfinite(seconds) & np.isfinite(prior)
        errors = np.log(np.divide(seconds, prior, out=np.ones_like(seconds), where=known))
        common = [np.median(row[timed]) if timed.any() else 0.0 for row, timed in zip(errors, known, strict=True)]
        return np.where(known, errors - np.array(common)[:, None], np.nan)
