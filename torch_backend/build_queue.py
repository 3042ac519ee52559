"""What is built in the background: one thing at a time, what was asked for last first, and nothing while a first answer
is awaited."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.convert_frame import compile_lock

QUIET_SECONDS = 0.05
"""How long nobody has awaited a first answer when building begins. A trace behind a graph break begins sooner."""
MOST_SECONDS = 30.0
"""How long building waits at most, where one trace follows another."""
_POLL_SECONDS = 0.01

_lock = threading.Lock()
_waiting: "list[weakref.WeakMethod[Callable[[], Any]]]" = []
_builds = False
_first_calls = 0
_latest = 0.0  # when a first answer was last awaited


def build_soon(build: Callable[[], None]) -> None:
    """Call a method in the background, unless its object is gone by then. One thread does so for all: a model that
    meets new shapes faster than programs are built has neither a thread nor a program for each that is forgotten."""
    global _builds
    with _lock:
        _waiting[:] = [waiting for waiting in _waiting if waiting() is not None]
        _waiting.append(weakref.WeakMethod(build))
        if _builds:
            return
        _builds = True
    threading.Thread(target=_build_all, name="tilewright-build", daemon=True).start()


@contextmanager
def first_call() -> Iterator[None]:
    """The first call of a graph, during which nothing begins to be built."""
    global _first_calls, _latest
    with _lock:
        _first_calls += 1
    try:
        yield
    finally:
        with _lock:
            _first_calls -= 1
            _latest = time.monotonic()


def _build_all() -> None:
    global _builds
    while True:
        _wait_for_answers()
        with _lock:
            if not _waiting:
                _builds = False
                return
            build = _waiting.pop()()
        if build is not None:
            build()
        del build


def _wait_for_answers() -> None:
    """Return when nothing has been traced, and no graph has been in its first call, for ``QUIET_SECONDS``. Both would
    have to share the interpreter with what is built."""
    global _latest
    until = time.monotonic() + MOST_SECONDS
    while (now := time.monotonic()) < until:
        traces = not compile_lock.acquire(blocking=False)
        if not traces:
            compile_lock.release()
        with _lock:
            if traces or _first_calls:
                _latest = now
            if now - _latest >= QUIET_SECONDS:
                return
        time.sleep(_POLL_SECONDS)
