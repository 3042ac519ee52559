"""How alike two tasks are: which earlier ones a model should learn from.

    distance = sum of |differences| of the workloads' features (mostly powers of two)
               + DEVICE where the device is another one, ARCHITECTURE where its architecture is
               + TOOLCHAIN, PROTOCOL where these differ

Only tasks of one *operator family* on one *device class* are relatives. A family is what the same sketches write: their
schedules have knobs in common. Times with cold caches say little of times with warm ones, so that these are never
relatives either.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..core.target import DeviceInfo, Target
from ..schedule.sketches import sketches_for
from ..te.workload import Workload

DEVICE, ARCHITECTURE, TOOLCHAIN, PROTOCOL = 1.0, 3.0, 0.25, 0.5
_ROUNDING = 1e-3
"""Features are in single precision."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a task is about, and what it is measured on. Two of them are equal where all that is compared is."""

    workload: Workload
    device: DeviceInfo
    toolchain_key: str
    profile: str


def distance(one: Situation, other: Situation) -> float:
    """Return how far apart two tasks are, 0 for equal ones; infinite where they are no relatives."""
    cache, protocol = one.profile.partition("-")[::2]
    other_cache, other_protocol = other.profile.partition("-")[::2]
    targets = one.device.target, other.device.target
    if targets[0].kind != targets[1].kind or cache != other_cache:
        return inf
    if not family(one.workload, targets[0]) & family(other.workload, targets[1]):
        return inf
    apart = 0.0
    if one.workload != other.workload:  # of Triton kernels no feature is known
        apart = float(np.abs(_features(one.workload) - _features(other.workload)).sum())
    apart += DEVICE * (one.device.key != other.device.key) + ARCHITECTURE * (targets[0].arch != targets[1].arch)
    return apart + TOOLCHAIN * (one.toolchain_key != other.toolchain_key) + PROTOCOL * (protocol != other_protocol)


def least_distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how far apart two tasks are at least, by the (operations, bytes) that their workloads cost."""
    from .features import cost_features

    return float(np.abs(cost_features(*one) - cost_features(*other)).sum()) - _ROUNDING


@lru_cache(maxsize=1024)
def _features(workload: Workload) -> NDArray[np.float32]:
    from .features import workload_features  # loads all sketches, for their columns

    return workload_features(workload)


@lru_cache(maxsize=1024)
def family(workload: Workload, target: Target) -> frozenset[str]:
    """Return the operator family of a workload: the names of the sketches that write it for a target."""
    return frozenset(sketch.name for sketch in sketches_for(workload, target))


def family_name(workload: Workload, target: Target) -> str:
    """Return the name under which a model of a family is kept: that of the first sketch that fits."""
    return sketches_for(workload, target)[0].name


def nearest(task: Situation, others: Iterable[Situation]) -> list[tuple[float, int]]:
    """(distance, number) of the relatives among ``others``, nearest first. Of equally near ones the first comes
    first."""
    found = ((distance(task, other), number) for number, other in enumerate(others))
    return sorted((apart, number) for apart, number in found if apart < inf)
