"""Deletes old rows now and then, as the settings say."""

import threading

import structlog

from ..core.errors import StoreError
from ..db.retention import Retention
from ..db.store import RecordStore
from .settings import Settings

log = structlog.get_logger()

FIRST_SECONDS, INTERVAL_SECONDS = 20.0, 3600.0


class RetentionThread:
    """A thread that adds up what has ended, makes partitions for the months that come, and deletes what is too old,
    every hour. Several processes may do it at once."""

    def __init__(self, settings: Settings, store: RecordStore) -> None:
        self._keep = Retention(settings.keep_event_days, settings.keep_key_days, settings.keep_trial_days)
        self._store = store
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after what is under way."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        wait = FIRST_SECONDS
        while not self._closing.wait(wait):
            wait = INTERVAL_SECONDS
            try:
                self._store.count_ended()
                deleted = self._store.delete_old(self._keep)
                if any(deleted.values()):
                    log.info("old rows deleted", **deleted)
                made = self._store.make_months()
                if made:
                    log.info("partitions made", names=made)
            except StoreError as error:
                log.error("old rows stay", error=error.message)
            except Exception:
                log.exception("old rows stay after a fault of the program")
