"""Convolutions of few channels compute several pixels of a row at once: the same values, in kernels of a class."""

from collections.abc import Callable

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
from tilewright.graph.passes.pixels_at_once import PixelWindow
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference
from tilewright.schedule.defaults import has_class
from tilewright.schedule.gpu.conv.space import CUDA_CONV

Behind = Callable[[GraphBuilder, Value], Value]


def image(
    shape: tuple[int, ...], kernel: tuple[int, ...], filters: int = 16, dtype: str = "float32",
    stride: tuple[int, ...] = (), padding: tuple[int, ...] = (), behind: Behind | None = None, precision: str = "tf32",
) -> Graph:  # fmt: skip
    """A convolution with a bias, and what is behind it."""
    rank, x = len(kernel), Value("x", TensorType(shape, DTYPES[dtype]))
    w = Value("w", TensorType((filters, shape[1], *kernel), DTYPES[dtype]))
    bias = Value("bias", TensorType((filters,), DTYPES[dtype]))
    b, border = GraphBuilder(["x", "w", "bias"]), padding or (0,) * rank
    rounded = {"precision": precision} if dtype == "float32" else {}
    sides = {"stride": stride or (1,) * rank, "before": border, "behind": border, "dilation": (1,) * rank}
    y = b.node("convolution", x, w, bias, **sides, **rounded)
    y = y if behind is None else behind(b, y)
    return check_graph(Graph((x,), (w, bias), b.nodes, (y.name,)))


def _swish(b: GraphBuilder, y: Value) -> Value:
    return b.node("mul", y, b.node("sigmoid", y))


def _least(b: GraphBuilder, y: Value) -> Value:
    return b.node("tanh", b.node("min", b.node("relu", y), dims=(1,)))


def _norm(b: GraphBuilder, y: Value) -> Value:
    return b.node("group_norm", y, groups=4, epsilon=1e-5)


def _filters(graph: Graph) -> int:
    """How many filters the one convolution of a graph has."""
    (product,) = (node for node in graph.nodes if node.op == "convolution")
    last = product.attributes.get("channels_last", False) and not product.attributes["filters_first"]
    return graph.values[product.operands[1]].shape[-1 if last else 0]


CASES: dict[str, tuple[Graph, int]] = {
    "volume": (image((2, 3, 5, 6, 26), (3, 3, 3)), 6),
    "image": (image((2, 3, 8, 34), (3, 3), filters=24, behind=_swish), 4),
    "line": (image((2, 3, 130), (7,)), 12),
    "row with a rest": (image((2, 3, 8, 33), (3, 3), filters=24, behind=_swish), 4),
    "halves": (image((2, 4, 8, 34), (3, 3), dtype="float16"), 8),
    "stride": (image((1, 4, 5, 6, 17), (3, 3, 3), stride=(2, 2, 2), padding=(1, 1, 1)), 3),
    "least of all channels": (image((2, 4, 8, 34), (3, 3), behind=_least), 4),
    "statistics": (image((2, 4, 8, 34), (3, 3), behind=_norm), 4),
}
"""A graph, and how many pixels its windows compute."""


@pytest.mark.parametrize("case", CASES)
def test_values_stay_and_kernels_have_a_class(case: str) -> None:
    graph, pixels = CASES[case]
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    assert all(has_class(call.workload, H200) for call in program.kernels)
    assert _filters(program.graph) == pixels * _filters(graph)
    data = {name: a.astype(graph.values[name].dtype.numpy) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    close = 5e-3 if graph.inputs[0].dtype.bits == 16 else 1e-4
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=close, atol=close)


@pytest.mark.parametrize("case", ["image", "row with a rest", "halves", "line"])
def test_what_follows_is_part_of_the_kernel_that_stores_rows_of_pixels(case: str) -> None:
    """One kernel copies the image, and one stores pixels side by side."""
    program = compile_program(CASES[case][0], lambda w: has_class(w, H200), gpu=True)
    _, product = program.kernels
    assert assert_agrees(CUDA_CONV, product.workload, 1, H200) == 1


@given(
    channels=st.integers(1, 8),
    extents=st.lists(st.integers(3, 13), min_size=1, max_size=3),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    behind=st.sampled_from([None, _swish, _least]),
    dtype=st.sampled_from(["float32", "float16"]),
)
@settings(max_examples=60, deadline=None)
def test_any_image_keeps_its_values(
    channels: int, extents: list[int], kernel: int, stride: int, padding: int, behind: Behind | None, dtype: str
) -> None:
    rank = len(extents)
    if min(extents) + 2 * padding < kernel:
        return
    graph = image(
        (2, channels, *extents), (kernel,) * rank, 2, dtype, (stride,) * rank, (padding,) * rank, behind
    )  # fmt: skip
    data, after = arrays_for(graph), check_graph(simplify_graph(graph, gpu=True))
    old, new = graph_reference(graph, data), graph_reference(after, data)
    np.testing.assert_allclose(new[after.outputs[0]], old[graph.outputs[0]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph", [
    image((2, 3, 8, 32), (3, 3), precision="ieee"),
    image((2, 3, 8, 32), (3, 3), filters=256),
    image((2, 16, 8, 32), (3, 3)),
    image((2, 3, 16, 32), (7, 7), stride=(2, 2)),
    image((2, 3, 8, 32), (1, 1)),
], ids=["exact", "many filters", "many channels", "folded rows", "one place"])  # fmt: skip
def test_others_compute_each_pixel_on_its_own(graph: Graph) -> None:
    assert _filters(simplify_graph(graph, gpu=True)) == _filters(graph)


def test_windows_of_several_pixels_fill_a_line() -> None:
    """A window of 3 places with 4 channels fills 48 of 128 bytes; 6 of these see 8 places."""
    row = PixelWindow(channels=4, taps=3, stride=1, positions=30, filters=24, bytes=4)
    assert row.pixels() == 6 and row.seen(6, *row.chunk(6)) == 128
    assert row.cost(6) < 0.5 * row.cost(1)
    assert PixelWindow(channels=4, taps=3, stride=1, positions=31, filters=24, bytes=4).pixels() == 1
