"""Convolutions with channels last: the same values, with permutations only at the borders of a graph."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.test_graph_operators import test_the_three_forms_agree as check_forms
from tests.golden import check_golden
from tests.random_graphs import arrays_for, graphs, image_graphs, residual_block
from tilewright.core.dtypes import float16, float32
from tilewright.core.errors import InvalidGraph
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import Array, Case, TensorType
from tilewright.graph.partition import Fits, KernelCall
from tilewright.graph.passes import simplify_graph
from tilewright.graph.passes.channels_last import use_channels_last
from tilewright.graph.passes.rewrite import attributes_of
from tilewright.graph.program import Program, compile_program
from tilewright.graph.reference import graph_reference
from tilewright.graph.text import graph_text, program_text
from tilewright.te.reference import reference
from tilewright.te.workload import Workload


def everything(workload: Workload) -> bool:
    return True


def nothing(workload: Workload) -> bool:
    return False


def results(program: Program, data: Mapping[str, Array]) -> dict[str, Array]:
    """What the kernels of a program compute, by the reference of their workloads."""
    known = {v.name: data[v.name] for v in (*program.graph.inputs, *program.graph.constants)}
    known |= graph_reference(program.recipe, known)
    for call in (*program.prepared, *program.calls):
        if isinstance(call, KernelCall):
            buffers = zip(call.workload.inputs, call.reads, strict=True)
            inputs = {b.name: known[name].reshape(b.shape).astype(b.dtype.numpy) for b, name in buffers}
            found = reference(call.workload, inputs)
            known |= {name: found[b.name] for name, b in zip(call.writes, call.workload.output_buffers, strict=True)}
        else:
            (name,) = call.writes
            known[name] = known[call.reads[0]].reshape(program.graph.values[name].shape)
    return known


@pytest.mark.parametrize(
    ("shapes", "groups", "filters_first"),
    [
        (((1, 7, 6, 3), (3, 2, 3, 4), (4,)), 1, False),
        (((2, 7, 7, 2, 2), (3, 3, 2, 2, 3), (2, 3)), 2, False),
        (((2, 9, 3), (3, 3, 4)), 1, False),
        (((1, 7, 6, 3), (4, 3, 2, 3), (4,)), 1, True),
        (((2, 7, 7, 2, 2), (2, 3, 3, 3, 2), (2, 3)), 2, True),
    ],
)
def test_the_forms_of_a_convolution_agree(
    shapes: tuple[tuple[int, ...], ...], groups: int, filters_first: bool
) -> None:
    rank = len(shapes[1]) - (2 if groups == 1 else 3)
    layout = {"channels_last": True, "filters_first": filters_first}
    window = {"stride": (2, 1)[:rank], "before": (1, 0)[:rank], "behind": (0, 1)[:rank], "dilation": (1, 2)[:rank]}
    operands = tuple(TensorType(s, float32) for s in shapes)
    check_forms("convolution", Case(operands, {**window, "groups": groups, **layout}))


@settings(max_examples=60, deadline=None)
@given(graph=image_graphs())
def test_the_pass_keeps_the_values(graph: Graph) -> None:
    data, after = arrays_for(graph), check_graph(use_channels_last(graph))
    old, new = graph_reference(graph, data), graph_reference(after, data)
    for a, b in zip(graph.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=1e-9, atol=1e-9)
    convolutions = [n.attributes for n in after.nodes if n.op == "convolution"]
    assert all(given["channels_last"] or given["groups"] != 1 for given in convolutions)


@settings(max_examples=25, deadline=None)
@given(graph=st.one_of(image_graphs(), graphs()), fits=st.sampled_from([everything, nothing]), gpu=st.booleans())
def test_the_kernels_of_a_program_compute_its_graph(graph: Graph, fits: Fits, gpu: bool) -> None:
    data = arrays_for(graph)
    program = compile_program(graph, fits, gpu=gpu)
    old, new = graph_reference(graph, data), results(program, data)
    for a, b in zip(graph.outputs, program.graph.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=1e-4, atol=1e-4)


def test_permutations_stay_at_the_borders() -> None:
    program = compile_program(residual_block("tf32"), everything, gpu=True)
    check_golden("graph/golden/channels_last.txt", graph_text(program.graph) + "\n" + program_text(program))


@pytest.mark.parametrize(("precision", "groups", "filters"), [
    ("tf32", 1, (48, 1, 3, 4, 8)), ("tf32", 2, (2, 4, 3, 3, 2)), ("tf32", 4, (3, 3, 1, 4, 2)),
    ("ieee", 4, (3, 3, 1, 4, 2)),
])  # fmt: skip
def test_matrix_units_get_filters_of_float32_k_major(precision: str, groups: int, filters: tuple[int, ...]) -> None:
    """Filters come first where matrix units multiply them: not where a filter sees one channel. Those of one group
    compute six pixels at once."""
    x, w = (Value(n, TensorType(s, float32)) for n, s in (("x", (2, 4, 5, 6)), ("w", (8, 4 // groups, 3, 3))))
    b = GraphBuilder(["x", "w"])
    same = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1)}
    y = b.node("convolution", x, w, **same, groups=groups, precision=precision)
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything, gpu=True)
    (call,) = (c for c in program.kernels if c.workload.constants)
    assert call.workload.precision == precision
    (read,) = (b.shape for b in call.workload.inputs if b.name in call.workload.constants)
    assert read == filters


def test_filters_first_is_for_channels_last() -> None:
    x, w = (Value(n, TensorType((2, 4, 3, 3), float32)) for n in ("x", "w"))
    same = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1)}
    with pytest.raises(InvalidGraph, match="first, without channels last"):
        GraphBuilder([]).node("convolution", x, w, **same, filters_first=True)


def test_what_is_channels_last_outside_needs_no_permutation() -> None:
    x, w = (Value(n, TensorType(s, float32)) for n, s in (("x", (2, 5, 6, 4)), ("w", (8, 3, 3, 4))))
    b = GraphBuilder(["x", "w"])
    same = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1)}
    first, filters = (b.node("permute", v, order=(0, 3, 1, 2)) for v in (x, w))
    y = b.node("permute", b.node("relu", b.node("convolution", first, filters, **same)), order=(0, 2, 3, 1))
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything, gpu=True)
    assert [program.graph.producers[n].op for c in program.kernels for n in c.nodes] == ["convolution", "relu"]


@pytest.mark.parametrize(
    ("shapes", "groups"),
    [
        (((2, 5, 5, 4), (3, 3, 3, 8)), 1),  # another depth
        (((2, 5, 5, 4), (3, 3, 2, 8)), 2),  # no dimension of groups
        (((2, 5, 5, 2, 2), (3, 3, 2, 4, 2)), 2),  # another number of groups
        (((2, 5, 5, 4), (3, 3, 4, 8), (4,)), 1),  # a bias of another length
        (((2, 4), (4, 8)), 1),  # no window
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...], groups: int) -> None:
    operands = [Value(f"x{n}", TensorType(s, float32)) for n, s in enumerate(shapes)]
    same = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1)}
    with pytest.raises(InvalidGraph, match=r"a convolution of|a bias of"):
        GraphBuilder([]).node("convolution", *operands, **same, groups=groups, channels_last=True)


def test_patches_of_few_channels_are_a_product() -> None:
    x, w, c = (Value(n, TensorType(s, float32)) for n, s in (("x", (2, 3, 4, 16)), ("w", (5, 3, 2, 8)), ("c", (5,))))
    b = GraphBuilder(["x", "w", "c"])
    windows = {"stride": (2, 8), "before": (0, 0), "behind": (0, 0), "dilation": (1, 1)}
    y = b.node("relu", b.node("convolution", x, w, c, **windows))
    graph = check_graph(Graph((x,), (w, c), b.nodes, (y.name,)))
    after = check_graph(use_channels_last(graph))
    assert "matmul" in [n.op for n in after.nodes] and "convolution" not in [n.op for n in after.nodes]
    data = arrays_for(graph)
    (old,), (new,) = (graph_reference(g, data).values() for g in (graph, after))
    np.testing.assert_allclose(new, old, rtol=1e-9)


@pytest.mark.parametrize("dims", [(1, 2, 3, 4), (2, 3, 4)])
@pytest.mark.parametrize("weights", [0, 1, 2])
def test_what_a_group_norm_is_on_average_follows_from_its_statistics(dims: tuple[int, ...], weights: int) -> None:
    """What it gives for each pixel is not computed."""
    x, w = (Value(n, TensorType(s, float32)) for n, s in (("x", (2, 3, 4, 6, 6)), ("w", (8, 3, 3, 3, 3))))
    of_channels = tuple(Value(n, TensorType((8,), float32)) for n in ("scale", "shift")[:weights])
    constants = (w, *of_channels)
    b = GraphBuilder([v.name for v in (x, *constants)])
    same = {"stride": (1,) * 3, "before": (1,) * 3, "behind": (1,) * 3, "dilation": (1,) * 3, "precision": "tf32"}
    y = b.node("group_norm", b.node("convolution", x, w, **same), *of_channels, groups=4)
    y = b.node("mean", y, dims=dims, keep=True)
    graph = check_graph(Graph((x,), constants, b.nodes, (y.name,)))
    program = compile_program(graph, everything, gpu=True)
    written = [sum(program.graph.values[name].elements for name in call.writes) for call in program.kernels]
    assert sum(n >= 2 * 8 * 4 * 6 * 6 for n in written) == 1
    data = arrays_for(graph)
    old, new = graph_reference(graph, data), results(program, data)
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=1e-4, atol=1e-5)


def test_a_group_norm_of_halves_is_made_of_means_of_channels() -> None:
    x, w, c = (Value(n, TensorType(s, float16)) for n, s in (("x", (2, 6, 5, 3)), ("w", (6,)), ("c", (6,))))
    f = Value("f", TensorType((4, 6, 1, 1), float16))
    b = GraphBuilder(["x", "w", "c", "f"])
    plain = {"stride": (1, 1), "before": (0, 0), "behind": (0, 0), "dilation": (1, 1)}
    normed = [b.node("group_norm", x, *weights, groups=3) for weights in ((w, c), (w,), ())]
    y = b.node("convolution", b.node("add", b.node("add", *normed[:2]), normed[2]), f, **plain)
    graph = check_graph(Graph((x,), (w, c, f), b.nodes, (y.name,)))
    after = simplify_graph(graph, gpu=True)
    assert "group_norm" not in [n.op for n in after.nodes]
    data = arrays_for(graph)
    (old,), (new,) = graph_reference(graph, data).values(), graph_reference(check_graph(after), data).values()
    np.testing.assert_allclose(new, old, atol=5e-3)


@pytest.mark.parametrize(("precision", "given_last", "converted"), [
    ("ieee", False, False), ("ieee", True, True), ("tf32", False, True),
])  # fmt: skip
def test_exact_convolutions_that_torch_computes_keep_their_order(
    precision: str, given_last: bool, converted: bool
) -> None:
    shape = (2, 8, 8, 16) if given_last else (2, 16, 8, 8)
    x, w = Value("x", TensorType(shape, float32)), Value("w", TensorType((32, 16, 3, 3), float32))
    b = GraphBuilder(["x", "w"])
    image = b.node("permute", x, order=(0, 3, 1, 2)) if given_last else x
    one, none = (1, 1), (0, 0)
    y = b.node("convolution", image, w, stride=one, before=none, behind=none, dilation=one, precision=precision)
    after = simplify_graph(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), gpu=True)
    (node,) = (n for n in after.nodes if n.op == "convolution")
    assert attributes_of(node)["channels_last"] is converted
    assert converted or not any(n.op == "permute" for n in after.nodes)


@pytest.mark.parametrize(("groups", "filters", "given_last", "converted"), [
    (16, 16, False, False), (4, 32, False, False), (1, 32, False, True), (16, 512, False, True), (16, 16, True, True),
])  # fmt: skip
def test_groups_of_few_channels_keep_their_order_on_processors(
    groups: int, filters: int, given_last: bool, converted: bool
) -> None:
    """Vectors are pixels then. Where channels are last already, nothing needs to be permuted."""
    shape = (2, 8, 8, 16) if given_last else (2, 16, 8, 8)
    x, w = Value("x", TensorType(shape, float32)), Value("w", TensorType((filters, 16 // groups, 3, 3), float32))
    b = GraphBuilder(["x", "w"])
    image = b.node("permute", x, order=(0, 3, 1, 2)) if given_last else x
    window = {"stride": (1, 1), "before": (0, 0), "behind": (0, 0), "dilation": (1, 1)}
    y = b.node("convolution", image, w, groups=groups, **window)
    after = simplify_graph(check_graph(Graph((x,), (w,), b.nodes, (y.name,))))
    (node,) = (n for n in after.nodes if n.op == "convolution")
    assert attributes_of(node)["channels_last"] is converted
    assert converted or not any(n.op == "permute" for n in after.nodes)
