"""Equal tasks in flight share one search, and tasks adopt records that fit exactly."""

from typing import Any

import pytest
from sqlalchemy import func, select

from tilewright.core.fleet import AttemptEnd, TaskState
from tilewright.core.trial import Failed, Reason, Timed, Trial, TrialStage
from tilewright.db.rows import NewTrial, TaskRow
from tilewright.db.store import RecordStore
from tilewright.db.tables import trials
from tilewright.tests.db.fleets import (
    GPU,
    ON_GPU,
    TOOLCHAIN,
    claim,
    claimed,
    finish,
    job_events,
    measure,
    submit,
    trial,
)


def task_of(store: RecordStore, name: str, position: int = 0) -> TaskRow:
    return store.job(name).tasks[position]


def measured(store: RecordStore) -> int:
    """Return how many records were measured, not adopted."""
    with store.database.reading() as connection:
        return connection.execute(select(func.count()).where(trials.c.adopted_from.is_(None))).scalar_one()


def test_twenty_identical_submissions_measure_once(fleet_store: RecordStore) -> None:
    for number in range(20):
        submit(fleet_store, f"j{number}", 2, trials=3, flight="f", tenant=f"t{number % 3}")
    waiting = task_of(fleet_store, "j7", 1)
    assert (waiting.state, waiting.source_job, waiting.source_task) == (TaskState.BLOCKED, "j0", 1)
    first, second = claimed(fleet_store), claimed(fleet_store)
    assert (first.job_id, second.job_id, claim(fleet_store)) == ("j0", "j0", None)
    fleet_store.set_device("j0", GPU, lease=first.lease)
    for held in (first, second):
        fleet_store.begin_task("j0", held.task, lease=held.lease)
        for seconds in (3e-6, None, 1e-6):
            measure(fleet_store, held, seconds=seconds)
        finish(fleet_store, held)
    assert measured(fleet_store) == 6
    assert {job.state for job in fleet_store.jobs(limit=99)} == {"succeeded"}
    source = fleet_store.trials("j0", 1, limit=9)
    for number in range(1, 20):
        task = task_of(fleet_store, f"j{number}", 1)
        assert (task.trials, task.adopted, task.source_job, task.source_task) == (3, 3, "j0", 1)
        assert (task.stop_reason, task.failures) == ("trials", {"check:wrong_result": 1})
        assert task.best is not None and task.best.record.sequence == 2
        rows = fleet_store.trials(f"j{number}", 1, limit=9)
        assert [row.record.sequence for row in rows] == [0, 1, 2]
        assert [row.adopted_from for row in rows] == [row.record.id for row in source]
        assert [row.record.trial for row in rows] == [row.record.trial for row in source]
    job = fleet_store.job("j1")
    assert job.device_key == GPU.key and job.started_at is not None
    assert [event["state"] for event in job_events(fleet_store, "j1", "state")] == ["queued", "running", "succeeded"]
    told = job_events(fleet_store, "j1", "task")[0]
    assert (told["trials"], told["adopted"], told["source_job"], told["source_task"]) == (3, 3, "j0", 0)
    tasks = fleet_store.history_tasks(target_kind="cuda", until=10_000, but=None, limit=999)
    groups = fleet_store.history_groups(tasks, until=10_000)
    assert len(fleet_store.history(groups, until=10_000)) == 6  # nothing teaches a model twice


def test_a_larger_budget_goes_on_from_what_was_adopted(fleet_store: RecordStore) -> None:
    submit(fleet_store, "small", trials=2, flight="f")
    submit(fleet_store, "large", trials=5, flight="f")
    submit(fleet_store, "smaller", trials=1, flight="f")
    held = claimed(fleet_store)
    until = fleet_store.begin_task("small", 0, lease=held.lease)
    measure(fleet_store, held, 2)
    finish(fleet_store, held)
    assert fleet_store.job("smaller").state == "succeeded" and task_of(fleet_store, "smaller").trials == 1
    large = task_of(fleet_store, "large")
    assert (large.state, large.trials, large.adopted, large.stop_reason) == (TaskState.READY, 2, 2, None)
    held = claimed(fleet_store)
    assert held.job_id == "large"
    assert fleet_store.begin_task("large", 0, lease=held.lease) == until  # so that the strategy answers the same
    measure(fleet_store, held, 3)
    assert finish(fleet_store, held) == "succeeded"
    assert [row.record.sequence for row in fleet_store.trials("large", 0, limit=9)] == [0, 1, 2, 3, 4]
    assert measured(fleet_store) == 5


