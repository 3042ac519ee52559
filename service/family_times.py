"""How long the schedules of a family may take at any shape: what a cost model learns from the times that there are.

The model learns what the analytic priors leave (``cost_model.residual``) from all schedules at all shapes with times.
So it knows what becomes of tiles that are partly empty from other shapes where they are, and from other schedules.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..core.trial import Timed
from ..cost_model.dataset import Experience, experience_data
from ..cost_model.model import CostModel
from ..cost_model.models import new_model
from ..schedule.sketches import SKETCHES
from ..search.families.expected import Prior
from ..search.families.shapes import Shape, ShapeTable
from ..te.workload import Workload
from . import wiring
from .family_views import FamilySpec

MODEL = "xgboost"
LEAST_SPEED = 1e-6
"""What a model expects to fail is slow, and legal all the same."""
AT_ONCE = 128
"""The features of all schedules at so many shapes are in memory at once."""

Features = NDArray[np.float32]


class FamilyTimes:
    """Knows an operator with some parameters on a device. What is legal at a shape is asked once."""

    def __init__(self, spec: FamilySpec, device: DeviceInfo) -> None:
        self._spec = spec
        self._device = device
        self._operator = wiring.operator_named(spec.operator)
        self._legal: dict[Shape, dict[Schedule, bool]] = defaultdict(dict)

    def table(self, times: Mapping[Shape, Mapping[Schedule, float]]) -> ShapeTable:
        """Return the table of what was timed. Its schedules name all their knobs: times from before and after a knob
        was added are of one schedule, and the least counts. Raises InvalidParameter where a shape has no time."""
        found: dict[Shape, dict[Schedule, float]] = {}
        for shape, seconds in times.items():
            workload, here = self._workload(shape), found.setdefault(shape, {})
            for given, taken in seconds.items():
                schedule = wiring.completed(workload, self._device.target, given)
                here[schedule] = min(taken, here.get(schedule, taken))
        return ShapeTable.of(found)

    def learn(self, table: ShapeTable) -> Prior:
        """Return what a model expects that has learned from these times."""
        experiences = []
        for shape, seconds in zip(table.shapes, table.seconds, strict=True):
            timed = [(s, Timed((float(t),))) for s, t in zip(table.schedules, seconds, strict=True) if np.isfinite(t)]
            experiences.append(Experience(self._workload(shape), self._device, timed))
        model = new_model(MODEL)
        model.fit(*experience_data(experiences), seed=0)

        def prior(shapes: Sequence[Shape], schedules: Sequence[Schedule]) -> NDArray[np.float64]:
            parts = [shapes[n : n + AT_ONCE] for n in range(0, len(shapes), AT_ONCE)]
            return np.concatenate([self._expected(model, part, schedules) for part in parts])

        return prior

    def _expected(
        self, model: CostModel, shapes: Sequence[Shape], schedules: Sequence[Schedule]
    ) -> NDArray[np.float64]:
        """float64[shapes, schedules]: 1 / predicted speed, endless where a schedule is not legal."""
        workloads = [self._workload(shape) for shape in shapes]
        legal = np.array([self._are_legal(*known, schedules) for known in zip(shapes, workloads, strict=True)])
        features = [self._features(w, schedules, may) for w, may in zip(workloads, legal, strict=True)]
        expected = np.full(legal.shape, np.inf)
        if legal.any():
            speeds = model.predict(np.concatenate(features)).astype(np.float64)
            expected[legal] = 1 / np.maximum(speeds, LEAST_SPEED)
        return expected

    def _features(self, workload: Workload, schedules: Sequence[Schedule], legal: NDArray[np.bool_]) -> Features:
        """Return a row for each schedule that is legal, in their order."""
        from ..cost_model.features import COLUMNS, schedule_features  # loads all sketches, for their columns

        found = np.zeros((len(schedules), len(COLUMNS)), np.float32)
        for name in {schedule.sketch for schedule in schedules}:
            rows = [n for n, schedule in enumerate(schedules) if schedule.sketch == name and legal[n]]
            if rows:
                own, sketch = [schedules[n] for n in rows], SKETCHES[name]
                derived = sketch.derive(workload, self._device.target, own)
                prior = sketch.prior_seconds(workload, self._device.target, own, self._device.measured)
                knobs = [schedule.knobs for schedule in own]
                found[rows] = schedule_features(name, derived, prior, knobs, workload, self._device)
        return found[legal]

    def _are_legal(self, shape: Shape, workload: Workload, schedules: Sequence[Schedule]) -> NDArray[np.bool_]:
        known = self._legal[shape]
        missing = [schedule for schedule in schedules if schedule not in known]
        known.update(zip(missing, wiring.are_legal(workload, self._device.target, missing), strict=True))
        return np.array([known[schedule] for schedule in schedules], np.bool_)

    def _workload(self, shape: Shape) -> Workload:
        names = [dimension.name for dimension in self._spec.dimensions]
        return self._operator.workload({**self._spec.parameters, **dict(zip(names, shape, strict=True))})
