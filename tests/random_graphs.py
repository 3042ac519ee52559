"""Random small graphs: chains of views, pointwise nodes, rows, products and convolutions on a few values."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType

Draw = Callable[[st.SearchStrategy[Any]], Any]

UNARY = ("relu", "tanh", "sigmoid", "square", "neg", "gelu", "abs", "identity")
BINARY = ("add", "sub", "mul", "maximum")


def _reshape(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    shapes = [(x.elements,), (1, *x.shape), (x.shape[0], x.elements // x.shape[0]), (*x.shape, 1)]
    return b.node("reshape", x, shape=draw(st.sampled_from([s for s in shapes if len(s) <= 5])))


def _permute(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    return b.node("permute", x, order=tuple(draw(st.permutations(range(len(x.shape))))))


def _slice(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    d = draw(st.integers(0, len(x.shape) - 1))
    start = draw(st.integers(0, x.shape[d] - 1))
    return b.node("slice", x, dim=d, start=start, stop=x.shape[d], step=draw(st.integers(1, 2)))


def _pad(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    widths = tuple(draw(st.integers(0, 1)) for _ in x.shape)
    return b.node("pad", x, before=widths, behind=tuple(reversed(widths)), value=0.5)


def _rows(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    d = draw(st.integers(0, len(x.shape) - 1))
    op = draw(st.sampled_from(("softmax", "sum", "mean", "max")))
    if op == "softmax":
        return b.node(op, x, dim=d)
    return b.node(op, x, dims=(d,), keep=draw(st.booleans())) if len(x.shape) > 1 else b.node("relu", x)


def _matmul(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    if len(x.shape) < 2:
        return b.node("neg", x)
    return b.node(
        "matmul", x, b.node("permute", x, order=(*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2))
    )


def _pick(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    """An element of each row, as losses over classes pick it."""
    d = draw(st.integers(0, len(x.shape) - 1))
    place = b.node("full", shape=(), value=draw(st.integers(-2, 3)), dtype="int64")
    one = tuple(1 if e == d else n for e, n in enumerate(x.shape))
    y = b.node("log_softmax", x, dim=d)
    y = b.node("mul", y, x) if draw(st.booleans()) else y
    return b.node("gather_elements", y, b.node("expand", place, shape=one), dim=d)


def _take(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    """Slices, or elements, at places along a dimension, in the opposite order."""
    d = draw(st.integers(0, len(x.shape) - 1))
    places = b.node("range", count=x.shape[d], start=x.shape[d] - 1, step=-1, dtype="int64")
    if draw(st.booleans()):
        return b.node("gather", x, places, dim=d)
    column = b.node("reshape", places, shape=tuple(n if e == d else 1 for e, n in enumerate(x.shape)))
    return b.node("gather_elements", x, b.node("expand", column, shape=x.shape), dim=d)


STEPS = (_reshape, _permute, _slice, _pad, _rows, _matmul, _pick, _take)


@st.composite
def graphs(draw: Draw) -> Graph:
    """A checked graph of up to ten nodes with one or two outputs. Some values are read twice, some not at all."""
    shapes = ((2, 3, 4), (3, 4), (4,))
    inputs = [Value(f"x{n}", TensorType(s, float32)) for n, s in enumerate(shapes[: draw(st.integers(1, 3))])]
    constants = [Value("w", TensorType((3, 4), float32))]
    b = GraphBuilder([v.name for v in (*inputs, *constants)])
    values = [*inputs, *constants]
    for _ in range(draw(st.integers(1, 9))):
        x = draw(st.sampled_from(values))
        kind = draw(st.integers(0, 2))
        if kind == 0:
            values.append(b.node(draw(st.sampled_from(UNARY)), x))
        elif kind == 1:
            same = [v for v in values if v.shape == x.shape or v.shape == x.shape[len(x.shape) - len(v.shape) :]]
            values.append(b.node(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(same))))
        else:
            values.append(draw(st.sampled_from(STEPS))(draw, b, x))
    made = values[len(inputs) + 1 :]
    outputs = {made[-1].name, draw(st.sampled_from(made)).name}
    return check_graph(Graph(tuple(inputs), tuple(constants), b.nodes, tuple(sorted(outputs))))


def _convolution(draw: Draw, b: GraphBuilder, x: Value, constants: list[Value]) -> Value:
    rank, channels = len(x.shape) - 2, x.shape[1]
    groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
    filters, kernel = groups * draw(st.integers(1, 2)), tuple(draw(st.integers(1, min(3, n))) for n in x.shape[2:])
    border = tuple(draw(st.integers(0, 1)) for _ in kernel)
    operands = [x, _constant(b, constants, (filters, channels // groups, *kernel))]
    operands += [_constant(b, constants, (filters,))] if draw(st.booleans()) else []
    stride = tuple(draw(st.integers(1, 2)) for _ in kernel)
    return b.node("convolution", *operands, stride=stride, before=border, behind=(0,) * rank, dilation=(1,) * rank,
                  groups=groups, precision=draw(st.sampled_from(("ieee", "tf32"))))  # fmt: skip


def _constant(b: GraphBuilder, constants: list[Value], shape: tuple[int, ...]) -> Value:
    constants.append(Value(b.name("w"), TensorType(shape, float32)))
    return constants[-1]


def _pool(draw: Draw, b: GraphBuilder, x: Value) -> Value:
    kernel = tuple(draw(st.integers(1, min(2, n))) for n in x.shape[2:])
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    behind = tuple(k - 1 for k in kernel)
    return b.node(draw(st.sampled_from(("max_pool", "average_pool"))), x, kernel=kernel, stride=ones, before=zeros,
                  behind=behind, dilation=ones)  # fmt: skip


def _image_step(draw: Draw, b: GraphBuilder, x: Value, constants: list[Value]) -> Value:
    """A step that keeps the number of dimensions, with channels as the second."""
    rank, channels = len(x.shape), x.shape[1]
    d = draw(st.integers(0, rank - 1))
    kind = draw(st.integers(0, 13))
    if kind < 4:
        return _convolution(draw, b, x, constants)
    if kind == 4:
        return _pool(draw, b, x)
    if kind == 5:
        scale = draw(st.sampled_from([(channels, *[1] * (rank - 2)), (), (x.shape[0], channels, *[1] * (rank - 2))]))
        return b.node("mul", _constant(b, constants, scale), x)
    if kind == 6:
        mean = b.node("mean", x, dims=(0, *range(2, rank)))
        return b.node("batch_norm", x, *[_constant(b, constants, (channels,)) for _ in range(2)], mean,
                      b.node("square", mean), epsilon=0.5)  # fmt: skip
    if kind == 7:
        return b.node("concatenate", x, b.node("neg", x), dim=d)
    if kind == 8:
        return b.node("softmax", x, dim=d)
    if kind == 9:
        return b.node("mul", x, b.node("mean", x, dims=tuple(range(2, rank)), keep=True))
    if kind == 10:
        return b.node("repeat", b.node("flip", x, dims=(d,)), dim=d, times=2)
    if kind == 11:
        return _pad(draw, b, _slice(draw, b, x))
    if kind == 12:
        whole = b.node("reshape", x, shape=(x.shape[0], channels, x.elements // x.shape[0] // channels))
        return b.node("reshape", b.node("relu", whole), shape=x.shape)
    last = b.node("permute", x, order=(0, *range(2, rank), 1))
    return b.node("permute", b.node("tanh", last), order=(0, rank - 1, *range(1, rank - 1)))


@st.composite
def image_graphs(draw: Draw) -> Graph:
    """A checked graph of convolutions over one to three dimensions and what goes with them."""
    rank = draw(st.integers(1, 3))
    shape = (2, 4, *draw(st.sampled_from([(3, 4, 2), (5, 1, 3)]))[:rank])
    x, constants = Value("x", TensorType(shape, float32)), list[Value]()
    b = GraphBuilder(["x"])
    values = [x if draw(st.booleans()) else b.node("permute", x, order=(0, *reversed(range(1, rank + 2))))]
    for _ in range(draw(st.integers(1, 6))):
        y = draw(st.sampled_from(values[-2:]))
        y = _image_step(draw, b, y, constants)
        same = [v for v in values if v.shape == y.shape]
        y = b.node("add", y, same[-1]) if same else b.node("relu", y)
        values += [y] if y.elements < 2000 else []
    y = draw(st.sampled_from((values[-1], b.node("sum", values[-1], dims=(draw(st.integers(0, rank + 1)),)))))
    outputs = tuple(dict.fromkeys((y.name, values[-1].name)))
    return check_graph(Graph((x,), tuple(constants), b.nodes, outputs))


def arrays_for(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random data for the inputs and constants of a graph."""
    draw = np.random.default_rng(seed)
    return {v.name: draw.uniform(-1, 1, v.shape).astype(np.float32) for v in (*graph.inputs, *graph.constants)}


