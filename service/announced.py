"""Tells which service runs on an embedded database, without loading a service."""

from ..db.engine import embedded_path, parse_url
from ..db.lock import lock_path, read_holder
from .settings import Settings
from .views import RunningService


def announced_service(settings: Settings) -> RunningService | None:
    """Return the service that says beside the embedded database of ``settings`` that it runs on it. That service may
    have ended: ask it for its ``instance``. None where nothing is said, and for a server's database. Raises
    InvalidParameter for a bad database URL."""
    path = embedded_path(parse_url(settings.database_url))
    holder = None if path is None else read_holder(lock_path(path))
    if holder is None or holder.url is None:
        return None
    return RunningService(holder.url, holder.instance, holder.lasting)
