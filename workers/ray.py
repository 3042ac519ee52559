"""The executor on Ray: builder actors, and one runner actor, pinned to the host of its unit.

An actor only carries a supervisor, the same that the local executor uses: hangs and crashes of candidates are met
inside it, by its child, and cost no actor. What is met here is the loss of an actor or of its host. Ray itself neither
retries nor restarts, because it cannot know whether a lost call had an effect. Nor does it give out devices: whoever
opens an executor has leased the unit, and actors ask Ray for no GPU.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import ray

from ..core.errors import WorkerLost
from ..core.fleet import Unit
from ..core.target import Profile, Target
from .child_supervisor import WorkerSpec
from .executor import Executor
from .losses import Abandoned, NodeLost
from .probe import local_unit
from .ray_actor import Versions, node_of
from .ray_builders import RayBuilderPool
from .ray_runner import RemoteRunner
from .settings import ExecutorSettings, builder_count

KNOCK_SECONDS = 5.0
"""Within so long something has to listen at the address of a cluster."""


class RayExecutor(Executor):
    """Builder actors, wherever Ray has a processor free, and one runner actor on the host of ``unit``.

    It uses the Ray that this process is connected to, or connects to the cluster at ``settings.ray_address``. Without
    an address it starts a Ray of its own, without a dashboard and with token authentication. ``close`` disconnects, and
    stops what was started. Raises WorkerLost when there is no Ray, and NodeLost when the unit's host is not part of it.
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
        settings = settings or ExecutorSettings()
        unit = unit or local_unit(target.kind)
        spec = WorkerSpec(target, profile or Profile(), seed, settings, unit, fence)
        self._connected = connect(settings.ray_address)
        try:
            node = node_of(unit)
        except WorkerLost:
            self._disconnect()
            raise
        self._remote_runner = RemoteRunner(spec, node)
        super().__init__(spec, [], self._remote_runner)
        self._builder_pool = RayBuilderPool(self._builders, spec, builder_count(settings), node, self._versions)

    def close(self) -> None:
        self._builder_pool.closing.set()
        super().close()
        self._builder_pool.join()
        self._disconnect()

    def _versions(self) -> Versions:
        """Return the versions on the runner's host. Raises WorkerLost."""
        while True:
            try:
                return self._runner.submit(lambda _: self._remote_runner.versions()).result()
            except (Abandoned, CancelledError):  # a closed executor raises another WorkerLost
                continue

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = False
            ray.shutdown()


def connect(address: str) -> bool:
    """Return whether Ray had to be connected to: the cluster at ``address``, or a new one of this process where that is
    empty. A cluster that Ray starts for its own process demands a token by default (since 2.60); asking for it through
    the environment would come too late, for Ray reads that when it is imported. Raises WorkerLost, which is a NodeLost
    where a cluster does not answer or refuses this process."""
    if ray.is_initialized():
        return False
    # read by the processes that ray.init starts; with Ray's niceness of 15 a busy host gives them next to nothing
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        _knock(address)
        with _termination_kept():
            ray.init(address or "local", log_to_driver=False, configure_logging=False, **local)
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        lost = NodeLost if address else WorkerLost
        raise lost(_why_no_cluster(address, error)) from error
    return True


@contextmanager
def _termination_kept() -> Iterator[None]:
    """Give SIGTERM back to whoever heard it before the block. Ray takes the signal for itself, in Python and in C++,
    and would end a task worker at once that is told to give its task back. Signals are the main thread's."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at ``HOST:PORT``. Ray itself would try for 20 s. Other forms of addresses
    are Ray's business."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


def _why_no_cluster(address: str, error: BaseException) -> str:
    """Say why Ray is not connected. Ray has the cause in the text of the error that led to its own."""
    if not address:
        return f"Ray did not start: {error}"
    why = f"{error!r} {error.__cause__}"
    if "AuthenticationError" in why and "WrongClusterID" not in why:  # Ray says the same of a head that has just come
        return (
            f"the Ray cluster at {address} wants another token than this process has; set RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH as its nodes have it"
        )
    return f"no Ray cluster answers at {address}: {error}"
