"""Lists the tasks that run or wait, in the order in which they are to be claimed."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select
from sqlalchemy.engine import RowMapping

from ..core.fleet import TaskState
from . import tenants
from .rows import QueueRow, TenantRow
from .tables import attempts, jobs, tasks

TASK_SECONDS = tenants.UNIT_SECONDS
"""What a task that waits is taken to need, where the order between tenants is foretold."""

QUEUED: Select[Any] = (
    select(
        tasks,
        jobs.c.id.label("job_id"),
        func.coalesce(tasks.c.trial_limit, jobs.c.budget_trials).label("budget_trials"),
        attempts.c.owner,
        attempts.c.units,
    )
    .join(jobs, jobs.c.number == tasks.c.job)
    .outerjoin(
        attempts,
        and_(
            attempts.c.job == tasks.c.job,
            attempts.c.task == tasks.c.position,
            attempts.c.fence == tasks.c.fence,
            attempts.c.ended_at.is_(None),
        ),
    )
)


def load_queue(connection: Connection, limit: int) -> tuple[QueueRow, ...]:
    """Return at most ``limit`` tasks: those that run, then those that are ready, then those that are blocked."""
    rows = _in_state(connection, TaskState.LEASED, limit)
    if len(rows) < limit:
        rows += _ready(connection, limit - len(rows))
    if len(rows) < limit:
        rows += _in_state(connection, TaskState.BLOCKED, limit - len(rows))
    return tuple(rows)


def _in_state(connection: Connection, state: TaskState, limit: int, tenant: str | None = None) -> list[QueueRow]:
    query = QUEUED.where(tasks.c.state == state.value)
    if tenant is not None:
        query = query.where(tasks.c.tenant == tenant)
    query = query.order_by(tasks.c.priority.desc(), tasks.c.job, tasks.c.position).limit(limit)
    return [_queue_row(row) for row in connection.execute(query).mappings()]


def _ready(connection: Connection, limit: int) -> list[QueueRow]:
    """Deal the ready tasks of all tenants out as claims would, if each took equally long."""
    waiting: list[tuple[TenantRow, Iterator[QueueRow], float]] = [
        (
            tenant,
            iter(_in_state(connection, TaskState.READY, limit, tenant.name)),
            tenant.virtual_seconds + tenant.units * tenants.UNIT_SECONDS / tenant.weight,
        )
        for tenant in tenants.load_tenants(connection)
        if tenant.waiting
    ]
    dealt: list[QueueRow] = []
    while waiting and len(dealt) < limit:
        first = min(range(len(waiting)), key=lambda i: (waiting[i][2], waiting[i][0].name))
        tenant, rest, seconds = waiting[first]
        following = next(rest, None)
        if following is None:
            del waiting[first]
        else:
            dealt.append(following)
            waiting[first] = (tenant, rest, seconds + TASK_SECONDS / tenant.weight)
    return dealt


def _queue_row(row: RowMapping) -> QueueRow:
    return QueueRow(
        row["job_id"],
        row["position"],
        row["tenant"],
        row["target"],
        row["executor"],
        TaskState(row["state"]),
        row["priority"],
        row["ready_since"],
        row["trials"],
        row["budget_trials"],
        row["owner"],
        tuple(row["units"] or ()),
        None if row["source_job"] is None or row["adopted"] else (row["source_job"], row["source_task"]),
    )
