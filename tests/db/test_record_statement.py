"""The statement that records a trial on PostgreSQL does what the general way does, and gives way where it cannot."""

from dataclasses import astuple, replace

import pytest
from sqlalchemy import select, text

from tilewright.core.errors import Conflict
from tilewright.core.fleet import LeaseLost, Wanted
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db.best import fill_best
from tilewright.db.rows import NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.tables import best_records, events, jobs, tasks, tenants, trials
from tilewright.tests.db.fleets import ON_GPU, claimed, gpus, run_out, submit, trial
from tilewright.tests.db.postgres import PostgresServer

OTHER = MeasuredOn(replace(ON_GPU.device, name="Another GPU"), ON_GPU.toolchain, ON_GPU.profile)
OUTCOMES = (
    (Timed((3e-6, 2e-6, 4e-6), 7), ON_GPU),
    (Timed((2e-6,)), ON_GPU),
    (Failed(TrialStage.CHECK, Reason.WRONG_RESULT, "e\x00rror 'quoted' \" % {"), ON_GPU),
    (Failed(TrialStage.CHECK, Reason.WRONG_RESULT), ON_GPU),
    (Failed(TrialStage.COMPILE, Reason.TIMEOUT), ON_GPU),
    (Timed((2e-6,)), ON_GPU),
    (Timed((5e-6,)), OTHER),
    (Timed((4e-6,)), OTHER),
    (Timed((1e-7,)), ON_GPU),
)


def new_trial(job: str, task: int, sequence: int) -> NewTrial:
    outcome, on = OUTCOMES[sequence]
    made = trial(job, task, sequence)
    evidence = Evidence(5, 0.1, float("inf"), environment={"load": 0.5, "odd": float("nan")})
    whole = Trial(made.trial.schedule, outcome, Clocks(0.125, 0.25, 0.5, 1.0, 2.0), evidence)
    return replace(made, trial=whole, measured_on=on, created_at=f"2026-01-01T00:00:0{sequence}Z", unit="u", host="h")


def test_the_statement_and_the_general_way_write_the_same(shared_store: RecordStore) -> None:
    """Two equal tasks, one in each way: all that is written is the same, but for ids, and times of day."""
    statement = shared_store._statement
    assert statement is not None
    for number, job in enumerate(("fast", "slow")):
        submit(shared_store, job, 2, tenant=job)
        held = [claimed(shared_store), claimed(shared_store)]
        in_statement, before = 0, charged(shared_store, job)
        for sequence in range(len(OUTCOMES)):
            new = new_trial(job, held[1].task, sequence)
            if number == 0:
                recorded = statement.record(new, held[1].lease)
                in_statement += recorded is not None
            if number == 1 or recorded is None:
                shared_store._statement = None
                recorded = shared_store.add_trial(new, lease=held[1].lease)
                shared_store._statement = statement
            assert recorded is not None and (recorded.state, recorded.wanted) == ("running", Wanted.GO)
        assert charged(shared_store, job) - before == 3.875 * len(OUTCOMES)
        # a device's first trial goes the general way, which adds the device
        assert number == 1 or in_statement == len(OUTCOMES) - 2
        if number == 0:
            kept = answers(shared_store)
            with shared_store.database.writing() as connection:
                fill_best(connection)
            assert answers(shared_store) == kept
    assert written(shared_store, "fast") == written(shared_store, "slow")


def answers(store: RecordStore) -> set[str]:
    with store.database.reading() as connection:
        return set(connection.execute(select(best_records.c.answer)).scalars())


def written(store: RecordStore, job: str) -> list[object]:
    with store.database.reading() as connection:
        number = connection.execute(select(jobs.c.number).where(jobs.c.id == job)).scalar_one()
        rows = connection.execute(select(trials).where(trials.c.job == number).order_by(trials.c.id)).mappings().all()
        place = {row["id"]: row["sequence"] for row in rows}
        found: list[object] = [{name: row[name] for name in row if name not in ("id", "job")} for row in rows]
        task = connection.execute(select(tasks).where(tasks.c.job == number, tasks.c.position == 1)).mappings().one()
        counters = ("trials", "failures", "best_seconds", "device_seconds", "losses", "state")
        found += [task[name] for name in counters] + [place[task["best_trial"]]]
        for kind, data in connection.execute(
            select(events.c.kind, events.c.data).where(events.c.job == number).order_by(events.c.id)
        ):
            named = {**data, "record_id": place[data["record_id"]]} if "record_id" in data else data
            found.append((kind, named))
        found.append(connection.execute(select(jobs.c.version).where(jobs.c.number == number)).scalar_one())
        return found


