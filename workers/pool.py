"""A worker pool: one thread for each supervisor, all fed from one queue."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from ..core.errors import WorkerLost


class Worker(Protocol):
    """What a pool needs of a supervisor. ``interrupt`` comes from another thread, the rest from the supervisor's
    own."""

    def start(self) -> None: ...

    def resume(self) -> None:
        """A new call begins, to which earlier interruptions do not apply."""
        ...

    def interrupt(self) -> None:
        """Make the call in progress raise WorkerLost soon."""
        ...

    def close(self) -> None: ...


S = TypeVar("S", bound=Worker)
R = TypeVar("R")


class WorkerPool(Generic[S]):
    """Supervisors, each of which is started, used and closed on a thread of its own that lives until ``close``.

    A child dies with the thread that spawned it, so the thread must live as long as the supervisor. The threads are
    daemons, so that a program may end without closing the pool.
    """

    def __init__(self, supervisors: Sequence[S], name: str) -> None:
        self._supervisors = tuple(supervisors)
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[S], Any]] | None] = SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(s,), name=f"{name}-{i}", daemon=True)
            for i, s in enumerate(self._supervisors)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[S], R]) -> Future[R]:
        """Have the next free supervisor do ``work``. Raises WorkerLost once the pool is closed."""
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise WorkerLost("this executor is closed")
            self._pending.add(future)
            self._queue.put((future, work))
        future.add_done_callback(self._pending.discard)
        return future

    def abandon(self) -> None:
        """Cancel what has not begun, interrupt what has, and wait until every supervisor is free."""
        pending = list(self._pending)
        begun = [future for future in pending if not future.cancel()]
        if begun:
            for supervisor in self._supervisors:
                supervisor.interrupt()
        for future in begun:
            future.exception()

    def close(self) -> None:
        """Abandon everything and end the supervisors. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._queue.put(None)
        self.abandon()
        for thread in self._threads:
            thread.join()

    def _work(self, supervisor: S) -> None:
        try:
            with suppress(OSError):  # a supervisor that cannot start says so to its first caller, who can handle it
                supervisor.start()
            while (item := self._queue.get()) is not None:
                future, work = item
                supervisor.resume()  # before the future runs: from then on an interruption means this call
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(work(supervisor))
                    except BaseException as error:
                        future.set_exception(error)
        finally:
            supervisor.close()
