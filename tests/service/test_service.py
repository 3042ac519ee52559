"""Use cases that need no device: submitting, listing, cancelling, paging, events."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.core.budget import Budget
from tilewright.core.errors import Conflict, InvalidParameter, InvalidWorkload, NotFound, UnsupportedTarget
from tilewright.core.policy import SpacePolicy
from tilewright.db.store import RecordStore
from tilewright.service.convert import spec_to_json
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import EventView, JobSpec, JobState
from tilewright.te.build import compute, placeholder, workload
from tilewright.te.workload import Workload
from tilewright.tests.db.fleets import migrated, move_job


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path}/tilewright.sqlite3", run_jobs=False)


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    with Service(settings, migrated(settings.database_url)) as opened:
        yield opened


def matmul(service: Service, size: int = 8, **changes: object) -> JobSpec:
    task = service.operator_workload("matmul", {"m": size, "n": size, "k": size})
    return replace(JobSpec((task,), Budget(4), strategy="random"), **changes)  # type: ignore[arg-type]


def test_a_job_is_answered_as_it_was_submitted(service: Service) -> None:
    job, created = service.submit(matmul(service, seed=3))
    assert created and job == service.job(job.id)
    assert (job.state, job.seed, job.budget, job.strategy) == (JobState.QUEUED, 3, Budget(4), "random")
    (task,) = job.tasks
    assert (task.operator, task.flops, task.minimum_bytes) == ("matmul", 2 * 8**3, 3 * 64 * 4)
    assert task.parameters == {"m": 8, "n": 8, "k": 8} and "C" in task.expression
    assert service.workload_of(task.workload_key) == matmul(service).tasks[0].workload


def test_one_key_makes_one_job(service: Service) -> None:
    job, created = service.submit(matmul(service), idempotency_key="k")
    assert created and service.submit(matmul(service), idempotency_key="k") == (job, False)
    with pytest.raises(Conflict) as caught:
        service.submit(matmul(service, seed=1), idempotency_key="k")
    assert caught.value.field == "Idempotency-Key"
    for key in ("", "x" * 65, "a b", "é"):
        with pytest.raises(InvalidParameter):
            service.submit(matmul(service), idempotency_key=key)
    assert len(service.jobs().items) == 1


def test_how_a_job_searches_is_answered_and_is_part_of_its_body(service: Service) -> None:
    whole = matmul(service, policy=SpacePolicy(prune=False))
    job, _ = service.submit(whole, idempotency_key="k")
    assert (job.prune, job.prior) == (False, True)
    assert service.submit(whole, idempotency_key="k") == (job, False)
    with pytest.raises(Conflict):
        service.submit(matmul(service), idempotency_key="k")
    usual = service.submit(matmul(service))[0]
    assert (usual.prune, usual.prior) == (True, True)
    # a body that says nothing of it is the body that earlier versions hashed
    assert not {"prune", "prior"} & spec_to_json(matmul(service)).keys()


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"tasks": ()}, InvalidParameter, "tasks"),
        ({"strategy": "luck"}, InvalidParameter, "strategy"),
        ({"executor": "cloud"}, InvalidParameter, "executor"),
        ({"cache": "hot"}, InvalidParameter, "cache"),
        ({"seed": -1}, InvalidParameter, "seed"),
        ({"seed": 1 << 63}, InvalidParameter, "seed"),
        ({"target": "abacus"}, UnsupportedTarget, "target"),
    ],
)
def test_what_cannot_be_run_is_refused(
    service: Service, changes: dict[str, object], error: type[Exception], field: str
) -> None:
    with pytest.raises(error) as caught:
        service.submit(replace(matmul(service), **changes))  # type: ignore[arg-type]
    assert getattr(caught.value, "field") == field  # noqa: B009
    assert service.jobs().items == ()


def test_a_workload_that_is_not_well_formed_is_refused(service: Service) -> None:
    good = matmul(service)
    broken = Workload(good.tasks[0].workload.inputs, good.tasks[0].workload.stages, ("nothing",))
    with pytest.raises(InvalidWorkload):
        service.submit(replace(good, tasks=(replace(good.tasks[0], workload=broken),)))


def test_operators_say_what_they_take(service: Service) -> None:
    views = {view.name: view for view in service.operators()}
    assert "k" in views["matmul"].schema["properties"]  # type: ignore[operator]
    with pytest.raises(InvalidParameter, match="allowed: matmul"):
        service.operator_workload("matmull", {})
    with pytest.raises(InvalidParameter) as caught:
        service.operator_workload("matmul", {"m": -1, "n": 1, "k": 1})
    assert caught.value.field == "m"


def test_jobs_are_paged_newest_first(service: Service) -> None:
    ids = [service.submit(matmul(service, seed=seed))[0].id for seed in range(5)]
    service.cancel(ids[2])
    seen, token = [], ""
    while True:
        page = service.jobs(page_size=2, token=token)
        seen += [job.id for job in page.items]
        token = page.next_token
        if not token:
            break
    assert seen == ids[::-1]
    assert [job.id for job in service.jobs(state=JobState.CANCELLED).items] == [ids[2]]
    exact = service.jobs(page_size=5)
    assert len(exact.items) == 5 and exact.next_token == ""


def test_a_token_is_good_for_its_own_list_only(service: Service) -> None:
    for seed in range(3):
        service.submit(matmul(service, seed=seed))
    token = service.jobs(page_size=1).next_token
    for bad in (token[:-2], "x", "!!", "é", "W10", token + "A", "A" * 100_000):
        with pytest.raises(InvalidParameter) as caught:
            service.jobs(token=bad)
        assert caught.value.field == "page_token"
    with pytest.raises(InvalidParameter):
        service.jobs(token=token, state=JobState.QUEUED)
    with pytest.raises(InvalidParameter) as caught:
        service.jobs(page_size=0)
    assert caught.value.field == "page_size"


def test_cancelling_a_waiting_job_ends_it_at_once(service: Service) -> None:
    job = service.submit(matmul(service))[0]
    cancelled = service.cancel(job.id)
    assert cancelled.state is JobState.CANCELLED and cancelled.finished_at is not None
    assert service.cancel(job.id) == cancelled
    states = [event.data["state"] for event in service.events(job.id)]
    assert states == ["queued", "cancelling", "cancelled"]


def test_cancelling_a_job_that_no_process_runs_ends_it_at_once(settings: Settings) -> None:
    with Service.open(settings) as service:
        job = service.submit(matmul(service))[0]
    with RecordStore(settings.database_url) as store:  # as it stands after its process was killed
        move_job(store, job.id, {"queued": ("running",)})
    with Service.open(settings) as service:
        assert service.job(job.id).state is JobState.RUNNING
        assert service.cancel(job.id).state is JobState.CANCELLED


def test_what_does_not_exist_is_not_found(service: Service) -> None:
    for ask in (service.job, service.cancel, service.events, service.trials, service.failures, service.series):
        with pytest.raises(NotFound):
            ask("nobody")
        with pytest.raises(NotFound):
            ask("a\x00\ud800" * 1000)
    job = service.submit(matmul(service))[0]
    with pytest.raises(NotFound):
        service.trials(job.id, task=1)
    with pytest.raises(NotFound):
        service.trial(1)
    with pytest.raises(NotFound):
        service.workload_of("0" * 64)
    with pytest.raises(NotFound, match="nor of any other matmul"):
        service.best(job.tasks[0].workload_key)
    with pytest.raises(InvalidParameter):
        service.trial(1 << 70)
    assert service.trials(job.id).items == ()


def test_events_wait_for_what_has_not_happened_yet(service: Service) -> None:
    job = service.submit(matmul(service))[0]
    (first,) = service.events(job.id, timeout_seconds=30)
    got: list[tuple[EventView, ...]] = []
    listener = threading.Thread(target=lambda: got.append(service.events(job.id, after=first.id, timeout_seconds=30)))
    listener.start()
    service.cancel(job.id)
    listener.join(20)
    assert [event.data["state"] for event in got[0]] == ["cancelling", "cancelled"]
    assert service.events(job.id, after=got[0][-1].id, timeout_seconds=0.01) == ()


def test_closing_wakes_those_who_wait(settings: Settings) -> None:
    service = Service.open(settings)
    job = service.submit(matmul(service))[0]
    last = service.events(job.id)[-1].id
    got: list[tuple[EventView, ...]] = []
    listener = threading.Thread(target=lambda: got.append(service.events(job.id, after=last, timeout_seconds=60)))
    listener.start()
    service.interrupt()
    listener.join(20)
    assert got == [()]
    service.close()


def test_health_and_metrics_tell_the_state(service: Service) -> None:
    service.submit(matmul(service))
    assert service.health().checks["database"] == "ok"
    assert 'tilewright_jobs{state="queued"} 1.0' in service.metrics()


def test_an_expression_of_the_user_is_a_task_too(service: Service) -> None:
    from_user = placeholder((4,), name="A")
    spec = matmul(service)
    doubled = workload(compute((4,), lambda i: from_user[i] * 2))
    job, _ = service.submit(
        replace(spec, tasks=(replace(spec.tasks[0], workload=doubled, operator=None, parameters=None),))
    )
    assert job.tasks[0].operator is None
