"""Equal tasks that are in flight at once share one search (single flight).

Of the tasks with one ``flight_key`` the first is searched, and later ones of other jobs are blocked on it. When it is
done they adopt its trials up to their budgets. Each is done then as well, or ready for what its budget has left. When
the first is cancelled, dead, failed or held back instead, another one takes its place.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, ScalarSelect, and_, func, select
from sqlalchemy.engine import RowMapping

from ..core.budget import Budget, StopReason
from ..core.fleet import TaskState
from .adoption import adopt, trials_of
from .clock import clock
from .job_ends import settle
from .jobs import CLOSED, add_event, change_job_state, load_task, lock_job, update_job, update_task
from .tables import IS_BLOCKED, jobs, tasks
from .tenants import enter, is_idle

IN_FLIGHT = (TaskState.READY.value, TaskState.LEASED.value)
UNSHARED = (StopReason.CANCELLED.value, StopReason.ERROR.value)
"""Of a task that stopped for these reasons nobody takes the result over."""
FACTS = ("space_size", "baseline_seconds", "baseline_name", "roofline_seconds", "roofline_by", "history_until")
"""What a task takes over from its source beside the trials, so that a strategy that goes on from them answers as the
source's strategy would have."""


_SOURCE_JOB, _SOURCE = jobs.alias("source_job"), tasks.alias("source")
_BLOCKED = (
    select(
        tasks.c.job,
        tasks.c.position,
        tasks.c.source_task,
        jobs.c.id.label("job_id"),
        _SOURCE_JOB.c.number.label("source_number"),
        _SOURCE.c.state.label("source_state"),
    )
    .join(jobs, jobs.c.number == tasks.c.job)
    .join(_SOURCE_JOB, _SOURCE_JOB.c.id == tasks.c.source_job)
    .join(_SOURCE, and_(_SOURCE.c.job == _SOURCE_JOB.c.number, _SOURCE.c.position == tasks.c.source_task))
    .where(IS_BLOCKED, tasks.c.adopted == 0)
)
"""Selects tasks that wait for a source, with the number of its job and its state. It is built once: that takes longer
than the database takes for it."""


def lock_flights(connection: Connection, keys: Sequence[str]) -> None:
    """Let nobody else start, or take over, a flight with one of these keys until the transaction ends."""
    if connection.dialect.name == "postgresql":  # on SQLite there is one writer at a time
        for key in sorted(set(keys)):
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))


def block_equal_tasks(connection: Connection, number: int) -> None:
    """Block the tasks of a new job that are in flight in other jobs. The caller has locked their flights."""
    new = select(tasks.c.position, tasks.c.flight_key).where(tasks.c.job == number, tasks.c.flight_key.is_not(None))
    for position, key in connection.execute(new).all():
        source = _in_flight(connection, key, but=number)
        if source is not None:
            _wait_for(connection, number, position, source)


def go_on(connection: Connection, number: int, position: int) -> None:
    """Let a blocked task go on whose source is in flight no longer: it adopts the source's trials, or waits for another
    equal task, or becomes ready."""
    key = load_task(connection, number, position)["flight_key"]
    lock_flights(connection, [key])
    task = load_task(connection, number, position, lock=True)
    found = connection.execute(_BLOCKED.where(tasks.c.job == number, tasks.c.position == position)).mappings().first()
    if found is None or found["source_state"] in IN_FLIGHT:
        return  # somebody else let it go on
    source = load_task(connection, found["source_number"], found["source_task"])
    told: dict[str, object] = {}
    adopts = source["state"] == TaskState.DONE.value and source["stop_reason"] not in UNSHARED and source["trials"]
    if adopts:
        told = {**_adopt_source(connection, task, source), "source_job": task["source_job"]}
        told["source_task"] = task["source_task"]
    else:
        other = _in_flight(connection, key, but=number)
        if other is not None:
            _wait_for(connection, number, position, other)
            return
        update_task(connection, number, position, source_job=None, source_task=None)
    idle = is_idle(connection, task["tenant"])
    job = lock_job(connection, found["job_id"])
    state = TaskState.BLOCKED if job["paused"] else TaskState.READY
    if "stop_reason" in told or job["state"] in CLOSED:
        state = TaskState.DONE
    update_task(connection, number, position, state=state.value, ready_since=clock(), aged=0, priority=job["priority"])
    if adopts:
        if job["state"] == "queued" and state is TaskState.DONE:
            change_job_state(connection, job, "running")
        update_job(connection, number, device=func.coalesce(jobs.c.device, _device_of(source)))
    add_event(connection, number, "task", {"task": position, "trials": 0, **told, "state": state.value})
    settle(connection, number)
    if idle and state is TaskState.READY:
        enter(connection, task["tenant"])


def _adopt_source(connection: Connection, task: RowMapping, source: RowMapping) -> dict[str, object]:
    """Adopt the trials of a task that is done. Where that is all that this one asked for, it is done, too."""
    own, other = (_budget(connection, row) for row in (task, source))
    most = (
        own.trials if task["trial_limit"] is None else source["trials"]
    )  # what is granted beyond it need not be measured
    about = adopt(connection, task, trials_of(source, most))
    facts = {name: source[name] for name in FACTS}
    if int(str(about["adopted"])) >= own.trials:
        facts["stop_reason"] = StopReason.TRIALS.value
    elif source["stop_reason"] == StopReason.EXHAUSTED.value or own == other:
        facts["stop_reason"] = source["stop_reason"]
    update_task(connection, task["job"], task["position"], **facts)
    told = {**about, "source_job": task["source_job"], "source_task": task["source_task"]}
    return {**told, "stop_reason": facts["stop_reason"]} if "stop_reason" in facts else told


def _budget(connection: Connection, task: RowMapping) -> Budget:
    columns = (jobs.c.budget_trials, jobs.c.budget_seconds, jobs.c.budget_stall)
    budget = Budget(*connection.execute(select(*columns).where(jobs.c.number == task["job"])).one())
    return budget if task["trial_limit"] is None else replace(budget, trials=task["trial_limit"])


def _device_of(task: RowMapping) -> ScalarSelect[int]:
    return select(jobs.c.device).where(jobs.c.number == task["job"]).scalar_subquery()


def _in_flight(connection: Connection, key: str, *, but: int) -> tuple[str, int] | None:
    """Return the oldest task with this key, of another job, that is ready or leased."""
    query = (
        select(jobs.c.id, tasks.c.position)
        .join(jobs, jobs.c.number == tasks.c.job)
        .where(tasks.c.flight_key == key, tasks.c.state.in_(IN_FLIGHT), tasks.c.job != but)
        .order_by(tasks.c.job, tasks.c.position)
        .limit(1)
    )
    found = connection.execute(query).first()
    return None if found is None else (found[0], found[1])


def _wait_for(connection: Connection, number: int, position: int, source: tuple[str, int]) -> None:
    values = {"state": TaskState.BLOCKED.value, "source_job": source[0], "source_task": source[1]}
    update_task(connection, number, position, **values)


def landed(connection: Connection, source_job: str | None) -> list[tuple[int, int]]:
    """Return blocked tasks, as (job, position), whose source is in flight no longer: a task of ``source_job``, or of
    any job where this is None."""
    query = _BLOCKED.where(_SOURCE.c.state.not_in(IN_FLIGHT))
    if source_job:
        query = query.where(tasks.c.source_job == source_job)
    return [(row["job"], row["position"]) for row in connection.execute(query).mappings()]
