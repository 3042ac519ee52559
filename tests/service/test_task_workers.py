"""Task workers may die, hang or be stopped at any moment. Their tasks go on, and nothing is lost or doubled."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.service.following import QUICK, all_trials, ended, finished, follow
from tilewright.core.budget import Budget
from tilewright.core.fleet import AttemptEnd
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.views import JobSpec, JobState, JobView

LEASE_SECONDS = 2.0
TRIALS = 30


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("workers")
    settings = Settings(database_url=f"sqlite:///{folder}/db.sqlite3", lease_seconds=LEASE_SECONDS)
    with Service.open(settings) as opened:
        yield opened


def spec_of(service: Service, trials: int = TRIALS, *, fresh: bool = True, rows: int = 60) -> JobSpec:
    task = service.operator_workload(QUICK[0], {**QUICK[1], "rows": rows})
    return JobSpec((task,), Budget(trials), "random", fresh=fresh)


def workers() -> list[psutil.Process]:
    """The task workers of this process."""
    children = psutil.Process(os.getpid()).children()
    return [
        c for c in children if c.status() != psutil.STATUS_ZOMBIE and "service.task_worker" in " ".join(c.cmdline())
    ]


def judge(service: Service, job: JobView, trials: int = TRIALS) -> None:
    done = finished(service, job)
    assert done.state is JobState.SUCCEEDED, done.error
    assert [trial.sequence for trial in all_trials(service, done)] == list(range(trials))


def some_trials(service: Service, job: JobView, count: int) -> None:
    follow(service, job.id, lambda event: event.kind == "trial" and int(str(event.data["sequence"])) >= count)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_stops_is_replaced_and_its_task_goes_on(service: Service, number: signal.Signals) -> None:
    job = service.submit(spec_of(service))[0]
    some_trials(service, job, 3)
    (before,) = workers()
    before.send_signal(number)
    judge(service, job)
    assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
    ends = [attempt.how for attempt in service._store.fleet.attempts(job.id, 0)]
    # another test may just then let the kernel kill something for want of memory
    killed = {AttemptEnd.KILLED, AttemptEnd.ACTOR_LOST}
    dead = killed if number is signal.SIGKILL else {AttemptEnd.HOLDER_DELAYED}
    assert ends[0] in dead and ends[-1] is AttemptEnd.DONE


def test_a_cancelled_job_is_over_within_a_second_though_its_worker_does_not_answer(service: Service) -> None:
    for stopped in (False, True):
        job = service.submit(spec_of(service, 10_000))[0]
        some_trials(service, job, 1)
        if stopped:
            workers()[0].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        service.cancel(job.id)
        states = [str(e.data["state"]) for e in follow(service, job.id, ended) if e.kind == "state"]
        assert states == ["queued", "running", "cancelling", "cancelled"]
        assert time.monotonic() - began < 5  # a second where nothing else runs; test machines are busy
        count = len(all_trials(service, job))
    for worker in workers():
        worker.send_signal(signal.SIGCONT)
    judge(service, service.submit(spec_of(service, 4))[0], 4)  # whoever woke up again does not disturb
    assert len(all_trials(service, job)) == count


def test_records_that_fit_are_adopted_and_a_job_tops_up_to_its_budget(service: Service) -> None:
    judge(service, service.submit(spec_of(service, 6, fresh=False, rows=40))[0], 6)
    longer = service.submit(spec_of(service, 10, fresh=False, rows=40))[0]
    judge(service, longer, 10)
    copies = [row.adopted_from is not None for row in service._store.trials(longer.id, 0, limit=100)]
    assert copies == [True] * 6 + [False] * 4
    fresh = service.submit(spec_of(service, 5, rows=40))[0]
    judge(service, fresh, 5)
    assert all(row.adopted_from is None for row in service._store.trials(fresh.id, 0, limit=100))


def test_equal_jobs_in_flight_are_measured_once(service: Service) -> None:
    jobs = [service.submit(spec_of(service, 12, fresh=False, rows=48))[0] for _ in range(8)]
    for job in jobs:
        judge(service, job, 12)
    measured = [row for job in jobs for row in service._store.trials(job.id, 0, limit=100) if row.adopted_from is None]
    assert len(measured) == 12


def test_the_worker_of_an_embedded_database_does_without_sqlalchemy_and_the_sketches_of_other_targets() -> None:
    """It starts a good third sooner: the server calls the database for it."""
    needless = ("sqlalchemy", "tilewright.schedule.gpu.gemm")
    script = f"import sys, tilewright.service.task_worker\nsys.exit(any(n in sys.modules for n in {needless}))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
