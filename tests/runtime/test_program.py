"""Programs run as kernels on NumPy arrays."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from tests.random_graphs import arrays_for, graphs, residual_block
from tilewright.codegen.lowering import build
from tilewright.core.dtypes import float32
from tilewright.core.errors import InvalidParameter
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.graph.reference import graph_reference
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.numpy_tensors import NumpyTensors
from tilewright.runtime.program import MOST_STREAMS, BoundProgram
from tilewright.runtime.tensor_library import Capture, Launch
from tilewright.schedule.defaults import default_schedule, has_class


def bound(graph: Graph, library: NumpyTensors | None = None) -> BoundProgram:
    device = CpuDevice()
    program = compile_program(graph, lambda w: has_class(w, device.target))
    kernels = {
        key: device.load(build(task.workload, device.target, default_schedule(task.workload, device.target)))
        for key, task in program.tasks.items()
    }
    return BoundProgram(program, kernels, library or NumpyTensors())


def run(program: BoundProgram, graph: Graph, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    return program([data[v.name] for v in graph.inputs], [data[v.name] for v in graph.constants])


def check(found: list[np.ndarray], graph: Graph, data: dict[str, np.ndarray]) -> None:
    expected = graph_reference(graph, data)
    for name, array in zip(graph.outputs, found, strict=True):
        size = np.abs(expected[name]).max(initial=1.0)
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=2e-6 * size)


@settings(max_examples=20, deadline=None)
@given(graph=graphs())
def test_random_programs_are_right(graph: Graph) -> None:
    data = arrays_for(graph)
    check(run(bound(graph), graph, data), graph, data)


def test_a_convolutional_network_is_right_with_new_weights_too() -> None:
    graph = residual_block()
    program = bound(graph)
    for seed in (0, 0, 1):
        data = arrays_for(graph, seed)
        data["v"] = np.abs(data["v"])
        check(run(program, graph, data), graph, data)


def test_inputs_that_are_not_dense_or_aligned_are_copied() -> None:
    x = Value("x", TensorType((6, 4), float32))
    b = GraphBuilder(["x"])
    y = b.node("exp", x)
    graph = check_graph(Graph((x,), (), b.nodes, (y.name,)))
    program = bound(graph)
    block = np.random.default_rng(0).random(100).astype(np.float32)
    for array in (block[1:25].reshape(6, 4), block[:48].reshape(6, 8)[:, ::2], block[:24].reshape(4, 6).T):
        check(run(program, graph, {"x": array}), graph, {"x": array})
    with pytest.raises(InvalidParameter, match="needed"):
        run(program, graph, {"x": block[:24]})
    with pytest.raises(InvalidParameter, match="needed"):
        run(program, graph, {"x": block[:24].reshape(6, 4).astype(np.float64)})


def test_outputs_are_fresh_and_inputs_are_overwritten_at_the_end() -> None:
    x = Value("x", TensorType((4,), float32))
    w = Value("w", TensorType((4,), float32))
    b = GraphBuilder(["x", "w"])
    y, z = b.node("exp", x), b.node("square", w)
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name, z.name, "x"), (("x", y.name),)))
    program = bound(graph)
    one, two = np.ones(4, np.float32), np.full(4, 2, np.float32)
    first, kept, given = program([one], [two], overwrite=False)
    assert first[0] == pytest.approx(np.e) and given[0] == one[0] == 1 and kept[0] == 4
    second, again, _ = program([one], [two])
    assert second[0] == one[0] == pytest.approx(np.e) and second is not one
    third, _, before = program([one], [two])
    assert before is not one and before[0] == pytest.approx(np.e)
    assert third[0] == one[0] == pytest.approx(np.exp(np.e)) and second[0] == first[0] == pytest.approx(np.e)
    assert kept is not again


def test_small_updates_that_nobody_else_sees_lie_in_the_arena_until_the_end() -> None:
    kinds = {"count": TensorType((1,), float32), "mean": TensorType((64,), float32), "x": TensorType((64, 64), float32)}
    values = {name: Value(name, kind) for name, kind in kinds.items()}
    b = GraphBuilder(list(values))
    count, mean = b.node("exp", values["count"]), b.node("square", values["mean"])
    y = b.node("add", values["x"], b.node("square", b.node("mean", values["x"], dims=(1,), keep=True)))
    updates = (("count", count.name), ("mean", mean.name))
    program = bound(check_graph(Graph(tuple(values.values()), (), b.nodes, (y.name,), updates)))
    random = np.random.default_rng(0)
    data = {name: random.random(kind.shape).astype(np.float32) for name, kind in kinds.items()}
    wanted = {"count": np.exp(data["count"]), "mean": data["mean"] ** 2}
    assert {count.name, mean.name} <= program.program.arena.offsets.keys()
    program(list(data.values()), [])
    for name, array in wanted.items():
        np.testing.assert_allclose(data[name], array, rtol=1e-6)


def test_inputs_that_take_each_others_values_are_exchanged() -> None:
    a, b = (Value(name, TensorType((4,), float32)) for name in "ab")
    builder = GraphBuilder(["a", "b"])
    y = builder.node("add", a, b)
    program = bound(check_graph(Graph((a, b), (), builder.nodes, (y.name,), (("a", "b"), ("b", "a")))))
    one, two = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
    (total,) = program([one, two], [])
    assert (total[0], one[0], two[0]) == (3, 2, 1)


class Capturing(NumpyTensors):
    """Arrays with a stream that can be chosen, and graphs of kernels that are counted."""

    handle, graphs, captured = 1, 0, False
    output: np.ndarray | None = None
    """What the next result is written to."""

    def allocator(self, kind: TensorType) -> Callable[[], np.ndarray]:
        allocate = super().allocator(kind)
        return lambda: allocate() if self.output is None else self.output

    def stream(self) -> int:
        return self.handle

    def is_captured(self) -> bool:
        return self.captured

    def capture(self) -> Capture:
        def whole(launch: Launch) -> Launch:
            self.graphs += 1
            return lambda stream: launch(stream)

        return whole


def three_kernels() -> Graph:
    """Two products and a softmax, which no kernel computes together."""
    x, w = Value("x", TensorType((16, 16), float32)), Value("w", TensorType((16, 16), float32))
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", b.node("softmax", b.node("matmul", x, w), dim=1), w)
    return check_graph(Graph((x,), (w,), b.nodes, (y.name,)))


def test_kernels_are_captured_where_their_addresses_come_again() -> None:
    graph, library = three_kernels(), Capturing()
    program = bound(graph, library)
    data = arrays_for(graph)
    w, block = data["w"], np.empty((4, 16, 16), np.float32)
    assert len(program.program.kernels) > 1
    for position, made in ((0, 0), (0, 1), (0, 1), (1, 1), (1, 2), (0, 2)):
        x = block[position]
        x[...] = np.random.default_rng(position).random((16, 16))
        library.output = block[2 + position]
        check(program([x], [w]), graph, {"x": x, "w": w})
        assert library.graphs == made
    w += 1  # in place: the same addresses
    check(program([block[0]], [w]), graph, {"x": block[0], "w": w})


def test_streams_have_arenas_of_their_own() -> None:
    graph, library = three_kernels(), Capturing()
    program = bound(graph, library)
    data = arrays_for(graph)
    for handle in (1, 2, 3, 1, 4, 5, 6, 1):
        library.handle = handle
        check(run(program, graph, data), graph, data)
    arenas = [stream.arena for stream in program._streams.values()]
    assert len({library.address(arena) for arena in arenas}) == len(arenas) == MOST_STREAMS


def test_what_a_graph_of_the_caller_has_captured_stays_and_is_launched_one_by_one() -> None:
    graph, library = three_kernels(), Capturing()
    program = bound(graph, library)
    data = arrays_for(graph)
    library.captured = True
    for _ in range(3):
        run(program, graph, data)
    assert not library.graphs
    (arena,) = (stream.arena for stream in program._streams.values())
    library.captured = False
    for handle in range(2, 2 + MOST_STREAMS):
        library.handle = handle
        run(program, graph, data)
    assert [stream.arena is arena for stream in program._captured] == [True]
    other = program.with_kernels(program._kernels)
    assert other._captured[0].arena is arena
