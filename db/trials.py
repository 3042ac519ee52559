"""Reads and writes trials. Pages are found by the key of the last row, and the best trial by an index."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, tuple_, update
from sqlalchemy.engine import RowMapping

from ..core.errors import NotFound
from ..core.record import Identity, Record
from ..core.renamed import current
from ..core.schedule import Schedule
from ..core.trial import Clocks, Failed, Reason, Timed, Trial, TrialStage
from .catalog import keep_device, keep_toolchain
from .encode import evidence_to_json, now, stored_evidence
from .rows import BestRow, FailureRow, NearRow, NewTrial, PointRow, TrialRow
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .visibility import visible, visible_record

FULL: Select[Any] = (
    select(
        trials,
        jobs.c.id.label("job_id"),
        jobs.c.tenant,
        workloads.c.key.label("workload_key"),
        devices.c.key.label("device_key"),
        toolchains.c.key.label("toolchain_key"),
        devices.c.name.label("device_name"),
        workloads.c.flops.label("flops"),
    )
    .join(jobs, jobs.c.number == trials.c.job)
    .join(workloads, workloads.c.id == trials.c.workload)
    .join(devices, devices.c.id == trials.c.device)
    .join(toolchains, toolchains.c.id == trials.c.toolchain)
)
"""Selects everything that a record holds as one row."""


def insert_trial(
    connection: Connection, job: int, workload: int, new: NewTrial, device: int | None, toolchain: int | None
) -> int:
    """Add a trial; return its record id. The unique key refuses a trial that is there already. ``device`` and
    ``toolchain`` are the ids of their rows; None where there is no such row yet."""
    if device is None or new.measured_on.device.measured:
        device = keep_device(connection, new.measured_on.device)
    if toolchain is None:
        toolchain = keep_toolchain(connection, new.measured_on.toolchain)
    values = columns_of(new, job, workload, device, toolchain)
    inserted = connection.execute(insert(trials).values(values)).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def columns_of(new: NewTrial, job: int, workload: int, device: int, toolchain: int) -> dict[str, object]:
    """Return the row of a trial. ``job``, ``workload``, ``device`` and ``toolchain`` are the ids of other rows."""
    trial, outcome = new.trial, new.trial.outcome
    return {
        "job": job,
        "task": new.task,
        "sequence": new.sequence,
        "workload": workload,
        "sketch": trial.schedule.sketch,
        "sketch_version": trial.schedule.version,
        "device": device,
        "toolchain": toolchain,
        "profile": str(new.measured_on.profile),
        "schedule_key": trial.schedule.key,
        "knobs": dict(trial.schedule.knobs),
        "seconds": median(outcome.samples) if isinstance(outcome, Timed) else None,
        "samples": list(outcome.samples) if isinstance(outcome, Timed) else None,
        "launches_per_sample": outcome.launches_per_sample if isinstance(outcome, Timed) else None,
        "failed_stage": outcome.stage.value if isinstance(outcome, Failed) else None,
        "failed_reason": outcome.reason.value if isinstance(outcome, Failed) else None,
        # PostgreSQL's text type holds no NUL
        "failed_detail": outcome.detail.replace("\x00", "")[:4000] if isinstance(outcome, Failed) else None,
        "evidence": evidence_to_json(trial.evidence),
        "search_seconds": trial.clocks.search,
        "compile_seconds": trial.clocks.compile,
        "check_seconds": trial.clocks.check,
        "time_seconds": trial.clocks.time,
        "overhead_seconds": trial.clocks.overhead,
        "elapsed_seconds": new.elapsed_seconds,
        "created_at": new.created_at or now(),
        "rank_seconds": outcome.rank_seconds if isinstance(outcome, Timed) else None,
        "final_samples": (list(outcome.final_samples) or None) if isinstance(outcome, Timed) else None,
        "unit": new.unit,
        "host": new.host,
        "predicted_score": None if new.prediction is None else new.prediction.score,
        "learned_from": None if new.prediction is None else new.prediction.learned_from,
    }


def update_remeasured(connection: Connection, job: int, task: int, outcomes: Mapping[int, Timed]) -> RowMapping:
    """Store what a re-measurement changed (by sequence); return the row of the task's best trial after it."""
    of_task = (trials.c.job == job, trials.c.task == task)
    for sequence, timed in outcomes.items():
        values = {"rank_seconds": timed.rank_seconds, "final_samples": list(timed.final_samples) or None}
        connection.execute(update(trials).where(*of_task, trials.c.sequence == sequence).values(values))
    ordered = select(trials.c.id, trials.c.rank_seconds).where(*of_task, trials.c.seconds.is_not(None))
    ordered = ordered.order_by(trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
    return connection.execute(ordered.limit(1)).mappings().one()


def schedule_of(row: RowMapping) -> Schedule:
    """Return the schedule in a row of the table, under today's names."""
    return Schedule(*current(row["sketch"], row["sketch_version"], row["knobs"]))


def trial_of(row: RowMapping) -> Trial:
    """Return the trial in a row of the table."""
    outcome: Timed | Failed
    if row["seconds"] is not None:
        outcome = Timed(tuple(row["samples"]), row["launches_per_sample"], tuple(row["final_samples"] or ()))
        if outcome.seconds != row["rank_seconds"]:
            outcome = replace(outcome, final_rank_seconds=row["rank_seconds"])
    else:
        outcome = Failed(TrialStage(row["failed_stage"]), Reason(row["failed_reason"]), row["failed_detail"])
    return Trial(
        schedule_of(row),
        outcome,
        Clocks(
            row["search_seconds"],
            row["compile_seconds"],
            row["check_seconds"],
            row["time_seconds"],
            row["overhead_seconds"],
        ),
        stored_evidence(row["evidence"]),
        row["unit"],
    )


def record_of(row: RowMapping) -> Record:
    """Return the record in a row of ``FULL``."""
    trial = trial_of(row)
    identity = Identity(
        row["workload_key"],
        row["device_key"],
        row["toolchain_key"],
        row["profile"],
        trial.schedule.sketch,
        trial.schedule.version,
    )
    return Record(row["id"], row["job_id"], row["task"], row["sequence"], identity, trial, row["created_at"])


def best_of(row: RowMapping) -> BestRow:
    """Return the timed record in a row of ``FULL``."""
    return BestRow(record_of(row), row["device_name"], row["flops"])


def load_trial(connection: Connection, record_id: int) -> TrialRow:
    """Return one record. Raises NotFound."""
    row = connection.execute(FULL.where(trials.c.id == record_id, visible_record(jobs.c.tenant))).mappings().first()
    if row is None:
        raise NotFound(f"there is no record {record_id}", field="record_id")
    return _trial_row(row)


def load_best_rows(connection: Connection, record_ids: Sequence[int]) -> dict[int, BestRow]:
    """Return the given timed records by id."""
    if not record_ids:
        return {}
    rows = connection.execute(FULL.where(trials.c.id.in_(record_ids))).mappings()
    return {row["id"]: best_of(row) for row in rows}


def page_by_sequence(
    connection: Connection, job: int, task: int, *, after: int | None, limit: int, newest_first: bool
) -> tuple[TrialRow, ...]:
    """Return trials of a task in the order they ran, or in the reverse order, beyond sequence ``after``."""
    query = FULL.where(trials.c.job == job, trials.c.task == task)
    if after is not None:
        query = query.where(trials.c.sequence < after if newest_first else trials.c.sequence > after)
    order = trials.c.sequence.desc() if newest_first else trials.c.sequence
    return trial_rows_of(connection, query.order_by(order).limit(limit))


def page_by_seconds(
    connection: Connection, job: int, task: int, *, after: tuple[float, str, int] | None, limit: int
) -> tuple[TrialRow, ...]:
    """Return timed trials of a task, fastest first, beyond (rank seconds, schedule key, record id)."""
    query = FULL.where(trials.c.job == job, trials.c.task == task, trials.c.seconds.is_not(None))
    order = (trials.c.rank_seconds, trials.c.schedule_key, trials.c.id)
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(*after))
    return trial_rows_of(connection, query.order_by(*order).limit(limit))


