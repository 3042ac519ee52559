"""Keeps what was done on each class of devices by jobs that have ended, so that nobody adds all tasks up.

A job is counted once, some time after its end: its tasks change no more then. Jobs that are not counted yet, those
that run or failed among them, are added up when somebody asks. So a program that knows nothing of this may end jobs.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, or_, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from .dashboard_rows import SpentRow
from .ended_totals import NOT_COUNTED, add_states, of_job
from .engine import Database
from .tables import device_totals, devices, jobs, tasks
from .visibility import job_tenant, visible

ENDED = ("succeeded", "cancelled")
"""The tasks of a job that failed may be tried again."""
JOBS_AT_ONCE = 200
_SUMS = ("tasks", "trials", "device_seconds")
_UNCOUNTED = jobs.c.device_seconds.is_(None)
"""Set too where only a program of the version before has counted a job (``NOT_COUNTED``)."""


def count_ended(database: Database) -> int:
    """Count the jobs that have ended and are not counted yet; return how many. Several processes may do it at once."""
    done, count = 0, JOBS_AT_ONCE
    while count == JOBS_AT_ONCE:
        with database.writing() as connection:
            count = _count_some(connection)
        done += count
    return done


def _count_some(connection: Connection) -> int:
    ended = select(jobs.c.number, jobs.c.device_seconds).where(NOT_COUNTED, jobs.c.state.in_(ENDED))
    chosen = ended.order_by(jobs.c.number).limit(JOBS_AT_ONCE).with_for_update(skip_locked=True)
    rows = connection.execute(chosen).all()
    if rows:
        # a program of the version before may have added what they did
        _add_spent(connection, [number for number, device_seconds in rows if device_seconds is None])
        numbers = [number for number, _ in rows]
        add_states(connection, numbers)
        connection.execute(update(jobs).where(jobs.c.number.in_(numbers)).values(counted=True))
    return len(rows)


def _add_spent(connection: Connection, numbers: Sequence[int]) -> None:
    sums = _of_tasks(jobs.c.tenant, jobs.c.device).where(jobs.c.number.in_(numbers), jobs.c.device.is_not(None))
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    # all transactions change rows in one order, so that none waits for another that waits for it
    for tenant, device, *added in sorted(tuple(row) for row in connection.execute(sums)):
        new = kind.insert(device_totals).values(tenant=tenant, device=device, **dict(zip(_SUMS, added, strict=True)))
        grown = {name: device_totals.c[name] + new.excluded[name] for name in _SUMS}
        connection.execute(new.on_conflict_do_update(index_elements=["tenant", "device"], set_=grown))
    own = select(func.coalesce(func.sum(tasks.c.device_seconds), 0.0)).where(tasks.c.job == jobs.c.number)
    counted = update(jobs).where(jobs.c.number.in_(numbers))
    connection.execute(counted.values(device_seconds=own.scalar_subquery()))


def load_spent(connection: Connection, since: str) -> tuple[SpentRow, ...]:
    """Return what was done on each class of devices, by all jobs and by those that ran after ``since``; the busiest
    first."""
    found: dict[int, list[float]] = {}

    def add(query: Select[Any], first: int) -> None:
        for device, *values in connection.execute(query):
            sums = found.setdefault(device, [0, 0, 0.0, 0.0])
            for place, value in enumerate(values, first):
                sums[place] += value

    tenant = job_tenant()
    totals = [func.sum(device_totals.c[name]) for name in _SUMS]
    of_tenant = true() if tenant is None else device_totals.c.tenant == tenant
    add(select(device_totals.c.device, *totals).where(of_tenant).group_by(device_totals.c.device), 0)
    seen = (visible(jobs.c.tenant), jobs.c.device.is_not(None))
    uncounted = _of_tasks(jobs.c.device).where(_UNCOUNTED, *seen)
    add(uncounted, 0)
    lately = or_(jobs.c.finished_at.is_(None), jobs.c.finished_at > since)
    day = select(jobs.c.device, func.sum(tasks.c.device_seconds)).select_from(jobs.join(tasks, of_job(tasks.c.job)))
    add(day.where(_UNCOUNTED, lately, *seen).group_by(jobs.c.device), 3)
    day = select(jobs.c.device, func.sum(jobs.c.device_seconds))
    add(day.where(~_UNCOUNTED, jobs.c.finished_at > since, *seen).group_by(jobs.c.device), 3)
    names = select(devices.c.id, devices.c.key, devices.c.name).where(devices.c.id.in_(list(found)))
    rows = [
        SpentRow(key, name, int(found[number][0]), int(found[number][1]), found[number][2], found[number][3])
        for number, key, name in connection.execute(names)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.device_seconds, row.device_key)))


def _of_tasks(*groups: Any) -> Select[Any]:
    """Select the sums over the tasks of jobs, for each of these groups."""
    sums = (func.count(), func.sum(tasks.c.trials), func.sum(tasks.c.device_seconds))
    return select(*groups, *sums).select_from(jobs.join(tasks, of_job(tasks.c.job))).group_by(*groups)
