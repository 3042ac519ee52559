"""The fleet over HTTP: units and who changes them, the queue and what waits in it, tenants and their quotas."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx2
import pytest

from tilewright.api.app import create_app
from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import Contradiction, InvalidRequest, Missing, QueueFull
from tilewright.core.budget import Budget
from tilewright.core.fleet import AttemptEnd
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import LONG, claim, claimed, finish, gpus, submit, unseen

MATMUL = operator_task("matmul", {"m": 4, "n": 4, "k": 4})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[RecordStore, Client]]:
    """A service that only answers, its store, and two GPUs that a host says it has."""
    settings = Settings(database_url=f"sqlite:///{tmp_path}/t.sqlite3", run_jobs=False)
    store = RecordStore(settings.database_url)
    gpus(store, 2)
    with Service(settings, store) as service, running(create_app(service, settings)) as address:
        with Client(address, retries=0) as client:
            yield store, client


def test_units_say_what_they_do(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "one")
    assert store.fleet.lease_unit("GPU-h1-0", "someone", seconds=LONG) is not None
    claimed(store, "someone", unit="GPU-h1-0")
    busy, free = client.units()
    assert (busy.owner, [(task.job_id, task.task) for task in busy.tasks]) == ("someone", [("one", 0)])
    assert (free.owner, free.tasks, free.state, free.seen) == (None, (), "ready", True)
    assert busy.classes[:2] == ("cuda", "cuda:sm_90a") and busy.host == "h1" and busy.device_name == "Some GPU"
    unseen(store, free.uuid)
    assert not client.units()[1].seen


def test_a_unit_is_drained_released_and_quarantined_with_a_reason(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    drained = client.drain("GPU-h1-0", "a new driver")
    assert (drained.state, drained.reason) == ("draining", "a new driver")
    assert store.fleet.lease_unit("GPU-h1-0", "someone", seconds=LONG) is None
    shut_out = client.quarantine("GPU-h1-0", "slow")
    assert (shut_out.state, shut_out.reason) == ("quarantined", "by an administrator: slow")  # not for probes to lift
    assert client.release("GPU-h1-0", "it is well").state == "ready"
    assert store.fleet.lease_unit("GPU-h1-0", "someone", seconds=LONG) is not None
    with pytest.raises(Missing):
        client.drain("GPU-none", "why not")
    for reason in ("", "  ", "x" * 401):
        with pytest.raises(InvalidRequest) as wrong:
            client.drain("GPU-h1-0", reason)
        assert wrong.value.field == "/reason"


def test_the_queue_has_positions_and_says_what_is_waited_for(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "old", 2)
    submit(store, "urgent", priority=5)
    submit(store, "elsewhere", target="cuda:sm_100a")
    submit(store, "held")
    client.pause("held")
    running_task = claimed(store, "someone", unit="GPU-h1-0")
    assert running_task.job_id == "urgent"
    queue = {(entry.job_id, entry.task): entry for entry in client.queue()}
    assert queue["urgent", 0].position is None and queue["urgent", 0].units == ("GPU-h1-0",)
    assert [queue[key].position for key in (("old", 0), ("old", 1), ("elsewhere", 0))] == [1, 2, 3]
    assert queue["elsewhere", 0].waits_for == "no unit of the fleet serves cuda:sm_100a"
    assert (queue["held", 0].state, queue["held", 0].waits_for) == ("blocked", "its job is paused")
    assert queue["old", 0].expected_start is not None  # the second unit is free
    assert queue["old", 1].expected_start is None  # nobody knows how long such tasks take
    assert client.job("old").tasks[1].queue_position == 2
    assert client.job("elsewhere").tasks[0].waits_for == "no unit of the fleet serves cuda:sm_100a"
    assert client.ready().warnings == ("1 task waits: no unit of the fleet serves cuda:sm_100a",)
    assert client.ready().ready
    for uuid in ("GPU-h1-0", "GPU-h1-1"):
        client.drain(uuid, "out")
    assert client.job("old").tasks[0].waits_for == "no unit that serves cuda is ready: 2 draining"


def test_starts_are_expected_from_how_long_tasks_took(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "before")
    held = claimed(store, "someone", unit="GPU-h1-0")
    store.fleet.finish_task(held.lease, "trials", {"wall_seconds": 50.0, "timing_seconds": 1.0})
    submit(store, "next", 5)
    now = store.fleet.now()
    starts = [entry.expected_start for entry in client.queue()]
    assert all(starts) and starts == sorted(starts, key=str)
    from_now = [seconds_of(start) - now for start in starts]
    assert from_now == pytest.approx([0, 0, 50, 50, 100], abs=20)  # two units share them


def seconds_of(stamp: str | None) -> float:
    assert stamp is not None
    return datetime.fromisoformat(stamp).timestamp()


def test_a_job_is_paused_resumed_and_given_a_priority(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "job")
    paused = client.pause("job")
    assert paused.paused and paused.tasks[0].waits_for == "its job is paused" and claim(store) is None
    resumed = client.resume("job")
    assert not resumed.paused and resumed.tasks[0].queue_position == 1
    assert client.set_priority("job", 7).priority == 7 and client.queue()[0].priority == 7
    for priority in (101, -101):
        with pytest.raises(InvalidRequest):
            client.set_priority("job", priority)
    finish(store, claimed(store))
    for change in (client.pause, client.resume, client.retry):
        with pytest.raises(Contradiction):
            change("job")
    with pytest.raises(Missing):
        client.pause("nobody")


def test_attempts_are_listed_and_a_dead_task_is_tried_again(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "job")
    for number in range(5):
        held = claimed(store, f"owner{number}", unit="GPU-h1-1")
        store.fleet.end_attempt(held.lease, AttemptEnd.ACTOR_LOST, "it is gone")
    attempts = client.attempts("job")
    assert [(one.how, one.detail, one.units) for one in attempts] == [("actor_lost", "it is gone", ("GPU-h1-1",))] * 5
    assert [one.owner for one in attempts] == [f"owner{number}" for number in range(5)]
    dead = client.job("job")
    assert (dead.state, dead.tasks[0].state, dead.tasks[0].attempts) == ("failed", "dead", 5)
    again = client.retry("job")
    assert (again.state, again.tasks[0].state, again.tasks[0].queue_position) == ("queued", "ready", 1)
    with pytest.raises(Missing):
        client.attempts("job", task=1)


def test_a_full_queue_is_429_with_the_time_to_try_again(fleet: tuple[RecordStore, Client]) -> None:
    _, client = fleet
    tenant = client.set_tenant("small", weight=2.0, most_queued=1)
    assert (tenant.weight, tenant.most_queued, tenant.most_units) == (2.0, 1, None)
    client.submit(MATMUL, tenant="small", budget=Budget(1))
    with pytest.raises(QueueFull) as full:
        client.submit(MATMUL, tenant="small", budget=Budget(1))
    assert (full.value.problem.status, full.value.code) == (429, "QUOTA_EXCEEDED")
    with httpx2.Client(base_url=client.address, trust_env=False, timeout=60) as http:
        body = {"tasks": [{"operator": "matmul", "parameters": {"m": 4, "n": 4, "k": 4}}], "tenant": "small"}
        refused = http.post("/v1/jobs", json=body)
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0
    assert [(one.name, one.waiting) for one in client.tenants()] == [("default", 0), ("small", 1)]
    client.set_tenant("small")
    client.submit(MATMUL, tenant="small", budget=Budget(1))  # its quota is gone
    with pytest.raises(InvalidRequest):
        client.set_tenant("small", weight=0.0)


def test_the_etag_of_a_job_follows_its_place_in_the_queue(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "first")
    submit(store, "second")
    with httpx2.Client(base_url=client.address, trust_env=False, timeout=60) as http:
        tag = http.get("/v1/jobs/second").headers["ETag"]
        assert http.get("/v1/jobs/second", headers={"If-None-Match": tag}).status_code == 304
        claimed(store)
        moved = http.get("/v1/jobs/second", headers={"If-None-Match": tag})
        assert moved.status_code == 200 and moved.json()["tasks"][0]["queue_position"] == 1


def test_prometheus_sees_the_fleet(fleet: tuple[RecordStore, Client]) -> None:
    store, client = fleet
    submit(store, "job", 3)
    assert store.fleet.lease_unit("GPU-h1-0", "someone", seconds=LONG) is not None
    held = claimed(store, "someone", unit="GPU-h1-0")
    lost = claimed(store, "other", unit="GPU-h1-1")
    store.fleet.end_attempt(lost.lease, AttemptEnd.ACTOR_LOST)
    with httpx2.Client(base_url=client.address, trust_env=False, timeout=60) as http:
        assert http.get("/v1/jobs/job").status_code == 200 and http.get("/v1/jobs/nobody").status_code == 404
        lines = http.get("/metrics").text.splitlines()
    for status in (200, 404):  # by the route, not by the path, of which there may be any number
        labels = f'method="GET",route="/v1/jobs/{{job_id}}",status="{status}"'
        assert any(line.startswith(f"tilewright_http_request_seconds_count{{{labels}}}") for line in lines)
    silent = next(line for line in lines if line.startswith("tilewright_task_silence_seconds "))
    assert 0 < float(silent.split()[-1]) < LONG
    assert any(line.startswith('tilewright_database_connections{state="idle"} ') for line in lines)
    assert 'tilewright_tasks{state="leased"} 1.0' in lines and 'tilewright_tasks{state="ready"} 2.0' in lines
    assert 'tilewright_leases{kind="task"} 1.0' in lines and 'tilewright_leases{kind="unit"} 1.0' in lines
    assert 'tilewright_attempts{how="actor_lost"} 1.0' in lines and "tilewright_task_losses 1.0" in lines
    assert any(line.startswith("tilewright_queue_age_seconds ") for line in lines)
    busy = [line for line in lines if line.startswith("tilewright_unit_busy_ratio{")]
    assert len(busy) == 2 and all(0 < float(line.split()[-1]) <= 1 for line in busy)
    assert held.job_id == "job"
