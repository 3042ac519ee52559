"""Puts the records of ``tests/data/old_database``, which an earlier version wrote, into a database of either kind."""

import gzip
import sqlite3
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, create_engine, select

from tilewright.db import migrate
from tilewright.db.engine import Database, parse_url

FOLDER = Path(__file__).parents[1] / "data" / "old_database"
MIGRATION = "0002"
TABLES = ("devices", "toolchains", "workloads", "jobs", "tasks", "trials", "events", "models")

Rows = Mapping[str, list[dict[str, Any]]]
"""Table name -> its rows by column name, in the order of their keys."""


def unpacked(path: Path) -> str:
    """Make the SQLite database at ``path`` from its dump; return its URL."""
    dump = gzip.decompress((FOLDER / "database.sql.gz").read_bytes()).decode()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump)
    return f"sqlite:///{path}"


def lines() -> list[str]:
    """Return the records as JSON lines."""
    return gzip.decompress((FOLDER / "records.jsonl.gz").read_bytes()).decode().splitlines()


def all_rows(url: str) -> Rows:
    """Read a database without anything of the product in between."""
    engine = create_engine(url)
    reflected = MetaData()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*expression-based index")
        reflected.reflect(engine)
    with engine.connect() as connection:
        found = {
            name: [
                dict(row)
                for row in connection.execute(
                    select(reflected.tables[name]).order_by(*reflected.tables[name].primary_key.columns)
                ).mappings()
            ]
            for name in TABLES
        }
    engine.dispose()
    return found


def copy_rows(rows: Rows, url: str) -> None:
    """Make the tables as they were at the migration of the old database, and insert ``rows``."""
    database = Database(parse_url(url))
    migrate.upgrade(database, MIGRATION)
    reflected = MetaData()
    reflected.reflect(database.engine)
    with database.writing() as connection:
        for name in TABLES:
            connection.execute(reflected.tables[name].insert(), rows[name])
            key = next(iter(reflected.tables[name].primary_key.columns)).name
            if name != "tasks" and not database.embedded:
                connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
                )
    database.close()
