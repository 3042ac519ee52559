"""Column-wise reductions: which workloads they are for, and every way to split rows and to combine the splits."""

import re
from math import gcd
from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of, workload_of
from tests.schedule.interpreted import assert_computes
from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.ir.expr import index
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import free_variables, loads_of, stores_of, substitute
from tilewright.ir.simplify import simplify
from tilewright.schedule.defaults import default_schedules
from tilewright.schedule.gpu.columnwise.kernel import columnwise_kernel
from tilewright.schedule.gpu.columnwise.sizes import ColumnwiseSizes
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.schedule.problems.columnwise import columnwise_problem
from tilewright.te import build as te
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
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
        blocks=0,
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


ODD: dict[str, tuple[dict[str, Any], int]] = {
    "middle": ({"shape": [3, 67, 131], "axes": [1], "kind": "sum", "dtype": "float16"}, 8),
    "half": ({"shape": [2, 45, 131], "axes": [1], "kind": "sum", "dtype": "bfloat16"}, 4),
    "columns of two axes": ({"shape": [3, 67, 5, 7], "axes": [1], "kind": "max", "dtype": "float32"}, 4),
    "rows of three axes": ({"shape": [5, 7, 9, 23], "axes": [0, 1, 2], "kind": "mean", "dtype": "bfloat16"}, 8),
    "positions": ({"shape": [2, 97, 37], "axes": [1], "kind": "argmin", "dtype": "float16"}, 8),
    "bytes": ({"shape": [67, 101], "axes": [0], "kind": "sum", "dtype": "int8"}, 16),
    "even": ({"shape": [131, 102], "axes": [0], "kind": "sum", "dtype": "float16"}, 8),
    "one row a thread": ({"shape": [2, 5, 9], "axes": [1], "kind": "sum", "dtype": "float16"}, 8),
    "a last axis that is no vector": ({"shape": [65, 4, 9], "axes": [0], "kind": "prod", "dtype": "float32"}, 4),
}
SHIFTED: list[dict[str, Any]] = [
    {"threads_x": 8, "threads_y": 16, "unroll": 1},
    {"threads_x": 16, "threads_y": 16, "unroll": 4, "splits": 1},
    {"threads_x": 8, "threads_y": 16, "unroll": 4, "splits": 2, "arrangement": "blocked", "combine": "second_launch"},
    {"threads_x": 32, "threads_y": 16, "unroll": 1, "splits": 4, "arrangement": "striped", "combine": "second_launch"},
    {"threads_x": 8, "threads_y": 32, "unroll": 4, "splits": 4, "arrangement": "striped", "combine": "cluster"},
    {"threads_x": 16, "threads_y": 16, "unroll": 1, "splits": 2, "arrangement": "blocked", "combine": "cluster"},
]
FEW = Target("cuda", "sm_90a", threads=8, vector_bytes=16)


@pytest.mark.parametrize("knobs", SHIFTED)
@pytest.mark.parametrize("name", ODD)
def test_wide_vectors_of_rows_that_begin_anywhere(name: str, knobs: dict[str, Any]) -> None:
    parameters, vector = ODD[name]
    workload = OPERATORS["reduce"].workload(parameters)
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, FEW, vector_width=vector, **knobs)
    assert_computes(CUDA_COLUMNWISE.lower(workload, FEW, schedule), workload)


