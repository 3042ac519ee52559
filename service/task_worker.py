"""A task worker: a child of the service, which starts it by ``core.child_program``.

It leases one unit while there are tasks that the unit serves, and searches one after another on it. The server
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
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import structlog

from ..core.errors import StoreError, TilewrightError, WorkerLost
from ..core.fleet import OWNER_BYTES, AttemptEnd, Lease, LeaseLost, TaskClaim, Unit, UnitState, Wanted
from ..core.target import DeviceInfo
from ..workers.joint_executor import JointExecutor, UnitExecutor
from ..workers.losses import DriverLost, MachineLost, NodeLost
from . import logs, wiring
from .further_units import FurtherUnits
from .lease_keeper import LOOK_SECONDS, LeaseKeeper, TaskStopped
from .settings import Settings
from .task_runner import TaskPreparer, TaskRunner
from .task_store import ServerPipe, TaskStore
from .tracing import working_for_task

IDLE_SECONDS = 60.0
"""A worker that finds no task for so long gives its unit back, and ends."""
LOCAL = "local"
"""The executor that reaches the units of its own host."""
POLL_SECONDS = 0.25
"""How often a worker without a task looks for one."""
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
    builders: int | None
    """How many children build for this worker; None: what is usual where it has its host alone."""
    owner: str = field(default_factory=lambda: secrets.token_hex(OWNER_BYTES))
    """Who holds the worker's leases. The server knows it, to end them when the worker has died."""


