"""Attention as one kernel: what a graph writes out, with masks and heads that share keys."""

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.random_graphs import arrays_for
from tests.schedule.interpreted import assert_computes
from tilewright.core.dtypes import DType, boolean, float16
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import Program, compile_program
from tilewright.graph.reference import graph_reference
from tilewright.schedule.defaults import default_schedule, has_class
from tilewright.schedule.gpu.attention.space import CUDA_ATTENTION

FEW = Target("cuda", "sm_90a", (), threads=3, vector_bytes=16)


def attention(
    *, causal: bool = False, mask: bool = False, shared: int = 1, merged: bool = False, scaled_first: bool = False
) -> Graph:
    """What torch makes of an attention of two images, four heads and 64 rows, between two products with weights: q, k
    and v are parts of one product, and the result has the heads side by side again. ``merged``: products have one
    dimension of batches. ``shared``: so many heads have the same keys. ``scaled_first``: queries and keys are
    multiplied with a number, not their product."""
    heads, rows, depth = 4, 64, 16
    x = Value("x", TensorType((2 * rows, 3 * heads * depth), float16))
    bias = Value("bias", TensorType((2, 1, 1, rows), float16))
    b = GraphBuilder(["x", "bias"])
    split = b.node("permute", b.node("reshape", x, shape=(2, rows, 3, heads, depth)), order=(2, 0, 3, 1, 4))
    parts = [b.node("slice", split, dim=0, start=n, stop=n + 1) for n in range(3)]
    q, k, v = (b.node("reshape", part, shape=(2, heads, rows, depth)) for part in parts)
    if shared > 1:
        k, v = (b.node("slice", t, dim=1, start=0, stop=heads // shared) for t in (k, v))
        k, v = (b.node("repeat", t, dim=1, times=shared) for t in (k, v))
    if scaled_first:
        root = b.node("full", shape=(), value=0.5, dtype="float16")
        q, k = b.node("mul", q, root), b.node("mul", root, k)
    k = b.node("permute", k, order=(0, 1, 3, 2))

    def product(a: Value, c: Value) -> Value:
        if not merged:
            return b.node("matmul", a, c)
        whole = b.node("matmul", *(b.node("reshape", t, shape=(2 * heads, *t.shape[2:])) for t in (a, c)))
        return b.node("reshape", whole, shape=(2, heads, *whole.shape[1:]))

    scores = product(q, k)
    if not scaled_first:
        scores = b.node("mul", scores, b.node("full", shape=(), value=0.25, dtype="float16"))
    if causal:
        numbers = b.node("range", count=rows, dtype="int64")
        seen = b.node("le", numbers, b.node("reshape", numbers, shape=(rows, 1)))
        hidden = b.node("full", shape=(), value="-inf", dtype="float16")
        scores = b.node("where", seen, scores, hidden)
    if mask:
        scores = b.node("add", scores, bias)
    weights = b.node("softmax", b.node("cast", scores, dtype="float32"), dim=3)
    y = b.node("permute", product(b.node("cast", weights, dtype="float16"), v), order=(0, 2, 1, 3))
    y = b.node("reshape", y, shape=(2 * rows, heads * depth))
    return check_graph(Graph((x, bias), (), b.nodes, (y.name,)))


def kernels(program: Program) -> list[str]:
    return [" ".join(program.graph.producers[n].op for n in c.nodes) for c in program.kernels]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "matmul mul cast softmax cast matmul permute"),
        ({"causal": True, "merged": True}, "matmul mul le where cast softmax cast matmul permute"),
        ({"mask": True, "shared": 2}, "matmul mul add cast softmax cast matmul permute"),
        ({"mask": True, "scaled_first": True}, "matmul mul mul add cast softmax cast matmul permute"),
    ],
)
def test_what_a_kernel_class_takes_is_one_kernel(given: dict[str, bool], expected: str) -> None:
    graph = attention(**given)
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert kernels(program) == [expected]
    data = arrays_for(graph)
    (expected_output,) = graph_reference(graph, data).values()
    np.testing.assert_allclose(results(program, data)[program.graph.outputs[0]], expected_output, atol=2e-3)
    workload = program.kernels[0].workload
    schedule = default_schedule(workload, FEW)
    assert schedule.sketch == CUDA_ATTENTION.name
    assert_computes(CUDA_ATTENTION.lower(workload, FEW, schedule), workload)


