"""The schedules of workloads that nobody has tuned: the settings that the priors of the sketches rank first."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ..core.errors import IllegalSchedule
from ..core.policy import SpacePolicy
from ..core.schedule import Schedule
from ..core.target import Target
from ..te.workload import Workload
from .sketch import NO_PEAKS, Peaks, Sketch
from .sketches import class_sketches, sketches_for
from .space.space import Space

_DRAWN = 1024
"""How many settings are compared at most, drawn uniformly, always the same ones."""
_CLEARLY = {"llvm": 1.1}
_CLEARLY_ELSEWHERE = 2.0
"""A sketch gives way to a later one of the table whose best setting is estimated to be so many times as fast, by kind
of target. Priors of different sketches err differently. Those of processors share most of their terms."""
_CLEARLY_BY_PAIR = {
    ("cuda_rowwise", "cuda_rowwise_split"): 1.1,
    ("cuda_rowwise", "cuda_rowwise_cooperative"): 1.1,
    ("cuda_rowwise_split", "cuda_rowwise_cooperative"): 1.1,
    ("cuda_gemm", "cuda_gemm_swap_ab"): 1.1,
    ("cuda_gemm", "cuda_gemm_mma"): 1.1,
    ("cuda_gemm", "cuda_conv"): 1.1,
    ("cuda_gemm_swap_ab", "cuda_conv"): 1.1,
    ("cuda_depthwise", "cuda_window"): 1.1,
    ("cuda_loops", "cuda_decomposed"): 1.0,
    ("cpu_loops", "cpu_decomposed"): 0.6,
    ("cuda_pointwise", "cuda_thread_tile"): 1.1,
}
"""The same for pairs of a sketch and a later one that share their prior, so that a smaller difference is clear. On 41
recorded products of 65 to 1536 rows, the default is 3 % slower than the best so, and 5 % without the second pair. The
prior of generic loops is a third of what an H200 took for a convolution and for a layer on audio. An AMD EPYC took 1.7
to 3.4 times their prior for six of seven convolutions with strides and channels first, and 0.7 to 1.1 times that of
copies and products."""


def default_schedule(workload: Workload, target: Target, peaks: Peaks = NO_PEAKS) -> Schedule:
    """Return the first of ``default_schedules``. Equal machines give equal schedules. Raises IllegalSchedule where no
    sketch takes the workload."""
    return default_schedules(workload, target, peaks, 1)[0]


def default_schedules(
    workload: Workload,
    target: Target,
    peaks: Peaks = NO_PEAKS,
    most: int = 6,
    refused_sketches: Collection[str] = (),
) -> list[Schedule]:
    """Return the promising settings with the least estimated times, the least first, then others, of a fixed sample
    where there are many. They are of one sketch, the first of the table unless another one is clearly faster by its
    prior. Where a compiler refuses one, the next may do, since no two differ in one knob alone. Raises IllegalSchedule
    where no sketch takes the workload, apart from those that are refused."""
    sketches = [s for s in sketches_for(workload, target) if s.name not in refused_sketches]
    if not sketches:
        raise IllegalSchedule(f"no sketch takes this workload on {target}", field="/workload")

    def space_of(sketch: Sketch, *, prune: bool = True) -> Space:
        return sketch.space(workload, target, limit=_DRAWN, policy=SpacePolicy(prune=prune), peaks=peaks)

    sketch, promising = sketches[0], space_of(sketches[0])
    clearly = _CLEARLY.get(target.kind, _CLEARLY_ELSEWHERE)
    for other in sketches[1:]:
        space = space_of(other)
        needed = _CLEARLY_BY_PAIR.get((sketch.name, other.name), clearly)
        if needed * _seconds(space).min() < _seconds(promising).min():
            sketch, promising = other, space
    schedules: list[Schedule] = []
    for prune in (True, False):
        space = promising if prune else space_of(sketch, prune=False)
        for row in np.argsort(_seconds(space), kind="stable"):
            if len(schedules) == most:
                return schedules
            schedule = space.schedule(int(row))
            if all(_knobs_apart(schedule, other) > 1 for other in schedules):
                schedules.append(schedule)
    return schedules


def _seconds(space: Space) -> NDArray[np.float32]:
    """Return the estimated time of each setting, or 0 where the sketch has no prior, float32[n]."""
    return np.zeros(len(space), np.float32) if space.prior_seconds is None else space.prior_seconds


def _knobs_apart(one: Schedule, other: Schedule) -> int:
    """In how many knobs two schedules of one space differ."""
    return len(set(one.knobs) ^ set(other.knobs)) // 2


def has_class(workload: Workload, target: Target) -> bool:
    """Return whether a sketch of a kernel class takes the workload, not just the generic one."""
    return any(True for _ in class_sketches(workload, target))
