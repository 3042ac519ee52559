"""Products with diagonal matrices have no sums."""

import numpy as np
import pytest

from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes.diagonals import multiply_by_diagonals
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference


def product(left: bool, *, count: int = 6, start: int = 0, beside: float = 0.0) -> Graph:
    """The product of a matrix of 6 x 6, whose diagonal has ``count`` different elements, and another matrix."""
    d, x = (Value(name, TensorType(shape, float32)) for name, shape in (("d", (1, count)), ("x", (6, 6))))
    b = GraphBuilder(["d", "x"])
    rows = b.node("reshape", b.node("range", count=6, dtype="int64"), shape=(6, 1))
    mask = b.node("eq", b.node("range", count=6, start=start, dtype="int64"), rows)
    matrix = b.node("where", mask, d, b.node("full", shape=(), value=beside, dtype="float32"))
    y = b.node("matmul", *((matrix, x) if left else (x, matrix)))
    return check_graph(Graph((d, x), (), b.nodes, (y.name,)))


@pytest.mark.parametrize("count", (1, 6))
@pytest.mark.parametrize("left", (True, False))
def test_a_product_with_a_diagonal_matrix_is_one_pointwise_kernel(left: bool, count: int) -> None:
    graph = product(left, count=count)
    after = check_graph(multiply_by_diagonals(graph))
    data = arrays_for(graph)
    np.testing.assert_array_equal(
        graph_reference(after, data)[after.outputs[0]], graph_reference(graph, data)[graph.outputs[0]]
    )
    (call,) = compile_program(graph, lambda workload: True, gpu=True).kernels
    assert [after.producers[n].op for n in after.outputs] == ["mul"] and len(call.workload.stages) == 1


@pytest.mark.parametrize("other", ({"start": 1}, {"beside": 1.0}))
def test_other_matrices_stay(other: dict[str, float]) -> None:
    graph = product(True, **other)  # type: ignore[arg-type]
    assert multiply_by_diagonals(graph).nodes == graph.nodes
