"""Look-ups: strict by default, relaxed by name, for one workload and for many, with tags that spare the transfer."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tilewright.api.app import create_app
from tilewright.api.client import Client
from tilewright.api.client_errors import Missing
from tilewright.api.client_lookups import own_identity
from tilewright.api.lookup_batches import LookupBatches
from tilewright.core.record import MeasuredOn
from tilewright.core.schedule import Schedule
from tilewright.core.target import Profile, Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db.recording import record_trial
from tilewright.db.rows import NewTask, NewTrial
from tilewright.db.store import RecordStore
from tilewright.service.expected_loss import FEWEST_PAIRS, LossEstimates, estimate
from tilewright.service.identity import who_am_i
from tilewright.service.lookup import Answer, Conditions, Miss
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.service.wiring import sketch_versions
from tilewright.tests.api.filled import HERE, VERSION, keep_job, operator_task
from tilewright.tests.api.serving import running
from tilewright.tests.db.postgres import server

OLDER = replace(HERE, toolchain=Toolchain({"llvm": "19", "tilewright": "0.1.0"}))
COLD = replace(HERE, profile=Profile("cold"))
PLACE = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
ALL = ("profile", "toolchain", "device")
Measured = tuple[MeasuredOn, int, float]


def task_of(n: int) -> NewTask:
    return operator_task("matmul", {"m": 16, "n": n, "k": 16})


def keep(
    store: RecordStore, name: str, tasks: Sequence[NewTask], found: Sequence[Measured], version: int = VERSION
) -> None:
    """Store a job with the same (place, tile, seconds) for each task."""
    keep_job(store, name, tasks, 0)
    with store.database.writing() as connection:
        for position, task in enumerate(tasks):
            for sequence, (on, tile, seconds) in enumerate(found):
                schedule = Schedule.of("cpu_loops", version, {"tile": tile})
                made = Trial(schedule, Timed((seconds,) * 3, 10), Clocks(), Evidence(3, 0.02, 1e-5, 1e-5, True, True))
                record_trial(
                    connection, NewTrial(name, position, sequence, task.workload_key, on, made, 0.1 * sequence)
                )


def asked(http: httpx2.Client, key: str, **query: str) -> httpx2.Response:
    return http.get("/v1/schedules/best", params={"workload_key": key, **PLACE, **query})


def test_a_look_up_serves_what_was_asked_for_or_nothing(http: httpx2.Client, store: RecordStore) -> None:
    task = task_of(8)
    keep(store, "strict", [task], [(HERE, 1, 2e-6), (OLDER, 2, 1e-6), (COLD, 3, 3e-6), (HERE, 4, 2.5e-6)])
    best = asked(http, task.workload_key).json()
    assert (best["seconds"], best["match"], best["expected_loss"]) == (2e-6, ["exact"], None)
    evidence = best["evidence"]
    assert evidence["max_error"] == 0.02 and evidence["absolute_tolerance"] == 1e-5 and best["samples"] == [2e-6] * 3
    assert asked(http, task.workload_key, profile="cold-v1").json()["seconds"] == 3e-6  # never ranked with warm ones
    for parts, reason in (
        ({"toolchain_key": "0" * 64}, "no timed record has this device, toolchain and profile"),
        ({"toolchain_key": "0" * 64, "relax": "profile"}, "no timed record matches, though parts may give way"),
        ({"device_key": "0" * 64, "relax": "profile,toolchain,device"}, "no timed record matches"),
    ):
        missed = asked(http, task.workload_key, **parts)
        assert missed.status_code == 404 and missed.json()["code"] == "NOT_FOUND" and reason in missed.json()["detail"]
    refused = asked(http, task.workload_key, relax="workload")
    assert refused.status_code == 422 and refused.json()["field"].startswith("relax")
    relaxed = asked(http, task.workload_key, toolchain_key="0" * 64, relax="profile,toolchain").json()
    assert (relaxed["match"], relaxed["seconds"]) == (["toolchain"], 1e-6)  # the profile did not have to give way
    assert relaxed["expected_loss"]["median"] is None and "no ground" in relaxed["expected_loss"]["ground"]


def test_schedules_of_other_versions_of_a_sketch_are_never_served(http: httpx2.Client, store: RecordStore) -> None:
    task = task_of(9)
    keep(store, "stale", [task], [(HERE, 1, 1e-9)], version=VERSION + 1)
    for relax in ({}, {"relax": "profile,toolchain,device"}):
        missed = asked(http, task.workload_key, **relax)
        assert missed.status_code == 404
    assert "earlier versions" in asked(http, task.workload_key).json()["detail"]
    keep(store, "fresh", [task], [(HERE, 2, 1e-3)])
    assert asked(http, task.workload_key).json()["seconds"] == 1e-3


def test_a_tag_names_the_answer_until_a_better_one_comes(http: httpx2.Client, store: RecordStore) -> None:
    task = task_of(10)
    keep(store, "tagged", [task], [(HERE, 1, 2e-6)])
    first = asked(http, task.workload_key)
    tag = {"If-None-Match": first.headers["etag"]}
    query = {"workload_key": task.workload_key, **PLACE}
    same = http.get("/v1/schedules/best", params=query, headers=tag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    batch = http.post("/v1/schedules/batch_lookup", json={"workload_keys": [task.workload_key], **PLACE})
    again = {"If-None-Match": batch.headers["etag"]}
    body = {"workload_keys": [task.workload_key], **PLACE}
    assert http.post("/v1/schedules/batch_lookup", json=body, headers=again).status_code == 304
    keep(store, "better", [task], [(HERE, 2, 1e-6)])
    better = http.get("/v1/schedules/best", params=query, headers=tag)
    assert better.status_code == 200 and better.json()["seconds"] == 1e-6


def test_many_are_looked_up_at_once(http: httpx2.Client, store: RecordStore) -> None:
    tasks = [task_of(n) for n in range(100, 120)]
    keep(store, "many", tasks, [(HERE, 1, 2e-6), (HERE, 2, 1e-6)])
    keep(store, "some", [task_of(130)], [(OLDER, 2, 1e-6)])
    keys = [task.workload_key for task in (*tasks, task_of(130))]
    wanted = [*keys, *(f"{n:064x}" for n in range(1000 - len(keys) - 1)), keys[0]]
    found = http.post("/v1/schedules/batch_lookup", json={"workload_keys": wanted, **PLACE}).json()["answers"]
    assert len(found) == 1000 and found[0] == found[-1] == asked(http, keys[0]).json()
    assert [answer and answer["workload_key"] for answer in found[:21]] == [*keys[:20], None]
    body = {"workload_keys": wanted, **PLACE, "relax": ["toolchain"]}
    found = http.post("/v1/schedules/batch_lookup", json=body).json()["answers"]
    assert found[20]["match"] == ["toolchain"] and sum(answer is not None for answer in found) == 22
    for keys_sent in ([], [*wanted, "0" * 64], ["x"]):
        refused = http.post("/v1/schedules/batch_lookup", json={"workload_keys": keys_sent})
        assert refused.status_code == 422 and refused.json()["field"].startswith("/workload_keys")


def test_the_expected_loss_is_that_of_pairs_of_held_out_records(http: httpx2.Client, store: RecordStore) -> None:
    """Both profiles have timed both schedules of 30 workloads, and each is the best of one: three in five lose nothing
    by the other's choice, one a tenth, one a half."""
    for n, warm_of_cold in enumerate((1.0, 1.0, 1.0, 1.1, 1.5)):
        found = [(HERE, 1, 1e-6), (HERE, 2, 1e-6 * warm_of_cold), (COLD, 1, 3e-6), (COLD, 2, 2e-6)]
        tasks = [operator_task("matmul", {"m": 4, "n": 4, "k": 200 + 6 * n + k}) for k in range(6)]
        keep(store, f"pairs{n}", tasks, found)
    estimates = LossEstimates(store, sketch_versions()).expected_loss("llvm", frozenset({"profile"}))
    assert estimates.pairs >= 60 and estimates.low == 0.0 and estimates.median == 0.0
    assert estimates.high == pytest.approx(0.5)


