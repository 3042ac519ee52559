"""Triton kernels and the service: refused unless code is accepted, stored, shown, and looked up by their key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tilewright.api.app import create_app
from tilewright.api.client import Client
from tilewright.api.client_errors import InvalidRequest, Missing, ProblemError
from tilewright.core.budget import Budget
from tilewright.core.errors import TilewrightError
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Clocks, Evidence, Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.db.task import task_of
from tilewright.schedule.gpu.triton import CUDA_TRITON
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.te.json import workload_from_json
from tilewright.te.key import workload_key
from tilewright.tests.api.serving import running
from tilewright.tests.db.fleets import move_job
from tilewright.tests.triton.kernels import add_workload

THERE = MeasuredOn(
    DeviceInfo("Example GPU", Target("cuda", "sm_90a", (), 132, 16), {"multiprocessors": 132.0}),
    Toolchain({"nvrtc": "13.0"}),
    Profile("cold"),
)
WORKLOAD = workload_from_json(add_workload())
KEY = workload_key(WORKLOAD)


def settings_in(folder: Path, *, accept_code: bool) -> Settings:
    return Settings(database_url=f"sqlite:///{folder}/{accept_code}.sqlite3", run_jobs=False, accept_code=accept_code)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RecordStore:
    return RecordStore(settings_in(tmp_path_factory.mktemp("service"), accept_code=True).database_url)


@pytest.fixture(scope="module")
def client(store: RecordStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service that accepts code, which knows a record of the kernel's second configuration."""
    settings = settings_in(tmp_path_factory.mktemp("other"), accept_code=True)
    with Service(settings, store) as service, running(create_app(service, settings)) as address:
        keep_record(store)
        with Client(address) as opened:
            yield opened


def keep_record(store: RecordStore) -> None:
    task = task_of(WORKLOAD)
    store.create_job(NewJob("gpu", "queued", (task,), Budget(3), "random", 1, "cuda", "local", "cold"))
    move_job(store, "gpu", {"queued": ("running",)})
    store.set_device("gpu", THERE.device)
    store.begin_task("gpu", 0)
    evidence = Evidence(3, 0.0, 1e-4, 2.0**-12, True, True, environment={"oracle_configuration": 0.0})
    schedule = CUDA_TRITON.space(WORKLOAD, THERE.device.target).schedule(1)
    made = Trial(schedule, Timed((1e-5, 1e-5, 1e-5)), Clocks(), evidence)
    store.add_trial(NewTrial("gpu", 0, 0, task.workload_key, THERE, made, 1.0))


def test_code_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, accept_code=False)
    assert not Settings().accept_code
    with (
        Service(settings, RecordStore(settings.database_url)) as service,
        running(create_app(service, settings)) as address,
        httpx2.Client(base_url=address, trust_env=False) as http,
    ):
        workload = {"workload": add_workload()}
        bodies: dict[str, Any] = {
            "/v1/jobs": {"tasks": [workload], "target": "cuda"},
            "/v1/models": {"name": "kernels", "workloads": [workload]},
            "/v1/schedules/explain": workload,
        }
        for path, body in bodies.items():
            answer = http.post(path, json=body)
            assert answer.status_code == 403, answer.text
            assert answer.json()["code"] == "CODE_NOT_ACCEPTED" and "TILEWRIGHT_ACCEPT_CODE" in answer.text
        with pytest.raises(TilewrightError, match="accept_code"), Client(address) as client:
            client.submit(WORKLOAD, target="cuda")


def test_a_job_of_a_kernel_is_stored_and_shown(client: Client) -> None:
    job = client.submit(WORKLOAD, budget=Budget(trials=3), target="cuda", fresh=True)
    assert job.tasks[0].workload_key == KEY and "Triton 3.6.0 kernel add" in job.tasks[0].expression
    with httpx2.Client(base_url=client.address, trust_env=False, timeout=60) as http:
        for page in (f"/jobs/{job.id}", "/jobs/gpu", "/jobs/gpu/trials/1", f"/workloads/{KEY}", "/workloads", "/data"):
            answer = http.get(page, headers={"Accept": "text/html"})
            assert answer.status_code == 200, (page, answer.text)
        layers = http.get("/trials/1/layers", headers={"Accept": "text/html"})
        assert "compiled by Triton" in layers.text


def test_the_best_configuration_is_served_by_key(client: Client) -> None:
    best = client.best(KEY, device_key=THERE.device.key, toolchain_key=THERE.toolchain.key, profile=str(THERE.profile))
    assert best.schedule.sketch == "cuda_triton" and best.schedule.knobs == {"BLOCK": 512, "num_warps": 4}
    assert best.evidence.environment["oracle_configuration"] == 0.0
    relaxed = client.best(KEY, target="cuda:sm_90a", relax=("device", "toolchain", "profile"))
    assert relaxed.record_id == best.record_id
    larger = workload_from_json(add_workload(n=8192))
    anywhere = ("device", "toolchain", "profile", "shape")
    with pytest.raises(Missing):
        client.lookup(larger, target="cuda:sm_90a", relax=anywhere)
    with httpx2.Client(base_url=client.address, trust_env=False, timeout=60) as http:
        body = {"tasks": [{"workload": add_workload(n=8192)}], "target": "cuda"}
        answer = http.post("/v1/jobs/estimate", json=body)
    assert answer.status_code == 200 and answer.json()["tasks"][0]["tensors"], answer.text


def test_there_is_no_kernel_ir_to_explain(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="compiled by Triton"):
        client.source(1)
    with pytest.raises(ProblemError, match="compiled by Triton"):
        client.explain(WORKLOAD, target="cuda:sm_90a")


def test_records_travel_with_their_kernel(client: Client, store: RecordStore, tmp_path: Path) -> None:
    lines = list(store.export_lines())
    copy = RecordStore(f"sqlite:///{tmp_path}/copy.sqlite3")
    copy.import_lines(lines)
    assert copy.workload(KEY) == add_workload()
