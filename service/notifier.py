"""Wakes the threads that wait for an event, in this process and in others on the same PostgreSQL."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..db.store import RecordStore

T = TypeVar("T")

POLL_SECONDS = 0.3
"""How often to look for what was committed, where nobody tells."""
LISTENING_POLL_SECONDS = 2.0
"""How often to look where other processes tell. One that dies right after a commit does not."""


class CommitNotifier:
    """``on_tasks`` is called when another process has told that tasks may be ready."""

    def __init__(self, store: RecordStore, on_tasks: Callable[[], None]) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._closed = False
        self._on_tasks = on_tasks
        self._listener = None if store.embedded else store.listener(self._heard)

    def notify(self, *, tasks: bool = False) -> None:
        """Wake the waiters: this process has committed something, by which ``tasks`` may be ready."""
        self._wake()
        if self._listener is not None:
            self._listener.announce(tasks=tasks)

    def poll_seconds(self) -> float:
        """Return how often to look for what nobody told of."""
        listening = self._listener is not None and self._listener.listening
        return LISTENING_POLL_SECONDS if listening else POLL_SECONDS

    def close(self) -> None:
        """Wake the waiters and let nobody wait any longer."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def stop(self) -> None:
        """Listen to other processes no longer."""
        if self._listener is not None:
            self._listener.close()

    def wait_for(self, query: Callable[[], T], seconds: float) -> T:
        """Return the result of ``query()`` as soon as it is true, or its last result when the time is over."""
        end = time.monotonic() + seconds
        while True:
            with self._condition:
                seen = self._count
            found = query()
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            with self._condition:
                if self._closed:
                    return found
                if self._count == seen:  # whoever opened an embedded database is told of every commit
                    self._condition.wait(left if self._listener is None else min(left, self.poll_seconds()))

    def _heard(self, tasks: bool) -> None:
        self._wake()
        if tasks:
            self._on_tasks()

    def _wake(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()
