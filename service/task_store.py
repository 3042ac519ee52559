"""What a task worker reads and writes, wherever the database is.

On PostgreSQL a worker has connections of its own. The file of an embedded database belongs to the process that opened
it, so that workers call that process through the pipe that it started them with:

    worker  ── ("records", "add_trial", arguments, keywords) ──▶  server
            ◀─ (True, result)  or  (False, error) ──────────────
            ── ("note", None, (trial or None,), {}) ────────────▶  something was committed; no answer
            ── ("alive", None, (), {}) ─────────────────────────▶  no answer either

Both ends are the same program, so that values travel as pickles.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from ..core.errors import StoreError
from ..core.trial import Trial

if TYPE_CHECKING:  # it loads SQLAlchemy, which the task worker of an embedded database does without
    from ..db.artefact_store import ArtefactStore
    from ..db.fleet_store import FleetStore
    from ..db.store import RecordStore

METHODS = {
    "records": frozenset(
        "add_remeasurement add_trial begin_task devices earlier_trials history history_groups history_tasks job "
        "keep_model measured newest_model newest_record note_task set_device trials trials_by_seconds workload "
        "workloads".split()
    ),
    "fleet": frozenset(
        "adopt_known claim_task end_attempt excuse_delay finish_task has_ready is_wanted join_unit lease_unit "
        "leave_unit release renew set_unit_state units wanted".split()
    ),
    "artefacts": frozenset({"keep"}),
}
"""The methods that a worker may call."""
NOTE, ALIVE = "note", "alive"
ALIVE_SECONDS = 0.5
"""A worker says so often that it is alive."""


@dataclass(frozen=True, slots=True)
class TaskStore:
    """All three may be proxies, which have the METHODS alone."""

    records: "RecordStore"
    fleet: "FleetStore"
    artefacts: "ArtefactStore"

    @classmethod
    def of(cls, store: "RecordStore") -> "TaskStore":
        """Return the parts of a store of this process's own."""
        return cls(store, store.fleet, store.artefacts)


def serve_worker(
    connection: Connection,
    store: "RecordStore",
    noted: Callable[[Trial | None], None],
    heard: Callable[[], None],
) -> None:
    """Answer a worker until its end of the pipe is closed. ``noted`` is called when it committed something, with the
    trial if it was one, and ``heard`` with each message."""
    targets = {"records": store, "fleet": store.fleet, "artefacts": store.artefacts}
    try:
        while True:
            name, method, arguments, keywords = connection.recv()
            heard()
            if name == NOTE:
                noted(*arguments)
            if name in (NOTE, ALIVE):
                continue
            try:
                if method not in METHODS[name]:
                    raise StoreError(f"a worker called {name}.{method}")
                answer = (True, getattr(targets[name], method)(*arguments, **keywords))
            except Exception as error:  # the worker meets what it would meet with a store of its own
                answer = (False, error)
            connection.send(answer)
    except (EOFError, OSError):
        return


class ServerPipe:
    """The worker's end. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._said = 0.0

    def alive(self) -> None:
        """Say that this worker is alive, if it has not said so a moment ago."""
        if time.monotonic() - self._said >= ALIVE_SECONDS:
            self._said = time.monotonic()
            with self._lock:
                self._connection.send((ALIVE, None, (), {}))

    def note(self, trial: Trial | None = None) -> None:
        """Say that something was committed, and which trial it was if it was one."""
        with self._lock:
            self._connection.send((NOTE, None, (trial,), {}))

    def call(self, name: str, method: str, *arguments: object, **keywords: object) -> Any:
        """Call a method of the server's store. Raises what it raises, and StoreError where the server is gone."""
        with self._lock:
            try:
                self._connection.send((name, method, arguments, keywords))
                good, answer = self._connection.recv()
            except (EOFError, OSError) as error:
                raise StoreError("the process that has the database open is gone") from error
        if not good:
            raise answer
        return answer

    def store(self) -> TaskStore:
        """Return the server's store."""
        return TaskStore(
            cast("RecordStore", _Proxy(self, "records")),
            cast("FleetStore", _Proxy(self, "fleet")),
            cast("ArtefactStore", _Proxy(self, "artefacts")),
        )


class _Proxy:
    def __init__(self, pipe: ServerPipe, name: str) -> None:
        self._pipe = pipe
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in METHODS[self._name]:
            raise AttributeError(method)
        return partial(self._pipe.call, self._name, method)
