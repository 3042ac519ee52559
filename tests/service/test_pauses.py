"""A database that stops serving makes jobs pause; nothing fails and nothing is lost."""

from pathlib import Path

import pytest

from tilewright.core.budget import Budget
from tilewright.core.errors import StorageFull, StoreError
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.service.upgrade import upgrade_database
from tilewright.service.views import JobSpec, JobState
from tilewright.tests.db.postgres import server
from tilewright.tests.db.small_disk import small_disk
from tilewright.tests.service.following import QUICK, all_trials, finished, follow

TRIALS = 30


def spec_of(service: Service) -> JobSpec:
    return JobSpec((service.operator_workload(*QUICK),), Budget(TRIALS), "random")


def judge(service: Service, job_id: str) -> None:
    done = finished(service, service.job(job_id))
    assert done.state is JobState.SUCCEEDED
    assert [trial.sequence for trial in all_trials(service, done)] == list(range(TRIALS))


def test_a_full_disk_pauses_a_job(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 6) as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/tilewright.sqlite3", minimum_free_bytes=1 << 20)
        with Service.open(settings) as service:
            job = service.submit(spec_of(service))[0]
            follow(service, job.id, lambda event: event.kind == "trial")
            ballast = folder / "ballast"
            with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            with pytest.raises(StorageFull):
                for seed in range(10_000):
                    service.submit(JobSpec(spec_of(service).tasks, Budget(1), "random", seed))
            assert not service.health().ready and "MiB free" in service.health().checks["disk"]
            ballast.unlink()
            judge(service, job.id)


@pytest.mark.postgres
def test_a_server_that_restarts_pauses_a_job() -> None:
    with server() as running:
        settings = Settings(database_url=running.url())
        upgrade_database(settings)
        with Service.open(settings) as service:
            job = service.submit(spec_of(service))[0]
            follow(service, job.id, lambda event: event.kind == "trial")
            running.stop()
            with pytest.raises(StoreError):
                service.job(job.id)
            health = service.health()
            assert not health.ready and "cannot be reached" in health.checks["database"]
            running.start()
            judge(service, job.id)
