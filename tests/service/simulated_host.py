"""Simulated devices whose task workers die and are started again: ``python -m …simulated_host URL NUMBER …``."""

import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tilewright.core.errors import StoreError
from tilewright.core.fleet import OWNER_BYTES, AttemptEnd
from tilewright.db import leases
from tilewright.db.store import RecordStore
from tilewright.service.worker_death import WorkerDeath
from tilewright.tests.service.fork_server import ForkedProcess, ForkServer
from tilewright.tests.service.simulated import work

MODULE = "tilewright.tests.service.simulated_host"
CHECK_SECONDS = 0.2
END_SECONDS = 60.0


class SimulatedHost:
    """So many task workers as there are ``urls``, each in a process of its own, run inside the block. One that ends is
    started again, and ``store`` is told, as ``TaskWorkerPool`` does. ``unfenced`` plants a bug: no write checks its
    fence."""

    def __init__(
        self,
        store: RecordStore,
        forks: ForkServer,
        urls: Sequence[str],
        trial_seconds: float,
        lease_seconds: float,
        log: Path,
        *,
        unfenced: bool = False,
    ) -> None:
        self._store = store
        self._forks = forks
        self._urls = urls
        self._words = [str(trial_seconds), str(lease_seconds), *(["unfenced"] if unfenced else [])]
        self._log = log
        self._workers: dict[int, tuple[str, ForkedProcess]] = {}
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def processes(self) -> list[psutil.Process]:
        found = []
        for _, worker in list(self._workers.values()):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(worker.pid))
        return found

    def _supervise(self) -> None:
        while True:
            for number, url in enumerate(self._urls):
                before = self._workers.get(number)
                if before is None or before[1].poll() is not None:
                    if before is not None:
                        self._died(before[0])
                    owner = secrets.token_hex(OWNER_BYTES)
                    words = [url, str(number), owner, *self._words]
                    self._workers[number] = owner, self._forks.start(MODULE, words, {}, self._log)
            if self._closing.wait(CHECK_SECONDS):
                return

    def _died(self, owner: str) -> None:
        """The worker never ends by itself."""
        death = WorkerDeath(-signal.SIGKILL, False, 0, 0)
        with suppress(StoreError):  # the leases run out then
            self._store.fleet.end_leases_of(owner, death.end or AttemptEnd.KILLED, death.detail)

    def __enter__(self) -> Self:
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._supervisor.join()
        for worker in [process for _owner, process in self._workers.values()]:
            worker.send_signal(signal.SIGKILL)
            worker.wait(END_SECONDS)


def main(url: str, number: int, owner: str, trial_seconds: float, lease_seconds: float, *, unfenced: bool) -> None:
    if unfenced:
        leases.guard = lambda connection, lease: None
    while True:
        try:
            work(url, number, trial_seconds, lease_seconds, owner)
        except StoreError:
            time.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(float, sys.argv[4:6]), unfenced=len(sys.argv) > 6)
