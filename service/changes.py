"""Waking those who wait for an event."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """Told after each commit of this process. ``poll_seconds``: how often to look for the commits of others
    (None: there are none)."""

    def __init__(self, poll_seconds: float | None) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._closed = False
        self._poll_seconds = poll_seconds

    def tell(self) -> None:
        """Something was committed."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def wait_for(self, look: Callable[[], T], seconds: float) -> T:
        """``look()`` as soon as it gives something that is true, or what it gives when the time is over."""
        end = time.monotonic() + seconds
        while True:
            with self._condition:
                seen = self._count
            found = look()
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            with self._condition:
                if self._closed:
                    return found
                if self._count == seen:
                    self._condition.wait(left if self._poll_seconds is None else min(left, self._poll_seconds))
