"""Runs task workers alone: a process of a fleet that takes tasks and answers nobody."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from ..core.errors import InvalidParameter
from ..db.store import is_embedded
from .service import Service
from .settings import Settings


def work_until_stopped(
    settings: Settings, *, ready: Callable[[], None] = lambda: None, stopping: Callable[[], None] = lambda: None
) -> None:
    """Search tasks on the devices of this host until SIGTERM or SIGINT, then give them back after the trials that run.
    For the main thread. ``ready`` is called when the signals are heard, and ``stopping`` when one has come.

    Raises InvalidParameter for an embedded database, which one process alone opens, and StoreError when the database
    cannot be opened.
    """
    if is_embedded(settings.database_url):
        raise InvalidParameter(
            "a worker shares a PostgreSQL database with the service (TILEWRIGHT_DATABASE_URL=postgresql://…); an "
            "embedded database is of one process alone: run `tilewright serve`, which works too",
            field="database_url",
        )
    told = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        told.set()

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Service.open(settings.model_copy(update={"run_jobs": True})):
            ready()
            told.wait()
            stopping()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