def test_windows_of_an_image_are_stored_for_attention() -> None:
    """Rows of a window are two dimensions of the image, whose strides no single row has."""
    image = Value("image", TensorType((2, 8, 12, 96), float16))
    b = GraphBuilder(["image"])
    x = b.node("reshape", b.node("relu", image), shape=(2, 2, 4, 3, 4, 96))
    windows = b.node("reshape", b.node("permute", x, order=(0, 1, 3, 2, 4, 5)), shape=(12, 16, 3, 2, 16))
    split = b.node("permute", windows, order=(2, 0, 3, 1, 4))
    parts = (b.node("slice", split, dim=0, start=n, stop=n + 1) for n in range(3))
    q, k, v = (b.node("reshape", part, shape=(12, 2, 16, 16)) for part in parts)
    weights = b.node("softmax", b.node("matmul", q, b.node("permute", k, order=(0, 1, 3, 2))), dim=3)
    y = b.node("permute", b.node("matmul", weights, v), order=(0, 2, 1, 3))
    graph = check_graph(Graph((image,), (), b.nodes, (y.name,)))
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert kernels(program) == ["relu permute", "matmul softmax matmul permute"]
    data = arrays_for(graph)
    (expected,) = graph_reference(graph, data).values()
    np.testing.assert_allclose(results(program, data)[program.graph.outputs[0]], expected, atol=2e-3)


def test_a_table_of_biases_is_stored_as_heads_read_it() -> None:
    """The biases of one head lie as far apart as there are heads: those of constants are moved once."""
    q = Value("q", TensorType((2, 4, 64, 16), float16))
    table = Value("table", TensorType((64, 64, 4), float16))
    b = GraphBuilder(["q", "table"])
    biases = b.node("reshape", b.node("permute", table, order=(2, 0, 1)), shape=(1, 4, 64, 64))
    scores = b.node("add", b.node("matmul", q, b.node("permute", q, order=(0, 1, 3, 2))), biases)
    y = b.node("matmul", b.node("softmax", scores, dim=3), q)
    graph = check_graph(Graph((q,), (table,), b.nodes, (y.name,)))
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert kernels(program) == ["matmul add softmax matmul"]
    (moved,) = program.recipe.outputs
    assert program.recipe.producers[moved].op == "permute" and moved in program.kernels[0].reads


def test_attention_joins_a_cache_with_the_newest_key_itself() -> None:
    """The joined keys are in no memory: a kernel of few queries computes them in registers."""
    q, cache, new = (Value(n, TensorType((1, 2, r, 16), float16)) for n, r in (("q", 1), ("cache", 31), ("new", 1)))
    b = GraphBuilder(["q", "cache", "new"])
    k = b.node("concatenate", cache, new, dim=2)
    weights = b.node("softmax", b.node("matmul", q, b.node("permute", k, order=(0, 1, 3, 2))), dim=3)
    y = b.node("matmul", weights, k)
    graph = check_graph(Graph((q, cache, new), (), b.nodes, (y.name,)))
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert kernels(program) == ["matmul softmax matmul"]
    data = arrays_for(graph)
    (expected,) = graph_reference(graph, data).values()
    np.testing.assert_allclose(results(program, data)[program.graph.outputs[0]], expected, atol=2e-3)


def test_weights_that_something_else_reads_are_stored() -> None:
    x, w = Value("x", TensorType((2, 3, 8, 8), float16)), Value("w", TensorType((6, 8, 8), float16))
    b = GraphBuilder(["x", "w"])
    weights = b.node("reshape", b.node("softmax", b.node("matmul", x, x), dim=3), shape=(6, 8, 8))
    outputs = (b.node("matmul", weights, w).name, b.node("sum", weights, dims=(0,)).name)
    graph = check_graph(Graph((x, w), (), b.nodes, outputs))
    data = arrays_for(graph)
    program = compile_program(graph, lambda workload: True)
    found, expected = results(program, data), graph_reference(graph, data)
    for before, after in zip(outputs, program.graph.outputs, strict=True):
        np.testing.assert_allclose(found[after], expected[before], atol=2e-3)


