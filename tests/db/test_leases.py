"""A state machine of leases: whatever holders do and suffer, nothing is written by one that lost its lease, nothing
that was acknowledged is lost, and nothing is recorded twice."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection, select

from tilewright.core.errors import Conflict, NotFound
from tilewright.core.fleet import AttemptEnd, Lease, LeaseLost, TaskClaim, TaskState
from tilewright.db import leases as lease_rows
from tilewright.db.store import RecordStore
from tilewright.db.tables import attempts, jobs, leases, tasks, trials, units
from tilewright.tests.db.fleets import LONG, claim, emptied, gpus, migrated, run_out, submit, trial

NAMES = ("j0", "j1")
UNITS = 2

RECORDS = select(jobs.c.id, trials.c.task, trials.c.sequence, trials.c.id.label("record")).join(
    jobs, jobs.c.number == trials.c.job
)
RECORDS = RECORDS.order_by(trials.c.job, trials.c.task, trials.c.sequence)
COUNTS = select(tasks.c.trials, tasks.c.position, jobs.c.id).join(jobs)
TASKS = select(tasks.c.job, tasks.c.position, tasks.c.fence, tasks.c.state)
TASKS = TASKS.add_columns(jobs.c.id.label("name"), jobs.c.state.label("job_state")).join(jobs)
LEASES = select(leases.c.kind, leases.c.subject, leases.c.fence)
BEGUN = select(attempts.c.job, attempts.c.task, attempts.c.fence).where(attempts.c.ended_at.is_(None))
"""What the checker asks after every step. To build a statement takes longer than to answer it."""


@dataclass
class Held:
    """What a holder believes to hold, and whether it still does: it knows of no loss that it was not told of."""

    lease: Lease
    claim: TaskClaim | None = None
    alive: bool = True
    """Whether the lease has not run out, and nobody took it away."""
    reaped: bool = False


class Checker:
    """Compares the database with what was acknowledged."""

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        self.acknowledged: dict[tuple[str, int], list[int]] = {}
        """Record ids by task, in the order of their sequences."""
        self.fences: dict[tuple[str, str], int] = {}

    def leased(self, lease: Lease) -> None:
        subject = (lease.kind, lease.subject)
        assert lease.fence > self.fences.get(subject, 0), f"the fence of {subject} went back to {lease.fence}"
        self.fences[subject] = lease.fence

    def recorded(self, job: str, task: int, record_id: int, *, by: Held) -> None:
        assert by.alive, f"a holder without a lease recorded {record_id}"
        self.acknowledged.setdefault((job, task), []).append(record_id)

    def check(self) -> None:
        with self.store.database.reading() as connection:
            self._check_records(connection)
            self._check_leases(connection)

    def _check_records(self, connection: Connection) -> None:
        found: dict[tuple[str, int], list[int]] = {}
        for job, task, sequence, record in connection.execute(RECORDS):
            of_task = found.setdefault((job, task), [])
            assert sequence == len(of_task), f"sequence {sequence} of task {task} of job {job}: {len(of_task)} is next"
            of_task.append(record)
        assert found == self.acknowledged
        for row in connection.execute(COUNTS).mappings():
            assert row["trials"] == len(found.get((row["id"], row["position"]), []))

    def _check_leases(self, connection: Connection) -> None:
        present = {(row["kind"], row["subject"]): row["fence"] for row in connection.execute(LEASES).mappings()}
        for subject, fence in present.items():
            assert fence == self.fences[subject], f"{subject} is held with a former fence"
        waiting: dict[str, bool] = {}
        begun: dict[tuple[int, int], list[int]] = {}
        for job, task, fence in connection.execute(BEGUN):
            begun.setdefault((job, task), []).append(fence)
        for row in connection.execute(TASKS).mappings():
            subject = ("task", f"{row['name']}/{row['position']}")
            assert row["fence"] == self.fences.get(subject, 0)
            assert (row["state"] == TaskState.LEASED.value) == (subject in present)
            unfinished = row["state"] in (TaskState.READY.value, TaskState.LEASED.value)
            waiting[row["name"]] = waiting.get(row["name"], False) or unfinished
            assert not unfinished or row["job_state"] in ("queued", "running", "cancelling")
            assert begun.get((row["job"], row["position"]), []) == ([row["fence"]] if subject in present else [])
        for name, state in connection.execute(select(jobs.c.id, jobs.c.state)):
            assert waiting[name] == (state in ("queued", "running", "cancelling"))
        for uuid, fence in connection.execute(select(units.c.uuid, units.c.fence)):
            assert fence == self.fences.get(("unit", uuid), 0)


class Fleet(RuleBasedStateMachine):
    """Holders of two jobs' tasks and of two units. Time passes where a rule says so."""

    store: RecordStore
    holders: Bundle[Held] = Bundle("holders")
    unit_holders: Bundle[Held] = Bundle("unit_holders")

    def __init__(self) -> None:
        super().__init__()
        emptied(self.store)
        self.checker = Checker(self.store)
        self.uuids = gpus(self.store, UNITS)
        self.held: list[Held] = []
        for name in NAMES:
            submit(self.store, name, 2)

    def _take(self, held: Held) -> Held:
        assert not any(h.lease.subject == held.lease.subject and not h.reaped for h in self.held), "two holders"
        self.checker.leased(held.lease)
        self.held.append(held)
        return held

    def _end(self, held: Held) -> None:
        held.alive, held.reaped = False, True

    @rule(target=holders)
    def claim_a_task(self) -> Held:
        found = claim(self.store, f"owner{len(self.held)}")
        if found is None:
            return Held(Lease("task", "none/0", 0, "nobody", 0.0), alive=False, reaped=True)
        return self._take(Held(found.lease, found))

    @rule(target=unit_holders, unit=st.integers(0, UNITS - 1))
    def lease_a_unit(self, unit: int) -> Held:
        found = self.store.fleet.lease_unit(self.uuids[unit], f"owner{len(self.held)}", seconds=LONG)
        free = all(h.reaped for h in self.held if h.lease.subject == self.uuids[unit])
        assert (found is not None) == free
        if found is None:
            return Held(Lease("unit", "none", 0, "nobody", 0.0), alive=False, reaped=True)
        return self._take(Held(found))

    @rule(held=st.one_of(holders, unit_holders))
    def renew(self, held: Held) -> None:
        try:
            self.store.fleet.renew([held.lease], seconds=LONG)
            assert held.alive
        except LeaseLost:
            assert not held.alive

    @rule(held=st.one_of(holders, unit_holders))
    def stop_until_the_lease_ran_out(self, held: Held) -> None:
        if held.alive:
            run_out(self.store, held.lease)
            held.alive = False

    @rule(held=holders)
    def record_a_trial(self, held: Held) -> None:
        if held.claim is None:
            return
        job, task = held.claim.job_id, held.claim.task
        following = len(self.checker.acknowledged.get((job, task), []))
        try:
            answer = self.store.add_trial(trial(job, task, following), lease=held.lease)
        except LeaseLost:
            assert not held.alive
        else:
            self.checker.recorded(job, task, answer.record_id, by=held)

    @rule(held=holders)
    def record_a_trial_again(self, held: Held) -> None:
        """The answer to the last trial did not arrive, and the holder sends it again."""
        if held.claim is None or not self.checker.acknowledged.get((held.claim.job_id, held.claim.task)):
            return
        job, task = held.claim.job_id, held.claim.task
        last = len(self.checker.acknowledged[job, task]) - 1
        with pytest.raises(Conflict if held.alive else LeaseLost):
            self.store.add_trial(trial(job, task, last), lease=held.lease)

    @rule(held=consumes(holders), reason=st.sampled_from(["trials", "cancelled", "error"]))
    def finish(self, held: Held, reason: str) -> None:
        try:
            self.store.fleet.finish_task(held.lease, reason, {})
            assert held.alive
            self._end(held)
        except LeaseLost:
            assert not held.alive

    @rule(held=consumes(holders), how=st.sampled_from([AttemptEnd.YIELDED, AttemptEnd.ACTOR_LOST]))
    def give_back(self, held: Held, how: AttemptEnd) -> None:
        try:
            self.store.fleet.end_attempt(held.lease, how)
            assert held.alive
            self._end(held)
        except LeaseLost:
            assert not held.alive

    @rule(held=unit_holders)
    def release(self, held: Held) -> None:
        self.store.fleet.release([held.lease])
        self._end(held)

    @rule()
    def reap(self) -> None:
        ran_out = [held for held in self.held if not held.alive and not held.reaped]
        assert self.store.fleet.reap() == len(ran_out)
        for held in ran_out:
            held.reaped = True

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        try:
            self.store.fleet.cancel_job(name)
        except Conflict:
            assert self.store.job(name).state in ("succeeded", "failed")

    @rule(name=st.sampled_from(NAMES))
    def fence(self, name: str) -> None:
        try:
            self.store.fleet.fence_job(name)
        except Conflict:
            assert self.store.job(name).state in ("succeeded", "failed")
        else:
            for held in self.held:
                if held.claim is not None and held.claim.job_id == name:
                    self._end(held)

    @invariant()
    def all_is_well(self) -> None:
        self.checker.check()


