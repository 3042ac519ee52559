"""The port through which search meets whatever times schedules: executors, or recorded measurements."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..core.schedule import Schedule
from ..core.trial import Trial
from ..te.workload import Workload


class Measurer(Protocol):
    """Builds, checks and times schedules of one workload."""

    def measure(self, workload: Workload, schedules: Sequence[Schedule]) -> Iterator[tuple[int, Trial]]:
        """Yield (position in ``schedules``, trial) once for each, as they finish, in any order.

        A schedule that fails yields a trial whose outcome is Failed. Raises WorkerLost only when the executor
        itself cannot go on. Closing the iterator early abandons what has not finished.
        """
        ...