def load_same_schedule(connection: Connection, record_id: int, *, limit: int) -> tuple[TrialRow, ...]:
    """Return timed trials of a record's workload and schedule, in any job and on any device, newest first. Raises
    NotFound."""
    seen = visible_record(jobs.c.tenant)
    own = select(trials.c.workload, trials.c.schedule_key).join(jobs, jobs.c.number == trials.c.job)
    row = connection.execute(own.where(trials.c.id == record_id, seen)).first()
    if row is None:
        raise NotFound(f"there is no record {record_id}", field="record_id")
    same = FULL.where(trials.c.workload == row.workload, trials.c.schedule_key == row.schedule_key, seen)
    return trial_rows_of(
        connection, same.where(trials.c.seconds.is_not(None)).order_by(trials.c.id.desc()).limit(limit)
    )


def page_of_failed(
    connection: Connection, job: int, task: int, *, before: int | None, limit: int
) -> tuple[TrialRow, ...]:
    """Return failed trials of a task with record ids below ``before``, newest first."""
    query = FULL.where(trials.c.job == job, trials.c.task == task, trials.c.seconds.is_(None))
    if before is not None:
        query = query.where(trials.c.id < before)
    return trial_rows_of(connection, query.order_by(trials.c.id.desc()).limit(limit))


