"""A database that cannot serve is told as such: 503 and when to try again, 507 when the disk is full; never a 500."""

import time
from collections.abc import Callable, Iterator
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
from tilewright.service.upgrade import upgrade_database
from tilewright.tests.api import filled
from tilewright.tests.api.serving import running
from tilewright.tests.db.postgres import server

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


@pytest.mark.postgres
def test_a_database_that_stops_for_a_while_stops_no_answer_that_is_known() -> None:
    """It is stopped, not ended: whoever asks it hangs, and is told nothing."""
    with server() as database:
        settings = Settings(database_url=database.url(), run_jobs=False)
        upgrade_database(settings)
        with Service.open(settings) as service, running(create_app(service, settings)) as address:
            task = filled.operator_task("matmul", {"m": 8, "n": 8, "k": 8})
            filled.keep_job(service._store, "known", [task], 1)
            place = {"device_key": filled.HERE.device.key, "toolchain_key": filled.HERE.toolchain.key}
            asked = {"workload_key": task.workload_key, **place, "profile": str(filled.HERE.profile)}
            with httpx2.Client(base_url=address, trust_env=False, timeout=60) as http:
                known = http.get("/v1/schedules/best", params=asked)
                assert known.status_code == 200 and "Age" not in known.headers
                assert http.get("/readyz").status_code == 200
                stopped = database.processes()  # with those of all connections by now
                for process in stopped:
                    process.suspend()
                try:
                    kept = http.get("/v1/schedules/best", params=asked)
                    assert (kept.status_code, kept.content) == (200, known.content) and "Age" in kept.headers
                    silent = awaited(lambda: http.get("/readyz"), lambda answer: answer.status_code == 503)
                    assert "has not answered for" in silent.json()["checks"]["database"]
                    assert http.get("/healthz").status_code == 200
                finally:
                    for process in stopped:
                        process.resume()
                awaited(lambda: http.get("/readyz"), lambda answer: answer.status_code == 200)
                awaited(lambda: http.get("/v1/schedules/best", params=asked), lambda one: "Age" not in one.headers)


def awaited(ask: Callable[[], httpx2.Response], is_good: Callable[[httpx2.Response], bool]) -> httpx2.Response:
    """Ask again until the answer is good."""
    end = time.monotonic() + 60
    while not is_good(answer := ask()):
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)
    return answer
