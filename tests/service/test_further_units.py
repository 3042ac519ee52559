"""A task that may have several units: they come while nobody else waits for them, and go without any loss."""

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.core.fleet import TaskClaim, UnitState
from tilewright.core.policy import SpacePolicy
from tilewright.core.trial import Trial
from tilewright.db.leases import UNIT
from tilewright.db.store import RecordStore
from tilewright.db.tables import leases
from tilewright.db.task import task_of
from tilewright.service.settings import Settings
from tilewright.service.task_store import ServerPipe, TaskStore, serve_worker
from tilewright.service.task_worker import WorkerSetup
from tilewright.te.operators import OPERATORS
from tilewright.tests.db.fleets import LONG, migrated, submit
from tilewright.tests.service.simulated import SimulatedTaskWorker, simulated_unit

UNITS = (simulated_unit(0), simulated_unit(1))
FIRST, SECOND = (unit.uuid for unit in UNITS)
TRIALS = 240
WIDE = SpacePolicy(prune=False)
"""The space is to have more candidates than the tests measure."""
TASK = task_of(OPERATORS["matmul"].workload({"m": 64, "n": 64, "k": 64}))


class OneTask(SimulatedTaskWorker):
    """A task worker that stops after its first task."""

    def _search(self, claim: TaskClaim) -> None:
        super()._search(claim)
        self.stopping.set()


def worker(store: RecordStore, number: int, noted: Callable[[Trial | None], None]) -> OneTask:
    """A worker of a simulated unit, which tells ``noted`` of each trial."""
    settings = Settings(database_url="sqlite:///unused.sqlite3", lease_seconds=LONG)
    setup = WorkerSetup(settings, UNITS[number], False, UNITS[number].classes, ("local",), None)
    told, pipe = multiprocessing.Pipe()
    threading.Thread(target=serve_worker, args=(told, store, noted, lambda: None), daemon=True).start()
    made = OneTask(setup, TaskStore.of(store), ServerPipe(pipe))
    made.trial_seconds = 0.015
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as opened:
        opened.fleet.register_units(UNITS, seen_seconds=LONG)
        yield opened


def judge(store: RecordStore, job: str, trials: int) -> list[str]:
    """Return the units of its trials, which are all there."""
    assert store.job(job).state == "succeeded"
    rows = store.trials(job, 0, limit=1000)
    assert [row.record.sequence for row in rows] == list(range(trials))
    assert len({row.record.trial.schedule for row in rows}) == trials
    assert all(row.host == row.unit.lower() for row in rows if row.unit is not None)
    return [str(row.unit) for row in rows]


def drain(store: RecordStore) -> None:
    store.fleet.set_unit_state(SECOND, UnitState.DRAINING, "for a test")


def lose_lease(store: RecordStore) -> None:
    with store.database.writing() as connection:
        connection.execute(leases.delete().where(leases.c.kind == UNIT, leases.c.subject == SECOND))
        # nobody else is to take it, nor this task again
    drain(store)


@pytest.mark.parametrize("take_away", [None, drain, lose_lease])
def test_a_task_uses_two_units_and_loses_nothing_with_one_of_them(
    store: RecordStore, take_away: Callable[[RecordStore], None] | None
) -> None:
    submit(store, "j", tasks=(TASK,), target="llvm", trials=TRIALS, units=2, policy=WIDE)
    taken: Counter[str | None] = Counter()

    def noted(trial: Trial | None) -> None:
        if trial is not None:
            taken[trial.unit] += 1
            if take_away is not None and taken[SECOND] == 5:
                take_away(store)

    worker(store, 0, noted).run()
    units = judge(store, "j", TRIALS)
    assert Counter(units) == taken and taken[FIRST] > 20
    if take_away is None:
        assert taken[SECOND] > 20
    else:
        assert taken[SECOND] >= 5 and units[-1] == FIRST
    (attempt,) = store.fleet.attempts("j", 0)
    assert attempt.units == (FIRST,)
    assert all(row.owner is None for row in store.fleet.units())


def test_another_tenant_gets_a_unit_of_a_task_that_has_two(store: RecordStore) -> None:
    submit(store, "j", tasks=(TASK,), target="llvm", trials=TRIALS, units=2, policy=WIDE)
    taken: Counter[str | None] = Counter()
    other = worker(store, 1, lambda trial: None)
    thread = threading.Thread(target=other.run)

    def noted(trial: Trial | None) -> None:
        if trial is not None:
            taken[trial.unit] += 1
            if taken[SECOND] == 5:
                taken[SECOND] += 1
                submit(store, "k", tasks=(replace(TASK),), target="llvm", trials=5, tenant="other", fresh=True)
                thread.start()

    worker(store, 0, noted).run()
    thread.join()
    assert set(judge(store, "k", 5)) == {SECOND}
    assert judge(store, "j", TRIALS).count(SECOND) < 120
    ended = {job: store.job(job).finished_at or "" for job in ("j", "k")}
    assert ended["k"] < ended["j"]


def test_a_unit_is_not_taken_that_another_task_waits_for_or_a_quota_forbids(store: RecordStore) -> None:
    fleet = store.fleet
    submit(store, "j", tasks=(TASK,), target="llvm", trials=100, units=2)
    claim = fleet.claim_task(("llvm",), "local", "o", units=[FIRST], seconds=LONG)
    assert claim is not None and claim.units == 2

    def join() -> bool:
        unit = fleet.join_unit(claim.lease, SECOND, targets=("llvm",), executors=("local",), seconds=LONG)
        if unit is not None:
            assert fleet.attempts("j", 0)[0].units == (FIRST, SECOND)
            fleet.leave_unit(claim.lease, unit)
        return unit is not None

    assert join()
    submit(store, "k", tasks=(TASK,), target="llvm", tenant="other")
    assert not join()
    fleet.cancel_job("k")
    fleet.set_tenant("default", weight=1.0, most_units=1, most_queued=None)
    assert not join()
    assert fleet.units()[1].owner is None


@pytest.mark.parametrize(("trials", "asked", "given"), [(47, 2, 1), (48, 2, 2), (100, 8, 4), (1000, 8, 8)])
def test_a_task_has_no_more_units_than_its_trials_allow(
    store: RecordStore, trials: int, asked: int, given: int
) -> None:
    submit(store, "j", tasks=(TASK,), target="llvm", trials=trials, units=asked)
    claim = store.fleet.claim_task(("llvm",), "local", "o", units=[FIRST], seconds=LONG)
    assert claim is not None and claim.units == given
