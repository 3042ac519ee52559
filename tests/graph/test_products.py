"""Products that share an operand: one product, or two sums in one kernel."""

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float16, float32, int8, int32
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.partition import Fits
from tilewright.graph.passes.cleanup import drop_identities, drop_unused
from tilewright.graph.passes.products import join_products, split_batches, split_long_sums
from tilewright.graph.passes.reshapes import raise_splits
from tilewright.graph.program import Program, compile_program
from tilewright.graph.reference import graph_reference
from tilewright.schedule.defaults import has_class
from tilewright.te.workload import Workload

SM90A = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


def on_hopper(workload: Workload) -> bool:
    return has_class(workload, SM90A)


def value(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, float16))


def projections() -> Graph:
    """Three products of one operand, of which two have a bias and one is read in the dimensions of heads."""
    x, c, d = value("x", 128, 64), value("c", 64), value("d", 32)
    weights = [value("q", 64, 64), value("k", 32, 64), value("v", 64, 32)]
    b = GraphBuilder(["x", "c", "d", "q", "k", "v"])
    q = b.node("add", b.node("matmul", x, b.node("permute", weights[0], order=(1, 0))), c)
    k = b.node("add", d, b.node("matmul", x, b.node("permute", weights[1], order=(1, 0))))
    v = b.node("matmul", x, weights[2])
    heads = b.node("reshape", q, shape=(128, 4, 16))
    outputs = [b.node("softmax", t, dim=d) for t, d in ((heads, 2), (k, 1), (v, 1))]
    return check_graph(Graph((x,), (c, d, *weights), b.nodes, tuple(o.name for o in outputs)))


def gated() -> Graph:
    x, gate, up = value("x", 256, 64), value("gate", 64, 128), value("up", 64, 128)
    b = GraphBuilder(["x", "gate", "up"])
    y = b.node("mul", b.node("silu", b.node("matmul", x, gate)), b.node("matmul", x, up))
    return check_graph(Graph((x,), (gate, up), b.nodes, (y.name,)))


def kernels(program: Program) -> list[str]:
    return [" ".join(program.graph.producers[n].op for n in c.nodes) for c in program.kernels]


def check_values(graph: Graph, after: Graph) -> None:
    data = arrays_for(graph)
    old, new = graph_reference(graph, data), graph_reference(check_graph(after), data)
    for a, b in zip(graph.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], atol=1e-12)


