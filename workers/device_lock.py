"""The lock of a device: one program at a time may measure on it."""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


class DeviceLock:
    """A file lock that all programs with the same folder share, in containers too where they mount it. The kernel
    releases it when the process that holds it ends.

    While it is held, the file says for people who holds it: ``{"pid": 12, "fence": 3, "since": "2026-01-02T…"}``. The
    number is that of the holder's own container. A user who may not write the file locks it all the same.
    """

    def __init__(self, name: str, folder: Path | None = None, fence: int = 0) -> None:
        """``name`` is unique among all devices; an empty name locks nothing. ``folder`` is where the lock file lies,
        by default the folder for temporary files. ``fence`` is that of the holder's lease, and 0 without one."""
        self._fence = fence
        self._writable = False
        self._descriptor: int | None = None
        if name:
            self._descriptor, self._writable = _opened((folder or Path(tempfile.gettempdir())) / _file_name(name))

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
            self._write({"pid": os.getpid(), "fence": self._fence, "since": datetime.now(UTC).isoformat()})
            yield
        finally:
            self._write({})
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _write(self, holder: dict[str, object]) -> None:
        if self._descriptor is not None and self._writable:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(holder).encode() if holder else b"", 0)


def _file_name(name: str) -> str:
    return "tilewright-device-" + "".join(c if c.isalnum() else "-" for c in name) + ".lock"


def _opened(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the file, and whether it may be written. A file that belongs to another user is opened for
    reading, which suffices to lock it. In a folder for temporary files, such a file must not be opened with O_CREAT."""
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, flags | os.O_CLOEXEC), flags == os.O_RDWR
        except FileNotFoundError:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), True
        except PermissionError:
            if flags == os.O_RDONLY:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")
