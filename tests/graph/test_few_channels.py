"""Images of few channels are stored as convolutions on matrix units load them fastest."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.random_graphs import arrays_for
from tests.schedule.gpu.tiles import H200
from tilewright.core.dtypes import DTYPES
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference
from tilewright.schedule.defaults import has_class
from tilewright.schedule.gpu.conv.space import CUDA_CONV
from tilewright.schedule.gpu.gemm.space import CUDA_GEMM


def image(
    channels: int, extents: Sequence[int], padding: int, dtype: str = "float32", kernel: int = 3, stride: int = 1, *,
    last: bool = False
) -> Graph:  # fmt: skip
    """A convolution of an image, whose channels are its ``last`` dimension in memory or its second one."""
    rank = len(extents)
    x = Value("x", TensorType((2, *extents, channels) if last else (2, channels, *extents), DTYPES[dtype]))
    w = Value("w", TensorType((16, channels, *[kernel] * rank), DTYPES[dtype]))
    b = GraphBuilder(["x", "w"])
    border = (padding,) * rank
    rounded = {"precision": "tf32"} if dtype == "float32" else {}
    pixels = b.node("permute", x, order=(0, rank + 1, *range(1, rank + 1))) if last else x
    y = b.node(
        "convolution", pixels, w, stride=(stride,) * rank, before=border, behind=border, dilation=(1,) * rank, **rounded
    )
    y = b.node("relu", y)
    return check_graph(Graph((x,), (w,), b.nodes, (y.name,)))


@pytest.mark.parametrize(("graph", "stored"), [
    (image(3, (5, 6, 10), 0), (2, 5, 6, 12, 3)),
    (image(3, (5, 6, 10), 1), (2, 5, 6, 12, 4)),
    (image(3, (5, 6, 10), 1, last=True), (2, 5, 6, 12, 4)),
    (image(3, (16, 16), 1), (2, 16, 20, 4)),
    (image(8, (8, 10), 1), (2, 8, 12, 8)),
    (image(1, (255,), 2, "float16", 5, 2), (2, 264, 1)),
    (image(1, (8, 128), 2, kernel=5), (2, 8, 132, 1)),
], ids=["volume", "padded volume", "channels last", "image", "padded image", "line", "one channel"])  # fmt: skip
def test_rows_are_stored_with_their_border_and_a_pitch(graph: Graph, stored: tuple[int, ...]) -> None:
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    copy, product, *_ = program.kernels
    assert program.graph.values[copy.writes[0]].shape == stored
    gemm = CUDA_GEMM.matches(product.workload, H200)  # products take some lines as overlapping rows
    taken = CUDA_GEMM if gemm else CUDA_CONV
    knobs = [knob.name for knob in taken.space(product.workload, H200, limit=64).knobs]
    assert taken is CUDA_GEMM or "row_taps" in knobs
    data = {name: a.astype(graph.values[name].dtype.numpy) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    np.testing.assert_allclose(new[program.graph.outputs[0]], old[graph.outputs[0]], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("graph", [
    image(3, (16, 16), 1, stride=2), image(32, (16, 16), 1), image(8, (16, 16), 0), image(8, (16, 16), 0, kernel=1)
], ids=["folded", "whole lines", "as they are", "one place"])  # fmt: skip
def test_other_images_are_permuted_alone(graph: Graph) -> None:
    program = compile_program(graph, lambda w: has_class(w, H200), gpu=True)
    changing = [node for node in program.graph.nodes if node.name not in program.graph.fixed]
    assert not any(node.op == "pad" for node in changing)
