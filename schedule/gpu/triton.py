"""Describes the space of a Triton kernel: the configurations that its author names. There is no prior and no kernel
IR."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.errors import IllegalSchedule
from ...core.policy import DEFAULT_POLICY, SpacePolicy
from ...core.schedule import Schedule
from ...core.target import Target
from ...ir.stmt import Kernel
from ...te.triton import OPTIONS, TritonKernel, TritonWorkload
from ...te.workload import Workload
from ..sketch import NO_PEAKS, Peaks
from ..space.columns import Bools
from ..space.knob import Knob, Quantity
from ..space.space import Space


class TritonSketch:
    """See ``schedule.sketch.Sketch``. A schedule names one configuration, and Triton builds it."""

    name = "cuda_triton"
    version = 1
    quantities: tuple[Quantity, ...] = ()
    generic = False
    dynamic = False

    def matches(self, workload: Workload, target: Target) -> bool:
        """Return whether it is a Triton kernel and the target a GPU of NVIDIA."""
        return isinstance(workload, TritonWorkload) and target.kind == "cuda"

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        found = _kernel(workload).configurations
        return tuple(
            Knob(name, found.knob_values(n), "an option of Triton" if name in OPTIONS else "a constant of the kernel")
            for n, name in enumerate(found.names)
        )

    def space(
        self,
        workload: Workload,
        target: Target,
        *,
        seed: int = 0,
        limit: int = 1_000_000,
        policy: SpacePolicy = DEFAULT_POLICY,
        peaks: Peaks = NO_PEAKS,
    ) -> Space:
        """Return all configurations, in the order in which they are given, or a seeded sample of ``limit`` of them."""
        found = _kernel(workload).configurations
        codes = found.codes()
        if len(codes) > limit:
            codes = codes[np.sort(np.random.default_rng(seed).choice(len(codes), limit, replace=False))]
        total = len(found)
        return Space(self.name, self.version, self.knobs(workload, target), codes, {}, total, None, total, total)

    def legal(self, workload: Workload, target: Target, schedules: Sequence[Schedule]) -> Bools:
        """Return which schedules are configurations of the kernel."""
        rows = [_kernel(workload).configurations.row_of(dict(schedule.knobs)) for schedule in schedules]
        return np.array([row is not None for row in rows], np.bool_)

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        """Return no columns. Raises IllegalSchedule for what is no configuration of the kernel."""
        for schedule in schedules:
            configuration_of(workload, schedule)
        return {}

    def prior_seconds(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule], peaks: Peaks = NO_PEAKS
    ) -> NDArray[np.float32]:
        """NaN: nothing is known ahead."""
        return np.full(len(schedules), np.nan, np.float32)

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        """Raises IllegalSchedule, always: Triton compiles its kernels itself."""
        raise IllegalSchedule(
            "a Triton kernel is compiled by Triton, so that there is no kernel IR of it to show or to export",
            field="/schedule/sketch",
        )


CUDA_TRITON = TritonSketch()


def configuration_of(workload: Workload, schedule: Schedule) -> int:
    """Return which configuration a schedule names. Raises IllegalSchedule for one that the kernel does not have."""
    kernel = _kernel(workload)
    found = kernel.configurations.row_of(dict(schedule.knobs))
    if found is None:
        raise IllegalSchedule(f"{schedule} is no configuration of {kernel.name}", field="/schedule/knobs")
    return found


def _kernel(workload: Workload) -> TritonKernel:
    if not isinstance(workload, TritonWorkload):
        raise IllegalSchedule("this workload is no Triton kernel", field="/schedule/sketch")
    return workload.triton
