"""Column-wise reductions: which workloads they are for, and every way to split rows and to combine the splits."""

from typing import Any

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of, workload_of
from tests.schedule.interpreted import assert_computes
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.ir.expr import index
from tilewright.ir.rewrite import free_variables, loads_of, stores_of, substitute
from tilewright.ir.simplify import simplify
from tilewright.schedule.gpu.columnwise.kernel import columnwise_kernel
from tilewright.schedule.gpu.columnwise.sizes import ColumnwiseSizes
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.schedule.problems.columnwise import columnwise_problem
from tilewright.te import build as te
from tilewright.te.operators import OPERATORS
from tilewright.te.workload import Workload


@pytest.mark.parametrize(
    ("name", "parameters", "found"),
    [
        ("reduce", {"shape": [4, 5], "axes": [0]}, ((), (4,), (5,))),
        ("reduce", {"shape": [2, 3, 4, 5], "axes": [0, 1, 2], "kind": "mean"}, ((), (2, 3, 4), (5,))),
        ("reduce", {"shape": [2, 3, 4, 5], "axes": [1], "kind": "max"}, ((2,), (3,), (4, 5))),
        ("reduce", {"shape": [4, 5], "axes": [1]}, None),
        ("reduce", {"shape": [4, 5, 6], "axes": [0, 2]}, None),
        ("matmul", {"m": 4, "n": 5, "k": 6}, None),
        ("softmax", {"rows": 4, "columns": 5}, None),
    ],
)
def test_problems(name: str, parameters: dict[str, Any], found: object) -> None:
    problem = columnwise_problem(OPERATORS[name].workload(parameters))
    assert (problem and (problem.outer, problem.reduced, problem.columns)) == found


def _sizes(
    vector: int,
    threads_x: int,
    threads_y: int,
    unroll: int,
    splits: int = 1,
    *,
    striped: bool = False,
    in_cluster: bool = False,
    second_threads_y: int = 8,
    min_ctas_per_sm: int = 0,
) -> ColumnwiseSizes[int]:
    return ColumnwiseSizes(
        vector=vector,
        shifted=0,
        columns_per_cta=threads_x * vector,
        threads_x=threads_x,
        threads_y=threads_y,
        unroll=unroll,
        splits=splits,
        striped=int(striped),
        in_cluster=int(in_cluster),
        second_threads_y=second_threads_y,
        registers=0,
        shared_bytes=0,
        ctas=0,
        min_ctas_per_sm=min_ctas_per_sm,
        prefetching_ctas=0,
    )


SETTINGS = [
    _sizes(4, 8, 4, 2),
    _sizes(4, 16, 8, 4, splits=3),
    _sizes(4, 8, 4, 1, splits=5, striped=True),
    _sizes(4, 8, 8, 2, splits=4, in_cluster=True),
    _sizes(2, 32, 1, 3, splits=8, striped=True, in_cluster=True),
    _sizes(4, 2, 64, 2, splits=8, striped=True, in_cluster=True, min_ctas_per_sm=2),
    _sizes(4, 1, 32, 4, splits=4, in_cluster=True),
    _sizes(1, 32, 2, 2, splits=40, striped=True, second_threads_y=32),
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"shape": [301, 40], "axes": [0], "kind": "sum", "dtype": "float32"},
        {"shape": [5, 7, 9, 24], "axes": [0, 1, 2], "kind": "mean", "dtype": "float16"},
        {"shape": [3, 67, 4, 12], "axes": [1], "kind": "max", "dtype": "float32"},
        {"shape": [97, 36], "axes": [0], "kind": "argmin", "dtype": "float32"},
    ],
    ids=["sum", "mean", "middle", "argmin"],
)
def test_settings_compute_the_same(parameters: dict[str, Any], setting: ColumnwiseSizes[int]) -> None:
    workload = OPERATORS["reduce"].workload(parameters)
    problem = columnwise_problem(workload)
    assert problem is not None
    assert_computes(columnwise_kernel(workload, problem, setting), workload)


def test_two_statistics_and_an_epilogue_in_one_pass() -> None:
    x, b = te.placeholder((53, 8), "float32", "X"), te.placeholder((8,), "float32", "B")
    k, r = te.reduce_axis(53, "k"), te.reduce_axis(53, "r")
    total = te.compute((8,), lambda j: te.sum(x[k, j], axis=k), "total")
    square = te.compute((8,), lambda j: te.sum(x[r, j] * x[r, j], axis=r), "square")
    y = te.compute((8,), lambda j: square[j] - total[j] * total[j] * b[j], "Y")
    workload = te.workload([y, total])
    problem = columnwise_problem(workload)
    assert problem is not None and len(problem.reductions) == 2 and len(problem.outputs) == 2
    for setting in SETTINGS[:4]:
        assert_computes(columnwise_kernel(workload, problem, setting), workload)


def _squares_around_the_mean() -> Workload:
    x, mean = te.placeholder((3, 67, 4, 12), "float32", "X"), te.placeholder((3, 4, 12), "float32", "M")
    k, scale = te.reduce_axis(67, "k"), te.placeholder((12,), "float32", "S")

    def square(i: Any, h: Any, j: Any) -> Any:
        off = (x[i, k, h, j] - mean[i, h, j]) * scale[j]
        return te.sum(off * off, axis=k)

    total = te.compute((3, 4, 12), square, "total")
    return te.workload(te.compute((3, 4, 12), lambda i, h, j: total[i, h, j] + mean[i, h, j], "Y"))


@pytest.mark.parametrize("setting", SETTINGS[:5])
def test_all_rows_share_what_belongs_to_their_column(setting: ColumnwiseSizes[int]) -> None:
    workload = _squares_around_the_mean()
    problem = columnwise_problem(workload)
    assert problem is not None and {load.buffer.name for load in problem.column_loads} == {"M", "S"}
    assert_computes(columnwise_kernel(workload, problem, setting), workload)


UNPRUNED = {
    "squares": _squares_around_the_mean(),
    "sum": workload_of("reduce", shape=[301, 40], axes=[0], kind="sum", dtype="float32"),
    "mean": workload_of("reduce", shape=[3, 67, 4, 12], axes=[1], kind="mean", dtype="float16"),
    "argmin": workload_of("reduce", shape=[97, 36], axes=[0], kind="argmin", dtype="float32"),
}


@pytest.mark.parametrize("workload", UNPRUNED.values(), ids=UNPRUNED)
def test_settings_that_are_not_promising_are_correct(workload: Workload) -> None:
    target = Target("cuda", "sm_90a", threads=8, vector_bytes=16)
    assert assert_agrees(CUDA_COLUMNWISE, workload, 8, target, policy=SpacePolicy(prune=False)) == 8


def test_columns_that_are_only_reduced_go_from_the_last_to_the_first() -> None:
    """So the first ones are still in L2 for the kernel that computes elements."""
    workload = workload_of("reduce", shape=[5, 4096, 512], axes=[1], dtype="float32")
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, threads_x=128, threads_y=2, splits=1)
    kernel = CUDA_COLUMNWISE.lower(workload, H200, schedule)
    matrices = [load.indices[0] for s in stores_of(kernel.body) for load in loads_of(s) if load.buffer.name == "X"]
    assert matrices
    for matrix in matrices:
        (block,) = free_variables(matrix)
        assert [simplify(substitute(matrix, {block: index(n)}), {}) for n in (0, 4)] == [index(4), index(0)]
