"""What a sketch is: a way to write a kernel for a class of workloads on a class of targets."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.stmt import Kernel
from ..te.workload import Workload
from .space import Quantity, Space


class Sketch(Protocol):
    """Stateless; ``version`` grows whenever knobs, legality or lowering change what a schedule means."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The derived columns that every space of this sketch has, with units."""
        ...

    @property
    def generic(self) -> bool:
        """Whether this sketch takes any workload: it is used where no other sketch matches."""
        ...

    def matches(self, workload: Workload, target: Target) -> bool:
        """Whether this sketch can write a kernel for the workload on the target."""
        ...

    def space(self, workload: Workload, target: Target, *, seed: int = 0, limit: int = 1_000_000) -> Space:
        """Every legal setting, at most ``limit`` rows: a seeded sample when there are more. Never empty."""
        ...

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        """The derived columns (``quantities``) of given schedules, float32[n] each, without enumerating the space:
        how records of earlier tasks become training data. Raises IllegalSchedule like ``lower``."""
        ...

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        """The kernel of one schedule: loops with kinds, guards or peeled remainders; not yet vectorised or unrolled.

        Raises IllegalSchedule for a knob that is missing, unknown or set to an illegal value.
        """
        ...
