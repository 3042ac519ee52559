"""The frozen values that the service answers questions about the fleet with."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.fleet import AttemptEnd, TaskState, UnitState


@dataclass(frozen=True, slots=True)
class TaskName:
    """Names a task: its job and its position there."""

    job_id: str
    task: int


@dataclass(frozen=True, slots=True)
class UnitView:
    """Shows a physical device of the fleet. ``classes`` are the targets that it serves. ``seen``: whether its host says
    that it is there. ``owner`` holds it, and ``tasks`` are those that this owner has: the one in hand, and perhaps the
    next one. ``health`` is what the last probe found."""

    uuid: str
    state: UnitState
    reason: str | None
    since: str
    seen: bool
    seen_until: str
    host: str
    executor: str
    ordinal: int
    classes: tuple[str, ...]
    device_key: str
    device_name: str
    health: Mapping[str, float]
    anchor_seconds: float | None
    probed_at: str | None
    owner: str | None
    held_until: str | None
    tasks: tuple[TaskName, ...]


@dataclass(frozen=True, slots=True)
class QueueView:
    """Shows a task that runs or waits. ``position`` counts the ready tasks in the order in which they are to be
    claimed, from 1; others have none. ``expected_start`` is an estimate from how long tasks for this target took
    lately; None where that is not known. ``waits_for`` says in words what a task waits for but its turn."""

    job_id: str
    task: int
    tenant: str
    target: str
    executor: str
    state: TaskState
    priority: int
    position: int | None
    ready_since: str | None
    trials: int
    budget_trials: int
    owner: str | None
    units: tuple[str, ...]
    expected_start: str | None
    waits_for: str | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """Shows one attempt at a task. ``how`` is None while it goes on. ``fence`` grows from attempt to attempt."""

    job_id: str
    task: int
    fence: int
    owner: str
    units: tuple[str, ...]
    began_at: str
    ended_at: str | None
    how: AttemptEnd | None
    detail: str


@dataclass(frozen=True, slots=True)
class TenantView:
    """Shows a tenant: its weight in the fair share, the work it was charged for divided by that weight, its quotas
    (None: there is none), and what it has now."""

    name: str
    weight: float
    virtual_seconds: float
    most_units: int | None
    most_queued: int | None
    units: int
    running: int
    waiting: int
