"""Loops over time, whose steps read and write parts of values in their place."""

import numpy as np
import pytest

from tests.graph.test_reductions import graph_of
from tests.runtime.test_program import bound, check, run
from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.partition import JoinCall, ViewCall
from tilewright.graph.passes.steps import (
    join_before_products,
    join_steps_first,
    multiply_steps_at_once,
    put_steps_first,
)
from tilewright.graph.reference import graph_reference

STEPS = 12


def loop(width: int, *, along: int = 0, turned: bool = False, outputs: int = 2) -> Graph:
    """h = tanh(x[t] @ v + h @ w) and y[t] = h @ u + b, of x [t, 3, 8] or [3, t, 8]. ``outputs``: y alone, or the last
    state too."""
    shape = (STEPS, 3, 8) if along == 0 else (3, STEPS, 8)
    x = Value("x", TensorType(shape, float32))
    shapes = {"v": (8, width), "w": (width, width), "u": (width, 8), "b": (8,)}
    weights = [Value(name, TensorType(size, float32)) for name, size in shapes.items()]
    b = GraphBuilder(["x", *(w.name for w in weights)])
    v, w, u, bias = weights
    given = b.node("flip", x, dims=(along,)) if turned else x
    h: Value | None = None
    found = []
    for t in range(STEPS):
        part = b.node("reshape", b.node("slice", given, dim=along, start=t, stop=t + 1, step=1), shape=(3, 8))
        total = b.node("matmul", part, v)
        h = b.node("tanh", total if h is None else b.node("add", total, b.node("matmul", h, w)))
        y = b.node("add", b.node("matmul", h, u), bias)
        found.append(b.node("reshape", y, shape=(1, 3, 8) if along == 0 else (3, 1, 8)))
    assert h is not None
    joined = b.node("concatenate", *found, dim=along)
    return check_graph(Graph((x,), tuple(weights), b.nodes, (joined.name, h.name)[:outputs]))


def data_of(graph: Graph) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {v.name: draw.uniform(-0.5, 0.5, v.shape).astype(np.float32) for v in (*graph.inputs, *graph.constants)}


@pytest.mark.parametrize(("along", "turned"), [(0, False), (1, False), (0, True), (1, True)])
def test_what_steps_do_alike_is_done_at_once(along: int, turned: bool) -> None:
    """All products but those of the states with ``w`` are two."""
    graph = loop(16, along=along, turned=turned)
    rewritten = graph
    for apply in (put_steps_first, multiply_steps_at_once, join_steps_first, join_before_products):
        rewritten = check_graph(apply(rewritten))
    assert sum(n.op == "matmul" for n in rewritten.nodes) == STEPS + 1
    found, expected = (list(graph_reference(g, data_of(g)).values()) for g in (rewritten, graph))
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def test_what_is_no_loop_stays_as_it_is() -> None:
    """A few slices, and slices that no product needs, are indices of the kernels that read them."""

    def write(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
        rows = [b.node("exp", b.node("slice", x, dim=0, start=t, stop=t + 1, step=1)) for t in range(STEPS)]
        return b.node("concatenate", *rows, dim=0), b.node(
            "matmul", b.node("slice", x, dim=0, start=0, stop=2, step=1), x
        )

    graph = graph_of(write, Value("x", TensorType((STEPS, STEPS), float32)))
    for apply in (put_steps_first, multiply_steps_at_once, join_steps_first, join_before_products):
        assert apply(graph) is graph


@pytest.mark.parametrize("width", [16, 5])
@pytest.mark.parametrize("outputs", [1, 2])
def test_steps_share_kernels_and_copy_nothing_where_their_parts_are_aligned(width: int, outputs: int) -> None:
    """With 5 columns a part begins at no multiple of 16 bytes: then steps are indices, and the result is the same."""
    graph = loop(width, along=1, outputs=outputs)
    program = bound(graph)
    calls = program.program.calls
    views = [c for c in calls if isinstance(c, ViewCall) and c.offset]
    assert (len(views), sum(isinstance(c, JoinCall) for c in calls)) == ((STEPS - 1, 1) if width == 16 else (0, 0))
    if width == 16:
        assert len(program.program.tasks) <= 8
    for seed in (0, 1):
        data = data_of(graph)
        data["x"] += seed
        check(run(program, graph, data), graph, data)


def test_results_that_are_parts_of_others_have_memory_of_their_own() -> None:
    graph = loop(16)
    program, data = bound(graph), data_of(graph)
    y, h = run(program, graph, data)
    assert not np.shares_memory(y, h)
    before = h.copy()
    run(program, graph, {**data, "x": data["x"] + 1})
    np.testing.assert_array_equal(h, before)
