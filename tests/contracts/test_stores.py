"""What every store must do: the same suite on SQLite and on PostgreSQL."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from tilewright.core.budget import Budget
from tilewright.core.errors import Conflict, NotFound, StoreError
from tilewright.core.fleet import AttemptEnd, Wanted
from tilewright.core.policy import DEFAULT_POLICY, SpacePolicy
from tilewright.core.record import MeasuredOn, RecordFilter
from tilewright.core.schedule import Schedule
from tilewright.core.streams import stream
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db import history, migrate, record_search, workload_results
from tilewright.db.best import _EXACT_MANY, _EXACT_ONE, fill_best
from tilewright.db.engine import Database, parse_url
from tilewright.db.jobs import LISTED_TASKS
from tilewright.db.rows import AnswerRow, ArtefactRow, NewJob, NewTask, NewTrial, TrialRow, WorkloadSummary
from tilewright.db.store import RecordStore
from tilewright.db.tables import ended_totals, jobs
from tilewright.db.visibility import Visibility, seeing
from tilewright.tests.db.fleets import migrated, move_job
from tilewright.tests.db.postgres import PostgresServer, server

HERE = MeasuredOn(
    DeviceInfo("Some CPU", Target("llvm", "x86-64", ("avx2",), 2, 32), {"cores": 2.0}),
    Toolchain({"llvm": "20", "tilewright": "1"}),
    Profile(),
)
THERE = replace(HERE, device=DeviceInfo("Other CPU", Target("llvm", "aarch64"), {"cores": 4.0}))
NEWER = replace(HERE, toolchain=Toolchain({"llvm": "21", "tilewright": "1"}))
TASK = NewTask("a" * 64, {"stages": []}, "C[i] = A[i]", 1000, 4000, "matmul", {"m": 8, "n": 8, "k": 8})


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tilewright.sqlite3"
    running: PostgresServer = request.getfixturevalue("postgres")
    return running.url()


@pytest.fixture
def store(url: str) -> Iterator[RecordStore]:
    with migrated(url) as opened:
        yield opened


def new_job(name: str, *tasks: NewTask) -> NewJob:
    return NewJob(name, "queued", tasks or (TASK,), Budget(10, 5.5, None), "random", 7, "llvm", "local", "warm")


def trial(sequence: int, seconds: float | None, *, on: MeasuredOn = HERE, job: str = "j", task: int = 0) -> NewTrial:
    outcome = (
        Failed(TrialStage.CHECK, Reason.WRONG_RESULT, f"off\x00by {sequence}") if seconds is None else Timed((seconds,))
    )
    schedule = Schedule.of("loops", 1, {"tile": sequence, "order": "ij"})
    evidence = Evidence(3, float("nan") if seconds is None else 0.5, environment={"load": 0.25})
    kept = Trial(schedule, outcome, Clocks(0.1, 0.2, 0.3, 0.4, 0.5), evidence)
    return NewTrial(job, task, sequence, TASK.workload_key, on, kept, 0.5 * sequence)


def test_a_job_comes_back_as_it_was_kept(store: RecordStore) -> None:
    second = replace(TASK, workload_key="b" * 64, operator=None, parameters=None)
    kept, new = store.create_job(new_job("j", TASK, second))
    assert new and kept == store.job("j")
    assert (kept.state, kept.budget, kept.seed, kept.version) == ("queued", Budget(10, 5.5, None), 7, 1)
    assert [(t.position, t.workload_key, t.operator, t.parameters) for t in kept.tasks] == [
        (0, "a" * 64, "matmul", {"m": 8, "n": 8, "k": 8}),
        (1, "b" * 64, None, None),
    ]
    assert [event.data["state"] for event in store.events("j", after=0, limit=10)] == ["queued"]
    assert store.workload("a" * 64) == {"stages": []} and store.workload("c" * 64) is None


def test_how_a_job_searches_is_kept(store: RecordStore) -> None:
    policies = [SpacePolicy(prune, prior) for prune in (True, False) for prior in (True, False)]
    for number, policy in enumerate(policies):
        store.create_job(replace(new_job(f"j{number}"), policy=policy))
    assert [job.policy for job in store.jobs(limit=9)] == policies[::-1]
    assert store.create_job(new_job("usual"))[0].policy == DEFAULT_POLICY


def test_an_idempotency_key_makes_one_job(store: RecordStore) -> None:
    first, new = store.create_job(new_job("j1"), key="k", body_sha256="1" * 64)
    again, newer = store.create_job(new_job("j2"), key="k", body_sha256="1" * 64)
    assert (new, newer) == (True, False) and again == first
    with pytest.raises(Conflict, match="another body"):
        store.create_job(new_job("j3"), key="k", body_sha256="2" * 64)
    assert [job.id for job in store.jobs(limit=10)] == ["j1"]


def test_equal_keys_at_the_same_moment_make_one_job(store: RecordStore) -> None:
    barrier, answers = threading.Barrier(8), []

    def submit(name: str) -> None:
        barrier.wait()
        answers.append(store.create_job(new_job(name), key="k", body_sha256="1" * 64))

    threads = [threading.Thread(target=submit, args=(f"j{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job, _ in answers}) == 1
    assert sorted(new for _, new in answers) == [False] * 7 + [True]
    assert len(store.jobs(limit=10)) == 1


def test_jobs_are_listed_newest_first_and_by_state(store: RecordStore) -> None:
    numbers = [store.create_job(new_job(f"j{i}"))[0].number for i in range(5)]
    move_job(store, "j2", {"queued": ("cancelling", "cancelled")})
    assert [job.id for job in store.jobs(limit=2)] == ["j4", "j3"]
    assert [job.id for job in store.jobs(before=numbers[3], limit=2)] == ["j2", "j1"]
    assert [job.id for job in store.jobs(limit=9, state="cancelled")] == ["j2"]
    assert store.count_by_state() == {"queued": 4, "cancelled": 1}


def test_lists_look_at_so_many_rows_at_once_and_miss_none(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "WINDOW", 4)
    monkeypatch.setattr(workload_results, "WINDOW", 3)
    others = [replace(TASK, workload_key=key * 64, operator="softmax" if key == "e" else "matmul") for key in "bcde"]
    for number in range(4):  # each has the first workload again, and one of its own
        store.create_job(new_job(f"j{number}", TASK, *[others[number]] * 4))
        for sequence in range(5):
            job, workload = f"j{number}", others[number].workload_key
            own = trial(sequence, 1e-5 * (9 - sequence) if sequence % 2 else None, job=job, task=1)
            store.add_trial(replace(own, workload_key=workload))
        store.add_trial(trial(0, 1e-5, job=f"j{number}"))

    def searched(wanted: RecordFilter) -> list[TrialRow]:
        found, before = list[TrialRow](), None
        for _ in range(20):
            page = store.dashboard.search(wanted, before=before, limit=3)
            assert len(page.rows) <= 3
            found, before = [*found, *page.rows], page.before
            if before is None:
                return found
        raise AssertionError("the pages do not end")

    everything = searched(RecordFilter())
    assert [row.record.id for row in everything] == sorted((row.record.id for row in everything), reverse=True)
    assert len(everything) == 24
    cases: list[tuple[RecordFilter, Callable[[TrialRow], bool]]] = [
        (RecordFilter(failed=True), lambda row: isinstance(row.record.trial.outcome, Failed)),
        (RecordFilter(operator="softmax"), lambda row: row.record.identity.workload_key == "e" * 64),
        (
            RecordFilter(job_id="j2", failed=False),
            lambda row: row.record.job_id == "j2" and isinstance(row.record.trial.outcome, Timed),
        ),
        (RecordFilter(workload_key=TASK.workload_key), lambda row: row.record.task == 0),
        (RecordFilter(device_key=THERE.device.key), lambda row: False),
        (RecordFilter(job_id="nobody"), lambda row: False),
        (RecordFilter(reason="timeout", workload_key="b" * 64), lambda row: False),
    ]
    for wanted, fits in cases:
        ids = [row.record.id for row in searched(wanted)]
        assert ids == [row.record.id for row in everything if fits(row)], wanted
    with seeing(Visibility("another")):
        assert searched(RecordFilter()) == [] and store.analysis.workloads(limit=9)[0] == ()

    summaries, before = list[WorkloadSummary](), None
    for _ in range(20):
        page, before = store.analysis.workloads(before=before, limit=2)
        summaries += page
        if before is None:
            break
    assert [one.workload_key[0] for one in summaries] == ["e", "a", "d", "c", "b"]
    assert [(one.tasks, one.trials) for one in summaries] == [(4, 5), (4, 4), (4, 5), (4, 5), (4, 5)]
    assert [one.workload_key[0] for one in store.analysis.workloads(operator="softmax", limit=9)[0]] == ["e"]
    bests = store.analysis.newest_bests(limit=3)
    assert [(row.job_id, row.task, row.trials) for row in bests] == [("j3", 0, 1), ("j3", 1, 5), ("j2", 0, 1)]
    assert bests[1].seconds == pytest.approx(6e-5)
    ours = store.analysis.newest_bests(limit=9, workload_keys=[TASK.workload_key], device_key=HERE.device.key)
    assert [(row.job_id, row.task) for row in ours] == [(f"j{number}", 0) for number in (3, 2, 1, 0)]
    assert store.analysis.newest_bests(limit=9, device_key=THERE.device.key) == ()
    (listed, *_) = store.jobs(limit=9)
    assert (listed.task_count, len(listed.tasks), store.job("j3").task_count) == (5, LISTED_TASKS, 5)


def test_totals_of_devices_are_the_same_once_jobs_are_counted(store: RecordStore) -> None:
    long_ago, late = "2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"
    for number in range(3):
        store.create_job(replace(new_job(f"j{number}"), tenant=f"tenant{number % 2}"))
        store.set_device(f"j{number}", HERE.device)
        store.add_trial(trial(0, 1e-5, job=f"j{number}"))
    move_job(store, "j0", {"queued": ("running", "succeeded")})
    move_job(store, "j1", {"queued": ("cancelling", "cancelled")})
    before = [store.dashboard.spent(since) for since in (long_ago, late)]
    assert [(row.tasks, row.trials) for row in before[0]] == [(3, 3)] and before[0][0].day_device_seconds > 0
    assert store.count_ended() == 2 and store.count_ended() == 0
    for since, row in zip((long_ago, late), before, strict=True):
        (now,), (then,) = store.dashboard.spent(since), row
        assert (now.tasks, now.trials, now.device_key) == (then.tasks, then.trials, then.device_key)
        assert now.device_seconds == pytest.approx(then.device_seconds)
        assert now.day_device_seconds == pytest.approx(then.day_device_seconds)
    with seeing(Visibility("tenant1")):
        (own,) = store.dashboard.spent(long_ago)
        assert (own.tasks, own.day_device_seconds) == (1, own.device_seconds)


def test_states_are_counted_the_same_once_jobs_are_counted(store: RecordStore) -> None:
    for number, tenant in enumerate(("a", "b", "a", "b")):
        store.create_job(replace(new_job(f"j{number}"), tenant=tenant))
    claims = [store.fleet.claim_task(["llvm"], "local", "o", units=[], seconds=60.0) for _ in range(3)]
    for claim, seconds in zip(claims, (1e-5, None, 0.0), strict=True):
        assert claim is not None
        if seconds == 0.0:
            store.fleet.end_attempt(claim.lease, AttemptEnd.YIELDED)
            continue
        store.add_trial(trial(0, seconds, job=claim.job_id), lease=claim.lease)
        store.fleet.finish_task(claim.lease, "trials", {})

    def counted() -> tuple[object, ...]:
        with seeing(Visibility("a")):
            own = store.count_by_state()
        figures = store.fleet.figures()
        return store.count_by_state(), own, figures.tasks, figures.attempts

    before = counted()
    assert before[0] == {"succeeded": 1, "failed": 1, "running": 1, "queued": 1}
    assert before[2:] == ({"done": 2, "ready": 2}, {"done": 2, "yielded": 1})
    assert store.count_ended() == 1 and counted() == before  # what failed may go on
    move_job(store, "j3", {"queued": ("cancelling", "cancelled")})
    assert (last := counted()) != before
    assert store.count_ended() == 1 and counted() == last and store.count_ended() == 0


def test_a_job_that_the_version_before_has_counted_is_not_added_to_devices_again(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    store.set_device("j", HERE.device)
    store.add_trial(trial(0, 1e-5))
    move_job(store, "j", {"queued": ("running", "succeeded")})
    assert store.count_ended() == 1
    spent, states = store.dashboard.spent(long_ago := "2001-01-01T00:00:00.000000Z"), store.fleet.task_counts()[0]
    with store.database.writing() as connection:  # as that version leaves it
        connection.execute(update(jobs).values(counted=None))
        connection.execute(delete(ended_totals))
    assert store.count_ended() == 1
    assert (store.dashboard.spent(long_ago), store.fleet.task_counts()[0]) == (spent, states)


def test_look_ups_of_several_workloads_tell_keys_with_one_start_apart(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    store.add_trial(trial(0, 1e-6))
    known, others = TASK.workload_key, (TASK.workload_key[:-1] + "0", "0" * 64)
    assert [row.workload_key for row in kept(store, HERE, known, *others)] == [known] and not kept(store, HERE, *others)


def test_states_are_stored_with_their_times_and_events(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    started = move_job(store, "j", {"queued": ("running",)})
    assert started.state == "running" and started.started_at is not None and started.version == 2
    ended = move_job(store, "j", {"running": ("failed",)}, error="no device")
    assert (ended.state, ended.error) == ("failed", "no device") and ended.finished_at is not None
    told = [event.data for event in store.events("j", after=0, limit=10)]
    assert [data["state"] for data in told] == ["queued", "running", "failed"]
    assert told[-1]["error"] == "no device"


def test_a_trial_is_kept_whole_with_its_counters_and_events(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    move_job(store, "j", {"queued": ("running",)})
    for sequence, seconds in enumerate((2e-6, None, 1e-6, 3e-6, None)):
        stored = store.add_trial(trial(sequence, seconds))
        assert (stored.state, stored.wanted) == ("running", Wanted.GO)
        row = store.trial(stored.record_id)
        want = trial(sequence, seconds)
        assert row.record.trial.schedule == want.trial.schedule
        assert row.record.trial.clocks == want.trial.clocks
        assert row.elapsed_seconds == want.elapsed_seconds
        if seconds is None:
            assert row.record.trial.outcome == Failed(TrialStage.CHECK, Reason.WRONG_RESULT, f"offby {sequence}")
            assert str(row.record.trial.evidence.max_error) == "nan"
        else:
            assert row.record.trial.outcome == want.trial.outcome
            assert row.record.trial.evidence == want.trial.evidence
        identity = row.record.identity
        assert (identity.workload_key, identity.device_key) == (TASK.workload_key, HERE.device.key)
        assert (identity.toolchain_key, identity.profile) == (HERE.toolchain.key, "warm-v1")
        assert (identity.sketch, identity.sketch_version) == ("loops", 1)
    task = store.job("j").tasks[0]
    assert (task.trials, dict(task.failures)) == (5, {"check:wrong_result": 2})
    assert task.best is not None and task.best.record.sequence == 2 and task.best.flops == 1000
    kinds = [event.kind for event in store.events("j", after=0, limit=99)]
    assert kinds == ["state", "state", "trial", "best", "trial", "trial", "best", "trial", "trial"]
    best = [event.data for event in store.events("j", after=0, limit=99) if event.kind == "best"][-1]
    assert (best["sequence"], best["seconds"], best["gflops"]) == (2, 1e-6, 1.0)


def test_a_trial_is_kept_once_and_leaves_no_gap(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    store.add_trial(trial(0, 1e-6))
    before = store.events("j", after=0, limit=99)
    for sequence in (0, 2):
        with pytest.raises(Conflict, match="1 is next"):
            store.add_trial(trial(sequence, 1e-6))
    with pytest.raises(NotFound):
        store.add_trial(trial(0, 1e-6, task=1))
    assert store.events("j", after=0, limit=99) == before and store.job("j").tasks[0].trials == 1


def test_trials_are_paged_in_every_order(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    seconds = [None if i % 4 == 3 else 1e-6 * (1 + (i * 7) % 10) for i in range(20)]
    ids = [store.add_trial(trial(i, s)).record_id for i, s in enumerate(seconds)]
    assert [row.record.sequence for row in store.trials("j", 0, limit=5)] == [0, 1, 2, 3, 4]
    assert [row.record.sequence for row in store.trials("j", 0, after=17, limit=5)] == [18, 19]
    assert [row.record.sequence for row in store.trials("j", 0, after=2, limit=5, newest_first=True)] == [1, 0]
    keys = [trial(i, 1.0).trial.schedule.key for i in range(20)]
    timed = sorted((s, k, i) for i, k, s in zip(ids, keys, seconds, strict=True) if s is not None)
    got: list[tuple[float, str, int]] = []
    while page := store.trials_by_seconds("j", 0, after=got[-1] if got else None, limit=4):
        got += [(timed_seconds(t), t.schedule.key, row.record.id) for row in page for t in [row.record.trial]]
    assert got == timed
    failed = [row.record.id for row in store.failed_trials("j", 0, limit=3)]
    assert failed == [ids[19], ids[15], ids[11]]
    assert [row.record.id for row in store.failed_trials("j", 0, before=failed[-1], limit=9)] == [ids[7], ids[3]]
    points = store.points("j", 0, after=14, limit=9)
    assert [point.failure for point in points] == ["check:wrong_result", None, None, None, "check:wrong_result"]
    (failure,) = store.failures("j", 0)
    assert (failure.count, failure.newest_detail, failure.newest_record_id) == (5, "offby 19", ids[19])
    with pytest.raises(NotFound):
        store.trials("j", 1, limit=1)


def test_a_remeasurement_ranks_anew_and_its_ties_go_by_the_schedules_key(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    for sequence, seconds in enumerate([1e-6, 1.1e-6, 1.2e-6, None, 3e-6]):
        store.add_trial(trial(sequence, seconds))
    met = {n: Timed((s,), 1, (2e-6 + n * 1e-9,) * 3, 2e-6 if n else None) for n, s in enumerate([1e-6, 1.1e-6, 1.2e-6])}
    store.add_remeasurement("j", 0, met)
    rows = store.trials("j", 0, limit=9)
    assert [row.record.trial.outcome for row in rows[:3]] == list(met.values())
    order = [row.record.sequence for row in store.trials_by_seconds("j", 0, limit=9)]
    assert order == [*sorted(range(3), key=lambda n: trial(n, 1.0).trial.schedule.key), 4]
    (task,) = store.job("j").tasks
    (found,) = kept(store)
    assert task.best is not None and task.best.record.id == found.record_id
    assert task.best.record.sequence == order[0]
    assert tuple(json.loads(found.answer)["samples"]) == met[order[0]].final_samples
    told = [event for event in store.events("j", after=0, limit=99) if "finalists" in event.data]
    assert [event.data["finalists"] for event in told] == [3]
    lines = list(store.export_lines())
    assert sum("final_samples" in line for line in lines) == 3


def timed_seconds(kept: Trial) -> float:
    assert isinstance(kept.outcome, Timed)
    return kept.outcome.seconds


def kept(store: RecordStore, on: MeasuredOn = HERE, *keys: str) -> list[AnswerRow]:
    """Return what look-ups find under the conditions of a measurement, the fastest first."""
    parts = {"device_key": on.device.key, "toolchain_key": on.toolchain.key, "profile": str(on.profile)}
    return sorted(store.answers(keys or (TASK.workload_key,), **parts), key=lambda row: row.rank)


def test_the_fastest_record_of_each_identity_is_ready_to_be_answered(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    cold, nowhere = replace(HERE, profile=Profile("cold")), replace(HERE, profile=Profile("hot", 9))
    places = [(HERE, 4e-6), (cold, 3e-6), (NEWER, 2e-6), (THERE, 1e-6), (HERE, 5e-6), (HERE, None), (HERE, 3.5e-6)]
    for sequence, (on, seconds) in enumerate(places):
        store.add_trial(trial(sequence, seconds, on=on))
    newer = trial(len(places), 9e-6)
    schedule = replace(newer.trial.schedule, version=2)
    store.add_trial(replace(newer, trial=replace(newer.trial, schedule=schedule)))
    numbers = [row.record.id for row in store.trials("j", 0, limit=99)]
    for on, places_of in ((HERE, [6, 7]), (cold, [1]), (NEWER, [2]), (THERE, [3]), (nowhere, [])):
        assert [row.record_id for row in kept(store, on)] == [numbers[place] for place in places_of]
    assert [row.sketch_version for row in kept(store)] == [1, 2]
    assert kept(store, HERE, "0" * 64) == [] and kept(store, HERE, "0" * 64, TASK.workload_key) == kept(store)
    everywhere = store.answers_anywhere(["0" * 64, TASK.workload_key])
    assert {row.record_id for row in everywhere} == {numbers[place] for place in (1, 2, 3, 6, 7)}
    data = json.loads(kept(store)[0].answer)
    assert (data["record_id"], data["job_id"], data["seconds"], data["device_name"]) == (
        numbers[6],
        "j",
        3.5e-6,
        HERE.device.name,
    )
    assert data["schedule"] == {"sketch": "loops", "version": 1, "knobs": {"tile": 6, "order": "ij"}}
    assert data["evidence"]["max_error"] == 0.5 and data["evidence"]["environment"] == {"load": 0.25}
    before = everywhere
    with store.database.writing() as connection:
        fill_best(connection)
    assert sorted(store.answers_anywhere([TASK.workload_key]), key=lambda row: row.record_id) == sorted(
        before, key=lambda row: row.record_id
    )
    assert [near.workload_key for near in store.near("matmul", limit=5)] == [TASK.workload_key]
    assert store.near("softmax", limit=5) == ()
    assert store.origin(TASK.workload_key) == ("matmul", {"m": 8, "n": 8, "k": 8})


def test_look_ups_use_one_index_whatever_the_size_of_the_tables(store: RecordStore) -> None:
    """The plan of the statement names no scan but the one of the keys that were given."""
    store.create_job(new_job("j"))
    store.add_trial(trial(0, 1e-6))
    parts = {"device_key": "d", "toolchain_key": "t", "profile": "p"}
    with store.database.reading() as connection:
        if not store.embedded:
            connection.exec_driver_sql("SET enable_seqscan = off")
        many, several = _EXACT_MANY[connection.dialect.name], "key_starts" if store.embedded else "workload_keys"
        for statement, keys in ((_EXACT_ONE, {"workload_key": "k"}), (many, {several: ["k", "l"]})):
            options = {"literal_binds": True, "render_postcompile": True}
            text = statement.params({**keys, **parts}).compile(connection, compile_kwargs=options)
            plan = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' if store.embedded else ''}{text}").all()
            told = " ".join(str(row) for row in plan)
            assert "SCAN" not in told.upper().replace("INDEX SCAN", "") and "best_records" in told, told


def test_equal_times_are_told_apart_the_same_way_every_time(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    keys = []
    for sequence in range(6):
        new = trial(sequence, 1e-6)
        keys.append(new.trial.schedule.key)
        store.add_trial(new)
    (best,) = kept(store)
    assert best.schedule_key == min(keys)


def test_losses_under_other_conditions_come_from_schedules_that_both_have_timed(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    timed = [(HERE, 0, 1e-6), (HERE, 1, 1.5e-6), (NEWER, 1, 1e-6), (THERE, 2, 1e-6)]
    for sequence, (on, tile, seconds) in enumerate(timed):
        new = trial(sequence, seconds, on=on)
        schedule = Schedule.of("loops", 1, {"tile": tile, "order": "ij"})
        store.add_trial(replace(new, trial=replace(new.trial, schedule=schedule)))
    found = store.transfers({"loops": 1}, limit=99)
    assert [(row.asked.toolchain_key, row.served.toolchain_key) for row in found] == [
        (HERE.toolchain.key, NEWER.toolchain.key)
    ]
    assert found[0].loss == pytest.approx(0.5)
    assert store.transfers({"loops": 2}, limit=99) == []


def test_history_leaves_out_the_task_that_asks_and_what_came_later(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.newest_record() == 0
    for name in ("j", "k"):
        store.create_job(new_job(name))
        for sequence, seconds in enumerate((1e-6, None)):
            store.add_trial(trial(sequence, seconds, job=name))
        assert store.begin_task(name, 0) == store.newest_record()
    assert store.begin_task("j", 0) == store.newest_record() - 2

    def asked(kind: str = "llvm", until: int = 99, but: tuple[str, int] | None = None, limit: int = 9) -> list[str]:
        tasks = store.history_tasks(target_kind=kind, until=until, but=but, limit=limit)
        groups = store.history_groups(tasks, until=until)
        rows = store.history(groups, until=until)
        assert sum(group.records for group in groups) == len(rows)
        return [f"{row.job_id}{row.sequence}" for row in rows]

    assert asked() == ["j0", "j1", "k0", "k1"]
    assert asked(but=("k", 0)) == ["j0", "j1"] and asked(but=("k", 1)) == asked()
    assert asked(limit=1) == ["k0", "k1"] and asked(until=store.begin_task("j", 0)) == ["j0", "j1"]
    assert asked(kind="cuda") == []
    monkeypatch.setattr(history, "TASKS_LOOKED_AT", 1)  # that of k
    assert asked() == ["k0", "k1"]


def test_facts_about_tasks_devices_and_models_are_kept(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    store.note_task("j", 0, space_size=12, baseline_seconds=0.5, baseline_name="numpy")
    store.note_task("j", 0, stop_reason="trials")
    task = store.job("j").tasks[0]
    assert (task.space_size, task.baseline_seconds, task.stop_reason) == (12, 0.5, "trials")
    told = [event.data for event in store.events("j", after=0, limit=9) if event.kind == "task"]
    assert told[0] == {
        "task": 0,
        "trials": 0,
        "space_size": 12,
        "baseline_seconds": 0.5,
        "baseline_name": "numpy",
    }
    assert store.measured(HERE.device.key) == {}
    store.set_device("j", replace(HERE.device, measured={"copy_bytes_per_second": 1e10}))
    store.keep_device(HERE.device)  # without measurements: those we have stay
    assert store.measured(HERE.device.key) == {"copy_bytes_per_second": 1e10}
    assert [device.key for device in store.devices()] == [HERE.device.key]
    assert store.job("j").device_name == "Some CPU"
    assert store.newest_model("xgboost", 1) is None
    store.keep_model("xgboost", 1, b"old", records=1, metrics={})
    kept = store.keep_model("xgboost", 1, b"\x00\xff", records=9, metrics={"spearman": 0.9}, device=HERE.device)
    assert store.newest_model("xgboost", 1) == kept and kept.data == b"\x00\xff"
    assert store.newest_model("xgboost", 2) is None


def test_what_was_kept_is_there_after_opening_again(url: str) -> None:
    with migrated(url) as store:
        store.create_job(new_job("j"))
        store.add_trial(trial(0, 1e-6))
        kept = store.job("j")
    with RecordStore(url) as store:
        assert store.job("j") == kept
        assert migrate.upgrade(store.database) == (migrate.head(), migrate.head())


def test_a_transaction_that_fails_leaves_nothing(store: RecordStore) -> None:
    store.create_job(new_job("j"))
    with pytest.raises(RuntimeError), store.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM events")
        raise RuntimeError
    assert len(store.events("j", after=0, limit=9)) == 1


def test_the_tables_are_those_of_the_migrations(store: RecordStore) -> None:
    with store.database.reading() as connection:
        assert migrate.differences(connection) == []


def test_a_database_newer_than_the_program_is_refused(url: str) -> None:
    with migrated(url) as store, store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.exec_driver_sql("DELETE FROM compatible_programs")  # that version says so of others
    with pytest.raises(StoreError, match=r"9999, which this program does not know: a newer Tilewright"):
        RecordStore(url)
    database = Database(parse_url(url))
    with pytest.raises(StoreError, match="upgrade the program"):
        migrate.upgrade(database)
    database.close()


def test_writers_and_readers_go_on_side_by_side(store: RecordStore) -> None:
    for name in ("j", "k"):
        store.create_job(new_job(name))
    faults: list[Exception] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            faults.append(error)

    def write(name: str) -> None:
        for sequence in range(20):
            store.add_trial(trial(sequence, 1e-6, job=name))

    def read() -> None:
        draws = stream(1, "reader")
        for _ in range(40):
            assert len(store.trials("j", 0, limit=int(draws.integers(1, 9)))) <= 20
            assert len(kept(store)) <= 1

    work: list[Callable[[], None]] = [lambda: write("j"), lambda: write("k"), read, read]
    threads = [threading.Thread(target=guarded, args=(job,)) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for name in ("j", "k"):
        ids = [event.id for event in store.events(name, after=0, limit=99)]
        assert len(ids) == 22 and ids == sorted(ids)


def test_look_ups_from_ever_new_threads_do_not_use_up_the_connections(store: RecordStore) -> None:
    answers = []
    for _ in range(150):  # more than the pool has connections
        thread = threading.Thread(target=lambda: answers.append(kept(store)))
        thread.start()
        thread.join()
    assert answers == [[]] * 150


def test_binaries_are_kept_while_their_records_are_the_best_or_released(store: RecordStore) -> None:
    draws = stream(0, "binaries")

    def artefact(record_id: int) -> ArtefactRow:
        code = draws.bytes(10_000)
        return ArtefactRow(sha256(code).hexdigest(), record_id, "elf", {"entry": "kernel"}, code)

    store.create_job(new_job("j"))
    best = store.add_trial(trial(0, 1e-6)).record_id
    made = [artefact(record_id) for record_id in (best, 10_001, 10_002, 10_003, 10_004)]
    room = 35_000  # they cannot be packed
    assert not store.artefacts.keep(made[0], most_bytes=9_000) and store.artefacts.find(made[0].sha256) is None
    for one in made[:2]:
        assert store.artefacts.keep(one, most_bytes=room) and store.artefacts.keep(one, most_bytes=room)
    store.artefacts.pin([10_001])
    for one in made[2:]:
        assert store.artefacts.keep(one, most_bytes=room)
    kept = [store.artefacts.find(one.sha256) for one in made]
    assert kept == [made[0], made[1], None, None, made[4]]  # the best, the released, and the newest
