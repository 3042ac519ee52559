"""Where the schedule of a kernel comes from: somebody who has tuned it, else the default one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..core.schedule import Schedule


class Schedules(Protocol):
    """Somebody who knows tuned schedules."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        """The schedules that are known, by key of the workload. It never raises, and answers within seconds."""
        ...


class NoSchedules:
    """Nobody has tuned anything."""

    def find(self, workload_keys: Sequence[str]) -> Mapping[str, Schedule]:
        return {}
