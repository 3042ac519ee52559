"""Reductions and norms in steps that kernel classes take, and kernels that are joined."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.graph.test_products import on_hopper
from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes.norms import join_instances
from tilewright.graph.program import Program, compile_program
from tilewright.graph.reference import graph_reference

X = Value("x", TensorType((4, 6, 5, 8), float32))


def graph_of(write: Callable[[GraphBuilder, Value], Any], x: Value = X) -> Graph:
    b = GraphBuilder([x.name])
    found = write(b, x)
    outputs = found if isinstance(found, tuple) else (found,)
    return check_graph(Graph((x,), (), b.nodes, tuple(v.name for v in outputs)))


def kernels(graph: Graph) -> list[str]:
    """The operators of each kernel, after the results have been compared with those of the graph."""
    program = compile_program(graph, on_hopper, gpu=True)
    data = {name: a.astype(np.float32) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    for a, b in zip(graph.outputs, program.graph.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=1e-4, atol=1e-5)
    assert all(on_hopper(call.workload) for call in program.kernels)
    return _operators(program)


def _operators(program: Program) -> list[str]:
    return [" ".join(program.graph.producers[n].op for n in call.nodes) for call in program.kernels]


def test_dimensions_that_are_kept_are_no_part_of_a_reduction() -> None:
    graph = graph_of(lambda b, x: b.node("div", x, b.node("sum", x, dims=(1,), keep=True)))
    assert kernels(graph) == ["sum div"]


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "mean"])
def test_a_reduction_of_outer_and_inner_dimensions_is_two(op: str) -> None:
    assert kernels(graph_of(lambda b, x: b.node(op, x, dims=(0, 2, 3)))) == [op, op]


def test_dimensions_of_one_element_are_nothing_to_reduce() -> None:
    x = Value("x", TensorType((1, 6, 5, 8), float32))
    assert kernels(graph_of(lambda b, x: b.node("variance", x, dims=(0, 2, 3)), x)) == ["variance"]
    assert kernels(graph_of(lambda b, x: b.node("mean", b.node("exp", x), dims=(0,)), x)) == ["exp"]


@pytest.mark.parametrize(("dims", "count"), [((0,), 1), ((1,), 1), ((0, 2, 3), 2), ((0, 2), 4), ((2, 3), 1)])
def test_variances(dims: tuple[int, ...], count: int) -> None:
    graph = graph_of(lambda b, x: b.node("variance", x, dims=dims, correction=1))
    assert len(kernels(graph)) == count


def test_mean_and_variance_of_long_columns_are_one_kernel() -> None:
    """Beside it there is a small one for the pivots, which reads 16 elements of each column. The mean is the pivot and
    what elements are off it on average."""

    def moments(b: GraphBuilder, x: Value) -> Any:
        return tuple(b.node(op, x, dims=(0, 1)) for op in ("mean", "variance"))

    x = Value("x", TensorType((4, 256, 8), float32))
    assert kernels(graph_of(moments, x)) == ["mean", "sub square sum sub sum mul sub square mul sub maximum mul"]


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_over_a_dimension_in_the_middle_is_one_kernel(op: str) -> None:
    graph = graph_of(lambda b, x: b.node("exp", b.node(op, x, dim=1)))
    last = "sub exp div exp" if op == "softmax" else "sub log sub exp"
    assert kernels(graph) == [f"max sub exp sum {last}"]


def test_group_norms() -> None:
    def with_weights(b: GraphBuilder, x: Value) -> Value:
        weights = [b.node("range", count=6, start=s, dtype="float32") for s in (1, 3)]
        return b.node("relu", b.node("group_norm", x, *weights, groups=2))

    assert kernels(graph_of(with_weights))[-2:] == ["mean variance add rsqrt", "sub mul mul add relu"]
    flat = Value("x", TensorType((4, 6), float32))
    assert kernels(graph_of(with_weights, flat))[-1] == "layer_norm mul add relu"
    assert kernels(graph_of(lambda b, x: b.node("group_norm", x, groups=3))) == ["layer_norm"]


def test_an_instance_norm_of_one_image_with_all_channels_is_one_of_each_image() -> None:
    def traced(b: GraphBuilder, x: Value) -> Value:
        rows = b.node("reshape", x, shape=(1, 24, 5, 8))
        return b.node("reshape", b.node("group_norm", rows, groups=24), shape=x.shape)

    graph = graph_of(traced)
    (norm,) = (n for n in join_instances(graph).nodes if n.op == "group_norm")
    assert norm.attributes["groups"] == 6 and norm.result.shape == (4, 6, 5, 8)
    assert kernels(graph) == ["layer_norm"]


def test_kernels_that_reduce_the_same_are_joined() -> None:
    graph = graph_of(lambda b, x: (b.node("max", x, dims=(3,)), b.node("argmax", x, dim=3)))
    (call,) = compile_program(graph, on_hopper, gpu=True).kernels
    assert set(call.writes) == set(graph.outputs)
    assert kernels(graph) == ["max argmax"]


def test_small_kernels_in_a_row_are_joined() -> None:
    def write(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
        total = b.node("sum", x, dims=(2, 3))
        return total, b.node("exp", total), b.node("mul", total, total)

    assert kernels(graph_of(write)) == ["sum exp mul"]


def test_products_are_not_joined() -> None:
    def write(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
        rows = b.node("reshape", x, shape=(24, 40))
        turned = b.node("permute", rows, order=(1, 0))
        return b.node("matmul", rows, turned), b.node("sum", rows, dims=(1,))

    assert len(compile_program(graph_of(write), lambda w: True, gpu=True).kernels) == 2


def test_a_concatenation_that_is_reduced_is_stored() -> None:
    def write(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
        whole = b.node("concatenate", x, b.node("exp", x), dim=1)
        return b.node("sum", whole, dims=(2, 3)), b.node("relu", whole)

    assert kernels(graph_of(write)) == ["exp concatenate relu", "sum"]
