"""Records a trial: its row, the counters and the best trial of its task, and the events change together."""

from collections.abc import Mapping

from sqlalchemy import Connection, select
from sqlalchemy.engine import RowMapping

from ..core.errors import Conflict
from ..core.trial import Outcome, Timed
from .jobs import add_event, load_task, lock_job, update_job, update_task
from .rows import NewTrial
from .tables import trials, workloads
from .trials import insert_trial, update_remeasured


def record_trial(connection: Connection, new: NewTrial, *, with_events: bool = True) -> tuple[int, str]:
    """Store a trial inside the caller's transaction; return (record id, state of its job).

    Raises NotFound, and Conflict when the trial is there already or would leave a gap in the sequence.
    """
    job = lock_job(connection, new.job_id)
    number = job["number"]
    task = load_task(connection, number, new.task)
    if task["trials"] != new.sequence:
        raise Conflict(f"trial {new.sequence} of task {new.task} given, {task['trials']} is next", field="sequence")
    record_id = insert_trial(connection, number, task["workload"], new)
    outcome = new.trial.outcome
    about: dict[str, object] = {
        "task": new.task,
        "sequence": new.sequence,
        "record_id": record_id,
        "elapsed_seconds": new.elapsed_seconds,
    }
    counters: dict[str, object] = {"trials": new.sequence + 1}
    flops = connection.execute(select(workloads.c.flops).where(workloads.c.id == task["workload"])).scalar_one()
    if with_events:
        add_event(connection, number, "trial", {**about, **_outcome_data(outcome, flops)})
    if isinstance(outcome, Timed):
        if _is_better(connection, new, outcome, task):
            counters.update(best_trial=record_id, best_seconds=outcome.rank_seconds)
            if with_events:
                best = {"seconds": outcome.seconds, "gflops": gflops(flops, outcome.seconds)}
                add_event(connection, number, "best", {**about, **best, "schedule": new.trial.schedule.to_json()})
    else:
        kind = f"{outcome.stage.value}:{outcome.reason.value}"
        counters["failures"] = {**task["failures"], kind: task["failures"].get(kind, 0) + 1}
    update_task(connection, number, new.task, **counters)
    update_job(connection, number)
    return record_id, str(job["state"])


def _is_better(connection: Connection, new: NewTrial, outcome: Timed, task: RowMapping) -> bool:
    """Return whether the trial is the best of its task by now. Among trials that a re-measurement found equally fast
    the schedule's key decides."""
    if task["best_seconds"] is None or outcome.rank_seconds != task["best_seconds"] or not outcome.final_samples:
        return task["best_seconds"] is None or outcome.rank_seconds < task["best_seconds"]
    found = select(trials.c.schedule_key).where(trials.c.id == task["best_trial"])
    return new.trial.schedule.key < str(connection.execute(found).scalar_one())


def record_remeasurement(connection: Connection, job_id: str, position: int, outcomes: Mapping[int, Timed]) -> None:
    """Store the outcomes that the re-measurement of a task changed (by sequence), and the task's new best trial."""
    number = lock_job(connection, job_id)["number"]
    best = update_remeasured(connection, number, position, outcomes)
    update_task(connection, number, position, best_trial=best["id"], best_seconds=best["rank_seconds"])
    update_job(connection, number)
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
