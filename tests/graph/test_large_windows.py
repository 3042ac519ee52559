"""Pools with windows of more than 64 points have kernel classes."""

from typing import Any

import pytest

from tests.graph.test_reductions import graph_of, kernels
from tilewright.core.dtypes import DTYPES
from tilewright.graph.graph import Graph, Value
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.passes.large_windows import split_large_windows


def graph(op: str, shape: tuple[int, ...], kernel: tuple[int, ...], dtype: str = "float32", **given: Any) -> Graph:
    plain = {"stride": kernel, **{name: (0,) * len(kernel) for name in ("before", "behind")}}
    window = {"kernel": kernel, "dilation": (1,) * len(kernel), **plain, **given}
    return graph_of(lambda b, x: b.node(op, x, **window), Value("x", TensorType(shape, DTYPES[dtype])))


def pooled(op: str, shape: tuple[int, ...], kernel: tuple[int, ...], **given: Any) -> list[str]:
    return kernels(graph(op, shape, kernel, **given))


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_dimensions_of_a_window_are_taken_one_after_the_other(op: str) -> None:
    assert pooled(op, (2, 3, 24, 25), (9, 11)) == [op, op]
    border: dict[str, Any] = {"stride": (1, 2), "before": (4, 3), "behind": (4, 5)}
    assert pooled(op, (2, 3, 12, 13), (9, 9), **border) == [op, op]
    assert pooled(op, (2, 3, 6, 7, 8), (5, 5, 5), before=(2, 1, 0), behind=(2, 1, 0)) == [op, op, op]
    if op == "average_pool":
        assert pooled(op, (2, 3, 12, 13), (9, 9), count_border=True, **border) == [op, op]


@pytest.mark.parametrize(("op", "reduction"), [("max_pool", "max"), ("average_pool", "mean")])
def test_windows_side_by_side_are_rows_or_columns(op: str, reduction: str) -> None:
    assert pooled(op, (2, 3, 160), (80,)) == [reduction]
    assert pooled(op, (2, 3, 150, 5), (70, 1)) == ["slice", reduction]


def test_means_of_16_bits_are_rounded_once() -> None:
    found = split_large_windows(graph("average_pool", (2, 3, 18, 22), (9, 11), "float16"))
    assert [n.op for n in found.nodes] == ["cast", "average_pool", "average_pool", "cast"]
    assert [n.result.dtype.bits for n in found.nodes] == [32, 32, 32, 16]
