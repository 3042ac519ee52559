"""A database that cannot serve is told as such: 503 and when to try again, 507 when the disk is full; never a 500."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import Connection, event

from tilewright.api.app import create_app
from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import Unavailable
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running

MATMUL = {"operator": "matmul", "parameters": {"m": 8, "n": 8, "k": 8}}
# the database's own limits stand for a disk that is full and for a file that may not be written
FULL, READ_ONLY = "PRAGMA max_page_count=1", "PRAGMA query_only=ON"


class Faulty:
    """Serve a real file; every transaction begins with a pragma, once one is set."""

    def __init__(self, folder: Path) -> None:
        self.pragma = ""
        self.settings = Settings(database_url=f"sqlite:///{folder}/t.sqlite3", run_jobs=False)
        store = RecordStore(self.settings.database_url)
        event.listen(store.database.engine, "begin", self._begin)
        self.service = Service(self.settings, store)

    def _begin(self, connection: Connection) -> None:
        if self.pragma:
            connection.exec_driver_sql(self.pragma)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[tuple[Faulty, str]]:
    made = Faulty(tmp_path)
    with made.service, running(create_app(made.service, made.settings)) as address:
        yield made, address


def test_a_read_only_database_is_503_with_the_time_to_try_again(faulty: tuple[Faulty, str]) -> None:
    made, address = faulty
    made.pragma = READ_ONLY
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as http:
        refused = http.post("/v1/jobs", json={"tasks": [MATMUL]})
        assert (refused.status_code, refused.json()["code"]) == (503, "STORE_ERROR")
        assert refused.headers["Retry-After"].isdigit()
        assert http.get("/v1/jobs").json()["jobs"] == []


def test_a_full_disk_is_507_and_what_was_there_stays(faulty: tuple[Faulty, str]) -> None:
    made, address = faulty
    large = {"m": 8, "n": 8, "k": 8}
    with Client(address, retries=0) as client:
        kept = client.submit(operator_task("matmul", large))
        made.pragma = FULL
        with pytest.raises(Unavailable) as full:
            for _ in range(300):  # what room the last page has left is used first
                client.submit(operator_task("matmul", large))
        assert (full.value.code, full.value.problem.status) == ("STORAGE_FULL", 507)
        assert client.job(kept.id) == kept


def test_no_more_streams_than_there_are_threads_for(faulty: tuple[Faulty, str]) -> None:
    made, _ = faulty
    app = create_app(made.service, made.settings)
    app.state.streams.limit = 2
    with running(app) as limited, httpx2.Client(base_url=limited, trust_env=False, timeout=60) as http:
        job = http.post("/v1/jobs", json={"tasks": [MATMUL]}).json()["id"]
        path, headers = f"/v1/jobs/{job}/events", {"Accept": "text/event-stream"}
        with http.stream("GET", path, headers=headers) as one, http.stream("GET", path, headers=headers) as two:
            lines = [one.iter_lines(), two.iter_lines()]  # kept: one that is dropped closes its stream
            assert [next(line) for line in lines] == ["retry: 2000", "retry: 2000"]
            refused = http.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "TOO_MANY_STREAMS")
            assert http.get("/v1/jobs").status_code == 200
