"""Deals the budget of a job that tunes a model out to its tasks, slice by slice (``core.allocation``)."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select
from sqlalchemy.engine import RowMapping

from ..core.allocation import FASTEST, SLICE_TRIALS, TaskProgress, expected_saving, given_up, most_worthwhile, usual_gap
from ..core.budget import StopReason
from ..core.fleet import TaskState
from .clock import clock
from .jobs import CLOSED, add_event, update_job, update_task
from .tables import tasks, trials


def grant_slice(connection: Connection, job: RowMapping) -> None:
    """Let the task go on that is most worthwhile, where the budget of a model's job has trials left and none of its
    tasks waits. Tasks that are not worth a further slice are given up, with an event that says why.

    The caller has locked the job's row. Tasks that are done are locked by nobody for long; one that is locked is passed
    over.
    """
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
    known = _progress(connection, number, rows)
    usual = usual_gap(list(known.values()))
    worth = [row for row in open_rows if not _gives_up(connection, job, row, known[row["position"]], usual)]
    chosen = most_worthwhile([known[row["position"]] for row in worth], usual)
    if chosen is None:
        return
    task = worth[chosen]
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
    """Return how many trials of the budget a task has used, or may still use. Adopted ones cost nothing."""
    over = task["state"] in (TaskState.DONE.value, TaskState.DEAD.value)
    used: int = task["trials"] if over else max(task["trials"], task["trial_limit"] or 0)
    return max(0, used - int(task["adopted"]))


def _gives_up(
    connection: Connection, job: RowMapping, task: RowMapping, progress: TaskProgress, usual: float | None
) -> bool:
    """Give a task up that is not worth a further slice; return whether it was given up."""
    why = given_up(progress, job["budget_runs"], usual)
    if why is None:
        return False
    reason = StopReason.NOT_WORTHWHILE.value
    update_task(connection, job["number"], task["position"], stop_reason=reason)
    update_job(connection, job["number"])
    about: dict[str, object] = {"task": task["position"], "trials": task["trials"], "stop_reason": reason}
    figures = {
        "given_up": why.value,
        "expected_saving_seconds": expected_saving(progress, usual),
        "slice_seconds": SLICE_TRIALS * progress.trial_seconds,
    }
    add_event(connection, job["number"], "task", {**about, **figures})
    return True


def _progress(connection: Connection, number: int, rows: Sequence[RowMapping]) -> dict[int, TaskProgress]:
    """Return how far each task is, by its position. The times are those before any re-measurement, which makes equals
    of those that are close."""
    rank = func.row_number().over(partition_by=trials.c.task, order_by=(trials.c.seconds, trials.c.id)).label("rank")
    ranked = (
        select(trials.c.task, trials.c.seconds, trials.c.sequence, rank)
        .where(
            trials.c.job == number,
            trials.c.task.in_([row["position"] for row in rows]),
            trials.c.seconds.is_not(None),
        )
        .subquery()
    )
    fastest: dict[int, list[float]] = {row["position"]: [] for row in rows}
    found = dict[int, int]()
    query = select(ranked.c.task, ranked.c.seconds, ranked.c.sequence).where(ranked.c.rank <= FASTEST)
    for position, seconds, sequence in connection.execute(query.order_by(ranked.c.task, ranked.c.rank)):
        fastest[position].append(seconds)
        found.setdefault(position, sequence + 1)
    return {
        row["position"]: TaskProgress(
            weight=row["weight"],
            trials=row["trials"],
            fastest=fastest[row["position"]],
            limit_seconds=row["roofline_seconds"] or 0.0,
            trial_seconds=(row["wall_seconds"] or 0.0) / max(1, row["trials"] - row["adopted"]),
            improvement=row["improvement"],
            found=found.get(row["position"]),
        )
        for row in rows
    }