def residual_block(precision: str = "ieee") -> Graph:
    """A small convolutional network: convolution, batch norm, relu, convolution, residual, pool, linear layer.
    ``precision``: that of its convolutions."""
    x = Value("x", TensorType((2, 8, 10, 10), float32))
    weights = {
        "w0": (16, 8, 3, 3), "w1": (16, 16, 3, 3), "w2": (16, 8, 1, 1), "g": (16,), "b": (16,), "m": (16,),
        "v": (16,), "f": (10, 16), "c": (10,),
    }  # fmt: skip
    constants = {n: Value(n, TensorType(s, float32)) for n, s in weights.items()}
    b = GraphBuilder(["x", *weights])
    same = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1), "precision": precision}
    plain = {**same, "before": (0, 0), "behind": (0, 0)}
    y = b.node("convolution", x, constants["w0"], **same)
    y = b.node("batch_norm", y, *(constants[n] for n in "gbmv"), epsilon=1e-3)
    y = b.node("convolution", b.node("relu", y), constants["w1"], **same)
    y = b.node("relu", b.node("add", y, b.node("convolution", x, constants["w2"], **plain)))
    y = b.node("reshape", b.node("mean", y, dims=(2, 3), keep=True), shape=(2, 16))
    y = b.node("add", b.node("matmul", y, b.node("permute", constants["f"], order=(1, 0))), constants["c"])
    return check_graph(Graph((x,), tuple(constants.values()), b.nodes, (y.name,)))
