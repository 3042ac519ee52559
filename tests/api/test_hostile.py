"""Hostile input ends in a clear refusal, whoever sends it, and the service goes on."""

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
import pytest
from pydantic import SecretStr

from tilewright.api.access import COOKIE
from tilewright.api.app import create_app
from tilewright.api.limits import MAX_BODY_BYTES
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running

KEY = "<key>"
"""Stands for a good key in the cases below."""
JSON_TYPE = {"Content-Type": "application/json"}


def job(**changes: object) -> dict[str, object]:
    return {"tasks": [{"operator": "matmul", "parameters": {"m": 4, "n": 4, "k": 4}}], **changes}


def matmul(m: int) -> dict[str, object]:
    return job(tasks=[{"operator": "matmul", "parameters": {"m": m, "n": 4, "k": 4}}])


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


LARGE = b'{"tasks": ["' + b"x" * 2 * MAX_BODY_BYTES + b'"]}'


@dataclass(frozen=True)
class Case:
    """Is a request, and the refusals that are right for it: (status, code)."""

    method: str
    path: str
    refusals: set[tuple[int, str]]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False
    """Whether it shows no good key."""


def post(name: str, body: object, *refusals: tuple[int, str], path: str = "/v1/jobs") -> tuple[str, Case]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return name, Case("POST", path, set(refusals), content, JSON_TYPE)


def get(name: str, path: str, *refusals: tuple[int, str], **headers: str) -> tuple[str, Case]:
    return name, Case("GET", path, set(refusals), headers={k.replace("_", "-"): v for k, v in headers.items()})


def stranger(name: str, *, method: str = "GET", path: str = "/v1/jobs", **headers: str) -> tuple[str, Case]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return name, Case(method, path, {(401, "KEY_REQUIRED")}, headers=given, is_open=True)


