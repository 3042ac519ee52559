"""Reads and writes jobs and tasks. Every change is stored with its event in the caller's transaction.

A transaction locks a task before its job, and the job late: events of a job come in the order of commits, because
whoever adds one holds the job's lock until its transaction ends.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Select, func, insert, select, update
from sqlalchemy.engine import RowMapping

from ..core.allocation import first_trials
from ..core.budget import Budget
from ..core.errors import NotFound
from ..core.fleet import TaskState
from ..core.policy import SpacePolicy
from .catalog import keep_workload
from .clock import clock
from .encode import now, time_text
from .rows import EventRow, JobRow, NewJob, TaskRow
from .tables import devices, events, jobs, tasks, tuned_models, workloads
from .trials import load_best_rows
from .visibility import visible

FINAL = ("succeeded", "failed", "cancelled")
"""A job does not leave these states, but for a retry of its dead tasks."""
CLOSED = ("cancelling", *FINAL)
"""No task of a job in these states begins."""
LISTED_TASKS = 3
"""A list of jobs has so many tasks of each, the first ones, so that it takes no longer where jobs have a thousand."""

JOB: Select[tuple[object, ...]] = (
    select(
        jobs,
        devices.c.key.label("device_key"),
        devices.c.name.label("device_name"),
        tuned_models.c.key.label("model_key"),
    )
    .outerjoin(devices, devices.c.id == jobs.c.device)
    .outerjoin(tuned_models, tuned_models.c.id == jobs.c.model)
)


def insert_job(connection: Connection, new: NewJob, *, imported: bool = False, created_at: str | None = None) -> int:
    """Add a job and its tasks; return the job's number. Tasks of a job that has not ended are ready; those of a model's
    job with the first slice of its budget."""
    model = None
    if new.model_key is not None:
        found = select(tuned_models.c.id).where(tuned_models.c.key == new.model_key, visible(tuned_models.c.tenant))
        model = found.order_by(tuned_models.c.id).limit(1).scalar_subquery()
    columns = _job_columns(new) | {"created_at": created_at or now(), "model": model, "imported": imported}
    inserted = connection.execute(insert(jobs).values(columns)).inserted_primary_key
    assert inserted is not None
    number = int(inserted[0])
    by_key = {task.workload_key: task for task in new.tasks}
    # all transactions add workloads in one order, so that none waits for another that waits for it
    workload_ids = {key: keep_workload(connection, by_key[key]) for key in sorted(by_key)}
    common = _task_columns(new) | {"job": number, "ready_since": connection.execute(select(clock())).scalar_one()}
    own = (
        {
            "position": position,
            "workload": workload_ids[task.workload_key],
            "operator": task.operator,
            "parameters": None if task.parameters is None else dict(task.parameters),
            "flight_key": None if new.fresh else task.flight_key,
            "weight": task.weight,
        }
        for position, task in enumerate(new.tasks)
    )
    connection.execute(insert(tasks), [common | columns for columns in own])
    return number


def _job_columns(new: NewJob) -> dict[str, object]:
    """Return what the row of a job has from what was submitted."""
    return {
        "id": new.id,
        "state": new.state,
        "budget_trials": new.budget.trials,
        "budget_seconds": new.budget.seconds,
        "budget_stall": new.budget.stall,
        "budget_runs": new.budget.runs,
        "strategy": new.strategy,
        "seed": new.seed,
        "target": new.target,
        "executor": new.executor,
        "cache": new.cache,
        "prune": new.policy.prune,
        "prior": new.policy.prior,
        "tenant": new.tenant,
        "priority": new.priority,
        "deadline": new.deadline,
        "fresh": new.fresh,
        "owner": new.owner,
        "tags": stored_tags(new.tags),
        "notes": new.notes,
        "request_id": new.request_id,
        "units": new.units,
        "retuning": None if new.retuning is None else dict(new.retuning),
        "version": 1,
    }


def _task_columns(new: NewJob) -> dict[str, object]:
    """Return what the rows of all tasks of a job have in common."""
    return {
        "trials": 0,
        "failures": {},
        "state": (TaskState.DONE if new.state in FINAL else TaskState.READY).value,
        "target": new.target,
        "executor": new.executor,
        "tenant": new.tenant,
        "priority": new.priority,
        "trial_limit": None if new.model_key is None else first_trials(new.budget.trials, len(new.tasks)),
    }


def stored_tags(tags: Sequence[str]) -> str:
    """Return tags as they are stored: between commas, so that one is found by a part of the text."""
    return f",{','.join(tags)}," if tags else ""


def read_tags(text: str) -> tuple[str, ...]:
    """Return the tags in a column."""
    return tuple(filter(None, text.split(",")))


def annotate_job(connection: Connection, job_id: str, tags: Sequence[str], notes: str) -> None:
    """Replace the tags and notes of a job. Raises NotFound."""
    number = touch_job(connection, job_id)["number"]
    connection.execute(update(jobs).where(jobs.c.number == number).values(tags=stored_tags(tags), notes=notes))


def lock_job(connection: Connection, job_id: str) -> RowMapping:
    """Return the row of a job and lock it: nobody else changes it until the transaction ends. Raises NotFound."""
    query = select(jobs).where(jobs.c.id == job_id, visible(jobs.c.tenant)).with_for_update(key_share=True)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    return row


def load_row(connection: Connection, number: int) -> RowMapping:
    """Return the row of a job, whose number is known, from its table alone."""
    return connection.execute(select(jobs).where(jobs.c.number == number)).mappings().one()


def number_of_job(connection: Connection, job_id: str) -> int:
    """Return the number of a job. Raises NotFound."""
    number = connection.execute(select(jobs.c.number).where(*_visible_job(job_id))).scalar()
    if number is None:
        raise _no_job(job_id)
    return int(number)


def load_state(connection: Connection, job_id: str) -> str:
    """Return the state of a job. Raises NotFound."""
    state = connection.execute(select(jobs.c.state).where(*_visible_job(job_id))).scalar()
    if state is None:
        raise _no_job(job_id)
    return str(state)


def _visible_job(job_id: str) -> tuple[ColumnElement[bool], ...]:
    return (jobs.c.id == job_id, visible(jobs.c.tenant))


def _no_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id!r}", field="job_id")


def update_job(connection: Connection, number: int, **values: object) -> None:
    """Change columns of a job and increment its version."""
    connection.execute(update(jobs).where(jobs.c.number == number).values(version=jobs.c.version + 1, **values))


def touch_job(connection: Connection, job_id: str) -> RowMapping:
    """Increment a job's version, which locks its row; return the row. Raises NotFound."""
    changed = update(jobs).where(jobs.c.id == job_id, visible(jobs.c.tenant)).values(version=jobs.c.version + 1)
    row = connection.execute(changed.returning(*jobs.columns)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    return row


def change_job_state(connection: Connection, row: RowMapping, state: str, error: str | None = None) -> None:
    """Take a job, whose row the caller has locked, into a state, with its event."""
    values: dict[str, object] = {"state": state}
    if state == "running" and row["started_at"] is None:
        values["started_at"] = now()
    if state in FINAL:
        values["finished_at"] = now()
        values["error"] = error
    update_job(connection, row["number"], **values)
    add_event(connection, row["number"], "state", {"state": state, "error": error if state in FINAL else None})


def close_waiting(connection: Connection, number: int, stop_reason: str | None) -> None:
    """End the tasks of a job that are ready or blocked. Those that somebody claims in this moment are passed over:
    whoever claims looks at the job afterwards."""
    waiting = (
        select(tasks.c.position)
        .where(tasks.c.job == number, tasks.c.state.in_((TaskState.READY.value, TaskState.BLOCKED.value)))
        .with_for_update(key_share=True, skip_locked=True)
    )
    values = {"state": TaskState.DONE.value, "stop_reason": func.coalesce(tasks.c.stop_reason, stop_reason)}
    connection.execute(update(tasks).where(tasks.c.job == number, tasks.c.position.in_(waiting)).values(values))


def update_task(connection: Connection, number: int, position: int, **values: object) -> None:
    """Change columns of a task."""
    connection.execute(update(tasks).where(tasks.c.job == number, tasks.c.position == position).values(**values))


def store_facts(connection: Connection, job_id: str, position: int, facts: Mapping[str, object]) -> int:
    """Store facts about a task (columns of TaskRow) with a ``task`` event that holds them; return the job's number,
    whose row is locked then. A task with a ``stop_reason`` is done, unless somebody holds it, who has to finish it."""
    number = number_of_job(connection, job_id)
    task = load_task(connection, number, position, lock=True)
    ends = facts.get("stop_reason") is not None and task["state"] != TaskState.LEASED.value
    update_task(connection, number, position, **facts, **({"state": TaskState.DONE.value} if ends else {}))
    touch_job(connection, job_id)
    add_event(connection, number, "task", {"task": position, "trials": task["trials"], **facts})
    return number


def load_task(connection: Connection, number: int, position: int, *, lock: bool = False) -> RowMapping:
    """Return the row of a task from its table alone, and lock it with ``lock``. Raises NotFound."""
    query = select(tasks).where(tasks.c.job == number, tasks.c.position == position)
    if lock:
        query = query.with_for_update(key_share=True)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"this job has no task {position}", field="task")
    return row