def test_a_mask_that_is_data_hides_keys_beyond_a_whole_block() -> None:
    q, k = (Value(n, TensorType((1, 2, 21, 16), float16)) for n in ("q", "k"))
    seen = Value("seen", TensorType((21, 21), boolean))
    b = GraphBuilder(["q", "k", "seen"])
    scores = b.node("matmul", q, b.node("permute", k, order=(0, 1, 3, 2)))
    hidden = b.node("full", shape=(), value="-inf", dtype="float16")
    y = b.node("matmul", b.node("softmax", b.node("where", seen, scores, hidden), dim=3), k)
    graph = check_graph(Graph((q, k, seen), (), b.nodes, (y.name,)))
    (call,) = compile_program(graph, lambda w: has_class(w, FEW), gpu=True).kernels
    schedule = default_schedule(call.workload, FEW)
    assert schedule.sketch == CUDA_ATTENTION.name
    assert_computes(CUDA_ATTENTION.lower(call.workload, FEW, schedule), call.workload)


@pytest.mark.parametrize("shape", [(16, 21), (1, 2, 16, 21), (1, 1, 1, 21)])
@pytest.mark.parametrize("dtype", [boolean, float16])
def test_queries_that_see_no_key_are_left_out_by_the_kernel(shape: tuple[int, ...], dtype: DType) -> None:
    """A select behind the product is part of it, with the order of dimensions that is wanted."""
    q, k = Value("q", TensorType((1, 2, 16, 16), float16)), Value("k", TensorType((1, 2, 21, 16), float16))
    mask = Value("mask", TensorType(shape, dtype))
    b = GraphBuilder(["q", "k", "mask"])
    scores = b.node("matmul", q, b.node("permute", k, order=(0, 1, 3, 2)))
    hidden, nothing = (b.node("full", shape=(), value=n, dtype="float16") for n in ("-inf", 0.0))
    seen = mask if dtype.is_bool else b.node("ne", mask, hidden)
    scores = b.node("where", mask, scores, hidden) if dtype.is_bool else b.node("add", scores, mask)
    y = b.node("matmul", b.node("softmax", scores, dim=3), k)
    some = b.node("max", b.node("cast", seen, dtype="int32"), dims=(len(shape) - 1,), keep=True)
    y = b.node("where", b.node("cast", some, dtype="bool"), y, nothing)
    y = b.node("permute", y, order=(0, 2, 1, 3))
    graph = check_graph(Graph((q, k, mask), (), b.nodes, (y.name,)))
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert kernels(program)[-1].endswith("softmax matmul where permute")
    call = program.kernels[-1]
    schedule = default_schedule(call.workload, FEW)
    assert schedule.sketch == CUDA_ATTENTION.name
    assert_computes(CUDA_ATTENTION.lower(call.workload, FEW, schedule), call.workload)


@pytest.mark.parametrize(("levels", "expected"), [(3, ["matmul"] * 2), (40, ["where", "softmax", "matmul"] * 2)])
def test_a_causal_mask_that_several_attentions_share_is_no_kernel(levels: int, expected: list[str]) -> None:
    q, k = (Value(n, TensorType((1, 2, 32, 16), float16)) for n in ("q", "k"))
    b = GraphBuilder(["q", "k"])
    numbers = b.node("range", count=32, dtype="int64")
    seen = b.node("le", numbers, b.node("reshape", numbers, shape=(32, 1)))
    for _ in range(levels):  # each node is read twice: there are 2^levels ways through it
        seen = b.node("logical_and", seen, seen)
    hidden = b.node("full", shape=(), value="-inf", dtype="float16")
    outputs = []
    for right in (q, k):
        scores = b.node("matmul", q, b.node("permute", right, order=(0, 1, 3, 2)))
        outputs.append(b.node("matmul", b.node("softmax", b.node("where", seen, scores, hidden), dim=3), k).name)
    graph = check_graph(Graph((q, k), (), b.nodes, tuple(outputs)))
    program = compile_program(graph, lambda w: has_class(w, FEW), gpu=True)
    assert [kernel.split()[-1] for kernel in kernels(program)] == expected
