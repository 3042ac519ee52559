"""Says what is wanted of the holder of a task: that it goes on, gives the task back, or stops."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, func, or_, select, tuple_
from sqlalchemy.engine import RowMapping

from ..core.fleet import Lease, UnitState, Wanted
from .clock import clock
from .jobs import FINAL
from .leases import TASK, UNIT, task_in
from .tables import IS_LEASED, IS_READY, attempts, jobs, tasks, units
from .units import all_ready

SLICE_SECONDS = 60.0
"""An attempt keeps its task for so long before another task of its tenant may take its place: a task that goes on
later has its set-up to repeat."""

PATIENCE_SECONDS = 5.0
"""A task waits so long for a unit to become free before it takes another task's place."""

_ATTEMPT = (
    select(
        tasks,
        jobs.c.state.label("job_state"),
        jobs.c.paused,
        jobs.c.priority.label("own_priority"),
        attempts.c.units,
        (clock() - attempts.c.began_at).label("seconds"),
        # whether there are any such units at all: mostly there is none, and no need to look at those of the attempt
        exists().where(units.c.state != UnitState.READY.value).label("unfit"),
    )
    .join(jobs, jobs.c.number == tasks.c.job)
    .join(attempts, and_(attempts.c.job == tasks.c.job, attempts.c.task == tasks.c.position))
    .where(
        jobs.c.id == bindparam("job_id"),
        tasks.c.position == bindparam("position"),
        attempts.c.fence == bindparam("fence"),
    )
)


def wanted_of(connection: Connection, held: Sequence[Lease]) -> Wanted:
    """Return what is wanted of whoever holds these leases of units, and of a task if there is one among them."""
    for lease in held:
        if lease.kind == TASK:
            wanted = _wanted_of_task(connection, lease)
            if wanted is not Wanted.GO:
                return wanted
    return Wanted.GO if all_ready(connection, [i.subject for i in held if i.kind == UNIT]) else Wanted.YIELD


def wanted_in(state: str) -> Wanted:
    """Return what is wanted of whoever works on a job in this state."""
    return Wanted.STOP if state == "cancelling" or state in FINAL else Wanted.GO


def _wanted_of_task(connection: Connection, lease: Lease) -> Wanted:
    job_id, position = task_in(lease)
    parameters = {"job_id": job_id, "position": position, "fence": lease.fence}
    row = connection.execute(_ATTEMPT, parameters).mappings().first()
    if row is None or wanted_in(row["job_state"]) is Wanted.STOP:
        return Wanted.STOP
    first = row["units"][:1]  # further units are given back one by one
    if row["paused"] or (row["unfit"] and not all_ready(connection, first)):
        return Wanted.YIELD
    if row["seconds"] >= SLICE_SECONDS and _goes_after_another(connection, row):
        return Wanted.YIELD
    return Wanted.GO


def _goes_after_another(connection: Connection, row: RowMapping) -> bool:
    """Return whether a more urgent task of the same tenant is to take this one's place. Of the tasks that run, as many
    give way as more urgent ones wait: those of the least priority first, among them the youngest."""
    like_this = [tasks.c[name] == row[name] for name in ("tenant", "executor", "target")]
    own = row["own_priority"]
    waiting = [IS_READY, tasks.c.priority > own, _priority() > own]
    waiting.append(tasks.c.ready_since <= clock() - PATIENCE_SECONDS)
    urgent = connection.execute(select(func.count()).where(*like_this, *waiting)).scalar_one()
    if not urgent:
        return False
    younger = tuple_(tasks.c.job, tasks.c.position) > tuple_(row["job"], row["position"])
    before = or_(_priority() < own, and_(_priority() == own, younger))
    giving_way = select(func.count()).where(*like_this, IS_LEASED, before)
    return bool(urgent > connection.execute(giving_way).scalar_one())


def _priority() -> ColumnElement[int]:
    return tasks.c.priority - tasks.c.aged