def check_program(graph: Graph, fits: Fits) -> Program:
    program = compile_program(graph, fits, gpu=True)
    data = {name: a.astype(np.float16) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    for a, b in zip(graph.outputs, program.graph.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=5e-3, atol=5e-3 * max(1.0, float(np.abs(old[a]).max())))
    return program


def test_products_that_share_an_operand_are_joined() -> None:
    graph = projections()
    joined = drop_unused(join_products(graph))
    check_values(graph, joined)
    assert [n.op for n in joined.nodes].count("matmul") == 1
    program = check_program(graph, lambda workload: True)
    assert kernels(program) == ["matmul add", "softmax", "softmax softmax"]
    assert [program.graph.producers[n].op for n in program.recipe.outputs] == ["concatenate", "concatenate"]


def test_a_joined_product_has_the_precision_of_its_parts_and_others_stay_apart() -> None:
    x = Value("x", TensorType((64, 32), float32))
    weights = [Value(name, TensorType((32, 64), float32)) for name in "qkv"]
    b = GraphBuilder(["x", "q", "k", "v"])
    precisions = ("tf32", "tf32", "ieee")
    outputs = [b.node("matmul", x, w, precision=p) for w, p in zip(weights, precisions, strict=True)]
    graph = check_graph(Graph((x,), tuple(weights), b.nodes, tuple(o.name for o in outputs)))
    products = [n for n in drop_unused(join_products(graph)).nodes if n.op == "matmul"]
    assert [(n.result.shape, n.attributes["precision"]) for n in products] == [((64, 128), "tf32"), ((64, 64), "ieee")]


def long_product(precision: str = "ieee", rows: int = 24) -> Graph:
    x, w = Value("x", TensorType((rows, 1 << 15), float32)), Value("w", TensorType((1 << 15, 40), float32))
    b = GraphBuilder(["x", "w"])
    y = b.node("add", b.node("matmul", x, w, precision=precision), b.node("full", shape=(), value=1.0, dtype="float32"))
    return check_graph(Graph((x, w), (), b.nodes, (y.name,)))


def test_a_long_sum_of_few_products_is_split_among_many_ctas() -> None:
    """A cluster has 16 CTAs at most, and a sum in float32 errs by its length."""
    program = compile_program(long_product(), on_hopper, gpu=True)
    assert kernels(program) == ["matmul", "sum add"]
    assert all(on_hopper(call.workload) for call in program.kernels)
    check_values(long_product(), split_long_sums(long_product()))
    for other in (long_product("tf32"), long_product(rows=1 << 16), long_product(rows=8)):
        assert kernels(compile_program(other, on_hopper, gpu=True)) == ["matmul add"]


def test_bytes_with_sums_of_32_bits_are_joined() -> None:
    x = Value("x", TensorType((64, 32), int8))
    weights = [Value(name, TensorType((32, 64), int8)) for name in "qk"]
    b = GraphBuilder(["x", "q", "k"])
    outputs = [b.node("matmul", x, w, accumulate="int32") for w in weights]
    graph = check_graph(Graph((x,), tuple(weights), b.nodes, tuple(o.name for o in outputs)))
    joined = drop_unused(join_products(graph))
    assert [n.result.dtype for n in joined.nodes if n.op == "matmul"] == [int32]
    check_values(graph, joined)


def test_products_stay_apart_where_a_class_would_be_lost() -> None:
    program = check_program(projections(), on_hopper)  # row kernels read no slices
    assert sorted(kernels(program)) == ["matmul", "matmul add", "matmul add", "softmax", "softmax", "softmax"]


def test_both_sums_of_a_gated_product_are_one_kernel() -> None:
    graph = gated()
    assert join_products(graph) is graph
    assert kernels(check_program(graph, on_hopper)) == ["matmul silu matmul mul"]
    assert len(compile_program(graph, lambda w: False).kernels) == 2


def test_splits_move_before_slices_and_permutations() -> None:
    x = value("x", 8, 96)
    b = GraphBuilder(["x"])
    part = b.node("slice", x, dim=1, start=32, stop=64)
    one = b.node(
        "slice", b.node("permute", b.node("reshape", x, shape=(8, 3, 32)), order=(1, 0, 2)), dim=0, start=1, stop=2
    )
    shapes = (
        (part, (8, 2, 16)),
        (part, (8, 1, 32)),
        (part, (4, 64)),
        (one, (8, 2, 16)),
        (one, (4, 2, 32)),
        (one, (256,)),
    )
    outputs = [b.node("exp", b.node("reshape", t, shape=shape)).name for t, shape in shapes]
    graph = check_graph(Graph((x,), (), b.nodes, tuple(outputs)))
    after = drop_unused(drop_identities(raise_splits(graph)))
    check_values(graph, after)
    read = [after.producers[after.producers[name].operands[0]] for name in after.outputs]
    assert [n.op for n in read] == ["slice", "slice", "reshape", "reshape", "reshape", "reshape"]
    first = {n.result.shape for n in after.nodes if n.op == "reshape" and n.operands == ("x",)}
    assert first == {(8, 6, 16), (8, 3, 32), (8, 3, 2, 16), (4, 2, 3, 32)}


def test_batches_of_products_are_split_as_what_they_read() -> None:
    q, k = value("q", 2, 3, 5, 4), value("k", 6, 4, 7)
    b = GraphBuilder(["q", "k"])
    y = b.node("exp", b.node("matmul", b.node("reshape", q, shape=(6, 5, 4)), k))
    graph = check_graph(Graph((q, k), (), b.nodes, (y.name,)))
    after = split_batches(graph)
    check_values(graph, after)
    assert (2, 3, 5, 7) in [n.result.shape for n in after.nodes if n.op == "matmul"]


def perceptron(width: int, rows: int = 32, seen: bool = False) -> Graph:
    """Three linear layers with bias and relu; ``seen``: the graph gives the first one's result back as well."""
    x = value("x", rows, width)
    layers = [(value(f"w{n}", width, width), value(f"b{n}", width)) for n in range(3)]
    constants = [v for layer in layers for v in layer]
    b, y, found = GraphBuilder(["x", *(v.name for v in constants)]), x, []
    for w, bias in layers:
        y = b.node("relu", b.node("add", b.node("matmul", y, b.node("permute", w, order=(1, 0))), bias))
        found.append(y.name)
    outputs = (found[0], found[-1]) if seen else (found[-1],)
    return check_graph(Graph((x,), tuple(constants), b.nodes, outputs))


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (perceptron(128), 1),
        (perceptron(256), 3),
        (perceptron(128, rows=4096), 3),
        (perceptron(128, seen=True), 2),
    ],
    ids=["small", "wide", "many-rows", "seen"],
)
def test_small_layers_one_behind_the_other_are_one_kernel(made: Graph, count: int) -> None:
    """One launch goes through all layers where their weights are small and nothing else reads what is between."""
    program = check_program(made, on_hopper)
    assert len(program.kernels) == count
    assert all(on_hopper(c.workload) for c in program.kernels)
