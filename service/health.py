"""Checks whether the service can do its work, and says what is wrong when it cannot."""

import shutil
from collections.abc import Callable
from pathlib import Path

from .. import __version__
from ..core.errors import TilewrightError
from ..db.store import RecordStore
from .settings import Settings
from .views import HealthView


def check_health(
    settings: Settings,
    store: RecordStore,
    thread_alive: Callable[[], bool],
    warnings: Callable[[], tuple[str, ...]],
) -> HealthView:
    """Return the result of every check, and warnings if the database answers. Never raises: a failure is a result."""
    checks = {"database": "ok"}
    try:
        store.ping()
    except TilewrightError as error:
        checks["database"] = error.message
    folder = store.folder
    if folder is not None:
        checks["disk"] = _disk(folder, settings.minimum_free_bytes)
    checks["job thread"] = "ok" if thread_alive() else "it does not run: no job makes progress"
    ready = all(result == "ok" for result in checks.values())
    return HealthView(ready, __version__, checks, warnings() if checks["database"] == "ok" else ())


def _disk(folder: Path, minimum: int) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return "ok" if free >= minimum else f"{free >> 20} MiB free, {minimum >> 20} MiB wanted"