def test_an_estimate_covers_further_losses_nine_times_in_ten() -> None:
    few = estimate([0.1] * (FEWEST_PAIRS - 1), "profile")
    assert few.median is None and few.pairs == FEWEST_PAIRS - 1
    losses = [((7 * n) % 200) / 200 for n in range(200)]  # each of 200 values once, in no order
    shown = [estimate(losses[:n] + losses[n + 1 :], "profile") for n in range(200)]
    inside = sum(e.low <= loss <= e.high for e, loss in zip(shown, losses, strict=True))  # type: ignore[operator]
    assert 180 <= inside <= 190


def test_a_client_knows_its_machine_and_keeps_answers(
    address: str, store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, me = task_of(11), who_am_i()
    assert own_identity("llvm") == me and own_identity("cuda:99") is None
    with Client(address) as client:
        with pytest.raises(Missing):
            client.best(task.workload_key)
        keep(store, "elsewhere", [task], [(HERE, 1, 2e-6)])
        with pytest.raises(Missing):  # the service would find it: it was measured on a device that it knows
            client.best(task.workload_key)
        found = client.best(task.workload_key, relax=ALL)
        assert found.match == ("toolchain", "device") and client.best_of_many([task.workload_key]) == [None]
        assert client.best_of_many(["0" * 64, task.workload_key], relax=ALL) == [None, found]
    sent: list[int] = []
    for _ in range(2):  # two processes share the folder
        with Client(address, cache_folder=tmp_path / "cache") as client:
            client._http.event_hooks["response"] = [lambda answer: sent.append(answer.status_code)]
            assert client.best(task.workload_key, **PLACE).seconds == 2e-6
    assert sent == [200, 304] and len(list((tmp_path / "cache").iterdir())) == 1


@pytest.fixture
def shared() -> Iterator[Service]:
    with server() as database:
        settings = Settings(database_url=database.url(), run_jobs=False)
        upgrade_database(settings)
        with Service.open(settings) as opened:
            yield opened


@pytest.mark.postgres
def test_look_ups_of_one_moment_share_a_statement_of_a_servers_database(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task_of(n) for n in range(1, 9)]
    keep(shared._store, "shared", tasks, [(HERE, 1, 2e-6)])
    asked_for: list[int] = []
    look_up = shared.look_up

    def counted(keys: Sequence[str], wanted: Conditions) -> list[Answer | Miss]:
        asked_for.append(len(keys))
        return look_up(keys, wanted)

    monkeypatch.setattr(shared, "look_up", counted)
    with running(create_app(shared, shared.settings)) as address:

        async def ask_all() -> list[httpx2.Response]:
            async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
                keys = [*(task.workload_key for task in tasks), "0" * 64] * 8
                asks = (http.get("/v1/schedules/best", params={"workload_key": key, **PLACE}) for key in keys)
                return await asyncio.gather(*asks)

        answers = asyncio.run(ask_all())
    assert sorted({answer.status_code for answer in answers}) == [200, 404] and len(answers) == 72
    hits = [answer.json()["workload_key"] for answer in answers if answer.status_code == 200]
    assert sorted(hits) == sorted([task.workload_key for task in tasks] * 8)
    assert sum(asked_for) >= 9 and max(asked_for) > 1


def test_an_error_of_the_database_reaches_everybody_who_waits() -> None:
    def fails(keys: Sequence[str], wanted: Conditions) -> list[Any]:
        raise RuntimeError("away")

    async def ask() -> list[object]:
        batches = LookupBatches(fails)
        wanted = Conditions("d", "t", "p")
        found = await asyncio.gather(*(batches.find(str(n), wanted) for n in range(3)), return_exceptions=True)
        assert batches._running == {} and batches._waiting == {}
        return list(found)

    assert [str(error) for error in asyncio.run(ask())] == ["away"] * 3


def test_what_is_kept_is_the_wire_format(http: httpx2.Client, store: RecordStore) -> None:
    """The text of the table has every member that is described, so that no client meets another form."""
    task = task_of(12)
    keep(store, "wire", [task], [(HERE, 1, 2e-6)])
    sent = asked(http, task.workload_key).json()
    described = http.get("/openapi.json").json()["components"]["schemas"]
    assert set(sent) == set(described["BestOut"]["properties"])
    assert set(sent["evidence"]) == set(described["EvidenceOut"]["properties"])
    assert json.loads(json.dumps(sent)) == sent
