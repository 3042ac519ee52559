"""The schedules of a workload that nobody has tuned: the settings that the prior of its first sketch ranks first."""

import numpy as np

from ..core.errors import IllegalSchedule
from ..core.policy import SpacePolicy
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.workload import Workload
from .sketch import NO_PEAKS, Peaks
from .sketches import sketches_for

_DRAWN = 1024
"""How many settings are compared at most, drawn uniformly, always the same ones."""


def default_schedule(workload: Workload, target: Target, peaks: Peaks = NO_PEAKS) -> Schedule:
    """The setting with the least estimated time, of a fixed sample where there are many. Equal machines give equal
    schedules. Raises IllegalSchedule where no sketch takes the workload."""
    return default_schedules(workload, target, peaks, 1)[0]


def default_schedules(workload: Workload, target: Target, peaks: Peaks = NO_PEAKS, most: int = 6) -> list[Schedule]:
    """The promising settings with the least estimated times, the least first, then others. Where a compiler refuses
    one, the next may do, since no two differ in one knob alone. Raises IllegalSchedule where no sketch takes the
    workload."""
    for sketch in sketches_for(workload, target):
        found: list[Schedule] = []
        for prune in (True, False):
            space = sketch.space(workload, target, limit=_DRAWN, policy=SpacePolicy(prune=prune), peaks=peaks)
            prior = space.prior_seconds
            for row in range(len(space)) if prior is None else np.argsort(prior, kind="stable"):
                if len(found) == most:
                    return found
                schedule = space.schedule(int(row))
                if all(_knobs_apart(schedule, other) > 1 for other in found):
                    found.append(schedule)
        if found:
            return found
    raise IllegalSchedule(f"no sketch takes this workload on {target}", field="/workload")


def _knobs_apart(one: Schedule, other: Schedule) -> int:
    """In how many knobs two schedules of one space differ."""
    return len(set(one.knobs) ^ set(other.knobs)) // 2


def has_class(workload: Workload, target: Target) -> bool:
    """Whether a sketch of a kernel class takes the workload, not just the generic one."""
    return any(not sketch.generic for sketch in sketches_for(workload, target))
