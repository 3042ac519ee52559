"""Upgrades a database to the schema that this program knows, and refuses one that a newer program wrote, unless that
program left it so that this one may go on.

    server N-1 runs  ─▶  `tilewright db upgrade` of N  ─▶  servers N-1 and N side by side  ─▶  servers N alone

A migration may say two things. ``online``: statements that PostgreSQL runs before it, each by itself and while others
write (CREATE INDEX CONCURRENTLY IF NOT EXISTS). ``lives_with_before``: programs without the migration may use the
database after it; what it adds is nullable or has a default, and it takes nothing away. Each migration is one
transaction on PostgreSQL. An upgrade that was killed goes on where it was, when it is run again.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, delete, insert, inspect, select
from sqlalchemy.schema import SchemaItem

from ..core.errors import StoreError
from .best import fill_best
from .driver_errors import display_name, driven
from .engine import Database
from .tables import compatible_programs, events, metadata

LOCK_SECONDS = 5
"""A migration waits so long for a table that others use, and whoever comes after it waits as long. Then it gives up."""
RETRY_SECONDS = 0.2
ADVISORY_LOCK = 0x7465_6C69
"""One upgrade at a time holds this lock of PostgreSQL."""
_INVALID = """
SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I', relname) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE NOT indisvalid AND relnamespace = CAST(current_schema() AS regnamespace)"""


def head() -> str:
    """Return the newest migration that this program knows."""
    found = _scripts().get_current_head()
    if found is None:
        raise StoreError("the program is installed without its migrations")
    return found


def current(connection: Connection) -> str | None:
    """Return the migration that the database stands at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def check(database: Database) -> None:
    """Raises StoreError unless this program may use the database: it stands at ``head()``, or at a later migration that
    programs of ours live with. It says whether to upgrade the database or the program."""
    with database.reading() as connection:
        found = current(connection)
        if found == head() or _lives_with(connection, found):
            return
    _refuse_newer(database, found)
    raise StoreError(
        f"{display_name(database.url)} is at migration {found or 'none'}, this program needs {head()}: "
        "run `tilewright db upgrade`"
    )


def upgrade(database: Database, to: str = "head") -> tuple[str | None, str]:
    """Run the missing migrations, and fill what follows from other tables; return the migrations (before, after).
    Raises StoreError for a newer database, and for one whose tables are not known to be ours."""
    with _alone(database) as lone:
        with database.reading() as connection:
            before = current(connection)
            if before != head() and _lives_with(connection, before):
                return before, str(before)
            _refuse_foreign(database, connection, before)
        _refuse_newer(database, before)
        missing = _missing(before, to)
        # what only adds leaves the table of best records as it is, and writers keep it up meanwhile
        fill = to == "head" and not all(getattr(script.module, "lives_with_before", False) for script in missing)
        # an embedded database has one process, and an empty one none that waits
        steps = [[script] for script in missing] if lone is not None and before is not None else [missing]
        for step in filter(None, steps):
            if lone is not None and before is not None:
                _run_online(lone, step[0])
            with database.writing(unlimited=True) as connection:
                _run(connection, step[-1].revision, briefly=lone is not None)
                if fill and step is steps[-1]:
                    fill_best(connection)
    return before, head() if to == "head" else to


def _missing(before: str | None, to: str) -> list[Script]:
    """Return the migrations to run, the first of them first."""
    scripts = _scripts()
    last = head() if to == "head" else to
    return [script for script in scripts.iterate_revisions(last, before or "base")][::-1] if last != before else []


@contextmanager
def _alone(database: Database) -> Iterator[Any]:
    """Let nobody else upgrade a server's database during the block, and give a connection for online statements."""
    if database.embedded:
        yield None
        return
    with driven(database.url, database.driver_error), database.own_connection() as lone:
        lone.execute("SET statement_timeout = 0")
        # whoever waited inside a statement would keep CREATE INDEX CONCURRENTLY from ending
        while not lone.execute(f"SELECT pg_try_advisory_lock({ADVISORY_LOCK})").fetchone()[0]:
            time.sleep(RETRY_SECONDS)
        yield lone


def _run_online(lone: Any, script: Script) -> None:
    statements = getattr(script.module, "online", ())
    if statements:
        for (drop,) in lone.execute(_INVALID).fetchall():  # an upgrade was killed while it made this index
            lone.execute(drop)
    for statement in statements:
        lone.execute(statement)


def _run(connection: Connection, to: str, *, briefly: bool) -> None:
    if briefly:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata
    command.upgrade(config, to)
    if to == head():
        connection.execute(delete(compatible_programs))
        connection.execute(insert(compatible_programs), [{"migration": name} for name in _compatible()])


def _compatible() -> list[str]:
    """Return the newest migrations of programs that live with a database at ``head()``."""
    found = [head()]
    for script in _scripts().walk_revisions():
        if not getattr(script.module, "lives_with_before", False):
            break
        found.append(str(script.down_revision))
    return found


def _lives_with(connection: Connection, found: str | None) -> bool:
    """Return whether a database at the migration ``found`` says that this program may use it."""
    if found is None or not inspect(connection).has_table(compatible_programs.name):
        return False
    ours = select(compatible_programs.c.migration).where(compatible_programs.c.migration == head())
    return connection.execute(ours).first() is not None


def _refuse_foreign(database: Database, connection: Connection, found: str | None) -> None:
    """Raises StoreError where there is no version beside tables with names of ours."""
    taken = sorted(set(inspect(connection).get_table_names()) & metadata.tables.keys()) if found is None else []
    if taken:
        name = display_name(database.url)
        raise StoreError(
            f"{name} has a table {taken[0]}, and nothing says which version of Tilewright made it: "
            "it is another program's, or the copy of a part; allowed: an empty or a new database"
        )


def _refuse_newer(database: Database, found: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            f"{display_name(database.url)} is at migration {found}, which this program does not know: a newer "
            f"Tilewright wrote it (this one knows up to {head()}); upgrade the program"
        )


@cache
def _scripts() -> ScriptDirectory:
    """Return the migrations that this program has."""
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    folder = files(__package__).joinpath("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def differences(connection: Connection) -> list[object]:
    """Return what a migration would still have to change before the database has the tables of ``tables.py``."""
    server = connection.dialect.name == "postgresql"

    def compared(item: SchemaItem, name: str | None, kind: str, reflected: bool, _other: SchemaItem | None) -> bool:
        partition = server and reflected and kind == "table" and str(name).startswith(f"{events.name}_")
        return not partition and not (server and item.info.get("sqlite_only"))

    context = MigrationContext.configure(connection, opts={"include_object": compared})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*expression-based index")  # such an index is not compared
        return list(compare_metadata(context, metadata))