def trial_rows_of(connection: Connection, query: Select[Any]) -> tuple[TrialRow, ...]:
    """Return the records of a query over ``FULL``."""
    return tuple(_trial_row(row) for row in connection.execute(query).mappings())


def _trial_row(row: RowMapping) -> TrialRow:
    return TrialRow(record_of(row), row["elapsed_seconds"], row["unit"], row["host"], row["adopted_from"])


def load_points(connection: Connection, job: int, task: int, *, after: int, limit: int) -> tuple[PointRow, ...]:
    """Return what a chart needs of the trials of a task beyond sequence ``after``."""
    query = (
        select(
            trials.c.id,
            trials.c.sequence,
            trials.c.elapsed_seconds,
            trials.c.seconds,
            trials.c.failed_stage,
            trials.c.failed_reason,
        )
        .where(trials.c.job == job, trials.c.task == task, trials.c.sequence > after)
        .order_by(trials.c.sequence)
        .limit(limit)
    )
    return tuple(
        PointRow(number, sequence, elapsed, seconds, None if seconds is not None else f"{stage}:{reason}")
        for number, sequence, elapsed, seconds, stage, reason in connection.execute(query)
    )


def load_failures(connection: Connection, job: int, task: int) -> tuple[FailureRow, ...]:
    """Return the kinds of failure of a task, most frequent first, each with its newest message."""
    kinds = (
        select(trials.c.failed_stage, trials.c.failed_reason, func.count(), func.max(trials.c.id))
        .where(trials.c.job == job, trials.c.task == task, trials.c.seconds.is_(None))
        .group_by(trials.c.failed_stage, trials.c.failed_reason)
        .order_by(func.count().desc(), trials.c.failed_stage, trials.c.failed_reason)
    )
    rows = connection.execute(kinds).all()
    newest = select(trials.c.id, trials.c.failed_detail).where(trials.c.id.in_([row[3] for row in rows]))
    details = {number: detail for number, detail in connection.execute(newest)}
    return tuple(FailureRow(stage, reason, count, details[number], number) for stage, reason, count, number in rows)


def find_near(connection: Connection, operator: str, limit: int) -> tuple[NearRow, ...]:
    """Return workloads of the newest ``limit`` tasks of an operator that have a timed record, newest first."""
    newest = (
        select(workloads.c.key, tasks.c.parameters)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .where(tasks.c.operator == operator, tasks.c.best_trial.is_not(None), visible_record(tasks.c.tenant))
        .order_by(tasks.c.job.desc(), tasks.c.position)
        .limit(limit)
    )
    found: dict[str, NearRow] = {}
    for key, parameters in connection.execute(newest):
        found.setdefault(key, NearRow(key, parameters or {}))
    return tuple(found.values())


def find_origin(connection: Connection, workload_key: str) -> tuple[str, Mapping[str, object]] | None:
    """Return the operator and parameters that a workload was last submitted with, or None when it came from no
    operator."""
    query = (
        select(tasks.c.operator, tasks.c.parameters)
        .join(workloads, workloads.c.id == tasks.c.workload)
        .where(workloads.c.key == workload_key, tasks.c.operator.is_not(None), visible_record(tasks.c.tenant))
        .order_by(tasks.c.job.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return None if row is None else (row[0], row[1] or {})


def load_after(connection: Connection, record_id: int, limit: int) -> tuple[TrialRow, ...]:
    """Return the next ``limit`` records with ids above ``record_id``, in order."""
    query = FULL.where(trials.c.id > record_id, visible(jobs.c.tenant))
    return trial_rows_of(connection, query.order_by(trials.c.id).limit(limit))


def newest_record(connection: Connection) -> int:
    """Return the id of the newest record, or 0 when there is none."""
    return int(connection.execute(select(func.max(trials.c.id))).scalar() or 0)
