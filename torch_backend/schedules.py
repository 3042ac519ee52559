"""Where the schedule of a kernel comes from: somebody who has tuned it, else the default one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ..core.schedule import Schedule
from ..graph.program import Program


class Schedules(Protocol):
    """Somebody who knows tuned schedules."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        """The schedules that are known, by key of the workload. It never raises, and answers within seconds."""
        ...

    def tune(self, program: Program, keys: Sequence[str], name: str, trials: int) -> Iterator[Mapping[str, Schedule]]:
        """Have the workloads ``keys`` of a program tuned by one job of so many trials; all others are left to the
        library of the model. Yield what is known each time a task has come further, and at the end. It never raises,
        and ends where nobody tunes."""
        ...


class NoSchedules:
    """Nobody has tuned anything, and nobody will."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        return {}

    def tune(self, program: Program, keys: Sequence[str], name: str, trials: int) -> Iterator[Mapping[str, Schedule]]:
        return iter(())