def load_job(connection: Connection, job_id: str) -> JobRow:
    """Return a job with its tasks. Raises NotFound."""
    row = connection.execute(JOB.where(jobs.c.id == job_id, visible(jobs.c.tenant))).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", field="job_id")
    return _jobs_of(connection, [row])[0]


def load_device_key(connection: Connection, job_id: str) -> str | None:
    """Return the key of the device that a job is measured on; None where that is not known yet."""
    query = select(devices.c.key).join(jobs, jobs.c.device == devices.c.id)
    return connection.execute(query.where(jobs.c.id == job_id, visible(jobs.c.tenant))).scalar()


def page_of_jobs(
    connection: Connection,
    *,
    before: int | None,
    limit: int,
    state: str | None,
    owner: str | None = None,
    tag: str | None = None,
) -> tuple[JobRow, ...]:
    """Return jobs with numbers below ``before``, newest first, with the first LISTED_TASKS tasks of each."""
    query = JOB.where(visible(jobs.c.tenant)).order_by(jobs.c.number.desc()).limit(limit)
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    if tag is not None:
        query = query.where(jobs.c.tags.contains(f",{tag},", autoescape=True))
    if before is not None:
        query = query.where(jobs.c.number < before)
    if state is not None:
        query = query.where(jobs.c.state == state)
    last = select(func.max(tasks.c.position)).where(tasks.c.job == jobs.c.number).correlate(jobs).scalar_subquery()
    rows = connection.execute(query.add_columns((last + 1).label("task_count"))).mappings().all()
    return _jobs_of(connection, rows, LISTED_TASKS)


