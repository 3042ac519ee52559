"""A task worker: ``python -m tilewright.service.task_worker SOCKET PARENT``, a child of the service.

It leases one unit, and searches one task after another on it while there are tasks that the unit serves. The server
gives it its set-up through the pipe, stops it by SIGTERM, and replaces it when it dies: its leases run out then.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import structlog

from ..core.errors import StoreError, TilewrightError, WorkerLost
from ..core.fleet import OWNER_BYTES, AttemptEnd, Lease, LeaseLost, TaskClaim, Unit, UnitState, Wanted
from ..core.trial import Trial
from ..db.store import RecordStore
from ..workers.losses import MachineLost
from ..workers.main import die_with
from . import logs, wiring
from .lease_keeper import LOOK_SECONDS, LeaseKeeper, TaskStopped
from .settings import Settings
from .task_runner import PreparedTask, TaskPreparer, TaskRunner
from .task_store import ServerPipe, TaskStore

IDLE_SECONDS = 20.0
"""A worker that finds no task for so long gives its unit back, and ends."""
POLL_SECONDS = 0.25
"""How often a worker without a task looks for one."""
LEASE_TRIES = 10
"""How often a worker asks for its unit, which another one may just be giving back, before it ends."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What the server gives a worker. ``embedded``: whether the database is called through the server. ``targets`` are
    the names of targets that the unit serves, ``executors`` those of the executors that reach it."""

    settings: Settings
    unit: Unit
    embedded: bool
    targets: tuple[str, ...]
    executors: tuple[str, ...]


class TaskWorker:
    """Everything but ``stopping`` is for one thread."""

    def __init__(self, setup: WorkerSetup, store: TaskStore, note: Callable[[Trial | None], None]) -> None:
        self.stopping = threading.Event()
        self._setup = setup
        self._store = store
        self._note = note
        self._owner = secrets.token_hex(OWNER_BYTES)
        self._executor: wiring.JobExecutor | None = None
        self._options: tuple[str, str] | None = None
        self._next: TaskClaim | None = None

    def run(self) -> None:
        """Lease the unit and search tasks until there are none for a while, or until the worker is stopped. Raises
        StoreError where the database stays away."""
        lease = self._lease_unit()
        if lease is None:
            return
        setup = self._setup
        seconds = setup.settings.lease_seconds
        self._keeper = LeaseKeeper(self._store.fleet, lease, seconds=seconds, yielding=self.stopping.is_set)
        self._fence = lease.fence
        self._runner = TaskRunner(
            setup.settings,
            self._store,
            setup.unit,
            self._keeper,
            self._executor_for,
            lambda: self._note(None),
            self._note,
        )
        try:
            with TaskPreparer() as self._preparer:
                while (claim := self._claimed()) is not None:
                    self._search(claim)
        except LeaseLost as lost:
            log.warning("the unit's lease is lost", unit=setup.unit.uuid, why=lost.message)
        finally:
            self._close_executor()
            with suppress(StoreError):
                self._store.fleet.release([lease])

    def _lease_unit(self) -> Lease | None:
        for _ in range(LEASE_TRIES):
            with suppress(StoreError):
                unit, seconds = self._setup.unit.uuid, self._setup.settings.lease_seconds
                lease = self._store.fleet.lease_unit(unit, self._owner, seconds=seconds)
                if lease is not None:
                    return lease
            if self.stopping.wait(POLL_SECONDS):
                return None
        return None

    def _claimed(self) -> TaskClaim | None:
        """Return the next task; None once there has been none for a while, or the worker is to stop."""
        claim, self._next = self._next, None
        idle_since = time.monotonic()
        while claim is None:
            if time.monotonic() - idle_since > IDLE_SECONDS:
                return None
            if self.stopping.is_set() or self._keeper.wanted is not Wanted.GO:
                return None
            self._beat()
            claim = self._claim()
            if claim is None:
                self.stopping.wait(POLL_SECONDS)
        return claim

    def _claim(self) -> TaskClaim | None:
        """Claim a task, if there is one. A database that is away has none."""
        setup, seconds = self._setup, self._setup.settings.lease_seconds
        with suppress(StoreError):
            for executor in setup.executors:
                units = [setup.unit.uuid]
                claim = self._store.fleet.claim_task(
                    setup.targets, executor, self._owner, units=units, seconds=seconds
                )
                if claim is not None:
                    self._keeper.add(claim.lease)
                    self._note(None)
                    log.info("task claimed", job=claim.job_id, task=claim.task, unit=setup.unit.uuid)
                    return claim
        return None

    def _claim_next(self) -> None:
        """Claim a further task for the executor that is open, and begin to prepare it. The search of the present task
        is over, and the device is busy for a moment longer."""
        if self._next is not None or self.stopping.is_set() or self._keeper.wanted is not Wanted.GO:
            return
        claim = self._next = self._claim()
        if claim is not None and (claim.executor, claim.cache) == self._options:
            self._preparer.start(lambda: self._prepared(claim))

    def _prepared(self, claim: TaskClaim) -> PreparedTask:
        executor, device = self._runner.measure_device(claim)
        return self._runner.prepare(claim, executor, device)

    def _search(self, claim: TaskClaim) -> None:
        """Search one task; whatever happens to it, its lease is given up or lost then. Raises LeaseLost for the lease of
        the unit alone."""
        lease = claim.lease
        try:
            executor, device = self._runner.measure_device(claim)
            self._preparer.start(lambda: self._runner.prepare(claim, executor, device))
            prepared = self._preparer.result(self._beat, LOOK_SECONDS)
            self._runner.run(prepared, self._claim_next)
        except TaskStopped:
            self._stop_executor()
            self._give_up(lambda: self._store.fleet.end_attempt(lease, AttemptEnd.CANCELLED))
        except LeaseLost as lost:
            log.info("task lost", job=claim.job_id, task=claim.task, why=lost.message)
            self._stop_executor()
        except MachineLost as lost:
            self._lost(lease, lost.end, lost)
        except WorkerLost as lost:
            self._lost(lease, AttemptEnd.ACTOR_LOST, lost)
        except StoreError as error:
            self._give_up(lambda: self._store.fleet.end_attempt(lease, AttemptEnd.DATABASE_LOST, error.message))
        except TilewrightError as error:
            log.warning("task failed", job=claim.job_id, task=claim.task, error=error.message)
            self._give_up(lambda: self._runner.fail(claim, error))
        except Exception as error:
            log.exception("task failed by a fault of the program", job=claim.job_id, task=claim.task)
            self._close_executor()
            fault = TilewrightError(f"a fault of the program: {error!r}")
            self._give_up(lambda: self._runner.fail(claim, fault))
        finally:
            self._keeper.drop(lease)

    def _lost(self, lease: Lease, end: AttemptEnd, error: TilewrightError) -> None:
        """End an attempt whose executor died, and say that the unit is to be looked at."""
        log.warning("executor lost", unit=self._setup.unit.uuid, error=error.message)
        self._close_executor()
        self._give_up(lambda: self._store.fleet.end_attempt(lease, end, error.message))

    def _give_up(self, write: Callable[[], object]) -> None:
        """Write how an attempt ended. Where the lease is lost, or the database away, its end will be noticed."""
        with suppress(LeaseLost, StoreError):
            write()
            self._note(None)

    def _beat(self) -> None:
        with suppress(TaskStopped):
            self._keeper.beat()

    def _executor_for(self, claim: TaskClaim) -> wiring.JobExecutor:
        """Return the executor that is open when it has the options of the claim; else open another one."""
        options = (claim.executor, claim.cache)
        if self._executor is None or self._options != options:
            self._close_executor()
            setup = self._setup
            executor = wiring.open_executor(claim.executor, setup.unit, claim.cache, setup.settings, fence=self._fence)
            executor.heartbeat, executor.allowed = self._keeper.beat, self._keeper.guard
            self._executor, self._options = executor, options
        return self._executor

    def _stop_executor(self) -> None:
        if self._executor is not None:
            self._executor.abandon()

    def _close_executor(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = self._options = None


def main(descriptor: int, parent: int) -> None:
    """Serve as a task worker with the server at the other end of ``descriptor``."""
    die_with(parent)
    connection = Connection(descriptor)
    setup: WorkerSetup = connection.recv()
    logs.configure(setup.settings)
    pipe = ServerPipe(connection)
    with suppress(BrokenPipeError):
        if setup.embedded:
            _work(setup, pipe.store(), pipe)
        else:
            with RecordStore(setup.settings.database_url) as store:
                _work(setup, TaskStore(store, store.fleet), pipe)


def _work(setup: WorkerSetup, store: TaskStore, pipe: ServerPipe) -> None:
    worker = TaskWorker(setup, store, pipe.note)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server, which is in the same terminal, decides
    worker.run()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except StoreError as stopped:
        log.error("task worker ends", pid=os.getpid(), error=stopped.message)
        sys.exit(1)