@pytest.mark.parametrize(("columns", "vectors"), [(1023, {1, 8, 4}), (1022, {2, 8, 4}), (1024, {8}), (5, {1, 4})])
def test_wide_vectors_are_for_pitches_that_they_do_not_divide(columns: int, vectors: set[int]) -> None:
    workload = workload_of("reduce", shape=[4, 512, columns], axes=[1], dtype="float16")
    space = CUDA_COLUMNWISE.space(workload, H200, policy=SpacePolicy(prune=False))
    widths, rows = space.column("vector_width"), space.column("threads_y")
    assert set(widths.tolist()) == vectors
    for width in vectors & {4, 8} if columns % 8 else ():
        assert not (rows[widths == width] % (width // gcd(width, columns))).any()


@pytest.mark.parametrize("rows", [1021, 1024], ids=["the last vector passes the end", "whole vectors"])
def test_rows_of_an_odd_pitch_are_loaded_by_16_bytes(rows: int) -> None:
    """Single elements are loaded where the last vector of the last row would pass the end, and nowhere else."""
    workload = workload_of("reduce", shape=[3, rows, 1023], axes=[1], dtype="float16")
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, threads_x=32, threads_y=8, unroll=4, vector_width=8)
    kernel = CUDA_COLUMNWISE.lower(workload, H200, schedule)
    (body,) = re.findall(r"__global__.*", backend_for(H200).emit(finish(kernel, H200), H200).text, re.DOTALL)
    assert body.count("recast<uint4>(&X[") == body.count("X[") - (rows % 8 > 0)
    assert [r.spill_bytes for r in build_kernel(kernel, H200).resources.values()] == [0]


def test_single_elements_of_rows_bring_whole_cache_lines() -> None:
    """Where many threads stand next to each other, they need the rest of a line."""
    workload = workload_of("reduce", shape=[8192, 8191], axes=[0])
    for threads_x in (32, 128):
        schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, threads_x=threads_x, threads_y=8, vector_width=1)
        text = backend_for(H200).emit(finish(CUDA_COLUMNWISE.lower(workload, H200, schedule), H200), H200).text
        assert ("ld_global_line(&" in text) == (threads_x == 128)


def test_elements_of_other_rows_do_not_matter() -> None:
    """Vectors have some, which are accumulated, too."""
    workload = workload_of("reduce", shape=[2, 61, 45], axes=[1], dtype="float32")
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, FEW, threads_x=8, threads_y=4, vector_width=4, splits=1)
    x = np.ones((2, 61, 45), np.float32)
    x[:, :, 0], x[:, :, -1] = np.inf, np.nan
    found = interpret(finish(CUDA_COLUMNWISE.lower(workload, FEW, schedule), FEW), {"X": x})
    np.testing.assert_array_equal(found[workload.outputs[0]], x.sum(axis=1))


@pytest.mark.parametrize("knobs", SHIFTED[:5])
def test_wide_vectors_with_inputs_of_the_column_and_of_the_row(knobs: dict[str, Any]) -> None:
    x, mean = te.placeholder((2, 61, 3, 11), "float16", "X"), te.placeholder((2, 3, 11), "float32", "M")
    z, weight = te.placeholder((2, 61, 3, 11), "float32", "Z"), te.placeholder((61,), "float32", "W")
    k, r = te.reduce_axis(61, "k"), te.reduce_axis(61, "r")

    def square(i: Any, h: Any, j: Any) -> Any:
        off = te.cast(x[i, k, h, j], "float32") - mean[i, h, j]
        return te.sum(off * off * weight[k], axis=k)

    total = te.compute((2, 3, 11), square, "total")
    least = te.compute((2, 3, 11), lambda i, h, j: te.min(z[i, r, h, j], axis=r), "least")
    both = te.compute((2, 3, 11), lambda i, h, j: total[i, h, j] + least[i, h, j] * mean[i, h, j], "Y")
    workload = te.workload([both, least])
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, FEW, vector_width=4, **knobs)
    assert_computes(CUDA_COLUMNWISE.lower(workload, FEW, schedule), workload)


def test_odd_pitches_get_wide_vectors_by_default() -> None:
    for shape, axes, dtype in (([64, 1021, 1023], [1], "float16"), ([8192, 8191], [0], "float32")):
        workload = workload_of("reduce", shape=shape, axes=axes, dtype=dtype)
        knobs = dict(default_schedules(workload, H200)[0].knobs)
        assert knobs["vector_width"] == 16 // workload.inputs[0].dtype.bytes


def test_rows_that_only_a_condition_keeps_inside_are_read_by_another_class() -> None:
    """Such a kernel reads whole columns, and would read beyond the end of X."""
    text = "X: float32[{rows}, 64]\nt[j] = sum over i < 640 of select(i < 400, X[i, j], 0.0)"
    assert columnwise_problem(parse_workload(text.format(rows=640))) is not None
    assert columnwise_problem(parse_workload(text.format(rows=400))) is None
