"""Every pass keeps what a graph computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.random_graphs import arrays_for, graphs, residual_block
from tilewright.core.dtypes import float16, float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes import FOR_GPUS, simplify_graph
from tilewright.graph.passes.batch_norm import fold_batch_norm
from tilewright.graph.passes.cleanup import drop_identities, drop_unused, join_equal, repeat_casts
from tilewright.graph.passes.norms import find_layer_norms, find_rms_norms, find_softmax
from tilewright.graph.passes.reshapes import sink_reshapes, sink_through_norms
from tilewright.graph.reference import graph_reference


def check_equal(before: Graph, after: Graph, tolerance: float = 0.0) -> None:
    data = arrays_for(before)
    data |= {"v": np.abs(data["v"])} if "v" in data else {}
    old, new = graph_reference(before, data), graph_reference(check_graph(after), data)
    for a, b in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("change", [*dict.fromkeys(FOR_GPUS), simplify_graph])
@settings(max_examples=40, deadline=None)
@given(graph=graphs())
def test_a_pass_keeps_the_values(change: Callable[[Graph], Graph], graph: Graph) -> None:
    check_equal(graph, change(graph), 1e-12)


def test_batch_norm_becomes_part_of_the_convolution() -> None:
    graph = residual_block()
    folded = simplify_graph(graph)
    assert "batch_norm" not in [n.op for n in folded.nodes]
    first = next(n for n in folded.nodes if n.op == "convolution" and len(n.operands) == 3)
    assert set(first.operands[1:]) <= folded.fixed
    check_equal(graph, folded, 1e-5)


def test_batch_norm_stays_where_its_statistics_are_computed() -> None:
    x = Value("x", TensorType((2, 3, 4), float32))
    w = Value("w", TensorType((3,), float32))
    b = GraphBuilder(["x", "w"])
    mean = b.node("mean", x, dims=(0, 2))
    y = b.node("batch_norm", x, w, w, mean, b.node("square", mean))
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    assert fold_batch_norm(graph) == graph


@pytest.mark.parametrize("op", ["gather", "gather_elements"])
@pytest.mark.parametrize("before", ["reshape", "permute"])
@pytest.mark.parametrize("change", [*dict.fromkeys(FOR_GPUS), simplify_graph])
def test_what_is_taken_at_places_is_taken_along_its_dimension(
    change: Callable[[Graph], Graph], before: str, op: str
) -> None:
    """A gather is pointwise in kernels, but reshapes and permutations do not move behind it."""
    x = Value("x", TensorType((4, 4, 6), float32))
    b = GraphBuilder(["x"])
    y = b.node("softmax", x, dim=2)
    y = b.node("reshape", y, shape=(16, 6)) if before == "reshape" else b.node("permute", y, order=(1, 0, 2))
    places = b.node("range", count=y.shape[0], start=y.shape[0] - 1, step=-1, dtype="int64")
    if op == "gather_elements":
        column = b.node("reshape", places, shape=(y.shape[0], *[1] * (len(y.shape) - 1)))
        places = b.node("expand", column, shape=y.shape)
    y = b.node(op, y, places, dim=0)
    graph = check_graph(Graph((x,), (), b.nodes, (y.name,)))
    check_equal(graph, change(graph), 1e-12)


def test_elements_of_a_batch_norm_are_picked_behind_it() -> None:
    x, w = Value("x", TensorType((2, 8, 6), float32)), Value("w", TensorType((8,), float32))
    b = GraphBuilder(["x", "w"])
    mean = b.node("mean", x, dims=(0, 2))
    y = b.node("batch_norm", x, w, w, mean, b.node("square", mean))
    place = b.node("expand", b.node("full", shape=(), value=5, dtype="int64"), shape=(2, 1, 6))
    y = b.node("gather_elements", y, place, dim=1)
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))
    check_equal(graph, simplify_graph(graph), 1e-12)


def small(*steps: tuple[str, dict[str, Any]]) -> Graph:
    x = Value("x", TensorType((2, 3), float32))
    b = GraphBuilder(["x"])
    y = x
    for op, attributes in steps:
        y = b.node(op, y, **attributes)
    return check_graph(Graph((x,), (), b.nodes, (y.name,)))


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def test_identities_go_and_views_in_a_row_become_one() -> None:
    turned = ("permute", {"order": (1, 0)})
    graph = small(("identity", {}), ("reshape", {"shape": (3, 2)}), ("reshape", {"shape": (6,)}), ("relu", {}))
    assert ops(drop_unused(drop_identities(graph))) == ["reshape", "relu"]
    assert ops(drop_unused(drop_identities(small(turned, turned, ("relu", {}))))) == ["relu"]
    assert drop_identities(small(("cast", {"dtype": "float32"}))).outputs == ("x",)


def test_equal_nodes_are_computed_once() -> None:
    x = Value("x", TensorType((2, 3), float32))
    b = GraphBuilder(["x"])
    y = b.node("add", b.node("relu", x), b.node("relu", x))
    graph = Graph((x,), (), b.nodes, (y.name,))
    assert ops(drop_unused(join_equal(graph))) == ["relu", "add"]


def test_a_reshape_moves_behind_what_follows_a_product() -> None:
    x, w, c = (Value(n, TensorType(s, float32)) for n, s in (("x", (6, 4)), ("w", (4, 5)), ("c", (5,))))
    b = GraphBuilder(["x", "w", "c"])
    y = b.node("reshape", b.node("matmul", x, w), shape=(2, 3, 5))
    out = b.node("gelu", b.node("add", y, c))
    graph = check_graph(Graph((x,), (w, c), b.nodes, (out.name,)))
    moved = drop_unused(drop_identities(sink_reshapes(graph)))
    assert ops(moved) == ["matmul", "add", "gelu", "reshape"]
    check_equal(graph, moved, 1e-12)


def test_every_reader_of_a_wider_cast_has_its_own() -> None:
    x = Value("x", TensorType((2, 3), float16))
    b = GraphBuilder(["x"])
    wide = b.node("cast", x, dtype="float32")
    y = b.node("add", b.node("relu", wide), b.node("square", wide))
    graph = check_graph(Graph((x,), (), b.nodes, (y.name,)))
    repeated = drop_unused(repeat_casts(graph))
    assert ops(repeated) == ["cast", "relu", "cast", "square", "add"]
    check_equal(graph, repeated)


def test_a_norm_that_is_written_out_is_found_and_takes_the_rows_that_there_are() -> None:
    x, w = Value("x", TensorType((6, 4), float32)), Value("w", TensorType((4, 4), float32))
    b = GraphBuilder(["x", "w"])
    rows = b.node("reshape", b.node("matmul", x, w), shape=(2, 3, 4))
    small = b.node("full", shape=(), value=0.5, dtype="float32")
    factors = []
    for squares, dims in ((b.node("square", rows), (2,)), (b.node("mul", rows, rows), (1, 2)), (rows, (2,))):
        factors.append(
            b.node("rsqrt", b.node("add", small, b.node("abs", b.node("mean", squares, dims=dims, keep=True))))
        )
        factors.append(b.node("rsqrt", b.node("add", small, b.node("mean", squares, dims=dims, keep=True))))
    ys = [b.node("mul", factor, rows) for factor in factors[:-1]]
    graph = check_graph(Graph((x,), (w,), b.nodes, tuple(y.name for y in ys)))
    found = drop_unused(sink_through_norms(find_rms_norms(graph)))
    norms = [n for n in found.nodes if n.op == "rms_norm"]
    assert [(n.attributes["dims"], n.result.shape) for n in norms] == [(1, (6, 4)), (2, (2, 3, 4))]
    check_equal(graph, found, 1e-12)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("weight_first", [False, True])
def test_layer_norms_and_softmax_that_are_written_out_are_found(fast: bool, weight_first: bool) -> None:
    """With the variance of either form, and weights before or behind the product."""
    x, w = Value("x", TensorType((5, 6), float32)), Value("w", TensorType((6,), float32))
    b = GraphBuilder(["x", "w"])

    def number(value: float) -> Value:
        return b.node("full", shape=(), value=value, dtype="float32")

    mean = b.node("mean", x, dims=(1,), keep=True)
    centred = b.node("sub", x, mean)
    if fast:
        square = b.node("mean", b.node("square", x), dims=(1,), keep=True)
        variance = b.node("maximum", number(0.0), b.node("sub", square, b.node("square", mean)))
    else:
        variance = b.node("mean", b.node("mul", centred, centred), dims=(1,), keep=True)
    inverse = b.node("rsqrt", b.node("add", variance, number(1e-3)))
    if weight_first:
        y = b.node("mul", centred, b.node("mul", inverse, w))
    else:
        y = b.node("mul", b.node("mul", inverse, centred), w)
    power = b.node("exp", b.node("sub", y, b.node("max", y, dims=(1,), keep=True)))
    z = b.node("div", power, b.node("sum", power, dims=(1,), keep=True))
    graph = check_graph(Graph((x,), (w,), b.nodes, (z.name,)))
    found = drop_unused(find_softmax(find_layer_norms(graph)))
    assert [n.op for n in found.nodes] == ["layer_norm", "mul", "softmax"]
    check_equal(graph, found, 1e-9)


def test_what_is_only_like_a_norm_or_a_softmax_stays() -> None:
    x = Value("x", TensorType((5, 6), float32))
    b = GraphBuilder(["x"])
    mean = b.node("mean", x, dims=(0,), keep=True)  # not of the last dimension
    square = b.node("mean", b.node("square", b.node("sub", x, mean)), dims=(0,), keep=True)
    epsilon = b.node("full", shape=(), value=1e-3, dtype="float32")
    y = b.node("mul", b.node("sub", x, mean), b.node("rsqrt", b.node("add", square, epsilon)))
    power = b.node("exp", b.node("sub", x, b.node("max", x, dims=(0,), keep=True)))
    z = b.node("div", power, b.node("sum", power, dims=(1,), keep=True))  # of another dimension
    graph = check_graph(Graph((x,), (), b.nodes, (y.name, z.name)))
    assert find_softmax(find_layer_norms(graph)) == graph
