"""Records of a GPU that is not here: explained, exported, and on the dashboard."""

from base64 import b64decode

import httpx2
import pytest

from tilewright.api.client import Client, operator_task
from tilewright.api.client_errors import InvalidRequest
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Timed, Trial
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.filled import operator_task as task_row
from tilewright.tests.db.fleets import move_job

SM90A = Target("cuda", "sm_90a", (), 132, 16)
THERE = MeasuredOn(
    DeviceInfo("Example GPU", SM90A, {"multiprocessors": 132.0, "l2_bytes": 6e7}, {"copy_bytes_per_second": 4e12}),
    Toolchain({"nvrtc": "13.0"}),
    Profile("cold"),
)
SOFTMAX = {"rows": 8192, "columns": 1024, "dtype": "float16"}


@pytest.fixture(scope="module")
def record(store: RecordStore) -> int:
    """Return a timed softmax of a job on such a device."""
    task, workload = task_row("softmax", SOFTMAX), OPERATORS["softmax"].workload(SOFTMAX)
    schedule = sketches_for(workload, SM90A)[0].space(workload, SM90A, limit=16).schedule(0)
    store.create_job(NewJob("gpu", "queued", (task,), Budget(1), "random", 1, "cuda", "local", "cold"))
    move_job(store, "gpu", {"queued": ("running",)})
    store.set_device("gpu", THERE.device)
    store.begin_task("gpu", 0)
    made = NewTrial("gpu", 0, 0, task.workload_key, THERE, Trial(schedule, Timed((1e-5, 1e-5))), 1.0)
    number = store.add_trial(made).record_id
    return number


def test_its_source_goes_down_to_machine_instructions(client: Client, record: int) -> None:
    told = client.source(record)
    assert told.target == "cuda sm_90a"
    assert {"cuda-c++", "ir"} <= {section.language for section in told.sections}
    assert told.functions[0].registers > 0 and told.functions[0].occupancy > 0
    assert told.accessed_bytes == told.minimum_bytes == 2 * 8192 * 1024 * 2
    assert told.seconds == 1e-5 and told.warnings == ()
    assert told.roofline_by == "bytes" and told.fraction_of_roofline == pytest.approx(told.minimum_bytes / 4e12 / 1e-5)


def test_a_product_by_other_instructions_than_it_should_have_is_said_loudly(client: Client) -> None:
    parameters = {"m": 72, "n": 136, "k": 77, "dtype": "float16"}
    sketch = SKETCHES["cuda_gemm_mma"]
    schedule = sketch.space(OPERATORS["matmul"].workload(parameters), SM90A, limit=8).schedule(0)
    told = client.explain(operator_task("matmul", parameters), schedule, target="cuda:sm_90a")
    assert told.warnings and told.warnings[0].startswith("NO HGMMA") and "154 bytes" in told.warnings[0]
    assert told.instructions["matrix"] > 0 and told.sections[-1].title == "matrix instructions"


def test_it_is_exported_as_files(client: Client, record: int) -> None:
    exported = client.export_record(record)
    files = exported.files
    assert exported.record_id == record and exported.same_binary is not True  # its evidence names another binary
    assert b64decode(files["kernel.cubin"]).startswith(b"\x7fELF")
    same = client.export(operator_task("softmax", SOFTMAX), target="cuda:sm_90a")
    assert same.files["kernel.cu"] == files["kernel.cu"]  # the best known one


def test_its_page_shows_what_the_launch_takes(http: httpx2.Client, record: int) -> None:
    page = http.get(f"/jobs/gpu/trials/{record}")
    assert page.status_code == 200
    for shown in ("Registers of a thread", "Occupancy", "Accessed by loads and stores", "global load 128", "PTX"):
        assert shown in page.text


@pytest.mark.parametrize("target", ["cuda:sm_11", "gpu", "cuda:" + "9" * 200])
def test_a_target_that_is_none_is_refused(client: Client, target: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.export(operator_task("softmax", SOFTMAX), target=target)
    assert "target" in caught.value.field
