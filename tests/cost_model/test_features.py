"""Feature columns: named once, with units, and the same from a space as from its schedules alone."""

import numpy as np
import pytest

from tilewright.core.policy import SpacePolicy
from tilewright.core.streams import stream
from tilewright.core.trial import Failed, Outcome, Reason, Timed, TrialStage
from tilewright.cost_model.dataset import Experience, experience_data, labels
from tilewright.cost_model.features import COLUMNS, schedule_features, space_features
from tilewright.runtime.devices import open_device
from tilewright.schedule.sketches import sketches_for
from tilewright.te.operators import OPERATORS

DEVICE = open_device("llvm").info


def test_every_column_has_a_name_of_its_own_a_unit_and_a_meaning() -> None:
    assert len({c.name for c in COLUMNS}) == len(COLUMNS)
    assert all(c.unit and c.meaning for c in COLUMNS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_schedules_alone_give_the_features_of_their_space(operator: str) -> None:
    workload = OPERATORS[operator].workload(next(iter(OPERATORS[operator].cases())))
    sketches = sketches_for(workload, DEVICE.target)
    assert sketches
    for sketch in sketches:
        space = sketch.space(workload, DEVICE.target, seed=0, limit=500)
        rows = stream(0, "rows").choice(len(space), size=min(20, len(space)), replace=False)
        schedules = [space.schedule(int(r)) for r in rows]
        derived = sketch.derive(workload, DEVICE.target, schedules)
        prior = sketch.prior_seconds(workload, DEVICE.target, schedules)
        alone = schedule_features(sketch.name, derived, prior, [s.knobs for s in schedules], workload, DEVICE)
        whole = space_features(space, workload, DEVICE)[rows]
        assert np.array_equal(alone, whole, equal_nan=True), sketch.name


def test_without_a_prior_no_feature_holds_an_estimate() -> None:
    workload = OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64})
    sketch = sketches_for(workload, DEVICE.target)[0]
    column = next(i for i, c in enumerate(COLUMNS) if c.name == "prior.nanoseconds")
    space = sketch.space(workload, DEVICE.target, limit=50, policy=SpacePolicy(prior=False))
    experience = Experience(workload, DEVICE, [(space.schedule(i), Timed((1.0 + i,))) for i in range(3)])
    assert space.prior_seconds is None
    assert np.isnan(space_features(space, workload, DEVICE)[:, column]).all()
    assert np.isnan(experience_data([experience], prior=False)[0][:, column]).all()
    assert np.isfinite(experience_data([experience])[0][:, column]).all()


def test_labels_compare_with_the_best_and_failures_get_nothing() -> None:
    outcomes: list[Outcome] = [Timed((2.0,)), Failed(TrialStage.TIME, Reason.TIMEOUT), Timed((1.0,)), Timed((4.0,))]
    assert labels(outcomes).tolist() == [0.5, 0.0, 1.0, 0.25]
    assert labels([Failed(TrialStage.COMPILE, Reason.COMPILE_ERROR)]).tolist() == [0.0]


def test_records_of_a_sketch_that_is_gone_are_left_out() -> None:
    workload = OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64})
    sketch = sketches_for(workload, DEVICE.target)[0]
    space = sketch.space(workload, DEVICE.target, limit=50)
    kept = [(space.schedule(i), Timed((1.0 + i,))) for i in range(3)]
    gone = [(type(s)("no_such_sketch", 1, s.knobs), o) for s, o in kept]
    old = [(type(s)(s.sketch, s.version + 1, s.knobs), o) for s, o in kept]
    features, goals = experience_data([Experience(workload, DEVICE, [*kept, *gone, *old])])
    assert features.shape == (3, len(COLUMNS))
    assert goals.tolist() == [1.0, 0.5, pytest.approx(1 / 3)]
