"""Exported files are used without Tilewright: nvcc builds the source, and the program runs."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tilewright.codegen.export import exported
from tilewright.core.schedule import Schedule
from tilewright.core.target import Target
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

SM90A = Target("cuda", "sm_90a", (), 132, 16)
WORKLOADS: dict[str, tuple[str, dict[str, object]]] = {
    "softmax": ("softmax", {"rows": 256, "columns": 1024, "dtype": "float16"}),
    "column_sum": ("reduce", {"shape": [512, 640], "axes": [0], "kind": "sum", "dtype": "float32"}),
    "transpose": ("transpose", {"shape": [256, 384], "axes": [1, 0], "dtype": "bfloat16"}),
}


def chosen(name: str) -> tuple[Workload, Schedule]:
    operator, parameters = WORKLOADS[name]
    workload = OPERATORS[operator].workload(parameters)
    space = sketches_for(workload, SM90A)[0].space(workload, SM90A, limit=64)
    return workload, space.schedule(len(space) - 1)


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_export_is_a_function_of_its_input(name: str) -> None:
    workload, schedule = chosen(name)
    first, second = (exported(workload, SM90A, schedule) for _ in range(2))
    assert first == second
    text = first["kernel.cu"].decode()
    assert text.count("#include") == 4 and text.index("#include") > text.index("#ifndef __CUDACC_RTC__")


def test_the_description_of_a_launch_has_the_names_that_programs_know() -> None:
    workload = OPERATORS["matmul"].workload({"m": 512, "n": 512, "k": 512, "dtype": "float16"})
    space = SKETCHES["cuda_gemm"].space(workload, SM90A, limit=16)
    (launch, *_) = json.loads(exported(workload, SM90A, space.schedule(0))["kernel.json"])["launches"]
    assert launch.keys() == {
        "function", "blocks", "threads", "cluster", "shared_bytes", "arguments", "tensor_maps", "overlaps",
    }  # fmt: skip
    assert launch["overlaps"] is True and launch["threads"] % 32 == 0 and launch["shared_bytes"] > 0
    assert {m["line_bytes"] for m in launch["tensor_maps"]} <= {128, 256}
    assert launch["tensor_maps"][0].keys() == {"parameter", "box", "swizzled", "line_bytes"}


@pytest.mark.cuda
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_exported_file_builds_and_runs(name: str, tmp_path: Path) -> None:
    for file, content in exported(chosen(name)[0], SM90A, chosen(name)[1]).items():
        (tmp_path / file).write_bytes(content)
    build = ["nvcc", "-arch=sm_90a", "kernel.cu", "-o", "kernel"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(["./kernel"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert "us a run" in ran.stdout and "FNV-1a" in ran.stdout
