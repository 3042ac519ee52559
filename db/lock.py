"""Lets one process at a time open an embedded database: a lock file beside the database names the process.

The operating system holds the lock (``flock``) and drops it when the process ends, however it ends. The text of the
file is a note for other processes: who holds the lock, and under which address it answers over HTTP, if it does. A
process that was killed leaves its note behind. Whoever takes the lock next replaces it, and whoever only reads it asks
the address for its ``instance`` before believing the note.
"""

import errno
import fcntl
import json
import os
import secrets
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.errors import DatabaseInUse, StorageFull, StoreError

_MAX_NOTE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Holds what the lock file says of the process that holds the lock."""

    pid: int
    command: str
    since: str
    instance: str
    """A random name of this opening of the database. The service at ``url`` answers with the same one."""
    url: str | None = None
    """Where the process answers over HTTP; None while it does not."""
    lasting: bool = False
    """Whether the service at ``url`` runs until somebody stops it. Otherwise it ends with the command it belongs to."""

    def __str__(self) -> str:
        answers = "" if self.url is None else f", answering on {self.url}"
        return f"process {self.pid} ({self.command}, since {self.since}{answers})"


def lock_path(database: Path) -> Path:
    """Return where the lock file of an embedded database lies."""
    return database.with_name(database.name + ".lock")


def read_holder(path: Path) -> LockHolder | None:
    """Return what the lock file says, or None where it says nothing. The process that it names may have ended."""
    try:
        with path.open("rb") as file:
            return _parsed(file.read(_MAX_NOTE_BYTES))
    except OSError:
        return None


class DatabaseLock:
    """The lock is held from construction to ``release``."""

    def __init__(self, path: Path) -> None:
        """Raises DatabaseInUse naming the process that holds the lock, and StoreError when the file cannot be
        written."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _parsed(os.pread(self._descriptor, _MAX_NOTE_BYTES, 0))
            os.close(self._descriptor)
            raise DatabaseInUse(
                f"{path.with_suffix('')} is in use by {holder or 'another process'}; one process at a time opens an "
                "embedded database: stop that one, speak to it over HTTP, or use PostgreSQL"
            ) from error
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.holder = LockHolder(os.getpid(), " ".join(sys.argv)[:200], started, secrets.token_hex(8))
        self._write(self.holder)

    def announce(self, url: str, *, lasting: bool) -> None:
        """Say in the lock file under which address this process answers. Raises StoreError."""
        self.holder = replace(self.holder, url=url, lasting=lasting)
        self._write(self.holder)

    def release(self) -> None:
        """Give the lock up. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor < 0:
            return
        try:
            os.ftruncate(self._descriptor, 0)  # nobody answers any longer
        except OSError:
            pass  # a note that is left behind is recognised as one
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, holder: LockHolder) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(asdict(holder)).encode(), 0)
        except OSError as error:
            self.release()
            raise _cannot_write(self.path, error) from error


def _cannot_write(path: Path, error: OSError) -> StoreError:
    kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"cannot write {path}: {error.strerror}")


def _parsed(note: bytes) -> LockHolder | None:
    try:
        data: dict[str, Any] = json.loads(note)
        url = data.get("url")
        return LockHolder(
            int(data["pid"]),
            str(data["command"]),
            str(data["since"]),
            str(data.get("instance", "")),
            None if url is None else str(url),
            data.get("lasting") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
