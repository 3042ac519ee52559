"""Records a trial: its row, the counters and the best trial of its task, and the events change together."""

import dataclasses
from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.engine import RowMapping

from ..core.errors import Conflict
from ..core.fleet import Lease, Wanted
from ..core.trial import Outcome, Timed
from .best import keep_best, rank_again
from .jobs import add_event, add_events, load_task, number_of_job, touch_job, update_task
from .leases import guard_task
from .rows import NewTrial, StoredTrial
from .tables import devices, jobs, tasks, toolchains, trials, workloads
from .tenants import charge
from .trials import insert_trial, update_remeasured
from .wanted import wanted_in, wanted_of

_TASK = (
    select(
        tasks,
        workloads.c.flops,
        select(devices.c.id).where(devices.c.key == bindparam("device_key")).scalar_subquery().label("device_id"),
        select(toolchains.c.id)
        .where(toolchains.c.key == bindparam("toolchain_key"))
        .scalar_subquery()
        .label("toolchain_id"),
    )
    .join(jobs, jobs.c.number == tasks.c.job)
    .join(workloads, workloads.c.id == tasks.c.workload)
    .where(jobs.c.id == bindparam("job_id"), tasks.c.position == bindparam("position"))
    .with_for_update(of=tasks, key_share=True)
)
"""Selects the row of a task, and what else a trial of it refers to, in one statement."""


def record_trial(
    connection: Connection, new: NewTrial, *, imported: bool = False, lease: Lease | None = None
) -> StoredTrial:
    """Store a trial inside the caller's transaction. The holder of a lease on the task is charged for the trial. One
    that is ``imported`` makes no events, and trials before it may be missing: they were deleted (``retention``).

    Raises NotFound, Conflict when the trial is there already or would leave a gap in the sequence, and LeaseLost.
    """
    guard_task(connection, lease, new.job_id, new.task)
    task = _lock_task(connection, new)
    number = task["job"]
    if task["trials"] != new.sequence and not (imported and task["trials"] < new.sequence):
        raise Conflict(f"trial {new.sequence} of task {new.task} given, {task['trials']} is next", field="sequence")
    record_id = insert_trial(connection, number, task["workload"], new, task["device_id"], task["toolchain_id"])
    outcome = new.trial.outcome
    clocks = new.trial.clocks
    spent = tasks.c.device_seconds + clocks.check + clocks.time
    counters: dict[str, object] = {"trials": new.sequence + 1, "losses": 0, "device_seconds": spent}
    best = isinstance(outcome, Timed) and _is_better(connection, new, outcome, task)
    if isinstance(outcome, Timed):
        keep_best(connection, [record_id])
        if best:
            counters.update(best_trial=record_id, best_seconds=outcome.rank_seconds)
    else:
        kind = f"{outcome.stage.value}:{outcome.reason.value}"
        counters["failures"] = {**task["failures"], kind: task["failures"].get(kind, 0) + 1}
    update_task(connection, number, new.task, **counters)
    wanted = Wanted.GO if lease is None else wanted_of(connection, [lease])
    job = touch_job(connection, new.job_id)
    if not imported:
        _add_events(connection, number, new, record_id, task["flops"], best)
    if lease is not None:
        charge(connection, job["tenant"], sum(dataclasses.astuple(new.trial.clocks)))
    stop = wanted_in(job["state"]) is Wanted.STOP
    return StoredTrial(record_id, job["state"], Wanted.STOP if stop else wanted)


def _lock_task(connection: Connection, new: NewTrial) -> RowMapping:
    on = new.measured_on
    parameters = {
        "job_id": new.job_id,
        "position": new.task,
        "device_key": on.device.key,
        "toolchain_key": on.toolchain.key,
    }
    row = connection.execute(_TASK, parameters).mappings().first()
    # the query that finds nothing says what is missing
    return row if row is not None else load_task(connection, number_of_job(connection, new.job_id), new.task)


def trial_events(new: NewTrial, flops: int) -> tuple[Mapping[str, object], Mapping[str, object] | None]:
    """Return what the events of a trial say beside its record id: that it was recorded, and where it has a time, that
    it is the best of its task."""
    outcome = new.trial.outcome
    about: dict[str, object] = {
        "task": new.task,
        "sequence": new.sequence,
        "elapsed_seconds": new.elapsed_seconds,
        "device_seconds": new.trial.clocks.check + new.trial.clocks.time,
    }
    recorded = {**about, **_outcome_data(outcome, flops)}
    if not isinstance(outcome, Timed):
        return recorded, None
    data = {"seconds": outcome.seconds, "gflops": gflops(flops, outcome.seconds)}
    return recorded, {**about, **data, "schedule": new.trial.schedule.to_json()}


def _add_events(connection: Connection, number: int, new: NewTrial, record_id: int, flops: int, best: bool) -> None:
    recorded, ahead = trial_events(new, flops)
    told: list[tuple[str, Mapping[str, object]]] = [("trial", {"record_id": record_id, **recorded})]
    if best and ahead is not None:
        told.append(("best", {"record_id": record_id, **ahead}))
    add_events(connection, number, told)


def _is_better(connection: Connection, new: NewTrial, outcome: Timed, task: RowMapping) -> bool:
    """Return whether the trial is the best of its task by now. Among trials that a re-measurement found equally fast
    the schedule's key decides."""
    if task["best_seconds"] is None or outcome.rank_seconds != task["best_seconds"] or not outcome.final_samples:
        return task["best_seconds"] is None or outcome.rank_seconds < task["best_seconds"]
    found = select(trials.c.schedule_key).where(trials.c.id == task["best_trial"])
    return new.trial.schedule.key < str(connection.execute(found).scalar_one())


def record_remeasurement(
    connection: Connection, job_id: str, position: int, outcomes: Mapping[int, Timed], *, lease: Lease | None = None
) -> None:
    """Store the outcomes that the re-measurement of a task changed (by sequence), and the task's new best trial. Raises
    LeaseLost."""
    guard_task(connection, lease, job_id, position)
    number = number_of_job(connection, job_id)
    load_task(connection, number, position, lock=True)
    best = update_remeasured(connection, number, position, outcomes)
    rank_again(connection, number, position)
    update_task(connection, number, position, best_trial=best["id"], best_seconds=best["rank_seconds"])
    touch_job(connection, job_id)
    finalists = sum(bool(timed.final_samples) for timed in outcomes.values())
    data = {
        "task": position,
        "finalists": finalists,
        "best_record_id": best["id"],
        "best_seconds": best["rank_seconds"],
    }
    add_event(connection, number, "task", data)


def gflops(flops: int, seconds: float) -> float | None:
    """Return billions of operations per second, or None for a workload that does no arithmetic."""
    return flops / seconds / 1e9 if flops else None


def _outcome_data(outcome: Outcome, flops: int) -> Mapping[str, object]:
    data: dict[str, object] = dict.fromkeys(("seconds", "gflops", "stage", "reason", "detail"))
    if isinstance(outcome, Timed):
        data.update(seconds=outcome.seconds, gflops=gflops(flops, outcome.seconds))
    else:
        data.update(stage=outcome.stage.value, reason=outcome.reason.value, detail=outcome.detail[:400])
    return data