class TaskWorker:
    """Everything but ``stopping`` is for one thread."""

    def __init__(self, setup: WorkerSetup, store: TaskStore, server: ServerPipe) -> None:
        self.stopping = threading.Event()
        self._setup = setup
        self._store = store
        self._note, self._alive = server.note, server.alive
        self._owner = setup.owner
        self._unit_lease: Lease | None = None
        self._keeper = LeaseKeeper(
            store.fleet,
            seconds=setup.settings.lease_seconds,
            yielding=self.stopping.is_set,
            alive=server.alive,
        )
        self._further = FurtherUnits(
            store.fleet,
            self._keeper,
            setup.unit,
            targets=setup.targets,
            executors=setup.executors,
            seconds=setup.settings.lease_seconds,
            open_unit=self._open,
            reaches=self._reaches,
        )
        self._runner = TaskRunner(
            setup.settings,
            store,
            setup.unit,
            self._keeper,
            self._executor_for,
            server.note,
            server.note,
            self._further.host_of,
        )
        self._executor: UnitExecutor | None = None
        self._options: tuple[str, str, bool] | None = None
        self._next: TaskClaim | None = None
        self._preparing: TaskClaim | None = None
        self._delays: list[tuple[Lease, str]] = []

    def run(self) -> None:
        """Search tasks until there are none for a while, or until the worker is stopped."""
        try:
            with TaskPreparer() as self._preparer:
                while (claim := self._claimed()) is not None:
                    with working_for_task(claim, self._setup.unit.uuid):
                        self._search(claim)
        finally:
            self._give_next_back()
            self._release_unit()
            self._close_executor()
            self._tell_delays()

    def _claimed(self) -> TaskClaim | None:
        """Return the next task, of which the unit is leased too; None once there has been none for a while, or the
        worker is to stop."""
        idle_since = time.monotonic()
        while not self.stopping.is_set() and time.monotonic() - idle_since < IDLE_SECONDS:
            self._tell_delays()
            if self._unit_lease is None:
                self._give_next_back()
            claim, self._next = self._next, None
            if claim is None and self._has_unit():
                claim = self._claim()
            if claim is not None:
                return claim
            self._release_unit()  # another worker may need it, or its host
            self._alive()
            self.stopping.wait(POLL_SECONDS)
        return None

    def _has_unit(self) -> bool:
        """Return whether the unit is leased. It is asked for where a task is ready that it serves."""
        setup, fleet = self._setup, self._store.fleet
        if self._unit_lease is None:
            with suppress(StoreError):
                if fleet.has_ready(setup.targets, setup.executors):
                    asked = time.monotonic()
                    seconds = setup.settings.lease_seconds
                    self._unit_lease = fleet.lease_unit(setup.unit.uuid, self._owner, seconds=seconds)
                    self._keeper.hold(self._unit_lease, asked)
        return self._unit_lease is not None and self._keeper.wanted is Wanted.GO

    def _release_unit(self) -> None:
        if self._unit_lease is not None:
            with suppress(StoreError):
                self._store.fleet.release([self._unit_lease])
            self._unit_lease = None
            self._keeper.hold(None, time.monotonic())

    def _give_next_back(self) -> None:
        """Give the task back that was claimed ahead, where there is one."""
        if self._next is not None:
            lease, self._next = self._next.lease, None
            self._keeper.drop(lease)
            try:
                self._store.fleet.end_attempt(lease, AttemptEnd.YIELDED)
                self._note(None)
            except (LeaseLost, StoreError):
                self._lose(lease)

    def _claim(self) -> TaskClaim | None:
        """Claim a task, if there is one. A database that is away has none."""
        setup, seconds = self._setup, self._setup.settings.lease_seconds
        with suppress(StoreError):
            for executor in setup.executors:
                units = [setup.unit.uuid]
                claim = self._store.fleet.claim_task(setup.targets, executor, self._owner, units=units, seconds=seconds)
                if claim is not None:
                    self._keeper.add(claim.lease, claim.patience)
                    self._note(None)
                    with working_for_task(claim, setup.unit.uuid):
                        log.info("task claimed")
                    return claim
        return None

    def _claim_next(self) -> None:
        """Claim a further task for the executor that is open, and begin to prepare it. The search of the present task
        is over, and the device is busy for a moment longer."""
        if self._next is not None or self.stopping.is_set() or self._keeper.wanted is not Wanted.GO:
            return
        claim = self._next = self._claim()
        if claim is not None and (known := self._runner.known_device(claim)) is not None:
            self._begin_to_prepare(claim, *known)

    def _begin_to_prepare(self, claim: TaskClaim, executor: UnitExecutor, device: DeviceInfo) -> None:
        self._preparing = claim
        with working_for_task(claim, self._setup.unit.uuid):  # it may not be the present task
            self._preparer.start(lambda: self._runner.prepare(claim, executor, device))

    def _search(self, claim: TaskClaim) -> None:
        """Search one task; whatever happens to it, its lease is given up or lost then."""
        lease = claim.lease
        self._further.begin()
        try:
            if self._preparing is not claim:
                self._begin_to_prepare(claim, *self._runner.measure_device(claim))
            prepared = self._preparer.result(self._keeper.beat, LOOK_SECONDS)
            if isinstance(self._executor, JointExecutor):
                self._executor.adjust = partial(self._further.adjust, claim, self._executor)
            if not self._runner.run(prepared, self._claim_next):
                self._release_unit()  # another worker may be meant to have it, or nobody
        except TaskStopped:
            self._stop_executor()
            self._give_back(lease, AttemptEnd.CANCELLED)
        except LeaseLost as lost:
            log.info("task lost", why=lost.message)
            self._lose(lease)
            self._stop_executor()
            self._keeper.drop(lease)
            self._check_unit()
        except WorkerLost as lost:
            log.warning("executor lost", error=lost.message)
            self._close_executor()
            end = lost.end if isinstance(lost, MachineLost) else AttemptEnd.ACTOR_LOST
            self._give_back(lease, end, lost.message)  # the loss counts while the unit is known as healthy
            if isinstance(lost, NodeLost | DriverLost):  # the unit may be well, and the cluster has to be found again
                self.stopping.set()
            else:
                self._suspect_unit(end.value)
        except StoreError as away:
            self._give_back(lease, AttemptEnd.DATABASE_LOST, away.message)
        except TilewrightError as error:
            log.warning("task failed", error=error.message)
            self._fail(claim, error)
        except Exception as error:
            log.exception("task failed by a fault of the program")
            self._close_executor()
            self._fail(claim, TilewrightError(f"a fault of the program: {error!r}"))
        finally:
            self._keeper.drop(lease)

    def _check_unit(self) -> None:
        """A lease was lost: give the unit up where it is the unit's."""
        try:
            self._keeper.renew()
        except StoreError:
            pass
        except LeaseLost as lost:
            log.warning("the unit's lease is lost", unit=self._setup.unit.uuid, why=lost.message)
            self._release_unit()

    def _suspect_unit(self, reason: str) -> None:
        """Say that the unit is to be probed, unless an administrator or a probe has taken it out already."""
        uuid, ready = self._setup.unit.uuid, UnitState.READY
        self._write(lambda: self._store.fleet.set_unit_state(uuid, UnitState.SUSPECT, reason, before=ready))

    def _give_back(self, lease: Lease, how: AttemptEnd, detail: str = "") -> None:
        written = self._write(lambda: self._store.fleet.end_attempt(lease, how, detail))
        if not written and how not in (AttemptEnd.ACTOR_LOST, AttemptEnd.DEVICE_FAULT):
            self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        """The lease of a task was lost. Where this process was held up, its task is not to blame, and nobody else can
        say so."""
        delay = self._keeper.delay
        if delay is not None:
            self._delays.append((lease, delay))
            self._tell_delays()

    def _tell_delays(self) -> None:
        """Say of which tasks this process lost the lease because it was held up, as soon as the database answers."""
        with suppress(StoreError):
            while self._delays:
                self._store.fleet.excuse_delay(*self._delays[0])
                self._delays.pop(0)
                self._note(None)

    def _fail(self, claim: TaskClaim, error: TilewrightError) -> None:
        self._write(lambda: self._runner.fail(claim, error))

    def _write(self, write: Callable[[], object]) -> bool:
        """Write how an attempt ended, trying again while the database is away and the lease lasts. Return whether that
        was written."""
        with suppress(LeaseLost):
            while True:
                try:
                    write()
                    self._note(None)
                    return True
                except StoreError:
                    self._keeper.guard()
                    time.sleep(POLL_SECONDS)
        return False

    def _executor_for(self, claim: TaskClaim) -> UnitExecutor:
        """Return the executor that is open when it has the options of the claim; else open another one."""
        options = (claim.executor, claim.cache, claim.units > 1)
        if self._executor is None or self._options != options:
            self._close_executor()
            fence = 0 if self._unit_lease is None else self._unit_lease.fence
            with self._keeper.kept():
                executor = self._open(claim, self._setup.unit, fence)
            if claim.units > 1:
                executor = JointExecutor(executor, self._setup.unit.uuid)
            executor.heartbeat, executor.allowed = self._keeper.beat, self._keeper.guard
            self._executor, self._options = executor, options
        return self._executor

    def _open(self, claim: TaskClaim, unit: Unit, fence: int) -> UnitExecutor:
        """Open the executor of a unit. This may run on any thread."""
        setup = self._setup
        return wiring.open_executor(
            claim.executor, unit, claim.cache, setup.settings, fence=fence, builders=setup.builders
        )

    def _reaches(self, executor: str, unit: Unit) -> bool:
        """Return whether an executor of this name reaches another unit from here."""
        return unit.executor == executor and (executor != LOCAL or unit.host == self._setup.unit.host)

    def _stop_executor(self) -> None:
        if self._executor is not None:
            self._executor.abandon()

    def _close_executor(self) -> None:
        if self._executor is not None:
            with self._keeper.kept():
                self._executor.close()
            self._executor = self._options = None
            self._runner.forget_device()


def main() -> None:
    """Serve as a task worker, as the command line says."""
    try:
        _serve(Connection(int(sys.argv[1])))
    except StoreError as stopped:
        log.error("task worker ends", pid=os.getpid(), error=stopped.message)
        sys.exit(1)


def _serve(connection: Connection) -> None:
    setup: WorkerSetup = connection.recv()
    logs.configure(setup.settings)
    pipe = ServerPipe(connection)
    with suppress(BrokenPipeError):
        if setup.embedded:
            _work(setup, pipe.store(), pipe)
        else:
            from ..db.store import RecordStore  # with SQLAlchemy: the worker of an embedded database needs none

            with RecordStore(setup.settings.database_url) as store:
                _work(setup, TaskStore.of(store), pipe)


def _work(setup: WorkerSetup, store: TaskStore, pipe: ServerPipe) -> None:
    worker = TaskWorker(setup, store, pipe)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server, which is in the same terminal, decides
    worker.run()
