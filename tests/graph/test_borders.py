"""Borders of convolutions and pools as kernels see them."""

import pytest

from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of
from tilewright.core.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.graph import Value
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.schedule.problems.window import reduce_window_of


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32])
def test_a_border_is_the_mask_of_one_load(dtype: DType) -> None:
    """Kernels of windows load what is stored under one mask. A conversion between the two hid it from them."""
    x = Value("x", TensorType((2, 9, 9, 16), dtype))
    ones = (1, 1, 1)
    window = {"kernel": (3, 3, 1), "stride": ones, "before": (1, 1, 0), "behind": (1, 1, 0), "dilation": ones}
    graph = graph_of(lambda b, x: b.node("max_pool", x, **window), x)
    (call,) = compile_program(graph, on_hopper, gpu=True).kernels
    problem = reduce_window_of(call.workload)
    assert problem is not None
    (load,) = problem.sliding_loads
    assert load.mask is not None and load.other is not None and load.other.dtype == dtype
