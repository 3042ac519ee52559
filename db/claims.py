"""Claims tasks, and gives them back."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select, tuple_, union_all, update
from sqlalchemy.engine import RowMapping

from ..core.budget import StopReason
from ..core.fleet import MOST_LOSSES, TRIALS_OF_A_UNIT, AttemptEnd, Lease, TaskClaim, TaskState
from . import tenants
from .attempts import begin_attempt, change_units, end_attempt
from .clock import clock, server_start
from .job_ends import settle
from .jobs import (
    CLOSED,
    add_event,
    change_job_state,
    load_task,
    lock_job,
    number_of_job,
    store_facts,
    update_job,
    update_task,
)
from .leases import TASK, drop, lock, take, task_in, task_subject
from .tables import IS_READY, attempts, jobs, tasks
from .units import all_ready
from .units import lease as lease_unit

AGE_SECONDS, MOST_STEPS = 600.0, 2
"""A ready task rises by a step of priority for each so many seconds of waiting, by so many steps at most."""
AGED_AT_ONCE = 200

RECONNECT_SECONDS = 5.0
"""Holders have so long after a start of the database to reach it again."""

NO_LOSS = (AttemptEnd.DONE, AttemptEnd.YIELDED, AttemptEnd.CANCELLED)
INFRASTRUCTURE = (
    *(AttemptEnd.NODE_LOST, AttemptEnd.DRIVER_LOST, AttemptEnd.DATABASE_LOST),
    *(AttemptEnd.KILLED, AttemptEnd.HOLDER_DELAYED),
)
"""After these ends it was not the task that failed."""


def next_ready(tenant: str, target: str, executor: str) -> Select[Any]:
    """Select the ready task of a tenant and a target that is next: the highest priority, then the oldest job. The index
    ``ix_tasks_claim`` has the rows in this order."""
    return (
        select(tasks)
        .where(
            tasks.c.tenant == tenant,
            tasks.c.executor == executor,
            tasks.c.target == target,
            IS_READY,
        )
        .order_by(tasks.c.priority.desc(), tasks.c.job, tasks.c.position)
        .limit(1)
    )


def has_ready(connection: Connection, targets: Sequence[str], executors: Sequence[str]) -> bool:
    """Return whether a task for one of these targets and executors is ready."""
    ready = select(tasks.c.job).where(
        tasks.c.state == TaskState.READY.value, tasks.c.target.in_(targets), tasks.c.executor.in_(executors)
    )
    return connection.execute(ready.limit(1)).first() is not None


def claim(
    connection: Connection, targets: Sequence[str], executor: str, owner: str, units: Sequence[str], seconds: float
) -> tuple[TaskClaim | None, bool]:
    """Lease the task that is next; return it, and whether to ask again: the next task was of a job that ended or was
    paused in this moment, so that another one is next."""
    for tenant in tenants.by_virtual_time(connection, targets, executor, len(units)):
        for target in _targets_by_urgency(connection, tenant, targets, executor):
            query = next_ready(tenant, target, executor).with_for_update(key_share=True, skip_locked=True)
            task = connection.execute(query).mappings().first()
            if task is not None:
                claimed = _lease(connection, task, owner, units, seconds)
                return claimed, claimed is None
    return None, False


def _targets_by_urgency(connection: Connection, tenant: str, targets: Sequence[str], executor: str) -> list[str]:
    """Return the targets for which a tenant has a ready task; that of the next task stands first."""
    if len(targets) == 1:
        return list(targets)
    heads = [next_ready(tenant, target, executor).subquery() for target in dict.fromkeys(targets)]
    found = union_all(*(select(i.c.target, i.c.priority, i.c.job, i.c.position) for i in heads)).subquery()
    ordered = select(found.c.target).order_by(found.c.priority.desc(), found.c.job, found.c.position)
    return list(connection.execute(ordered).scalars())


def _lease(
    connection: Connection, task: RowMapping, owner: str, units: Sequence[str], seconds: float
) -> TaskClaim | None:
    number, position, fence = task["job"], task["position"], task["fence"] + 1
    job_id = connection.execute(select(jobs.c.id).where(jobs.c.number == number)).scalar_one()
    job = lock_job(connection, job_id)
    if job["state"] in CLOSED or job["paused"]:
        state = TaskState.DONE if job["state"] in CLOSED else TaskState.BLOCKED
        update_task(connection, number, position, state=state.value)
        settle(connection, number)
        return None
    update_task(connection, number, position, state=TaskState.LEASED.value, fence=fence)
    patience = 2 ** task["losses"]  # a machine that is only slow is in time at last
    lease = take(connection, TASK, task_subject(job_id, position), fence, owner, seconds * patience)
    begin_attempt(connection, number, position, lease, units)
    if job["state"] == "queued":
        change_job_state(connection, job, "running")
    else:
        update_job(connection, number)
    trials = task["trial_limit"] or job["budget_trials"]
    most = max(1, min(job["units"], trials // TRIALS_OF_A_UNIT))
    about = (task["target"], task["executor"], job["cache"], lease, job["request_id"], most, patience)
    return TaskClaim(job_id, position, *about)


def is_wanted(connection: Connection, targets: Sequence[str], executors: Sequence[str]) -> bool:
    """Return whether a ready task waits for a unit that serves these targets, and its tenant may have one more."""
    return any(tenants.by_virtual_time(connection, targets, executor, 1) for executor in executors)


def join(
    connection: Connection, lease: Lease, uuid: str, targets: Sequence[str], executors: Sequence[str], seconds: float
) -> Lease | None:
    """Lease one more unit for a task whose lease the caller has locked. None: another task waits for it, the tenant may
    have no more, or it is not to be had."""
    job_id, position = task_in(lease)
    if is_wanted(connection, targets, executors):
        return None
    unit = lease_unit(connection, uuid, lease.owner, seconds)
    if unit is None:
        return None
    number = number_of_job(connection, job_id)
    tenant = load_task(connection, number, position)["tenant"]
    quota = next(row for row in tenants.load_tenants(connection) if row.name == tenant)
    if quota.most_units is not None and quota.units >= quota.most_units:
        drop(connection, unit)
        return None
    change_units(connection, number, position, lease.fence, add=uuid)
    return unit


def leave(connection: Connection, lease: Lease, unit: Lease) -> None:
    """Give one of several units of a task back."""
    job_id, position = task_in(lease)
    drop(connection, unit)
    change_units(connection, number_of_job(connection, job_id), position, lease.fence, remove=unit.subject)


def give_back(connection: Connection, lease: Lease, how: AttemptEnd, detail: str) -> None:
    """End the attempt of a lease that the caller has locked, unfinished. The task is ready again, or dead after too
    many losses in a row. A loss counts where nothing but the task is known to be at fault. Its units are then ready,
    its node, its cluster and the database were not lost, and its process was not killed or held up from outside."""
    job_id, position = task_in(lease)
    number = number_of_job(connection, job_id)
    task = load_task(connection, number, position, lock=True)
    units = end_attempt(connection, number, position, lease.fence, how, detail)
    drop(connection, lease)
    counts = how not in NO_LOSS and how not in INFRASTRUCTURE and all_ready(connection, units)
    losses = task["losses"] + counts
    job = lock_job(connection, job_id)
    values: dict[str, object] = {"losses": losses, "ready_since": clock(), "aged": 0, "priority": job["priority"]}
    if job["state"] in CLOSED:
        state = TaskState.DONE
        values["stop_reason"] = task["stop_reason"] or StopReason.CANCELLED.value
    elif losses >= MOST_LOSSES:
        state = TaskState.DEAD
    else:
        state = TaskState.BLOCKED if job["paused"] else TaskState.READY
    update_task(connection, number, position, state=state.value, **values)
    update_job(connection, number)
    about = {"attempt": lease.fence, "how": how.value, "detail": detail[:400], "state": state.value}
    add_event(connection, number, "task", {"task": position, "trials": task["trials"], **about})
    settle(connection, number)


def forgive(connection: Connection, owner: str, how: AttemptEnd, detail: str) -> None:
    """Take losses back that were counted when leases of this owner ran out: it is known now how that came, and that no
    task was to blame. A task that they made dead stays so."""
    _forgive(connection, (attempts.c.owner == owner,), how, detail)


def excuse(connection: Connection, lease: Lease, how: AttemptEnd, detail: str) -> None:
    """Say how an attempt ended whose lease ran out, or is about to, though no task was to blame. The attempt is ended.
    If somebody else found before that the lease had run out, the loss that was counted then is taken back."""
    if lock(connection, lease):
        give_back(connection, lease, how, detail)
    else:
        job_id, position = task_in(lease)
        this = (attempts.c.job == number_of_job(connection, job_id), attempts.c.task == position)
        _forgive(connection, (*this, attempts.c.fence == lease.fence), how, detail)


def _forgive(connection: Connection, these: Sequence[ColumnElement[bool]], how: AttemptEnd, detail: str) -> None:
    lost = (
        select(attempts.c.job, attempts.c.task, attempts.c.fence)
        .join(tasks, (attempts.c.job == tasks.c.job) & (attempts.c.task == tasks.c.position))
        .where(tasks.c.state.in_((TaskState.READY.value, TaskState.LEASED.value, TaskState.BLOCKED.value)))
        .where(tasks.c.losses > 0, attempts.c.how == AttemptEnd.LEASE_LOST.value, *these)
        .order_by(attempts.c.job, attempts.c.task)
    )
    for number, position, fence in connection.execute(lost).all():
        losses = load_task(connection, number, position, lock=True)["losses"]
        end_attempt(connection, number, position, fence, how, detail)
        update_task(connection, number, position, losses=max(0, losses - 1))


def finish(connection: Connection, lease: Lease, stop_reason: str, facts: Mapping[str, object], detail: str) -> None:
    """End the task of a lease that the caller has locked, with these facts; end its job if this was the last task."""
    job_id, position = task_in(lease)
    number = number_of_job(connection, job_id)
    load_task(connection, number, position, lock=True)
    ends = {StopReason.CANCELLED.value: AttemptEnd.CANCELLED, StopReason.ERROR.value: AttemptEnd.FAILED}
    end_attempt(connection, number, position, lease.fence, ends.get(stop_reason, AttemptEnd.DONE), detail)
    drop(connection, lease)
    update_task(connection, number, position, state=TaskState.DONE.value)
    store_facts(connection, job_id, position, {**facts, "stop_reason": stop_reason})
    settle(connection, number)


def lost_with_database(connection: Connection, lease: Lease) -> bool:
    """Return whether the lease of a task ran out because its holder could not reach the database, which was starting:
    the attempt had begun before."""
    start = server_start(connection)
    job_id, position = task_in(lease)
    this = (jobs.c.id == job_id, attempts.c.task == position, attempts.c.fence == lease.fence)
    query = select(attempts.c.began_at).join(jobs, jobs.c.number == attempts.c.job).where(*this)
    return lease.until <= start + RECONNECT_SECONDS and connection.execute(query).scalar_one() < start


def age(connection: Connection) -> bool:
    """Raise the priority of tasks that have been ready for long, so many at once that claims need not pass over many;
    return whether there are more."""
    due = (
        select(tasks.c.job, tasks.c.position)
        .where(
            IS_READY,
            tasks.c.aged < MOST_STEPS,
            tasks.c.ready_since <= clock() - AGE_SECONDS * (tasks.c.aged + 1),
        )
        .order_by(tasks.c.job, tasks.c.position)
        .limit(AGED_AT_ONCE)
        .with_for_update(key_share=True, skip_locked=True)
    )
    raised = {"aged": tasks.c.aged + 1, "priority": tasks.c.priority + 1}
    these = tuple_(tasks.c.job, tasks.c.position).in_(due)
    return connection.execute(update(tasks).where(these).values(raised)).rowcount == AGED_AT_ONCE
