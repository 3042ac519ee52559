"""Opening a database: SQLite by default, PostgreSQL by URL, and one way to read and to write on both."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from ..core.errors import InvalidParameter, StoreError
from .failures import translated
from .lock import FileLock

WRITING, SINGLE = "tilewright_writing", "tilewright_single"
RUNNER_LOCK = 0x7469_6C65_7772
"""The PostgreSQL advisory lock of whoever runs jobs ("tilewr" in ASCII)."""


def parse_url(text: str) -> URL:
    """The URL of a database; ``postgresql://`` means psycopg 3. Raises InvalidParameter for any other kind."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise InvalidParameter(f"{text!r} is no database URL", field="database_url") from error
    backend = url.get_backend_name()
    if backend == "sqlite" and not url.database:
        raise InvalidParameter("an embedded database needs a file: sqlite:///PATH", field="database_url")
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise InvalidParameter(
            f"{backend!r} databases are not supported; allowed: sqlite:///PATH, postgresql://USER@HOST/NAME",
            field="database_url",
        )
    return url.set(drivername="sqlite")


class Database:
    """An open engine. ``reading`` and ``writing`` give connections inside one transaction.

    SQLite is written by one thread at a time (``writing`` takes a lock and begins IMMEDIATE), which also keeps
    clear of the WAL-reset defect of SQLite before 3.51.3: two connections that write or checkpoint at once.
    """

    def __init__(self, url: URL) -> None:
        """Raises StoreError when the database is in use by another process or cannot be opened."""
        self.url = url
        self.embedded = url.get_backend_name() == "sqlite"
        self._write_lock = threading.RLock()
        self._lock: FileLock | None = None
        self._runner: Connection | None = None
        self._kept = threading.local()
        self._to_close: weakref.WeakSet[Connection] = weakref.WeakSet()  # a thread that ends gives its own back
        if self.embedded:
            self._lock = FileLock(_prepared(Path(str(url.database))))
        try:
            self.engine = _engine(url, self.embedded)
        except ModuleNotFoundError as error:
            raise StoreError("PostgreSQL needs the extra: pip install 'tilewright[pg]'") from error
        if self.embedded:
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database (SQLite) or of each statement (PostgreSQL)."""
        with translated(self.url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def asking(self) -> Iterator[Connection]:
        """A connection for a single statement that reads. On SQLite each thread keeps one, without a transaction
        around it: opening and closing would cost a third of a look-up."""
        if not self.embedded:
            with self.reading() as connection:
                yield connection
            return
        with translated(self.url):
            kept: Connection | None = getattr(self._kept, "connection", None)
            if kept is None or kept.closed or kept.invalidated:
                kept = self.engine.connect().execution_options(**{SINGLE: True})
                self._kept.connection = kept
                with self._write_lock:
                    self._to_close.add(kept)
            yield kept

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it or nothing is kept. Raises StoreError, StorageFull when there is no room."""
        with self._writer(), translated(self.url), self.engine.connect() as connection:
            connection = connection.execution_options(**{WRITING: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _writer(self) -> Iterator[None]:
        if not self.embedded:
            yield
            return
        with self._write_lock:
            yield

    def lead(self) -> bool:
        """Become, or stay, the one process that runs jobs on this database. The embedded database has no other;
        on PostgreSQL this holds an advisory lock that the server drops with our connection."""
        if self.embedded:
            return True
        with translated(self.url):
            if self._runner is not None:
                try:
                    self._runner.exec_driver_sql("SELECT 1")
                    return True
                except Exception:
                    self._runner.invalidate()
                    self._runner.close()
                    self._runner = None
                    raise
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({RUNNER_LOCK})").scalar():
                self._runner = connection
                return True
            connection.close()
            return False

    def close(self) -> None:
        """Close every connection and give the lock up."""
        with self._writer():
            if self._runner is not None:
                self._runner.detach()
                self._runner.close()
                self._runner = None
            for kept in list(self._to_close):
                kept.close()
            self.engine.dispose()
        if self._lock is not None:
            self._lock.release()


def _prepared(path: Path) -> Path:
    """The lock file of the database at ``path``, whose folder is made when it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as error:
        raise StoreError(f"cannot use the folder {path.parent}: {error.strerror}") from error
    if is_folder:
        raise StoreError(f"{path} is a folder, not a database")
    return path.with_name(path.name + ".lock")


def _engine(url: URL, embedded: bool) -> Engine:
    if embedded:
        # isolation_level None: the driver begins nothing by itself, _begin_sqlite does
        return create_engine(url, connect_args={"isolation_level": None, "timeout": 5.0}, pool_size=8, max_overflow=64)
    return create_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=24, connect_args={"connect_timeout": 3})


def _set_up_sqlite(connection: object, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # FULL: a commit survives power loss, not only the death of the process
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # IMMEDIATE: a transaction that will write takes the lock at once, instead of failing half-way
    options = connection.get_execution_options()
    if SINGLE not in options:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if WRITING in options else "BEGIN")
