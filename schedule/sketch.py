"""What a sketch is: a way to write a kernel for a class of workloads on a class of targets."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.policy import DEFAULT_POLICY, SpacePolicy
from ..core.schedule import Schedule
from ..core.target import Target
from ..ir.stmt import Kernel
from ..te.workload import Workload
from .space.columns import Bools
from .space.knob import Knob, Quantity
from .space.space import Space

Peaks = Mapping[str, float]
"""Measured ceilings of a device, as in ``core.target.DeviceInfo.measured``. A prior takes the nominal figure of the
architecture for a ceiling that is missing."""
NO_PEAKS: Peaks = {}


class Sketch(Protocol):
    """A sketch has no state. ``version`` grows whenever knobs, legality or lowering change what a schedule means.

    A setting is *legal* when its kernel can be built and is correct. How fast it may be is another matter: the *prior*
    estimates that, and a policy of search may prune by it. ``lower`` takes every legal setting.
    """

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
        """Whether this sketch is written for no class of workloads. It is used where no sketch of a class matches."""
        ...

    @property
    def dynamic(self) -> bool:
        """Whether this sketch takes workloads with a dynamic dimension. One that does not matches none of them, and
        raises IllegalSchedule."""
        ...

    def matches(self, workload: Workload, target: Target) -> bool:
        """Return whether this sketch can write a kernel for the workload on the target."""
        ...

    def knobs(self, workload: Workload, target: Target) -> tuple[Knob, ...]:
        """Return the knobs and their values. Raises IllegalSchedule for a workload that does not match."""
        ...

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
        """Return the legal settings that ``policy`` keeps, at most ``limit`` rows: a seeded uniform sample where there
        are more.

        ``peaks`` are the measured ceilings of the device at hand; the prior is made from them. The space is never empty
        for a workload that matches.
        """
        ...

    def legal(self, workload: Workload, target: Target, schedules: Sequence[Schedule]) -> Bools:
        """Return which of the schedules ``lower`` takes, bool[n]. Raises IllegalSchedule for a workload that does not
        match."""
        ...

    def derive(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule]
    ) -> Mapping[str, NDArray[np.float32]]:
        """Return the derived columns (``quantities``) of given schedules, float32[n] each, without enumerating the
        space.

        Records of earlier tasks become training data this way. Raises IllegalSchedule for a knob that is unknown or
        has another value, but not for a setting that breaks a constraint.
        """
        ...

    def prior_seconds(
        self, workload: Workload, target: Target, schedules: Sequence[Schedule], peaks: Peaks = NO_PEAKS
    ) -> NDArray[np.float32]:
        """Return the estimated time of given schedules in seconds, float32[n]. Raises IllegalSchedule like
        ``derive``."""
        ...

    def lower(self, workload: Workload, target: Target, schedule: Schedule) -> Kernel:
        """Return the kernel of one schedule: loops with kinds, guards or peeled remainders; not yet vectorised or
        unrolled.

        Raises IllegalSchedule for a knob that is missing, unknown or set to a value that it does not have, and for a
        setting that breaks a constraint; the message says which.
        """
        ...
