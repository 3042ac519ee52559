"""Settings as points of a cube, where distance means something, for Gaussian processes and for transfer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import KnobValue, Schedule
from .pool import CandidatePool


@dataclass(frozen=True)
class Encoding:
    """``columns``: the name of a knob, and a number in 0..1 for each of its values. Numbers keep the order and the
    distance of their logarithms, texts those of their places. With ``alignment`` a knob of which few values are powers
    of two has another column: the greatest power of two that divides a value. ``sketches``: places of sketches; more
    than one have columns too.
    """

    columns: Sequence[tuple[str, Mapping[KnobValue, float]]]
    sketches: Mapping[str, int]

    @classmethod
    def of(cls, pool: CandidatePool, *, alignment: bool = False) -> "Encoding":
        """For the knobs that differ within ``pool``. Without ``alignment`` each has one column."""
        values: dict[str, dict[KnobValue, None]] = {}
        for space in pool.spaces:
            for place, knob in enumerate(space.knobs):
                used = [knob.values[int(c)] for c in np.unique(space.codes[:, place])]
                values.setdefault(knob.name, {}).update(dict.fromkeys(used))
        parts = {name: _columns(list(found)) for name, found in values.items() if len(found) > 1}
        columns = [(name, c) for name, found in parts.items() for c in (found if alignment else found[:1])]
        return cls(columns, {s.sketch: place for place, s in enumerate(pool.spaces)})

    @property
    def width(self) -> int:
        return len(self.columns) + (len(self.sketches) if len(self.sketches) > 1 else 0)

    def points(self, pool: CandidatePool) -> NDArray[np.float32]:
        """Return the point of each candidate, float32[pool, width]. A knob that a sketch does not have is 0."""
        parts = []
        for space in pool.spaces:
            part = np.zeros((len(space), self.width), np.float32)
            codes = {knob.name: (knob, space.codes[:, place]) for place, knob in enumerate(space.knobs)}
            for column, (name, numbers) in enumerate(self.columns):
                if name in codes:
                    knob, chosen = codes[name]
                    part[:, column] = np.array([numbers.get(v, 0.0) for v in knob.values])[chosen]
            if len(self.sketches) > 1:
                part[:, len(self.columns) + self.sketches[space.sketch]] = 1
            parts.append(part)
        return np.concatenate(parts)

    def rows(self, schedules: Sequence[Schedule]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(float32[n, width], bool[n]: whether the sketch and all values of a schedule are in the pool)."""
        points = np.zeros((len(schedules), self.width), np.float32)
        known = np.array([s.sketch in self.sketches for s in schedules], np.bool_)
        alike = dict[tuple[str, ...], list[int]]()  # history is long: columns are faster than one row after another
        for row, schedule in enumerate(schedules):
            alike.setdefault((schedule.sketch, *[name for name, _ in schedule.knobs]), []).append(row)
        for (sketch, *names), rows in alike.items():
            knobs = dict(zip(names, zip(*[schedules[row].knobs for row in rows], strict=True), strict=True))
            for column, (name, numbers) in enumerate(self.columns):
                if name in knobs:
                    points[rows, column] = [numbers.get(value, np.nan) for _, value in knobs[name]]
            if len(self.sketches) > 1 and sketch in self.sketches:
                points[rows, len(self.columns) + self.sketches[sketch]] = 1
        return points, known & ~np.isnan(points).any(axis=1)


def _columns(values: Sequence[KnobValue]) -> list[dict[KnobValue, float]]:
    """Return the columns of a knob: the value of each of its different ``values``."""
    numbers = [v for v in values if isinstance(v, int) and v >= 0]
    if len(numbers) < len(values):
        return [_scaled(values, np.arange(len(values)))]
    order = np.array(numbers)
    columns = [_scaled(values, np.log2(1 + order))]
    aligned = order & -order  # the greatest power of two that divides a number; 0 for 0, which all divide
    if 2 * np.count_nonzero(aligned == order) < len(order) and len(np.unique(aligned[order > 0])) > 1:
        columns.append(_scaled(values, np.log2(np.where(order > 0, aligned, aligned.max()))))
    return columns


def _scaled(values: Sequence[KnobValue], numbers: NDArray[np.generic]) -> dict[KnobValue, float]:
    """Return the number of each value, between 0 and 1."""
    scaled = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    return dict(zip(values, scaled.tolist(), strict=True))
