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
from tilewright.schedule.sketches import SKETCHES
from tilewright.schedule.space.space import Space
from tilewright.service.expected_loss import FEWEST_PAIRS, PRIORS, LossEstimates, Pair, estimate
from tilewright.service.identity import who_am_i
from tilewright.service.lookup import Answer, Asked, Conditions, Miss
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.service.wiring import sketch_versions
from tilewright.te.json import workload_from_json
from tilewright.tests.api.filled import HERE, VERSION, keep_job, operator_task
from tilewright.tests.api.serving import running
from tilewright.tests.db.postgres import PostgresServer

OLDER = replace(HERE, toolchain=Toolchain({"llvm": "19", "tilewright": "0.1.0"}))
COLD = replace(HERE, profile=Profile("cold"))
PLACE = {"device_key": HERE.device.key, "toolchain_key": HERE.toolchain.key, "profile": str(HERE.profile)}
ALL = ("profile", "toolchain", "device")
SHAPE = frozenset({"shape"})
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


def keep_schedule(store: RecordStore, name: str, task: NewTask, schedule: Schedule, seconds: float) -> None:
    """Store a job with one trial, and say that it is the best of its task."""
    keep_job(store, name, [task], 0)
    made = Trial(schedule, Timed((seconds,) * 3, 10), Clocks(), Evidence(3, 0.02, 1e-5, 1e-5, True, True))
    with store.database.writing() as connection:
        record_trial(connection, NewTrial(name, 0, 0, task.workload_key, HERE, made, 0.1))


def space_of(task: NewTask) -> Space:
    """Return the space of the generic sketch on the device of ``HERE``."""
    return SKETCHES["cpu_loops"].space(workload_from_json(task.workload), HERE.device.target)


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
    unseen = Asked("0" * 64, HERE.device.key, "matmul")
    estimates = LossEstimates(store, sketch_versions()).expected_loss("llvm", frozenset({"profile"}), unseen)
    assert estimates.pairs == 60 and estimates.low == 0.0 and estimates.median == 0.0
    assert estimates.high == pytest.approx(0.5) and "of matmul" in estimates.ground
    of_shapes = LossEstimates(store, sketch_versions()).expected_loss("llvm", frozenset({"shape"}), unseen)
    assert of_shapes.pairs > 60 and of_shapes.high == pytest.approx(0.5)


def test_an_estimate_covers_further_losses_nine_times_in_ten() -> None:
    """Losses of one asked workload are alike, so that the interval of the others has to be wider than that of as many
    different ones."""
    pairs = [Pair("matmul", f"w{n % 20}", f"v{n}", (n % 20) + n / 1000) for n in range(200)]
    shown = [(estimate(pairs, SHAPE, operator="matmul", asked=pair.asked), pair.loss) for pair in pairs]
    assert {stated.pairs for stated, _ in shown} == {190}  # what was asked for took no part
    assert 170 <= sum(s.low <= loss <= s.high for s, loss in shown if s.low is not None and s.high is not None) <= 190


def test_where_pairs_are_few_those_of_other_operators_or_a_prior_stand_in() -> None:
    own = [Pair("matmul", f"w{n}", "v", 0.5) for n in range(FEWEST_PAIRS - 1)]
    others = [Pair("softmax", f"s{n}", "v", 0.1) for n in range(100)]
    stated = estimate(own + others, SHAPE, operator="matmul")
    assert stated.median == 0.1 and stated.pairs == 119 and "any operator" in stated.ground
    prior = estimate(own, SHAPE, operator="matmul")
    assert (prior.low, prior.median, prior.high) == PRIORS["shape"] and prior.ground.startswith("a prior")
    wider = estimate(own, frozenset({"shape", "device"}), operator="matmul")
    assert wider.high == PRIORS["device"][2]
    nothing = estimate(own, frozenset({"toolchain"}), operator="matmul")
    assert (nothing.median, nothing.pairs) == (None, FEWEST_PAIRS - 1) and "no ground" in nothing.ground


