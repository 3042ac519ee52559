"""One process opens an embedded database: a lock file beside it says which."""

import errno
import fcntl
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from ..core.errors import StorageFull, StoreError


class FileLock:
    """Held from construction to ``release``; the operating system drops it when the process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError naming the process that holds the lock, or why the file cannot be written."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _describe(os.pread(self._descriptor, 4096, 0))
            os.close(self._descriptor)
            raise StoreError(
                f"{path.with_suffix('')} is in use by {holder}; one process at a time opens an embedded database: "
                "stop that one, speak to it over HTTP, or use PostgreSQL"
            ) from error
        started = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"pid": os.getpid(), "command": " ".join(sys.argv)[:200], "since": started}
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(note).encode(), 0)
        except OSError as error:
            self.release()
            raise _cannot_write(path, error) from error

    def release(self) -> None:
        """Give the lock up; the file stays (removing it would let two processes lock two files of one name)."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _cannot_write(path: Path, error: OSError) -> StoreError:
    kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"cannot write {path}: {error.strerror}")


def _describe(note: bytes) -> str:
    try:
        data = json.loads(note)
        return f"process {data['pid']} ({data['command']}, since {data['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"
