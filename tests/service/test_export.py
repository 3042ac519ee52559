"""Schedules for devices that are not here: explained and exported all the same."""

import json
from pathlib import Path

import pytest

from tilewright.core.errors import NotFound, UnsupportedTarget
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.sketches import sketches_for
from tilewright.service.service import Service
from tilewright.service.settings import Settings
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

SM90A = Target("cuda", "sm_90a", (), 132, 16)


def softmax() -> tuple[Workload, Schedule]:
    workload = OPERATORS["softmax"].workload({"rows": 256, "columns": 1024, "dtype": "float16"})
    return workload, sketches_for(workload, SM90A)[0].space(workload, SM90A, limit=16).schedule(0)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service.open(Settings(database_url=f"sqlite:///{tmp_path / 'tw.sqlite3'}", run_jobs=False))


def test_a_schedule_for_an_absent_gpu_is_explained(service: Service) -> None:
    workload, schedule = softmax()
    with service:
        told = service.explain(workload, schedule, target="cuda:sm_90a")
    assert told.target == "cuda sm_90a"
    titles = [section.title for section in told.sections]
    assert "source" in titles and titles[-1] in ("SASS", "assembly")
    (function,) = told.functions
    assert function.registers > 0 and function.spill_bytes == 0
    assert 0 < function.occupancy <= 1 and function.resident_blocks >= 1 and function.waves > 0
    assert told.accessed_bytes == told.minimum_bytes


def test_a_processor_has_no_device_functions(service: Service) -> None:
    workload = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
    with service:
        told = service.explain(workload)
    assert told.functions == () and told.target.startswith("llvm")
    assert told.accessed_bytes >= told.minimum_bytes


def test_an_architecture_that_no_compiler_knows_is_refused(service: Service) -> None:
    with service, pytest.raises(UnsupportedTarget, match="does not know 'sm_11'"):
        service.explain(softmax()[0], target="cuda:sm_11")


def test_an_export_holds_source_machine_code_and_how_to_call_it(service: Service) -> None:
    workload, schedule = softmax()
    with service:
        files = service.export(workload, schedule, target="cuda:sm_90a").files
    assert set(files) == {"kernel.cu", "kernel.cubin", "kernel.ptx", "kernel.json"}
    assert files["kernel.cubin"].startswith(b"\x7fELF")
    assert b".target sm_90a" in files["kernel.ptx"]
    text = files["kernel.cu"].decode()
    kernel, host = text.split("#ifndef __CUDACC_RTC__")
    assert "#include" not in kernel and "int main()" in host
    told = json.loads(files["kernel.json"])
    assert [p["role"] for p in told["parameters"]] == ["input", "output"]
    assert told["launches"][0]["function"] in kernel
    assert told["schedule"] == schedule.to_json()


def test_for_a_processor_it_is_llvm_ir_and_an_object(service: Service) -> None:
    workload = OPERATORS["matmul"].workload({"m": 8, "n": 8, "k": 8})
    with service:
        with pytest.raises(NotFound, match="no measured schedule"):  # nobody vouches for any
            service.export(workload)
        export = service.export(workload, service.explain(workload).schedule)
    files = export.files
    assert export.record_id is None and export.same_binary is None and len(export.binary_sha256) == 64
    assert set(files) == {"kernel.ll", "kernel.s", "kernel.o", "kernel.h", "kernel.json"}
    assert b"void tilewright_kernel(const float *A, const float *B, float *C);" in files["kernel.h"]
    told = json.loads(files["kernel.json"])
    assert told["entry"] == "tilewright_kernel" and [p["role"] for p in told["parameters"]] == [
        "input",
        "input",
        "output",
    ]
