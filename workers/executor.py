"""The way of a candidate through builders and runner, the same for every executor."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from ..codegen.backend import Binary
from ..core.errors import WorkerLost
from ..core.record import MeasuredOn
from ..core.schedule import Schedule
from ..core.target import DeviceInfo, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Timed, Trial
from ..te.json import workload_to_json
from ..te.key import workload_key
from ..te.workload import Workload
from .crew import Crew, Worker
from .report import Built, Report
from .stations import Posting
from .wire import Json

T = TypeVar("T")

HOST_KINDS = ("llvm",)
"""Target kinds whose device is the processor that also builds: building and timing must not overlap there."""


class Builder(Worker, Protocol):
    """Builds one schedule at a time; see BuildStation."""

    def build(self, workload: Json, schedule: Json) -> Built: ...


class Runner(Worker, Protocol):
    """Has one device and measures one binary at a time; see RunStation."""

    def run(self, workload: Json, binary: Binary, incumbent_seconds: float | None) -> Report: ...

    def describe(self) -> tuple[DeviceInfo, Toolchain]: ...

    def baseline(self, operator: str, parameters: Json) -> Outcome | None: ...

    def peaks(self) -> dict[str, float]: ...


@dataclass
class _Round:
    """The candidates of one ``measure`` call on their way."""

    waiting: deque[int]
    building: dict[Future[Built], int] = field(default_factory=dict)
    built: dict[int, Built] = field(default_factory=dict)
    running: tuple[Future[Report], int, Built] | None = None

    def wait(self) -> None:
        """Until a build or the run has ended."""
        futures: set[Future[Any]] = {*self.building}
        if self.running is not None:
            futures.add(self.running[0])
        wait(futures, return_when=FIRST_COMPLETED)

    @property
    def in_flight(self) -> int:
        return len(self.building) + len(self.built) + (self.running is not None)


class Executor:
    """A Measurer over builders and one runner. One thread at a time may measure."""

    def __init__(self, posting: Posting, builders: Sequence[Builder], runner: Runner) -> None:
        self._posting = posting
        self._builders = Crew(builders, "builder")
        self._runner = Crew([runner], "runner")
        self._overlap = posting.target.kind not in HOST_KINDS
        self._incumbents: dict[str, float] = {}
        self._measured_on: MeasuredOn | None = None
        self._closed = False

    def measure(self, workload: Workload, schedules: Sequence[Schedule]) -> Iterator[tuple[int, Trial]]:
        """See ``search.measurer.Measurer``. Where building and timing must not overlap, candidates are built in
        parallel by the batch and then timed alone."""
        self._check_open()
        data, key = workload_to_json(workload), workload_key(workload)
        todo = _Round(deque(range(len(schedules))))
        try:
            while todo.waiting or todo.in_flight:
                self._begin(todo, key, data, schedules)
                todo.wait()
                ended = self._collect(todo, key, schedules)
                if self._overlap:  # the device must not idle while the caller thinks about what we yield
                    self._begin(todo, key, data, schedules)
                yield from ended
        finally:
            if todo.in_flight:
                self._builders.abandon()
                self._runner.abandon()

    @property
    def measured_on(self) -> MeasuredOn:
        """Device, toolchain and profile of all trials. Raises WorkerLost."""
        if self._measured_on is None:
            self._check_open()
            device, toolchain = _result(self._runner.submit(lambda r: r.describe()))
            self._measured_on = MeasuredOn(device, toolchain, self._posting.profile)
        return self._measured_on

    def baseline(self, operator: str, parameters: Mapping[str, object]) -> Timed | None:
        """The operator's NumPy form, timed like a candidate on the same data; None when it cannot be.
        Raises InvalidParameter for an unknown operator or parameters it cannot take."""
        self._check_open()
        outcome = _result(self._runner.submit(lambda r: r.baseline(operator, dict(parameters))))
        return outcome if isinstance(outcome, Timed) else None

    def peaks(self) -> dict[str, float]:
        """The device's measured ceilings (see ``runtime.device.Device.measure_peaks``). Takes seconds."""
        self._check_open()
        return _result(self._runner.submit(lambda r: r.peaks()))

    def close(self) -> None:
        """End all children; nothing of the executor is left running. Harmless when repeated."""
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

    def _begin(self, todo: _Round, key: str, data: Json, schedules: Sequence[Schedule]) -> None:
        """Start every build and run that may start now."""
        if self._overlap or not todo.in_flight:
            while todo.waiting and todo.in_flight < self._posting.settings.batch:
                position = todo.waiting.popleft()
                schedule = schedules[position].to_json()
                todo.building[self._builders.submit(partial(_build, data, schedule))] = position
        if todo.running is None and todo.built and (self._overlap or not todo.building):
            position = min(todo.built)  # in the order given, however long builds took
            built = todo.built.pop(position)
            assert isinstance(built.result, Binary)
            binary, incumbent = built.result, self._incumbents.get(key)
            todo.running = (self._runner.submit(lambda r: r.run(data, binary, incumbent)), position, built)

    def _collect(self, todo: _Round, key: str, schedules: Sequence[Schedule]) -> list[tuple[int, Trial]]:
        """Take what has finished; returns the candidates whose way ends here."""
        ended: list[tuple[int, Trial]] = []
        for future in [f for f in todo.building if f.done()]:
            position = todo.building.pop(future)
            built = _result(future)
            if isinstance(built.result, Failed):
                clocks = Clocks(compile=built.seconds, overhead=built.overhead_seconds)
                evidence = Evidence(input_seed=self._posting.seed)
                ended.append((position, Trial(schedules[position], built.result, clocks, evidence)))
            else:
                todo.built[position] = built
        if todo.running is not None and todo.running[0].done():
            running, position, built = todo.running
            todo.running = None
            report = _result(running)
            if isinstance(report.outcome, Timed):
                best = self._incumbents.get(key, report.outcome.seconds)
                self._incumbents[key] = min(best, report.outcome.seconds)
            overhead = report.clocks.overhead + built.overhead_seconds
            clocks = replace(report.clocks, compile=built.seconds, overhead=overhead)
            ended.append((position, Trial(schedules[position], report.outcome, clocks, report.evidence)))
        return ended


def _result(future: Future[T]) -> T:
    """What a finished future holds; WorkerLost if another thread closed the executor under it."""
    try:
        return future.result()
    except CancelledError as error:
        raise WorkerLost("this executor was closed") from error


def _build(workload: Json, schedule: Json, builder: Builder) -> Built:
    return builder.build(workload, schedule)
