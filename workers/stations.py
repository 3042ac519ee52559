"""A station owns one child, replaces it when it dies, and turns deaths into outcomes. All calls block."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ..codegen.backend import Binary
from ..core.errors import InvalidParameter, TilewrightError, WorkerLost
from ..core.target import DeviceInfo, Profile, Target, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, Stage, Timed
from .child import Child, ChildDied, ChildHung
from .fixture import anonymous_file
from .frames import Frame
from .report import Built, Report
from .settings import ExecutorSettings
from .wire import (
    Json,
    binary_from_frame,
    binary_to_frame,
    device_from_json,
    outcome_from_json,
    profile_to_json,
    report_from_json,
    rules_to_json,
)

_SLOWER = 500.0
_AROUND_LAUNCHES_SECONDS = 6.0
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)


@dataclass(frozen=True, slots=True)
class Posting:
    """What a station needs to know to work: the same for all stations of an executor."""

    target: Target
    profile: Profile
    seed: int
    settings: ExecutorSettings


class Station:
    """One child and its replacement. Calls come from one thread, which must live as long as the station (see Child);
    ``interrupt`` may come from any."""

    def __init__(
        self, setup: Json, posting: Posting, *, environment: Mapping[str, str], descriptors: tuple[int, ...] = ()
    ) -> None:
        self._setup = Frame(setup)
        self._posting = posting
        self._deadlines = posting.settings.deadlines.by_stage()
        self._environment = environment
        self._descriptors = descriptors
        self._child: Child | None = None
        self._candidates = 0
        self._interrupted = False

    def start(self) -> None:
        """Spawn a child if there is none; its start-up is awaited by the first request."""
        if self._child is None:
            self._candidates = 0
            self._child = Child(
                self._setup,
                python_path=self._posting.settings.python_path,
                environment=self._environment,
                descriptors=self._descriptors,
            )

    def resume(self) -> None:
        """Forget earlier interruptions: a new call begins."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Make the call in progress raise WorkerLost soon, by killing the child under it."""
        self._interrupted = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child."""
        self._drop()

    def _candidate(
        self, frame: Frame, first_stage: Stage, before: Callable[[], None], deadlines: Mapping[str, float] | None = None
    ) -> Frame | Failed:
        """The answer to one candidate, or how it killed the child.

        A candidate that crashes a child which served others before it gets a second chance in a fresh one: memory
        that an earlier candidate damaged must not be blamed on it. So does one whose child was killed from outside.
        """
        for attempt in (1, 2):
            before()
            self._candidates += 1
            try:
                return self._ask(frame, first_stage.value, deadlines)
            except ChildHung as hung:
                return Failed(Stage(hung.stage), Reason.TIMEOUT, hung.message)
            except ChildDied as died:
                blameless = died.signal == signal.SIGKILL or self._candidates > 1
                if attempt == 2 or not blameless:
                    return _failure(died)
            finally:
                if self._child is None:
                    self.start()
        raise AssertionError("unreachable: the second attempt returns")

    def _ask(self, frame: Frame, first_stage: str, deadlines: Mapping[str, float] | None = None) -> Frame:
        """One request; whatever kills the child also drops it."""
        child = self._greeted()
        try:
            return child.request(frame, first_stage=first_stage, deadlines=deadlines or self._deadlines)
        except TilewrightError as error:
            self._drop()
            if self._interrupted:
                raise WorkerLost("the measurement was abandoned") from error
            raise

    def _greeted(self) -> Child:
        """The child, ready. One that was killed while it started is replaced once. Raises WorkerLost."""
        for attempt in (1, 2):
            self.start()
            assert self._child is not None
            try:
                if self._interrupted:  # looked at after there is a child that ``interrupt`` could have seen
                    raise WorkerLost("the measurement was abandoned")
                self._child.greet(self._deadlines["start"])
                break
            except WorkerLost:
                self._drop()
                if self._interrupted or attempt == 2:
                    raise
        assert self._child is not None
        return self._child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


class BuildStation(Station):
    """Schedules to binaries, in a child without a device."""

    def __init__(self, posting: Posting) -> None:
        setup: Json = {
            "role": "build",
            "target": posting.target.to_json(),
            "builder": posting.settings.builder,
            "builder_memory_bytes": posting.settings.builder_memory_bytes,
        }
        super().__init__(setup, posting, environment=_threads(1))

    def build(self, workload: Json, schedule: Json) -> Built:
        """``workload`` and ``schedule`` are JSON. Raises WorkerLost when interrupted or when no child will start."""
        started = time.perf_counter()
        answer = self._candidate(Frame({"workload": workload, "schedule": schedule}), Stage.COMPILE, lambda: None)
        wall = time.perf_counter() - started
        if isinstance(answer, Failed):
            return Built(answer, wall, 0.0)
        seconds = cast(float, answer.header["seconds"])
        result = binary_from_frame(answer) if answer.blobs else outcome_from_json(answer.header["outcome"])
        assert not isinstance(result, Timed)
        return Built(result, seconds, wall - seconds)


class RunStation(Station):
    """Binaries to reports, in the child that has the device. It remembers which workload its child is set up for,
    and where the reference of that workload lies."""

    def __init__(self, posting: Posting) -> None:
        self._descriptor = anonymous_file()
        setup: Json = {
            "role": "run",
            "target": posting.target.to_json(),
            "profile": profile_to_json(posting.profile),
            "timing": rules_to_json(posting.settings.timing),
            "seed": posting.seed,
            "fixture_descriptor": self._descriptor,
        }
        threads = _threads(posting.target.threads)
        super().__init__(setup, posting, environment=threads, descriptors=(self._descriptor,))
        self._workload: Json | None = None
        self._layout: object = None
        self._ready: Child | None = None

    def close(self) -> None:
        super().close()
        os.close(self._descriptor)

    def run(self, workload: Json, binary: Binary, incumbent_seconds: float | None) -> Report:
        """Check and time ``binary``. ``workload`` is JSON. Raises WorkerLost when interrupted, or when the workload
        cannot be prepared: then no candidate of it can be measured here."""
        frame = binary_to_frame(binary, {"ask": "run", "incumbent_seconds": incumbent_seconds})
        started = time.perf_counter()
        deadlines = launch_deadlines(self._deadlines, incumbent_seconds)
        answer = self._candidate(frame, Stage.LOAD, lambda: self._prepare(workload), deadlines)
        wall = time.perf_counter() - started
        if isinstance(answer, Failed):
            clocks = Clocks(time=wall) if answer.stage is Stage.TIME else Clocks(check=wall)
            key = hashlib.sha256(binary.code).hexdigest()
            evidence = Evidence(input_seed=self._posting.seed, binary_key=key, binary_bytes=len(binary.code))
            return Report(answer, clocks, evidence)
        report = report_from_json(answer.header)
        if report.tainted:
            self._drop()
            self.start()
        overhead = max(0.0, wall - report.clocks.check - report.clocks.time)
        return replace(report, clocks=replace(report.clocks, overhead=overhead))

    def describe(self) -> tuple[DeviceInfo, Toolchain]:
        """The device for this target, and what would build for it."""
        answer = self._question({"ask": "describe"}, "ask")
        components = cast(dict[str, str], answer["toolchain"])
        return device_from_json(answer["device"]), Toolchain(components)

    def baseline(self, operator: str, parameters: Json) -> Outcome | None:
        """The operator's NumPy form timed on the data that candidates get; None when that dies or takes too long.
        Raises InvalidParameter for an unknown operator or parameters it cannot take."""
        question: Json = {"ask": "baseline", "operator": operator, "parameters": parameters}
        try:
            answer = self._ask(Frame(question), "baseline").header
        except (ChildDied, ChildHung):
            return None
        if "error" in answer:
            raise InvalidParameter(str(answer["error"]), field=str(answer["field"]))
        return outcome_from_json(answer["outcome"])

    def peaks(self) -> dict[str, float]:
        """The device's measured ceilings. Raises WorkerLost."""
        return cast(dict[str, float], self._question({"ask": "peaks"}, "peaks")["peaks"])

    def _prepare(self, workload: Json) -> None:
        """Set up the child for ``workload``, unless it is. The reference is computed once and outlives the child."""
        if self._child is not None and self._ready is self._child and self._workload == workload:
            return
        if self._workload != workload:
            self._workload, self._layout = workload, None
        question: Json = {"ask": "prepare", "workload": workload, "layout": self._layout}
        self._layout = self._question(question, "prepare")["layout"]
        self._ready = self._child

    def _question(self, question: Json, stage: str) -> Json:
        """Raises WorkerLost with the child's own words when there is no answer. A child killed from outside is
        replaced and asked once more."""
        for attempt in (1, 2):
            try:
                answer = self._ask(Frame(question), stage).header
                break
            except (ChildDied, ChildHung) as error:
                killed = isinstance(error, ChildDied) and error.signal == signal.SIGKILL
                if not killed or attempt == 2:
                    raise WorkerLost(f"the runner failed to {question['ask']}: {error.message}") from error
        if "error" in answer:
            raise WorkerLost(f"the runner failed to {question['ask']}: {answer['error']}")
        return answer


def launch_deadlines(deadlines: Mapping[str, float], incumbent_seconds: float | None) -> dict[str, float]:
    """Tighter deadlines once it is known what a good kernel takes: one that is hundreds of times slower is not worth
    waiting for, while work around the launches (filling, comparing, a busy machine) gets its seconds."""
    if incumbent_seconds is None:
        return dict(deadlines)
    limit = _AROUND_LAUNCHES_SECONDS + _SLOWER * incumbent_seconds
    return {**deadlines, **{stage: min(deadlines[stage], limit) for stage in ("check", "time")}}


def _threads(count: int) -> dict[str, str]:
    """How many threads NumPy's libraries use in a child: they read it when they are loaded."""
    return {name: str(count) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def _failure(died: ChildDied) -> Failed:
    """What the death of a child says about the candidate that was in it."""
    stage = Stage(died.stage)
    if died.signal == signal.SIGKILL:
        reason = Reason.WORKER_LOST
    elif stage is Stage.COMPILE:
        reason = Reason.COMPILE_ERROR
    else:
        reason = Reason.ILLEGAL_ACCESS if died.signal in _CRASHES else Reason.LAUNCH_ERROR
    return Failed(stage, reason, died.message)
