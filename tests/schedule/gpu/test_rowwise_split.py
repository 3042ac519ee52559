"""Few long rows, reduced by two launches: values, what is taken, and that the prior prefers it where it should."""

import numpy as np
import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, schedule_of, workload_of
from tilewright.codegen.lowering import build, finish
from tilewright.ir.interpret import interpret
from tilewright.ir.rewrite import loads_of
from tilewright.ir.stmt import Launch, Store, walk_statements
from tilewright.schedule.gpu.rowwise.split import CUDA_ROWWISE_SPLIT as SKETCH
from tilewright.schedule.gpu.rowwise.split import MOST_ROWS
from tilewright.schedule.sketches import sketches_for
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload

SUMS = {
    "everything": workload_of("reduce", shape=[13, 37], axes=[0, 1]),
    "rows, 16 bits": workload_of("reduce", shape=[3, 20, 65], axes=[1, 2], kind="mean", dtype="float16"),
    "four axes": workload_of("reduce", shape=[5, 4, 3, 70], axes=[1, 2, 3], kind="max", dtype="int8"),
    "an axis of one": workload_of("reduce", shape=[1, 40, 257], axes=[0, 1, 2], dtype="bfloat16"),
    "products": workload_of("reduce", shape=[7, 33], axes=[0, 1], kind="prod", dtype="int32"),
    "one axis": workload_of("reduce", shape=[4200], axes=[0]),
    "one axis of rows, odd parts": workload_of("reduce", shape=[3, 7 * 601], axes=[1], dtype="float16"),
    "one axis without a divisor": workload_of("reduce", shape=[2, 20011], axes=[1], dtype="float16"),
    "products without a divisor": workload_of("reduce", shape=[20011], axes=[0], kind="prod", dtype="int32"),
    "greatest without a divisor": workload_of("reduce", shape=[20011], axes=[0], kind="max"),
    "positions": workload_of("reduce", shape=[2, 20480], axes=[1], kind="argmax", dtype="int8"),
    "positions without a divisor": workload_of("reduce", shape=[3, 20011], axes=[1], kind="argmin", dtype="float16"),
    "by position": parse_workload(
        "X: float32[3000]\nY[] = sum over k < 3000 of X[k] * select(k % 7 == 3, float32(k), -1)"
    ),
    "two sums of two operands": parse_workload(
        "P: float32[2, 20011]\nT: float32[2, 20011]\nA[b] = sum over k < 20011 of P[b, k] * T[b, k]\n"
        "B[b] = sum over k < 20011 of P[b, k] + T[b, k]\nD[b] = 1 - 2 * A[b] / (B[b] + 1)"
    ),
    "differences of neighbours": parse_workload("X: float32[20001]\nY[] = sum over i < 20000 of abs(X[i + 1] - X[i])"),
    "differences of neighbours without a divisor": parse_workload(
        "X: float16[2, 20014]\nY[b] = max over i < 20011 of abs(float32(X[b, i + 3]) - float32(X[b, i]))"
    ),
    "differences of neighbours in all rows": parse_workload(
        "X: float32[8, 2049]\nY[] = sum over b < 8, i < 2048 of abs(X[b, i + 1] - X[b, i])"
    ),
    "neighbours that may not be there": parse_workload(
        "X: float32[20480]\nY[] = sum over i < 20480 of X[i] * select(i >= 1, X[i - 1], 0.0) "
        "+ select(i + 2 < 20480, X[i + 2], 1.0)"
    ),
    "two operands, names of our own": parse_workload(
        "partial: float32[3, 20, 65]\njoin_parts_t: float32[3, 20, 65]\n"
        "total[i] = sum over j < 20, k < 65 of partial[i, j, k] * join_parts_t[i, j, k]\nY[i] = sqrt(abs(total[i]))"
    ),
}


@pytest.mark.parametrize("case", SUMS)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, SUMS[case], 5, H200, WHOLE) == 5


def test_reductions_that_read_no_other_share_the_launch_that_reads_rows() -> None:
    kernel = SKETCH.lower(
        SUMS["two sums of two operands"], H200, SKETCH.space(SUMS["two sums of two operands"], H200).schedule(0)
    )
    assert sum(isinstance(s, Launch) for s in walk_statements(kernel.body)) == 2


