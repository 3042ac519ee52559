"""Fills a service with something of every kind that the dashboard shows: recorded jobs of an H200, a job that really
ran on this processor, a search with predictions, jobs that failed or wait, a model with whole runs, a fleet."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright.api.app import create_app
from tilewright.api.client import Client, operator_task
from tilewright.api.client_lookups import Task
from tilewright.api.model_requests import ModelTimingIn
from tilewright.api.responses import JobOut
from tilewright.core.budget import Budget
from tilewright.db.rows import NewJob
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.tests.api import filled
from tilewright.tests.api.filled import keep_job
from tilewright.tests.api.measured_job import HERE, SHAPE, keep_measured_job
from tilewright.tests.api.recorded_job import keep_recorded_job
from tilewright.tests.api.serving import running
from tilewright.tests.api.tuned_thrice import keep_three_jobs
from tilewright.tests.db.fleets import LONG, claimed, gpus, submit
from tilewright.tests.db.old_database import unpacked


@dataclass(frozen=True)
class Contents:
    """``settings`` do not run jobs. ``names`` holds ids and keys: the job that ran here (``cpu``), one of the H200
    (``gpu``), the fastest record of either, the models that are tuned and not, the job of the first."""

    settings: Settings
    names: Mapping[str, str]


def fill(folder: Path) -> Contents:
    """Fill a database in ``folder``."""
    settings = Settings(database_url=unpacked(folder / "tilewright.sqlite3"), run_jobs=False)
    Service.open(settings).close()  # brings the database up to date
    store = RecordStore(settings.database_url)
    _store_jobs(store)
    with Service(settings, store) as service, _client(service, settings) as client:
        ran = client.job("measured")
        model, alone = _add_models(client, ran)
        model_job = client.tune_model(model, budget=Budget(9))
        store.set_device(model_job.id, HERE.device)
        client.freeze("first", device_key=ran.device_key)
        client.freeze("second")
        client.promote("canary", "second")
        gpu = next(job for job in client.jobs() if (job.tasks[0].parameters or {}).get("columns") == 8192)
    best, gpu_best = ran.tasks[0].best, gpu.tasks[0].best
    assert best is not None and gpu_best is not None
    names = {
        "cpu": ran.id,
        "cpu_record": str(best.record_id),
        "workload": best.workload_key,
        "gpu": gpu.id,
        "gpu_record": str(gpu_best.record_id),
        "model": model,
        "alone": alone,
        "model_job": model_job.id,
    }
    return Contents(settings, names)


@contextmanager
def _client(service: Service, settings: Settings) -> Iterator[Client]:
    with running(create_app(service, settings)) as address, Client(address) as client:
        yield client


def _add_models(client: Client, ran: JobOut) -> tuple[str, str]:
    """Add a model with the workload that was tuned and timed runs, and one that nothing is known of."""
    softmax: dict[str, object] = {"rows": 9, "columns": 32}
    parts: list[tuple[Task, int, str]] = [
        (operator_task("matmul", SHAPE), 3, "matmul relu"),
        (operator_task("softmax", softmax), 1, "softmax"),
    ]
    model = client.add_model("two-layers", parts, {"aten.topk.default": 2})
    assert ran.device_key is not None
    timing = ModelTimingIn(
        device_key=ran.device_key, seconds=1e-3, baseline="eager", baseline_seconds=2e-3, tuned_kernels=3
    )
    client.keep_model_timing(model.key, timing)
    alone = client.add_model("not-tuned", [(operator_task("softmax", {**softmax, "rows": 7}), 2, "softmax")], {})
    return model.key, alone.key


def _store_jobs(store: RecordStore) -> None:
    matmul = filled.operator_task("matmul", {"m": 1024, "n": 1024, "k": 1024})
    softmax = filled.operator_task("softmax", {"rows": 4096, "columns": 1024})
    keep_measured_job(store, "measured")
    keep_job(store, "two", [matmul, softmax], 30, seed=5)
    keep_job(store, "broken", [softmax], 6, state="failed")
    keep_recorded_job(store, "recorded")
    keep_three_jobs(store)
    gpus(store, 2)
    submit(store, "searched")
    assert store.fleet.lease_unit("GPU-h1-0", "0123456789abcdef", seconds=LONG) is not None
    claimed(store, "0123456789abcdef", unit="GPU-h1-0")
    store.create_job(NewJob("waiting", "queued", (softmax,), Budget(), "model", 1, "cuda:sm_100a", "local", "warm"))
