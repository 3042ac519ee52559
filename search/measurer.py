"""The port through which search meets whatever times schedules: executors, or recorded measurements."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ..core.schedule import Schedule
from ..core.trial import Trial
from ..te.workload import Workload


class Measurer(Protocol):
    """Builds, checks and times schedules of one workload."""

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """Yield (position in ``schedules``, trial) once for each, as they finish, in any order.

        ``schedules`` is drawn from, on the thread that iterates, when another one can be begun: some are on their way
        while results are consumed. A schedule that fails yields a trial whose outcome is Failed. Raises WorkerLost
        only when the executor itself cannot go on. Closing the iterator early abandons what has not finished.
        """
        ...

    def final(self, workload: Workload, schedules: Sequence[Schedule]) -> Sequence[tuple[float, ...]]:
        """Time schedules that were timed before once more, interleaved: one sample of each in turn, round after round,
        so that whatever the machine does meets all alike. The samples (seconds of a launch) of each, in the order
        given; none for one that fails now. Raises WorkerLost."""
        ...
