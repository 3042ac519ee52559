"""The tables of odd expressions: kernels of classes write them on a GPU, and what the prior ranks first compiles."""

import pytest

pytest.importorskip("torch")

from tests.schedule.gpu.tiles import H200
from tilewright.benchmarks.odd_rows import CPU_ROWS, GPU_ROWS
from tilewright.codegen.lowering import build
from tilewright.runtime.devices import host_target
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import sketches_for

IN_STEPS = ("odd-total_variation-64x3x512x512-f32", "odd-traces-256x512x512-f32")
"""Rows that no class takes as a whole: they are two steps, each of which has a class."""


@pytest.mark.parametrize("name", GPU_ROWS)
def test_kernel_classes_take_each_row(name: str) -> None:
    workload = GPU_ROWS[name].workload
    schedule, sketches = default_schedule(workload, H200), sketches_for(workload, H200)
    if name in IN_STEPS:
        assert schedule.sketch == "cuda_decomposed"
    else:
        assert sketches and not any(sketch.generic for sketch in sketches)
    resources = build(workload, H200, schedule).resources
    assert all(r.spill_bytes == 0 for r in resources.values())


@pytest.mark.parametrize("name", CPU_ROWS)
def test_there_are_kernels_for_processors(name: str) -> None:
    workload, target = CPU_ROWS[name].workload, host_target("llvm")
    space = sketches_for(workload, target)[0].space(workload, target, limit=100)
    assert build(workload, target, space.schedule(0)).code
