"""Elements that are picked, losses over classes, and kernels that go on with the rows of another."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of, kernels
from tilewright.core.dtypes import float32, int64
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes.log_softmax import pick_before_log_softmax, pick_first
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference

LOGITS, PLACES = Value("x", TensorType((6, 40), float32)), Value("t", TensorType((6, 1), int64))
ROWS = Value("x", TensorType((64, 1024), float32))


def loss(write: Callable[[GraphBuilder, Value, Value], tuple[Value, ...]]) -> Graph:
    """A graph of logits [6, 40], a target for each row, and a weight for each class."""
    weight = Value("w", TensorType((40,), float32))
    b = GraphBuilder(["x", "t", "w"])
    outputs = write(b, b.node("log_softmax", LOGITS, dim=1), weight)
    return check_graph(Graph((LOGITS, PLACES), (weight,), b.nodes, tuple(v.name for v in outputs)))


def picked(b: GraphBuilder, y: Value) -> Value:
    return b.node("gather_elements", y, PLACES, dim=1)


LOSSES: dict[str, Callable[[GraphBuilder, Value, Value], tuple[Value, ...]]] = {
    "plain": lambda b, y, w: (b.node("mean", picked(b, y), dims=(0, 1)),),
    "weighted": lambda b, y, w: (b.node("sum", picked(b, b.node("mul", y, w)), dims=(0, 1)),),
    "smoothed": lambda b, y, w: (b.node("mean", picked(b, y), dims=(0, 1)), b.node("sum", b.node("neg", y), dims=(1,))),
    "whole": lambda b, y, w: (y, picked(b, y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_elements_are_picked_before_what_is_done_with_all(name: str) -> None:
    graph = loss(LOSSES[name])
    draw = np.random.default_rng(0)
    data: dict[str, np.ndarray] = {
        "x": draw.uniform(-50, 50, (6, 40)).astype(np.float32), "t": draw.integers(-40, 40, (6, 1)),
        "w": draw.random(40).astype(np.float32),
    }  # fmt: skip
    data["x"][1, 3] = -np.inf
    rewritten = check_graph(pick_before_log_softmax(pick_first(graph)))
    before, after = graph_reference(graph, data), graph_reference(rewritten, data)
    for a, b in zip(graph.outputs, rewritten.outputs, strict=True):
        np.testing.assert_allclose(after[b], before[a], rtol=1e-9)
    assert any(n.op == "log_softmax" for n in rewritten.nodes) == (name == "whole")
    program = compile_program(graph, on_hopper, gpu=True)
    written = sum(program.graph.values[name].elements for call in program.kernels for name in call.writes)
    assert written < LOGITS.elements or name == "whole"


def test_rows_and_what_they_are_divided_by_are_one_kernel() -> None:
    def normal(b: GraphBuilder, x: Value) -> Value:
        size = b.node("sqrt", b.node("sum", b.node("square", x), dims=(1,), keep=True))
        return b.node("div", x, size)

    assert kernels(graph_of(normal, ROWS)) == ["square sum sqrt div"]


def test_sums_over_two_softmaxes_are_one_kernel() -> None:
    def divergence(b: GraphBuilder, x: Value) -> Value:
        p, q = b.node("softmax", x, dim=1), b.node("log_softmax", b.node("neg", x), dim=1)
        return b.node("sum", b.node("mul", p, b.node("sub", b.node("log", p), q)), dims=(1,))

    (only,) = kernels(graph_of(divergence, ROWS))
    assert "softmax" in only and "log_softmax" in only and only.endswith("sum")


def test_statistics_of_a_grouped_convolution_read_it_with_one_dimension_of_channels() -> None:
    x, w = Value("x", TensorType((4, 64, 16, 16), float32)), Value("w", TensorType((64, 1, 3, 3), float32))
    b = GraphBuilder(["x", "w"])
    same = (1, 1)
    y = b.node("convolution", x, w, stride=same, before=same, behind=same, dilation=same, groups=64)
    mean, variance = (b.node(op, y, dims=(0, 2, 3)) for op in ("mean", "variance"))
    result = b.node("relu", y)
    graph = check_graph(Graph((x,), (w,), b.nodes, (mean.name, variance.name, result.name)))
    program = compile_program(graph, on_hopper, gpu=True)
    found = [" ".join(program.graph.producers[n].op for n in call.nodes) for call in program.kernels]
    assert sum("sub square" in text for text in found) == 1
    assert next(text for text in found if "sub square" in text).startswith("sub square sum")


def test_a_product_of_zeros_is_compiled() -> None:
    """As in the first step of a recurrent cell, whose state is zeros."""
    w = Value("w", TensorType((4, 8), float32))
    b = GraphBuilder(["w"])
    y = b.node("matmul", b.node("full", shape=(2, 4), value=0.0, dtype="float32"), w)
    graph = check_graph(Graph((w,), (), b.nodes, (y.name,)))
    assert compile_program(graph, on_hopper, gpu=True).kernels


def test_dimensions_of_one_element_do_not_keep_a_product_from_its_operands() -> None:
    """As an einsum writes them: q[b, s, h, d], k[b, t, h, d] -> scores[b, h, s, t]."""
    q, k = (Value(name, TensorType((2, 64, 4, 32), float32)) for name in "qk")
    b = GraphBuilder(["q", "k"])
    operands = []
    for value, last in ((q, (1, 3)), (k, (3, 1))):
        apart = b.node("reshape", value, shape=(*value.shape, 1))
        turned = b.node("permute", apart, order=(0, 2, *last, 4))
        operands.append(b.node("reshape", turned, shape=(8, *(value.shape[d] for d in last))))
    y = b.node("reshape", b.node("matmul", *operands), shape=(2, 4, 64, 64))
    assert kernels(check_graph(Graph((q, k), (), b.nodes, (y.name,)))) == ["matmul"]
