"""What a loss of the executor means to the task and to the unit, and what keeps leases while it opens."""

import hashlib
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tilewright.core.fleet import MOST_LOSSES, AttemptEnd, TaskClaim, TaskState, UnitState
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Trial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.service.lease_keeper import LeaseKeeper, _Moment
from tilewright.service.settings import Settings
from tilewright.service.task_store import ServerPipe, TaskStore, serve_worker
from tilewright.service.task_worker import WorkerSetup
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload
from tilewright.tests.db.fleets import LONG, migrated, run_out, submit
from tilewright.tests.db.postgres import server
from tilewright.tests.service.simulated import SimulatedExecutor, SimulatedTaskWorker, simulated_unit
from tilewright.workers.joint_executor import UnitExecutor
from tilewright.workers.losses import ActorLost

Ends = Counter[AttemptEnd | None]
"""How attempts ended, and how often so."""


class LosingWorker(SimulatedTaskWorker):
    """A task worker that loses its executor with the first candidate, and is to stop then."""

    def _executor_for(self, claim: TaskClaim) -> UnitExecutor:
        self._executor = LosingExecutor(self._setup.unit, claim.cache, 0.0)
        return self._executor

    def _close_executor(self) -> None:
        super()._close_executor()
        self.stopping.set()


class LosingExecutor(SimulatedExecutor):
    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        raise ActorLost("planted")


def test_a_loss_counts_against_the_task_before_its_unit_is_suspect(tmp_path: Path) -> None:
    """While a unit is suspect no loss counts, so that a task that kills whatever searches it would never be dead."""
    url, unit = f"sqlite:///{tmp_path}/db.sqlite3", simulated_unit(0)
    workload = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
    with migrated(url) as store:
        submit(store, "j", tasks=(task_of(workload),), target="llvm")
        store.fleet.register_units([unit], seen_seconds=LONG)
        told, pipe = multiprocessing.Pipe()
        threading.Thread(target=serve_worker, args=(told, store, lambda _: None, lambda: None), daemon=True).start()
        setup = WorkerSetup(Settings(database_url=url), unit, False, unit.classes, ("local",), None)
        LosingWorker(setup, TaskStore.of(store), ServerPipe(pipe)).run()
        (attempt,), (row,) = store.fleet.attempts("j", 0), store.fleet.units()
        assert (attempt.how, attempt.detail) == (AttemptEnd.ACTOR_LOST, "planted")
        assert (row.state, row.reason) == (UnitState.SUSPECT, "actor_lost")
        task = store.job("j").tasks[0]
        assert (task.state, task.losses) == (TaskState.READY, 1)


def test_leases_are_kept_while_an_executor_opens(tmp_path: Path) -> None:
    """To connect to a cluster may take longer than a lease lasts."""
    unit = simulated_unit(0)
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as store:
        store.fleet.register_units([unit], seen_seconds=LONG)
        asked, seconds = time.monotonic(), 3.0
        lease = store.fleet.lease_unit(unit.uuid, "o", seconds=seconds)
        assert lease is not None
        keeper = LeaseKeeper(store.fleet, seconds=seconds, yielding=lambda: False, alive=lambda: None)
        keeper.hold(lease, asked)
        end = time.monotonic() + 120.0
        with keeper.kept():
            while store.fleet.units()[0].held_until == lease.until:
                assert time.monotonic() < end
                time.sleep(0.02)


@pytest.mark.parametrize("patience", [1, 8])
def test_who_holds_a_task_that_was_lost_before_has_longer_with_its_unit_too(tmp_path: Path, patience: int) -> None:
    unit = simulated_unit(0)
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as store:
        fleet = store.fleet
        submit(store, "j", target="llvm")
        fleet.register_units([unit], seen_seconds=LONG)
        asked = time.monotonic()
        held = fleet.lease_unit(unit.uuid, "o", seconds=LONG)
        claim = fleet.claim_task(("llvm",), "local", "o", units=[unit.uuid], seconds=LONG)
        assert held is not None and claim is not None
        keeper = LeaseKeeper(fleet, seconds=LONG, yielding=lambda: False, alive=lambda: None)
        keeper.hold(held, asked)
        keeper.add(claim.lease, patience)
        keeper.beat()
        until = fleet.units()[0].held_until
        assert until is not None and 0.5 < (until - fleet.now()) / (patience * LONG) <= 1.0
        assert 0.5 < (keeper.guard() - time.monotonic()) / (patience * LONG) <= 1.0


