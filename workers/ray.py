"""The executor on Ray: builder actors, and one runner actor per device.

An actor only carries a supervisor, the same that the local executor uses: hangs and crashes of candidates are met
inside
it, by its child, and cost no actor. What is met here is the loss of an actor or of its machine: it is replaced, and
the call made once more, by us. Ray itself neither retries nor restarts, because it cannot know whether a lost call
had an effect.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..codegen.backend import CompiledKernel
from ..core.errors import TilewrightError, WorkerLost
from ..core.fleet import Unit
from ..core.target import DeviceInfo, Profile, Target, Toolchain
from ..core.trial import Clocks, Evidence, Failed, Outcome, Reason, TrialStage
from .builder_supervisor import BuilderSupervisor
from .child_supervisor import WorkerSpec
from .executor import Executor
from .lease_guard import Allowed, always
from .probe import local_unit
from .report import BuildReport, RunReport
from .runner_supervisor import RunnerSupervisor
from .settings import HOST_KINDS, Deadlines, ExecutorSettings, builder_count
from .wire import Json

_LOSSES = 2
"""A candidate is given up after this many lost actors, since it may be what kills them."""


class RayExecutor(Executor):
    """Builder actors, wherever Ray has room, and one runner actor on this machine.

    It uses the Ray that this process is connected to. Where there is none, it starts one without a dashboard and with
    token authentication, and stops it in ``close``. Raises WorkerLost when Ray does not start.
    """

    def __init__(
        self,
        target: Target,
        *,
        profile: Profile | None = None,
        seed: int = 0,
        settings: ExecutorSettings | None = None,
        unit: Unit | None = None,
        fence: int = 0,
    ) -> None:
        unit = unit or local_unit(target.kind)
        spec = WorkerSpec(target, profile or Profile(), seed, settings or ExecutorSettings(), unit, fence)
        self._started_ray = _connect()
        builders = [RemoteBuilder(_builder_actors(spec), spec) for _ in range(builder_count(spec.settings))]
        super().__init__(spec, builders, RemoteRunner(_runner_actors(spec), spec))

    def close(self) -> None:
        super().close()
        if self._started_ray:
            self._started_ray = False
            ray.shutdown()


class ActorsLost(WorkerLost):
    """A call and its repetition each lost the actor that they were made on."""


class RemoteSupervisor:
    """A supervisor in an actor, seen from the driver. ``make`` creates the actor; ``interrupt`` may come from any
    thread,
    the rest from one."""

    def __init__(self, make: Callable[[], Any], spec: WorkerSpec) -> None:
        self.allowed: Allowed = always
        self._make = make
        self._patience_seconds = patience_seconds(spec.settings.deadlines)
        self._actor: Any = None
        self._interrupted = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Create the actor if there is none. It starts in the background."""
        with self._lock:
            if self._actor is None:
                self._actor = self._make()

    def resume(self) -> None:
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        self.close()

    def close(self) -> None:
        """Kill the actor; its child dies with it."""
        with self._lock:
            if self._actor is not None:
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.kill(self._actor, no_restart=True)
                self._actor = None

    def _call(self, method: str, *arguments: object) -> Any:
        """The answer of the actor, or of its replacement.

        Raises WorkerLost when the replacement is lost too, when the call is interrupted, and when the supervisor itself
        raised it.
        """
        losses: list[str] = []
        while len(losses) < _LOSSES:
            self.start()
            try:
                if self._interrupted:  # looked at after there is an actor that ``interrupt`` could have seen
                    raise WorkerLost("the measurement was abandoned")
                answer = getattr(self._actor, method).remote(*arguments)
                return ray.get(answer, timeout=self._patience_seconds)
            except ray.exceptions.GetTimeoutError:
                losses.append(f"no answer within {self._patience_seconds:g} s")
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, TilewrightError):  # the supervisor itself could not go on
                    raise error.cause from error
                raise
            except (ray.exceptions.RayActorError, AttributeError) as error:  # None once interrupted
                losses.append(str(error).strip().partition("\n")[0])
            except ray.exceptions.RayError as error:
                raise WorkerLost(f"Ray cannot go on: {error}") from error
            self.close()
            if self._interrupted:
                raise WorkerLost("the measurement was abandoned")
        raise ActorsLost(f"{_LOSSES} Ray actors in a row were lost in {method}: {'; '.join(losses)}")


class RemoteBuilder(RemoteSupervisor):
    """See ``executor.Builder``."""

    def build(self, workload: Json, schedule: Json) -> BuildReport:
        try:
            return cast(BuildReport, self._call("build", workload, schedule))
        except ActorsLost as lost:
            return BuildReport(Failed(TrialStage.COMPILE, Reason.WORKER_LOST, lost.message), 0.0, 0.0)


class RemoteRunner(RemoteSupervisor):
    """See ``executor.Runner``."""

    def run(self, workload: Json, binary: CompiledKernel, incumbent_seconds: float | None) -> RunReport:
        try:
            return cast(RunReport, self._call("run", workload, binary, incumbent_seconds))
        except ActorsLost as lost:
            return RunReport(Failed(TrialStage.CHECK, Reason.WORKER_LOST, lost.message), Clocks(), Evidence())

    def prefetch(self, workload: Json) -> None:
        self._call("prefetch", workload)

    def remeasure(self, workload: Json, binaries: Sequence[CompiledKernel]) -> list[tuple[float, ...]]:
        try:
            return cast(list[tuple[float, ...]], self._call("remeasure", workload, list(binaries)))
        except ActorsLost:
            return [()] * len(binaries)

    def describe(self) -> tuple[DeviceInfo, Toolchain]:
        return cast(tuple[DeviceInfo, Toolchain], self._call("describe"))

    def baseline(self, operator: str, parameters: Json) -> Outcome | None:
        return cast(Outcome | None, self._call("baseline", operator, parameters))

    def peaks(self) -> dict[str, float]:
        return cast(dict[str, float], self._call("peaks"))


def patience_seconds(deadlines: Deadlines) -> float:
    """After how many seconds an actor counts as lost although Ray thinks that it lives.

    Everything inside it could have timed out twice by then. Ray gives a device to one actor at a time, so that none
    waits long for another program to leave it.
    """
    return 2 * (sum(seconds for stage, seconds in deadlines.by_stage().items() if stage != "wait") + 10.0)


def _connect() -> bool:
    """Whether a Ray had to be started. A cluster that Ray starts for its own process demands a token by default
    (since 2.60); asking for it through the environment would come too late, for Ray reads that when it is imported."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by the processes that ray.init starts
    try:
        ray.init("local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise WorkerLost(f"Ray did not start: {error}") from error
    return True


def _builder_actors(spec: WorkerSpec) -> Callable[[], Any]:
    return _actors(BuilderSupervisor, spec, scheduling_strategy="SPREAD")


def _runner_actors(spec: WorkerSpec) -> Callable[[], Any]:
    """On this machine, whose device the target describes. A processor is not reserved, since builders and runner take
    turns on it; any other device is, so that no two runners get the same."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return _actors(
        RunnerSupervisor, spec, scheduling_strategy=here, num_gpus=0 if spec.target.kind in HOST_KINDS else 1
    )


def _actors(supervisor: type, spec: WorkerSpec, **options: object) -> Callable[[], Any]:
    remote: Any = ray.remote(supervisor)  # an actor class is made of the class at run time: there is no type for it
    actor = remote.options(max_restarts=0, max_task_retries=0, num_cpus=0, **options)
    return lambda: actor.remote(spec)
