"""Reads what was found for workloads over devices, toolchains and time."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from sqlalchemy import Connection, Row, exists, func, select, true, tuple_

from ..core.record import Record
from .dashboard_rows import BestTaskRow
from .rows import ResultRow, WorkloadSummary
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .trials import FULL, best_of, record_of
from .visibility import record_tenant, visible, visible_record

WINDOW = 10_000
"""So many tasks are looked at for a page of workloads."""
RECENT_JOBS = 100
"""Tasks of so many jobs, the newest, are compared with others."""


def page_of_workloads(
    connection: Connection, *, before: tuple[int, int] | None, operator: str | None, limit: int
) -> tuple[tuple[WorkloadSummary, ...], tuple[int, int] | None]:
    """Return at most ``limit`` workloads by the newest task that has them, newest first, and from where to go on: the
    (job's number, position) of a task; None: there is no more. Tasks before ``before`` are looked at, no more than
    ``WINDOW`` of them: a workload may have thousands of tasks, and is shown with the newest."""
    order = (tasks.c.job, tasks.c.position)
    window = select(*order, tasks.c.workload, tasks.c.tenant).order_by(*(column.desc() for column in order))
    if operator is not None:
        window = window.where(tasks.c.operator == operator)
    if before is not None:
        window = window.where(tuple_(*order) < tuple_(*before))
    some, newer = window.limit(WINDOW).subquery(), tasks.alias()
    later = tuple_(newer.c.job, newer.c.position) > tuple_(some.c.job, some.c.position)
    has_newer = exists().where(newer.c.workload == some.c.workload, later, visible_record(newer.c.tenant))
    if operator is not None:
        has_newer = has_newer.where(newer.c.operator + "" == operator)  # the index of the workload leads
    tenant = record_tenant()
    seen = true() if tenant is None else some.c.tenant == tenant
    newest = select(some.c.job, some.c.position, some.c.workload).where(seen, ~has_newer)
    newest = newest.order_by(some.c.job.desc(), some.c.position.desc()).limit(limit + 1)
    found = connection.execute(newest).all()
    if len(found) > limit:
        return _summaries(connection, found[:limit], operator), (found[limit - 1].job, found[limit - 1].position)
    last = connection.execute(window.offset(WINDOW - 1).limit(1)).first()
    return _summaries(connection, found, operator), None if last is None else (last.job, last.position)


def _summaries(
    connection: Connection, newest: Sequence[Row[Any, Any, Any]], operator: str | None
) -> tuple[WorkloadSummary, ...]:
    """Return the workloads of these tasks (``job``, ``position``, ``workload``), in their order, with figures of all
    their tasks that are seen."""
    if not newest:
        return ()
    about = (
        select(tasks.c.job, tasks.c.position, tasks.c.operator, tasks.c.parameters, jobs.c.created_at)
        .add_columns(workloads.c.id, workloads.c.key, workloads.c.flops, workloads.c.minimum_bytes)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .join(jobs, jobs.c.number == tasks.c.job)
        .where(tasks.c.workload.in_({row.workload for row in newest}), tasks.c.job.in_({row.job for row in newest}))
    )
    rows = {(row.job, row.position): row for row in connection.execute(about)}
    figures = (
        select(
            tasks.c.workload,
            func.count(),
            func.sum(tasks.c.trials),
            func.count(jobs.c.device.distinct()),
            func.min(tasks.c.best_seconds),
        )
        .join(jobs, jobs.c.number == tasks.c.job)
        .where(tasks.c.workload.in_([row.id for row in rows.values()]), visible_record(tasks.c.tenant))
        .group_by(tasks.c.workload)
    )
    if operator is not None:
        figures = figures.where(tasks.c.operator + "" == operator)
    of_workload = {number: values for number, *values in connection.execute(figures)}
    summaries = []
    for row in (rows[place.job, place.position] for place in newest):
        count, sum_of_trials, devices_seen, best = of_workload[row.id]
        summaries.append(
            WorkloadSummary(
                row.key,
                row.operator,
                row.parameters,
                row.flops,
                row.minimum_bytes,
                count,
                int(sum_of_trials or 0),
                devices_seen,
                best,
                row.created_at,
            )
        )
    return tuple(summaries)


def newest_bests(
    connection: Connection, *, limit: int, device_key: str | None = None, workload_keys: Sequence[str] | None = None
) -> tuple[BestTaskRow, ...]:
    """Return at most ``limit`` tasks that have a best record, those of the newest jobs first.

    They are tasks of the workloads that are given, otherwise of the newest RECENT_JOBS jobs. With ``device_key`` they
    are those that were measured on it."""
    chosen = select(tasks.c.best_trial).where(tasks.c.best_trial.is_not(None), visible(tasks.c.tenant))
    if device_key is not None:
        of_device = select(devices.c.id).where(devices.c.key == device_key).scalar_subquery()
        chosen = chosen.join(trials, trials.c.id == tasks.c.best_trial).where(trials.c.device == of_device)
    if workload_keys is not None:
        of_keys = select(workloads.c.id).where(workloads.c.key.in_(workload_keys))
        chosen = chosen.where(tasks.c.workload.in_(list(connection.execute(of_keys).scalars())))
    else:
        recent = select(jobs.c.number).where(visible(jobs.c.tenant)).order_by(jobs.c.number.desc()).limit(RECENT_JOBS)
        chosen = chosen.where(tasks.c.job.in_(list(connection.execute(recent).scalars())))
    # the ids alone are put in order first, and no more than wanted are looked at any further
    newest = chosen.order_by(tasks.c.job.desc(), tasks.c.position).limit(limit)
    query = (
        select(
            jobs.c.id,
            jobs.c.created_at,
            tasks.c.position,
            tasks.c.operator,
            tasks.c.parameters,
            workloads.c.key,
            workloads.c.flops,
            workloads.c.minimum_bytes,
            tasks.c.trials,
            trials.c.id,
            func.coalesce(trials.c.final_samples, trials.c.samples),
            devices.c.key,
            devices.c.name,
        )
        .select_from(trials)
        .join(tasks, (tasks.c.job == trials.c.job) & (tasks.c.position == trials.c.task))
        .join(jobs, jobs.c.number == tasks.c.job)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .join(devices, devices.c.id == trials.c.device)
        .where(trials.c.id.in_(list(connection.execute(newest).scalars())))
        .order_by(tasks.c.job.desc(), tasks.c.position)
    )
    rows = connection.execute(query).all()
    return tuple(BestTaskRow(*row[:10], median(row[10]), *row[11:]) for row in rows)


def load_records_after(connection: Connection, target_kind: str, record_id: int, limit: int) -> tuple[Record, ...]:
    """Return records on targets of a kind with ids above ``record_id``, oldest first, without adopted copies."""
    query = FULL.where(trials.c.id > record_id, trials.c.adopted_from.is_(None))
    query = query.where(devices.c.target["kind"].as_string() == target_kind)
    return tuple(record_of(row) for row in connection.execute(query.order_by(trials.c.id).limit(limit)).mappings())


def load_results(connection: Connection, workload_key: str, *, limit: int) -> tuple[ResultRow, ...]:
    """Return the best record of each task of a workload that has one: the newest ``limit``, oldest first."""
    query = (
        FULL.add_columns(
            toolchains.c.components,
            jobs.c.created_at.label("job_created_at"),
            jobs.c.strategy,
            tasks.c.trials.label("task_trials"),
            tasks.c.roofline_seconds,
            tasks.c.baseline_seconds,
        )
        .join(tasks, tasks.c.best_trial == trials.c.id)
        .where(visible_record(tasks.c.tenant))
        .where(tasks.c.workload == select(workloads.c.id).where(workloads.c.key == workload_key).scalar_subquery())
        .order_by(trials.c.id.desc())
        .limit(limit)
    )
    rows = connection.execute(query).mappings().all()
    return tuple(
        ResultRow(
            best_of(row),
            row["components"],
            row["job_created_at"],
            row["strategy"],
            row["task_trials"],
            row["roofline_seconds"],
            row["baseline_seconds"],
        )
        for row in reversed(rows)
    )
