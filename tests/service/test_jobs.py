"""Jobs on this machine's own processor: they run, stop, go on, fail and teach."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tilewright.core.budget import Budget, StopReason
from tilewright.core.errors import Conflict, InvalidParameter, NotFound, StoreError
from tilewright.core.policy import SpacePolicy
from tilewright.core.trial import Timed
from tilewright.cost_model.model import FEATURE_VERSION
from tilewright.cost_model.similarity import family_name
from tilewright.db.store import RecordStore
from tilewright.service.kept_models import kept_model
from tilewright.service.lookup import RELAXABLE
from tilewright.service.model_views import ModelSpec, ModelWorkload
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.service.views import EventView, JobSpec, JobState, TrialOrder, TrialView
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.operators import OPERATORS
from tilewright.tests.db.fleets import move_job
from tilewright.tests.db.postgres import PostgresServer
from tilewright.tests.service.following import QUICK, WAIT_SECONDS, all_trials, ended, finished, follow

MODEL_WORKLOAD = OPERATORS["matmul"].workload({"m": 24, "n": 40, "k": 16})


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path_factory.mktemp('jobs')}/tilewright.sqlite3")


@pytest.fixture(scope="module")
def service(settings: Settings) -> Iterator[Service]:
    with Service.open(settings) as opened:
        yield opened


def spec_of(service: Service, trials: int, **changes: object) -> JobSpec:
    task = service.operator_workload(*QUICK)
    return replace(JobSpec((task,), Budget(trials), strategy="random", fresh=True), **changes)  # type: ignore[arg-type]


def test_the_workloads_of_a_model_share_its_budget(service: Service) -> None:
    tasks = [service.operator_workload("matmul", {"m": m, "n": 32, "k": 16}) for m in (8, 64)]
    model, created = service.models.add(ModelSpec("two layers", tuple(ModelWorkload(task, 2) for task in tasks)))
    assert created and model.tuned == 0
    submitted, _ = service.models.tune(model.key, JobSpec((), Budget(5), strategy="random"))
    job = finished(service, submitted)
    assert job.state is JobState.SUCCEEDED and job.model_key == model.key
    assert sorted(task.trials for task in job.tasks) == [2, 3]  # two each, and one where it was expected to save most
    model = service.models.get(model.key)
    assert (model.tuned, model.jobs, model.device_key) == (2, (job.id,), job.device_key)
    assert sum(kernel.share or 0.0 for kernel in model.kernels) == pytest.approx(1.0)


def test_a_job_ends_with_the_best_of_its_trials(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 12))[0])
    (task,) = job.tasks
    trials = all_trials(service, job)
    assert job.state is JobState.SUCCEEDED and task.stop_reason is StopReason.TRIALS
    assert [trial.sequence for trial in trials] == list(range(12)) and task.trials == 12
    assert [trial.elapsed_seconds for trial in trials] == sorted(trial.elapsed_seconds for trial in trials)
    timed = [trial for trial in trials if isinstance(trial.outcome, Timed)]
    ranks = {t.record_id: (t.outcome.rank_seconds, t.schedule.key) for t in timed if isinstance(t.outcome, Timed)}
    assert task.best is not None and ranks[task.best.record_id] == min(ranks.values())
    finalists = [t.outcome for t in timed if isinstance(t.outcome, Timed) and t.outcome.final_samples]
    assert not finalists or max(t.rank_seconds for t in finalists) <= min(
        (t.outcome.rank_seconds for t in timed if isinstance(t.outcome, Timed) and not t.outcome.final_samples),
        default=1.0,
    )
    assert task.wall_seconds is not None and task.timing_seconds is not None
    assert 0.0 < task.timing_seconds < task.wall_seconds
    assert task.space_size is not None and task.space_size > 12
    assert task.baseline_seconds is not None and str(task.baseline_name).startswith("NumPy")
    assert task.roofline_seconds is not None and task.roofline_by == "flops"
    assert sum(task.failures.values()) == 12 - len(timed)
    assert job.device_key in {device.key for device in service.devices() if device.present}

    best = service.best(task.workload_key)
    assert best.match == ("exact",)
    ordered = [trial.record_id for trial in service.trials(job.id, order=TrialOrder.BEST).items]
    assert ordered[0] == task.best.record_id and set(ordered) == {trial.record_id for trial in trials}
    series = service.series(job.id, after=3)
    assert series.sequence == tuple(range(4, 12))
    assert service.trial(trials[5].record_id) == trials[5]
    assert 'tilewright_trials_total{outcome="timed"}' in service.metrics()


def test_events_tell_the_whole_story_in_order(service: Service) -> None:
    job = service.submit(spec_of(service, 8, seed=4))[0]
    events = follow(service, job.id, ended)
    assert [event.data["state"] for event in events if event.kind == "state"] == ["queued", "running", "succeeded"]
    assert [event.data["sequence"] for event in events if event.kind == "trial"] == list(range(8))
    best = [float(str(event.data["seconds"])) for event in events if event.kind == "best"]
    assert best == sorted(best, reverse=True) and len(set(best)) == len(best)
    facts = {name for event in events if event.kind == "task" for name in event.data}
    assert facts >= {"space_size", "baseline_seconds", "roofline_seconds", "stop_reason"}


def test_pages_by_speed_cover_every_trial_once(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 9, seed=9))[0])
    for order in TrialOrder:
        seen, token = [], ""
        while True:
            page = service.trials(job.id, page_size=2, token=token, order=order)
            seen += [trial.record_id for trial in page.items]
            token = page.next_token
            if not token:
                break
        assert seen == [trial.record_id for trial in service.trials(job.id, order=order).items] and len(seen) == 9


def test_cancelling_takes_effect_within_one_candidate(service: Service) -> None:
    job = service.submit(spec_of(service, 1000))[0]
    follow(service, job.id, lambda event: event.kind == "trial")
    asked = service.cancel(job.id)
    assert asked.state in (JobState.CANCELLING, JobState.CANCELLED)
    events = follow(service, job.id, ended)
    place = next(i for i, event in enumerate(events) if event.data.get("state") == "cancelling")
    assert sum(event.kind == "trial" for event in events[place:]) <= 1
    cancelled = service.job(job.id)
    assert cancelled.state is JobState.CANCELLED and cancelled.tasks[0].stop_reason is StopReason.CANCELLED
    assert cancelled.tasks[0].best is not None  # what was found until then is kept
    assert service.cancel(job.id) == cancelled


def test_what_has_ended_cannot_be_cancelled(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 1))[0])
    with pytest.raises(Conflict, match="is succeeded"):
        service.cancel(job.id)


def test_a_job_searches_the_space_that_its_policy_says(service: Service) -> None:
    sizes = []
    product = service.operator_workload("matmul", {"m": 33, "n": 48, "k": 17})
    for policy in (SpacePolicy(), SpacePolicy(prune=False), SpacePolicy(prior=False)):
        spec = spec_of(service, 2, tasks=(product,), policy=policy)
        job = finished(service, service.submit(spec)[0])
        assert job.state is JobState.SUCCEEDED and SpacePolicy(job.prune, job.prior) == policy
        sizes.append(job.tasks[0].space_size or 0)
    assert 0 < sizes[0] < sizes[1] == sizes[2]


def test_a_job_of_several_tasks_runs_them_in_turn(service: Service) -> None:
    a = placeholder((40, 50), name="A")
    own = workload(compute((40, 50), lambda i, j: a[i, j] * 2 + 1))
    first = spec_of(service, 3).tasks[0]
    second = replace(first, workload=own, operator=None, parameters=None)
    spec = JobSpec((first, second), Budget(3), "evolution", 5, fresh=True)
    job = finished(service, service.submit(spec)[0])
    assert job.state is JobState.SUCCEEDED
    assert [task.trials for task in job.tasks] == [3, 3]
    assert job.tasks[1].baseline_seconds is None and job.tasks[1].operator is None
    events = service.events(job.id)
    assert [event.data["task"] for event in events if event.kind == "trial"] == [0, 0, 0, 1, 1, 1]


def test_budgets_of_time_and_stall_end_a_task(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 100_000, budget=Budget(100_000, seconds=1.0)))[0])
    assert job.tasks[0].stop_reason is StopReason.SECONDS
    job = finished(service, service.submit(spec_of(service, 1, budget=Budget(100_000, stall=3)))[0])
    assert job.tasks[0].stop_reason in (StopReason.STALL, StopReason.EXHAUSTED)


def _before_remeasurement(trial: TrialView) -> TrialView:
    """A re-measurement adds to what was recorded, and changes nothing of it."""
    if not isinstance(trial.outcome, Timed):
        return trial
    return replace(trial, outcome=replace(trial.outcome, final_samples=(), final_rank_seconds=None))


def test_a_job_goes_on_where_it_stood_when_the_service_closed(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path}/tilewright.sqlite3")
    with Service.open(settings) as service:
        job = service.submit(spec_of(service, 24, seed=2))[0]
        follow(service, job.id, lambda event: event.kind == "trial" and event.data["sequence"] == 4)
    with Service.open(replace_settings(settings, run_jobs=False)) as service:
        assert service.job(job.id).state is JobState.RUNNING
        before = all_trials(service, job)
        assert 5 <= len(before) < 24
    with Service.open(settings) as service:
        done = finished(service, job)
        trials = all_trials(service, job)
        assert [_before_remeasurement(trial) for trial in trials[: len(before)]] == before
        assert [trial.sequence for trial in trials] == list(range(24))
        assert len({trial.schedule.key for trial in trials}) == 24  # nothing is measured twice
        baselines = [event for event in service.events(job.id) if "baseline_seconds" in event.data]
        assert len(baselines) == 1 and done.tasks[0].trials == 24
        elapsed = [trial.elapsed_seconds for trial in trials]
        assert elapsed == sorted(elapsed)


def test_a_job_that_was_being_cancelled_ends_cancelled(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path}/tilewright.sqlite3", run_jobs=False)
    with Service.open(settings) as service:
        job = service.submit(spec_of(service, 5))[0]
    with RecordStore(settings.database_url) as store:  # as it stands after a kill between the request and its effect
        move_job(store, job.id, {"queued": ("running", "cancelling")})
    with Service.open(replace_settings(settings, run_jobs=True)) as service:
        assert finished(service, job).state is JobState.CANCELLED
        assert all_trials(service, job) == []


def replace_settings(settings: Settings, **changes: object) -> Settings:
    return settings.model_copy(update=changes)


def test_a_schedule_is_explained_down_to_its_instructions(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 6))[0])
    best = job.tasks[0].best
    assert best is not None
    by_workload = service.explain(service.workload_of(job.tasks[0].workload_key))
    assert by_workload.fraction_of_roofline is not None and by_workload.seconds is not None
    by_record = service.explain(record_id=best.record_id)
    assert by_record.schedule == best.schedule and by_record.seconds == best.seconds
    titles = [section.title for section in by_record.sections]
    assert titles[:3] == ["expression", "knobs", "schedule"] and titles[-2:] == ["source", "assembly"]
    assert sum(by_record.instructions.values()) > 10
    unknown = service.operator_workload("matmul", {"m": 5, "n": 6, "k": 7}).workload
    assert service.explain(unknown).seconds is None
    with pytest.raises(InvalidParameter):
        service.explain()
    kept = service.binary(best.record_id)  # the very one that was measured, by its hash in the record
    assert kept.sha256 == service.trial(best.record_id).evidence.binary_key == sha256(kept.code).hexdigest()
    assert kept.code.startswith(b"\x7fELF") and kept.format == "elf"
    exported = service.export(record_id=best.record_id)
    assert exported.has_measured and exported.files["measured.o"] == kept.code and exported.same_binary
    assert json.loads(exported.files["measured.json"])["binary_sha256"] == kept.sha256


def test_a_miss_names_the_nearest_that_is_known(service: Service) -> None:
    for n in (64, 512):
        task = service.operator_workload("matmul", {"m": 8, "n": n, "k": 8})
        done = finished(service, service.submit(JobSpec((task,), Budget(8), "random"))[0])
        assert done.tasks[0].best is not None  # of one candidate a busy machine may say that it is noisy
    running = service.submit(spec_of(service, 1000))[0]
    follow(service, running.id, lambda event: event.kind == "trial")
    waiting = service.operator_workload("matmul", {"m": 8, "n": 400, "k": 8})
    job = service.submit(JobSpec((waiting,), Budget(1), "random"))[0]
    service.cancel(job.id)  # before its turn: known by name, but never measured
    service.cancel(running.id)
    with pytest.raises(NotFound, match=r"nearest known matmul: [0-9a-f]{64} \(m=8, n=512, k=8\)"):
        service.best(job.tasks[0].workload_key)
    with pytest.raises(NotFound, match=r"nearest known matmul: [0-9a-f]{64} \(m=8, n=64, k=8\)"):
        service.best("0" * 64, operator="matmul", parameters={"m": 8, "n": 50, "k": 8})
    with pytest.raises(NotFound, match=f"no schedule of workload {'0' * 64}: no timed record has"):
        service.best("0" * 64)


def test_a_look_up_is_strict_and_says_what_it_relaxed(service: Service) -> None:
    job = finished(service, service.submit(spec_of(service, 3, seed=11))[0])
    key = job.tasks[0].workload_key
    with pytest.raises(NotFound, match="no timed record has this device, toolchain and profile"):
        service.best(key, profile="cold-v1")
    with pytest.raises(NotFound, match="no timed record matches"):
        service.best(key, profile="cold-v1", relax=("toolchain", "device"))
    with pytest.raises(InvalidParameter, match="'workload' cannot give way; allowed: profile, toolchain, device"):
        service.best(key, relax=("workload",))
    with pytest.raises(NotFound, match="parts may give way"):
        service.best(key, device_key="0" * 64, relax=RELAXABLE)  # nobody knows what code such a device runs
    assert service.best(key, relax=RELAXABLE) == service.best(key) and service.best(key).expected_loss is None
    assert service.best(key, profile="cold-v1", relax=RELAXABLE).match == ("profile",)
    relaxed = service.best(key, toolchain_key="0" * 64, relax=("toolchain",))
    assert relaxed.match == ("toolchain",) and relaxed.record_id == service.best(key).record_id
    loss = relaxed.expected_loss
    assert loss is not None and loss.median is loss.low is loss.high is None and "no ground: 0 pairs" in loss.ground
    other = service.best(key, device_key="0" * 64, target="llvm:x86-64", profile="cold-v1", relax=RELAXABLE)
    assert other.match == ("profile", "device")


def test_a_model_is_kept_and_led_by_earlier_tasks(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path}/tilewright.sqlite3")
    with Service.open(settings) as service:
        for n in (32, 40):
            task = service.operator_workload("broadcast_affine", {"rows": 24, "columns": n})
            job = finished(service, service.submit(JobSpec((task,), Budget(20), "model", 1))[0])
            assert job.state is JobState.SUCCEEDED
    with RecordStore(settings.database_url) as store:
        (device,) = store.devices()
        kind = f"xgboost:{family_name(MODEL_WORKLOAD, device.target)}:{device.target.arch}"
        model = store.newest_model(kind, FEATURE_VERSION)
        assert model is not None and 30 <= model.records <= 40  # trials that the machine spoilt teach nothing
        assert {"until_record", "helps", "top_8_score", "prior_top_8_score", "spread_log2"} <= set(model.metrics)
        assert store.begin_task(job.id, 0) == 20  # the second task learned from the first one's records
        kept = kept_model(store, MODEL_WORKLOAD, device, until=int(model.metrics["until_record"]))
        assert (kept.model is not None) == (model.metrics["helps"] == 1.0) == (not kept.harmful) == (kept.why == "")
        assert "no model" in kept_model(store, MODEL_WORKLOAD, device, until=0).why
        store.keep_model(model.kind, FEATURE_VERSION, b"junk", records=1, metrics={"helps": 1.0}, device=device)
        assert "cannot be loaded" in kept_model(store, MODEL_WORKLOAD, device, until=99).why


@pytest.mark.postgres
def test_two_services_share_a_postgresql_database(postgres: PostgresServer) -> None:
    settings = Settings(database_url=postgres.url())
    with pytest.raises(StoreError, match="tilewright db upgrade"):
        Service.open(settings)
    before, now = upgrade_database(settings)
    assert before is None and upgrade_database(settings) == (now, now)
    with Service.open(settings) as worker, Service.open(replace_settings(settings, run_jobs=False)) as front:
        job = front.submit(spec_of(front, 1000))[0]
        heard: list[EventView] = []
        listener = threading.Thread(target=lambda: heard.extend(follow(front, job.id, ended)))
        listener.start()
        follow(front, job.id, lambda event: event.kind == "trial")
        front.cancel(job.id)
        listener.join(WAIT_SECONDS)
        assert heard[-1].data["state"] == "cancelled"
        assert worker.job(job.id) == front.job(job.id)
        assert front.best(job.tasks[0].workload_key).job_id == job.id
