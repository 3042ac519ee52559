"""Changes that people make to a job in the queue: pause and resume, another priority, another try at dead tasks."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select, update

from ..core.errors import Conflict
from ..core.fleet import TaskState
from .admission import check_priority
from .clock import clock, database_now
from .jobs import CLOSED, FINAL, add_event, change_job_state, lock_job, update_job
from .tables import tasks
from .tenants import enter, is_idle


def pause(connection: Connection, job_id: str, paused: bool) -> None:
    """Hold a job back, or let it go on. Raises NotFound, and Conflict for a job that is cancelled or has ended."""
    job = lock_job(connection, job_id)
    if job["state"] in CLOSED:
        raise Conflict(f"job {job_id} is {job['state']}; this is possible while it is queued or running")
    if job["paused"] == paused:
        return
    idle = is_idle(connection, job["tenant"])
    number = job["number"]
    if paused:
        _change(connection, number, (TaskState.READY,), state=TaskState.BLOCKED.value)
    else:
        held_back = tasks.c.source_job.is_(None) | (tasks.c.adopted > 0)
        ready = {"state": TaskState.READY.value, "ready_since": clock(), "aged": 0, "priority": job["priority"]}
        _change(connection, number, (TaskState.BLOCKED,), held_back, **ready)
    update_job(connection, number, paused=paused)
    add_event(connection, number, "job", {"paused": paused})
    if idle and not paused:
        enter(connection, job["tenant"])


def prioritise(connection: Connection, job_id: str, priority: int) -> None:
    """Change the priority of a job. Raises NotFound, InvalidParameter, and Conflict for a job that has ended."""
    check_priority(priority)
    job = lock_job(connection, job_id)
    if job["state"] in FINAL:
        raise Conflict(f"job {job_id} is {job['state']}; its priority can change until it ends")
    unfinished = (TaskState.READY, TaskState.BLOCKED, TaskState.LEASED)
    _change(connection, job["number"], unfinished, priority=priority + tasks.c.aged)
    update_job(connection, job["number"], priority=priority)
    add_event(connection, job["number"], "job", {"priority": priority})


def retry(connection: Connection, job_id: str) -> None:
    """Make the dead tasks of a job ready again. Raises NotFound, and Conflict for a job that has none, that is
    cancelled, or whose deadline has passed."""
    job = lock_job(connection, job_id)
    if job["state"] in ("cancelling", "cancelled"):
        raise Conflict(f"job {job_id} is {job['state']}")
    if job["deadline"] is not None and job["deadline"] <= database_now(connection):
        raise Conflict(f"the deadline of job {job_id} has passed")
    dead = select(tasks.c.position).where(tasks.c.job == job["number"], tasks.c.state == TaskState.DEAD.value)
    positions = list(connection.execute(dead.order_by(tasks.c.position)).scalars())
    if not positions:
        raise Conflict(f"job {job_id} has no dead task to try again")
    idle = is_idle(connection, job["tenant"])
    state = TaskState.BLOCKED if job["paused"] else TaskState.READY
    again = {"state": state.value, "losses": 0, "ready_since": clock(), "aged": 0, "priority": job["priority"]}
    _change(connection, job["number"], (TaskState.DEAD,), **again)
    if job["state"] in FINAL:
        change_job_state(connection, job, "queued")
    update_job(connection, job["number"], finished_at=None, error=None)
    add_event(connection, job["number"], "job", {"retried": positions})
    if idle:
        enter(connection, job["tenant"])


def _change(
    connection: Connection, number: int, states: Sequence[TaskState], *conditions: ColumnElement[bool], **values: object
) -> None:
    """Change the tasks of a job, whose row is locked, that are in these states. Those that somebody claims in this
    moment are passed over: whoever claims looks at the job afterwards."""
    chosen = (
        select(tasks.c.position)
        .where(tasks.c.job == number, tasks.c.state.in_([state.value for state in states]), *conditions)
        .with_for_update(key_share=True, skip_locked=True)
    )
    connection.execute(update(tasks).where(tasks.c.job == number, tasks.c.position.in_(chosen)).values(**values))