def charged(store: RecordStore, tenant: str) -> float:
    with store.database.reading() as connection:
        spent = select(tenants.c.virtual_seconds).where(tenants.c.name == tenant)
        return float(connection.execute(spent).scalar_one())


def test_nothing_is_written_without_the_lease_or_out_of_order(shared_store: RecordStore) -> None:
    submit(shared_store, "j", 2)
    unit = gpus(shared_store, 1)[0]
    held, other = claimed(shared_store, unit=unit), claimed(shared_store)
    for sequence in range(2):
        shared_store.add_trial(trial("j", held.task, sequence), lease=held.lease)
    statement = shared_store._statement
    assert statement is not None

    def state() -> tuple[object, ...]:
        counted = "SELECT count(*), max(id) FROM"
        with shared_store.database.reading() as connection:
            return tuple(
                connection.execute(text(query)).all()
                for query in (f"{counted} trials", f"{counted} events", "SELECT virtual_seconds FROM tenants")
            )

    before, job = state(), shared_store.job("j")
    for sequence in (1, 3):
        with pytest.raises(Conflict):
            shared_store.add_trial(trial("j", held.task, sequence), lease=held.lease)
    with pytest.raises(LeaseLost):
        shared_store.add_trial(trial("j", held.task, 2), lease=other.lease)
    stale = replace(held.lease, fence=held.lease.fence + 1)
    new_device = replace(
        trial("j", held.task, 2), measured_on=replace(ON_GPU, device=DeviceInfo("N", OTHER.device.target))
    )
    assert statement.record(trial("j", held.task, 2), stale) is None
    assert statement.record(new_device, held.lease) is None
    run_out(shared_store, held.lease)
    with pytest.raises(LeaseLost):
        shared_store.add_trial(trial("j", held.task, 2), lease=held.lease)
    assert state() == before and shared_store.job("j") == job


def test_the_statement_says_what_is_wanted_of_the_holder(shared_store: RecordStore) -> None:
    submit(shared_store, "j", 1)
    held = claimed(shared_store)
    wanted = [shared_store.add_trial(trial("j", 0, 0), lease=held.lease).wanted]
    shared_store.fleet.pause_job("j")
    wanted.append(shared_store.add_trial(trial("j", 0, 1), lease=held.lease).wanted)
    shared_store.fleet.resume_job("j")
    wanted.append(shared_store.add_trial(trial("j", 0, 2), lease=held.lease).wanted)
    shared_store.fleet.cancel_job("j")
    wanted.append(shared_store.add_trial(trial("j", 0, 3), lease=held.lease).wanted)
    assert wanted == [Wanted.GO, Wanted.YIELD, Wanted.GO, Wanted.STOP]


def test_who_finds_the_tenant_locked_records_and_charges_it_later(shared_store: RecordStore) -> None:
    for job in ("j", "k"):
        submit(shared_store, job)
    held = [claimed(shared_store, job) for job in ("j", "k")]
    spent = sum(astuple(trial("j", 0, 0).trial.clocks))
    for one in held:
        shared_store.add_trial(trial(one.job_id, 0, 0), lease=one.lease)
    before = charged(shared_store, "default")

    def record_beside_a_lock(sequence: int) -> None:
        with shared_store.database.writing() as connection:
            connection.execute(select(tenants).with_for_update())
            shared_store.add_trial(trial("j", 0, sequence), lease=held[0].lease)

    for sequence in (1, 2):
        record_beside_a_lock(sequence)
    assert charged(shared_store, "default") == before
    shared_store.add_trial(trial("j", 0, 3), lease=held[0].lease)
    assert charged(shared_store, "default") == pytest.approx(before + 3 * spent)
    record_beside_a_lock(4)
    shared_store.add_trial(trial("k", 0, 1), lease=held[1].lease)  # of another job
    assert charged(shared_store, "default") == pytest.approx(before + 5 * spent)
    record_beside_a_lock(5)
    assert shared_store._statement is not None
    shared_store._statement.close()
    assert charged(shared_store, "default") == pytest.approx(before + 6 * spent)


def test_a_connection_that_the_server_ended_is_replaced(postgres: PostgresServer, shared_store: RecordStore) -> None:
    submit(shared_store, "j", 1)
    held = claimed(shared_store)
    for sequence in range(2):
        shared_store.add_trial(trial("j", 0, sequence), lease=held.lease)
    with shared_store.database.writing() as connection:
        ended = "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        ended += " AND datname = current_database()"
        assert connection.execute(text(ended)).scalar_one() >= 1
    assert shared_store.add_trial(trial("j", 0, 2), lease=held.lease).wanted is Wanted.GO
    assert shared_store.job("j").tasks[0].trials == 3
