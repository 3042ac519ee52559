"""Turns what a database driver raises into errors of one line: unreachable, read-only, full, locked, damaged."""

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
"""What SQLite's primary error names mean to a person."""

POSTGRES = {
    "08": "the connection broke",
    "28": "the user or password is refused",
    "3D": "there is no such database",
    "42501": "this user lacks the permission",
    "25006": "it is read-only",
    "53300": "it has too many connections",
    "55P03": "others use a table all the time: try again",
    "57014": "it took too long, and was given up",
    "57P": "it is shutting down or starting up",
}
"""What prefixes of PostgreSQL's SQLSTATE mean to a person."""


class DuplicateKey(Conflict):
    """A row with this unique key exists already: somebody else was first."""


def display_name(url: URL) -> str:
    """Return how a message names the database: by its path, or by its address without the password."""
    if url.get_backend_name() == "sqlite":
        return f"database {url.database}"
    return f"database {url.render_as_string(hide_password=True)}"


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn whatever the database driver raises inside the block into a StoreError (StorageFull when there is no
    room)."""
    try:
        yield
    except IntegrityError as error:
        raise DuplicateKey(f"{display_name(url)} refuses a row: {_first_line(error.orig)}") from error
    except DBAPIError as error:
        raise explain(url, error) from error
    except PoolTimeout as error:
        raise StoreError(f"{display_name(url)} is too busy: it has no free connection") from error
    except SQLAlchemyError as error:
        raise StoreError(f"{display_name(url)}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{display_name(url)}: the disk is full") from error
        raise


@contextmanager
def driven(url: URL, error_class: type[BaseException]) -> Iterator[None]:
    """Do as ``translated`` does, also for errors of the driver that did not come through SQLAlchemy; ``error_class`` is
    the driver's class of these."""
    with translated(url):
        try:
            yield
        except error_class as error:
            raise DBAPIError.instance("", None, error, error_class) from error  # type: ignore[arg-type]


def explain(url: URL, error: DBAPIError) -> StoreError:
    """Return the StoreError that says what ``error`` means."""
    if isinstance(error.orig, sqlite3.Error):
        name = getattr(error.orig, "sqlite_errorname", "")
        if name in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"):  # the latter means no room for the index that readers share
            return StorageFull(f"{display_name(url)}: the disk is full")
        for prefix, meaning in SQLITE.items():
            if name.startswith(prefix):
                return StoreError(f"{display_name(url)} {meaning}")
    else:
        state = getattr(error.orig, "sqlstate", None) or ""
        if state == "53100":
            return StorageFull(f"{display_name(url)}: the server's disk is full")
        for prefix, meaning in POSTGRES.items():
            if state.startswith(prefix):
                return StoreError(f"{display_name(url)}: {meaning}")
        if isinstance(error, OperationalError):
            return StoreError(f"{display_name(url)} cannot be reached: {_first_line(error.orig)}")
    return StoreError(f"{display_name(url)}: {_first_line(error.orig)}")


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
