"""From records to training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..core.errors import IllegalSchedule
from ..core.schedule import Schedule
from ..core.target import DeviceInfo
from ..core.trial import Outcome, Reason, Timed, TrialStage
from ..schedule.sketches import SKETCHES
from ..te.workload import Workload


@dataclass(frozen=True, slots=True)
class Experience:
    """All that was measured of one workload on one device with one toolchain under one profile: what may be compared.

    ``toolchain_key`` and ``profile`` are empty where nobody knows them.
    """

    workload: Workload
    device: DeviceInfo
    results: Sequence[tuple[Schedule, Outcome]]
    toolchain_key: str = ""
    profile: str = ""


def says_of_schedule(outcome: Outcome) -> bool:
    """Return whether an outcome says something of its schedule. Noise, a lost machine, and a time-out of whatever
    prepares a launch, which a busy machine may have caused, do not."""
    if isinstance(outcome, Timed):
        return True
    building = outcome.stage in (TrialStage.LOWER, TrialStage.COMPILE, TrialStage.LOAD)
    return outcome.reason not in _OF_MACHINES and not (outcome.reason is Reason.TIMEOUT and building)


_OF_MACHINES = (Reason.NOISY, Reason.WORKER_LOST)


def labels(outcomes: Sequence[Outcome]) -> NDArray[np.float32]:
    """Return the best seconds of one task's outcomes over the seconds of each, float32[n].

    A failure of a schedule is 0. An outcome that says nothing of its schedule is NaN, and no model learns from it.
    """
    seconds = np.array([o.seconds if isinstance(o, Timed) else np.inf for o in outcomes])
    best = seconds.min(initial=np.inf)
    found = np.zeros(len(seconds), np.float32) if np.isinf(best) else (best / seconds).astype(np.float32)
    found[[not says_of_schedule(o) for o in outcomes]] = np.nan
    return found


def experience_data(
    experiences: Sequence[Experience], *, prior: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(float32[n, columns], float32[n] labels) of earlier tasks. Without ``prior`` no column holds an estimate.

    Schedules of sketches or versions that this program no longer has are left out: their knobs mean nothing now. So are
    outcomes that say nothing of their schedule.
    """
    from .features import COLUMNS, schedule_features  # loads all sketches, for their columns

    features: list[NDArray[np.float32]] = [np.zeros((0, len(COLUMNS)), np.float32)]
    goals: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    for experience in experiences:
        scores = labels([outcome for _, outcome in experience.results])
        order = sorted(range(len(scores)), key=lambda i: experience.results[i][0].sketch)
        for sketch, members in groupby(order, key=lambda i: experience.results[i][0].sketch):
            rows = [i for i in members if _is_current(experience.results[i][0]) and not np.isnan(scores[i])]
            schedules = [experience.results[i][0] for i in rows]
            if not rows or not SKETCHES[sketch].matches(experience.workload, experience.device.target):
                continue
            workload, device = experience.workload, experience.device
            try:
                derived = SKETCHES[sketch].derive(workload, device.target, schedules)
                estimate = None
                if prior:
                    estimate = SKETCHES[sketch].prior_seconds(workload, device.target, schedules, device.measured)
            except IllegalSchedule:
                continue  # recorded on another target, where other settings are legal
            knobs = [s.knobs for s in schedules]
            features.append(schedule_features(sketch, derived, estimate, knobs, workload, device))
            goals.append(scores[rows])
    return np.concatenate(features), np.concatenate(goals)


def _is_current(schedule: Schedule) -> bool:
    sketch = SKETCHES.get(schedule.sketch)
    return sketch is not None and sketch.version == schedule.version
