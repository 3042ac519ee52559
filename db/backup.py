"""Copies a database into one file, and back.

SQLite's file is copied by its own backup, which sees one state while the process that has it open goes on. PostgreSQL's
own programs, pg_dump and pg_restore, copy the database of a server; they get the password through the environment.
"""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import URL

from ..core.errors import Conflict, InvalidParameter, StoreError
from .driver_errors import display_name
from .engine import embedded_path
from .lock import DatabaseLock, lock_path

VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "username": "PGUSER",
    "password": "PGPASSWORD",
    "database": "PGDATABASE",
}
"""What libpq reads from the environment."""
_MARKS = {"SQLite": b"SQLite format 3\x00", "PostgreSQL": b"PGDMP"}
"""What copies begin with."""


def back_up(url: URL, file: Path) -> int:
    """Copy the database into a new file; return how many bytes that has. Raises Conflict where the file is there,
    InvalidParameter where its folder is not, and StoreError, after which there is no file."""
    if file.exists():
        raise Conflict(f"{file} is there already", field="file")
    if not file.absolute().parent.is_dir():
        raise InvalidParameter(f"cannot write {file}: {file.absolute().parent} is no folder", field="file")
    path = embedded_path(url)
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        if path is None:
            _run(url, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={partial}")
        else:
            _copy(path, partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.rename(file)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return file.stat().st_size


def restore(url: URL, file: Path) -> None:
    """Make the database what it was when the file was written. It must not exist yet, or on a server be empty. Raises
    Conflict, InvalidParameter for a file of another kind, and StoreError, after which it is as before."""
    if not file.is_file():
        raise InvalidParameter(f"there is no file {file}", field="file")
    with file.open("rb") as opened:
        begin = opened.read(16)
    found = next((name for name, mark in _MARKS.items() if begin.startswith(mark)), None)
    path = embedded_path(url)
    wanted = "PostgreSQL" if path is None else "SQLite"
    if found != wanted:
        what = f"is a copy of a {found} database" if found else "is no copy of a database"
        raise InvalidParameter(f"{file} {what}; {wanted} is to be restored", field="file")
    if path is None:
        options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
        _run(url, "pg_restore", *options, f"--dbname={url.database}", str(file))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, partial = DatabaseLock(lock_path(path)), path.with_name(f"{path.name}.partial")
    try:
        if path.exists():
            raise Conflict(f"{display_name(url)} exists already: move it away first", field="database_url")
        _copy(file, partial)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
        lock.release()


def _copy(source: Path, target: Path) -> None:
    """Copy a whole SQLite database, and check the copy. Raises StoreError."""
    if not source.exists():
        raise StoreError(f"there is no database {source}")
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as read:
            with closing(sqlite3.connect(target)) as written:
                read.backup(written)
                written.execute("PRAGMA journal_mode=DELETE")
                ((found,),) = written.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise StoreError(f"cannot copy {source}: {error}") from error
    if found != "ok":
        target.unlink(missing_ok=True)
        raise StoreError(f"{source} is damaged: {found}")


def _run(url: URL, name: str, *arguments: str) -> None:
    program = _program(name)
    parts = {"host": url.query.get("host") or url.host, "port": url.port, "username": url.username}
    parts |= {"password": url.password, "database": url.database}
    given = {VARIABLES[part]: str(value) for part, value in parts.items() if value}
    done = subprocess.run(
        [program, *arguments], env={**os.environ, **given}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise StoreError(f"{display_name(url)}: {lines[0]}")


def _program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs: that on the path, or the newest that Debian keeps apart."""
    apart = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    found = shutil.which(name) or (str(apart[-1]) if apart else None)
    if found is None:
        raise StoreError(f"{name} is not installed: it comes with PostgreSQL's client programs")
    return found
