"""Defines the models of what the service answers about the fleet. They are made from the frozen values of
``service.fleet_views``."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from ..core.fleet import AttemptEnd, TaskState, UnitState
from .responses import ResponseModel, plain


class TaskNameOut(ResponseModel):
    """Names a task: its job and its position there."""

    job_id: str
    task: int


class UnitOut(ResponseModel):
    """Shows a physical device of the fleet."""

    uuid: str = Field(description="The GPU's own, or the name of the host for its processor.")
    state: UnitState = Field(description="Only a ready unit takes tasks.")
    reason: str | None = Field(description="Why it is in this state.")
    since: str
    seen: bool = Field(description="Whether its host says that it is there.")
    seen_until: str
    host: str
    executor: str
    ordinal: int
    classes: tuple[str, ...] = Field(description="The targets that it serves.")
    device_key: str
    device_name: str
    health: Annotated[dict[str, float], BeforeValidator(plain)] = Field(description="What the last probe found.")
    anchor_seconds: float | None
    probed_at: str | None
    owner: str | None = Field(description="The process that holds it; null while nobody does.")
    held_until: str | None
    tasks: tuple[TaskNameOut, ...] = Field(description="The task that it is used for, and perhaps the next one.")


class UnitList(ResponseModel):
    """Lists all units of the fleet, by host."""

    units: tuple[UnitOut, ...]


class QueueEntryOut(ResponseModel):
    """Shows a task that runs or waits."""

    job_id: str
    task: int
    tenant: str
    target: str
    executor: str
    state: TaskState
    priority: int = Field(description="The job's, and a step for each ten minutes of waiting, two at most.")
    position: int | None = Field(description="Its place among the ready tasks, from 1.")
    ready_since: str | None
    trials: int
    budget_trials: int
    owner: str | None
    units: tuple[str, ...]
    expected_start: str | None = Field(
        description="An estimate from how long tasks for this target took lately; null where that is not known."
    )
    waits_for: str | None = Field(description="What it waits for but its turn, in words.")


class QueueList(ResponseModel):
    """Lists tasks that run, then ready ones in the order in which they are to be claimed, then blocked ones."""

    tasks: tuple[QueueEntryOut, ...]


class AttemptOut(ResponseModel):
    """Shows one attempt at a task."""

    job_id: str
    task: int
    fence: int = Field(description="Grows from attempt to attempt.")
    owner: str
    units: tuple[str, ...]
    began_at: str
    ended_at: str | None
    how: AttemptEnd | None = Field(description="How it ended; null while it goes on.")
    detail: str


class AttemptList(ResponseModel):
    """Lists the attempts at a task, oldest first."""

    attempts: tuple[AttemptOut, ...]


class TenantOut(ResponseModel):
    """Shows a tenant."""

    name: str
    weight: float = Field(description="Its share of the units, against that of the others.")
    virtual_seconds: float = Field(description="The work that it was charged for, divided by its weight.")
    most_units: int | None = Field(description="How many units its tasks may hold at once; null: no quota.")
    most_queued: int | None = Field(description="How many of its tasks may wait at once; null: no quota.")
    units: int
    running: int
    waiting: int


class TenantList(ResponseModel):
    """Lists all tenants, by name."""

    tenants: tuple[TenantOut, ...]
