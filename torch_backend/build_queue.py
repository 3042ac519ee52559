"""What is built in the background: one thing at a time, what was asked for last first."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_waiting: "list[weakref.WeakMethod[Callable[[], Any]]]" = []
_builds = False


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


def _build_all() -> None:
    global _builds
    while True:
        with _lock:
            if not _waiting:
                _builds = False
                return
            build = _waiting.pop()()
        if build is not None:
            build()
        del build
