"""Ends a job when its last task is over, and takes the leases of its tasks away where it ends before."""

from sqlalchemy import Connection, and_, exists, func, or_, select
from sqlalchemy.engine import RowMapping

from ..core.budget import StopReason
from ..core.fleet import AttemptEnd, Lease, TaskState
from .attempts import end_attempt, last_end
from .grants import grant_slice
from .jobs import FINAL, change_job_state, close_waiting, load_row, load_task, lock_job, number_of_job, update_task
from .leases import drop, of_job, task_in
from .tables import IS_LEASED, jobs, tasks

WAITING = (TaskState.READY.value, TaskState.BLOCKED.value)


def settle(connection: Connection, number: int) -> None:
    """End a job, whose row the caller has locked, if nothing of it is left to do: SUCCEEDED where every task has a
    time, CANCELLED where it was being cancelled, FAILED otherwise. Of a model's job a task goes on while there are
    trials left."""
    job = load_row(connection, number)
    grant_slice(connection, job)
    counted = select(tasks.c.state, func.count()).where(tasks.c.job == number).group_by(tasks.c.state)
    counts = {state: count for state, count in connection.execute(counted)}
    if job["state"] in FINAL or counts.get(TaskState.LEASED.value):
        return
    if job["state"] == "cancelling":
        close_waiting(connection, number, StopReason.CANCELLED.value)
        change_job_state(connection, job, "cancelled")
    elif not any(counts.get(state) for state in WAITING):
        error = _fault(connection, number)
        change_job_state(connection, job, "succeeded" if error is None else "failed", error)


def finished_jobs(connection: Connection) -> list[str]:
    """Return jobs that run though all their tasks are over, and jobs being cancelled of which no task is leased."""
    unfinished = exists().where(tasks.c.job == jobs.c.number)
    done = and_(jobs.c.state == "running", ~unfinished.where(tasks.c.state.in_((*WAITING, TaskState.LEASED.value))))
    cancelled = and_(jobs.c.state == "cancelling", ~unfinished.where(IS_LEASED))
    return list(connection.execute(select(jobs.c.id).where(or_(done, cancelled)).order_by(jobs.c.number)).scalars())


def _fault(connection: Connection, number: int) -> str | None:
    """Return why a job whose tasks are over has failed; None when it has not."""
    query = select(tasks).where(tasks.c.job == number).order_by(tasks.c.position)
    rows = connection.execute(query).mappings().all()
    dead = [row for row in rows if row["state"] == TaskState.DEAD.value]
    if dead:
        first = dead[0]["position"]
        why = f"task {first} was lost {dead[0]['losses']} times: {last_end(connection, number, first)}"
        return f"{len(dead)} of {len(rows)} tasks dead: {why}"
    kept = StopReason.KEPT.value  # a task that found nothing to retune has no trial
    untimed = [row for row in rows if row["best_trial"] is None and row["stop_reason"] != kept]
    if not untimed:
        return None
    if untimed[0]["stop_reason"] == StopReason.ERROR.value:
        return f"task {untimed[0]['position']}: {last_end(connection, number, untimed[0]['position'])}"
    return f"no schedule of task {untimed[0]['position']} could be timed: see its failures"


def end_job(connection: Connection, job_id: str, state: str, error: str | None = None) -> RowMapping:
    """Take a job that has not ended into ``state`` (``cancelling``, or a final one): none of its tasks begins any more.
    Return its row as it was; the caller looks at its state."""
    job = lock_job(connection, job_id)
    if job["state"] not in FINAL and job["state"] != state:
        change_job_state(connection, job, state, error)
    if job["state"] not in FINAL:
        close_waiting(connection, job["number"], StopReason.CANCELLED.value)
    return job


def revoke(connection: Connection, job_id: str, detail: str) -> None:
    """Take the leases of a job's tasks away. Its holders can write nothing more. The tasks are done, and a job that is
    being cancelled is CANCELLED. No task of the job may become ready meanwhile (``end_job``)."""
    number = number_of_job(connection, job_id)
    for lease in of_job(connection, job_id):
        _close(connection, number, lease, detail)
    lock_job(connection, job_id)
    settle(connection, number)


def _close(connection: Connection, number: int, lease: Lease, detail: str) -> None:
    _, position = task_in(lease)
    task = load_task(connection, number, position, lock=True)
    end_attempt(connection, number, position, lease.fence, AttemptEnd.CANCELLED, detail)
    drop(connection, lease)
    reason = task["stop_reason"] or StopReason.CANCELLED.value
    update_task(connection, number, position, state=TaskState.DONE.value, stop_reason=reason)
