"""A supervisor in a Ray actor, seen from the driver, and which node it is on."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..core.errors import TilewrightError, WorkerLost
from ..core.fleet import Unit
from ..core.log_context import Ids, log_plainly, present_ids, working_for
from ..core.target import Toolchain
from .losses import Abandoned, ActorLost, DriverLost, NodeLost
from .settings import Deadlines

HOST_LABEL = "tilewright-host"
"""A node with this label has its value as the name of its host. Without it, the host's own name counts."""
NODE_SECONDS = 15.0
"""How long a node that is out of reach may take to be declared dead, or to come back. Ray needs 14 s by default."""
LOOK_SECONDS = 5.0
"""Whoever waits for an actor looks so often whether the cluster has the same head still."""
_POLL_SECONDS = 0.25
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Versions:
    """What must not differ between the host of the runner and those of builders."""

    toolchain: Toolchain
    python: str
    ray: str

    def difference(self, other: "Versions") -> str:
        """Return what differs, for people; empty where nothing does."""
        ours, theirs = ({"python": v.python, "ray": v.ray, **v.toolchain.components} for v in (self, other))
        names = sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
        return ", ".join(f"{n} {theirs.get(n, 'none')} instead of {ours.get(n, 'none')}" for n in names)


class RemoteSupervisor:
    """Calls a supervisor in an actor. ``interrupt`` may come from any thread, the rest from one."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._patience_seconds = patience_seconds(deadlines)
        self._actor: Any = None
        self._node = ""
        self._interrupted = False
        self._lock = threading.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether it can do no more work. By default an actor that is gone is replaced."""
        return False

    def adopt(self, make: Callable[[], tuple[Any, str]]) -> None:
        """Take an actor and the id of its node from ``make``, if there is no actor. Raises DriverLost."""
        with self._lock, cluster_errors():
            if self._actor is None:
                self._actor, self._node = make()

    def start(self) -> None:
        """Have an actor, if one can be had. Raises DriverLost."""

    def resume(self) -> None:
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        self.close()

    def close(self) -> None:
        """Kill the actor; its child dies with it."""
        with self._lock:
            if self._actor is not None:
                kill(self._actor)
                self._actor = None

    def _call(self, method: str, *arguments: object) -> Any:
        """Return the answer of the actor.

        Raises Abandoned when the call is interrupted, what the supervisor itself raises, and ActorLost, NodeLost
        or DriverLost when there is no answer. There is no actor then.
        """
        self.start()
        actor = self._actor
        if self._interrupted or actor is None:  # looked at after there is an actor that ``interrupt`` could have seen
            raise Abandoned()
        began = actor.ping.remote()
        level = _log.getEffectiveLevel()
        try:
            answer = actor.work_for.remote(dict(present_ids()), level, method, *arguments)
            return self._awaited(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TilewrightError):  # the supervisor itself could not go on
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            if self._interrupted:
                raise Abandoned() from error
            lost = self._loss(error, method, began)
            self.close()
            raise lost from error

    def _awaited(self, answer: Any) -> Any:
        """Wait for an answer, and look from time to time whether one can still come: Ray does not say that a new head
        refused to register an actor, or has never heard of it. Raises RayError."""
        until = time.monotonic() + self._patience_seconds
        while not ray.wait([answer], timeout=LOOK_SECONDS)[0]:
            if self._interrupted or time.monotonic() > until or not has_its_head():
                break
        return ray.get(answer, timeout=0)

    def _loss(self, error: Exception, method: str, began: Any) -> WorkerLost:
        """Return what the loss of the actor means. A call to a silent node fails sooner than Ray says that it is
        dead."""
        said = str(error).strip().partition("\n")[0]
        until = time.monotonic() + NODE_SECONDS
        try:
            while is_alive(self._node):
                if isinstance(error, ray.exceptions.GetTimeoutError):
                    return ActorLost(f"no answer to {method} within {self._patience_seconds:g} s")
                silent = isinstance(error, ray.exceptions.ActorUnavailableError)
                if not silent or time.monotonic() > until or self._interrupted:
                    return ActorLost(f"the actor was lost in {method}: {said}", began=_succeeded(began))
                time.sleep(_POLL_SECONDS)
        except DriverLost as gone:
            return gone
        return NodeLost(f"the node {self._node[:8]} was lost in {method}: {said}")


class Ping:
    """What an actor has besides its supervisor."""

    def ping(self) -> None:
        """Answer, which shows that this actor lives."""

    def work_for(self, ids: Ids, level: int, method: str, *arguments: object) -> Any:
        """Call ``method``. Lines that it logs from ``level`` on go to this actor's file of Ray, with the ids of the
        work (``core.log_context``)."""
        log_plainly(level)
        with working_for(ids):
            return getattr(self, method)(*arguments)


def _succeeded(answer: Any) -> bool:
    try:
        ray.get(answer, timeout=0)
    except ray.exceptions.RayError:
        return False
    return True


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Raise DriverLost for what Ray raises where it cannot go on."""
    try:
        yield
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        raise DriverLost(f"Ray cannot go on: {error}") from error


def actor_class(supervisor: type, **options: object) -> Any:
    """Return the actor class of a supervisor. It is made at run time: there is no type for it."""
    remote: Any = ray.remote(supervisor)
    return remote.options(max_restarts=0, max_task_retries=0, num_gpus=0, **options)


def kill(actor: Any) -> None:
    """End an actor now, if it has not ended."""
    with suppress(ray.exceptions.RayError, ValueError, RuntimeError):
        ray.kill(actor, no_restart=True)


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """There and nowhere else: with ``soft`` Ray may choose another node though this one is alive."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def host_of(node: dict[str, Any]) -> str:
    """Return the name of the host that a row of ``ray.nodes()`` is about."""
    return str(node.get("Labels", {}).get(HOST_LABEL) or node["NodeManagerHostname"])


def check_head() -> None:
    """Raise DriverLost where the head is gone, or another one has taken the place of that which this process connected
    to. Unlike ``ray.nodes()``, which may end the process then, what is asked here raises an error."""
    with cluster_errors():
        ray.util.list_named_actors()


def has_its_head() -> bool:
    """Return whether ``check_head`` has nothing to say."""
    try:
        check_head()
    except DriverLost:
        return False
    return True


def alive_nodes() -> list[dict[str, Any]]:
    """Return the rows of ``ray.nodes()`` that are alive. Raises DriverLost."""
    check_head()
    with cluster_errors():
        return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def is_alive(node: str) -> bool:
    return any(row["NodeID"] == node for row in alive_nodes())


def node_of(unit: Unit) -> str:
    """Return the id of the node of a unit. Raises NodeLost when it is not part of the cluster."""
    nodes = {host_of(row): str(row["NodeID"]) for row in reversed(alive_nodes())}
    if unit.host not in nodes:
        raise NodeLost(f"the host {unit.host} of unit {unit.uuid} is not in the cluster, which has {', '.join(nodes)}")
    return nodes[unit.host]


def patience_seconds(deadlines: Deadlines) -> float:
    """After how many seconds an actor counts as lost although Ray thinks that it lives. Everything inside it could have
    timed out twice by then."""
    return 2 * (sum(seconds for stage, seconds in deadlines.by_stage().items() if stage != "wait") + 10.0)
