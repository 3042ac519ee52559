"""Products of very few rows: what the sketch takes, and that its kernels agree with the reference."""

from dataclasses import replace
from typing import Any

import pytest

from tests.schedule.gpu.tiles import workload_of
from tests.sketch_agreement import check_schedules
from tilewright.runtime.devices import host_target
from tilewright.schedule.cpu.gemv.space import CACHE_BYTES, CPU_GEMV
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import sketches_for

HOST = host_target("llvm")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one row": ("matmul", {"m": 1, "n": 640, "k": 512}),
    "odd": ("matmul", {"m": 1, "n": 777, "k": 431, "bias": True, "activation": "relu"}),
    "three rows": ("matmul", {"m": 3, "n": 200, "k": 1000, "dtype": "float64"}),
    "batch": ("batch_matmul", {"batch": 5, "m": 2, "n": 130, "k": 260}),
    "half": ("matmul", {"m": 1, "n": 640, "k": 512, "dtype": "float16"}),
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_kernels_agree(case: str) -> None:
    operator, parameters = CASES[case]
    workload = workload_of(operator, **parameters)
    assert sketches_for(workload, HOST) == (CPU_GEMV,)
    assert check_schedules("cpu_gemv", HOST, workload, 1, 2) == 2


def test_accumulators_stay_in_the_cache() -> None:
    workload = workload_of("matmul", m=1, n=1 << 16, k=64)
    space = CPU_GEMV.space(workload, replace(HOST, threads=2))
    assert (space.quantities["accumulator_bytes"] <= CACHE_BYTES).all()
    assert (space.quantities["tasks"] >= 2).all()


@pytest.mark.parametrize("rows, together", [(1, 8), (3, 4)])
def test_rows_of_the_matrix_are_multiplied_together_as_far_as_a_set_of_the_cache_holds_them(
    rows: int, together: int
) -> None:
    workload = workload_of("matmul", m=rows, n=3072, k=768)
    assert dict(default_schedule(workload, replace(HOST, threads=2)).knobs)["k_unroll"] == together


def test_what_is_left_to_others() -> None:
    for parameters in (
        {"m": 4, "n": 640, "k": 512},
        {"m": 1, "n": 640, "k": 512, "transpose_b": True},
        {"m": 1, "n": 64, "k": 64},
    ):
        assert not CPU_GEMV.matches(workload_of("matmul", **parameters), HOST)