def _jobs_of(connection: Connection, rows: Sequence[RowMapping], most_tasks: int | None = None) -> tuple[JobRow, ...]:
    """Return jobs with their tasks; with ``most_tasks`` the first ones, in rows that say how many there are."""
    numbers = [row["number"] for row in rows]
    query = (
        select(tasks.c.job, tasks.c.best_trial, tasks.c.state, *_TASK_COLUMNS)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .where(tasks.c.job.in_(numbers))
        .order_by(tasks.c.job, tasks.c.position)
    )
    if most_tasks is not None:
        query = query.where(tasks.c.position < most_tasks)
    task_rows = connection.execute(query).all() if numbers else []
    best = load_best_rows(connection, [row.best_trial for row in task_rows if row.best_trial is not None])
    by_job: dict[int, list[TaskRow]] = {number: [] for number in numbers}
    for number, best_trial, state, *values in task_rows:  # thousands, where jobs have many tasks
        task = TaskRow(best=best.get(best_trial), state=TaskState(state), **dict(zip(_TASK_NAMES, values, strict=True)))
        by_job[number].append(task)
    return tuple(
        JobRow(
            budget=Budget(row["budget_trials"], row["budget_seconds"], row["budget_stall"], row["budget_runs"]),
            policy=SpacePolicy(row["prune"], row["prior"]),
            tags=read_tags(row["tags"]),
            tasks=tuple(by_job[row["number"]]),
            task_count=len(by_job[row["number"]]) if most_tasks is None else row["task_count"],
            **{name: row[name] for name in _JOB_NAMES},
        )
        for row in rows
    )


_MADE = ("budget", "policy", "tags", "tasks", "task_count")
_JOB_NAMES = tuple(name for name in JobRow.__dataclass_fields__ if name not in _MADE)
_TASK_NAMES = tuple(name for name in TaskRow.__dataclass_fields__ if name not in ("best", "state"))
_TASK_COLUMNS = tuple(
    workloads.c.key if name == "workload_key" else (tasks if name in tasks.c else workloads).c[name]
    for name in _TASK_NAMES
)


def add_event(connection: Connection, number: int, kind: str, data: Mapping[str, object]) -> None:
    """Add an event for what the same transaction changes. The caller has locked the job's row, so that event ids grow
    in commit order."""
    add_events(connection, number, [(kind, data)])


def add_events(connection: Connection, number: int, told: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Add several events, as (kind, data), in this order; see ``add_event``."""
    rows = [{"job": number, "kind": kind, "data": dict(data), "created_at": now()} for kind, data in told]
    connection.execute(insert(events), rows)


def newest_event(connection: Connection, job_id: str) -> int:
    """Return the id of the newest event of a job; 0 where there is none. Raises NotFound."""
    return connection.execute(select(func.max(events.c.id)).where(*_events_of(connection, job_id))).scalar() or 0


def _events_of(connection: Connection, job_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return which events are a job's. Their times tell PostgreSQL which partitions have none (``partitions``): those
    of months before the job. A day allows for clocks that differ. Raises NotFound."""
    about = select(jobs.c.number, jobs.c.created_at, jobs.c.imported).where(*_visible_job(job_id))
    found = connection.execute(about).first()
    if found is None:
        raise _no_job(job_id)
    if found.imported:  # its time is what somebody says
        return (events.c.job == found.number,)
    start = time_text(datetime.fromisoformat(found.created_at) - timedelta(days=1))
    return (events.c.job == found.number, events.c.created_at >= start)


def load_events(connection: Connection, job_id: str, *, after: int, limit: int) -> tuple[EventRow, ...]:
    """Return the events of a job with ids above ``after``, in order. Raises NotFound."""
    query = (
        select(events.c.id, events.c.kind, events.c.data, events.c.created_at)
        .where(*_events_of(connection, job_id), events.c.id > after)
        .order_by(events.c.id)
        .limit(limit)
    )
    return tuple(EventRow(i, job_id, kind, data, at) for i, kind, data, at in connection.execute(query))
