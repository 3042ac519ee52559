"""A request's id is found again in the log lines of everything that works for the job it submitted."""

import json
from pathlib import Path

import pytest
from opentelemetry import trace

from tests.service.following import QUICK
from tests.service.killing import KillableServer
from tilewright.core.fleet import Lease, TaskClaim
from tilewright.core.log_context import begin_work, present_ids, working_for
from tilewright.service import logs, tracing

REQUEST = "request-of-a-test"
REQUESTS = (REQUEST, "another-request")
OPERATOR = {"operator": QUICK[0], "parameters": QUICK[1]}


def test_a_request_is_found_again_in_the_lines_of_workers_and_of_their_children(tmp_path: Path) -> None:
    chosen = {"TILEWRIGHT_LOG_LEVEL": "debug", "TILEWRIGHT_LOG_FORMAT": "json"}
    server = KillableServer(f"sqlite:///{tmp_path}/db.sqlite3", tmp_path / "log", environment=chosen)
    server.start()
    try:
        server.wait_until_ready()
        jobs = [_submit_and_wait(server, request) for request in REQUESTS]
    finally:
        server.kill()
    for request, job in zip(REQUESTS, jobs, strict=True):
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if request in line]
        said = {line["event"] for line in lines}
        assert {"job submitted", "task claimed", "cost model"} <= said
        worked = [line for line in lines if "unit" in line]
        assert {line["job"] for line in worked} == {job} and {line["task"] for line in worked} == {0}
        assert {"build", "run"} <= {line.get("child") for line in worked}


def _submit_and_wait(server: KillableServer, request: str) -> str:
    body = {"tasks": [OPERATOR], "budget": {"trials": 3}, "strategy": "random", "fresh": True}
    answer = server.ask("POST", "/v1/jobs", body, {"X-Request-Id": request})
    assert answer is not None and answer[0] == 201, answer
    job = str(answer[1]["id"])
    state, after = "", 0
    while state not in ("succeeded", "failed"):
        found = server.ask("GET", f"/v1/jobs/{job}/events?after={after}&wait_seconds=10")
        assert found is not None and found[0] == 200
        for event in found[1]["events"]:
            after, state = event["id"], event["data"].get("state", state)
    assert state == "succeeded"
    return job


def test_lines_of_a_task_name_its_trace_where_traces_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = TaskClaim("a-job", 2, "llvm", "local", "warm", Lease("task", "", 1, "", 0.0), REQUEST)
    event = {"event": "something"}
    with tracing.working_for_task(claim, "unit"):
        assert "trace_id" not in logs._add_ids(None, "info", dict(event))
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    with tracing.working_for_task(claim, "unit"):
        told = logs._add_ids(None, "info", dict(event))
    root = trace.get_current_span(tracing.job_context("a-job")).get_span_context()
    assert told["trace_id"] == trace.format_trace_id(root.trace_id)
    assert (told["request_id"], told["job"], told["task"]) == (REQUEST, "a-job", 2)
    assert logs._add_ids(None, "info", dict(event)) == event


def test_ids_end_with_the_work() -> None:
    begin_work({})
    with working_for({"job": "outer"}):
        with working_for({"job": "inner", "task": 1}):
            assert present_ids() == {"job": "inner", "task": 1}
        assert present_ids() == {"job": "outer"}
    assert present_ids() == {}