def test_the_shape_gives_way_last_and_only_to_a_legal_schedule(http: httpx2.Client, store: RecordStore) -> None:
    """Of three near shapes the nearest has a schedule that is not legal for the one asked for."""
    near, farther, farthest = (operator_task("matmul", {"m": 60, "n": n, "k": 60}) for n in (62, 64, 128))
    halves = operator_task("matmul", {"m": 60, "n": 60, "k": 60, "dtype": "float16"})
    legal, illegal = space_of(farther).schedule(0), Schedule.of("cpu_loops", VERSION, {"tile": 3})
    for name, task, schedule, seconds in (
        ("near", near, illegal, 1e-6),
        ("farther", farther, legal, 2e-6),
        ("farthest", farthest, legal, 3e-6),
        ("halves", halves, legal, 1e-9),
    ):
        keep_schedule(store, name, task, schedule, seconds)
    asked_for = {"operator": "matmul", "parameters": {"m": 60, "n": 60, "k": 60}, **PLACE}
    assert http.post("/v1/schedules/lookup", json=asked_for).status_code == 404
    for relax in (["shape"], ["profile", "toolchain", "device", "shape"]):
        best = http.post("/v1/schedules/lookup", json=asked_for | {"relax": relax}).json()
        assert (best["match"], best["workload_key"]) == (["shape"], farther.workload_key)
        assert best["seconds"] == 2e-6 and best["expected_loss"]["median"] == PRIORS["shape"][1]
    one = operator_task("matmul", {"m": 60, "n": 60, "k": 60}).workload_key
    unknown = asked(http, one, relax="shape")
    assert unknown.status_code == 404 and "look its expression up" in unknown.json()["detail"]
    keep(store, "asked", [operator_task("matmul", {"m": 60, "n": 60, "k": 60})], [(COLD, 1, 9e-6)])
    assert asked(http, one, relax="shape").json()["workload_key"] == farther.workload_key  # now it is known
    assert asked(http, one, relax="profile,shape").json()["match"] == ["profile"]
    body = {"workload_keys": [one], **PLACE, "relax": ["shape"]}
    assert http.post("/v1/schedules/batch_lookup", json=body).status_code == 422


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
def shared(postgres: PostgresServer) -> Iterator[Service]:
    settings = Settings(database_url=postgres.url(), run_jobs=False)
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


def test_the_short_road_and_the_route_answer_the_same(http: httpx2.Client, store: RecordStore) -> None:
    task = task_of(11)
    keep(store, "roads", [task], [(HERE, 1, 2e-6)])
    place = "&".join(f"{name}={value}" for name, value in PLACE.items())
    known, unknown = f"workload_key={task.workload_key}", f"workload_key={'0' * 64}"
    tag = {"If-None-Match": http.get(f"/v1/schedules/best?{known}&{place}").headers["etag"]}
    for query, headers, status in (
        (f"{known}&{place}", {}, 200),
        (f"{place}&{known}", {}, 200),
        (f"{known}&{place}", tag, 304),
        (f"{unknown}&{place}", {}, 404),
        (f"{known}&{known}&{place}", {}, 422),
        (f"{known}&{place}&{place}", {}, 422),
        (f"{known}&{place}&more=1", {}, 422),
        (f"{known}&{place.replace('warm', '!')}", {}, 422),
        (f"{known}0&{place}", {}, 422),
    ):
        ask = {"X-Request-Id": "the-same", **headers}
        short = http.get(f"/v1/schedules/best?{query}", headers=ask)
        # an escaped letter means the same, and only the route reads it
        other = http.get(f"/v1/schedules/best?{query.replace('workload', '%77orkload')}", headers=ask)
        assert short.status_code == other.status_code == status, query
        assert short.content == other.content
        assert {**short.headers, "date": ""} == {**other.headers, "date": ""}