NEEDED_AGAIN = {
    "softmax": workload_of("softmax", rows=2, columns=131072, dtype="float16"),
    "softmax, odd parts": workload_of("softmax", rows=1, columns=7 * 16384 + 7, dtype="float32"),
    "two axes, a tensor that is called t": parse_workload(
        "X: float32[2, 40, 2000]\nt[i] = sum over j < 40, k < 2000 of X[i, j, k]\n"
        "Y[i, j, k] = X[i, j, k] / t[i] + float32(j)"
    ),
    "by position": parse_workload(
        "X: float32[2, 80000]\nt[i] = sum over k < 80000 of X[i, k]\n"
        "Y[i, k < 80000] = select(k % 3 == 0, X[i, k] - t[i], float32(k))"
    ),
    "two reductions, outputs of rows": parse_workload(
        "X: float32[2, 80000]\nB: float32[2]\nt[i] = sum over k < 80000 of X[i, k]\n"
        "s[i] = sum over k < 80000 of (X[i, k] - t[i] / 80000) * (X[i, k] - t[i] / 80000)\n"
        "Y[i, k < 80000] = (X[i, k] - t[i] / 80000) * rsqrt(s[i] / 80000 + 0.00001) + B[i]\n"
        "V[i] = s[i] / 80000 + B[i]"
    ),
}


def test_outputs_that_read_no_reduction_are_written_where_rows_are_read_first() -> None:
    workload = parse_workload(
        "A: float32[2, 80000]\nB: float32[2, 80000]\nt[i] = sum over k < 80000 of A[i, k] * B[i, k]   # output\n"
        "Z[i, k] = A[i, k] - B[i, k]   # output\nY[i, k] = A[i, k] * t[i]   # output"
    )
    assert assert_agrees(SKETCH, workload, 3, H200, WHOLE) == 3
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200)
    launches = [s for s in walk_statements(kernel.body) if isinstance(s, Launch)]
    stored = [{s.buffer.name for s in walk_statements(launch) if isinstance(s, Store)} for launch in launches]
    assert [sorted(names & {"Z", "Y", "t"}) for names in stored] == [["Z"], ["t"], ["Y"]]


@pytest.mark.parametrize("case", NEEDED_AGAIN)
def test_rows_that_are_needed_again(case: str) -> None:
    """Two launches for reductions, or for each of them, and one for the elements."""
    assert assert_agrees(SKETCH, NEEDED_AGAIN[case], 3, H200, WHOLE) == 3


LOG_SUM = """X: float32[3, 20011]
top[i] = max over k < 20011 of X[i, k]
total[i] = sum over k < 20011 of exp(X[i, k] - top[i])
Y[i] = log(total[i]) + top[i]"""


def test_a_sum_of_exponentials_is_joined_from_its_parts() -> None:
    """In two launches, and as exact as in one where parts, or a whole row, have nothing but -inf."""
    workload = parse_workload(LOG_SUM)
    assert assert_agrees(SKETCH, workload, 3, H200, WHOLE) == 3
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200)
    assert sum(isinstance(s, Launch) for s in walk_statements(kernel.body)) == 2
    x = np.full((3, 20011), -np.inf, np.float32)
    x[0, 17000:17003] = (-3e38, 5, 5)
    x[2, 8] = np.nan
    got = np.asarray(interpret(kernel, {"X": x})["Y"])
    np.testing.assert_allclose(got, [5 + np.log(2), np.nan, np.nan], 1e-6)


def test_squares_of_deviations_are_joined_from_those_of_parts() -> None:
    """They keep their digits where the mean is far from 0."""
    workload = parse_workload(
        "X: float32[2, 40960]\nt[i] = sum over k < 40960 of X[i, k]\n"
        "S[i] = sum over k < 40960 of (X[i, k] - t[i] / 40960) * (X[i, k] - t[i] / 40960)"
    )
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload)), H200)
    assert sum(isinstance(s, Launch) for s in walk_statements(kernel.body)) == 2
    x = np.float32(1000) + np.random.default_rng(1).random((2, 40960), np.float32)
    x[:, 30000:] += 2
    wanted = x.astype(np.float64).var(axis=1) * 40960
    np.testing.assert_allclose(np.asarray(interpret(kernel, {"X": x})["S"]), wanted, 1e-4)


def test_rows_beyond_a_cluster_are_read_by_the_whole_device() -> None:
    """The prior ranks parts first where one cluster cannot keep a row, and 32 MB of rows need not come from memory
    again. What it ranks first compiles."""
    workload = workload_of("softmax", rows=2, columns=1 << 22, dtype="float32")
    spaces = {sketch.name: sketch.space(workload, H200) for sketch in sketches_for(workload, H200)}
    best = {name: min(space.prior_seconds) for name, space in spaces.items() if space.prior_seconds is not None}
    assert best[SKETCH.name] < 0.4 * best["cuda_rowwise"]
    space = spaces[SKETCH.name]
    assert space.prior_seconds is not None
    binary = build(workload, H200, space.schedule(int(space.prior_seconds.argmin())))
    launches = [config.function for config in binary.launches]
    assert launches == ["tw_kernel", "tw_join_parts", "tw_write_parts"]
    assert all(r.spill_bytes == 0 for r in binary.resources.values())


