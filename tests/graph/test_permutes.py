"""Products read what is stored in the order of memory; permutations move behind them or into their weights."""

import numpy as np
import pytest

from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes import simplify_graph
from tilewright.graph.passes.cleanup import drop_identities, drop_unused
from tilewright.graph.passes.permutes import join_rows, multiply_as_stored, sink_permutes
from tilewright.graph.passes.rewrite import integers_of
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference


def _value(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, float32))


def _check(before: Graph, after: Graph) -> None:
    data = arrays_for(before)
    old, new = graph_reference(before, data), graph_reference(check_graph(after), data)
    for a, b in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=1e-5, atol=1e-5)


def _ops(graph: Graph) -> list[str]:
    needed = drop_unused(graph)
    return [n.op for n in needed.nodes if n.name not in needed.fixed]


def _attention_output() -> Graph:
    """What torch's multi-head attention does behind its heads: rows in the order of the sequence, a projection with
    bias, and rows in the order of the batch again."""
    x, residual = _value("x", 4, 3, 5, 2), _value("r", 4, 5, 7)
    w, bias = _value("w", 6, 7), _value("v", 7)
    b = GraphBuilder(["x", "r", "w", "v"])
    rows = b.node("reshape", b.node("permute", x, order=(2, 0, 1, 3)), shape=(20, 6))
    y = b.node("add", b.node("matmul", rows, w), bias)
    y = b.node("permute", b.node("reshape", y, shape=(5, 4, 7)), order=(1, 0, 2))
    y = b.node("add", y, residual)
    return check_graph(Graph((x, residual), (w, bias), b.nodes, (y.name,)))


def test_rows_stay_in_the_order_of_memory_from_heads_to_residual() -> None:
    graph = _attention_output()
    after = simplify_graph(graph, gpu=True)
    _check(graph, after)
    orders = [integers_of(n, "order") for n in after.nodes if n.op == "permute" and n.name not in after.fixed]
    assert orders == [(0, 2, 1, 3)]


def test_columns_move_into_constant_weights() -> None:
    """Flattened pixels with channels last meet weights that are permuted once, not by each kernel that reads them."""
    x, w = _value("x", 4, 2, 3, 5), _value("w", 7, 30)
    b = GraphBuilder(["x", "w"])
    flat = b.node("reshape", b.node("permute", x, order=(0, 3, 1, 2)), shape=(4, 30))
    y = b.node("matmul", flat, b.node("permute", w, order=(1, 0)))
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    after = multiply_as_stored(graph)
    _check(graph, after)
    program = compile_program(graph, lambda _: True, gpu=True)
    assert [len(c.nodes) for c in program.kernels] == [1] and program.recipe.outputs
    free = Graph((x, w), (), graph.nodes, graph.outputs)
    assert multiply_as_stored(free) == free  # weights that change with each call stay as they are


def test_weights_by_rows_are_permuted_too() -> None:
    x, w = _value("x", 4, 3, 5), _value("w", 15, 7)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", b.node("reshape", b.node("permute", x, order=(0, 2, 1)), shape=(4, 15)), w)
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    after = multiply_as_stored(graph)
    _check(graph, after)
    assert _ops(drop_identities(after)) == ["reshape", "matmul"]


def test_rows_that_begin_amid_a_dimension_stay() -> None:
    x, w = _value("x", 6, 4), _value("w", 8, 5)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", b.node("reshape", b.node("permute", x, order=(1, 0)), shape=(3, 8)), w)
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    assert multiply_as_stored(graph) == graph


@pytest.mark.parametrize("shape", [(7,), (1, 7), (6, 1), (5, 6, 7)])
def test_what_is_no_matrix_for_all_of_a_batch_stays_expanded(shape: tuple[int, ...]) -> None:
    x, w = _value("x", 5, 4, 6), _value("w", *shape)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", x, b.node("expand", w, shape=(5, 6, 7)))
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    assert join_rows(graph) == graph


def test_a_batch_that_shares_its_right_operand_is_one_product() -> None:
    x, w = _value("x", 5, 4, 6), _value("w", 6, 7)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", x, b.node("expand", w, shape=(5, 6, 7)))
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    after = join_rows(graph)
    _check(graph, after)
    assert next(n for n in after.nodes if n.op == "matmul").result.shape == (20, 7)


@pytest.mark.parametrize(
    ("other", "moves"), [((7,), True), ((1, 1, 7), True), ((), True), ((5, 1, 1), False), ((5, 4, 7), False)]
)
def test_only_what_varies_along_the_last_dimension_lets_a_permutation_pass(other: tuple[int, ...], moves: bool) -> None:
    x, w, o = _value("x", 20, 6), _value("w", 6, 7), _value("o", *other)
    b = GraphBuilder(["x", "w", "o"])
    y = b.node("reshape", b.node("matmul", x, w), shape=(4, 5, 7))
    y = b.node("add", b.node("permute", y, order=(1, 0, 2)), o)
    graph = check_graph(Graph((x, o), (w,), b.nodes, (y.name,)))
    after = sink_permutes(graph)
    _check(graph, after)
    assert (_ops(after).index("add") < _ops(after).index("permute")) is moves


def test_pools_of_single_elements_are_dropped() -> None:
    x = _value("x", 2, 3, 7, 7)
    b = GraphBuilder(["x"])
    none = {"before": (0, 0), "behind": (0, 0), "dilation": (1, 1)}
    y = b.node("relu", b.node("average_pool", x, kernel=(1, 1), stride=(1, 1), **none))
    graph = check_graph(Graph((x,), (), b.nodes, (y.name,)))
    after = drop_identities(graph)
    _check(graph, after)
    assert _ops(after) == ["relu"]
