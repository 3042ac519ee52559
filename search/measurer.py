"""What search needs of whatever times schedules: an executor, or recorded measurements."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ..core.schedule import Schedule
from ..core.trial import Trial
from ..te.workload import Workload


class Measurer(Protocol):
    """Builds, checks and times schedules of one workload."""

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """Yield (position in ``schedules``, trial) once for each schedule, as they finish, in any order.

        The thread that iterates draws the next schedule whenever another one can begin, so that several are under way
        while results are consumed. A schedule that fails yields a trial whose outcome is Failed. Raises WorkerLost only
        when the executor itself cannot go on. Closing the iterator early abandons what has not finished.
        """
        ...

    def remeasure(self, workload: Workload, schedules: Sequence[Schedule]) -> Sequence[tuple[float, ...]]:
        """Time schedules that were timed before once more, interleaved: one sample of each in every round.

        Whatever the machine does then affects all of them equally. Returns the samples of each schedule in seconds of a
        launch, in the order given; a schedule that fails now has none. Raises WorkerLost.
        """
        ...