def test_a_holder_is_to_blame_that_had_a_processor_for_most_of_the_time_and_not_one_that_waited_for_it(
    tmp_path: Path,
) -> None:
    with migrated(f"sqlite:///{tmp_path}/db.sqlite3") as store:
        keeper = LeaseKeeper(store.fleet, seconds=3.0, yielding=lambda: False, alive=lambda: None)
        now = _Moment.now()
        for clock, processor, blamed in ((1e3, 1e3, True), (1e3, 600.0, True), (1e3, 400.0, False), (1e3, 0.0, False)):
            keeper._beaten = _Moment(now.clock - clock, now.processor - processor)
            assert (keeper.delay is None) is blamed


def test_what_other_threads_used_of_processors_counts() -> None:
    before = _Moment.now()
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 100_000))
    own = time.thread_time()
    thread.start()
    thread.join()
    assert _Moment.now().since(before).processor > 2 * (time.thread_time() - own)


class LateWorker(SimulatedTaskWorker):
    """A task worker that is late in the first of its attempts, so many: it does ``late``, and its leases run out, as if
    time had passed. It is to stop once there is nothing to do."""

    def __init__(
        self, setup: WorkerSetup, store: RecordStore, pipe: ServerPipe, late: Callable[[LeaseKeeper], object]
    ) -> None:
        super().__init__(setup, TaskStore.of(store), pipe)
        self._records, self._late, self._left = store, late, 2 * MOST_LOSSES
        self.trial_seconds = 0.0

    def _claimed(self) -> TaskClaim | None:
        if not self._records.fleet.has_ready(self._setup.targets, self._setup.executors):
            self.stopping.set()
        return super()._claimed()

    def _executor_for(self, claim: TaskClaim) -> UnitExecutor:
        self._left -= 1
        if self._left >= 0:
            self._late(self._keeper)
            run_out(self._records, claim.lease)
            self._records.fleet.reap()
            self._keeper.renew()
        return super()._executor_for(claim)


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with server() as running:
        yield running.url()


def worked(keeper: LeaseKeeper) -> None:
    """Make it look as if the worker had used a processor for the whole of a lease since its last heartbeat."""
    now = _Moment.now()
    keeper._beaten = _Moment(now.clock - LONG, now.processor - LONG)


def ends_of_a_task(store: RecordStore, job: str, url: str, late: Callable[[LeaseKeeper], object]) -> Ends:
    unit, workload = simulated_unit(0), OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
    submit(store, job, tasks=(task_of(workload),), target="llvm")
    store.fleet.register_units([unit], seen_seconds=LONG)
    told, pipe = multiprocessing.Pipe()
    threading.Thread(target=serve_worker, args=(told, store, lambda _: None, lambda: None), daemon=True).start()
    settings = Settings(database_url=url, lease_seconds=LONG)
    setup = WorkerSetup(settings, unit, False, unit.classes, ("local",), None)
    LateWorker(setup, store, ServerPipe(pipe), late).run()
    return Counter(attempt.how for attempt in store.fleet.attempts(job, 0))


@pytest.mark.postgres
def test_a_task_is_dead_after_attempts_that_kept_their_worker_busy_and_not_after_others(postgres_url: str) -> None:
    """A worker is late again and again: because something holds it up, and because of what it does for its task."""
    with migrated(postgres_url) as store:
        ends = ends_of_a_task(store, "held-up", postgres_url, lambda _: None)
        assert ends == {AttemptEnd.HOLDER_DELAYED: 2 * MOST_LOSSES, AttemptEnd.DONE: 1}
        assert store.job("held-up").state == "succeeded"
        ends = ends_of_a_task(store, "busy", postgres_url, worked)
        assert ends[AttemptEnd.LEASE_LOST] == MOST_LOSSES
        assert store.job("busy").tasks[0].state is TaskState.DEAD and store.job("busy").state == "failed"
