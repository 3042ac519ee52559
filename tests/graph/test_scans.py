"""Running sums and products: one kernel each, in whatever way a model writes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.test_channels_last import results
from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of, kernels
from tests.random_graphs import arrays_for
from tilewright.core.dtypes import float32
from tilewright.graph.graph import GraphBuilder, Value
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference

Write = Callable[[GraphBuilder, Value], Any]


def value(*shape: int) -> Value:
    return Value("x", TensorType(shape, float32))


def scan(b: GraphBuilder, x: Value, dim: int = 1, op: str = "running_sum", **flags: bool) -> Value:
    return b.node(op, x, dim=dim, **flags)


def zeros(b: GraphBuilder, *shape: int, number: float = 0.0) -> Value:
    return b.node("full", shape=shape, value=number, dtype="float32")


def but_the_last(b: GraphBuilder, x: Value) -> Value:
    return b.node("slice", x, dim=1, start=0, stop=x.shape[1] - 1)


def but_the_first(b: GraphBuilder, x: Value) -> Value:
    return b.node("slice", x, dim=1, start=1, stop=x.shape[1])


def flipped(b: GraphBuilder, x: Value) -> Value:
    return b.node("flip", x, dims=(1,))


@pytest.mark.parametrize("op", ["running_sum", "running_product", "running_max"])
@pytest.mark.parametrize(("shape", "dim"), [((3, 300), 1), ((40, 8), 0), ((2, 33, 4), 1), ((2, 9), 1), ((7,), 0)])
def test_a_scan_with_what_is_around_it_is_one_kernel(op: str, shape: tuple[int, ...], dim: int) -> None:
    found = kernels(graph_of(lambda b, x: b.node("mul", scan(b, b.node("exp", x), dim, op), x), value(*shape)))
    assert found == [f"exp {op} mul"]


FROM_THE_END: dict[str, Write] = {
    "flips": lambda b, x: flipped(b, scan(b, flipped(b, x))),
    "exclusive": lambda b, x: flipped(b, scan(b, flipped(b, x), exclusive=True)),
}
EXCLUSIVE: dict[str, Write] = {
    "pad of a scan": lambda b, x: b.node("pad", but_the_last(b, scan(b, x)), before=(0, 1), behind=(0, 0)),
    "scan of a pad": lambda b, x: scan(b, b.node("pad", but_the_last(b, x), before=(0, 1), behind=(0, 0))),
    "zeros ahead": lambda b, x: b.node("concatenate", zeros(b, 3, 1), but_the_last(b, scan(b, x)), dim=1),
    "zeros behind": lambda b, x: b.node(
        "concatenate", but_the_first(b, scan(b, x, reverse=True)), zeros(b, 3, 1), dim=1
    ),
    "ones ahead": lambda b, x: scan(
        b, b.node("concatenate", zeros(b, 3, 1, number=1.0), but_the_last(b, x), dim=1), op="running_product"
    ),
}


@pytest.mark.parametrize("name", [*FROM_THE_END, *EXCLUSIVE])
def test_other_directions_and_exclusive_forms_are_one_scan(name: str) -> None:
    write = (FROM_THE_END | EXCLUSIVE)[name]
    (found,) = kernels(graph_of(write, value(3, 64)))
    assert found in ("running_sum", "running_product")


@pytest.mark.parametrize("name", ["another number", "a flip alone", "the other end"])
def test_what_only_looks_like_one_keeps_its_results(name: str) -> None:
    write: dict[str, Write] = {
        "another number": lambda b, x: b.node(
            "concatenate", zeros(b, 3, 1, number=2.0), but_the_last(b, scan(b, x)), dim=1
        ),
        "a flip alone": lambda b, x: flipped(b, scan(b, x)),
        "the other end": lambda b, x: b.node("concatenate", but_the_first(b, scan(b, x)), zeros(b, 3, 1), dim=1),
    }
    assert len(kernels(graph_of(write[name], value(3, 64)))) <= 2


def test_a_masked_scan_is_one_kernel() -> None:
    def write(b: GraphBuilder, x: Value) -> Value:
        return scan(b, b.node("where", b.node("gt", x, zeros(b, 3, 64)), x, zeros(b, 3, 64)))

    assert kernels(graph_of(write, value(3, 64))) == ["gt where running_sum"]


@pytest.mark.parametrize(("shape", "dim", "count"), [
    ((20_000,), 0, 3), ((1, 9_000, 1), 1, 3), ((1, 10_007), 1, 4), ((1, 8_000), 1, 1), ((2, 9_000), 1, 1),
])  # fmt: skip
@pytest.mark.parametrize("flags", [{}, {"reverse": True, "exclusive": True}, {"op": "running_min"}])
def test_a_long_scan_that_is_alone_is_done_in_blocks_on_a_processor(
    flags: dict[str, Any], shape: tuple[int, ...], dim: int, count: int
) -> None:
    """The sums of the blocks, their scan, and the scan of each block with what is ahead of it; what was added to fill
    the last block is left out again where there is no other way. Kernels of GPUs share lines themselves."""
    graph = graph_of(lambda b, x: scan(b, x, dim, **flags), value(*shape))
    assert len(compile_program(graph, on_hopper, gpu=True).kernels) == 1
    program = compile_program(graph, lambda w: True)
    assert len(program.kernels) == count
    data = {name: a.astype(np.float32) for name, a in arrays_for(graph).items()}
    old, new = graph_reference(graph, data), results(program, data)
    for a, b in zip(graph.outputs, program.graph.outputs, strict=True):
        np.testing.assert_allclose(new[b], old[a], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_single_scan_of_any_length_is_within_the_limits(gpu: bool) -> None:
    """As one expression a scan of 2^28 elements has 2^56 points. That of the sums of its blocks has blocks of its own
    on a processor."""
    graph = graph_of(lambda b, x: scan(b, x, 0), value(1 << 28))
    program = compile_program(graph, on_hopper if gpu else lambda w: True, gpu=gpu)
    assert sum(" running_sum" in f" {' '.join(c.nodes)}" for c in program.kernels) == (2 if gpu else 3)
