"""Settings as points of a cube, where distance means something, for Gaussian processes and for transfer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import KnobValue, Schedule
from .pool import CandidatePool


@dataclass(frozen=True)
class Encoding:
    """``columns``: a knob by name -> the number of each of its values, in 0..1. Numbers keep the order and the distance
    of their logarithms, texts those of their places. ``sketches``: places of sketches; more than one have columns too.
    """

    columns: Mapping[str, Mapping[KnobValue, float]]
    sketches: Mapping[str, int]

    @classmethod
    def of(cls, pool: CandidatePool) -> "Encoding":
        """For the knobs that differ within ``pool``."""
        values: dict[str, dict[KnobValue, None]] = {}
        for space in pool.spaces:
            for place, knob in enumerate(space.knobs):
                used = [knob.values[int(c)] for c in np.unique(space.codes[:, place])]
                values.setdefault(knob.name, {}).update(dict.fromkeys(used))
        columns = {name: _scaled(list(found)) for name, found in values.items() if len(found) > 1}
        return cls(columns, {s.sketch: place for place, s in enumerate(pool.spaces)})

    @property
    def width(self) -> int:
        return len(self.columns) + (len(self.sketches) if len(self.sketches) > 1 else 0)

    def points(self, pool: CandidatePool) -> NDArray[np.float32]:
        """float32[pool, width]. A knob that a sketch does not have is 0."""
        parts = []
        for space in pool.spaces:
            part = np.zeros((len(space), self.width), np.float32)
            codes = {knob.name: (knob, space.codes[:, place]) for place, knob in enumerate(space.knobs)}
            for column, (name, numbers) in enumerate(self.columns.items()):
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
        places = {name: column for column, name in enumerate(self.columns)}
        for (sketch, *names), rows in alike.items():
            knobs = zip(*[schedules[row].knobs for row in rows], strict=True)
            for name, values in zip(names, knobs, strict=True):
                if name in places:
                    numbers = self.columns[name]
                    points[rows, places[name]] = [numbers.get(value, np.nan) for _, value in values]
            if len(self.sketches) > 1 and sketch in self.sketches:
                points[rows, len(self.columns) + self.sketches[sketch]] = 1
        return points, known & ~np.isnan(points).any(axis=1)


def _scaled(values: Sequence[KnobValue]) -> dict[KnobValue, float]:
    numeric = all(isinstance(v, int) and v >= 0 for v in values)
    ordered = sorted(values) if numeric else list(values)
    numbers = np.array([np.log2(1.0 + int(v)) if numeric else n for n, v in enumerate(ordered)])
    scaled = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    return dict(zip(ordered, scaled.tolist(), strict=True))
