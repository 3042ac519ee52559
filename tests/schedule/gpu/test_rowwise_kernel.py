"""Kernels that work on rows: which workloads they are for, and every place where a row may stay."""

from typing import Any

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of, schedule_of
from tests.schedule.interpreted import assert_computes
from tilewright.codegen.lowering import finish, lowering_stages
from tilewright.codegen.memory_traffic import accessed_bytes
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.ir.expr import index
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import free_variables, loads_of, stores_of, substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.verify import verify
from tilewright.schedule.gpu.rowwise.kernel import rowwise_kernel
from tilewright.schedule.gpu.rowwise.sizes import RowPartition, RowStorage, RowwiseSizes, register_vectors
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE
from tilewright.schedule.problems.rowwise import rowwise_problem
from tilewright.te import build as te
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.parse import parse_workload
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload


def _workload(name: str, **parameters: Any) -> Workload:
    return OPERATORS[name].workload(parameters)


def test_norms_read_a_row_input_and_broadcast_operands() -> None:
    problem = rowwise_problem(_workload("layer_norm", rows=5, columns=7, dtype="float16"))
    assert problem is not None
    assert (problem.rows, problem.columns) == ((5,), (7,))
    assert [b.name for b in problem.row_inputs] == ["X"]
    assert [load.buffer.name for load in problem.broadcast_loads] == ["G", "B"]
    assert (len(problem.reductions), len(problem.elementwise_outputs), len(problem.per_row_outputs)) == (2, 1, 0)
    assert (problem.read_bytes, problem.written_bytes) == (2, 2)


def test_outputs_that_others_read_are_computed_where_they_are_read() -> None:
    problem = rowwise_problem(_workload("add_rms_norm", rows=5, columns=7, dtype="float16"))
    assert problem is not None
    assert sorted(b.name for b in problem.row_inputs) == ["R", "X"]
    assert len(problem.elementwise_outputs) == 2


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("matmul", {"m": 4, "n": 4, "k": 4}),
        ("matmul", {"m": 1, "n": 4, "k": 4, "transpose_b": True}),
        ("matmul", {"m": 4, "n": 1, "k": 4}),
        ("reduce", {"shape": [4, 5], "axes": [0]}),
        ("reduce", {"shape": [4, 5, 6], "axes": [1, 0]}),
        ("transpose", {"shape": [4, 5], "axes": [1, 0]}),
        ("elementwise", {"shape": [4, 5], "functions": ["exp"]}),
    ],
)
def test_other_workloads_are_no_rowwise_problem(name: str, parameters: dict[str, Any]) -> None:
    assert rowwise_problem(OPERATORS[name].workload(parameters)) is None


def test_what_is_read_across_rows_is_no_rowwise_problem() -> None:
    x, w = te.placeholder((4, 6), name="X"), te.placeholder((6, 4), name="W")
    k = te.reduce_axis(6, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), "total")
    assert rowwise_problem(te.workload(te.compute((4, 6), lambda i, j: x[i, j] - total[i], "Y"))) is not None
    assert rowwise_problem(te.workload(te.compute((4, 6), lambda i, j: x[i, j] - total[i] * w[j, i], "Y"))) is None
    assert rowwise_problem(te.workload(te.compute((4, 6), lambda i, j: x[i, j] - total[3 - i], "Y"))) is None


@pytest.mark.parametrize(
    "text",
    [
        "X: float32[3, 64]\nt[i < 5] = sum over k < 64 of select(i < 3, X[i, k], 0)",
        "X: float32[5, 40]\nt[i < 5] = sum over k < 64 of select(k < 40, X[i, k], 0)",
        "X: float32[5, 64]\nt[i < 5] = sum over k < 64 of X[i, (k + 32) % 64]",
    ],
)
def test_reductions_read_whole_rows_at_their_own_columns(text: str) -> None:
    """Rows are loaded whole, whatever the condition."""
    assert rowwise_problem(parse_workload(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "X: float16[5, 2013]\nt[i] = sum over k < 2011 of float32(X[i, k])",
        "X: float32[6, 2049]\nt[i] = sum over k < 2048 of X[i, k]\nY[i, k < 2048] = X[i, k] - t[i]",
        "X: float32[6, 2052]\nt[i] = sum over k < 2048 of X[i, k]\nY[i, k < 2048] = X[i, k] - t[i]",
        "X: float32[6, 3, 517]\nt[i] = sum over k < 512 of X[i, 0, k]",
    ],
)
def test_rows_that_are_parts_of_longer_ones_are_copied_where_they_are_aligned(text: str) -> None:
    workload, target = parse_workload(text), Target("cuda", "sm_90a", threads=8, vector_bytes=16)
    assert assert_agrees(CUDA_ROWWISE, workload, 24, target, policy=SpacePolicy(prune=False)) == 24