REFUSED = {
    "a short row without a fitting divisor": "X: float32[3, 1000]\nY[i] = sum over k < 1000 of X[i, k]",
    "two positions": "X: float32[5000]\nY[] = argmax over k < 5000 of X[k]\nZ[] = argmin over k < 5000 of X[k]",
    "short rows are needed again": "X: float32[9, 40]\nt[i] = sum over k < 40 of X[i, k]\nY[i, k] = X[i, k] - t[i]",
    "something is broadcast": "X: float32[2, 90000]\nG: float32[90000]\nt[i] = sum over k < 90000 of X[i, k] * G[k]",
    "columns": "X: float32[30, 40, 50]\nY[k] = sum over i < 30, j < 40 of X[i, j, k]",
    "many rows": f"X: float32[{MOST_ROWS + 1}, 4, 5]\nY[i] = sum over j < 4, k < 5 of X[i, j, k]",
}


def test_elements_are_loaded_by_vectors() -> None:
    """A part of a row begins anywhere in memory. Its elements come from registers, into which whole vectors went."""
    workload = workload_of("reduce", shape=[2, 20011], axes=[1])
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, row_storage="registers")), H200)
    loads = [load for load in loads_of(kernel.body) if load.buffer.name == "X"]
    assert sorted({load.lanes for load in loads}) == [1, 4]
    assert sum(load.lanes == 1 for load in loads) == 1, "the edge columns alone are loaded by elements"


def test_equal_values_have_the_first_position() -> None:
    """Those in two parts, and those in the columns that the last part shares with the one before."""
    workload = workload_of("reduce", shape=[1, 20011], axes=[1], kind="argmax")
    kernel = finish(SKETCH.lower(workload, H200, schedule_of(SKETCH, workload, threads_per_row=256)), H200)
    for places in ([5, 19000], [12000, 12001, 20010], [20010], []):
        x = np.full((1, 20011), -np.inf, np.float32)
        x[0, places] = 1
        assert interpret(kernel, {"X": x})["Y"].tolist() == [min(places, default=0)]


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_left_to_other_kernels(case: str) -> None:
    assert not SKETCH.matches(parse_workload(REFUSED[case]), H200)


@pytest.mark.parametrize(
    "workload",
    [
        workload_of("reduce", shape=[8192, 8192], axes=[0, 1]),
        workload_of("reduce", shape=[8191, 8191], axes=[0, 1], kind="max", dtype="float16"),
        workload_of("reduce", shape=[1 << 26], axes=[0]),
        workload_of("reduce", shape=[33554393], axes=[0]),
        workload_of("reduce", shape=[4, 64, 1021, 57], axes=[1, 2, 3], kind="mean", dtype="bfloat16"),
    ],
    ids=["everything", "odd", "one axis", "no divisor", "rows"],
)
def test_the_prior_shares_long_rows_out(workload: Workload) -> None:
    """One cluster cannot read a long row as fast as the device. The kernel that the prior ranks first compiles."""
    best = {}
    for sketch in sketches_for(workload, H200):
        space = sketch.space(workload, H200)
        assert space.prior_seconds is not None
        row = int(space.prior_seconds.argmin())
        best[sketch.name] = (float(space.prior_seconds[row]), space.schedule(row))
    assert best[SKETCH.name][0] < 0.6 * best["cuda_rowwise"][0]
    binary = build(workload, H200, best[SKETCH.name][1])
    assert [config.function for config in binary.launches] == ["tw_kernel", "tw_join_parts"]


def test_what_a_vector_has_of_its_neighbours_is_not_loaded_again() -> None:
    """Of the four elements after those of a vector, a thread loads one behind it."""
    workload = SUMS["differences of neighbours"]
    kernel = finish(SKETCH.lower(workload, H200, SKETCH.space(workload, H200).schedule(0)), H200)
    first = next(s for s in walk_statements(kernel.body) if isinstance(s, Launch))
    read = [load for s in walk_statements(first) if isinstance(s, Store) for load in loads_of(s.value)]
    assert sorted(load.lanes for load in read if load.buffer == workload.inputs[0]) == [1, 4]
