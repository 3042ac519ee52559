"""Tasks are claimed, searched, given back and ended; jobs end with their last task."""

import pytest

from tilewright.core.errors import Conflict, InvalidParameter, NotFound
from tilewright.core.fleet import MOST_LOSSES, AttemptEnd, LeaseLost, TaskState, UnitState, Wanted
from tilewright.core.trial import Timed
from tilewright.db.claims import INFRASTRUCTURE
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import (
    GPU,
    LONG,
    claim,
    claimed,
    finish,
    gpus,
    job_events,
    leased_subjects,
    measure,
    move_job,
    run_out,
    submit,
    trial,
)


def states_of(store: RecordStore, name: str) -> list[TaskState]:
    return [task.state for task in store.job(name).tasks]


def test_a_job_runs_from_its_first_claim_to_the_end_of_its_last_task(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 2)
    first = claimed(fleet_store, "a", unit="GPU-1")
    assert (first.job_id, first.task, first.target, first.executor, first.cache) == ("j", 0, "cuda", "local", "cold")
    second = claimed(fleet_store, "b")
    assert claim(fleet_store, "c") is None
    job = fleet_store.job("j")
    assert job.state == "running" and job.started_at is not None
    assert states_of(fleet_store, "j") == [TaskState.LEASED] * 2
    measure(fleet_store, first)
    measure(fleet_store, second, 2)
    assert finish(fleet_store, first) == "running"
    fleet.finish_task(second.lease, "stall", {"wall_seconds": 2.5})
    done = fleet_store.job("j")
    assert (done.state, done.tasks[1].wall_seconds, done.tasks[1].stop_reason) == ("succeeded", 2.5, "stall")
    assert [event["state"] for event in job_events(fleet_store, "j", "state")] == ["queued", "running", "succeeded"]
    told = job_events(fleet_store, "j", "task")[-1]
    assert told == {"task": 1, "trials": 2, "wall_seconds": 2.5, "stop_reason": "stall"}
    (attempt,) = fleet.attempts("j", 0)
    assert (attempt.owner, attempt.units, attempt.how, attempt.fence) == ("a", ("GPU-1",), AttemptEnd.DONE, 1)
    assert attempt.ended_at is not None and attempt.began_at <= attempt.ended_at
    assert leased_subjects(fleet_store) == set()
    with pytest.raises(NotFound):
        fleet.attempts("j", 2)


def test_a_fenced_holder_writes_nothing(fleet_store: RecordStore) -> None:
    """Every write of a holder checks the lease: one that ran out, one of a holder before, and one of another task."""
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 2)
    former = claimed(fleet_store, "a")
    other = claimed(fleet_store, "b")
    measure(fleet_store, former, 2)
    run_out(fleet_store, former.lease)

    def refuse(lease_of: str) -> None:
        lease = {"former": former, "other": other}[lease_of].lease
        before = (fleet_store.job("j"), fleet_store.events("j", after=0, limit=99), fleet.tenants())
        with pytest.raises(LeaseLost):
            fleet_store.add_trial(trial("j", 0, 2), lease=lease)
        with pytest.raises(LeaseLost):
            fleet_store.begin_task("j", 0, lease=lease)
        with pytest.raises(LeaseLost):
            fleet_store.note_task("j", 0, lease=lease, space_size=9)
        with pytest.raises(LeaseLost):
            fleet_store.add_remeasurement("j", 0, {0: Timed((1e-6,), 1, (2e-6,))}, lease=lease)
        if lease_of == "former":
            with pytest.raises(LeaseLost):
                fleet_store.set_device("j", GPU, lease=lease)
            with pytest.raises(LeaseLost):
                fleet.finish_task(lease, "trials", {})
            with pytest.raises(LeaseLost):
                fleet.end_attempt(lease, AttemptEnd.YIELDED)
            with pytest.raises(LeaseLost):
                fleet.adopt_known(lease, device_key="", toolchain_key="", profile="", sketches={"loops": 1})
            with pytest.raises(LeaseLost):
                fleet.wanted(lease)
        assert before == (fleet_store.job("j"), fleet_store.events("j", after=0, limit=99), fleet.tenants())

    refuse("former")  # it ran out, and nobody has noticed
    assert fleet.reap() == 1
    refuse("former")
    refuse("other")
    present = claimed(fleet_store, "c")
    assert (present.task, present.lease.fence) == (0, former.lease.fence + 1)
    refuse("former")
    assert measure(fleet_store, present).wanted is Wanted.GO
    assert [attempt.how for attempt in fleet.attempts("j", 0)] == [AttemptEnd.LEASE_LOST, None]


