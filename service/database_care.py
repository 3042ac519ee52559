"""Looks after a database as a whole, on request: copies it, brings it back, and checks it."""

from pathlib import Path

from ..db import migrate
from ..db.backup import back_up, restore
from ..db.check import faults
from ..db.engine import Database, parse_url
from .settings import Settings


def back_up_database(settings: Settings, file: Path) -> int:
    """Copy the database into a new file, also while it is in use; return how many bytes that has. Raises
    InvalidParameter, Conflict, StoreError."""
    return back_up(parse_url(settings.database_url), file)


def restore_database(settings: Settings, file: Path) -> None:
    """Make a database, which must not be there yet, from such a file. Raises InvalidParameter, Conflict, DatabaseInUse,
    StoreError."""
    restore(parse_url(settings.database_url), file)


def check_database(settings: Settings) -> list[str]:
    """Return what is wrong with a database; nothing where all is well. Raises InvalidParameter, DatabaseInUse, and
    StoreError, also where the database stands at another migration."""
    database = Database(parse_url(settings.database_url))
    try:
        migrate.check(database)
        return faults(database)
    finally:
        database.close()
