"""A device is timed by one program at a time: who times holds its lock."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class DeviceLock:
    """A lock that all programs on this machine share. It is gone with the process that holds it, however that ends."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """``name``: the device's own, among all of this machine; empty: nothing is locked. ``folder``: where the lock
        lies; by default the one for temporary files."""
        self._descriptor = None if not name else _opened((folder or Path(tempfile.gettempdir())) / _file_name(name))

    @contextmanager
    def held(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Inside, the device is ours; ``waiting`` is called once when another program has it."""
        if self._descriptor is None:
            yield
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _file_name(name: str) -> str:
    return "tilewright-device-" + "".join(c if c.isalnum() else "-" for c in name) + ".lock"


def _opened(path: Path) -> int:
    """Only for reading, which suffices to lock: it may be another user's."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
