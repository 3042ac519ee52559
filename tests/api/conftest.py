"""Fixtures: a service on a real SQLite file that stores jobs but does not run them, and the server over it."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser

from tilewright.api import assets
from tilewright.api.app import create_app
from tilewright.api.client import Client
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.browser import chromium
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import migrated


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("service")
    return Settings(database_url=f"sqlite:///{folder}/tilewright.sqlite3", run_jobs=False)


@pytest.fixture(scope="module")
def store(settings: Settings) -> RecordStore:
    return migrated(settings.database_url)


@pytest.fixture(scope="module")
def service(settings: Settings, store: RecordStore) -> Iterator[Service]:
    with Service(settings, store) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(service: Service, settings: Settings) -> Iterator[str]:
    with running(create_app(service, settings)) as found:
        yield found


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=address, trust_env=False, timeout=120) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    with Client(address) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not assets.assets_present():
        assets.install_assets()
    with chromium() as found:
        yield found
