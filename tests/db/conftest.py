"""Gives the tests of the fleet a store on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import migrated
from tilewright.tests.db.postgres import PostgresServer, server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def fleet_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tilewright.sqlite3"
    running: PostgresServer = request.getfixturevalue("postgres")
    return running.url()


@pytest.fixture
def fleet_store(fleet_url: str) -> Iterator[RecordStore]:
    with migrated(fleet_url) as opened:
        yield opened


@pytest.fixture
def shared_store(postgres: PostgresServer) -> Iterator[RecordStore]:
    """A store on PostgreSQL, which several processes may open."""
    with migrated(postgres.url()) as opened:
        yield opened
