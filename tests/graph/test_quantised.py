"""Products of quantised numbers: exact sums of bytes less their zero points, and where floats become such."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.core.dtypes import dtype_of_numpy
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.integer_products import QuantisedFactor, integer_convolution, integer_matmul
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes.quantised import multiply_quantised
from tilewright.graph.reference import graph_reference

Array = NDArray[Any]


class Model(GraphBuilder):
    """A graph with the data of its inputs and constants."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.draw = np.random.default_rng(seed)
        self.data: dict[str, Array] = {}
        self.values: dict[bool, list[Value]] = {False: [], True: []}

    def given(self, array: Array, *, constant: bool = True) -> Value:
        value = Value(self.name("v"), TensorType(array.shape, dtype_of_numpy(array.dtype)))
        self.values[constant].append(value)
        self.data[value.name] = array
        return value

    def bytes_of(self, dtype: str, *shape: int, constant: bool = True) -> Value:
        info = np.iinfo(dtype)
        return self.given(self.draw.integers(info.min, info.max + 1, shape).astype(dtype), constant=constant)

    def scales(self, *shape: int) -> Value:
        return self.given(self.draw.uniform(0.5, 2, shape).astype(np.float32))

    def dequantised(self, values: Value, zero: Value | None, scale: Value) -> Value:
        y = self.node("cast", values, dtype="float32")
        y = y if zero is None else self.node("sub", y, self.node("cast", zero, dtype="float32"))
        return self.node("mul", y, scale)

    def graph(self, y: Value) -> Graph:
        return check_graph(Graph(tuple(self.values[False]), tuple(self.values[True]), self.nodes, (y.name,)))

    def array(self, value: Value | None) -> Any:
        return 0 if value is None else self.data[value.name].astype(np.int64)


def sums_of_bytes(graph: Graph) -> list[str]:
    """The products of ``graph`` that are summed up in int32."""
    return [n.op for n in graph.nodes if n.attributes.get("accumulate") == "int32"]


ZEROS = st.sampled_from(["none", "number", "each"])
BYTES = st.sampled_from(["int8", "uint8"])


@settings(max_examples=40, deadline=None)
@given(left=BYTES, right=BYTES, p=ZEROS, q=ZEROS, sizes=st.tuples(*[st.integers(1, 9)] * 3), seed=st.integers(0, 99))
def test_products_of_matrices_are_exact(
    left: str, right: str, p: str, q: str, sizes: tuple[int, int, int], seed: int
) -> None:
    b, (m, k, n) = Model(seed), sizes
    x, w = b.bytes_of(left, 2, m, k, constant=False), b.bytes_of(right, k, n)
    zero = {"none": None, "number": b.bytes_of(left), "each": b.bytes_of(left, m, 1)}[p]
    other = {"none": None, "number": b.bytes_of(right), "each": b.bytes_of(right, 1, n)}[q]
    y = integer_matmul(b, QuantisedFactor(x, zero), QuantisedFactor(w, other))
    (found,) = graph_reference(b.graph(y), b.data).values()
    np.testing.assert_array_equal(found, (b.array(x) - b.array(zero)) @ (b.array(w) - b.array(other)))


