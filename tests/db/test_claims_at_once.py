"""Many threads and processes use one PostgreSQL at once: no task has two holders, and nobody waits for ever."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import update

from tilewright.core.errors import Conflict
from tilewright.core.fleet import AttemptEnd, LeaseLost
from tilewright.core.streams import stream
from tilewright.db.engine import IDLE_IN_TRANSACTION_SECONDS
from tilewright.db.leases import guard
from tilewright.db.store import RecordStore
from tilewright.db.tables import leases
from tilewright.tests.db.fleets import LONG, claim, claimed, gpus, job_events, measure, migrated, run_out, submit, trial
from tilewright.tests.db.postgres import server

pytestmark = pytest.mark.postgres
SEED = 5


def at_once(count: int, work: Callable[[int], None]) -> list[Exception]:
    """Run ``work`` in so many threads, which begin together; return what they raised."""
    barrier, faults = threading.Barrier(count), list[Exception]()

    def guarded(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


def test_claims_at_the_same_moment_get_different_tasks(shared_store: RecordStore) -> None:
    for name in ("a", "b"):
        submit(shared_store, name, 20, tenant=name)
    taken: list[tuple[str, int]] = []

    def work(number: int) -> None:
        while (found := claim(shared_store, f"o{number}", targets=("cuda", "cuda:sm_90a"))) is not None:
            taken.append((found.job_id, found.task))

    assert at_once(8, work) == []
    while (found := claim(shared_store)) is not None:  # a claimer passes over what another looks at in that moment
        taken.append((found.job_id, found.task))
    assert sorted(taken) == [(name, task) for name in ("a", "b") for task in range(20)]


PROGRAM = """
import sys
from tilewright.db.store import RecordStore
with RecordStore(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    while (found := store.fleet.claim_task(["cuda"], "local", sys.argv[2], units=[], seconds=600.0)) is not None:
        print(found.task, found.lease.fence, flush=True)
"""


def test_claims_of_several_processes_get_different_tasks(shared_store: RecordStore) -> None:
    submit(shared_store, "j", 30)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    address = shared_store.database.url.render_as_string(hide_password=False)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, f"o{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i in range(3)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [line.split() for child in children for line in child.communicate()[0].splitlines()]
    left = [] if (found := claim(shared_store)) is None else [found.task]
    assert sorted([int(task) for task, _ in answers] + left) == list(range(30))
    assert {fence for _, fence in answers} == {"1"}


def test_a_unit_has_one_holder_whoever_asks_at_once(shared_store: RecordStore) -> None:
    uuids = gpus(shared_store, 3)
    held: list[str] = []

    def work(number: int) -> None:
        for uuid in uuids[number % 3 :] + uuids[: number % 3]:
            lease = shared_store.fleet.lease_unit(uuid, f"o{number}", seconds=LONG)
            if lease is not None:
                held.append(uuid)

    assert at_once(6, work) == []
    assert sorted(held) == sorted(uuids)


def test_equal_tasks_submitted_at_the_same_moment_share_one_search(shared_store: RecordStore) -> None:
    assert at_once(8, lambda number: submit(shared_store, f"j{number}", 2, flight="f")) == []
    states = Counter(task.state.value for job in shared_store.jobs(limit=9) for task in job.tasks)
    assert states == {"ready": 2, "blocked": 14}


def test_whatever_is_done_at_once_nobody_waits_for_ever(shared_store: RecordStore) -> None:
    """Holders, reapers and people work on the same few jobs. A deadlock would be a StoreError."""
    names = [f"j{i}" for i in range(4)]
    for name in names:
        submit(shared_store, name, 9, flight="f" if name != "j0" else None, trials=50)
    uuids = gpus(shared_store, 3)
    recorded: list[int] = []

    def hold(draws: Sequence[int], number: int) -> None:
        fleet = shared_store.fleet
        fleet.lease_unit(uuids[number % 3], f"o{number}", seconds=LONG)
        found = claim(shared_store, f"o{number}", unit=uuids[number % 3])
        if found is None:
            return
        shared_store.begin_task(found.job_id, found.task, lease=found.lease)
        for _ in range(draws[0] % 4):
            following = shared_store.job(found.job_id).tasks[found.task].trials
            new = trial(found.job_id, found.task, following)
            recorded.append(shared_store.add_trial(new, lease=found.lease).record_id)
            fleet.renew([found.lease], seconds=LONG)
        if draws[1] % 3 == 0:
            run_out(shared_store, found.lease)
        elif draws[1] % 3 == 1:
            fleet.end_attempt(found.lease, AttemptEnd.YIELDED)
        else:
            fleet.finish_task(found.lease, "trials", {})

    def people(draws: Sequence[int]) -> None:
        fleet, name = shared_store.fleet, names[draws[0] % 4]
        change = draws[1] % 8
        if change == 0 and name != "j0":
            (fleet.cancel_job if draws[2] % 2 else fleet.fence_job)(name)
        elif change in (1, 2):
            fleet.pause_job(name)
        elif change in (3, 4):
            fleet.resume_job(name)
        elif change == 5:
            fleet.set_priority(name, draws[2] % 5)
        else:
            fleet.reap()

    def work(number: int) -> None:
        stream_of = stream(SEED, "claims at once", number)
        for _ in range(25):
            draws = [int(draw) for draw in stream_of.integers(0, 1 << 20, size=3)]
            try:
                hold(draws, number) if number < 4 else people(draws)
            except (LeaseLost, Conflict):
                pass  # another one was faster

    assert [repr(fault) for fault in at_once(6, work)] == []
    kept = [row.record.id for name in names for task in range(9) for row in shared_store.trials(name, task, limit=999)]
    assert len(recorded) > 20 and set(recorded) <= set(kept)
    for name in names:
        ids = [event.id for event in shared_store.events(name, after=0, limit=9999)]
        assert ids == sorted(ids)


def test_tasks_of_one_job_record_at_once_and_events_stay_in_order(shared_store: RecordStore) -> None:
    """Whoever follows events by their ids misses none: a greater id is never seen before a lesser one."""
    submit(shared_store, "j", 4)
    held = [claimed(shared_store, f"o{i}") for i in range(4)]
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while True:
            last = done.is_set()
            seen.extend(event.id for event in shared_store.events("j", after=seen[-1] if seen else 0, limit=999))
            if last:
                return

    follower = threading.Thread(target=follow)
    follower.start()

    def record(number: int) -> None:
        measure(shared_store, held[number], 15)

    assert at_once(4, record) == []
    done.set()
    follower.join()
    assert seen == [event.id for event in shared_store.events("j", after=0, limit=999)]
    assert len(job_events(shared_store, "j", "trial")) == 60


def test_a_holder_in_the_middle_of_a_write_keeps_its_lease_until_the_end_of_it(shared_store: RecordStore) -> None:
    submit(shared_store, "j")
    held = claimed(shared_store)
    with shared_store.database.writing() as connection:
        guard(connection, held.lease)
        connection.execute(update(leases).values(until=0.0))
        assert shared_store.fleet.reap() == 0  # nor does this wait
    assert shared_store.fleet.reap() == 1


def test_a_restart_of_the_database_is_no_loss_of_a_task() -> None:
    with server() as running, migrated(running.url()) as store:
        submit(store, "j", 2)
        lost, kept = claimed(store), claimed(store)
        run_out(store, lost.lease)
        running.stop()
        running.start()
        assert store.fleet.reap() == 1
        (attempt,) = store.fleet.attempts("j", 0)
        assert (attempt.how, store.job("j").tasks[0].losses) == (AttemptEnd.DATABASE_LOST, 0)
        assert measure(store, kept).record_id == 1  # whose lease did not run out goes on
        again = claimed(store)
        run_out(store, again.lease)
        store.fleet.reap()
        assert [one.how for one in store.fleet.attempts("j", 0)][1:] == [AttemptEnd.LEASE_LOST]


def test_a_process_that_stops_inside_a_transaction_gives_its_locks_back(shared_store: RecordStore) -> None:
    with shared_store.database.reading() as connection:
        shown = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
    assert shown == f"{IDLE_IN_TRANSACTION_SECONDS}s"
