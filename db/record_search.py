"""Searches all records. Pages are found by the id of the last record, newest first.

Most filters have no index: what fits may be rare, or absent. So that a page never costs more where there are more
records, one request looks at no more than ``WINDOW`` ids, and the next one goes on from there. Records of one job or
one workload are found by index instead.
"""

from typing import Any

from sqlalchemy import Connection, Select, exists, func, select

from ..core.record import RecordFilter
from .dashboard_rows import FoundRecords
from .tables import devices, jobs, tasks, trials, workloads
from .trials import FULL, trial_rows_of
from .visibility import record_tenant

WINDOW = 20_000


def search_records(connection: Connection, wanted: RecordFilter, *, before: int | None, limit: int) -> FoundRecords:
    """Return at most ``limit`` records that a filter lets through with ids below ``before``, newest first, and from
    where to go on."""
    query = _of_job_or_workload(connection, wanted)
    top = before if before is not None else int(connection.execute(select(func.max(trials.c.id))).scalar() or 0) + 1
    bottom = 0
    if query is None:
        query, bottom = select(trials.c.id), top - WINDOW
    query = query.where(trials.c.id < top, trials.c.id >= bottom, *_conditions(wanted))
    ids = list(connection.execute(query.order_by(trials.c.id.desc()).limit(limit + 1)).scalars())
    rows = trial_rows_of(connection, FULL.where(trials.c.id.in_(ids[:limit])).order_by(trials.c.id.desc()))
    if len(ids) > limit:
        return FoundRecords(rows, ids[limit - 1])
    first = select(func.min(trials.c.id))
    more = bottom > 0 and bottom > int(connection.execute(first).scalar() or 0)
    return FoundRecords(rows, bottom if more else None)


def _of_job_or_workload(connection: Connection, wanted: RecordFilter) -> Select[Any] | None:
    """Select the ids of the records of one job or one workload; None where neither is asked for."""
    if wanted.job_id is not None:
        number = select(jobs.c.number).where(jobs.c.id == wanted.job_id)
        return select(trials.c.id).where(trials.c.job == connection.execute(number).scalar())
    if wanted.workload_key is not None:
        number = select(workloads.c.id).where(workloads.c.key == wanted.workload_key)
        of_task = (trials.c.job == tasks.c.job) & (trials.c.task == tasks.c.position)
        of_workload = tasks.c.workload == connection.execute(number).scalar()
        return select(trials.c.id).select_from(tasks).join(trials, of_task).where(of_workload)
    return None


def _conditions(wanted: RecordFilter) -> list[Any]:
    """Return what a record has to fit. Each is asked of one record at a time, so that the ids alone lead the search."""
    found: list[Any] = []
    tenant = record_tenant()
    if tenant is not None:
        found.append(exists().where(jobs.c.number == trials.c.job, jobs.c.tenant == tenant))
    if wanted.operator is not None:
        of_task = (tasks.c.job == trials.c.job, tasks.c.position == trials.c.task)
        found.append(exists().where(*of_task, tasks.c.operator == wanted.operator))
    if wanted.workload_key is not None:
        of_key = select(workloads.c.id).where(workloads.c.key == wanted.workload_key).scalar_subquery()
        found.append(trials.c.workload == of_key)
    if wanted.device_key is not None:
        of_key = select(devices.c.id).where(devices.c.key == wanted.device_key).scalar_subquery()
        found.append(trials.c.device == of_key)
    if wanted.sketch is not None:
        found.append(trials.c.sketch == wanted.sketch)
    if wanted.failed is not None:
        found.append(trials.c.seconds.is_(None) if wanted.failed else trials.c.seconds.is_not(None))
    if wanted.reason is not None:
        found.append(trials.c.failed_reason == wanted.reason)
    if wanted.own:
        found.append(trials.c.adopted_from.is_(None))
    return found
