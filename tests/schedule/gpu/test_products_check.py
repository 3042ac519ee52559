"""``python -m benchmarks products-check``: random products by every sketch that takes them."""

from collections import Counter

import pytest

from tilewright.benchmarks.products_check import SHAPES, cases, run, tasks
from tilewright.benchmarks.suite import Options
from tilewright.core.target import Target
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def test_every_sketch_of_products_meets_many_shapes() -> None:
    meetings = Counter(task.sketch for task in tasks(SHAPES, 0, H200))
    product = {"m": 512, "n": 512, "k": 512, "dtype": "float16"}
    taking = {s.name for n in (1, 32, 64, 512) for s in sketches_for(_product({**product, "m": n}), H200)}
    assert taking <= set(meetings) <= set(SKETCHES)
    of_short_sums = {"cuda_pointwise", "cuda_thread_tile"}  # a few of the smallest products alone
    assert min(count for name, count in meetings.items() if name not in of_short_sums) >= 10, meetings


def test_sketches_of_float32_meet_shapes_in_a_precision() -> None:
    drawn = tasks(60, 0, H200, "cuda_gemm*", "tf32")
    assert all(task.parameters["dtype"] == "float32" and task.parameters["precision"] == "tf32" for task in drawn)
    assert {"cuda_gemm", "cuda_gemm_swap_ab", "cuda_gemm_mma"} <= {task.sketch for task in drawn}


def _product(parameters: dict[str, object]) -> Workload:
    return OPERATORS["matmul"].workload({**parameters, "transpose_b": True})


def test_a_seed_repeats_and_another_differs() -> None:
    assert cases(30, 1) == cases(40, 1)[:30]
    assert cases(30, 1) != cases(30, 2)


def test_kernels_are_judged_by_a_pool_of_processes() -> None:
    options = Options(rows="cpu_gemm", trials=1, extra={"target": "llvm", "shapes": "3", "processes": "1"})
    result = run(options)
    assert result.passed, result.rows
    (row,) = result.rows
    assert row["kernels"] == row["shapes"] and 1 <= int(str(row["shapes"])) <= 3  # AMX takes some


@pytest.mark.cuda
def test_products_are_right_on_the_device() -> None:
    result = run(Options(trials=2, extra={"shapes": "48"}))
    assert result.passed, [row["failures"] for row in result.rows]
