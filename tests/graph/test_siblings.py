"""Kernels that are joined because they are alike."""

from tests.graph.test_products import on_hopper
from tests.graph.test_reductions import graph_of, kernels
from tilewright.core.dtypes import float32
from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.program import compile_program
from tilewright.te.workload import Workload

STEPS = 24
X = Value("x", TensorType((STEPS, 2, 32), float32))


def recurrence(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
    """Weighted means of all steps so far, as RWKV writes them out. Each of both sums is read twice."""
    found: list[Value] = []
    above = below = b.node("exp", part(b, x, 0))
    for t in range(1, STEPS):
        weight = b.node("exp", part(b, x, t))
        found.append(b.node("div", b.node("add", above, b.node("mul", weight, below)), b.node("add", below, weight)))
        above, below = b.node("add", b.node("tanh", above), weight), b.node("add", b.node("abs", below), weight)
    return tuple(found)


def part(b: GraphBuilder, x: Value, t: int) -> Value:
    return b.node("reshape", b.node("slice", x, dim=0, start=t, stop=t + 1, step=1), shape=x.shape[1:])


def test_steps_of_a_loop_are_one_kernel_that_is_written_few_times() -> None:
    """Classes are asked for kernels of 1, 2, 4, … more calls, and not for each call that is joined."""
    asked: list[Workload] = []

    def fits(workload: Workload) -> bool:
        asked.append(workload)
        return on_hopper(workload)

    graph = graph_of(recurrence, X)
    program = compile_program(graph, fits, gpu=True)
    assert len(program.kernels) == len(kernels(graph)) == 1
    assert len(asked) < STEPS


def test_no_more_is_joined_than_a_class_takes() -> None:
    """A class with at most 5 outputs gets what it takes, from kernels that are joined two by two."""

    def fits(workload: Workload) -> bool:
        return len(workload.outputs) <= 5

    names = ("sin", "cos", "exp", "tanh", "abs", "neg", "sqrt", "erf", "log", "floor", "ceil", "sigmoid")
    b = GraphBuilder(["x"])
    x = Value("x", TensorType((4, 32), float32))
    outputs = tuple(b.node(name, x).name for name in names)
    program = compile_program(check_graph(Graph((x,), (), b.nodes, outputs)), fits, gpu=True)
    assert [c.writes for c in program.kernels] == [outputs[:5], outputs[5:10], outputs[10:]]


def test_a_map_that_is_stored_is_computed_with_what_reduces_it() -> None:
    """As the gradient of an activation with that of a bias, and as logits with a soft cap in a cross entropy."""
    x, d = (Value(name, TensorType((512, 256), float32)) for name in "xd")
    b = GraphBuilder(["x", "d"])
    y = b.node("where", b.node("gt", x, b.node("full", shape=(), value=0.0, dtype="float32")), d, x)
    outputs = (y.name, b.node("sum", y, dims=(0,)).name)
    (call,) = compile_program(check_graph(Graph((x, d), (), b.nodes, outputs)), on_hopper, gpu=True).kernels
    assert set(call.writes) == set(outputs) and set(call.reads) == {"x", "d"}


def test_reductions_that_share_one_of_their_inputs_read_it_once() -> None:
    """The distances of rows to two others, as a triplet loss takes them. No name of an input decides."""
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")):
        values = [Value(name, TensorType((512, 256), float32)) for name in names]
        anchor, *others = values
        b = GraphBuilder(list(names))
        outputs = [b.node("sum", b.node("square", b.node("sub", anchor, other)), dims=(1,)) for other in others]
        graph = check_graph(Graph(tuple(values), (), b.nodes, tuple(o.name for o in outputs)))
        assert len(compile_program(graph, on_hopper, gpu=True).kernels) == 1
