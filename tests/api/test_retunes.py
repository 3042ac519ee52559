"""Retuning over HTTP: the job that it makes, what its page and its answer say, and what is refused."""

from dataclasses import replace

import httpx2

from tilewright.api.client import Client
from tilewright.core.budget import Budget
from tilewright.core.retuning import Retuned, RetuneVerdict
from tilewright.core.schedule import Schedule
from tilewright.core.target import Toolchain
from tilewright.core.trial import Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.service.service import Service
from tilewright.tests.api.filled import VERSION, operator_task


def test_a_retune_is_a_job_that_says_what_it_saved(
    http: httpx2.Client, client: Client, store: RecordStore, service: Service
) -> None:
    nothing = http.post("/v1/retunes", json={})
    assert nothing.status_code == 404 and "nothing to retune on llvm" in nothing.json()["detail"]

    task = operator_task("softmax", {"rows": 24, "columns": 40})
    store.create_job(NewJob("before", "succeeded", (task,), Budget(9), "random", 1, "llvm", "local", "warm"))
    here = service.default_device
    assert here is not None
    before = replace(here, toolchain=Toolchain({"llvm": "1"}))
    trial = Trial(Schedule.of("cpu_loops", VERSION, {}), Timed((2e-5,) * 3))
    record = store.add_trial(NewTrial("before", 0, 0, task.workload_key, before, trial, 4.0)).record_id

    made = http.post("/v1/retunes", json={"runners_up": 2}, headers={"Idempotency-Key": "once"})
    assert made.status_code == 201 and made.headers["Location"] == f"/v1/jobs/{made.json()['id']}"
    assert http.post("/v1/retunes", json={"runners_up": 2}, headers={"Idempotency-Key": "once"}).status_code == 200
    job = client.job(made.json()["id"])
    assert job.fresh and job.retuning is not None and job.retuning.runners_up == 2
    (shown,) = job.tasks
    assert (shown.workload_key, shown.operator, shown.retuned) == (task.workload_key, "softmax", None)

    found = Retuned(RetuneVerdict.KEPT, 1, 0.993, 1.002, 0.0125, record, before.toolchain.key, 2e-5, 64, 30.0)
    store.note_task(job.id, 0, retuned=found.to_json(), stop_reason="kept", wall_seconds=2.5)
    (shown,) = client.job(job.id).tasks
    assert shown.retuned is not None and shown.retuned.verdict is RetuneVerdict.KEPT and shown.retuned.ratio == 0.993
    assert (shown.saved_trials, shown.saved_seconds) == (64, 27.5)
    page = http.get(f"/jobs/{job.id}").text
    assert "Kept: the earlier winner holds" in page and f"record {record}" in page
    assert 'value="0.993" data-field="/tasks/0/retuned/ratio"' in page
    assert 'value="27.5" data-field="/tasks/0/saved_seconds"' in page


def test_what_cannot_be_retuned_is_refused_with_its_field(http: httpx2.Client) -> None:
    for body, status, field in (
        ({"runners_up": 65}, 422, "/runners_up"),
        ({"runners_up": 8, "budget": {"trials": 8}, "workload_keys": []}, 404, "/target"),
        ({"target": "cuda:sm_1"}, 422, "/target"),
        ({"workload_keys": ["ab" * 32]}, 404, "/workload_keys"),
        ({"toolchain_before": "x"}, 422, "/toolchain_before"),
        ({"tasks": []}, 422, "/tasks"),
    ):
        refused = http.post("/v1/retunes", json={"toolchain_before": "cd" * 32, **body})
        assert refused.status_code == status, refused.text
        assert refused.json()["field"] == field
