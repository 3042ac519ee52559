"""Deals the budget of a job that tunes a model out to its tasks, slice by slice (``core.allocation``)."""

from sqlalchemy import Connection, func, or_, select
from sqlalchemy.engine import RowMapping

from ..core.allocation import SLICE_TRIALS, TaskProgress, most_worthwhile
from ..core.budget import StopReason
from ..core.fleet import TaskState
from .clock import clock
from .jobs import CLOSED, add_event, update_job, update_task
from .tables import tasks, trials


def grant_slice(connection: Connection, job: RowMapping) -> None:
    """Let the task go on that is most worthwhile, where the budget of a model's job has trials left and none of its
    tasks waits. The caller has locked the job's row. Tasks that are done are locked by nobody for long; one that is
    locked is passed over."""
    if job["model"] is None or job["state"] in CLOSED:
        return
    number = job["number"]
    rows = connection.execute(select(tasks).where(tasks.c.job == number).order_by(tasks.c.position)).mappings().all()
    if any(row["state"] in (TaskState.READY.value, TaskState.BLOCKED.value) for row in rows):
        return
    left = job["budget_trials"] - sum(map(_charged, rows))
    seconds = sum(row["wall_seconds"] or 0.0 for row in rows)
    if left <= 0 or (job["budget_seconds"] is not None and seconds >= job["budget_seconds"]):
        return
    done = (tasks.c.state == TaskState.DONE.value, tasks.c.stop_reason == StopReason.TRIALS.value)
    query = select(tasks).where(tasks.c.job == number, *done).order_by(tasks.c.position)
    open_rows = connection.execute(query.with_for_update(key_share=True, skip_locked=True)).mappings().all()
    before = _best_before(connection, number)
    chosen = most_worthwhile([_progress(row, before.get(row["position"])) for row in open_rows])
    if chosen is None:
        return
    task = open_rows[chosen]
    position, limit = task["position"], task["trials"] + min(SLICE_TRIALS, left)
    state = TaskState.BLOCKED if job["paused"] else TaskState.READY
    update_task(
        connection, number, position, state=state.value, trial_limit=limit, stop_reason=None, ready_since=clock(),
        aged=0, priority=job["priority"],
    )  # fmt: skip
    update_job(connection, number)
    about = {"task": position, "trials": task["trials"], "trial_limit": limit, "state": state.value}
    add_event(connection, number, "task", about)


def _charged(task: RowMapping) -> int:
    """How many trials of the budget a task has used, or may still use. Adopted ones cost nothing."""
    over = task["state"] in (TaskState.DONE.value, TaskState.DEAD.value)
    used: int = task["trials"] if over else max(task["trials"], task["trial_limit"] or 0)
    return max(0, used - int(task["adopted"]))


def _progress(task: RowMapping, before: float | None) -> TaskProgress:
    return TaskProgress(
        task["weight"], task["trials"], task["best_seconds"], before, task["roofline_seconds"] or 0.0
    )  # fmt: skip


def _best_before(connection: Connection, number: int) -> dict[int, float]:
    """Return the best time of each task before its last slice."""
    query = (
        select(trials.c.task, func.min(trials.c.rank_seconds))
        .join(tasks, (tasks.c.job == trials.c.job) & (tasks.c.position == trials.c.task))
        .where(
            trials.c.job == number,
            trials.c.seconds.is_not(None),
            or_(trials.c.sequence < tasks.c.trials - SLICE_TRIALS, trials.c.adopted_from.is_not(None)),
        )
        .group_by(trials.c.task)
    )
    return {position: seconds for position, seconds in connection.execute(query)}
