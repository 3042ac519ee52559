"""The lock of a device: one program at a time may measure on it."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class DeviceLock:
    """A file lock that all programs on this machine share. The kernel releases it when the process that holds it
    ends."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """``name`` is unique among the devices of this machine; an empty name locks nothing. ``folder`` is where the
        lock file lies, by default the folder for temporary files."""
        self._descriptor = None if not name else _opened((folder or Path(tempfile.gettempdir())) / _file_name(name))

    @contextmanager
    def held(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock inside the block. ``waiting`` is called once where another program holds it."""
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
    """A descriptor for reading, which suffices to lock a file that may belong to another user."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
