"""No tenant sees another's row on any route, and every route wants its scope: both for all operations of openapi.json
and all pages, so that a new route is tested the day it is written."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tilewright.api.app import create_app
from tilewright.api.openapi import DOCUMENT
from tilewright.api.routes import ROUTES
from tilewright.api.scopes import scope_of
from tilewright.api.strict_route import GuardedRoute
from tilewright.core.errors import Forbidden, NotFound
from tilewright.service.callers import ADMIN, READ, SCOPES, Caller, acting_as
from tilewright.service.lookup import Answer
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.filled import HERE, keep_job, operator_task
from tilewright.tests.api.serving import running

TOKEN = "correct-horse-battery"
THEIRS, OURS = "team-a", "team-b"
NOTES = "only-team-a-knows-this"
JOB = "aaaaaaaaaaaaaaaa"
SIZES: dict[str, object] = {"m": 24, "n": 40, "k": 16}
TASK = operator_task("matmul", SIZES)
EXPRESSION = {"operator": "matmul", "parameters": SIZES}
MODEL = {"name": "model-of-team-a", "workloads": [{**EXPRESSION, "count": 2}]}
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, operations in json.loads(DOCUMENT.read_text())["paths"].items()
    for method, operation in operations.items()
}
OPEN = {"isAlive", "isReady"}


@dataclass(frozen=True)
class Guarded:
    """Is a service that wants keys, with a job, a model and keys of a tenant."""

    service: Service
    address: str
    secrets: Mapping[str, str]
    ids: Mapping[str, object]

    def client(self, secret: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx2.Client(base_url=self.address, headers=headers, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tenants")
    token = SecretStr(TOKEN)
    settings = Settings(database_url=f"sqlite:///{folder}/t.sqlite3", run_jobs=False, token=token, release_key=token)
    with Service.open(settings) as service:
        keep_job(service._store, JOB, [TASK], 6, tenant=THEIRS, notes=NOTES)
        users, scopes = service.users, ["read", "submit", "worker"]
        secrets = {tenant: users.create_key(f"of {tenant}", scopes, tenant=tenant)[1] for tenant in (THEIRS, OURS)}
        secrets |= {scope: users.create_key(scope, [scope], tenant=OURS)[1] for scope in SCOPES}
        with running(create_app(service, settings)) as address:
            ids = {
                "job_id": JOB,
                "task": 0,
                "record_id": service._store.trials(JOB, 0, limit=1)[0].record.id,
                "workload_key": TASK.workload_key,
                "key_id": users.keys().items[0].id,
                "tenant": THEIRS,
            }
            found = Guarded(service, address, secrets, ids)
            with found.client(secrets[THEIRS]) as http:
                ids["model_key"] = http.post("/v1/models", json=MODEL).raise_for_status().json()["key"]
            yield found


def request_of(method: str, path: str, operation: Mapping[str, Any], ids: Mapping[str, object]) -> dict[str, Any]:
    """Return a request for an operation that names what ``ids`` names, wherever it can."""
    names = re.findall(r"{(\w+)}", path)
    known = {"name": "matmul" if "/operators/" in path else "r", "channel": "canary", "uuid": "GPU-0", **ids}
    asked: dict[str, Any] = {"method": method, "url": path.format(**{name: known[name] for name in names})}
    query = {"job_id", "workload_key", "record_id", "trial", "device_key"}
    parameters = [p for p in operation.get("parameters", ()) if p["in"] == "query"]
    place = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
    given = {**{name: ids[name] for name in query if name in ids}, **place, "against": "r"}
    given |= {"first": ids["record_id"], "second": ids["record_id"], "a": ids["record_id"], "b": ids["record_id"]}
    asked["params"] = {p["name"]: given[p["name"]] for p in parameters if p["name"] in given}
    if method in ("POST", "PUT") and operation.get("requestBody"):
        asked["json"] = {
            **({"workload_keys": [ids["workload_key"]]} if path.endswith("/batch_lookup") else {}),
            **(EXPRESSION if "/schedules/" in path and "batch" not in path else {}),
            **(place if path.endswith("lookup") else {}),
            **({"tasks": [EXPRESSION]} if path in ("/v1/jobs", "/v1/jobs/estimate") else {}),
            **({"budget": {"trials": 4}} if path.endswith("/jobs") or path.endswith("/estimate") else {}),
            **({"priority": 1} if path.endswith("/priority") else {}),
            **({"parameters": SIZES} if path.startswith("/v1/operators") else {}),
        }
        if path.endswith("/timings"):
            seconds = {"seconds": 1.0, "baseline_seconds": 2.0, "tuned_kernels": 1}
            asked["json"] = {"device_key": HERE.device.key, "baseline": "eager", **seconds}
        if path == "/v1/models":
            asked["json"] = {**MODEL, "name": "model-of-team-b"}
    return asked


def marks(guarded: Guarded) -> list[str]:
    """Return texts that only answers about rows of the other tenant have."""
    rows = [row.record.trial.schedule.key for row in guarded.service._store.trials(JOB, 0, limit=9)]
    return [JOB, NOTES, MODEL["name"], f"of {THEIRS}", *rows]  # type: ignore[list-item]


def seen_in(answer: httpx2.Response, guarded: Guarded) -> list[str]:
    """Return the marks in an answer. A refusal, and a form, may repeat what it was asked for."""
    text = answer.text.replace(answer.request.url.path, "")
    if answer.status_code >= 400:
        text = text.replace(JOB, "")
    return [mark for mark in marks(guarded) if mark in text]


NAMED = {"job_id", "record_id", "workload_key", "model_key"}
SHOWN = (
    "getJob listJobs listTrials getSeries getTrial getTrialRelatives searchTrials getBestSchedule lookUpSchedule "
    "lookUpSchedules getModel listModels exportRecords getProgress listEvents"
).split()
"""Operations that show the owner something that others must not see: if they did not, the test would show nothing."""


def test_no_tenant_sees_a_row_of_another(guarded: Guarded) -> None:
    makes = ("addModel", "submitJob")  # what they make is seen afterwards
    names = [name for name in OPERATIONS if name not in ("importRecords", *makes)]
    with guarded.client(guarded.secrets[OURS]) as ours, guarded.client(guarded.secrets[THEIRS]) as theirs:
        for name in (*names, *makes):
            asked = request_of(*OPERATIONS[name], guarded.ids)
            answer = ours.request(**asked)
            assert not seen_in(answer, guarded), (name, answer.text[:2000])
            assert answer.status_code < 500, (name, answer.text)
            if NAMED & set(re.findall(r"{(\w+)}", OPERATIONS[name][1])):
                assert answer.status_code in (403, 404), (name, answer.status_code, answer.text)
            if name in SHOWN:
                shown = theirs.request(**asked)
                assert shown.status_code == 200 and any(mark in shown.text for mark in marks(guarded)), name
                assert answer.text != shown.text
            if name == "listWorkloads":
                assert TASK.workload_key not in answer.text and TASK.workload_key in theirs.request(**asked).text
    job = guarded.service.job(JOB)
    assert (job.notes, job.state.value, job.tenant) == (NOTES, "succeeded", THEIRS)


def test_no_page_shows_a_row_of_another(guarded: Guarded) -> None:
    pages = [route.path for route in routes() if route.methods == {"GET"} and not route.include_in_schema]
    assert len(pages) > 25
    with guarded.client(guarded.secrets[OURS]) as ours, guarded.client(guarded.secrets[THEIRS]) as theirs:
        told = 0
        for path in pages:
            url = path.format(**{"name": "r", **guarded.ids})
            answer = ours.get(url, headers={"Accept": "text/html"})
            assert answer.status_code < 500, (path, answer.text)
            assert not seen_in(answer, guarded), (path, answer.text)
            told += any(mark in theirs.get(url, headers={"Accept": "text/html"}).text for mark in marks(guarded))
        assert told > 8


def test_every_route_wants_a_key_and_its_scope(guarded: Guarded) -> None:
    nobody = {**guarded.ids, "job_id": "nobody", "record_id": 1 << 40, "workload_key": "0" * 64, "model_key": "0" * 64}
    nobody |= {"key_id": "0" * 12, "tenant": "nobody", "task": 0}
    clients = {scope: guarded.client(guarded.secrets[scope]) for scope in SCOPES}
    with httpx2.Client(base_url=guarded.address, trust_env=False, timeout=60) as anonymous:
        for name, (method, path, operation) in OPERATIONS.items():
            asked = request_of(method, path, operation, nobody)
            if "json" in asked:
                asked["json"] = {}  # which nothing comes of
            wanted = scope_of([method], path)
            refused = anonymous.request(**asked)
            assert (refused.status_code == 401) == (name not in OPEN), (name, refused.text)
            for scope, http in clients.items():
                if name in ("createRelease", "rollBackChannel", "pinChannel", "unpinChannel") and scope == ADMIN:
                    continue
                answer = http.request(**asked)
                allowed = scope in (wanted, ADMIN) or name in OPEN
                assert (answer.status_code == 403) == (not allowed), (name, scope, answer.text)
                if not allowed:
                    assert answer.json()["code"] == "SCOPE_MISSING" and scope in answer.json()["detail"]
    assert all(isinstance(route, GuardedRoute) for route in routes())
    for client in clients.values():
        client.close()
    refusals = [entry for entry in guarded.service.users.audited(page_size=500).items if entry.status == 403]
    assert {entry.name for entry in refusals} >= {"read", "submit", "worker"}
    assert {"submitJob", "createKey", "importRecords"} <= {entry.action for entry in refusals}


def routes() -> list[Any]:
    """Return every route but the description's and the static files."""
    return [route for router in ROUTES.values() for route in router.routes]