@settings(max_examples=40, deadline=None)
@given(left=BYTES, right=BYTES, p=ZEROS, q=ZEROS, groups=st.sampled_from([1, 3]), pads=st.integers(0, 2))
def test_convolutions_are_exact_where_windows_see_the_border(
    left: str, right: str, p: str, q: str, groups: int, pads: int
) -> None:
    b = Model()
    x, w = b.bytes_of(left, 2, 3, 5, 4, constant=False), b.bytes_of(right, 6, 3 // groups, 3, 2)
    zero = None if p == "none" else b.bytes_of(left)
    other = {"none": None, "number": b.bytes_of(right), "each": b.bytes_of(right, 6, 1, 1)}[q]
    window = {"stride": (1, 2), "before": (pads, 0), "behind": (0, pads), "dilation": (1, 1), "groups": groups}
    y = integer_convolution(b, QuantisedFactor(x, zero), QuantisedFactor(w, other), **window)
    (found,) = graph_reference(b.graph(y), b.data).values()
    exact = Model()
    image = exact.given((b.array(x) - b.array(zero)).astype(np.float64), constant=False)
    filters = (b.array(w) - (0 if other is None else b.array(other)[..., None])).astype(np.float64)
    (wanted,) = graph_reference(
        exact.graph(exact.node("convolution", image, exact.given(filters), **window)), exact.data
    ).values()
    np.testing.assert_array_equal(found, wanted)


def test_sums_of_int32_wrap_around() -> None:
    b = Model()
    x, w = b.given(np.full((1, 40_000), 255, np.uint8), constant=False), b.given(np.full((40_000, 1), -128, np.int8))
    other = b.given(np.array(127, np.int8))
    y = integer_matmul(b, QuantisedFactor(x), QuantisedFactor(w, other))
    (found,) = graph_reference(b.graph(y), b.data).values()
    assert found.item() == (-255 * 255 * 40_000 + (1 << 31)) % (1 << 32) - (1 << 31)


def linear(b: Model, *, columns: bool, zeros: bool, turned: bool) -> Value:
    """A product of dequantised bytes with scales of columns or of the whole, and perhaps with transposed weights."""
    x, w = b.bytes_of("uint8", 2, 6, 8, constant=False), b.bytes_of("int8", *((7, 8) if turned else (8, 7)))
    shape = ((7, 1) if turned else (1, 7)) if columns else ()
    zero, other = (b.bytes_of("uint8"), b.bytes_of("int8", *shape)) if zeros else (None, None)
    left, right = b.dequantised(x, zero, b.scales()), b.dequantised(w, other, b.scales(*shape))
    return b.node("matmul", left, b.node("permute", right, order=(1, 0)) if turned else right)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_dequantised_factors_are_multiplied_as_bytes(columns: bool, zeros: bool, turned: bool) -> None:
    b = Model()
    graph = b.graph(linear(b, columns=columns, zeros=zeros, turned=turned))
    found = multiply_quantised(graph)
    assert sums_of_bytes(found) == ["matmul"]
    (before,), (after,) = (graph_reference(g, b.data).values() for g in (graph, found))
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 2])
def test_dequantised_images_and_filters_are_multiplied_as_bytes(groups: int) -> None:
    b = Model()
    x, w = b.bytes_of("uint8", 2, 4, 6, 5, constant=False), b.bytes_of("int8", 6, 4 // groups, 3, 3)
    left = b.dequantised(x, b.bytes_of("uint8"), b.scales())
    right = b.dequantised(w, b.bytes_of("int8", 6, 1, 1, 1), b.scales(6, 1, 1, 1))
    window = {"stride": (1, 1), "before": (1, 1), "behind": (1, 1), "dilation": (1, 1), "groups": groups}
    graph = b.graph(b.node("convolution", left, right, b.scales(6), **window))
    found = multiply_quantised(graph)
    assert "convolution" in sums_of_bytes(found)
    (before,), (after,) = (graph_reference(g, b.data).values() for g in (graph, found))
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-9)


def _two_inputs(b: Model) -> Value:
    x, w = b.bytes_of("int8", 6, 8, constant=False), b.bytes_of("int8", 8, 7, constant=False)
    return b.node("matmul", b.dequantised(x, None, b.scales()), b.dequantised(w, None, b.scales()))


def _scales_of_terms(b: Model) -> Value:
    x, w = b.bytes_of("int8", 6, 8, constant=False), b.bytes_of("int8", 8, 7)
    return b.node("matmul", b.dequantised(x, None, b.scales()), b.dequantised(w, None, b.scales(8, 1)))


def _too_many_terms(b: Model) -> Value:
    x, w = b.bytes_of("int8", 1, 40_000, constant=False), b.bytes_of("int8", 40_000, 1)
    return b.node("matmul", b.dequantised(x, None, b.scales()), b.dequantised(w, None, b.scales()))


def _plain_weights(b: Model) -> Value:
    x = b.bytes_of("int8", 6, 8, constant=False)
    return b.node("matmul", b.dequantised(x, None, b.scales()), b.scales(8, 7))


def _zero_points_that_are_no_bytes(b: Model) -> Value:
    x, w = b.node("cast", b.bytes_of("int8", 6, 8, constant=False), dtype="float32"), b.bytes_of("int8", 8, 7)
    half = b.node("full", shape=(), value=0.5, dtype="float32")
    left = b.node("mul", b.node("sub", x, half), b.scales())
    return b.node("matmul", left, b.dequantised(w, None, b.scales()))


@pytest.mark.parametrize(
    "make", [_two_inputs, _scales_of_terms, _too_many_terms, _plain_weights, _zero_points_that_are_no_bytes]
)
def test_what_stays_a_product_of_floats(make: Any) -> None:
    b = Model()
    graph = b.graph(make(b))
    assert multiply_quantised(graph) == graph
