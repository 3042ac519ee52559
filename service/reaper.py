"""Ends leases that ran out, in a front end: where no process has task workers, nobody else would."""

import threading
from collections.abc import Callable

import structlog

from ..core.errors import StoreError
from ..db.fleet_store import FleetStore

log = structlog.get_logger()


class LeaseReaper:
    """A thread that calls ``FleetStore.reap`` every ``seconds``, and ``on_commit`` after it."""

    def __init__(self, fleet: FleetStore, seconds: float, on_commit: Callable[[], None]) -> None:
        self._fleet = fleet
        self._seconds = seconds
        self._on_commit = on_commit
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after what is under way."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self._fleet.reap()
                self._on_commit()
            except StoreError as error:
                log.error("leases wait", error=error.message)
            except Exception:
                log.exception("leases wait after a fault of the program")
