"""Keeps the leases of a task worker: renews them from the loop that drives its work, and stops that work without them.

    heartbeat (each wait of the executor)
      a third of the lease is over       renew all leases; learn what is wanted
      LOOK_SECONDS since the last look   only learn what is wanted
      the job is to stop                 raise TaskStopped, which abandons what is under way

    kept (an executor opens or closes)   beat from another thread, for BLOCKED_SECONDS at most

A worker that hangs does not beat, so that its leases run out and another worker takes over. A worker that was stopped,
or whose database is away, finds its leases ended by its own monotonic clock, and gives nothing more to the device. It
says so when it can, because its task is not to blame for that loss.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from ..core.errors import StoreError
from ..core.fleet import Lease, LeaseLost, Wanted
from ..workers.lease_guard import LeaseGuard

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.fleet_store import FleetStore

LOOK_SECONDS = 0.25
"""How often a worker asks whether its job is being cancelled."""

BLOCKED_SECONDS = 120.0
"""Opening or closing an executor may take so long: connecting to Ray alone takes seconds, and more on a busy host."""

OWN_SHARE = 0.5
"""A worker that used a processor for this part of the time between two beats, and of a lease, has itself to blame if it
loses the lease. One that used less was stopped, or waited: with a processor of its own it would have been in time, for
it renews after a third of a lease."""


class TaskStopped(Exception):
    """The job of the task in hand is being cancelled, or has ended."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """Holds a moment, or the time between two, in seconds: by the clock, and by what this process used of
    processors."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> "_Moment":
        return cls(time.monotonic(), time.process_time())

    def since(self, before: "_Moment") -> "_Moment":
        return _Moment(self.clock - before.clock, self.processor - before.processor)


class LeaseKeeper:
    """``hold`` says which lease the worker has on its unit; ``add`` and ``drop`` say which tasks are held besides: the
    one in hand, then one that was claimed ahead; ``join`` and ``leave``, which further units. ``yielding`` tells
    whether the worker should give its task back. All methods but ``guard`` are for one thread at a time."""

    def __init__(
        self, fleet: "FleetStore", *, seconds: float, yielding: Callable[[], bool], alive: Callable[[], None]
    ) -> None:
        """``seconds`` is how long leases last. ``alive`` is called with every beat."""
        self._fleet = fleet
        self._alive = alive
        self._unit: Lease | None = None
        self._tasks: list[Lease] = []
        self._patience: dict[Lease, int] = {}
        self._further: dict[Lease, LeaseGuard] = {}
        self._seconds = seconds
        self._yielding = yielding
        self._renewed = self._looked = -inf
        self._beaten = _Moment.now()
        self._spent: _Moment | None = None
        self._wanted = Wanted.GO
        self.guard = LeaseGuard(-inf)
        """What the executor asks before anything is given to the device."""

    def hold(self, unit: Lease | None, asked: float) -> None:
        """Keep the lease of the unit, which was asked for at ``asked`` by the monotonic clock; None: it is given up."""
        self._unit, self._wanted = unit, Wanted.GO
        self._renewed = self._looked = asked
        self._beaten, self._spent = _Moment.now(), None
        self.guard.renewed(-inf if unit is None else asked + self._seconds)

    def add(self, task: Lease, patience: int = 1) -> None:
        """Keep the lease of a task, which was taken a moment ago, for so many times as long as others. While it is the
        task in hand, the lease of the unit lasts as long, from the next beat on."""
        self._tasks.append(task)
        self._patience[task] = patience
        self._wanted = Wanted.GO
        self._beaten, self._spent = _Moment.now(), None
        if patience > 1:
            self._renewed = -inf

    def drop(self, task: Lease) -> None:
        """Keep the lease no longer: the task is finished, or given back."""
        self._tasks = [lease for lease in self._tasks if lease != task]
        self._patience.pop(task, None)
        self._wanted = Wanted.GO

    def join(self, unit: Lease, asked: float) -> LeaseGuard:
        """Keep the lease of a further unit, which was asked for at ``asked``; return what its executor asks before
        anything is given to it. Where the lease is lost that is revoked, and nothing else happens."""
        self._further[unit] = LeaseGuard(asked + self._seconds)
        return self._further[unit]

    def leave(self, unit: Lease) -> None:
        """Keep the lease of a further unit no longer."""
        self._further.pop(unit, None)

    @property
    def wanted(self) -> Wanted:
        """What is wanted, as far as is known: of the first task that is held, or of the unit."""
        return Wanted.YIELD if self._wanted is Wanted.GO and self._yielding() else self._wanted

    @property
    def delay(self) -> str | None:
        """Once a lease is lost: that this process was held up, for people; None where its own work kept it from its
        beats. It was held up where it used a processor for a small part of the time since the last one: it was stopped,
        other processes had the processors, or the database did not answer. The time that a beat waits for the database
        is not counted."""
        spent = self._spent or _Moment.now().since(self._beaten)
        if spent.processor >= OWN_SHARE * max(self._seconds, spent.clock):
            return None
        used = f"{spent.processor:.2f} of {spent.clock:.2f} s"
        return f"its holder was held up: it used a processor for {used} since its last heartbeat"

    def learn(self, wanted: Wanted) -> None:
        """Note what a write of the holder was answered."""
        self._wanted = wanted

    def beat(self) -> None:
        """Renew the leases where it is time to. Raises TaskStopped, and LeaseLost where a lease has ended. While the
        database is away, the leases last until their end."""
        self._spent = _Moment.now().since(self._beaten)
        self._alive()
        now = time.monotonic()
        try:
            if now - self._renewed >= self._seconds / 3:
                self.renew()
            elif self._tasks and now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._wanted = self._fleet.wanted(self._tasks[0])
        except StoreError:
            self._looked = now
            self.guard()  # raises LeaseLost once they have ended
        except LeaseLost:
            self.guard.revoke()
            raise
        self._beaten, self._spent = _Moment.now(), None
        if self._wanted is Wanted.STOP:
            raise TaskStopped

    def renew(self) -> None:
        """Renew the leases of the unit and of the task in hand; learn what is wanted. Raises LeaseLost, StoreError. The
        lease of a task that was claimed ahead may be lost: whoever writes to it will be told."""
        now = time.monotonic()
        if self._unit is None:
            raise LeaseLost("no unit is held")
        present = self._tasks[:1]
        seconds = self._seconds * max((self._patience[task] for task in present), default=1)
        self._wanted = self._fleet.renew([*present, self._unit], seconds=seconds)
        for ahead in self._tasks[1:]:
            with suppress(LeaseLost):
                self._fleet.renew([ahead], seconds=self._seconds * self._patience[ahead])
        for unit, guard in self._further.items():
            try:
                self._fleet.renew([unit], seconds=self._seconds)
                guard.renewed(now + self._seconds)
            except LeaseLost:
                guard.revoke()
        self._renewed = self._looked = now
        self.guard.renewed(now + seconds)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Beat while the block runs, which waits for something that does not beat. What a beat raises is raised again
        by the next one after the block."""
        over = threading.Event()
        thread = threading.Thread(target=self._keep, args=(over,), name="lease-keeper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _keep(self, over: threading.Event) -> None:
        end = time.monotonic() + BLOCKED_SECONDS
        with suppress(TaskStopped, LeaseLost, StoreError, OSError):
            while not over.wait(LOOK_SECONDS) and time.monotonic() < end:
                self.beat()
