"""Column-wise kernels that also write an element for each element of their input, such as norms over channels."""

import pytest

from tilewright.core.target import Target
from tilewright.ir.stmt import Launch, Store, walk_statements
from tilewright.schedule.gpu.columnwise.space import CUDA_COLUMNWISE
from tilewright.te.parse import parse_workload
from tilewright.tests.schedule.gpu.tiles import legal_schedule_of
from tilewright.tests.sketch_agreement import check_schedules

SMALL = Target("cuda", "sm_90a", threads=4, vector_bytes=16)

TEXTS = {
    "channels of images": (
        "X: float32[2, 12, 5, 16]\nt[n < 2, y < 5, x < 16] = sum over c < 12 of X[n, c, y, x] * X[n, c, y, x]\n"
        "Y[a < 2, d < 12, e < 5, f < 16] = X[a, d, e, f] / sqrt(t[a, e, f] * 0.083 + 0.00001)"
    ),
    "columns and rows that are no whole tiles": (
        "X: float32[37, 151]\nt[j < 151] = max over k < 37 of X[k, j]\nY[a < 37, b < 151] = X[a, b] - t[b]"
    ),
    "weights of rows and of columns, and the sums": (
        "X: float32[3, 10, 64]\nW: float32[10]\nB: float32[64]\n"
        "t[i < 3, j < 64] = sum over k < 10 of X[i, k, j] * B[j]    # output\n"
        "Y[a < 3, b < 10, c < 64] = (X[a, b, c] - t[a, c]) * W[b] + B[c]    # output"
    ),
    "two inputs, 16-bit outputs": (
        "X: float16[9, 160]\nZ: float16[9, 160]\n"
        "t[j < 160] = sum over k < 9 of float32(X[k, j]) * float32(Z[k, j])\n"
        "Y[a < 9, b < 160] = float16(float32(X[a, b]) * t[b] + float32(Z[a, b]))"
    ),
    "elements that read no sum, and such that do": (
        "X: float32[10, 144]\nD: float32[10, 144]\nG[k, j] = select(X[k, j] > 0, D[k, j], 0.0)    # output\n"
        "t[j] = sum over k < 10 of G[k, j]    # output\nY[k, j] = G[k, j] - t[j]    # output"
    ),
    "an input that no sum reads": (
        "X: float32[8, 136]\nR: float32[8, 136]\nt[j < 136] = sum over k < 8 of abs(X[k, j])\n"
        "Y[a < 8, b < 136] = X[a, b] / (t[b] + 1) + R[a, b]"
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_elements_are_computed_from_what_was_reduced(name: str) -> None:
    assert check_schedules("cuda_columnwise", SMALL, parse_workload(TEXTS[name]), 0, 12) >= 4


def test_long_or_few_columns_are_left_to_two_kernels() -> None:
    """Their rows would be read from memory again, or most multiprocessors would idle."""
    text = "X: float32[{0}, {1}]\nt[j < {1}] = sum over k < {0} of X[k, j]\nY[a < {0}, b < {1}] = X[a, b] - t[b]"
    assert not CUDA_COLUMNWISE.matches(parse_workload(text.format(1024, 256)), SMALL)
    assert not CUDA_COLUMNWISE.matches(parse_workload(text.format(16, 64)), SMALL)
    assert CUDA_COLUMNWISE.matches(parse_workload(text.format(16, 256)), SMALL)


def test_elements_that_read_no_sum_are_written_where_rows_are_read() -> None:
    """As the gradients of an activation and of a bias: however many rows there are, and whoever shares them."""
    workload = parse_workload(
        "X: float16[1500, 72]\nD: float16[1500, 72]\n"
        "G[k, j] = select(X[k, j] > float16(0), D[k, j], float16(0))    # output\n"
        "t[j] = sum over k < 1500 of float32(G[k, j])    # output"
    )
    assert check_schedules("cuda_columnwise", SMALL, workload, 0, 8) == 8
    schedule = legal_schedule_of(CUDA_COLUMNWISE, workload, SMALL, splits=4, combine="second_launch")
    kernel = CUDA_COLUMNWISE.lower(workload, SMALL, schedule)
    stored = [
        {s.buffer.name for s in walk_statements(launch) if isinstance(s, Store)} & {"G", "t"}
        for launch in walk_statements(kernel.body)
        if isinstance(launch, Launch)
    ]
    assert stored == [{"G"}, {"t"}]
