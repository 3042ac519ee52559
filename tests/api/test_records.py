"""Records over HTTP: all of them out as JSON lines, and those of another database in, whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tilewright.api.app import create_app
from tilewright.api.client import Client
from tilewright.api.client_errors import InvalidRequest
from tilewright.api.limits import MAX_BODY_BYTES
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.filled import keep_job, operator_task
from tilewright.tests.api.serving import running


@pytest.fixture(scope="module")
def full(store: RecordStore) -> RecordStore:
    keep_job(store, "lines", [operator_task("matmul", {"m": 8, "n": 8, "k": 8})], 40)
    return store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Client]:
    """Give a client of a service on an empty database."""
    settings = Settings(database_url=f"sqlite:///{tmp_path}/other.sqlite3", run_jobs=False)
    with Service.open(settings) as service, running(create_app(service, settings)) as address:
        with Client(address) as client:
            yield client


def test_records_go_from_one_service_to_another(full: RecordStore, client: Client, other: Client) -> None:
    lines = list(client.export_records())
    assert lines == list(full.export_lines()) and len(lines) > 40
    counts = other.import_records(lines)
    assert (counts.imported, counts.known) == (40, 0)
    assert list(other.export_records()) == lines
    again = other.import_records(line + "\n" for line in lines)  # as a file gives them
    assert (again.imported, again.known) == (0, 40)


def test_text_that_ends_no_line_stays_in_its_line(full: RecordStore, client: Client, other: Client) -> None:
    lines = [line.replace('"detail":"', '"detail":"\u2028') for line in client.export_records()]
    assert any("\u2028" in line for line in lines)
    assert other.import_records(lines).imported == 40
    assert list(other.export_records()) == lines


def test_a_bad_line_is_named_and_nothing_is_added(client: Client, full: RecordStore, other: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"^line 3: ") as wrong:
        other.import_records([*list(client.export_records())[:2], "no json"])
    assert wrong.value.problem.status == 422
    assert list(other.export_records()) == []


def test_more_than_a_usual_body_may_be_imported(full: RecordStore, client: Client, other: Client) -> None:
    lines = list(client.export_records())
    padded = [*lines, *([" " * 999] * (MAX_BODY_BYTES // 1000 + 1))]  # blank lines say nothing
    assert other.import_records(padded).imported == 40


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({}, b"{}", 415),
        ({"Content-Type": "application/jsonl"}, b"\xff\xfe\n", 422),
        ({"Content-Type": "application/jsonl"}, b"[1]\n", 422),
        ({"Content-Type": "application/jsonl", "Origin": "http://elsewhere.example"}, b"", 403),
        ({"Content-Type": "application/jsonl"}, b"", 200),
    ],
)
def test_what_is_not_taken_is_a_problem(http: httpx2.Client, headers: dict[str, str], body: bytes, status: int) -> None:
    answer = http.post("/v1/records", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json" and answer.json()["detail"]


def test_the_version_names_this_run(client: Client, other: Client) -> None:
    assert client.version().instance == client.version().instance != other.version().instance
