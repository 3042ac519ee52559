"""Reads what was found for workloads over devices, toolchains and time."""

from sqlalchemy import Connection, and_, func, select, tuple_

from ..core.record import Record
from .rows import ResultRow, WorkloadSummary
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .trials import FULL, best_of, record_of
from .visibility import visible_record


def page_of_workloads(
    connection: Connection, *, before: tuple[int, int] | None, operator: str | None, limit: int
) -> tuple[WorkloadSummary, ...]:
    """Return at most ``limit`` workloads by the newest job that has them, newest first, beyond
    ``before``: (``newest_job``, ``number``) of the last one known."""
    newest = func.max(tasks.c.job)
    groups = (
        select(
            tasks.c.workload,
            newest.label("job"),
            func.count().label("tasks"),
            func.sum(tasks.c.trials).label("trials"),
            func.count(jobs.c.device.distinct()).label("devices"),
            func.min(tasks.c.best_seconds).label("best_seconds"),
        )
        .join(jobs, jobs.c.number == tasks.c.job)
        .where(visible_record(tasks.c.tenant))
        .group_by(tasks.c.workload)
    )
    if operator is not None:
        groups = groups.where(tasks.c.operator == operator)
    if before is not None:
        groups = groups.having(tuple_(newest, tasks.c.workload) < tuple_(*before))
    found = groups.order_by(newest.desc(), tasks.c.workload.desc()).limit(limit).subquery()
    query = (
        select(found, workloads.c.key, workloads.c.flops, workloads.c.minimum_bytes, jobs.c.created_at)
        .add_columns(tasks.c.operator, tasks.c.parameters)
        .join(workloads, workloads.c.id == found.c.workload)
        .join(jobs, jobs.c.number == found.c.job)
        .join(tasks, and_(tasks.c.job == found.c.job, tasks.c.workload == found.c.workload))
        .order_by(found.c.job.desc(), found.c.workload.desc(), tasks.c.position)
    )
    summaries = {}
    for row in connection.execute(query).mappings():
        summaries[row["key"]] = WorkloadSummary(
            row["key"],
            row["operator"],
            row["parameters"],
            row["flops"],
            row["minimum_bytes"],
            row["tasks"],
            int(row["trials"] or 0),
            row["devices"],
            row["best_seconds"],
            row["workload"],
            row["job"],
            row["created_at"],
        )
    return tuple(summaries.values())


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
