"""A worker pool: one thread for each supervisor, all fed from one queue."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

from ..core.errors import WorkerLost


class Worker(Protocol):
    """What a pool needs of a supervisor. ``interrupt`` comes from another thread, the rest from the supervisor's
    own."""

    @property
    def is_lost(self) -> bool:
        """Whether it can do no more work, so that it leaves its pool."""
        ...

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
    daemons, so that a program may end without closing the pool. Supervisors may join at any time, and leave when they
    are lost; work waits while there is none.
    """

    def __init__(self, supervisors: Sequence[S], name: str) -> None:
        self._name = name
        self._members: dict[threading.Thread, S] = {}
        self._queue: deque[tuple[Future[Any], Callable[[S], Any]]] = deque()
        self._pending: set[Future[Any]] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._error: WorkerLost | None = None
        for supervisor in supervisors:
            self.add(supervisor)

    def __len__(self) -> int:
        """Return how many supervisors there are."""
        return len(self._members)

    def add(self, supervisor: S) -> None:
        """Let a supervisor join. Raises WorkerLost once the pool is closed."""
        with self._changed:
            if self._closed:
                raise WorkerLost("this executor is closed")
            name = f"{self._name}-{len(self._members)}"
            thread = threading.Thread(target=self._run, args=(supervisor,), name=name, daemon=True)
            self._members[thread] = supervisor
            thread.start()

    def fail(self, error: WorkerLost) -> None:
        """Answer all work with ``error``, since no supervisor is left and none will join."""
        with self._changed:
            self._error = error
            left = [future for future, _ in self._queue]
            self._queue.clear()
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def submit(self, work: Callable[[S], R]) -> Future[R]:
        """Have the next free supervisor do ``work``, as a part of what the caller works for (``core.log_context``).
        Raises WorkerLost once the pool is closed or has failed."""
        future: Future[R] = Future()
        context = copy_context()
        with self._changed:
            if self._closed:
                raise WorkerLost("this executor is closed")
            if self._error is not None:
                raise self._error
            self._pending.add(future)
            self._queue.append((future, lambda supervisor: context.run(work, supervisor)))
            self._changed.notify_all()
        future.add_done_callback(self._pending.discard)
        return future

    def abandon(self) -> None:
        """Cancel what has not begun, interrupt what has, and wait until every supervisor is free. A supervisor that is
        lost by that leaves, whether it had work or not."""
        pending = list(self._pending)
        begun = [future for future in pending if not future.cancel()]
        if begun:
            for supervisor in list(self._members.values()):
                supervisor.interrupt()
            with self._changed:
                self._changed.notify_all()
        for future in begun:
            future.exception()

    def close(self) -> None:
        """Abandon everything and end the supervisors. A second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.abandon()
        for thread in list(self._members):
            thread.join()

    def _run(self, supervisor: S) -> None:
        try:
            # a supervisor that cannot start says so to its first caller, who can handle it
            with suppress(OSError, WorkerLost):
                supervisor.start()
            while (item := self._next(supervisor)) is not None:
                future, work = item
                supervisor.resume()  # before the future runs: from then on an interruption means this call
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(work(supervisor))
                    except BaseException as error:
                        future.set_exception(error)
        finally:
            supervisor.close()
            with self._changed:
                del self._members[threading.current_thread()]

    def _next(self, supervisor: S) -> tuple[Future[Any], Callable[[S], Any]] | None:
        """Wait for work. None where the supervisor is lost, or the pool is closed and all its work was given out."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed or supervisor.is_lost)
            return self._queue.popleft() if self._queue and not supervisor.is_lost else None
