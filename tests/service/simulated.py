"""Simulated devices: task workers as the service has them, on PostgreSQL, but with an executor that builds and times
nothing. A trial takes a fixed time, and its result follows from the workload and the schedule.

Everything else is real: leases, claims, strategies, recording, preparation of the next task.
"""

import hashlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess

from tilewright.codegen.backends import backend_for
from tilewright.core.fleet import TaskClaim, Unit
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile, Toolchain
from tilewright.core.trial import Clocks, Timed, Trial
from tilewright.db.store import RecordStore
from tilewright.service import logs
from tilewright.service.settings import Settings
from tilewright.service.task_store import ServerPipe, TaskStore, serve_worker
from tilewright.service.task_worker import TaskWorker, WorkerSetup
from tilewright.te.key import workload_key
from tilewright.te.workload import Workload
from tilewright.workers.joint_executor import UnitExecutor
from tilewright.workers.probe import local_unit

SEEN_SECONDS = 86_400.0
PREFIX = "SIMULATED-"
"""So the names of simulated units begin."""
TOOLCHAIN = Toolchain({"simulated": "1"})


class SimulatedExecutor:
    """See ``workers.joint_executor.UnitExecutor``."""

    overlaps = True

    def __init__(self, unit: Unit, cache: str, trial_seconds: float, toolchain: Toolchain = TOOLCHAIN) -> None:
        self.heartbeat: Callable[[], object] = lambda: None
        self.allowed: Callable[[], float] = lambda: 0.0
        self.measured_on = MeasuredOn(unit.device, toolchain, Profile(cache))
        self._trial_seconds = trial_seconds

    def prefetch(self, workload: Workload, schedules: Sequence[Schedule] = ()) -> None:
        """There is nothing to be done ahead."""

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        for position, schedule in enumerate(schedules):
            self.heartbeat()
            self.allowed()
            time.sleep(self._trial_seconds)
            clocks = Clocks(time=self._trial_seconds)
            yield position, Trial(schedule, Timed((_seconds(workload, schedule),)), clocks)

    def remeasure(self, workload: Workload, schedules: Sequence[Schedule]) -> list[tuple[float, ...]]:
        return [(_seconds(workload, schedule),) * 5 for schedule in schedules]

    def binary(self, schedule: Schedule) -> None:
        """Nothing is compiled here."""

    def baseline(self, operator: str, parameters: Mapping[str, object]) -> Timed | None:
        return None

    def peaks(self) -> dict[str, float]:
        return {}

    def abandon(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """There is nothing to be closed."""


def _seconds(workload: Workload, schedule: Schedule) -> float:
    """What a schedule takes: 1 to 2 microseconds, by a hash."""
    digest = hashlib.sha256(f"{workload_key(workload)} {schedule.key}".encode()).digest()
    return 1e-6 * (1.0 + int.from_bytes(digest[:4]) / (1 << 32))


class SimulatedTaskWorker(TaskWorker):
    """A task worker whose executor is a simulated one."""

    trial_seconds = 0.05
    toolchain = TOOLCHAIN

    def _open(self, claim: TaskClaim, unit: Unit, fence: int) -> UnitExecutor:
        return SimulatedExecutor(unit, claim.cache, self.trial_seconds, self.toolchain)

    def _reaches(self, executor: str, unit: Unit) -> bool:
        return unit.uuid.startswith(PREFIX) or unit == self._setup.unit


def simulated_unit(number: int) -> Unit:
    """A processor on a host of its own, so that no other unit shuts it out."""
    here = local_unit()
    device = replace(here.device, name="simulated processor", measured={})
    return Unit(f"{PREFIX}{number}", device, f"simulated-{number}")


def work(url: str, number: int, trial_seconds: float, lease_seconds: float = 15.0, owner: str = "") -> None:
    """Be the task worker of a simulated unit until there are no tasks for a while. ``owner`` holds its leases; by
    default, a name that is made up."""
    unit = simulated_unit(number)
    settings = Settings(database_url=url, log_level="error", lease_seconds=lease_seconds)
    logs.configure(settings)
    with RecordStore(url) as store:
        setup = WorkerSetup(settings, unit, False, unit.classes, ("local",), None)
        _task_worker(store, replace(setup, owner=owner) if owner else setup, trial_seconds).run()


@contextmanager
def simulated_processor(url: str) -> Iterator[None]:
    """Have a task worker for the processor of this machine inside the block. It is a thread, and its trials are
    simulated: they take no time, and a schedule takes the same time whenever it is measured."""
    unit, settings = local_unit(), Settings(database_url=url)
    with RecordStore(url) as store:
        worker = _task_worker(store, WorkerSetup(settings, unit, False, unit.classes, ("local",), None), 0.0)
        worker.toolchain = backend_for(unit.device.target).toolchain(unit.device.target)
        thread = threading.Thread(target=_run_until_stopped, args=(worker,))
        thread.start()
        try:
            yield
        finally:
            worker.stopping.set()
            thread.join()


def _run_until_stopped(worker: TaskWorker) -> None:
    while not worker.stopping.is_set():
        worker.run()


def _task_worker(store: RecordStore, setup: WorkerSetup, trial_seconds: float) -> SimulatedTaskWorker:
    store.fleet.register_units([setup.unit], seen_seconds=SEEN_SECONDS)
    told, pipe = multiprocessing.Pipe()
    threading.Thread(target=serve_worker, args=(told, store, _ignore, _ignore), daemon=True).start()
    worker = SimulatedTaskWorker(setup, TaskStore.of(store), ServerPipe(pipe))
    worker.trial_seconds = trial_seconds
    return worker


def _ignore(*_: object) -> None:
    """There is no pool that would want to hear of the worker."""


@contextmanager
def simulated_fleet(url: str, units: int, trial_seconds: float) -> Iterator[None]:
    """Have so many simulated units inside the block, each with a task worker in a process of its own."""
    context = multiprocessing.get_context("spawn")
    workers: list[BaseProcess] = [
        context.Process(target=work, args=(url, number, trial_seconds), daemon=True) for number in range(units)
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
