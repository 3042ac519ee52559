"""Says which task workers a service has, for the next service on its host: when one is killed, its workers die with it,
and nobody else could say so. Their leases end at once then, and do not have to run out.

A journal is a file in the folder of device locks, which is locked as long as its service lives:

    {"boot": "8c7a…", "memory_kills": 36, "owners": ["1f0c…", …]}

Workers of a host that was started again are not reported: a task may have ended it. What they died of is judged as for
any worker (``worker_death``).
"""

import fcntl
import hashlib
import json
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from .worker_death import WorkerDeath, memory_kills

BOOT = Path("/proc/sys/kernel/random/boot_id")


class WorkerJournal:
    """The journal of this process, and what those of dead ones say that used the same database."""

    def __init__(self, folder: Path, database_url: str) -> None:
        """Journals lie in ``folder``. Where no file can be made there, nothing is written nor found."""
        url = urlsplit(database_url)
        place = f"{url.hostname}:{url.port}{url.path}?{url.query}"
        self._folder = folder
        self._prefix = f"tilewright-workers-{hashlib.sha256(place.encode()).hexdigest()[:16]}-"
        self._path = folder / f"{self._prefix}{secrets.token_hex(8)}.journal"
        try:
            self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError:
            self._descriptor = None

    def write(self, owners: Sequence[str]) -> None:
        """Note the owners of the leases of all workers that this process has, before the last of them starts."""
        if self._descriptor is not None:
            line = json.dumps({"boot": _boot(), "memory_kills": memory_kills(), "owners": list(owners)}) + "\n"
            os.pwrite(self._descriptor, line.encode(), 0)  # what is left behind the line is passed over

    def dead_workers(self) -> Iterator[tuple[str, WorkerDeath]]:
        """Yield the owner of each worker that died with its service on this host, and how it died. A journal is
        deleted once all that it says was taken."""
        for path in sorted(self._folder.glob(f"{self._prefix}*.journal")):
            if path == self._path:
                continue
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():  # anybody may write to a folder for temporary files
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield from _deaths(os.pread(descriptor, 1 << 20, 0))
                path.unlink(missing_ok=True)
            except BlockingIOError:  # its service lives
                continue
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """This process has no workers any more."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _deaths(content: bytes) -> Iterator[tuple[str, WorkerDeath]]:
    try:
        said = json.loads(content.partition(b"\n")[0])
    except ValueError:  # it had no worker yet
        return
    if said["boot"] and said["boot"] == _boot():
        for owner in said["owners"]:
            yield owner, WorkerDeath(-signal.SIGKILL, False, said["memory_kills"], memory_kills())


def _boot() -> str:
    """Name this start of the machine; empty where the kernel does not say."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
