"""What goes wrong in a database, told in one line: unreachable, read-only, full, locked, damaged."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..core.errors import Conflict, StorageFull, StoreError

SQLITE = {
    "SQLITE_READONLY": "is read-only for this user",
    "SQLITE_PERM": "may not be opened by this user",
    "SQLITE_AUTH": "may not be opened by this user",
    "SQLITE_CANTOPEN": "cannot be opened: the folder is missing, or this user may not write there",
    "SQLITE_BUSY": "is locked by another program",
    "SQLITE_LOCKED": "is locked by another program",
    "SQLITE_CORRUPT": "is damaged: restore it from a copy",
    "SQLITE_NOTADB": "is no SQLite database",
    "SQLITE_IOERR": "could not be read or written: the disk reports an error",
}
"""SQLite's primary error names and what they mean to a person."""

POSTGRES = {
    "08": "the connection broke",
    "28": "the user or password is refused",
    "3D": "there is no such database",
    "42501": "this user lacks the permission",
    "25006": "it is read-only",
    "53300": "it has too many connections",
    "57P": "it is shutting down or starting up",
}
"""Prefixes of PostgreSQL's SQLSTATE and what they mean to a person."""


class Duplicate(Conflict):
    """A unique key is there already: somebody else was first."""


def shown(url: URL) -> str:
    """The database as a message names it: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return f"database {url.database}"
    return f"database {url.render_as_string(hide_password=True)}"


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Within it, whatever the database driver raises becomes a StoreError (StorageFull when there is no room)."""
    try:
        yield
    except IntegrityError as error:
        raise Duplicate(f"{shown(url)} refuses a row: {_first_line(error.orig)}") from error
    except DBAPIError as error:
        raise explain(url, error) from error
    except PoolTimeout as error:
        raise StoreError(f"{shown(url)} is too busy: no free connection") from error
    except SQLAlchemyError as error:
        raise StoreError(f"{shown(url)}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{shown(url)}: the disk is full") from error
        raise


def explain(url: URL, error: DBAPIError) -> StoreError:
    """The StoreError that tells what ``error`` means."""
    if isinstance(error.orig, sqlite3.Error):
        name = getattr(error.orig, "sqlite_errorname", "")
        if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):  # the latter: no room for the index shared by readers
            return StorageFull(f"{shown(url)}: the disk is full")
        for prefix, meaning in SQLITE.items():
            if name.startswith(prefix):
                return StoreError(f"{shown(url)} {meaning}")
    else:
        state = getattr(error.orig, "sqlstate", None) or ""
        if state == "53100":
            return StorageFull(f"{shown(url)}: the server's disk is full")
        for prefix, meaning in POSTGRES.items():
            if state.startswith(prefix):
                return StoreError(f"{shown(url)}: {meaning}")
        if isinstance(error, OperationalError):
            return StoreError(f"{shown(url)} cannot be reached: {_first_line(error.orig)}")
    return StoreError(f"{shown(url)}: {_first_line(error.orig)}")


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
