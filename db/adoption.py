"""Tasks adopt records that are there instead of measuring them again.

A record that is adopted is copied into the trials of the task, with the id of the record that was measured
(``adopted_from``). Trials stay without gaps, and all that reads a task's trials needs to know nothing of it. A copy has
an ``elapsed_seconds`` of 0, because it took the job no time.
"""

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, Select, func, insert, literal, or_, select, tuple_
from sqlalchemy.engine import RowMapping

from ..core.trial import Reason
from .jobs import update_task
from .tables import devices, toolchains, trials
from .visibility import of_visible_job

_OWN = {"id", "job", "task", "sequence", "elapsed_seconds", "adopted_from", "predicted_score", "learned_from"}
_COPIED = [column for column in trials.columns if column.name not in _OWN]


def trials_of(task: RowMapping, limit: int) -> Select[tuple[int]]:
    """Select the ids of the first ``limit`` trials of a task."""
    of_task = select(trials.c.id).where(trials.c.job == task["job"], trials.c.task == task["position"])
    return of_task.order_by(trials.c.sequence).limit(limit)


def exact_records(
    task: RowMapping, device_key: str, toolchain_key: str, profile: str, sketches: Mapping[str, int], limit: int
) -> Select[tuple[int]]:
    """Select the ids of at most ``limit`` records that were measured as this task would measure them, one for each
    schedule: the newest. Times come before failures, and short ones before long ones. A loss of a worker says nothing
    of a schedule, and is left out."""
    newest = (
        select(func.max(trials.c.id).label("id"))
        .where(
            of_visible_job(trials.c.job),
            trials.c.workload == task["workload"],
            trials.c.device == select(devices.c.id).where(devices.c.key == device_key).scalar_subquery(),
            trials.c.toolchain == select(toolchains.c.id).where(toolchains.c.key == toolchain_key).scalar_subquery(),
            trials.c.profile == profile,
            tuple_(trials.c.sketch, trials.c.sketch_version).in_(list(sketches.items())),
            trials.c.adopted_from.is_(None),
            or_(trials.c.failed_reason.is_(None), trials.c.failed_reason != Reason.WORKER_LOST.value),
            or_(trials.c.job != task["job"], trials.c.task != task["position"]),
        )
        .group_by(trials.c.schedule_key)
        .subquery()
    )
    chosen = select(trials.c.id).join(newest, newest.c.id == trials.c.id)
    return chosen.order_by(trials.c.seconds.is_(None), trials.c.rank_seconds, trials.c.id).limit(limit)


def adopt(connection: Connection, task: RowMapping, chosen: Select[tuple[int]]) -> Mapping[str, object]:
    """Copy the chosen records as the first trials of a task that has none, in the order of their ids. Return what the
    task's event says of it: ``trials``, ``adopted``, and the best of them. The caller has locked the task's row."""
    job, position = task["job"], task["position"]
    copied: list[ColumnElement[object]] = [
        literal(job),
        literal(position),
        func.row_number().over(order_by=trials.c.id) - 1,
        literal(0.0),
        func.coalesce(trials.c.adopted_from, trials.c.id),
    ]
    rows = select(*copied, *_COPIED).where(trials.c.id.in_(select(chosen.subquery().c.id))).order_by(trials.c.id)
    names = ["job", "task", "sequence", "elapsed_seconds", "adopted_from", *(column.name for column in _COPIED)]
    connection.execute(insert(trials).from_select(names, rows))
    of_task = (trials.c.job == job, trials.c.task == position)
    adopted = connection.execute(select(func.count()).where(*of_task)).scalar_one()
    kinds = select(trials.c.failed_stage, trials.c.failed_reason, func.count()).where(*of_task)
    kinds = kinds.where(trials.c.seconds.is_(None)).group_by(trials.c.failed_stage, trials.c.failed_reason)
    failures = {f"{stage}:{reason}": count for stage, reason, count in connection.execute(kinds)}
    best = connection.execute(
        select(trials.c.id, trials.c.rank_seconds)
        .where(*of_task, trials.c.seconds.is_not(None))
        .order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
        .limit(1)
    ).first()
    record, seconds = (None, None) if best is None else best
    update_task(
        connection,
        job,
        position,
        trials=adopted,
        adopted=adopted,
        failures=failures,
        best_trial=record,
        best_seconds=seconds,
    )
    return {"trials": adopted, "adopted": adopted, "best_record_id": record, "best_seconds": seconds}
