"""Products fed by copies of whole boxes: what they take, what they compute, what the compiler makes of them."""

from collections.abc import Callable

import pytest

from tests.schedule.sketches.tiles import assert_agrees, workload_of
from tilewright.schedule.sketches.cuda_skinny_streams import CUDA_SKINNY_STREAMS as SKETCH
from tilewright.te.workload import Workload

CASES: dict[str, Callable[[], Workload]] = {
    "epilogue": lambda: workload_of(
        "linear", rows=20, inputs=648, outputs=100, dtype="float16", activation="gelu_tanh", residual=True
    ),
    "n of no multiple": lambda: workload_of("linear", rows=17, inputs=520, outputs=77, dtype="bfloat16"),
    "all rows": lambda: workload_of("matmul", m=64, k=384, n=136, dtype="bfloat16", transpose_b=True),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_their_expression(case: str) -> None:
    assert assert_agrees(SKETCH, CASES[case]()) == 20
