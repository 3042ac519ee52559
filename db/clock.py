"""The database's own time: seconds since 1970, the same for every host that uses the database.

Leases, deadlines and what was seen until when are compared inside the database, so that no clock of a host matters. On
PostgreSQL ``clock_timestamp`` goes on within a transaction, where ``now`` stands still. On SQLite ``unixepoch`` with
parts of a second exists only from 3.42 on; before, it gives NULL, with which every comparison is false.
"""

from typing import Any

from sqlalchemy import Connection, Float, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_POSTGRESQL_START = "SELECT CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time()) AS DOUBLE PRECISION)"


class clock(FunctionElement[float]):
    """Stands in a statement for the present time in seconds, as a float of 64 bits."""

    type = Float()
    inherit_cache = True


@compiles(clock, "postgresql")
def _postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(clock, "sqlite")
def _sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


def server_start(connection: Connection) -> float:
    """Return when the database's server started; 0 for SQLite, which has none."""
    if connection.dialect.name != "postgresql":
        return 0.0
    return float(connection.exec_driver_sql(_POSTGRESQL_START).scalar_one())


def database_now(connection: Connection) -> float:
    """Return the present time of the database."""
    return float(connection.execute(select(clock())).scalar_one())