def test_the_present_holder_writes_all_it_has_to(fleet_store: RecordStore) -> None:
    submit(fleet_store, "j")
    held = claimed(fleet_store)
    assert fleet_store.begin_task("j", 0, lease=held.lease) == 0
    fleet_store.note_task("j", 0, lease=held.lease, space_size=9)
    fleet_store.set_device("j", GPU, lease=held.lease)
    measure(fleet_store, held, 2)
    fleet_store.add_remeasurement("j", 0, {1: Timed((1e-6,), 1, (5e-7,))}, lease=held.lease)
    job = fleet_store.job("j")
    assert (job.device_key, job.tasks[0].space_size, job.tasks[0].trials) == (GPU.key, 9, 2)
    assert job.tasks[0].best is not None and job.tasks[0].best.record.sequence == 1


def test_a_task_given_back_goes_on_elsewhere(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    for how in (AttemptEnd.YIELDED, AttemptEnd.CANCELLED, *INFRASTRUCTURE) * 2:
        fleet.end_attempt(claimed(fleet_store).lease, how, "said\x00so")
    task = fleet_store.job("j").tasks[0]
    assert (task.state, task.losses, task.fence) == (TaskState.READY, 0, 14)
    assert fleet.attempts("j", 0)[0].detail == "saidso"
    told = job_events(fleet_store, "j", "task")[0]
    assert (told["how"], told["attempt"], told["state"]) == ("yielded", 1, "ready")


def test_losses_in_a_row_make_a_task_dead_and_the_others_go_on(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 2)
    (uuid,) = gpus(fleet_store, 1)
    for _ in range(MOST_LOSSES - 1):
        fleet.end_attempt(claimed(fleet_store, unit=uuid).lease, AttemptEnd.ACTOR_LOST)
    fleet.set_unit_state(uuid, UnitState.SUSPECT)
    fleet.end_attempt(claimed(fleet_store, unit=uuid).lease, AttemptEnd.DEVICE_FAULT)  # the unit is to blame
    assert fleet_store.job("j").tasks[0].losses == MOST_LOSSES - 1
    held = claimed(fleet_store)
    measure(fleet_store, held)
    assert fleet_store.job("j").tasks[0].losses == 0  # a new record: they were not in a row
    fleet.end_attempt(held.lease, AttemptEnd.YIELDED)
    for _ in range(MOST_LOSSES - 1):
        held = claimed(fleet_store)
        run_out(fleet_store, held.lease)
        assert fleet.reap() == 1
    fleet.end_attempt(claimed(fleet_store).lease, AttemptEnd.ACTOR_LOST, "its actor died with signal 9")
    assert states_of(fleet_store, "j") == [TaskState.DEAD, TaskState.READY]
    other = claimed(fleet_store)
    assert other.task == 1
    measure(fleet_store, other)
    assert finish(fleet_store, other) == "failed"
    job = fleet_store.job("j")
    assert job.error == "1 of 2 tasks dead: task 0 was lost 5 times: its actor died with signal 9"
    assert job.tasks[1].best is not None and job.tasks[0].trials == 1


def test_each_loss_in_a_row_doubles_the_time_that_the_next_holder_has(fleet_store: RecordStore) -> None:
    """A machine that is only slow is in time at last; a new record ends the row."""
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    for losses in range(MOST_LOSSES):
        held = claimed(fleet_store)
        assert held.patience == 2**losses
        assert 0.5 < (held.lease.until - fleet.now()) / (held.patience * LONG) <= 1.0
        if losses + 1 < MOST_LOSSES:
            run_out(fleet_store, held.lease)
            assert fleet.reap() == 1
    measure(fleet_store, held)
    fleet.end_attempt(held.lease, AttemptEnd.YIELDED)
    assert claimed(fleet_store).patience == 1


def test_a_task_outlives_any_number_of_workers_that_were_killed_from_outside(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    (uuid,) = gpus(fleet_store, 1)
    for number in range(MOST_LOSSES + 1):
        owner = f"owner-{number}"
        assert fleet.lease_unit(uuid, owner, seconds=LONG) is not None
        claimed(fleet_store, owner, unit=uuid)
        assert fleet.end_leases_of("another", AttemptEnd.KILLED, "") == 0
        assert fleet.end_leases_of(owner, AttemptEnd.KILLED, "signal 9") == 2
    task = fleet_store.job("j").tasks[0]
    assert (task.state, task.losses) == (TaskState.READY, 0)
    late = claimed(fleet_store, "late")
    run_out(fleet_store, late.lease)
    assert fleet.reap() == 1 and fleet_store.job("j").tasks[0].losses == 1
    assert fleet.end_leases_of("late", AttemptEnd.KILLED, "signal 9") == 0  # said after the lease was found to be over
    assert fleet_store.job("j").tasks[0].losses == 0 and fleet.attempts("j", 0)[-1].how is AttemptEnd.KILLED
    for _ in range(MOST_LOSSES):  # it crashes its workers
        claimed(fleet_store, "owner")
        assert fleet.end_leases_of("owner", AttemptEnd.ACTOR_LOST, "signal 11") == 1
    assert states_of(fleet_store, "j") == [TaskState.DEAD]


def test_a_holder_that_was_held_up_costs_its_task_nothing(fleet_store: RecordStore) -> None:
    """It says so before somebody finds that its lease ran out, or afterwards; of any other end it changes nothing."""
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    for number in range(2 * MOST_LOSSES):
        late = claimed(fleet_store)
        run_out(fleet_store, late.lease)
        if number % 2:
            assert fleet.reap() == 1 and fleet_store.job("j").tasks[0].losses == 1
        fleet.excuse_delay(late.lease, "it was stopped")
        task, last = fleet_store.job("j").tasks[0], fleet.attempts("j", 0)[-1]
        assert (task.state, task.losses) == (TaskState.READY, 0)
        assert (last.how, last.detail) == (AttemptEnd.HOLDER_DELAYED, "it was stopped")
    for end in (AttemptEnd.ACTOR_LOST, AttemptEnd.YIELDED):
        held = claimed(fleet_store)
        fleet.end_attempt(held.lease, end)
        fleet.excuse_delay(held.lease, "it was stopped")
        assert fleet.attempts("j", 0)[-1].how is end and fleet_store.job("j").tasks[0].losses == 1
    present = claimed(fleet_store)
    fleet.excuse_delay(held.lease, "it was stopped")  # of a holder before
    assert measure(fleet_store, present).wanted is Wanted.GO


def test_dead_tasks_are_tried_again_on_request(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    with pytest.raises(Conflict, match="no dead task"):
        fleet.retry_job("j")
    for _ in range(MOST_LOSSES):
        fleet.end_attempt(claimed(fleet_store).lease, AttemptEnd.ACTOR_LOST)
    assert fleet_store.job("j").state == "failed" and claim(fleet_store) is None
    again = fleet.retry_job("j")
    assert (again.state, again.error, again.finished_at) == ("queued", None, None)
    assert (again.tasks[0].state, again.tasks[0].losses) == (TaskState.READY, 0)
    held = claimed(fleet_store)
    assert held.lease.fence == MOST_LOSSES + 1
    measure(fleet_store, held)
    assert finish(fleet_store, held) == "succeeded"


def test_a_task_that_cannot_go_on_fails_its_job_at_the_end(fleet_store: RecordStore) -> None:
    submit(fleet_store, "j", 2)
    first, second = claimed(fleet_store), claimed(fleet_store)
    assert finish(fleet_store, first, "error", "no sketch fits") == "running"
    measure(fleet_store, second)
    assert finish(fleet_store, second) == "failed"
    assert fleet_store.job("j").error == "task 0: no sketch fits"
    assert fleet_store.fleet.attempts("j", 0)[0].how is AttemptEnd.FAILED
    submit(fleet_store, "k")
    held = claimed(fleet_store)
    measure(fleet_store, held, seconds=None)
    assert finish(fleet_store, held) == "failed"
    assert fleet_store.job("k").error == "no schedule of task 0 could be timed: see its failures"


def test_a_job_is_cancelled_when_no_task_is_leased(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "waiting", 2)
    assert fleet.cancel_job("waiting").state == "cancelled" and claim(fleet_store) is None
    states = [event["state"] for event in job_events(fleet_store, "waiting", "state")]
    assert states == ["queued", "cancelling", "cancelled"]
    submit(fleet_store, "j", 3)
    first, second = claimed(fleet_store), claimed(fleet_store)
    measure(fleet_store, first)
    assert fleet.cancel_job("j").state == fleet.cancel_job("j").state == "cancelling"
    assert states_of(fleet_store, "j") == [TaskState.LEASED, TaskState.LEASED, TaskState.DONE]
    assert fleet.wanted(first.lease) is Wanted.STOP
    assert measure(fleet_store, first).wanted is Wanted.STOP  # what it had in hand is kept
    assert finish(fleet_store, first, "cancelled") == "cancelling"
    fleet.end_attempt(second.lease, AttemptEnd.YIELDED)
    assert fleet_store.job("j").state == "cancelled"
    assert [attempt.how for attempt in fleet.attempts("j", 0)] == [AttemptEnd.CANCELLED]
    assert fleet.cancel_job("j").state == "cancelled"
    submit(fleet_store, "k")
    held = claimed(fleet_store)
    measure(fleet_store, held)
    finish(fleet_store, held)
    with pytest.raises(Conflict, match="job k is succeeded"):
        fleet.cancel_job("k")


def test_a_holder_that_does_not_answer_is_fenced(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 2)
    submit(fleet_store, "j1")
    held, _, other = claimed(fleet_store), claimed(fleet_store), claimed(fleet_store)
    measure(fleet_store, held)
    assert fleet.fence_job("j").state == "cancelled"
    with pytest.raises(LeaseLost):
        measure(fleet_store, held)
    assert leased_subjects(fleet_store) == {"j1/0"} and fleet.wanted(other.lease) is Wanted.GO
    assert fleet_store.job("j").tasks[0].trials == 1
    assert [task.stop_reason for task in fleet_store.job("j").tasks] == ["cancelled"] * 2
    assert fleet.fence_job("j").state == "cancelled"


def test_a_job_that_another_program_began_to_cancel_comes_to_its_end(fleet_store: RecordStore) -> None:
    submit(fleet_store, "j")
    move_job(fleet_store, "j", {"queued": ("cancelling",)})
    assert claim(fleet_store) is None
    fleet_store.fleet.reap()
    assert fleet_store.job("j").state == "cancelled"


def test_a_deadline_ends_a_job_with_what_it_has(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "later", deadline=fleet.now() + LONG)
    submit(fleet_store, "j", 3, deadline=fleet.now() - 1.0, priority=1)
    held = claimed(fleet_store)
    measure(fleet_store, held)
    fleet.reap()
    job = fleet_store.job("j")
    assert (job.state, job.error) == ("failed", "its deadline passed before its tasks were done")
    assert job.tasks[0].trials == 1 and job.tasks[0].best is not None
    assert states_of(fleet_store, "j") == [TaskState.DONE] * 3
    with pytest.raises(LeaseLost):
        measure(fleet_store, held)
    assert claimed(fleet_store).job_id == "later"
    with pytest.raises(Conflict, match="deadline of job j has passed"):
        fleet.retry_job("j")


def test_a_job_is_paused_and_resumed(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j", 2)
    held = claimed(fleet_store)
    paused = fleet.pause_job("j")
    assert paused.paused and [task.state for task in paused.tasks] == [TaskState.LEASED, TaskState.BLOCKED]
    assert fleet.wanted(held.lease) is measure(fleet_store, held).wanted is Wanted.YIELD
    fleet.end_attempt(held.lease, AttemptEnd.YIELDED)
    assert claim(fleet_store) is None and states_of(fleet_store, "j") == [TaskState.BLOCKED] * 2
    assert [row.source for row in fleet.queue(limit=9)] == [None, None]
    assert fleet.pause_job("j").version == fleet_store.job("j").version  # once more is nothing
    resumed = fleet.resume_job("j")
    assert not resumed.paused and claimed(fleet_store).task == 0
    assert job_events(fleet_store, "j", "job") == [{"paused": True}, {"paused": False}]
    fleet.pause_job("j")
    assert fleet.cancel_job("j").state == "cancelling"
    with pytest.raises(Conflict, match="possible while it is queued or running"):
        fleet.resume_job("j")


def test_whoever_claims_looks_at_the_job_afterwards(fleet_store: RecordStore) -> None:
    """A task that was passed over when its job was paused or cancelled is still ready. It is not begun."""
    for name in ("paused", "cancelled", "next"):
        submit(fleet_store, name)
    fleet_store.fleet.pause_job("paused")
    fleet_store.fleet.cancel_job("cancelled")
    with fleet_store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE tasks SET state = 'ready'")
    assert claimed(fleet_store).job_id == "next"
    states = [states_of(fleet_store, name)[0] for name in ("paused", "cancelled")]
    assert states == [TaskState.BLOCKED, TaskState.DONE]
    assert fleet_store.fleet.attempts("paused", 0) == fleet_store.fleet.attempts("cancelled", 0) == ()


def test_the_process_of_an_embedded_database_takes_all_leases_over(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    submit(fleet_store, "j")
    (uuid,) = gpus(fleet_store, 1)
    for _ in range(MOST_LOSSES + 1):
        assert fleet.lease_unit(uuid, "o", seconds=LONG) is not None
        claimed(fleet_store, unit=uuid)
        assert fleet.end_all_leases() == 2
    assert states_of(fleet_store, "j") == [TaskState.READY]
    assert {attempt.how for attempt in fleet.attempts("j", 0)} == {AttemptEnd.DATABASE_LOST}


def test_priorities_have_bounds(fleet_store: RecordStore) -> None:
    with pytest.raises(InvalidParameter, match="priority 101; allowed: -100 to 100"):
        submit(fleet_store, "j", priority=101)
    submit(fleet_store, "j")
    with pytest.raises(InvalidParameter, match="priority -101"):
        fleet_store.fleet.set_priority("j", -101)
    fleet_store.fleet.cancel_job("j")
    with pytest.raises(Conflict, match="until it ends"):
        fleet_store.fleet.set_priority("j", 1)
    with pytest.raises(InvalidParameter, match="a tenant's name of 0 characters"):
        submit(fleet_store, "k", tenant="")
