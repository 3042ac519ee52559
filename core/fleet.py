"""The nouns of a fleet: physical devices, leases on them and on tasks, and how an attempt at a task ends."""

from dataclasses import dataclass
from enum import StrEnum

from .errors import Conflict
from .target import DeviceInfo

OWNER_BYTES = 8
"""An owner is a fresh random name of this many bytes for each process, never a host or a process number: a successor
must not look like the one before."""

MOST_LOSSES = 5
"""After so many attempts in a row that were lost without a new record, a task is dead."""

MOST_UNITS = 8
"""A task may ask for so many units at once."""
TRIALS_OF_A_UNIT = 24
"""A task has no more units than its trials have so many each. With k units the search chooses 12 k candidates ahead of
their results; ``python -m benchmarks recorded-ahead`` found a loss below 0.01 up to there."""

MOST_PRIORITY = 100
"""Priorities lie between minus this and this. The usual one is 0."""


class UnitState(StrEnum):
    """Whether a unit may be leased. Only a ready one may."""

    READY = "ready"
    SUSPECT = "suspect"
    """It failed or drifted, and a probe has to say whether it is well."""
    QUARANTINED = "quarantined"
    """It is not used until probes or an administrator release it; ``reason`` says why."""
    DRAINING = "draining"
    """An administrator takes it out: the task in hand ends, and no other begins."""
    LOST = "lost"
    """Nobody has seen it lately."""


class TaskState(StrEnum):
    """Where a task stands in the queue."""

    BLOCKED = "blocked"
    """Its job is paused, or an equal task of another job is in flight, whose records it will adopt."""
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    """Too many attempts in a row were lost: they are the evidence."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One physical device, whatever its class. ``uuid`` is the GPU's own, or the name of the host for its processor.
    ``executor`` is what reaches it (``local``, ``ray``), ``ordinal`` its number among the devices of its kind there."""

    uuid: str
    device: DeviceInfo
    host: str
    executor: str = "local"
    ordinal: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """The targets that this unit serves: its kind, its kind and architecture, and the key of its device."""
        target = self.device.target
        return (target.kind, f"{target.kind}:{target.arch}", self.device.key)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on ``subject`` until the database says ``until`` (seconds of its clock). ``fence`` grows with
    each new lease of a subject, and every write of a holder is checked against it. ``kind``: ``task`` or ``unit``."""

    kind: str
    subject: str
    fence: int
    owner: str
    until: float


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A task that its holder searches: its job, its position there, and the lease. ``target`` is what was asked for,
    ``request_id`` that of the request that submitted the job; it is empty where no request did."""

    job_id: str
    task: int
    target: str
    executor: str
    cache: str
    lease: Lease
    request_id: str = ""
    units: int = 1
    """So many units it may have at once."""
    patience: int = 1
    """Its lease lasts so many times as long as asked for: twice as long for each loss in a row."""


class Wanted(StrEnum):
    """What the service wants of the holder of a task."""

    GO = "go"
    YIELD = "yield"
    """Give the task back after the trial in hand: another task goes first, its job is paused, or its unit drains."""
    STOP = "stop"
    """The job is being cancelled, or has ended."""


class AttemptEnd(StrEnum):
    """How an attempt at a task ended."""

    DONE = "done"
    YIELDED = "yielded"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The task itself cannot go on: no sketch fits, or its data do not fit the device."""
    LEASE_LOST = "lease_lost"
    NODE_LOST = "node_lost"
    ACTOR_LOST = "actor_lost"
    DRIVER_LOST = "driver_lost"
    DEVICE_FAULT = "device_fault"
    DATABASE_LOST = "database_lost"
    KILLED = "killed"
    """Somebody killed its process from outside, which says nothing about the task."""
    HOLDER_DELAYED = "holder_delayed"
    """Its holder lived and could not renew its lease: it was stopped, had no processor, or could not reach the
    database."""


class LeaseLost(Conflict):
    """A lease ended or went to another holder. What its holder tried to write was not written. This is a normal end."""

    code = "LEASE_LOST"
