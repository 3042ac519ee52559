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


def default_schedules(workload: Workload, target: Target, peaks: Peaks = NO_PEAKS, most: int = 4) -> list[Schedule]:
    """The promising settings with the least estimated times, the least first, then others: where a compiler refuses
    one, the next may do. Raises IllegalSchedule where no sketch takes the workload."""
    for sketch in sketches_for(workload, target):
        found: dict[Schedule, None] = {}
        for prune in (True, False):
            space = sketch.space(workload, target, limit=_DRAWN, policy=SpacePolicy(prune=prune), peaks=peaks)
            prior = space.prior_seconds
            rows = range(len(space)) if prior is None else np.argsort(prior, kind="stable")
            found |= {space.schedule(int(row)): None for row in rows[:most]}
            if len(found) >= most:
                break
        if found:
            return list(found)[:most]
    raise IllegalSchedule(f"no sketch takes this workload on {target}", field="/workload")


def has_class(workload: Workload, target: Target) -> bool:
    """Whether a sketch of a kernel class takes the workload, not just the generic one."""
    return any(not sketch.generic for sketch in sketches_for(workload, target))
