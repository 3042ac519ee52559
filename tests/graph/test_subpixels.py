"""Transposed convolutions as convolutions whose channels become pixels: the same values, and no zeros in between."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.test_channels_last import results
from tests.graph.test_passes import check_equal
from tests.random_graphs import arrays_for
from tests.schedule.gpu.tiles import H200
from tilewright.core.dtypes import float32
from tilewright.core.target import Target
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.partition import KernelCall
from tilewright.graph.passes.cleanup import drop_unused
from tilewright.graph.passes.subpixels import use_subpixels
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference
from tilewright.importers.aten.products import transposed_convolution
from tilewright.schedule.defaults import has_class
from tilewright.te.cost import flops

PROCESSOR = Target("llvm", "x86-64", ("avx2", "avx512f", "fma"), threads=2, vector_bytes=64)


def decoder(
    extents: Sequence[int], kernel: int = 4, stride: int = 2, padding: int = 1, further: int = 0, *, channels: int = 2,
    filters: int = 3, next_filters: int = 0, dilation: int = 1, groups: int = 1,
) -> Graph:  # fmt: skip
    """relu(transposed convolution * scale), and with ``next_filters`` a convolution of 1x1 of that."""
    rank = len(extents)
    x = Value("x", TensorType((2, channels, *extents), float32))
    w = Value("w", TensorType((channels, filters // groups, *[kernel] * rank), float32))
    bias = Value("bias", TensorType((filters,), float32))
    scale = Value("scale", TensorType((filters, *[1] * rank), float32))
    last = Value("last", TensorType((next_filters, filters, *[1] * rank), float32))
    constants = (w, bias, scale, *((last,) if next_filters else ()))
    b = GraphBuilder([v.name for v in (x, *constants)])
    sides = ([stride] * rank, [padding] * rank, [dilation] * rank, [further] * rank)
    y = transposed_convolution(b, x, w, bias, *sides, groups, "tf32")
    y = b.node("relu", b.node("mul", y, scale))
    if next_filters:
        plain = {"stride": (1,) * rank, "before": (0,) * rank, "behind": (0,) * rank, "dilation": (1,) * rank}
        y = b.node("convolution", y, last, **plain, precision="tf32")
    return check_graph(Graph((x,), constants, b.nodes, (y.name,)))


@given(
    extents=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    stride=st.integers(1, 3),
    kernel=st.integers(1, 5),
    padding=st.integers(0, 2),
    further=st.integers(0, 1),
    next_filters=st.sampled_from([0, 2]),
    dilation=st.integers(1, 3),
    groups=st.integers(1, 2),
)
@settings(max_examples=80, deadline=None)
def test_values_stay(
    extents: list[int],
    stride: int,
    kernel: int,
    padding: int,
    further: int,
    next_filters: int,
    dilation: int,
    groups: int,
) -> None:
    span = dilation * (kernel - 1) + 1
    counts = [(n - 1) * stride + span - 2 * padding + further for n in extents]
    if min(counts) < 1 or further >= stride or padding >= span:
        return
    before = decoder(
        extents, kernel, stride, padding, further,
        channels=2 * groups, filters=3 * groups, next_filters=next_filters, dilation=dilation, groups=groups,
    )  # fmt: skip
    after = drop_unused(use_subpixels(before))
    check_equal(before, after, 1e-5)
    if stride > 1 and dilation == 1 and min(extents) > kernel:
        assert not any(node.op == "spread" for node in after.nodes)


@pytest.mark.parametrize(("stride", "dilation", "taps"), [(5, 2, 2), (2, 2, 3), (3, 2, 3), (4, 2, 2)])
def test_phases_of_a_dilated_kernel_see_few_places(stride: int, dilation: int, taps: int) -> None:
    """The image has no zeros between its pixels."""
    graph = decoder((8, 8), 3, stride, 1, channels=32, filters=16, dilation=dilation)
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    (product,) = (node for node in program.graph.nodes if node.op == "convolution")
    assert [program.graph.values[name].shape[1:3] for name in product.operands[:2]] == [(8, 8), (taps, taps)]
    assert len(program.kernels) == 2 and all(has_class(call.workload, H200) for call in program.kernels)
    data = arrays_for(graph)
    old, new = graph_reference(graph, data), results(program, data)
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=1e-4, atol=1e-4)


def test_a_window_of_all_phases_has_no_more_places_than_the_kernel() -> None:
    """With stride 2 and dilation 3 it would have 4 x 4 of them instead of 3 x 3."""
    graph = decoder((8, 8), 3, 2, 1, channels=32, filters=16, dilation=3)
    assert [node.op for node in use_subpixels(graph).nodes] == [node.op for node in graph.nodes]


def test_processors_multiply_no_zeros_between_pixels_either() -> None:
    graph = decoder((8, 8), 2, 2, 0, channels=32, filters=16, next_filters=8)
    program = compile_program(graph, lambda w: has_class(w, PROCESSOR))
    assert not any(node.op == "spread" for node in program.graph.nodes)
    products = 2 * (2 * 8 * 8) * (4 * 16) * 32
    assert products <= max(flops(call.workload) for call in program.kernels) < 1.1 * products


@pytest.mark.parametrize(("kernel", "further"), [(2, 0), (3, 0), (3, 1), (4, 0)])
def test_one_kernel_writes_what_a_transposed_convolution_gives(kernel: int, further: int) -> None:
    """Scale and activation are part of it, and its output has channels first."""
    graph = decoder((8, 8), kernel, 2, (kernel - 1) // 2, further, channels=32, filters=16)
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    *_, product = program.kernels
    assert len(program.kernels) == 2 and has_class(product.workload, H200)
    whole = kernel != 3 or further
    shape = program.graph.values[product.writes[0]].shape
    assert shape == ((2, 16, 8, 2, 8, 2) if whole else (2, 16, 15, 15))
    assert {"convolution", "mul", "relu"} <= {program.graph.producers[name].op for name in product.nodes}


def with_reader(op: str, **attributes: object) -> Graph:
    """A transposed convolution, and a reduction or a pool of what it gives."""
    graph = decoder((8, 8), channels=32, filters=16)
    b = GraphBuilder(list(graph.values))
    for node in graph.nodes:
        b.add(node)
    y = b.node(op, graph.values[graph.outputs[0]], **attributes)
    return check_graph(Graph(graph.inputs, graph.constants, b.nodes, (y.name,)))


@pytest.mark.parametrize(("op", "attributes"), [
    ("min", {"dims": (1,)}),
    ("mean", {"dims": (2, 3)}),
    ("max_pool", {"kernel": (3, 3), "stride": (2, 2), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1)}),
    ("group_norm", {"groups": 4, "epsilon": 1e-5}),
])  # fmt: skip
def test_what_a_transposed_convolution_gives_is_not_copied_for_its_reader(op: str, attributes: dict[str, Any]) -> None:
    """Its kernel stores the pixels where the reader wants them."""
    graph = with_reader(op, **attributes)
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    kernels = [{program.graph.producers[name].op for name in call.nodes} for call in program.kernels]
    assert len(kernels) == 3 and {"convolution", "relu"} <= kernels[1] and op in kernels[2] | {"group_norm"}
    assert all(has_class(call.workload, H200) for call in program.kernels)
    data = arrays_for(graph)
    old, new = graph_reference(graph, data), results(program, data)
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=1e-4, atol=1e-4)


def test_what_is_read_with_channels_last_keeps_them_together() -> None:
    """The next convolution reads whole rows of channels."""
    after = use_subpixels(decoder((8, 8), channels=32, filters=16, next_filters=8))
    permutes = [n for n in after.nodes if n.op == "permute" and n.result.shape[1:3] == (16, 8)]
    assert [n.attributes["order"] for n in permutes] == [(0, 3, 4, 1, 5, 2)]
    program = compile_program(after, lambda w: has_class(w, H200), gpu=True)
    assert all(isinstance(c, KernelCall) and has_class(c.workload, H200) for c in program.kernels)
