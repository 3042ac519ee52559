"""Models that users run, over HTTP: added once, tuned by one job, shown with what is tuned, on pages too."""

import httpx2
import pytest

from tilewright.api.client import Client
from tilewright.api.client import operator_task as operator
from tilewright.api.client_errors import InvalidRequest, Missing
from tilewright.api.client_lookups import Task
from tilewright.api.model_requests import ModelTimingIn
from tilewright.api.model_responses import ModelOut
from tilewright.core.budget import Budget
from tilewright.db.store import RecordStore
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import HERE, keep_job, operator_task

MATMUL: dict[str, object] = {"m": 17, "n": 16, "k": 24}
SOFTMAX: dict[str, object] = {"rows": 9, "columns": 32}


def add(client: Client, name: str = "net") -> ModelOut:
    parts: list[tuple[Task, int, str]] = [
        (operator("matmul", MATMUL), 2, "matmul relu"),
        (OPERATORS["softmax"].workload(SOFTMAX), 1, "softmax"),
        (operator("matmul", MATMUL), 1, "the same again"),
    ]
    return client.add_model(name, parts, {"aten.topk.default": 2})


def test_a_model_is_added_once_tuned_by_one_job_and_shown(
    client: Client, http: httpx2.Client, store: RecordStore
) -> None:
    model = add(client)
    assert [(k.label, k.count, k.best) for k in model.kernels] == [("matmul relu", 3, None), ("softmax", 1, None)]
    assert (model.tuned, model.kernel_seconds, model.jobs) == (0, 0.0, ())
    assert add(client, "renamed").key == model.key
    assert [found.name for found in client.models()] == ["renamed"]

    job = client.tune_model(model.key, budget=Budget(5), strategy="random")
    assert client.tune_model(model.key, budget=Budget(9)).id == job.id  # one is under way
    assert (job.model_key, job.budget.trials) == (model.key, 5)
    assert [(task.weight, task.trial_limit) for task in job.tasks] == [(3.0, 2), (1.0, 2)]

    keep_job(store, "earlier", [operator_task("matmul", MATMUL)], 6, fastest=0.01)
    store.set_device(job.id, HERE.device)
    model = client.model(model.key)
    matmul, softmax = model.kernels
    assert model.tuned == 1 and model.jobs == (job.id,) and model.device_key == HERE.device.key
    assert matmul.best is not None and matmul.seconds == pytest.approx(3 * matmul.best.seconds) == model.kernel_seconds
    assert (matmul.share, softmax.share, softmax.seconds) == (1.0, None, None)
    timing = ModelTimingIn(
        device_key=model.device_key, seconds=1e-3, baseline="default-schedules", baseline_seconds=2e-3, tuned_kernels=4
    )
    assert client.keep_model_timing(model.key, timing).timings[0].baseline_seconds == 2e-3

    expected = client.expect_of_model(model.key, budget=Budget(200))  # by records of this machine, which has none
    assert (expected.workloads, expected.known, expected.seconds, expected.runs) == (2, 0, 0.0, None)

    page = http.get(f"/models/{model.key}").text
    for shown in ("renamed", "matmul relu", "aten.topk.default", "2.00", "cpu_loops", f"/jobs/{job.id}"):
        assert shown in page
    assert "renamed" in http.get("/models").text and "matmul relu" in http.get(f"/models/{model.key}/kernels").text
    elsewhere = http.get(f"/models/{model.key}?target=cuda:sm_90a").text
    assert "default" in elsewhere and "cpu_loops" not in elsewhere  # what was tuned here is none of that device's
    assert http.get(f"/models/{'0' * 64}", headers={"Accept": "text/html"}).status_code == 404


def test_what_is_no_model_is_refused_with_its_field(client: Client, http: httpx2.Client) -> None:
    with pytest.raises(Missing):
        client.model("0" * 64)
    with pytest.raises(Missing):
        client.tune_model("0" * 64, budget=Budget(5))
    key = add(client).key
    with pytest.raises(InvalidRequest, match="at least one for each") as refused:
        client.tune_model(key, budget=Budget(1))
    assert refused.value.field == "/budget/trials"
    good = {"operator": "matmul", "parameters": MATMUL}
    bodies: tuple[tuple[dict[str, object], str], ...] = (
        ({"name": "x", "workloads": []}, "/workloads"),
        ({"name": "", "workloads": [good]}, "/name"),
        ({"name": "x", "workloads": [{**good, "count": 0}]}, "/workloads/0/count"),
        ({"name": "x", "workloads": [good, {"operator": "nothing"}]}, "/workloads/1/operator"),
        ({"name": "x", "workloads": [good], "weights": [1.0]}, "/weights"),
        ({"name": "x", "workloads": [good], "foreign_calls": {"aten.topk": 0}}, "/foreign_calls/aten.topk"),
    )
    for body, field in bodies:
        answer = http.post("/v1/models", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