def test_what_a_key_makes_belongs_to_its_tenant(guarded: Guarded) -> None:
    body = {"tasks": [EXPRESSION], "budget": {"trials": 4}, "tags": ["nightly", "x.y"], "notes": "why", "seed": 77}
    with guarded.client(guarded.secrets[OURS]) as ours, guarded.client(guarded.secrets[THEIRS]) as theirs:
        headers = {"Idempotency-Key": "k"}
        made = ours.post("/v1/jobs", json=body, headers=headers).raise_for_status().json()
        assert (made["tenant"], made["owner"], made["tags"]) == (OURS, f"of {OURS}", ["nightly", "x.y"])
        assert not made["tasks"][0]["source_job"]
        other = theirs.post("/v1/jobs", json={**body, "seed": 78}, headers=headers)  # a key of one tenant alone
        assert other.status_code == 201 and other.json()["id"] != made["id"] and other.json()["tenant"] == THEIRS
        for tenant, status in ((THEIRS, 403), (OURS, 201)):
            assert ours.post("/v1/jobs", json={**body, "tenant": tenant, "seed": 79}).status_code == status
        listed = ours.get("/v1/jobs", params={"tag": "x.y", "owner": f"of {OURS}"}).json()["jobs"]
        assert len(listed) == 2 and not ours.get("/v1/jobs", params={"tag": "x"}).json()["jobs"]
        changed = ours.put(f"/v1/jobs/{made['id']}/notes", json={"tags": [], "notes": "because"}).json()
        assert (changed["tags"], changed["notes"]) == ([], "because") and changed["version"] > made["version"]
        for job in (*listed, other.json()):
            client = ours if job["tenant"] == OURS else theirs
            assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 200
    with guarded.client(TOKEN) as admin:
        assert {job["tenant"] for job in admin.get("/v1/jobs").json()["jobs"]} == {THEIRS, OURS}