def test_a_neighbouring_row_may_be_read() -> None:
    text = "X: float32[6, 66]\nt[i < 5] = sum over k < 66 of X[i, k]\nY[i < 5, k < 66] = X[i, k] - X[i + 1, k] * t[i]"
    assert assert_agrees(CUDA_ROWWISE, parse_workload(text), 6, policy=SpacePolicy(prune=False)) == 6


ODD = {"rows": 5, "columns": 1031, "dtype": "float16"}
EVEN = {"rows": 6, "columns": 2048, "dtype": "float16"}


def _assert_computes(
    workload: Workload,
    vector: int,
    threads_per_row: int,
    rows_per_cta: int,
    cluster_size: int = 1,
    storage: RowStorage = RowStorage.REGISTERS,
    *,
    buffered: int = 0,
    preloaded: int = 0,
    clusters: int = 0,
) -> None:
    """The kernel of one setting computes the workload. ``clusters``: how many there are of a circular buffer."""
    problem = rowwise_problem(workload)
    assert problem is not None
    groups = clusters or -(-problem.row_count // rows_per_cta)
    shape = (vector, threads_per_row, rows_per_cta, cluster_size)
    many = RowPartition(problem.column_count, *(np.array([n], dtype=np.int64) for n in shape))
    kept, in_registers = register_vectors(many, np.array([int(storage)]), np.array([buffered]))
    sizes = RowwiseSizes(
        problem.column_count,
        *shape,
        storage=storage,
        buffered_vectors=buffered,
        kept_vectors=int(kept[0]),
        register_vectors=int(in_registers[0]),
        preloaded_vectors=preloaded,
        registers=0,
        shared_bytes=0,
        blocks=groups * cluster_size,
        min_ctas_per_sm=0,
        prefetching_ctas=0,
        prefetch_distance=0,
        joined_moments=0,
        holds_values=int(storage is RowStorage.REGISTERS),
    )
    assert_computes(rowwise_kernel(workload, problem, sizes), workload)


@pytest.mark.parametrize("setting", [
    {"threads_per_row": 32, "rows_per_cta": 1},
    {"threads_per_row": 32, "rows_per_cta": 4},
    {"threads_per_row": 128, "rows_per_cta": 2},
    {"threads_per_row": 16, "rows_per_cta": 2},
    {"threads_per_row": 128, "rows_per_cta": 1, "preloaded": 2},
    {"threads_per_row": 32, "rows_per_cta": 1, "preloaded": 3},
    {"threads_per_row": 32, "rows_per_cta": 1, "cluster_size": 2},
    {"threads_per_row": 32, "rows_per_cta": 2, "cluster_size": 2},
    {"threads_per_row": 128, "rows_per_cta": 1, "cluster_size": 4},
    {"threads_per_row": 16, "rows_per_cta": 2, "storage": RowStorage.GLOBAL},
    {"threads_per_row": 128, "rows_per_cta": 1, "storage": RowStorage.GLOBAL},
    {"threads_per_row": 32, "rows_per_cta": 2, "cluster_size": 2, "storage": RowStorage.GLOBAL},
    {"threads_per_row": 32, "rows_per_cta": 1, "storage": RowStorage.REGISTERS_AND_SHARED, "buffered": 3},
    {"threads_per_row": 64, "rows_per_cta": 2, "storage": RowStorage.REGISTERS_AND_SHARED, "buffered": 2},
    {
        "threads_per_row": 32, "rows_per_cta": 1, "cluster_size": 2, "storage": RowStorage.REGISTERS_AND_SHARED,
        "buffered": 1, "preloaded": 1,
    },
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
@pytest.mark.parametrize("operator", ["softmax", "add_rms_norm"])
def test_settings_compute_the_same(operator: str, shape: dict[str, Any], setting: dict[str, Any]) -> None:
    _assert_computes(OPERATORS[operator].workload(shape), 8, **setting)


@pytest.mark.parametrize("cluster_size", [1, 2])
@pytest.mark.parametrize("buffered", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("shape", [ODD, EVEN], ids=["odd", "even"])
def test_circular_buffers_of_any_length_keep_the_order_of_rows(
    shape: dict[str, Any], buffered: int, cluster_size: int
) -> None:
    """2 vectors for each thread and 2 rows at a time: buffers of one to three and a half rows."""
    workload = OPERATORS["layer_norm"].workload(shape)
    preloaded = buffered % 3 if shape is EVEN else 0
    storage, threads = RowStorage.CIRCULAR_BUFFER, 128 // cluster_size
    _assert_computes(workload, 8, threads, 1, cluster_size, storage, buffered=buffered, preloaded=preloaded, clusters=2)


@pytest.mark.parametrize("buffered", [2, 3, 4, 7])
@pytest.mark.parametrize("columns", [1031, 2048])
def test_circular_buffers_go_on_where_rows_are_only_reduced(columns: int, buffered: int) -> None:
    x = te.placeholder((7, columns), "float16", "X")
    k, j = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "j")
    top = te.compute((7,), lambda i: te.max(x[i, k], axis=k), "top")
    total = te.compute((7,), lambda i: te.sum(te.exp(te.cast(x[i, j], "float32") - te.cast(top[i], "float32")), axis=j))
    for workload in (_workload("reduce", shape=[7, columns], axes=[1], dtype="float16"), te.workload([total, top])):
        _assert_computes(workload, 8, 128, 1, 1, RowStorage.CIRCULAR_BUFFER, buffered=buffered, clusters=2)


def test_rows_and_columns_of_several_axes() -> None:
    x, b = te.placeholder((2, 3, 4, 8), "float32", "X"), te.placeholder((2, 3), "float32", "B")
    k, r = te.reduce_axis(4, "k"), te.reduce_axis(8, "r")
    top = te.compute((2, 3), lambda i, j: te.max(x[i, j, k, r], axis=[k, r]), "top")
    y = te.compute((2, 3, 4, 8), lambda i, j, p, q: (x[i, j, p, q] - top[i, j]) * b[i, j], "Y")
    workload = te.workload([y, top])
    problem = rowwise_problem(workload)
    assert problem is not None and (problem.rows, problem.columns) == ((2, 3), (4, 8))
    for vector, threads_per_row, rows_per_cta in ((4, 8, 4), (8, 4, 8), (1, 32, 1)):
        _assert_computes(workload, vector, threads_per_row, rows_per_cta)


REORDERED = {
    "heads first": "X: float16[2, 5, 3, 64]\nS[b, s, h] = max over c < 64 of X[b, s, h, c]\n"
    "Y[b < 2, h < 3, s < 5, d < 64] = X[b, s, h, d] - S[b, s, h]",
    "as many heads as tokens, in both orders": "X: float16[5, 5, 64]\nS[s, h] = max over c < 64 of X[s, h, c]\n"
    "Y[h < 5, s < 5, d < 64] = X[s, h, d] - S[s, h]\nZ[s, h, d < 64] = X[s, h, d] + S[s, h]",
    "odd rows": "X: float16[5, 4, 67]\nS[s, h] = max over c < 67 of X[s, h, c]\n"
    "Y[h < 4, s < 5, d < 67] = X[s, h, d] - S[s, h]",
    "inputs in another order": "X: float16[5, 4, 64]\nS[h < 4, s < 5] = max over c < 64 of X[s, h, c]\n"
    "Y[h, s, d < 64] = X[s, h, d] - S[h, s]",
    "one head": "X: float16[5, 1, 64]\nS[s, h] = max over c < 64 of X[s, h, c]\n"
    "Y[h < 1, s < 5, d < 64] = X[s, h, d] - S[s, h]",
    "columns of two axes": "X: float16[5, 4, 3, 16]\nS[s, h] = max over c < 3, e < 16 of X[s, h, c, e]\n"
    "Y[h < 4, s < 5, c < 3, d < 16] = X[s, h, c, d] - S[s, h]",
}


@pytest.mark.parametrize("case", REORDERED)
def test_outputs_may_have_their_rows_in_another_order(case: str) -> None:
    workload, target = parse_workload(REORDERED[case]), Target("cuda", "sm_90a", threads=8, vector_bytes=16)
    assert assert_agrees(CUDA_ROWWISE, workload, 6, target, policy=SpacePolicy(prune=False)) == 6


LATER = {
    "heads": "X: float16[9, 6, 64]\nS[t < 9, h < 4] = sum over c < 64 of float32(X[t, h + 2, c])\n"
    "Y[t, h < 4, d < 64] = "
    "float32(X[t, h + 2, d]) * S[t, h] + float32(X[t, h + 2, (d + 32) % 64]) - float32(X[t, h, d])",
    "one head": "X: float16[9, 6, 64]\nS[t < 9] = max over c < 64 of X[t, 3, c]\nY[t, d < 64] = X[t, 3, d] - S[t]",
    "tokens": "X: float16[9, 64]\nR: float16[9, 64]\nS[t < 5] = max over c < 64 of X[t + 4, c]\n"
    "Y[t, d < 64] = X[t + 4, d] - S[t] + R[t + 1, d]",
}


@pytest.mark.parametrize("case", LATER)
def test_rows_may_begin_further_on_in_a_tensor(case: str) -> None:
    workload, target = parse_workload(LATER[case]), Target("cuda", "sm_90a", threads=8, vector_bytes=16)
    assert assert_agrees(CUDA_ROWWISE, workload, 8, target, policy=SpacePolicy(prune=False)) == 8


@pytest.mark.parametrize(("columns", "place"), [(67, "c"), (64, "c + 3")])
def test_vectors_of_rows_further_on_begin_where_those_of_the_first_rows_would(columns: int, place: str) -> None:
    at, other = f"h + 1, {place}", f"h + 1, {place.replace('c', 'd')}"
    text = (
        f"X: float16[9, 6, 67]\nS[t, h < 5] = max over c < {columns} of X[t, {at}]\n"
        f"Y[t, h < 5, d < {columns}] = X[t, {other}] - S[t, h]"
    )
    assert rowwise_problem(parse_workload(text)) is None


@pytest.mark.parametrize("axes", ["d < 6, s < 5", "s < 5, d < 3"])
def test_outputs_have_whole_rows_with_contiguous_columns(axes: str) -> None:
    text = f"X: float32[5, 6]\nS[s] = sum over c < 6 of X[s, c]\nY[{axes}] = X[s, d] - S[s]"
    assert rowwise_problem(parse_workload(text)) is None


def test_a_row_that_all_rows_read_is_not_taken_for_their_own() -> None:
    x = te.placeholder((5, 1031), "float16", "X")
    k = te.reduce_axis(1031, "k")
    total = te.compute((5,), lambda i: te.sum(te.cast(x[i, k], "float32"), axis=k), "total")
    y = te.compute((5, 1031), lambda i, j: te.cast(x[i, j], "float32") - te.cast(x[2, j], "float32") * total[i], "Y")
    _assert_computes(te.workload(y), 8, 32, 1)


def test_tensors_may_have_any_name_that_the_kernel_uses() -> None:
    x = te.placeholder((3, 40), "float32", "t")
    k = te.reduce_axis(40, "k")
    total = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "block")
    _assert_computes(te.workload(te.compute((3, 40), lambda i, j: x[i, j] / total[i], "vectors0")), 4, 32, 1)


UNPRUNED = {
    "softmax of odd rows": _workload("softmax", rows=5, columns=1031, dtype="float16"),
    "softmax of long rows": _workload("softmax", rows=3, columns=16384, dtype="float16"),
    "layer norm": _workload("layer_norm", rows=37, columns=520, dtype="float16"),
    "max over two axes": _workload("reduce", shape=[6, 40, 24], axes=[1, 2], kind="max", dtype="float16"),
    "argmax": _workload("reduce", shape=[6, 960], axes=[1], kind="argmax", dtype="float32"),
}


@pytest.mark.parametrize("workload", UNPRUNED.values(), ids=UNPRUNED)
def test_settings_that_are_not_promising_are_correct(workload: Workload) -> None:
    target = Target("cuda", "sm_90a", threads=8, vector_bytes=16)
    assert assert_agrees(CUDA_ROWWISE, workload, 8, target, policy=SpacePolicy(prune=False)) == 8


@pytest.mark.parametrize(("name", "from_the_end"), [("reduce", True), ("softmax", False)])
def test_rows_that_are_only_reduced_go_from_the_last_to_the_first(name: str, from_the_end: bool) -> None:
    """So the first rows are still in L2 for the kernel that computes elements."""
    shape = {"shape": [640, 2048], "axes": [1]} if name == "reduce" else {"rows": 640, "columns": 2048}
    workload = _workload(name, dtype="float32", **shape)
    schedule = schedule_of(CUDA_ROWWISE, workload, rows_per_cta=1, cluster_size=1, row_storage="registers")
    kernel = CUDA_ROWWISE.lower(workload, H200, schedule)
    loads = [load for s in stores_of(kernel.body) for load in loads_of(s) if load.buffer.name == "X"]
    assert loads
    for load in loads:
        (block,) = free_variables(load.indices[0])
        first, last = (simplify(substitute(load.indices[0], {block: index(n)}), {}) for n in (0, 639))
        assert (first, last) == ((index(639), index(0)) if from_the_end else (index(0), index(639)))


def test_a_circular_buffer_keeps_broadcast_operands_of_rows_that_begin_alike() -> None:
    """A CTA of 264 has every 264th row, and 264 odd rows are a whole number of vectors; 132 of them are not."""
    workload = _workload("layer_norm", rows=600, columns=265, dtype="float16")
    knobs: dict[str, Any] = {"row_storage": "circular_buffer", "broadcast_preload": 1, "threads_per_row": 32}
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, vector_width=8, ctas_per_sm=2, cluster_size=1, **knobs)
    kernel = finish(CUDA_ROWWISE.lower(workload, H200, schedule), H200)
    verify(kernel)
    inputs = random_inputs(workload, 1)
    ((name, (absolute, relative)),) = tolerance(workload).items()
    got, wanted = (np.asarray(x[name], np.float64) for x in (interpret(kernel, inputs), reference(workload, inputs)))
    np.testing.assert_allclose(got, wanted, relative, absolute)
    knobs |= {"vector_width": 8, "ctas_per_sm": 1, "cluster_size": 1}
    with pytest.raises(AssertionError, match="no schedule"):
        legal_schedule_of(CUDA_ROWWISE, workload, **knobs)


def test_broadcast_operands_of_odd_rows_are_loaded_by_chunks() -> None:
    """All but the last of a thread's vectors exist, so that none but that one is loaded behind a branch."""
    workload = _workload("layer_norm", rows=64, columns=4097, dtype="float16")
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, vector_width=8, threads_per_row=128, row_storage="registers")
    source = lowering_stages(workload, H200, schedule).source.text
    assert source.count("= load_unaligned_x8(") == 2 and "load_unaligned<" not in source
    assert "write_i < 3 ? true :" in source


