"""Few long rows are reduced in two steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of, kernels
from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float16, float32
from tilewright.graph.graph import GraphBuilder, Value
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program

X = Value("x", TensorType((2, 128, 1024), float32))
Write = Callable[[GraphBuilder, Value], Any]


def _steps(b: GraphBuilder, x: Value, dim: int) -> Value:
    """The absolute differences of neighbours, which no kernel stores where parts end where dimensions do."""
    end = x.shape[dim]
    later, earlier = (b.node("slice", x, dim=dim, start=n, stop=end - 1 + n, step=1) for n in (1, 0))
    return b.node("abs", b.node("sub", later, earlier))


@pytest.mark.parametrize(
    ("write", "x", "expected"),
    [
        (lambda b, x: b.node("mean", b.node("square", x), dims=(0, 1, 2)), X, ["square mean", "mean"]),
        (lambda b, x: b.node("max", x, dims=(1, 2)), X, ["max", "max"]),
        (lambda b, x: b.node("sum", x, dims=(1,)), Value("x", TensorType((2, 1 << 17), float32)), ["sum", "sum"]),
        (
            lambda b, x: b.node("variance", x, dims=(1, 2), correction=1),
            X,
            ["variance mean", "mean sub square add sum mul"],
        ),
        (
            lambda b, x: b.node("layer_norm", x, dims=2, epsilon=1e-5),
            X,
            ["mean variance", "mean sub square add sum mul add rsqrt", "sub mul"],
        ),
        (lambda b, x: b.node("sum", x, dims=(1,)), Value("x", TensorType((2, 65537), float32)), ["sum"]),  # a prime
        (lambda b, x: b.node("sum", x, dims=(2,)), X, ["sum"]),
        (
            lambda b, x: b.node("sum", _steps(b, x, 2), dims=(0, 1, 2)),
            Value("x", TensorType((2, 256, 512), float32)),
            ["sub abs sum", "sum"],
        ),
        (
            lambda b, x: b.node("sum", _steps(b, x, 0), dims=(0,)),
            Value("x", TensorType(((1 << 17) + 1,), float32)),
            ["sub abs sum"],
        ),
    ],
    ids=["everything", "rows", "one dimension", "variance", "layer norm", "prime", "short", "steps", "steps of a row"],
)
def test_what_is_reduced_in_steps(write: Write, x: Value, expected: list[str]) -> None:
    assert kernels(graph_of(write, x)) == expected


def test_sums_of_parts_are_no_halves() -> None:
    """The sum of the parts is beyond float16, and their mean is not."""
    x = Value("x", TensorType((1 << 17,), float16))
    graph = graph_of(lambda b, x: b.node("mean", x, dims=(0,)), x)
    program = compile_program(graph, on_hopper, gpu=True)
    types = [program.graph.values[call.writes[0]].dtype for call in program.kernels]
    assert types == [float32, float16]
    data = {**arrays_for(graph), "x": np.full(1 << 17, 60000, np.float16)}
    np.testing.assert_allclose(results(program, data)[program.graph.outputs[0]], 60000, rtol=1e-3)
