"""Bringing a database to the form this program needs, on request."""

from ..db.engine import Database, parse_url
from ..db.migrate import upgrade
from .settings import Settings


def upgrade_database(settings: Settings) -> tuple[str | None, str]:
    """Run the missing migrations; (migration before, migration now), equal when there was nothing to do.

    Raises InvalidParameter for a bad URL, StoreError when the database is in use, unreachable or newer than this.
    """
    database = Database(parse_url(settings.database_url))
    try:
        return upgrade(database)
    finally:
        database.close()
