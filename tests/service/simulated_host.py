"""Simulated devices whose task workers die and are started again: ``python -m …simulated_host URL NUMBER SECONDS``."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

import psutil

from tilewright.core.errors import StoreError
from tilewright.db import leases
from tilewright.tests.service.simulated import work
from tilewright.workers.main import die_with

MODULE = "tilewright.tests.service.simulated_host"
CHECK_SECONDS = 0.5
END_SECONDS = 60.0


class SimulatedHost:
    """So many task workers as there are ``urls``, each in a process of its own, run inside the block. One that ends is
    started again. ``unfenced`` plants a bug: no write checks its fence."""

    def __init__(
        self,
        urls: Sequence[str],
        trial_seconds: float,
        lease_seconds: float,
        environment: Mapping[str, str],
        *,
        unfenced: bool = False,
    ) -> None:
        self._urls = urls
        self._words = [str(trial_seconds), str(lease_seconds), str(os.getpid()), *(["unfenced"] if unfenced else [])]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
        self._workers: dict[int, psutil.Popen] = {}
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def processes(self) -> list[psutil.Process]:
        return [worker for worker in list(self._workers.values()) if worker.poll() is None]

    def _supervise(self) -> None:
        while True:
            for number, url in enumerate(self._urls):
                worker = self._workers.get(number)
                if worker is None or worker.poll() is not None:
                    words = [sys.executable, "-m", MODULE, url, str(number), *self._words]
                    self._workers[number] = psutil.Popen(words, env=self._environment, stderr=subprocess.DEVNULL)
            if self._closing.wait(CHECK_SECONDS):
                return

    def __enter__(self) -> Self:
        self._supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._supervisor.join()
        for worker in self._workers.values():
            worker.kill()
            worker.wait(END_SECONDS)


def main(url: str, number: int, trial_seconds: float, lease_seconds: float, parent: int, *, unfenced: bool) -> None:
    die_with(parent)
    if unfenced:
        leases.guard = lambda connection, lease: None
    while True:
        try:
            work(url, number, trial_seconds, lease_seconds)
        except StoreError:
            time.sleep(CHECK_SECONDS)


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        float(sys.argv[4]),
        int(sys.argv[5]),
        unfenced=len(sys.argv) > 6,
    )
