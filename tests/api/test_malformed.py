"""A thousand malformed workloads: each is refused with a 4xx that names the field, wherever a workload is taken."""

import json

import httpx2
import pytest

from tilewright.api.limits import MAX_BODY_BYTES
from tilewright.tests.malformed import malformed_workloads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "count"), [("/v1/jobs", 1000), ("/v1/schedules/lookup", 60), ("/v1/schedules/explain", 60)]
)
def test_malformed_workloads_are_refused_by_name(http: httpx2.Client, path: str, count: int) -> None:
    where = "/tasks/0" if path == "/v1/jobs" else ""
    for workload in malformed_workloads(seed=5, n=count):
        expression = {"workload": workload}
        text = json.dumps({"tasks": [expression]} if path == "/v1/jobs" else expression)
        refused = http.post(path, content=text, headers={"Content-Type": "application/json"})
        problem = refused.json()
        assert 400 <= refused.status_code < 500, (workload, problem)
        assert refused.headers["content-type"] == "application/problem+json"
        if len(text) > MAX_BODY_BYTES:
            assert problem["field"] == "content-length"
        elif workload is None:  # as if it were absent: no expression at all
            assert problem["field"] == where
        else:
            assert problem["field"].startswith(f"{where}/workload"), (workload, problem)
        assert problem["detail"] and problem["code"]
    assert http.get("/healthz").status_code == 200