@pytest.mark.parametrize("how", ["cancelled", "fenced", "dead", "paused", "failed"])
def test_when_the_source_goes_another_takes_its_place(fleet_store: RecordStore, how: str) -> None:
    fleet = fleet_store.fleet
    for name in ("first", "second", "third"):
        submit(fleet_store, name, flight="f")
    held = claimed(fleet_store)
    measure(fleet_store, held)
    if how == "cancelled":
        fleet.cancel_job("first")
        finish(fleet_store, held, "cancelled")
    elif how == "fenced":
        fleet.fence_job("first")
    elif how == "dead":
        fleet.end_attempt(held.lease, AttemptEnd.ACTOR_LOST)
        for _ in range(5):
            if task_of(fleet_store, "first").state is TaskState.READY:
                fleet.end_attempt(claimed(fleet_store).lease, AttemptEnd.ACTOR_LOST)
    elif how == "paused":
        fleet.pause_job("first")
        fleet.end_attempt(held.lease, AttemptEnd.YIELDED)
    else:
        finish(fleet_store, held, "error", "no sketch fits")
    assert (task_of(fleet_store, "second").state, task_of(fleet_store, "second").source_job) == (TaskState.READY, None)
    third = task_of(fleet_store, "third")
    assert (third.state, third.source_job) == (TaskState.BLOCKED, "second")
    held = claimed(fleet_store)
    assert held.job_id == "second" and task_of(fleet_store, "second").trials == 0
    measure(fleet_store, held, 10)
    finish(fleet_store, held)
    assert fleet_store.job("third").state == "succeeded"


def test_what_shares_no_search(fleet_store: RecordStore) -> None:
    submit(fleet_store, "first", flight="f")
    submit(fleet_store, "other", flight="g")
    submit(fleet_store, "fresh", flight="f", fresh=True)
    submit(fleet_store, "unnamed")
    ready = {row.job_id for row in fleet_store.fleet.queue(limit=9) if row.state is TaskState.READY}
    assert ready == {"first", "other", "fresh", "unnamed"}
    fleet_store.fleet.cancel_job("first")
    submit(fleet_store, "again", flight="f")  # a fresh one is no source either
    assert task_of(fleet_store, "again").state is TaskState.READY
    submit(fleet_store, "waits", flight="f")
    assert [row.source for row in fleet_store.fleet.queue(limit=9)][-1] == ("again", 0)


