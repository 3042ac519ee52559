"""Values that a thread holds from one pass over a row to the next: what is held, and that kernels compute the same."""

import pytest

from tests.schedule.gpu.tiles import H200, WHOLE, assert_agrees, legal_schedule_of, workload_of
from tilewright.ir.expr import Unary, UnaryOp, walk
from tilewright.ir.stmt import expressions, walk_statements
from tilewright.schedule.gpu.rowwise.held_values import held_values
from tilewright.schedule.gpu.rowwise.space import CUDA_ROWWISE as SKETCH
from tilewright.schedule.problems.rowwise import rowwise_problem
from tilewright.te.parse import parse_workload
from tilewright.te.workload import Workload


def _capped_softmax(rows: int, columns: int, dtype: str) -> Workload:
    return parse_workload(
        f"X: {dtype}[{rows}, {columns}]\nL[i, j] = 30 * tanh(float32(X[i, j]) / 30)\n"
        f"M[i] = max over j < {columns} of L[i, j]\nS[i] = sum over j < {columns} of exp(L[i, j] - M[i])\n"
        f"Y[i, j] = {dtype}(exp(L[i, j] - M[i]) / S[i])"
    )


HELD = {
    "a softmax with a soft cap": (_capped_softmax(5, 2048, "float16"), 2, 1),
    "the same with edges of rows": (_capped_softmax(7, 517, "float32"), 2, 1),
    "a norm behind a sigmoid": (
        parse_workload(
            "X: float32[6, 384]\nG[i, j] = X[i, j] / (1 + exp(-X[i, j]))\n"
            "S[i] = sum over j < 384 of G[i, j] * G[i, j]\nY[i, j] = G[i, j] / sqrt(S[i] / 384 + 0.00001)"
        ),
        1,
        1,
    ),
    "moments behind an error function": (
        parse_workload(
            "X: float16[6, 1024]\nG[i, j] = float32(X[i, j]) * 0.5 * (1 + erf(float32(X[i, j]) * 0.7071))\n"
            "M[i] = sum over j < 1024 of G[i, j]\n"
            "V[i] = sum over j < 1024 of (G[i, j] - M[i] / 1024) * (G[i, j] - M[i] / 1024)\n"
            "Y[i, j] = float16((G[i, j] - M[i] / 1024) / sqrt(V[i] / 1024 + 0.00001))"
        ),
        1,
        1,
    ),
    "two values at once": (
        parse_workload(
            "X: float32[6, 256]\nZ: float32[6, 256]\nA[i] = sum over j < 256 of tanh(X[i, j])\n"
            "B[i] = sum over j < 256 of tanh(Z[i, j]) - A[i] / 256\n"
            "Y[i, j] = tanh(X[i, j]) * A[i] + tanh(Z[i, j]) * B[i]"
        ),
        2,
        2,
    ),
}
"""Workloads, how many values are held, and how many registers these take for a column."""


@pytest.mark.parametrize("case", HELD)
def test_kernels_that_hold_values_compute_their_expression(case: str) -> None:
    workload, count, words = HELD[case]
    problem = rowwise_problem(workload)
    assert problem is not None
    found = held_values(problem)
    assert (len(found.values), found.most_words) == (count, words)
    assert assert_agrees(SKETCH, workload, 6, H200, WHOLE) == 6


@pytest.mark.parametrize(("threads", "times"), [(256, 1), (128, 3)])
def test_a_value_is_computed_once_where_registers_hold_it(threads: int, times: int) -> None:
    """There is room for 32 elements a thread."""
    workload = _capped_softmax(4, 8192, "float32")
    schedule = legal_schedule_of(SKETCH, workload, threads_per_row=threads, row_storage="registers", cluster_size=1)
    kernel = SKETCH.lower(workload, H200, schedule)
    computed = [e for s in walk_statements(kernel.body) for top in expressions(s) for e in walk(top)]
    assert sum(isinstance(e, Unary) and e.op is UnaryOp.TANH for e in computed) == times


def test_what_is_cheap_and_what_reads_neighbours_is_computed_again() -> None:
    """One exponential is hidden behind memory."""
    plain = rowwise_problem(workload_of("softmax", rows=4, columns=512, dtype="float32"))
    beside = rowwise_problem(
        parse_workload(
            "X: float32[4, 513]\nS[i] = sum over j < 512 of tanh(X[i, j + 1] - X[i, j])\n"
            "Y[i, j < 512] = tanh(X[i, j + 1] - X[i, j]) * S[i]"
        ),
        reads_elsewhere=True,
    )
    assert plain is not None and beside is not None
    assert held_values(plain).values == () and held_values(beside).values == ()
