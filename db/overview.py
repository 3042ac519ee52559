"""Reads figures of all jobs for the dashboard's overview. No query scans the trials."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, case, func, select

from .dashboard_rows import CauseRow, RunningRow
from .tables import IS_LEASED, jobs, tasks, trials, workloads
from .visibility import of_visible_job, visible

LATELY = 50
"""The rate of a task is that of so many trials before now."""


def load_running(connection: Connection) -> tuple[RunningRow, ...]:
    """Return the tasks that are being searched, the oldest job first."""
    last = tasks.c.trials - 1
    first = case((last > LATELY, last - LATELY), else_=0)
    query: Select[Any] = (
        select(
            jobs.c.id,
            tasks.c.position,
            tasks.c.operator,
            tasks.c.parameters,
            workloads.c.key,
            tasks.c.trials,
            jobs.c.budget_trials,
            tasks.c.best_seconds,
            tasks.c.baseline_seconds,
            tasks.c.roofline_seconds,
            case((last > first, last - first), else_=0),
            func.coalesce(_elapsed_at(last) - _elapsed_at(first), 0.0),
        )
        .join(jobs, jobs.c.number == tasks.c.job)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .where(IS_LEASED, visible(tasks.c.tenant))
        .order_by(tasks.c.job, tasks.c.position)
    )
    return tuple(RunningRow(*row) for row in connection.execute(query))


def _elapsed_at(sequence: ColumnElement[int]) -> ScalarSelect[float]:
    """Return for how long a task had been searched at the end of one of its trials: one look into an index."""
    of_task = (trials.c.job == tasks.c.job, trials.c.task == tasks.c.position)
    return select(trials.c.elapsed_seconds).where(*of_task, trials.c.sequence == sequence).scalar_subquery()


def load_causes(connection: Connection, since: str) -> tuple[CauseRow, ...]:
    """Return why trials failed after ``since``, the most frequent cause first."""
    kinds = (
        select(trials.c.failed_stage, trials.c.failed_reason, func.count(), func.max(trials.c.id))
        .where(trials.c.created_at > since, trials.c.seconds.is_(None), of_visible_job(trials.c.job))
        .group_by(trials.c.failed_stage, trials.c.failed_reason)
        .order_by(func.count().desc(), trials.c.failed_stage, trials.c.failed_reason)
    )
    rows = connection.execute(kinds).all()
    newest = (
        select(trials.c.id, jobs.c.id, trials.c.failed_detail)
        .join(jobs, jobs.c.number == trials.c.job)
        .where(trials.c.id.in_([row[3] for row in rows]))
    )
    about = {number: (job, detail) for number, job, detail in connection.execute(newest)}
    return tuple(CauseRow(*(*row, *about[row[3]])) for row in rows)
