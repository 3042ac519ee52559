"""Upgrades a database to the schema that this program knows, and refuses one that a newer program wrote."""

from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from ..core.errors import StoreError
from .best import fill_best
from .driver_errors import display_name
from .engine import Database
from .tables import metadata


def head() -> str:
    """Return the newest migration that this program knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise StoreError("the program is installed without its migrations")
    return found


def current(connection: Connection) -> str | None:
    """Return the migration that the database stands at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def check(database: Database) -> None:
    """Raises StoreError unless the database stands at ``head()``; it says whether to upgrade the database or the
    program."""
    with database.reading() as connection:
        found = current(connection)
    _refuse_newer(database, found)
    if found != head():
        raise StoreError(
            f"{display_name(database.url)} is at migration {found or 'none'}, this program needs {head()}: "
            "run `tilewright db upgrade`"
        )


def upgrade(database: Database, to: str = "head") -> tuple[str | None, str]:
    """Run the missing migrations in one transaction, and fill what follows from other tables; return the migrations
    (before, after). Raises StoreError for a newer database."""
    with database.writing(unlimited=True) as connection:
        before = current(connection)
        _refuse_newer(database, before)
        if before != head():
            config = _config()
            config.attributes["connection"] = connection
            config.attributes["metadata"] = metadata
            command.upgrade(config, to)
            if to == "head":
                fill_best(connection)
    return before, head() if to == "head" else to


def _refuse_newer(database: Database, found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            f"{display_name(database.url)} is at migration {found}, which this program does not know: a newer "
            f"Tilewright wrote it (this one knows up to {head()}); upgrade the program"
        )


def _config() -> Config:
    config = Config()
    folder = files(__package__).joinpath("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def differences(connection: Connection) -> list[object]:
    """Return what a migration would still have to change before the database has the tables of ``tables.py``."""
    return list(compare_metadata(MigrationContext.configure(connection), metadata))
