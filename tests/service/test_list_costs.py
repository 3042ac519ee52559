"""What lists and pages cost does not grow with the database: counted in instructions of SQLite's virtual machine, which
are the same on every machine and under any load."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import event

from benchmarks import service_records
from benchmarks.service_lists import NAMES, NOT_LISTS, PATHS, addresses
from benchmarks.service_records import RECORDS_PER_WORKLOAD, key_of
from tilewright.api.app import create_app
from tilewright.api.routes import ROUTES, pages
from tilewright.db import record_search, workload_results
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running

STEP = 100
"""Instructions are counted in so many."""
TASKS = 16
JOBS = (10, 30)


def test_every_route_that_reads_is_measured_or_says_why_not() -> None:
    routes = [route for router in ROUTES.values() for route in router.routes if isinstance(route, APIRoute)]
    templates = {route.path for route in routes if "GET" in (route.methods or ())}
    assert templates == PATHS.keys() | NOT_LISTS.keys() and not PATHS.keys() & NOT_LISTS.keys()


@contextmanager
def counting(store: RecordStore) -> Iterator[Counter[str]]:
    """Count the instructions of every connection that the store opens in the block."""
    counted = Counter[str]()

    def more() -> int:
        counted["steps"] += STEP
        return 0

    def watch(connection: sqlite3.Connection, _: object) -> None:
        connection.set_progress_handler(more, STEP)

    event.listen(store.database.engine, "connect", watch)
    store.database.engine.dispose()  # those that are open are not watched
    yield counted


def steps(folder: Path, jobs: int) -> dict[str, int]:
    """Return the instructions of each list and page, for a key of a tenant, where there are so many jobs."""
    settings = Settings(database_url=f"sqlite:///{folder}/{jobs}.sqlite3", run_jobs=False)
    service_records.fill(settings.database_url, jobs * TASKS * RECORDS_PER_WORKLOAD, 0)
    store, found = RecordStore(settings.database_url), {}
    store.count_ended()
    with Service(settings, store) as service, running(create_app(service, settings)) as address:
        secret = service.users.create_key("somebody", ["read"])[1]
        headers = {"Authorization": f"Bearer {secret}"}
        with counting(store) as counted, httpx2.Client(base_url=address, headers=headers, timeout=60) as client:
            for path in addresses():
                if not path.startswith(("/v1/keys", "/v1/audit")):
                    path += f"{'&' if '?' in path else '?'}page_size=5" if path.partition("?")[0] == "/v1/jobs" else ""
                    client.get(path)  # the key is believed afterwards, and statements are known
                    counted.clear()
                    assert client.get(path).status_code in (200, 303), path
                    found[path] = counted["steps"]
    return found


def test_lists_and_pages_cost_the_same_with_more_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_records, "LONG_TASK", 300)
    monkeypatch.setattr(service_records, "TASKS_PER_JOB", TASKS)
    workload = 7 * TASKS  # the first of the job filled7
    monkeypatch.setitem(NAMES, "workload_key", key_of(workload))
    monkeypatch.setitem(NAMES, "record_id", str(workload * RECORDS_PER_WORKLOAD + 1))
    for module, bound, least in (
        (record_search, "WINDOW", 100),
        (workload_results, "WINDOW", 100),
        (workload_results, "RECENT_JOBS", 5),
        (pages, "JOBS_ON_A_PAGE", 5),
    ):
        monkeypatch.setattr(module, bound, least)
    few, many = (steps(tmp_path, jobs) for jobs in JOBS)
    for path, small in few.items():
        assert many[path] <= 1.1 * small + 500, (path, small, many[path])
