"""Gives the tests of the fleet a store on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import as_migrated, migrated
from tilewright.tests.db.postgres import PostgresServer


@pytest.fixture(scope="session")
def migrated_url(postgres: PostgresServer) -> str:
    """The address of a database that went through all migrations, for one test after the other."""
    url = postgres.url()
    migrated(url).close()
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def fleet_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fleet_url(fleet_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of either kind."""
    if fleet_kind == "sqlite":
        return f"sqlite:///{tmp_path}/tilewright.sqlite3"
    running: PostgresServer = request.getfixturevalue("postgres")
    return running.url()


@pytest.fixture
def fleet_store(fleet_kind: str, request: pytest.FixtureRequest) -> Iterator[RecordStore]:
    if fleet_kind == "sqlite":
        with migrated(request.getfixturevalue("fleet_url")) as opened:
            yield opened
    else:
        yield request.getfixturevalue("shared_store")


@pytest.fixture
def shared_store(migrated_url: str) -> Iterator[RecordStore]:
    """A store on PostgreSQL, which several processes may open. Its tables stay as they are: to make another database
    takes a third of a second of a processor."""
    with RecordStore(migrated_url) as opened:
        as_migrated(opened)
        yield opened


@pytest.fixture
def own_store(postgres: PostgresServer) -> Iterator[RecordStore]:
    """A ``shared_store`` whose tables the test may change."""
    with migrated(postgres.url()) as opened:
        yield opened
