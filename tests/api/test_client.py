"""The Python client against the real server, and against servers that break."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.api.async_client import AsyncClient
from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import Contradiction, InvalidRequest, Missing, ServiceFault, Unavailable, Unreachable
from tilewright.core.budget import Budget
from tilewright.core.errors import InvalidParameter
from tilewright.core.policy import SpacePolicy
from tilewright.db.store import RecordStore
from tilewright.te.json import workload_from_json
from tilewright.te.key import workload_key
from tilewright.tests.api.filled import HERE, keep_job
from tilewright.tests.api.filled import operator_task as kept_task

MATMUL = operator_task("matmul", {"m": 4, "n": 4, "k": 4})


def test_importing_it_needs_no_server_parts() -> None:
    code = "import sys, tilewright.api.client; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "jinja2", "structlog", "xgboost", "sklearn", "ray")
    ran = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_submit_and_look_again(client: Client) -> None:
    job = client.submit(MATMUL, budget=Budget(3, 5.0, None), strategy="random", seed=4, idempotency_key="k1")
    assert client.submit(MATMUL, budget=Budget(3, 5.0, None), strategy="random", seed=4, idempotency_key="k1") == job
    assert client.job(job.id) == job and job.id in [j.id for j in client.jobs(page_size=2)]
    assert (job.budget.trials, job.budget.seconds, job.seed) == (3, 5.0, 4)
    with pytest.raises(Contradiction):
        client.submit(MATMUL, idempotency_key="k1")
    assert client.cancel(job.id).state in ("cancelling", "cancelled")


def test_how_a_job_searches_is_submitted(client: Client) -> None:
    job = client.submit(MATMUL, policy=SpacePolicy(prune=False))
    assert (job.prune, job.prior) == (False, True) and client.job(job.id) == job
    assert client.submit(MATMUL).prune
    assert client.validate(MATMUL, policy=SpacePolicy(prior=False)).valid


def test_a_workload_is_submitted_as_it_is(client: Client) -> None:
    made = client.operator_workload("matmul", {"m": 4, "n": 4, "k": 4})
    workload = workload_from_json(made.workload)
    assert workload_key(workload) == made.workload_key
    assert client.validate(workload, MATMUL).workload_keys == (made.workload_key, made.workload_key)


def test_refusals_are_typed(client: Client) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        client.submit(operator_task("matmul", {"m": -1}))
    assert wrong.value.field == "/tasks/0/parameters/m" and wrong.value.problem.status == 422
    for call in (lambda: client.job("nobody"), lambda: client.best("0" * 64), lambda: client.trial(10**9)):
        with pytest.raises(Missing):
            call()
    with pytest.raises(Missing):
        client.job("a/../b?c")
    with pytest.raises(
        InvalidParameter, match=r"task of type str; allowed: operator_task\(...\), ExpressionIn, Workload"
    ):
        client.submit("matmul")  # type: ignore[arg-type]


def test_what_was_measured_comes_back(client: Client, store: RecordStore) -> None:
    task = kept_task("matmul", {"m": 32, "n": 32, "k": 32})
    keep_job(store, "measured", [task], 30)
    trials = list(client.trials("measured", page_size=7))
    assert [t.sequence for t in trials] == list(range(30))
    timed = [t.outcome.seconds for t in client.trials("measured", order="best") if t.outcome.kind == "timed"]
    assert timed == sorted(timed)
    columns = client.series("measured")
    assert list(columns.sequence) == list(range(30)) and client.series("measured", after=20).sequence[0] == 21
    place = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key}
    best = client.best(task.workload_key, **place)
    assert best.seconds == timed[0] and best.schedule.sketch == "cpu_loops" and best.match == ("exact",)
    assert client.lookup(operator_task("matmul", {"m": 32, "n": 32, "k": 32}), **place) == best
    assert client.trial(best.record_id).outcome == next(t.outcome for t in trials if t.record_id == best.record_id)


def test_the_library_and_the_service_are_described(client: Client) -> None:
    names = {operator.name: operator for operator in client.operators()}
    assert "matmul" in names and names["matmul"].parameters_schema["required"] == ["m", "n", "k"]
    assert any(device.present for device in client.devices())
    assert client.version().api == "v1" and client.ready().checks


class _Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses of a script, where 0 means that it hangs up. It remembers what it was sent."""

    script: list[int]
    seen: list[tuple[str, str | None]]

    def handle_any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.headers.get("Idempotency-Key")))
        status = self.script.pop(0) if self.script else 200
        if status == 0:
            self.connection.close()
            return
        problem = {"title": "t", "status": status, "detail": "d", "code": "C"}
        body = json.dumps({"version": "9", "api": "v1"} if status == 200 else problem).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = handle_any

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def scripted(*script: int) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    seen: list[tuple[str, str | None]] = []
    handler = type("Handler", (_Scripted,), {"script": list(script), "seen": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def test_lost_connections_and_503_are_tried_again() -> None:
    with scripted(0, 503, 0) as (address, seen), Client(address) as client:
        assert client.version().version == "9"
        assert len(seen) == 4


def test_other_failures_are_not_tried_again() -> None:
    with scripted(500) as (address, seen), Client(address) as client:
        with pytest.raises(ServiceFault):
            client.version()
        assert len(seen) == 1


def test_in_the_end_it_gives_up() -> None:
    with scripted(503, 503, 503, 503) as (address, seen), Client(address, retries=2) as client:
        with pytest.raises(Unavailable) as away:
            client.version()
        assert away.value.code == "C" and len(seen) == 3
    with Client("http://127.0.0.1:1", retries=1) as client, pytest.raises(Unreachable, match="no answer from"):
        client.version()


def test_a_repeated_submission_carries_the_same_key() -> None:
    with scripted(0, 503) as (address, seen), Client(address) as client:
        with pytest.raises(ServiceFault, match="no JobOut"):  # the scripted answer is no job
            client.submit(MATMUL)
        keys = {key for _, key in seen}
        assert len(seen) == 3 and len(keys) == 1 and None not in keys


class _CutStreams(http.server.BaseHTTPRequestHandler):
    """Streams two events of a job, and breaks off in the middle of the third; there are five in all."""

    protocol_version = "HTTP/1.1"
    seen: list[str | None]

    def do_GET(self) -> None:
        after = self.headers.get("Last-Event-ID")
        self.seen.append(after)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        left = [number for number in range(1, 6) if number > int(after or 0)]
        for number in left[:2]:
            event = {"id": number, "job_id": "j", "kind": "trial", "data": {}, "created_at": ""}
            self.chunk(f"id: {number}\nevent: trial\ndata: {json.dumps(event)}\n\n")
        if left[2:]:
            self.chunk('id: 9\nevent: trial\ndata: {"id"')
        else:
            self.chunk("event: end\ndata: {}\n\n")
            self.chunk("")

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_stream_that_breaks_off_goes_on_after_the_last_whole_event() -> None:
    seen: list[str | None] = []
    handler = type("Handler", (_CutStreams,), {"seen": seen})

    async def all_events(address: str) -> list[int]:
        async with AsyncClient(address) as client:
            return [event.id async for event in client.events("j")]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with Client(address) as client:
            assert [event.id for event in client.events("j")] == [1, 2, 3, 4, 5]
        assert asyncio.run(all_events(address)) == [1, 2, 3, 4, 5]
        server.shutdown()
    assert seen == [None, "2", "4"] * 2
