"""Wakes the threads that wait for an event."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class CommitNotifier:
    """``notify`` is called after each commit of this process. ``poll_seconds`` is how often waiters look for the
    commits of other processes; None means that there are no others."""

    def __init__(self, poll_seconds: float | None) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._closed = False
        self._poll_seconds = poll_seconds

    def notify(self) -> None:
        """Wake the waiters: something was committed."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Wake the waiters and let nobody wait any longer."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

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
                if self._count == seen:
                    self._condition.wait(left if self._poll_seconds is None else min(left, self._poll_seconds))
