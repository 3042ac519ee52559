"""Rows that outputs read at other columns, too: norms of queries and keys whose rotary embedding follows."""

import pytest

from tests.schedule.gpu.tiles import H200, assert_agrees, legal_schedule_of
from tests.schedule.interpreted import assert_computes
from tests.sketch_agreement import check_dynamic
from tilewright.codegen.lowering import build_kernel, lowering_stages
from tilewright.core.policy import SpacePolicy
from tilewright.core.target import Target
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE
from tilewright.te.dynamic import with_dynamic
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

SMALL = Target("cuda", "sm_90a", threads=8, vector_bytes=16)


def rotary(
    turned: str,
    columns: int = 128,
    tokens: int = 9,
    heads: int = 4,
    dtype: str = "float16",
    tables: str = "float32",
    table: str = "",
    token: str = "t",
    axes: str = "t, h",
    result: str = "",
) -> Workload:
    """The RMS norm of each head of a token, each column of which is turned with another one, ``turned``. ``table``: the
    column of the tables, and ``token`` their row. ``axes``: those of the rows of the result. ``result``: its last
    axes and its elements, where these are not its columns and those that are turned."""
    half, positions = columns // 2, "" if token == "t" else f"P: int32[{tokens}]\n"
    table = table or f"d % {half}"
    turning = f"A[t, h, d] * float32(C[{token}, {table}]) + {turned} * float32(N[{token}, {table}])"
    result = result or f"d < {columns}] = {dtype}({turning})"
    return parse_workload(
        f"X: {dtype}[{tokens}, {heads}, {columns}]\nG: {dtype}[{columns}]\n{positions}"
        f"C: {tables}[{tokens}, {half}]\nN: {tables}[{tokens}, {half}]\n"
        f"S[t, h] = sum over c < {columns} of float32(X[t, h, c]) * float32(X[t, h, c])\n"
        f"A[t, h, c] = float32(X[t, h, c]) / sqrt(S[t, h] / {columns} + 0.00001) * float32(G[c])\n"
        f"Y[{axes}, {result}"
    )


def halves(columns: int) -> str:
    half = columns // 2
    return f"select(d < {half}, -A[t, h, d + {half}], A[t, h, d - {half}])"


