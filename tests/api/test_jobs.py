"""Jobs over HTTP: created once, found again, listed in pages, cancelled."""

import threading
from typing import Any

import httpx2
import pytest

MATMUL = {"operator": "matmul", "parameters": {"m": 16, "n": 8, "k": 4}}


def job(**more: Any) -> dict[str, Any]:
    return {"tasks": [MATMUL], "budget": {"trials": 4}, "strategy": "random", **more}


def test_a_job_is_created_and_found_at_its_location(http: httpx2.Client) -> None:
    made = http.post("/v1/jobs", json=job(seed=7))
    assert made.status_code == 201
    found = http.get(made.headers["Location"])
    assert found.status_code == 200 and found.json() == made.json()
    assert (found.json()["state"], found.json()["seed"], found.json()["budget"]["trials"]) == ("queued", 7, 4)
    task = found.json()["tasks"][0]
    assert (task["operator"], task["parameters"], task["flops"]) == ("matmul", {"m": 16, "n": 8, "k": 4}, 1024)


def test_how_a_job_searches_is_a_choice_of_its_own(http: httpx2.Client) -> None:
    usual = http.post("/v1/jobs", json=job()).json()
    assert (usual["prune"], usual["prior"]) == (True, True)
    made = http.post("/v1/jobs", json=job(prune=False, prior=False)).json()
    assert (made["prune"], made["prior"]) == (False, False)
    assert http.get(f"/v1/jobs/{made['id']}").json() == made
    assert "every legal setting, without the prior" in http.get(f"/jobs/{made['id']}").text
    assert "promising settings" in http.get(f"/jobs/{usual['id']}").text
    described = http.get("/openapi.json").json()["components"]["schemas"]["JobIn"]["properties"]
    for name in ("prune", "prior"):
        assert described[name]["type"] == "boolean" and described[name]["default"] is True
        assert len(described[name]["description"]) > 40


def test_a_job_may_ask_for_several_units(http: httpx2.Client) -> None:
    assert http.post("/v1/jobs", json=job()).json()["units"] == 1
    made = http.post("/v1/jobs", json=job(units=8)).json()
    assert made["units"] == 8 and http.get(f"/v1/jobs/{made['id']}").json() == made
    for units in (0, 9):
        refused = http.post("/v1/jobs", json=job(units=units))
        assert (refused.status_code, refused.json()["field"]) == (422, "/units")


def test_a_repeated_request_with_a_key_makes_one_job(http: httpx2.Client) -> None:
    key = {"Idempotency-Key": "once"}
    first = http.post("/v1/jobs", json=job(), headers=key)
    again = http.post("/v1/jobs", json=job(), headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    other = http.post("/v1/jobs", json=job(seed=1), headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "CONFLICT")


def test_equal_requests_at_the_same_moment_make_one_job(address: str) -> None:
    barrier, answers = threading.Barrier(16), []

    def submit() -> None:
        with httpx2.Client(base_url=address, trust_env=False, timeout=60) as http:
            barrier.wait()
            answers.append(http.post("/v1/jobs", json=job(), headers={"Idempotency-Key": "same"}))

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]


def test_a_workload_in_json_is_taken_as_well(http: httpx2.Client) -> None:
    workload = http.post("/v1/operators/matmul/workload", json={"parameters": MATMUL["parameters"]}).json()
    made = http.post("/v1/jobs", json=job(tasks=[{"workload": workload["workload"]}]))
    assert made.status_code == 201
    task = made.json()["tasks"][0]
    assert task["operator"] is None and task["workload_key"] == workload["workload_key"]


def test_validate_only_creates_nothing(http: httpx2.Client) -> None:
    before = http.get("/v1/jobs?page_size=500").json()["jobs"]
    checked = http.post("/v1/jobs", json=job(validate_only=True))
    assert checked.status_code == 200 and checked.json()["valid"] is True
    assert len(checked.json()["workload_keys"]) == 1
    refused = http.post("/v1/jobs", json=job(validate_only=True, strategy="nobody"))
    assert refused.status_code == 422
    assert http.get("/v1/jobs?page_size=500").json()["jobs"] == before


