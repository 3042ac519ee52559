"""The executor: it leads every candidate through a builder and the runner, whatever these run on."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ..codegen.backend import CompiledKernel
from ..core.errors import WorkerLost
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, Timed, Trial, TrialStage
from ..te.json import workload_to_json
from ..te.key import workload_key
from ..te.workload import Workload
from .child_supervisor import WorkerSpec
from .lease_guard import Allowed, always
from .losses import ActorLost, NodeLost
from .pool import Worker, WorkerPool
from .report import BuildReport, RunReport
from .settings import HOST_KINDS
from .wire import Json

T = TypeVar("T")

QUEUED = 2
"""How many binaries the runner is given at once: while one is timed, the next one waits at the device."""
KEPT = 64
"""How many binaries of a workload are kept for its re-measurement."""
BLAMED = 2
"""A candidate that lost so many healthy actors is what ended them."""
HEARTBEAT_SECONDS = 0.2
"""While an executor waits, at most so much time passes between two calls of its heartbeat."""


class Builder(Worker, Protocol):
    """It builds one schedule at a time; see BuilderSupervisor."""

    def build(self, workload: Json, schedule: Json) -> BuildReport: ...


class Runner(Worker, Protocol):
    """It has one device and measures one binary at a time; see RunnerSupervisor."""

    allowed: Allowed
    """It is asked before anything is given to the device."""
    probe: Callable[[], bool]
    """It is asked after a loss."""

    def prefetch(self, workload: Json) -> None: ...

    def run(self, workload: Json, binary: CompiledKernel, incumbent_seconds: float | None) -> RunReport: ...

    def remeasure(self, workload: Json, binaries: Sequence[CompiledKernel]) -> list[tuple[float, ...]]: ...

    def describe(self) -> tuple[DeviceInfo, Toolchain]: ...

    def baseline(self, operator: str, parameters: Json) -> Outcome | None: ...

    def peaks(self) -> dict[str, float]: ...


@dataclass
class _InFlight:
    """The candidates of one ``measure`` call that are under way. ``drawn`` has their schedules, by position."""

    key: str
    workload: Json
    source: Iterator[Schedule]
    drawn: list[Schedule] = field(default_factory=list)
    is_drained: bool = False
    building: dict[Future[BuildReport], int] = field(default_factory=dict)
    built: dict[int, BuildReport] = field(default_factory=dict)
    running: dict[Future[RunReport], tuple[int, BuildReport]] = field(default_factory=dict)
    losses: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def draw(self) -> Schedule | None:
        """Return the next schedule; None when there are no more."""
        schedule = None if self.is_drained else next(self.source, None)
        if schedule is None:
            self.is_drained = True
        else:
            self.drawn.append(schedule)
        return schedule

    @property
    def in_flight(self) -> int:
        return len(self.building) + len(self.built) + len(self.running)


@dataclass
class _TaskCache:
    """What is kept of the present workload: its fastest time, and its fastest binaries by schedule key. ``reports``
    says what became of each binary, by its identity, with the key of the schedule that it was first measured for."""

    key: str
    incumbent_seconds: float | None = None
    binaries: dict[str, tuple[float, CompiledKernel]] = field(default_factory=dict)
    reports: dict[str, tuple[str, RunReport]] = field(default_factory=dict)

    def known(self, schedule: Schedule, binary: CompiledKernel) -> RunReport | None:
        """Return what became of an equal binary of another schedule, which took no time now; None where there was
        none."""
        first, report = self.reports.get(_identity(binary), (schedule.key, None))
        if report is None or first == schedule.key:
            return None
        environment = {**report.evidence.environment, "equal_binary": 1.0}
        return replace(report, clocks=Clocks(), evidence=replace(report.evidence, environment=environment))

    def add(self, schedule: Schedule, binary: CompiledKernel, seconds: float) -> None:
        if self.incumbent_seconds is None or seconds < self.incumbent_seconds:
            self.incumbent_seconds = seconds
        self.binaries[schedule.key] = (seconds, binary)
        if len(self.binaries) > KEPT:
            del self.binaries[max(self.binaries, key=lambda key: self.binaries[key][0])]


class Executor:
    """A Measurer over builders and one runner. One thread at a time may measure; ``prefetch`` may come from another.

    Three hooks are for a holder of leases, and may be set at any time:

    - ``heartbeat`` is called in the thread that waits, when a wait begins and then every ``HEARTBEAT_SECONDS``. It
      should return at once. What it raises ends the wait: everything under way is abandoned, its children are killed,
      and the error goes to the caller. The executor can be used again after that.
    - ``allowed`` is asked before anything is given to the device (see ``lease_guard.Allowed``). It is called in the
      runner's thread. What it raises goes to the caller too.
    - ``probe`` says whether the unit is well. It is asked in the runner's thread where an actor was lost on the unit
      and its replacement opened the device. By default that is enough.

    Losses of machines are raised as they are (``losses``) and are no trials. A candidate is blamed, as a failed trial,
    once it has lost ``BLAMED`` actors on machines that were well each time.
    """

    def __init__(self, spec: WorkerSpec, builders: Sequence[Builder], runner: Runner) -> None:
        self.heartbeat: Callable[[], object] = lambda: None
        self.allowed: Allowed = always
        self.probe: Callable[[], bool] = lambda: True
        runner.allowed = lambda: self.allowed()
        runner.probe = lambda: self.probe()
        self._spec = spec
        self._builders = WorkerPool(builders, "builder")
        self._runner = WorkerPool([runner], "runner")
        self.overlaps = spec.target.kind not in HOST_KINDS
        """Whether the processor may build and do other work while the device is timing."""
        self._known = _TaskCache("")
        self._ahead: dict[tuple[str, str], Future[BuildReport]] = {}
        self._measured_on: MeasuredOn | None = None
        self._closed = False

    def prefetch(self, workload: Workload, schedules: Sequence[Schedule] = ()) -> None:
        """Prepare for a workload that will be measured soon, and build its first schedules as far as they are known.

        Returns at once. Nothing is done where it would disturb timing. What fails here fails again when the workload is
        measured, and is reported then.
        """
        self._check_open()
        if not self.overlaps:
            return
        data, key = workload_to_json(workload), workload_key(workload)
        self._runner.submit(lambda r: r.prefetch(data))
        for schedule in schedules:
            place = (key, schedule.key)
            if place not in self._ahead:
                self._ahead[place] = self._submit_build(data, schedule)

    def measure(self, workload: Workload, schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        """See ``search.measurer.Measurer``.

        Where building and timing must not overlap, a batch of candidates is built in parallel, and then timed alone.
        """
        self._check_open()
        todo = _InFlight(workload_key(workload), workload_to_json(workload), iter(schedules))
        if self._known.key != todo.key:
            self._known = _TaskCache(todo.key)
        try:
            self._begin(todo)
            while todo.in_flight:
                self._wait({*todo.building, *todo.running})
                ended = self._collect(todo)
                if self.overlaps:  # the device must not idle while the caller thinks about what we yield
                    self._run_built(todo)
                yield from ended
                self._begin(todo)
        finally:
            if todo.in_flight:
                self.abandon()

    def remeasure(self, workload: Workload, schedules: Sequence[Schedule]) -> list[tuple[float, ...]]:
        """See ``search.measurer.Measurer``. Binaries that are no longer kept are built again."""
        self._check_open()
        data, key = workload_to_json(workload), workload_key(workload)
        kept = self._known.binaries if self._known.key == key else {}
        found: dict[int, CompiledKernel] = {n: kept[s.key][1] for n, s in enumerate(schedules) if s.key in kept}
        missing = {n: self._submit_build(data, s) for n, s in enumerate(schedules) if n not in found}
        for n, future in missing.items():
            losses: list[str] = []
            while (built := self._built(future, losses)) is None:
                future = self._submit_build(data, schedules[n])
            if isinstance(built.result, CompiledKernel):
                found[n] = built.result
        first = {_identity(found[n]): n for n in sorted(found, reverse=True)}  # equal binaries are timed once
        order = sorted(first.values())
        samples = self._result(self._runner.submit(lambda r: r.remeasure(data, [found[n] for n in order])))
        return [samples[order.index(first[_identity(found[n])])] if n in found else () for n in range(len(schedules))]

    def binary(self, schedule: Schedule) -> CompiledKernel | None:
        """Return the binary of one of the fastest candidates of the workload that was measured last; None for
        others."""
        kept = self._known.binaries.get(schedule.key)
        return None if kept is None else kept[1]

    @property
    def measured_on(self) -> MeasuredOn:
        """The device, the toolchain and the profile of all trials. Raises WorkerLost."""
        if self._measured_on is None:
            self._check_open()
            device, toolchain = self._result(self._runner.submit(lambda r: r.describe()))
            self._measured_on = MeasuredOn(device, toolchain, self._spec.profile)
        return self._measured_on

    def baseline(self, operator: str, parameters: Mapping[str, object]) -> Timed | None:
        """Return the operator's NumPy form, timed like a candidate on the same data; None when it cannot be timed.

        Raises InvalidParameter for an unknown operator, and for parameters that it cannot take.
        """
        self._check_open()
        outcome = self._result(self._runner.submit(lambda r: r.baseline(operator, dict(parameters))))
        return outcome if isinstance(outcome, Timed) else None

    def peaks(self) -> dict[str, float]:
        """Return the device's measured ceilings (see ``runtime.device.Device.measure_peaks``). Takes seconds."""
        self._check_open()
        return self._result(self._runner.submit(lambda r: r.peaks()))

    def abandon(self) -> None:
        """Stop what is under way, within a second. The executor can be used again."""
        self._builders.abandon()
        self._runner.abandon()

    def close(self) -> None:
        """End all children. A second call does nothing."""
        self._closed = True
        self._builders.close()
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerLost("this executor is closed")

    def _begin(self, todo: _InFlight) -> None:
        """Start every build and run that may start now."""
        settings = self._spec.settings
        self._run_built(todo)
        if self.overlaps or not todo.in_flight:
            most = settings.ahead if self.overlaps else settings.batch
            while todo.in_flight < most and (schedule := todo.draw()) is not None:
                todo.building[self._start_build(todo, schedule)] = len(todo.drawn) - 1
                self._run_built(todo)

    def _start_build(self, todo: _InFlight, schedule: Schedule) -> Future[BuildReport]:
        begun = self._ahead.pop((todo.key, schedule.key), None)
        if begun is not None and not _was_abandoned(begun):
            return begun
        return self._submit_build(todo.workload, schedule)

    def _submit_build(self, workload: Json, schedule: Schedule) -> Future[BuildReport]:
        return self._builders.submit(partial(_build, workload, schedule.to_json()))

    def _run_built(self, todo: _InFlight) -> None:
        """Give the runner as many binaries as may wait there, in the order in which their schedules were drawn."""
        most = QUEUED if self.overlaps else 1
        while todo.built and len(todo.running) < most and (self.overlaps or not todo.building):
            position = min(todo.built)
            built = todo.built.pop(position)
            todo.running[self._runner.submit(self._run(todo, position, built))] = (position, built)

    def _run(self, todo: _InFlight, position: int, built: BuildReport) -> Callable[[Runner], RunReport]:
        """Return what the runner's thread calls. It looks at the incumbent's time when it begins, not before."""
        known, schedule, binary = self._known, todo.drawn[position], built.result
        assert isinstance(binary, CompiledKernel)

        def run(runner: Runner) -> RunReport:
            equal = known.known(schedule, binary)
            report = equal or runner.run(todo.workload, binary, known.incumbent_seconds)
            if equal is None and not _is_of_machine(report.outcome):
                known.reports[_identity(binary)] = schedule.key, report
            if isinstance(report.outcome, Timed):
                known.add(schedule, binary, report.outcome.seconds)
            return report

        return run

    def _collect(self, todo: _InFlight) -> list[tuple[int, Trial]]:
        """Take in what has finished; returns the trials that are complete."""
        ended: list[tuple[int, Trial]] = []
        for future in [f for f in todo.building if f.done()]:
            position = todo.building.pop(future)
            built = self._built(future, todo.losses[position])
            if built is None:
                todo.building[self._submit_build(todo.workload, todo.drawn[position])] = position
            elif isinstance(built.result, Failed):
                clocks = Clocks(compile=built.seconds, overhead=built.overhead_seconds)
                evidence = Evidence(input_seed=self._spec.seed)
                ended.append((position, Trial(todo.drawn[position], built.result, clocks, evidence)))
            else:
                todo.built[position] = built
        for running in [f for f in todo.running if f.done()]:
            position, built = todo.running.pop(running)
            report = self._result(running)
            overhead = report.clocks.overhead + built.overhead_seconds
            clocks = replace(report.clocks, compile=built.seconds, overhead=overhead)
            ended.append((position, Trial(todo.drawn[position], report.outcome, clocks, report.evidence)))
        return ended

    def _built(self, future: Future[BuildReport], losses: list[str]) -> BuildReport | None:
        """Return a builder's report; None where its machine was lost, so that the candidate must be built again
        elsewhere. ``losses`` has those so far that the candidate may be to blame for: no candidate ends a host."""
        try:
            return self._result(future)
        except NodeLost:
            return None
        except ActorLost as lost:
            if lost.began:
                losses.append(lost.message)
            if len(losses) < BLAMED:
                return None
            return BuildReport(Failed(TrialStage.COMPILE, Reason.WORKER_LOST, "; ".join(losses)), 0.0, 0.0)

    def _wait(self, futures: Collection[Future[Any]]) -> None:
        """Wait until one of ``futures`` is done, if there are any, with heartbeats."""
        try:
            self.heartbeat()
            while futures and not wait(futures, HEARTBEAT_SECONDS, FIRST_COMPLETED).done:
                self.heartbeat()
        except BaseException:
            self.abandon()
            raise

    def _result(self, future: Future[T]) -> T:
        """Return the result of a future. Raises WorkerLost where another thread closed the executor meanwhile."""
        if not future.done():
            self._wait([future])
        try:
            return future.result()
        except CancelledError as error:
            raise WorkerLost("this executor was closed") from error


def _identity(binary: CompiledKernel) -> str:
    """Equal for binaries that do the same when they are launched."""
    launch = repr((binary.format, binary.entry, binary.parameters, binary.launches, binary.prologue))
    return hashlib.sha256(launch.encode() + binary.code).hexdigest()


def _is_of_machine(outcome: Outcome) -> bool:
    """Return whether the same binary may fare better the next time."""
    return isinstance(outcome, Failed) and outcome.reason in (Reason.NOISY, Reason.WORKER_LOST, Reason.TIMEOUT)


def _was_abandoned(future: Future[BuildReport]) -> bool:
    return future.cancelled() or (future.done() and future.exception() is not None)


def _build(workload: Json, schedule: Json, builder: Builder) -> BuildReport:
    return builder.build(workload, schedule)