FORGED = jwt.encode({"sub": "admin", "scope": "admin"}, "", algorithm="none")
INVALID, WRONG = (422, "INVALID_REQUEST"), (422, "INVALID_PARAMETER")
CASES = dict(
    [
        post("size: a body", LARGE, (413, "BODY_TOO_LARGE")),
        post("size: 100,000 tasks", job(tasks=[{"operator": "matmul"}] * 30_000), INVALID),
        post("size: a text", job(tasks=[{"text": "x" * 300_000}]), INVALID),
        post("size: notes", job(notes="x" * 20_000), INVALID),
        post("size: 1,001 keys", {"workload_keys": ["0" * 64] * 1_001}, INVALID, path="/v1/schedules/batch_lookup"),
        post("size: a compressed bomb", b"\x1f\x8b" + b"\0" * 4096, (400, "INVALID_JSON")),
        post("size: a number of 5,000 digits", b'{"seed": ' + b"9" * 5_000 + b"}", INVALID, (400, "INVALID_JSON")),
        get("size: a page token", f"/v1/jobs?page_token={'x' * 10_000}", INVALID),
        get("size: an id", f"/v1/jobs/{'x' * 5_000}", INVALID, (404, "NOT_FOUND")),
        post("nests: arrays", b"[" * 9_999, (400, "JSON_TOO_DEEP")),
        post("nests: objects", nested(5_000), (400, "JSON_TOO_DEEP")),
        post("nests: brackets of a text", job(tasks=[{"text": "(" * 100_000}]), (422, "INVALID_WORKLOAD")),
        post("extents: 2^62", matmul(1 << 62), WRONG, (422, "INVALID_WORKLOAD")),
        post("extents: below zero", matmul(-1), WRONG),
        post("extents: 10^300", matmul(10**300), (400, "INVALID_JSON")),
        post("JSON: NaN", b'{"seed": NaN}', (400, "INVALID_JSON")),
        post("JSON: a member twice", b'{"seed": 1, "seed": 2}', (400, "INVALID_JSON"), (400, "REPEATED_MEMBER")),
        post("JSON: half a surrogate", b'{"notes": "\\ud800"}', (400, "INVALID_TEXT")),
        post("names: SQL", job(tenant="' OR 1=1 --"), INVALID),
        post("names: a path", job(strategy="../../etc/passwd"), INVALID),
        get("names: SQL in a query", "/v1/jobs?state=' OR 1=1 --", INVALID),
        get("names: SQL in a path", "/v1/jobs/x';DROP%20TABLE%20jobs", INVALID, (404, "NOT_FOUND")),
        get("numbers: an event id", "/v1/jobs/x/events", INVALID, Last_Event_ID="9" * 40),
        get("paths: out of the static files", "/static/%2e%2e/%2e%2e/access.py", (404, "NOT_FOUND")),
        get("paths: NUL", "/static/style.css%00.html", (404, "NOT_FOUND")),
        get("paths: dots", "/v1/jobs/..%2f..%2fkeys", (404, "NOT_FOUND"), INVALID),
        get("paths: two slashes", "//v1/keys", (404, "NOT_FOUND")),
        get("headers: another host", "/v1/jobs", (400, "HOST_NOT_ALLOWED"), Host="evil.example"),
        get("headers: DNS rebinding", "/v1/jobs", (400, "HOST_NOT_ALLOWED"), Host="127.0.0.1.evil.example:80"),
        ("headers: another origin", Case("POST", "/v1/jobs", {(403, "FOREIGN_ORIGIN")}, b"{}", {"Origin": "http://x"})),
        (
            "headers: another method inside",
            Case("GET", "/v1/jobs/x", {(404, "NOT_FOUND")}, headers={"X-HTTP-Method-Override": "DELETE"}),
        ),
        stranger("forged: no key"),
        stranger("forged: a proxy's word", X_Forwarded_For="127.0.0.1", X_Real_IP="127.0.0.1", X_Remote_User="admin"),
        stranger("forged: an unsigned token", Authorization=f"Bearer {FORGED}"),
        stranger("forged: the key as a password", Authorization=f"Basic {KEY}"),
        stranger("forged: another secret", Authorization=f"Bearer {KEY[:-1]}<other>"),
        stranger("forged: a longer key", Authorization=f"Bearer {KEY}A"),
        stranger("forged: a session", Cookie=f"{COOKIE}=" + "0" * 64),
        stranger("forged: a wide letter", Authorization="Bearer tw_\xb9\xb2"),
        stranger("forged: an open path's name", path="/healthz/../v1/jobs"),
    ]
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a service that wants keys, and a good one. A body may pause for half a second."""
    settings = Settings(
        database_url=f"sqlite:///{tmp_path_factory.mktemp('hostile')}/t.sqlite3",
        run_jobs=False,
        token=SecretStr("correct-horse-battery"),
    )
    with Service.open(settings) as service:
        _, key = service.users.create_key("somebody", ["read", "submit"])
        app = create_app(service, settings)
        app.user_middleware[0].kwargs["pause_seconds"] = 0.5
        with running(app) as address:
            yield address, key


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False, timeout=60) as opened:
        yield opened


@pytest.mark.parametrize("name", CASES)
def test_hostile_input_is_refused(hostile: tuple[str, str], http: httpx2.Client, name: str) -> None:
    address, key = hostile
    case = CASES[name]
    other = key[:-1] + ("A" if key[-1] != "A" else "B")
    headers = {n: v.replace(f"{KEY[:-1]}<other>", other).replace(KEY, key) for n, v in case.headers.items()}
    if not case.is_open:
        headers["Authorization"] = f"Bearer {key}"
    url = httpx2.URL(address).copy_with(raw_path=case.path.replace(" ", "%20").encode())
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = http.request(case.method, url, content=case.body, headers=encoded)
    assert (answer.status_code, answer.json()["code"]) in case.refusals, answer.text[:500]
    assert answer.json()["detail"] and key not in answer.text and "Traceback" not in answer.text
    assert http.get(f"{address}/healthz").status_code == 200


def send(address: str, text: bytes) -> tuple[int, Any]:
    """Send bytes as they are; return the status and what the answer's body says."""
    place = urlsplit(address)
    with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=60) as connection:
        connection.sendall(text)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            if head and (b"}" in body or not body.startswith(b"{")) and body:
                break
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else {}


def test_requests_that_no_library_sends(hostile: tuple[str, str]) -> None:
    address, key = hostile
    host = f"Host: {urlsplit(address).netloc}\r\n".encode()
    right = f"Authorization: Bearer {key}\r\n".encode()
    start, end = b"GET /v1/jobs HTTP/1.1\r\n", b"Connection: close\r\n\r\n"
    for repeated in (host + host + right, host + right + right, host + b"Host: evil.example\r\n" + right):
        status, problem = send(address, start + repeated + end)
        assert (status, problem["code"]) == (400, "REPEATED_HEADER")
    body = b"POST /v1/jobs HTTP/1.1\r\n" + host + right + b"Content-Type: application/json\r\n"
    for broken in (b"Content-Length: -1\r\n", b"Content-Length: 2\r\nContent-Length: 3\r\n", b"Content-Length: x\r\n"):
        assert send(address, body + broken + end + b"{}")[0] == 400
    smuggled = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
    assert send(address, body + smuggled + end + b"zz\r\n")[0] == 400
    assert send(address, start + host + b"X: " + b"y" * (1 << 20) + b"\r\n" + end)[0] in (400, 401, 431)
    status, problem = send(address, body + b"Content-Length: 400\r\n\r\n" + b'{"tasks": ')  # and nothing more
    assert (status, problem["code"]) == (408, "BODY_TOO_SLOW")
    assert send(address, start + host + right + end)[0] == 200
