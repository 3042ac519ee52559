"""Columns of large tensors whose rows no vector divides are reduced in two steps."""

import pytest

from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of, kernels
from tilewright.core.dtypes import DType, float16, float32, int32
from tilewright.graph.graph import Value
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program


def _shapes(shape: tuple[int, ...], dims: tuple[int, ...], op: str = "sum", dtype: DType = float32) -> list[object]:
    """The shapes that the kernels of a reduction read."""
    x = Value("x", TensorType(shape, dtype))
    program = compile_program(graph_of(lambda b, x: b.node(op, x, dims=dims), x), on_hopper, gpu=True)
    return [call.workload.inputs[0].shape for call in program.kernels]


def test_rows_are_taken_together_and_the_result_is_the_same() -> None:
    x = Value("x", TensorType((2, 8192, 1025), float32))
    assert kernels(graph_of(lambda b, x: b.node("relu", b.node("mean", x, dims=(1,), keep=True)), x)) == [
        "mean",
        "mean relu",
    ]


@pytest.mark.parametrize(
    ("shape", "dims", "dtype", "expected"),
    [
        ((128, 2048, 1023), (1,), float32, [(128, 512, 4092), (128, 4, 1023)]),
        ((64, 64, 64, 514), (1, 2), float32, [(64, 2048, 1028), (64, 2, 514)]),
        ((1 << 22, 7), (0,), float32, [(1 << 16, 448), (64, 7)]),
        ((8, 16384, 513), (1,), float16, [(8, 2048, 4104), (8, 8, 513)]),
    ],
    ids=["middle", "even", "short", "halves"],
)
def test_as_many_rows_as_vectors_need(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType, expected: list[object]
) -> None:
    assert _shapes(shape, dims, dtype=dtype) == expected


@pytest.mark.parametrize(
    ("shape", "dims", "dtype"),
    [
        ((128, 2048, 1024), (1,), float32),  # vectors divide the rows
        ((8, 2048, 1023), (1,), float32),  # small
        ((32768, 512, 31), (1,), float32),  # few rows, which stay in a cache
        ((128, 2047, 1023), (1,), float32),  # an odd number of rows
        ((128, 2048, 1023), (1,), int32),
        ((16384, 2047), (1,), float32),  # rows
    ],
    ids=["whole vectors", "small", "cached", "odd", "integers", "rows"],
)
def test_what_is_reduced_at_once(shape: tuple[int, ...], dims: tuple[int, ...], dtype: DType) -> None:
    assert len(_shapes(shape, dims, "max", dtype)) == 1