def test_a_blocked_task_of_a_paused_or_cancelled_job(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    for name in ("source", "paused", "cancelled"):
        submit(fleet_store, name, trials=2 if name == "source" else 4, flight="f")
    fleet.pause_job("paused")
    assert fleet.cancel_job("cancelled").state == "cancelled"
    held = claimed(fleet_store)
    measure(fleet_store, held, 2)
    finish(fleet_store, held)
    task = task_of(fleet_store, "paused")
    assert (task.state, task.adopted) == (TaskState.BLOCKED, 2) and claim(fleet_store) is None
    assert task_of(fleet_store, "cancelled").trials == 0
    resumed = fleet.resume_job("paused")
    assert resumed.tasks[0].state is TaskState.READY and claimed(fleet_store).job_id == "paused"


def test_a_paused_job_that_waits_for_another_still_waits_when_it_is_resumed(fleet_store: RecordStore) -> None:
    for name in ("source", "waits"):
        submit(fleet_store, name, flight="f")
    fleet_store.fleet.pause_job("waits")
    task = fleet_store.fleet.resume_job("waits").tasks[0]
    assert (task.state, task.source_job) == (TaskState.BLOCKED, "source")


def adopt(
    store: RecordStore, job: str, *, tried: str = "loops", profile: str = "cold-v2", device: str = GPU.key
) -> int:
    held = claimed(store)
    assert held.job_id == job
    return store.fleet.adopt_known(
        held.lease, device_key=device, toolchain_key=TOOLCHAIN.key, profile=profile, sketches={tried: 1}
    )


def known(store: RecordStore) -> None:
    """Record what later jobs may adopt: four schedules, one of them twice, one that failed, and one whose worker was
    lost."""
    submit(store, "before")
    held = claimed(store)
    for seconds in (5e-6, 4e-6, None, 2e-6):
        measure(store, held, seconds=seconds)
    lost = trial("before", 0, 4)
    failed = Failed(TrialStage.TIME, Reason.WORKER_LOST)
    trial_lost = Trial(lost.trial.schedule, failed)
    store.add_trial(NewTrial("before", 0, 4, "", ON_GPU, trial_lost, 1.0))
    again = trial("before", 0, 0, 3e-6).trial
    store.add_trial(NewTrial("before", 0, 5, "", ON_GPU, again, 1.0))
    finish(store, held)


def test_a_task_adopts_the_records_that_fit_exactly(fleet_store: RecordStore) -> None:
    known(fleet_store)
    submit(fleet_store, "j", trials=9)
    assert adopt(fleet_store, "j") == 4
    task = task_of(fleet_store, "j")
    assert (task.trials, task.adopted, task.source_job) == (4, 4, None)
    rows = fleet_store.trials("j", 0, limit=9)
    assert [row.record.sequence for row in rows] == [0, 1, 2, 3]
    times = [o.seconds if isinstance(o := row.record.trial.outcome, Timed) else None for row in rows]
    assert times == [4e-6, None, 2e-6, 3e-6]  # of a schedule that was measured twice the newer record
    assert task.best is not None and task.best.record.sequence == 2
    assert {row.elapsed_seconds for row in rows} == {0.0}
    told = job_events(fleet_store, "j", "task")[0]
    assert (told["trials"], told["adopted"], told["best_seconds"]) == (4, 4, 2e-6)


def test_adoption_ends_with_the_budget_and_prefers_the_fastest(fleet_store: RecordStore) -> None:
    known(fleet_store)
    submit(fleet_store, "j", trials=2)
    assert adopt(fleet_store, "j") == 2
    rows = fleet_store.trials("j", 0, limit=9)
    times = [o.seconds if isinstance(o := row.record.trial.outcome, Timed) else None for row in rows]
    assert times == [2e-6, 3e-6]


def test_what_does_not_fit_is_not_adopted(fleet_store: RecordStore) -> None:
    known(fleet_store)
    for wrong in ({"tried": "other"}, {"profile": "warm-v2"}, {"device": "0" * 64}):
        submit(fleet_store, "j", trials=9)
        assert adopt(fleet_store, "j", **wrong) == 0
        assert job_events(fleet_store, "j", "task") == []
        fleet_store.fleet.fence_job("j")
        with fleet_store.database.writing() as connection:
            connection.exec_driver_sql("UPDATE jobs SET id = 'gone' || number WHERE id = 'j'")
    submit(fleet_store, "fresh", fresh=True)
    assert adopt(fleet_store, "fresh") == 0
    submit(fleet_store, "begun")
    held = claimed(fleet_store)
    measure(fleet_store, held)
    given: dict[str, Any] = {"device_key": GPU.key, "toolchain_key": TOOLCHAIN.key, "profile": "cold-v2"}
    assert fleet_store.fleet.adopt_known(held.lease, **given, sketches={"loops": 1}) == 0
    submit(fleet_store, "none")
    held = claimed(fleet_store)
    assert fleet_store.fleet.adopt_known(held.lease, **given, sketches={}) == 0


def test_a_copy_is_not_copied_again(fleet_store: RecordStore) -> None:
    known(fleet_store)
    for name in ("j", "k"):
        submit(fleet_store, name, trials=9)
        assert adopt(fleet_store, name) == 4
        fleet_store.fleet.fence_job(name)
    origins = [[row.adopted_from for row in fleet_store.trials(name, 0, limit=9)] for name in ("j", "k")]
    before = [row.record.id for row in fleet_store.trials("before", 0, limit=9)]
    assert origins[0] == origins[1] == [before[1], before[2], before[3], before[5]]
