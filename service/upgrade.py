"""Upgrades a database to the schema that this program needs, on request."""

from ..db.engine import Database, parse_url
from ..db.migrate import upgrade
from .settings import Settings


def upgrade_database(settings: Settings) -> tuple[str | None, str]:
    """Run the missing migrations; return (migration before, migration now), which are equal when there was nothing to
    do.

    Raises InvalidParameter for a bad URL, DatabaseInUse, and StoreError when the database is unreachable or newer than
    this program.
    """
    database = Database(parse_url(settings.database_url))
    try:
        return upgrade(database)
    finally:
        database.close()