WRAPPED = "select(d < 64, -A[t, h, (d + 64) % 128], A[t, h, (d + 64) % 128])"
PAIRS = "select(d % 2 == 0, -A[t, h, d // 2 * 2 + 1 - d % 2], A[t, h, d // 2 * 2 + 1 - d % 2])"
STACKED = (
    "i < 64, j < 2] = float16(select(j < 1, A[t, h, i * 2] * C[t, i] - A[t, h, i * 2 + 1] * N[t, i], "
    "A[t, h, i * 2] * N[t, i] + A[t, h, i * 2 + 1] * C[t, i]))"
)
JOINED = (
    "d < 128] = float16(select(d < 64, A[t, h, d] * C[t, d] - A[t, h, d + 64] * N[t, d], "
    "A[t, h, d] * C[t, d - 64] + A[t, h, d - 64] * N[t, d - 64]))"
)
PLACED = "min(max(int64(P[t]), 0), 8)"
CASES = {
    "a wrapped row": rotary(WRAPPED),
    "halves": rotary(halves(128)),
    "bfloat16": rotary(halves(128), dtype="bfloat16", tables="bfloat16"),
    "96 columns": rotary(halves(96), 96),
    "halves of odd vectors": rotary(halves(72), 72),
    "pairs": rotary(PAIRS, table="d // 2"),
    "some columns stay": rotary("select(d < 32, -A[t, h, d + 32], select(d < 64, A[t, h, d - 32], 0))"),
    "pairs that are stacked": rotary("", result=STACKED),
    "pairs of heads first": rotary("", result=STACKED, axes="h < 4, t < 9"),
    "halves that are joined": rotary("", result=JOINED),
    "heads first": rotary(halves(128), axes="h < 4, t < 9"),
    "positions": rotary(halves(128), token=PLACED),
    "an odd row that is flipped": rotary("A[t, h, 74 - d]", 75, table="d // 3"),
    "a softmax that is shifted": parse_workload(
        "X: float32[5, 64]\nm[i] = max over k < 64 of X[i, k]\nt[i] = sum over k < 64 of exp(X[i, k] - m[i])\n"
        "Y[i, k < 64] = select(k > 0, exp(X[i, k - 1] - m[i]), 0) / t[i]"
    ),
    "an earlier row": parse_workload(
        "X: float32[5, 64]\nt[i] = sum over k < 64 of X[i, k]\n"
        "Y[i < 5, k < 64] = X[i, k] - select(i > 0, X[i - 1, k], 0) * t[i]"
    ),
    "fewer rows": parse_workload(
        "X: float32[5, 64]\nW: float32[3, 64]\nt[i] = sum over k < 64 of X[i, k]\n"
        "Y[i < 5, k < 64] = X[i, k] - select(i < 3, W[i, k], 0) * t[i]"
    ),
    "segments": parse_workload(
        "X: float32[5, 6, 64]\nt[i] = sum over j < 6, k < 64 of X[i, j, k]\n"
        "Y[i, j, k < 64] = X[i, j, (k + 32) % 64] * t[i] + X[i, 5 - j, k]"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_settings_compute_rows_that_are_read_at_other_columns(case: str) -> None:
    assert assert_agrees(CUDA_ROWWISE, CASES[case], 6, SMALL, policy=SpacePolicy(prune=False)) == 6


LARGE = rotary(WRAPPED, tokens=8192, heads=32)


def test_other_columns_are_loaded_in_whole_vectors_with_the_row() -> None:
    knobs = {"vector_width": 8, "threads_per_row": 16, "rows_per_cta": 16, "broadcast_preload": 1}
    schedule = legal_schedule_of(CUDA_ROWWISE, LARGE, row_storage="registers", **knobs)
    source = lowering_stages(LARGE, H200, schedule).source.text
    assert source.count("recast<uint4>(&X[") == 2  # without a hint that L1 need not keep them
    assert source.count("recast<uint4>(&G[") == 2
    assert source.count("recast<uint4>(&C[") == source.count("recast<uint4>(&N[") == 2
    (resources,) = build_kernel(CUDA_ROWWISE.lower(LARGE, H200, schedule), H200).resources.values()
    assert resources.registers <= 48 and resources.spill_bytes == 0


@pytest.mark.parametrize(("vector", "threads"), [(8, 8), (4, 8), (8, 2)])
def test_a_thread_that_has_both_halves_of_a_row_loads_it_once(vector: int, threads: int) -> None:
    workload = rotary(halves(128), tokens=8192, heads=32)
    knobs = {"vector_width": vector, "threads_per_row": threads, "broadcast_preload": 1}
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, row_storage="registers", **knobs)
    source = lowering_stages(workload, H200, schedule).source.text
    assert source.count("(&X[") - source.count("prefetch_l2<256>(&X[") == 1
    assert source.count("ld_global_no_allocate(recast") == 1
    assert_computes(CUDA_ROWWISE.lower(CASES["halves"], H200, schedule), CASES["halves"])


@pytest.mark.parametrize(("columns", "threads"), [(96, 2), (64, 4)])
def test_halves_of_other_lengths(columns: int, threads: int) -> None:
    workload = rotary(halves(columns), columns)
    knobs = {"vector_width": 8, "threads_per_row": threads}
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, row_storage="registers", **knobs)
    source = lowering_stages(workload, H200, schedule).source.text
    assert source.count("ld_global_no_allocate(recast") == 1
    assert_computes(CUDA_ROWWISE.lower(workload, H200, schedule), workload)


@pytest.mark.parametrize("result", ["", STACKED])
def test_the_other_one_of_a_pair_is_in_registers_already(result: str) -> None:
    workload = rotary(PAIRS, tokens=8192, heads=32, table="d // 2", result=result)
    schedule = legal_schedule_of(CUDA_ROWWISE, workload, vector_width=8, threads_per_row=16, row_storage="registers")
    source = lowering_stages(workload, H200, schedule).source.text
    assert source.count("(&X[") - source.count("prefetch_l2<256>(&X[") == 1


def test_what_a_branch_computes_of_results_alone_is_computed_once_for_the_row() -> None:
    schedule = legal_schedule_of(CUDA_ROWWISE, LARGE, vector_width=8, row_storage="registers")
    assert lowering_stages(LARGE, H200, schedule).source.text.count("= fast_reciprocal(") == 1


def test_one_kernel_of_rows_is_estimated_to_be_the_fastest() -> None:
    assert default_schedule(LARGE, H200).sketch == "cuda_rowwise"


def test_a_call_may_have_fewer_rows() -> None:
    workload = with_dynamic(rotary(halves(128)))
    assert check_dynamic("cuda_rowwise", SMALL, workload, [(1,), (4,), (9,)], 3) == 3
