"""Keeps the leases of a task worker: renews them from the loop that drives its work, and stops that work without them.

    heartbeat (each wait of the executor)
      a third of the lease is over       renew all leases; learn what is wanted
      LOOK_SECONDS since the last look   only learn what is wanted
      the job is to stop                 raise TaskStopped, which abandons what is under way

A worker that hangs does not beat, so that its leases run out and another worker takes over. A worker that was stopped,
or whose database is away, finds its leases ended by its own monotonic clock, and gives nothing more to the device.
"""

import time
from collections.abc import Callable

from ..core.errors import StoreError
from ..core.fleet import Lease, LeaseLost, Wanted
from ..db.fleet_store import FleetStore
from ..workers.lease_guard import LeaseGuard

LOOK_SECONDS = 0.25
"""How often a worker asks whether its job is being cancelled."""


class TaskStopped(Exception):
    """The job of the task in hand is being cancelled, or has ended."""


class LeaseKeeper:
    """``unit`` is the lease of the worker's unit; ``add`` and ``drop`` say which tasks are held besides. ``yielding``
    tells whether the worker should give its task back. All methods but ``guard`` are for one thread."""

    def __init__(self, fleet: FleetStore, unit: Lease, *, seconds: float, yielding: Callable[[], bool]) -> None:
        """``seconds`` is how long leases last; ``unit`` was taken a moment ago for as long."""
        self._fleet = fleet
        self._unit = unit
        self._tasks: list[Lease] = []
        self._seconds = seconds
        self._yielding = yielding
        self._renewed = self._looked = time.monotonic()
        self._wanted = Wanted.GO
        self.guard = LeaseGuard(self._renewed + seconds)
        """What the executor asks before anything is given to the device."""

    def add(self, task: Lease) -> None:
        """Keep the lease of a task, which was taken a moment ago."""
        self._tasks.append(task)
        self._wanted = Wanted.GO

    def drop(self, task: Lease) -> None:
        """Keep the lease no longer: the task is finished, or given back."""
        self._tasks = [lease for lease in self._tasks if lease != task]
        self._wanted = Wanted.GO

    @property
    def wanted(self) -> Wanted:
        """What is wanted, as far as is known: of the first task that is held, or of the unit."""
        return Wanted.YIELD if self._wanted is Wanted.GO and self._yielding() else self._wanted

    def learn(self, wanted: Wanted) -> None:
        """Note what a write of the holder was answered."""
        self._wanted = wanted

    def beat(self) -> None:
        """Renew the leases where it is time to. Raises TaskStopped, and LeaseLost where a lease has ended. While the
        database is away, the leases last until their end."""
        now = time.monotonic()
        try:
            if now - self._renewed >= self._seconds / 3:
                self._renew(now)
            elif self._tasks and now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._wanted = self._fleet.wanted(self._tasks[0])
        except StoreError:
            self._looked = now
            self.guard()  # raises LeaseLost once they have ended
        except LeaseLost:
            self.guard.revoke()
            raise
        if self._wanted is Wanted.STOP:
            raise TaskStopped

    def _renew(self, now: float) -> None:
        self._wanted = self._fleet.renew([*self._tasks, self._unit], seconds=self._seconds)
        self._renewed = self._looked = now
        self.guard.renewed(now + self._seconds)
