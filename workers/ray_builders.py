"""Builder actors: as many as Ray has room for, on any node, of those with the toolchain of the runner's host."""

import logging
import platform
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import ray

from ..codegen.backends import backend_for
from ..core.errors import TilewrightError, WorkerLost
from .builder_supervisor import BuilderSupervisor
from .child_supervisor import WorkerSpec
from .executor import Builder
from .pool import WorkerPool
from .ray_actor import (
    LOOK_SECONDS,
    Ping,
    RemoteSupervisor,
    Versions,
    actor_class,
    check_head,
    cluster_errors,
    kill,
    on_node,
)
from .report import BuildReport
from .settings import Deadlines
from .wire import Json

_POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)


class BuilderActor(BuilderSupervisor, Ping):
    """A builder's supervisor, in an actor."""

    def versions(self) -> tuple[Versions, str]:
        """Return what builds here, and the id of this node. The child begins to start."""
        self.start()
        toolchain = backend_for(self._spec.target).toolchain(self._spec.target)
        node = ray.get_runtime_context().get_node_id()
        return Versions(toolchain, platform.python_version(), ray.__version__), node


class RemoteBuilder(RemoteSupervisor):
    """See ``executor.Builder``. Its actor was found fit. Without it, this builder is lost and leaves its pool."""

    def __init__(self, actor: Any, node: str, deadlines: Deadlines) -> None:
        super().__init__(deadlines)
        self.adopt(lambda: (actor, node))

    @property
    def is_lost(self) -> bool:
        return self._actor is None

    def build(self, workload: Json, schedule: Json) -> BuildReport:
        """Raises ActorLost and NodeLost besides what BuilderSupervisor raises."""
        return cast(BuildReport, self._call("build", workload, schedule))


class RayBuilderPool:
    """Keeps builders in a pool, from a thread of its own.

        wanted actors ─ start where Ray has a processor free ─▶ versions ─ as the runner's ─▶ join the pool
                                                                         └ others ─▶ dropped, and wanted no more

    The first is on the runner's host and asks for no processor, so that no executor is without a builder while others
    have all processors. The others ask for one each, wherever it is, and wait until Ray has room for them. A builder
    that was lost is replaced. Where none is fit, all work of the pool fails with a WorkerLost that says what differs.
    The thread ends soon after ``closing`` is set.
    """

    def __init__(
        self, pool: WorkerPool[Builder], spec: WorkerSpec, wanted: int, node: str, expected: Callable[[], Versions]
    ) -> None:
        """``node`` is the id of the runner's, and ``expected`` tells the versions there. That may take a while, and
        raise WorkerLost."""
        self.closing = threading.Event()
        self._pool = pool
        self._spec = spec
        self._wanted = wanted
        self._expected = expected
        self._first = actor_class(BuilderActor, num_cpus=0, scheduling_strategy=on_node(node))
        self._further = actor_class(BuilderActor, num_cpus=1, scheduling_strategy="SPREAD")
        self._starting: dict[Any, Any] = {}
        self._thread = threading.Thread(target=self._work, name="ray-builders", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            with cluster_errors():
                self._keep()
        except WorkerLost as lost:  # also what a closed pool says
            self._pool.fail(lost)
        finally:
            for actor in self._starting.values():
                kill(actor)

    def _keep(self) -> None:
        self._start()
        expected = self._expected()
        looked = time.monotonic()
        while not self.closing.is_set():
            self._start()
            self._admit(expected)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                check_head()  # another one would never start a builder

    def _start(self) -> None:
        """Have Ray start as many actors as are missing."""
        while len(self._starting) + len(self._pool) < self._wanted:
            builder = self._further if self._starting or len(self._pool) else self._first
            actor = builder.remote(self._spec)
            self._starting[actor.versions.remote()] = actor

    def _admit(self, expected: Versions) -> None:
        """Take in the actors that have started, or wait a moment if there are none."""
        if not self._starting:
            self.closing.wait(_POLL_SECONDS)
            return
        for answer in ray.wait(list(self._starting), timeout=_POLL_SECONDS)[0]:
            actor = self._starting.pop(answer)
            why = ""
            try:
                versions, node = ray.get(answer)
                why = expected.difference(versions)
            except ray.exceptions.RayTaskError as error:
                why = error.cause.message if isinstance(error.cause, TilewrightError) else str(error.cause)
            except ray.exceptions.RayActorError as error:
                if not error.actor_init_failed:  # it was lost before it could join, and is replaced
                    kill(actor)
                    continue
                why = str(error).strip().rpartition("\n")[2]
            if why:
                self._drop(actor, why)
            else:
                self._pool.add(RemoteBuilder(actor, node, self._spec.settings.deadlines))

    def _drop(self, actor: Any, why: str) -> None:
        """Do without an actor that cannot build what the runner runs. Raises WorkerLost where none is left."""
        kill(actor)
        _log.warning("a builder is not used, its host differs from the runner's: %s", why)
        self._wanted -= 1
        if not self._wanted:
            raise WorkerLost(f"no builder can build for the runner's host: {why}")
