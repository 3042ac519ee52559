"""Reads what the dashboard shows of one task: progress, time by worker, health, settings, predictions."""

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from ..core.renamed import current
from .dashboard_rows import HealthRow, PredictedRow, ProgressRow, SettingRow, WorkerRow
from .tables import trials


def of_task(job: int, task: int) -> ColumnElement[bool]:
    """Return the condition of a task's trials."""
    return and_(trials.c.job == job, trials.c.task == task)


def load_progress(
    connection: Connection, job: int, task: int, *, after: int, step: int, limit: int
) -> tuple[ProgressRow, ...]:
    """Return every ``step``-th trial beyond sequence ``after``, every new best, and the last trial of the task."""
    here = of_task(job, task)
    own = case((trials.c.adopted_from.is_(None), trials.c.check_seconds + trials.c.time_seconds), else_=0.0)
    before = func.min(trials.c.seconds).over(order_by=trials.c.sequence, rows=(None, -1))
    numbered = (
        select(
            trials.c.id,
            trials.c.sequence,
            trials.c.elapsed_seconds,
            func.sum(own).over(order_by=trials.c.sequence, rows=(None, 0)).label("device_seconds"),
            trials.c.seconds,
            trials.c.failed_stage,
            trials.c.failed_reason,
            before.label("before"),
        )
        .where(here)
        .subquery()
    )
    row = numbered.c
    is_best = and_(row.seconds.is_not(None), or_(row.before.is_(None), row.seconds < row.before))
    last = select(func.max(trials.c.sequence)).where(here).scalar_subquery()
    kept = or_(row.sequence % step == 0, is_best, row.sequence == last)
    query = (
        select(numbered, is_best.label("is_best")).where(row.sequence > after, kept).order_by(row.sequence).limit(limit)
    )
    return tuple(
        ProgressRow(
            found.id,
            found.sequence,
            found.elapsed_seconds,
            found.device_seconds,
            found.seconds,
            None if found.seconds is not None else f"{found.failed_stage}:{found.failed_reason}",
            bool(found.is_best),
        )
        for found in connection.execute(query)
    )


def load_workers(connection: Connection, job: int, task: int) -> tuple[WorkerRow, ...]:
    """Return on what the trials that a task measured itself spent time, by unit."""
    parts = ("search", "compile", "check", "time", "overhead")
    sums = [func.sum(trials.c[f"{part}_seconds"]) for part in parts]
    failed = func.count() - func.count(trials.c.seconds)
    query = (
        select(trials.c.unit, trials.c.host, func.count(), failed, *sums)
        .where(of_task(job, task), trials.c.adopted_from.is_(None))
        .group_by(trials.c.unit, trials.c.host)
        .order_by(trials.c.unit, trials.c.host)
    )
    return tuple(WorkerRow(*row) for row in connection.execute(query))


def load_health(connection: Connection, job: int, task: int, *, step: int) -> tuple[HealthRow, ...]:
    """Return what was seen of the device beside every ``step``-th trial that the task measured itself."""
    query = (
        select(trials.c.id, trials.c.sequence, trials.c.elapsed_seconds, trials.c.evidence)
        .where(of_task(job, task), trials.c.adopted_from.is_(None), trials.c.sequence % step == 0)
        .order_by(trials.c.sequence)
    )
    return tuple(
        HealthRow(number, sequence, elapsed, seen.get("anchor_seconds"), seen.get("environment") or {})
        for number, sequence, elapsed, seen in connection.execute(query)
    )


def load_settings(connection: Connection, job: int, task: int, *, fastest: int, step: int) -> tuple[SettingRow, ...]:
    """Return the settings of the ``fastest`` trials of a task and of every ``step``-th one, in the order they ran."""
    top = (
        select(trials.c.id)
        .where(of_task(job, task), trials.c.seconds.is_not(None))
        .order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
        .limit(fastest)
        .subquery()
    )
    columns = ("id", "sequence", "sketch", "sketch_version", "knobs", "rank_seconds")
    query = (
        select(*(trials.c[name] for name in columns))
        .where(of_task(job, task), or_(trials.c.sequence % step == 0, trials.c.id.in_(select(top.c.id))))
        .order_by(trials.c.sequence)
    )
    rows = []
    for number, sequence, sketch, version, knobs, seconds in connection.execute(query):
        name, _, today = current(sketch, version, knobs)
        rows.append(SettingRow(number, sequence, name, dict(today), seconds))
    return tuple(rows)


def load_predicted(connection: Connection, job: int, task: int) -> tuple[PredictedRow, ...]:
    """Return the trials of a task that its cost model had predicted, in the order they ran."""
    columns = ("sequence", "predicted_score", "learned_from", "rank_seconds")
    query = (
        select(*(trials.c[name] for name in columns))
        .where(of_task(job, task), trials.c.predicted_score.is_not(None))
        .order_by(trials.c.sequence)
    )
    return tuple(PredictedRow(*row) for row in connection.execute(query))