def run(store: RecordStore, *, examples: int, phases: tuple[Phase, ...] = (Phase.generate, Phase.shrink)) -> None:
    class OnThis(Fleet):
        pass

    OnThis.store = store
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(OnThis, settings=chosen)


def test_leases_hold_whatever_happens(fleet_store: RecordStore) -> None:
    run(fleet_store, examples=15)


def test_the_checker_finds_a_guard_that_is_missing(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with migrated(f"sqlite:///{tmp_path}/tilewright.sqlite3") as store:
        monkeypatch.setattr(lease_rows, "guard", lambda connection, lease: None)
        with pytest.raises((AssertionError, NotFound)):  # a claim of nothing names no job
            run(store, examples=100, phases=(Phase.generate,))


@pytest.mark.parametrize("fault", ["a trial twice", "a trial lost", "an old fence", "a lease without a task"])
def test_the_checker_finds_what_it_is_for(tmp_path: object, fault: str) -> None:
    with migrated(f"sqlite:///{tmp_path}/tilewright.sqlite3") as store:
        checker = Checker(store)
        submit(store, "j")
        held = claim(store)
        assert held is not None
        checker.leased(held.lease)
        for sequence in range(2):
            answer = store.add_trial(trial("j", 0, sequence), lease=held.lease)
            checker.recorded("j", 0, answer.record_id, by=Held(held.lease, held))
        checker.check()
        statement = {
            "a trial twice": "INSERT INTO trials SELECT NULL, job, task, sequence + 1, workload, sketch,"
            " sketch_version, device, toolchain, profile, schedule_key, knobs, seconds, samples, launches_per_sample,"
            " failed_stage,"
            " failed_reason, failed_detail, evidence, search_seconds, compile_seconds, check_seconds, time_seconds,"
            " overhead_seconds, elapsed_seconds, created_at, final_samples, rank_seconds, unit, host, adopted_from,"
            " predicted_score, learned_from"
            " FROM trials WHERE sequence = 1",
            "a trial lost": "DELETE FROM trials WHERE sequence = 1",
            "an old fence": "UPDATE leases SET fence = fence - 1",
            "a lease without a task": "UPDATE tasks SET state = 'ready'",
        }[fault]
        with store.database.writing() as connection:
            connection.exec_driver_sql(statement)
        with pytest.raises(AssertionError):
            checker.check()