def test_lines_of_another_tenant_are_not_added_to(guarded: Guarded) -> None:
    lines = "".join(line + "\n" for line in guarded.service.export_records())
    headers = {"Content-Type": "application/jsonl"}
    with guarded.client(guarded.secrets[OURS]) as ours:
        assert ours.get("/v1/records").text == ""
        refused = ours.post("/v1/records", content=lines, headers=headers)
        assert refused.status_code == 422 and "is taken" in refused.json()["detail"]
        added = ours.post("/v1/records", content=lines.replace(JOB, "b" * 16), headers=headers)
        assert added.status_code == 200 and added.json()["imported"] == 6
        assert ours.get(f"/v1/jobs/{'b' * 16}").json()["tenant"] == OURS


def test_records_are_shared_where_the_setting_says_so(guarded: Guarded) -> None:
    caller = Caller("someone", "team-c", frozenset({READ}))
    record = guarded.ids["record_id"]
    assert isinstance(record, int)
    place = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
    for shared in (False, True):
        with acting_as(caller, shares_records=shared):
            (found,) = guarded.service.look_up([TASK.workload_key], guarded.service.conditions(**place))
            assert isinstance(found, Answer) == shared
            with nullcontext() if shared else pytest.raises(NotFound):
                assert guarded.service.trial(record).record_id == record
            assert not guarded.service.jobs().items and not guarded.service.fleet.tenants()
            with pytest.raises(Forbidden):
                guarded.service.users.create_key("x", [READ], tenant=OURS)
