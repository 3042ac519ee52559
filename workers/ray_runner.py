"""The runner on Ray: an actor on the host of the unit, under a lease whose end travels with every call."""

import math
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import ray

from ..codegen.backend import CompiledKernel
from ..core.fleet import LeaseLost
from ..core.target import DeviceInfo, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, TrialStage
from .child_supervisor import WorkerSpec
from .executor import BLAMED
from .lease_guard import Allowed, LeaseGuard, always
from .losses import ActorLost, DeviceLost
from .ray_actor import Ping, RemoteSupervisor, Versions, actor_class, on_node
from .report import RunReport
from .runner_supervisor import RunnerSupervisor
from .wire import Json

CLOCK_SECONDS = 60.0
"""The clocks of two hosts are compared again after so many seconds, in which they drift by milliseconds at most."""

T = TypeVar("T")


class RunnerActor(RunnerSupervisor, Ping):
    """A runner's supervisor, in an actor on the unit's host."""

    def clock(self) -> float:
        """Return this host's monotonic clock, in seconds."""
        return time.monotonic()

    def versions(self) -> Versions:
        return Versions(self.describe()[1], platform.python_version(), ray.__version__)

    def within(self, until: float, method: str, *arguments: object) -> Any:
        """Call ``method`` under a lease that lasts until then, by this host's clock. Raises LeaseLost."""
        self.allowed = LeaseGuard(until)
        try:
            return getattr(self, method)(*arguments)
        finally:
            self.allowed = always


class Blamed(ActorLost):
    """A call lost several actors on a unit that was found well each time."""


class RemoteRunner(RemoteSupervisor):
    """See ``executor.Runner``.

    After an actor was lost, the unit is probed: a new actor has to open the device, and the ``probe`` of the executor
    has to find the unit well. Then the call is made again. ``run`` blames its candidate for the second loss; other
    calls raise it. Where the unit is not well, DeviceLost, ActorLost or NodeLost is raised.
    """

    def __init__(self, spec: WorkerSpec, node: str) -> None:
        super().__init__(spec.settings.deadlines)
        self.allowed: Allowed = always
        self.probe: Callable[[], bool] = lambda: True
        self._offset, self._clock_read = 0.0, -math.inf
        runner = actor_class(RunnerActor, num_cpus=0, scheduling_strategy=on_node(node))
        self._make = lambda: (runner.remote(spec), node)

    def start(self) -> None:
        """Create the actor if there is none. It starts in the background."""
        self.adopt(self._make)

    def prefetch(self, workload: Json) -> None:
        self._call("prefetch", workload)

    def run(self, workload: Json, binary: CompiledKernel, incumbent_seconds: float | None) -> RunReport:
        try:
            return cast(RunReport, self._within("run", workload, binary, incumbent_seconds))
        except Blamed as lost:
            return RunReport(Failed(TrialStage.CHECK, Reason.WORKER_LOST, lost.message), Clocks(), Evidence())

    def remeasure(self, workload: Json, binaries: Sequence[CompiledKernel]) -> list[tuple[float, ...]]:
        return cast(list[tuple[float, ...]], self._within("remeasure", workload, list(binaries)))

    def describe(self) -> tuple[DeviceInfo, Toolchain]:
        return cast(tuple[DeviceInfo, Toolchain], self._retried(lambda: self._call("describe")))

    def versions(self) -> Versions:
        return cast(Versions, self._retried(lambda: self._call("versions")))

    def baseline(self, operator: str, parameters: Json) -> Outcome | None:
        return cast(Outcome | None, self._within("baseline", operator, parameters))

    def peaks(self) -> dict[str, float]:
        return cast(dict[str, float], self._within("peaks"))

    def _within(self, method: str, *arguments: object) -> Any:
        """Call ``method`` under the lease, again where that was renewed meanwhile. Raises LeaseLost."""
        while True:
            call = partial(self._call_within, self.allowed(), method, *arguments)
            try:
                return self._retried(call)
            except LeaseLost:  # as it was when the call began
                continue

    def _call_within(self, until: float, method: str, *arguments: object) -> Any:
        return self._call("within", self._there(until), method, *arguments)

    def _there(self, until: float) -> float:
        """``until`` by the clock of the actor's host, or earlier by as much as an answer of it takes.

        sent ── there ── received        the actor reads its clock at some moment between
        there - received <= difference   so that the difference is never overestimated
        """
        if math.isinf(until):
            return until
        if time.monotonic() > self._clock_read + CLOCK_SECONDS:
            there = self._call("clock")
            self._clock_read = time.monotonic()
            self._offset = there - self._clock_read
        return until + self._offset

    def _retried(self, call: Callable[[], T]) -> T:
        """Make a call, and make it again if its actor is lost and the unit is well. Raises Blamed."""
        losses: list[str] = []
        while True:
            try:
                return call()
            except ActorLost as lost:
                self._check_unit()
                if lost.began:
                    losses.append(lost.message)
                if len(losses) == BLAMED:
                    raise Blamed("; ".join(losses)) from lost

    def _check_unit(self) -> None:
        """Raises NodeLost, DeviceLost or ActorLost where a new actor cannot open the device, and DeviceLost where the
        unit is not well."""
        self._call("describe")
        if not self.probe():
            raise DeviceLost("an actor was lost, and its device was then found unhealthy")
