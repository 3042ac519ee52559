"""Searches all records. Pages are found by the id of the last record, newest first."""

from sqlalchemy import Connection, select

from ..core.record import RecordFilter
from .rows import TrialRow
from .tables import devices, jobs, tasks, trials, workloads
from .trials import FULL, trial_rows_of
from .visibility import visible_record


def search_records(
    connection: Connection, wanted: RecordFilter, *, before: int | None, limit: int
) -> tuple[TrialRow, ...]:
    """Return records that a filter lets through with ids below ``before``, newest first."""
    query = FULL.where(visible_record(jobs.c.tenant)).order_by(trials.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(trials.c.id < before)
    if wanted.operator is not None:
        of_operator = select(tasks.c.workload).where(tasks.c.operator == wanted.operator)
        query = query.where(trials.c.workload.in_(of_operator))
    if wanted.workload_key is not None:
        query = query.where(workloads.c.key == wanted.workload_key)
    if wanted.device_key is not None:
        query = query.where(devices.c.key == wanted.device_key)
    if wanted.sketch is not None:
        query = query.where(trials.c.sketch == wanted.sketch)
    if wanted.job_id is not None:
        query = query.where(jobs.c.id == wanted.job_id)
    if wanted.failed is not None:
        query = query.where(trials.c.seconds.is_(None) if wanted.failed else trials.c.seconds.is_not(None))
    if wanted.reason is not None:
        query = query.where(trials.c.failed_reason == wanted.reason)
    if wanted.own:
        query = query.where(trials.c.adopted_from.is_(None))
    return trial_rows_of(connection, query)
