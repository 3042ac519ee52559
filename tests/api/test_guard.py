"""What every answer carries, and what no request passes: hosts, origins, methods, bodies, queries."""

import httpx2
import pytest

from tilewright.api.guard import SECURITY_HEADERS
from tilewright.api.limits import MAX_BODY_BYTES

PATHS = ["/", "/v1/jobs", "/v1/nothing", "/static/style.css", "/jobs/nobody", "/metrics", "/healthz", "/docs", "/redoc"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_the_security_headers(http: httpx2.Client, path: str) -> None:
    answer = http.get(path)
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert answer.headers["X-Request-Id"] and answer.headers["Cache-Control"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


def test_static_files_are_kept_by_the_browser_and_answers_are_not(http: httpx2.Client) -> None:
    style = http.get("/static/style.css")
    assert style.headers["Cache-Control"] == "no-cache"
    again = http.get("/static/style.css", headers={"If-None-Match": style.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/v1/jobs").headers["Cache-Control"] == "no-store"


def test_the_request_id_is_the_clients_or_a_fresh_one(http: httpx2.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    fresh = {http.get("/healthz", headers={"X-Request-Id": "not\tthis"}).headers["X-Request-Id"] for _ in range(3)}
    assert len(fresh) == 3


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[", "a@b"]
)
def test_other_hosts_are_refused(http: httpx2.Client, host: str) -> None:
    refused = http.get("/v1/jobs", headers={"Host": host})
    assert (refused.status_code, refused.json()["code"]) == (400, "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:80"])
def test_own_names_are_answered(http: httpx2.Client, host: str) -> None:
    assert http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_others_change_nothing(http: httpx2.Client, origin: str) -> None:
    refused = http.post("/v1/jobs/nobody/cancel", headers={"Origin": origin})
    assert (refused.status_code, refused.json()["code"]) == (403, "FOREIGN_ORIGIN")


def test_own_pages_may_change_things(http: httpx2.Client) -> None:
    own = {"Origin": str(http.base_url).rstrip("/")}
    assert http.post("/v1/jobs/nobody/cancel", headers=own).status_code == 404


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/jobs", "GET, POST"), ("/v1/jobs/x", "GET"), ("/v1/jobs/x/cancel", "POST"), ("/v1/schedules/lookup", "POST")],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_other_methods_are_told_which_there_are(http: httpx2.Client, path: str, allowed: str, method: str) -> None:
    refused = http.request(method, path)
    assert (refused.status_code, refused.headers["Allow"]) == (405, allowed)
    assert refused.json()["code"] == "METHOD_NOT_ALLOWED"


def test_large_bodies_are_refused(http: httpx2.Client) -> None:
    large = b'{"tasks": ["' + b"x" * MAX_BODY_BYTES + b'"]}'
    for content in (large, iter([large[:9], large[9:]])):  # with a length, and in chunks
        refused = http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
def test_other_media_types_are_refused(http: httpx2.Client, kind: str) -> None:
    refused = http.post("/v1/jobs", content=b"{}", headers={"Content-Type": kind})
    assert (refused.status_code, refused.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "INVALID_JSON"), (b"{", "INVALID_JSON"), (b"\xff", "INVALID_JSON"), (b"[" * 9999, "JSON_TOO_DEEP")],
)
def test_bodies_that_are_no_json(http: httpx2.Client, content: bytes, code: str) -> None:
    refused = http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (400, code)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/jobs?colour=red", "colour"),
        ("/v1/jobs?page_size=1&page_size=2", "page_size"),
        ("/v1/jobs?page_size=0", "page_size"),
        ("/v1/jobs?page_size=-1", "page_size"),
        ("/v1/jobs?page_size=x", "page_size"),
        ("/v1/jobs?page_size=100000", "page_size"),
        ("/v1/jobs?state=nothing", "state"),
        ("/v1/jobs?page_token=%00", "page_token"),
        ("/v1/schedules/best", "workload_key"),
        ("/v1/schedules/best?workload_key=abc", "workload_key"),
        ("/v1/trials/0", "record_id"),
        ("/v1/trials/99999999999999999999", "record_id"),
    ],
)
def test_parameters_out_of_bounds_are_named(http: httpx2.Client, path: str, field: str) -> None:
    refused = http.get(path)
    assert (refused.status_code, refused.json()["field"]) == (422, field)


def test_a_browser_is_shown_a_page_and_a_program_a_document(http: httpx2.Client) -> None:
    page = http.get("/jobs/nobody", headers={"Accept": "text/html"})
    assert page.status_code == 404 and page.headers["content-type"].startswith("text/html")
    assert "NOT_FOUND" in page.text
    assert http.get("/v1/jobs/nobody", headers={"Accept": "text/html"}).json()["code"] == "NOT_FOUND"
