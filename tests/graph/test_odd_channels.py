"""Convolutions whose pixels do not begin at multiples of 16 bytes have kernels of a class, in groups too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.test_channels_last import results
from tests.random_graphs import arrays_for
from tests.schedule.gpu.tiles import H200, assert_agrees
from tilewright.core.dtypes import DTYPES
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes import simplify_graph
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference
from tilewright.schedule.defaults import has_class
from tilewright.schedule.gpu.conv.space import CUDA_CONV


def image(
    groups: int, own: int, filters: int, extents: tuple[int, ...], kernel: int = 3, dtype: str = "float32",
    stride: int = 1, padding: int = 1, precision: str = "tf32",
) -> Graph:  # fmt: skip
    """relu(convolution + bias) in groups of ``own`` channels and ``filters`` filters."""
    rank, kind = len(extents), DTYPES[dtype]
    x = Value("x", TensorType((2, groups * own, *extents), kind))
    w = Value("w", TensorType((groups * filters, own, *[kernel] * rank), kind))
    bias, border = Value("bias", TensorType((groups * filters,), kind)), (padding,) * rank
    b = GraphBuilder(["x", "w", "bias"])
    rounded = {"precision": precision} if dtype == "float32" else {}
    sides = {"stride": (stride,) * rank, "before": border, "behind": border, "dilation": (1,) * rank}
    y = b.node("relu", b.node("convolution", x, w, bias, **sides, groups=groups, **rounded))
    return check_graph(Graph((x,), (w, bias), b.nodes, (y.name,)))


@pytest.mark.parametrize(("graph", "stored"), [
    (image(11, 3, 6, (7, 13)), (2, 7, 15, 36)),
    (image(9, 7, 7, (65,), 5, padding=2), (2, 65, 64)),
    (image(3, 5, 4, (4, 6, 8)), (2, 4, 6, 10, 16)),
    (image(1, 33, 66, (7, 13)), (2, 7, 15, 36)),
    (image(5, 3, 8, (8, 8), dtype="float16"), (2, 8, 10, 16)),
], ids=["image", "line", "volume", "one group", "halves"])  # fmt: skip
def test_a_copy_puts_zeros_behind_the_channels(graph: Graph, stored: tuple[int, ...]) -> None:
    """A line of 64 channels fills lines as it is, and keeps its border."""
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    copy, product, *_ = program.kernels
    assert program.graph.values[copy.writes[0]].shape == stored
    assert all(has_class(call.workload, H200) for call in program.kernels)
    assert CUDA_CONV.matches(product.workload, H200)
    data = {name: a.astype(graph.values[name].dtype.numpy) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    close = 5e-3 if graph.inputs[0].dtype.bits == 16 else 1e-4
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=close, atol=close)


def test_its_kernel_computes_it() -> None:
    program = compile_program(image(11, 3, 6, (5, 7)), lambda w: has_class(w, H200), gpu=True)
    assert assert_agrees(CUDA_CONV, program.kernels[1].workload, 1, H200) == 1


@given(
    groups=st.integers(1, 5),
    own=st.integers(1, 9),
    filters=st.integers(1, 3),
    extents=st.lists(st.integers(3, 6), min_size=1, max_size=3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dtype=st.sampled_from(["float32", "float16"]),
)
@settings(max_examples=40, deadline=None)
def test_any_groups_keep_their_values(
    groups: int, own: int, filters: int, extents: list[int], kernel: int, stride: int, padding: int, dtype: str
) -> None:
    graph = image(groups, own, filters, tuple(extents), kernel, dtype, stride, padding)
    data, after = arrays_for(graph), check_graph(simplify_graph(graph, gpu=True))
    old, new = graph_reference(graph, data), graph_reference(after, data)
    np.testing.assert_allclose(new[after.outputs[0]], old[graph.outputs[0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph", [
    image(11, 3, 6, (7, 13), precision="ieee"), image(12, 3, 6, (7, 13)), image(33, 1, 2, (7, 13)),
    image(87, 3, 3, (7, 13)),
], ids=["exact", "whole vectors", "depthwise", "many channels"])  # fmt: skip
def test_other_groups_stay(graph: Graph) -> None:
    (before,) = (node for node in graph.nodes if node.op == "convolution")
    (product,) = (node for node in simplify_graph(graph, gpu=True).nodes if node.op == "convolution")
    assert product.attributes["groups"] == before.attributes["groups"]