def test_an_entity_tag_saves_the_body(http: httpx2.Client) -> None:
    made = http.post("/v1/jobs", json=job()).json()
    first = http.get(f"/v1/jobs/{made['id']}")
    tag = first.headers["ETag"]
    assert tag.startswith('W/"')
    same = http.get(f"/v1/jobs/{made['id']}", headers={"If-None-Match": f'"nothing", {tag}'})
    assert (same.status_code, same.content) == (304, b"")
    http.post(f"/v1/jobs/{made['id']}/cancel")
    changed = http.get(f"/v1/jobs/{made['id']}", headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.headers["ETag"] != tag


def test_pages_hold_every_job_once_newest_first(http: httpx2.Client) -> None:
    for seed in range(5):
        http.post("/v1/jobs", json=job(seed=seed))
    whole = [j["id"] for j in http.get("/v1/jobs?page_size=500").json()["jobs"]]
    found, token = [], ""
    while True:
        page = http.get("/v1/jobs", params={"page_size": 2, "page_token": token}).json()
        found += [j["id"] for j in page["jobs"]]
        token = page["next_page_token"]
        if not token:
            break
    assert found == whole and len(found) == len(set(found)) >= 5
    bad = http.get("/v1/jobs", params={"page_token": "x" * 12})
    assert (bad.status_code, bad.json()["field"]) == (422, "page_token")


def test_a_queued_job_is_cancelled(http: httpx2.Client) -> None:
    made = http.post("/v1/jobs", json=job()).json()
    cancelled = http.post(f"/v1/jobs/{made['id']}/cancel")
    assert cancelled.status_code == 200 and cancelled.json()["state"] in ("cancelling", "cancelled")
    states = {j["id"]: j["state"] for j in http.get("/v1/jobs?state=cancelled&page_size=500").json()["jobs"]}
    assert states.get(made["id"], "cancelling") == cancelled.json()["state"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "/tasks"),
        ({"tasks": []}, "/tasks"),
        ({"tasks": [{}]}, "/tasks/0"),
        ({"tasks": [{"operator": "nobody"}]}, "/tasks/0/operator"),
        ({"tasks": [{"operator": "matmul", "parameters": {"m": 1, "n": 1}}]}, "/tasks/0/parameters/k"),
        ({"tasks": [{"operator": "matmul", "parameters": {"m": 1, "n": 1, "k": -1}}]}, "/tasks/0/parameters/k"),
        ({"tasks": [{"operator": "matmul", "parameters": {"m": 1, "n": 1, "k": 1, "x": 1}}]}, "/tasks/0/parameters/x"),
        ({"tasks": [MATMUL, {"workload": {}}]}, "/tasks/1/workload/inputs"),
        ({"tasks": [{"operator": "matmul", "workload": {}}]}, "/tasks/0"),
        (job(seed=-1), "/seed"),
        (job(seed=1.5), "/seed"),
        (job(seed=True), "/seed"),
        (job(budget={"trials": 0}), "/budget/trials"),
        (job(budget={"trials": 1, "minutes": 1}), "/budget/minutes"),
        (job(cache="hot"), "/cache"),
        (job(strategy="nobody"), "/strategy"),
        (job(target="nothing"), "/target"),
        (job(executor="nobody"), "/executor"),
        (job(prune="no"), "/prune"),
        (job(prior=0), "/prior"),
        (job(colour="red"), "/colour"),
        ([], ""),
        ("text", ""),
    ],
)
def test_what_is_wrong_is_named(http: httpx2.Client, body: Any, field: str) -> None:
    refused = http.post("/v1/jobs", json=body)
    problem = refused.json()
    assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
    assert problem["field"] == field, problem
    assert problem["detail"] and problem["code"] and problem["request_id"] == refused.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (job(trials=3), "unknown field; allowed: budget, cache, deadline_seconds, executor, fresh, notes, "),
        ({"tasks": [{**MATMUL, "shape": 1}]}, "unknown field; allowed: operator, parameters, text, workload"),
        ({"tasks": [MATMUL], "budget": {"trails": 3}}, "unknown field; allowed: seconds, stall, trials"),
        ({"tasks": []}, "list should have at least 1 item after validation, not 0; given: a list of 0"),
        ({"tasks": [1]}, "input should be an object; given: 1"),
        ([1, 2], "input should be an object; given: a list of 2"),
        (job(seed=True), "input should be a valid integer; given: true"),
        (job(strategy=None), "input should be a valid string; given: null"),
        (
            {"tasks": [{**MATMUL, "text": ""}]},
            "give one of workload, text, and operator with parameters; given: an object",
        ),
    ],
)
def test_what_is_given_and_what_is_allowed_is_said(http: httpx2.Client, body: Any, detail: str) -> None:
    said = http.post("/v1/jobs", json=body).json()["detail"]
    assert said.startswith(detail) if detail.endswith(", ") else said == detail


def test_an_address_that_leads_nowhere_is_shown(http: httpx2.Client) -> None:
    problem = http.get("/v1/v1/operators").json()
    assert (problem["code"], problem["detail"]) == ("NOT_FOUND", "there is nothing at '/v1/v1/operators'")
    assert len(http.get("/" + "a" * 2000).json()["detail"]) < 120


@pytest.mark.parametrize(
    "path", ["/v1/jobs/nobody", "/v1/jobs/nobody/trials", "/v1/jobs/nobody/events", "/v1/trials/9"]
)
def test_what_is_not_there_is_404(http: httpx2.Client, path: str) -> None:
    missing = http.get(path)
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


def test_a_workload_that_nobody_can_measure_is_refused_with_the_numbers(http: httpx2.Client) -> None:
    small = {"operator": "matmul", "parameters": {"m": 8, "n": 8, "k": 8}}
    huge = {"operator": "matmul", "parameters": {"m": 50_000, "n": 50_000, "k": 50_000}}
    for path in ("/v1/jobs", "/v1/jobs/estimate"):
        refused = http.post(path, json={"tasks": [small, huge]})
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (422, "WORKLOAD_TOO_COSTLY"), problem
        assert problem["field"] == "/tasks/1" and "points 125,000,000,000,000; allowed: 70," in problem["detail"]
        assert "a float64 reference of about 12,500 s; allowed: 3,600" in problem["detail"]


def test_a_long_running_sum_is_not_too_large(http: httpx2.Client) -> None:
    """Written down it has 128 * 10^12 points. What computes it goes through its 32 million elements once."""
    scan = {"operator": "scan", "parameters": {"shape": [8, 4_000_000], "axis": 1, "kind": "sum"}}
    estimate = http.post("/v1/jobs/estimate", json={"tasks": [scan]})
    assert estimate.status_code == 200, estimate.json()
