"""Quantised ONNX models: integer operators are exact, and their products are products of 8-bit integers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from tests.runtime.test_program import bound, run  # noqa: E402
from tilewright.core.target import Target  # noqa: E402
from tilewright.graph.operators.products import Windows  # noqa: E402
from tilewright.graph.program import compile_program  # noqa: E402
from tilewright.importers.onnx.model import import_onnx  # noqa: E402
from tilewright.importers.weighted_graph import WeightedGraph  # noqa: E402
from tilewright.schedule.defaults import has_class  # noqa: E402
from tilewright.schedule.sketches import sketches_for  # noqa: E402

Array = NDArray[Any]
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
HOPPER = Target("cuda", "sm_90a", (), 132, 16)


def model_of(nodes: list[Any], inputs: Mapping[str, Array], weights: Mapping[str, Any], output: str) -> Any:
    """``inputs`` say the types of what every call gives."""
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    out = helper.make_tensor_value_info(output, onnx.TensorProto.UNDEFINED, None)
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "quantised", given, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def node_of(op: str, inputs: Mapping[str, Array], weights: Mapping[str, Any], **attributes: Any) -> Any:
    """A model of one node, whose operands are the inputs and weights in alphabetic order."""
    names = sorted({**inputs, **weights})
    return model_of([helper.make_node(op, names, ["y"], **attributes)], inputs, weights, "y")


def computed(found: WeightedGraph, inputs: Mapping[str, Array]) -> Array:
    given = {found.inputs[name]: a for name, a in inputs.items()}
    (y,) = run(bound(found.graph), found.graph, {**given, **found.weights})
    return np.asarray(y)


def bytes_of(draw: np.random.Generator, dtype: "np.dtype[Any]", *shape: int) -> Array:
    info = np.iinfo(dtype)
    return draw.integers(info.min, info.max + 1, shape).astype(dtype)


def sketches_on_hopper(found: WeightedGraph) -> list[str]:
    """The first sketch of each kernel with a product."""
    program = compile_program(found.graph, lambda w: has_class(w, HOPPER), gpu=True)
    products = [
        c for c in program.kernels if {program.graph.producers[n].op for n in c.nodes} & {"matmul", "convolution"}
    ]
    return [sketches_for(c.workload, HOPPER)[0].name for c in products]


@pytest.mark.parametrize("left", [INT8, UINT8])
@pytest.mark.parametrize("right", [INT8, UINT8])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_integer_products_are_exact(left: "np.dtype[Any]", right: "np.dtype[Any]", rows: bool, constant: bool) -> None:
    """With zero points of whole operands, or of each row and column."""
    draw = np.random.default_rng(7)
    m, k, n = (int(e) for e in draw.integers(20, 70, 3))
    x, w = bytes_of(draw, left, 2, m, k), bytes_of(draw, right, k, n)
    p, q = (
        (bytes_of(draw, left, m), bytes_of(draw, right, n)) if rows else (bytes_of(draw, left), bytes_of(draw, right))
    )
    inputs: dict[str, Array] = {"a": x}
    weights: dict[str, Array] = {"b": w, "c": p, "d": q}
    if not constant:
        inputs, weights = {**inputs, **weights}, {}
    found = import_onnx(node_of("MatMulInteger", inputs, weights))
    exact = (x.astype(np.int64) - p.reshape(-1, 1)) @ (w.astype(np.int64) - q)
    np.testing.assert_array_equal(computed(found, inputs), exact.astype(np.int32))


def test_long_sums_of_the_largest_bytes_are_exact() -> None:
    k = 20_000
    x, w = np.full((8, k), 255, np.uint8), np.full((k, 16), -128, np.int8)
    found = import_onnx(node_of("MatMulInteger", {"a": x}, {"b": w, "c": np.uint8(255), "d": np.int8(-128)}))
    assert not computed(found, {"a": x}).any()
    found = import_onnx(node_of("MatMulInteger", {"a": x}, {"b": w}))
    assert (computed(found, {"a": x}) == -128 * 255 * k).all()


def exact_convolution(x: Array, w: Array, groups: int, window: Mapping[str, Any]) -> Array:
    """Of whole numbers, which are 0 in the border."""
    windows = Windows(x.shape[2:], w.shape[2:], window["strides"], window["pads"][:2], window["pads"][2:],
                      window["dilations"])  # fmt: skip
    view = windows.numpy(x.astype(np.int64), 0).reshape(x.shape[0], groups, -1, *windows.counts, *w.shape[2:])
    filters = w.astype(np.int64).reshape(groups, -1, *w.shape[1:])
    total: Array = np.einsum("ngcyxhw,gochw->ngoyx", view, filters)
    return total.reshape(x.shape[0], w.shape[0], *windows.counts)


WINDOWS = [
    (1, {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}),
    (1, {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)}),
    (4, {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}),
]


@pytest.mark.parametrize(("groups", "window"), WINDOWS)
@pytest.mark.parametrize("left", [INT8, UINT8])
@pytest.mark.parametrize("right", [INT8, UINT8])
def test_integer_convolutions_are_exact_in_the_border_too(
    groups: int, window: dict[str, Any], left: "np.dtype[Any]", right: "np.dtype[Any]"
) -> None:
    draw = np.random.default_rng(3)
    x, w = bytes_of(draw, left, 2, 16, 9, 8), bytes_of(draw, right, 32, 16 // groups, 3, 3)
    p, q = bytes_of(draw, left), bytes_of(draw, right, 32)
    weights = {"b": w, "c": p, "d": q}
    found = import_onnx(node_of("ConvInteger", {"a": x}, weights, group=groups, **window))
    exact = exact_convolution(x.astype(int) - p, w.astype(int) - q.reshape(-1, 1, 1, 1), groups, window)
    np.testing.assert_array_equal(computed(found, {"a": x}), exact)


def requantised(total: Array, factor: Array, zero: int) -> Array:
    """As ONNX says: in float32, halves to even, moved to the nearest number of 8 bits without a sign."""
    scaled = total.astype(np.float32) * factor.astype(np.float32)
    return np.clip(np.rint(scaled) + np.float32(zero), 0, 255).astype(np.uint8)


def test_quantised_products_have_scales_of_columns() -> None:
    draw = np.random.default_rng(5)
    x, w = bytes_of(draw, UINT8, 48, 96), bytes_of(draw, INT8, 96, 80)
    scales = draw.uniform(0.5, 2, 80).astype(np.float32)
    weights = {"b": np.float32(0.5), "c": np.uint8(3), "d": w, "e": scales, "f": np.zeros(80, np.int8),
               "g": np.float32(512), "h": np.uint8(100)}  # fmt: skip
    found = import_onnx(node_of("QLinearMatMul", {"a": x}, weights))
    total = (x.astype(np.int64) - 3) @ w.astype(np.int64)
    expected = requantised(total, np.float32(0.5) * scales / np.float32(512), 100)
    np.testing.assert_array_equal(computed(found, {"a": x}), expected)


def test_quantised_convolutions_have_scales_of_filters_and_a_bias() -> None:
    draw = np.random.default_rng(6)
    x, w = bytes_of(draw, UINT8, 2, 16, 9, 9), bytes_of(draw, INT8, 24, 16, 3, 3)
    scales, bias = draw.uniform(0.5, 2, 24).astype(np.float32), draw.integers(-9999, 9999, 24).astype(np.int32)
    weights = {"b": np.float32(0.5), "c": np.uint8(7), "d": w, "e": scales, "f": np.zeros(24, np.int8),
               "g": np.float32(512), "h": np.uint8(100), "i": bias}  # fmt: skip
    found = import_onnx(node_of("QLinearConv", {"a": x}, weights, pads=(1, 1, 1, 1)))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    total = exact_convolution(x.astype(int) - 7, w, 1, window) + bias.reshape(-1, 1, 1)
    factor = np.float32(0.5) * scales / np.float32(512)
    np.testing.assert_array_equal(computed(found, {"a": x}), requantised(total, factor.reshape(-1, 1, 1), 100))


def test_integer_products_reach_matrix_units() -> None:
    """Where zero points are those of whole operands, and weights have a sign or are 128 less than one without."""
    draw = np.random.default_rng(0)
    for left, right in ((UINT8, INT8), (INT8, INT8), (UINT8, UINT8)):
        zero = bytes_of(draw, left), right.type(128 if right == UINT8 else 0)
        w = bytes_of(draw, right, 256, 512)
        product = import_onnx(
            node_of("MatMulInteger", {"a": np.zeros((384, 256), left)}, {"b": w, "c": zero[0], "d": zero[1]})
        )
        assert sketches_on_hopper(product) == ["cuda_gemm"]
        filters = bytes_of(draw, right, 64, 64, 3, 3)
        image = np.zeros((4, 64, 28, 28), left)
        weights = {"b": filters, "c": zero[0], "d": zero[1]}
        convolution = import_onnx(node_of("ConvInteger", {"a": image}, weights, pads=(1, 1, 1, 1)))
        assert sketches_on_hopper(convolution) == ["cuda_conv"]


def dequantised(name: str) -> Any:
    return helper.make_node("DequantizeLinear", [name, f"{name}_scale", f"{name}_zero"], [f"{name}_float"])


def test_models_in_qdq_form_multiply_bytes() -> None:
    """A layer with a bias, a ReLU and a quantised result: one kernel on a GPU, and what the floats would give."""
    draw = np.random.default_rng(2)
    x = draw.standard_normal((64, 128)).astype(np.float32)
    w, bias = bytes_of(draw, INT8, 128, 96), draw.standard_normal(96).astype(np.float32)
    weights = {"w": w, "w_scale": np.float32(0.004), "w_zero": np.int8(0),
               "x_scale": np.float32(0.03), "x_zero": np.uint8(121), "y_scale": np.float32(0.05),
               "y_zero": np.uint8(0), "bias": bias}  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["input", "x_scale", "x_zero"], ["x"]), dequantised("x"), dequantised("w"),
        helper.make_node("MatMul", ["x_float", "w_float"], ["m"]), helper.make_node("Add", ["m", "bias"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]), helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zero"], ["y"]),
    ]  # fmt: skip
    found = import_onnx(model_of(nodes, {"input": x}, weights, "y"))
    assert sketches_on_hopper(found) == ["cuda_gemm"]
    program = compile_program(found.graph, lambda w: has_class(w, HOPPER), gpu=True)
    assert [program.graph.values[c.writes[0]].dtype.name for c in program.kernels] == ["uint8", "uint8"]
    quantised = np.clip(np.rint(x / np.float32(0.03)) + 121, 0, 255)
    exact = (quantised - 121) * 0.03 @ (w * 0.004) + bias
    difference = computed(found, {"input": x}) - np.clip(np.rint(np.maximum(exact, 0) / 0.05), 0, 255)
    assert np.abs(difference).max() <= 1 and (difference != 0).mean() < 0.001