@pytest.mark.parametrize("columns", [3, 8, 24, 64])
@pytest.mark.parametrize("threads_per_row", [1, 2])
def test_many_short_rows_of_a_cta(columns: int, threads_per_row: int) -> None:
    """CTAs of few threads would be done before the next ones begin. Longer rows have as many as a warp at most."""
    workload = _workload("softmax", rows=300, columns=columns, dtype="float32")
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, threads_per_row=threads_per_row, rows_per_cta=256)
    assert_computes(CUDA_ROWWISE.lower(workload, H200, schedule), workload)
    longer = CUDA_ROWWISE.space(_workload("softmax", rows=300, columns=65), H200, policy=SpacePolicy(prune=False))
    assert longer.column("rows_per_cta").max() == 32


def test_reductions_that_read_no_other_share_a_pass_over_memory() -> None:
    """A row that stays in memory is read once for both, and once more for what is computed from them."""
    workload = parse_workload(
        "X: float32[3, 100001]\nA[i] = min over k < 100001 of X[i, k]\nB[i] = max over k < 100001 of X[i, k]\n"
        "Y[i, j] = (X[i, j] - A[i]) / (B[i] - A[i] + 1)"
    )
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, H200, row_storage="global", cluster_size=1, rows_per_cta=1)
    kernel = finish(CUDA_ROWWISE.lower(workload, H200, schedule), H200)
    row_bytes = 3 * 100001 * 4
    assert 3 * row_bytes <= accessed_bytes(kernel) < 3.1 * row_bytes
    assert_computes(kernel, workload)
