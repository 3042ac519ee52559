"""Keeps task workers: one child process for each unit of this host that has tasks to search.

Three steps repeat:

    register   tell the database again that the units of this host are there
    reap       end leases that ran out, so that their tasks are ready again
    spawn      start a worker for each unit that serves a ready task and has none
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path

import structlog

from ..core.cgroups import processor_count
from ..core.child_program import command
from ..core.errors import StoreError
from ..core.fleet import Unit
from ..core.trial import Trial
from ..db.store import RecordStore
from ..workers.child_environment import ray_variables, scrubbed
from ..workers.settings import most_builders
from .lease_keeper import OWN_SHARE
from .settings import Settings
from .task_store import serve_worker
from .task_worker import WorkerSetup
from .unit_monitor import UnitMonitor
from .worker_death import ProcessorUse, WorkerDeath, memory_kills
from .worker_journal import WorkerJournal

MAX_BACKOFF_SECONDS = 10.0
LEAST_PAUSE_SECONDS = 1.0
"""The least time between two starts of a worker for one unit."""
SILENT_LEASES = 1.5
"""A worker that has said nothing for the time of so many leases is killed."""
STEADY_LEASES = 0.5
"""Silence counts while this process looks at least so often. Where it was stopped, had no processor or waited for the
database itself, its workers may have spoken, or waited as well."""
START_SECONDS = 120.0
"""A worker may take so long until it says something for the first time."""
FOUND_SECONDS = 0.3
"""The thread does other things after so long, while the units are not known yet."""
LOOKS_FOR_A_LEASE = 5
"""In the time that a lease lasts, leases that ran out are looked for so often."""
PROGRAM = "tilewright.service.task_worker"
PROCESSES = 3
"""The processes of a worker besides its builders that need a processor: its search, its data child, its runner."""
DRAIN_SECONDS = 120.0
"""For so long a worker may go on with its trial after it was told to stop."""

log = structlog.get_logger()


class TaskWorkerPool:
    """A thread that starts workers, and a thread for each worker that answers it. ``on_commit`` is called after each
    commit of a worker, and ``on_trial`` with each trial that one recorded."""

    def __init__(
        self,
        settings: Settings,
        store: RecordStore,
        *,
        poll_seconds: Callable[[], float],
        on_commit: Callable[[], None],
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._poll_seconds = poll_seconds
        self._on_commit = on_commit
        self._on_trial = on_trial
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._workers: dict[str, TaskWorkerProcess] = {}
        self.starts = self.deaths = 0
        """How many workers were started, and how many of them ended in another way than they should."""
        self._monitor = UnitMonitor(settings, store)
        self._reaped = -settings.lease_seconds
        self._looked = self._steady = -inf
        folder = Path(settings.lock_folder or tempfile.gettempdir())
        self._journal = None if store.embedded else WorkerJournal(folder, settings.database_url)
        self._thread = threading.Thread(target=self._run, name="task-workers", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should look at though the thread runs."""
        return (self._monitor.problem,) if self._monitor.problem else ()

    def wake(self) -> None:
        """Look for tasks now: there may be one."""
        self._wake.set()

    def close(self) -> None:
        """Stop every worker after the trial that it is running."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        backoff, expire = 0.5, self._store.embedded
        try:
            while not self._closing.is_set():
                self._wake.clear()
                try:
                    self._monitor.found.wait(FOUND_SECONDS)
                    if expire:
                        self._store.fleet.end_all_leases()
                        expire = False
                    self._step()
                    backoff = 0.5
                    self._wake.wait(min(self._poll_seconds(), self._settings.lease_seconds / LOOKS_FOR_A_LEASE))
                except StoreError as error:
                    log.error("tasks wait", error=error.message, seconds=backoff)
                    self._closing.wait(backoff)
                    backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
                except Exception:
                    log.exception("tasks wait after a fault of the program", seconds=MAX_BACKOFF_SECONDS)
                    self._closing.wait(MAX_BACKOFF_SECONDS)
        finally:
            self._drain()
            self._monitor.close()
            if self._journal is not None:
                self._journal.close()

    def _step(self) -> None:
        now, fleet = time.monotonic(), self._store.fleet
        if now - self._reaped >= self._settings.lease_seconds / LOOKS_FOR_A_LEASE:
            self._end_leases_of_dead_services()
            fleet.reap()
            self._on_commit()  # it may have ended jobs, too, that nobody held a task of
            self._reaped = now
        self._end_silent()
        for unit in self._monitor.units:
            targets, executors = self._serves(unit), self._monitor.executors(unit)
            if self._may_start(unit) and fleet.has_ready(targets, executors):
                setup = WorkerSetup(
                    self._settings, unit, self._store.embedded, targets, executors, self._builders(unit)
                )
                self.starts += 1
                if self._journal is not None:
                    alive = [worker.owner for worker in self._workers.values() if worker.alive]
                    self._journal.write([*alive, setup.owner])
                self._workers[unit.uuid] = TaskWorkerProcess(setup, self._store, self._noted, self._died)

    def _end_leases_of_dead_services(self) -> None:
        """Report workers of services that died on this host: they died with them."""
        if self._journal is not None:
            for owner, death in self._journal.dead_workers():
                if death.end is not None:
                    self._store.fleet.end_leases_of(owner, death.end, death.detail)

    def _serves(self, unit: Unit) -> tuple[str, ...]:
        """Return the names of targets that a unit serves. Numbers of devices mean something on one host alone."""
        numbered = (f"{unit.device.target.kind}:{unit.ordinal}",) if self._store.embedded else ()
        return (*unit.classes, *numbered)

    def _end_silent(self) -> None:
        """Kill workers that say nothing any more, such as one that was stopped: their leases have run out."""
        now, lease = time.monotonic(), self._settings.lease_seconds
        if now - self._looked > STEADY_LEASES * lease:
            self._steady = now
        self._looked = now
        for uuid, worker in self._workers.items():
            if not worker.alive:
                continue
            silent = min(worker.silent_seconds(), now - self._steady)
            if silent > SILENT_LEASES * lease:
                log.warning("silent task worker killed", unit=uuid, silent_seconds=round(silent, 1))
                worker.kill_silent(OWN_SHARE * worker.silent_seconds())

    def _builders(self, unit: Unit) -> int | None:
        """Return how many children build for a unit: an equal share of the processors where several units have work."""
        alike = sum(u.device.target.kind == unit.device.target.kind for u in self._monitor.units)
        return None if alike == 1 else most_builders(processor_count() // alike - PROCESSES)

    def _may_start(self, unit: Unit) -> bool:
        worker = self._workers.get(unit.uuid)
        return worker is None or (not worker.alive and time.monotonic() - worker.began >= LEAST_PAUSE_SECONDS)

    def _noted(self, trial: Trial | None) -> None:
        if trial is not None:
            self._on_trial(trial)
        self._on_commit()

    def _died(self) -> None:
        self.deaths += 1

    def _drain(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        end = time.monotonic() + DRAIN_SECONDS
        for worker in self._workers.values():
            worker.join(max(0.0, end - time.monotonic()))


class TaskWorkerProcess:
    """Owns the process of one task worker. The kernel kills it when the thread that made this object ends."""

    def __init__(
        self,
        setup: WorkerSetup,
        store: RecordStore,
        noted: Callable[[Trial | None], None],
        died: Callable[[], None],
    ) -> None:
        self.began = time.monotonic()
        self.owner = setup.owner
        self._hung = self._held_up = False
        self._memory_kills = memory_kills()
        self._heard = self.began + START_SECONDS
        self._looked = -inf
        self._used: ProcessorUse | None = None
        parent, child = socket.socketpair()
        with child:
            self._process = subprocess.Popen(
                command(PROGRAM, child.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=(child.fileno(),),
                start_new_session=True,
                env=_environment(),
            )
        self._connection = Connection(parent.detach())
        with contextlib.suppress(OSError):  # it died at once, which its end will show
            self._connection.send(setup)
        self._thread = threading.Thread(target=self._serve, args=(store, noted, died), name="task-worker", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def silent_seconds(self) -> float:
        """Return for how long it has said nothing. This is asked again and again."""
        if self._looked != self._heard:
            self._looked, self._used = self._heard, ProcessorUse.of(self._process.pid)
        return time.monotonic() - self._heard

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def kill_silent(self, most_seconds: float) -> None:
        """``kill``, and note whether it was held up: it used a processor for less than ``most_seconds`` since it spoke
        last, for which it waits, or it was stopped."""
        used = ProcessorUse.of(self._process.pid)
        self._held_up = used is not None and self._used is not None and used.held_up(self._used, most_seconds)
        self.kill()

    def kill(self) -> None:
        """End it now, because it does not answer; its children die with it."""
        self._hung = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end after the trial that it is running."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def join(self, seconds: float) -> None:
        """Wait for its end; kill it when the time is over."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning("task worker killed", pid=self._process.pid, seconds=seconds)
            self.kill()
            self._process.wait()
        self._thread.join()

    def _serve(self, store: RecordStore, noted: Callable[[Trial | None], None], died: Callable[[], None]) -> None:
        with self._connection:
            serve_worker(self._connection, store, noted, self._hear)
        code = self._process.wait()
        if code:
            died()
            log.warning("task worker ended", pid=self._process.pid, status=code)
        death = WorkerDeath(code, self._hung, self._memory_kills, memory_kills(), self._held_up)
        if death.end is not None:
            with contextlib.suppress(StoreError):  # its leases run out then
                store.fleet.end_leases_of(self.owner, death.end, death.detail)
                noted(None)


def _environment() -> dict[str, str]:
    """Return what a worker needs of the environment. Settings, with the password of the database, go through its
    pipe."""
    paths = os.pathsep.join(path for path in sys.path if path)
    tracing = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    return {**scrubbed(os.environ), **ray_variables(os.environ), **tracing, "PYTHONPATH": paths}
