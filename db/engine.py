"""Opens a database, SQLite by default and PostgreSQL by URL, and reads and writes both in one way."""

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from ..core.errors import InvalidParameter, StoreError
from .driver_errors import translated
from .lock import DatabaseLock, lock_path

WRITING, AUTOCOMMIT = "tilewright_writing", "tilewright_autocommit"

SILENT_LINK = {"tcp_user_timeout": 5000, "keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}
"""A connection over TCP that is cut without a word is given up after some seconds (libpq, "Connection Parameters"; the
first in ms). By default that takes many minutes, for which a request or a worker would hang."""
IDLE_IN_TRANSACTION_SECONDS = 5
"""PostgreSQL ends the session of a process that stops for so long inside a transaction. Its locks would keep others
from ending its leases."""
MAPPED_BYTES = 1 << 31
"""So much of an embedded database is read where it lies in memory (SQLite maps at most 2 GiB). Look-ups of many
workloads read another page each time, and would copy it by a system call."""
SINGLE_CONNECTIONS = 8
"""A process has so many for single statements that read, beside the 32 of its pool."""
STATEMENT_SECONDS = 60
"""PostgreSQL gives a statement up after so long, unless the transaction is ``writing(unlimited=True)``."""


def parse_url(text: str) -> URL:
    """Parse the URL of a database; ``postgresql://`` means psycopg 3. Raises InvalidParameter for any other kind."""
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


def embedded_path(url: URL) -> Path | None:
    """Return the file of an embedded database; None for the database of a server."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


class Database:
    """Holds an open engine. ``reading`` and ``writing`` give connections inside one transaction.

    One thread at a time writes to SQLite: ``writing`` takes a lock and begins IMMEDIATE. This also avoids the WAL-reset
    defect of SQLite before 3.51.3, which needs two connections that write or checkpoint at once.
    """

    def __init__(self, url: URL) -> None:
        """Raises StoreError when the database is in use by another process or cannot be opened."""
        self.url = url
        path = embedded_path(url)
        self.embedded = path is not None
        self._write_lock = threading.RLock()
        self._idle: list[Connection] = []
        self._closed = False
        self.lock = None if path is None else DatabaseLock(_prepared(path))
        try:
            self.engine = _engine(url, self.embedded)
        except ModuleNotFoundError as error:
            raise StoreError("PostgreSQL needs the extra: pip install 'tilewright[pg]'") from error
        self._single = self.engine if self.embedded else _engine_of_single_statements(url)
        if self.embedded:
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database (SQLite), or one state a statement (PostgreSQL)."""
        with translated(self.url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """Give a connection for a single statement that reads, without a transaction around it.

        On SQLite they stay open, because opening and closing would cost a third of a look-up. Threads share them: each
        connection maps the file anew, and a page that it has not read yet costs as much as a look-up. On PostgreSQL
        they have a pool of their own, where neither a ping nor the end of a transaction is another wait for the
        server."""
        if not self.embedded:
            with translated(self.url), self._single.connect() as connection:
                yield connection
            return
        with translated(self.url):
            try:
                kept = self._idle.pop()  # the one used last: its pages are mapped
            except IndexError:
                kept = self.engine.connect().execution_options(**{AUTOCOMMIT: True})
            try:
                yield kept
            finally:
                if not (kept.closed or kept.invalidated):
                    self._idle.append(kept)
                if self._closed:  # by another thread, meanwhile
                    self._close_idle()

    @contextmanager
    def writing(self, *, unlimited: bool = False) -> Iterator[Connection]:
        """Give a connection inside a transaction, which is stored as a whole or not at all. With ``unlimited``, its
        statements may take as long as they want. Raises StoreError, and StorageFull when there is no room."""
        with self._writer(), translated(self.url), self.engine.connect() as connection:
            connection = connection.execution_options(**{WRITING: True})
            with connection.begin():
                if unlimited and not self.embedded:
                    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                yield connection

    @property
    def driver_error(self) -> type[BaseException]:
        """The class of what the driver raises."""
        return self.engine.dialect.loaded_dbapi.Error

    @property
    def raw_cursor(self) -> Any:
        """psycopg's class of cursors that take PostgreSQL's own placeholders (``$1``)."""
        return self.engine.dialect.loaded_dbapi.RawCursor

    def own_connection(self) -> Any:
        """Return a connection of psycopg to PostgreSQL that is not the pool's, without a transaction around its
        statements. The caller closes it, and turns what it raises into errors of ours (``driver_errors.driven``)."""
        pooled = self.engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.autocommit = True
        return connection

    @contextmanager
    def _writer(self) -> Iterator[None]:
        if not self.embedded:
            yield
            return
        with self._write_lock:
            yield

    def connections(self) -> tuple[int, int]:
        """Return how many connections of the pool are (in use, idle), those for single statements apart."""
        pool = self.engine.pool
        assert isinstance(pool, QueuePool)
        return pool.checkedout(), pool.checkedin()

    def close(self) -> None:
        """Close every connection and give the lock up."""
        with self._writer():
            self._closed = True
            self._close_idle()
            self.engine.dispose()
            self._single.dispose()
        if self.lock is not None:
            self.lock.release()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # threads may do this at the same time
            while True:
                self._idle.pop().close()


def _prepared(path: Path) -> Path:
    """Return the lock file of the database at ``path``; make its folder when that is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
    except OSError as error:
        raise StoreError(f"cannot use the folder {path.parent}: {error.strerror}") from error
    if is_folder:
        raise StoreError(f"{path} is a folder, not a database")
    return lock_path(path)


def _engine(url: URL, embedded: bool) -> Engine:
    if embedded:
        # with isolation_level None the driver begins no transaction by itself: _begin_sqlite does
        return create_engine(url, connect_args={"isolation_level": None, "timeout": 5.0}, pool_size=8, max_overflow=64)
    arguments = _postgres_arguments(url)
    return create_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=24, connect_args=arguments)


def _engine_of_single_statements(url: URL) -> Engine:
    """Return an engine whose connections are no transactions. One that the server has closed is noticed without
    asking it: its socket has something to read."""
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
        pool_use_lifo=True,
        pool_size=SINGLE_CONNECTIONS,
        max_overflow=0,
        connect_args=_postgres_arguments(url),
    )
    event.listen(engine, "checkout", _refuse_closed)
    return engine


def _refuse_closed(connection: Any, _entry: ConnectionPoolEntry, _proxy: object) -> None:
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    if connection.closed or waiting.poll(0):
        raise DisconnectionError("the server has closed the connection")  # the pool takes another one


def _postgres_arguments(url: URL) -> dict[str, Any]:
    given = url.query.get("options", "")
    options = [given] if isinstance(given, str) else list(given)
    options.append(f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_SECONDS}s")
    options.append(f"-c statement_timeout={STATEMENT_SECONDS}s")
    return {"connect_timeout": 3, **SILENT_LINK, "options": " ".join(filter(None, options))}


def _set_up_sqlite(connection: object, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # with FULL a commit survives power loss, not only the death of the process
    pragmas = (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "temp_store=MEMORY",
        f"mmap_size={MAPPED_BYTES}",
    )
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # with IMMEDIATE a transaction that will write takes the lock at once, instead of failing half-way
    options = connection.get_execution_options()
    if AUTOCOMMIT not in options:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if WRITING in options else "BEGIN")
