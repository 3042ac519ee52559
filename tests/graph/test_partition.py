"""How graphs are cut: what joins a kernel, what is a view, and what memory the calls share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import check_golden
from tests.random_graphs import graphs, residual_block
from tilewright.core.dtypes import float16, float32
from tilewright.core.errors import InvalidGraph
from tilewright.core.target import Target
from tilewright.graph.graph import FOREIGN, Graph, GraphBuilder, Node, Value, check_graph
from tilewright.graph.memory import Lifetime, plan_arena
from tilewright.graph.operators.operator import TensorType
from tilewright.graph.partition import ForeignCall, KernelCall, ViewCall
from tilewright.graph.program import Program, compile_program
from tilewright.graph.text import graph_text, program_text
from tilewright.schedule.defaults import has_class
from tilewright.te.workload import Workload


def everything(workload: Workload) -> bool:
    return True


def nothing(workload: Workload) -> bool:
    return False


def kernels(program: Program) -> list[str]:
    return [" ".join(program.graph.producers[n].op for n in c.nodes) for c in program.kernels]


def value(name: str, *shape: int) -> Value:
    return Value(name, TensorType(shape, float32))


def test_a_convolutional_network_reads_well() -> None:
    program = compile_program(residual_block(), everything)
    check_golden("graph/golden/residual_block.txt", graph_text(program.graph) + "\n" + program_text(program))


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), fits=st.sampled_from([everything, nothing]))
def test_every_node_is_computed_before_it_is_read(graph: Graph, fits: object) -> None:
    program = compile_program(graph, fits)  # type: ignore[arg-type]
    known = {v.name for v in (*program.graph.inputs, *program.graph.constants)} | set(program.recipe.outputs)
    for call in (*program.prepared, *program.calls):
        assert set(call.reads) <= known
        assert not set(call.writes) & known
        known |= set(call.writes)
        if isinstance(call, KernelCall):
            assert [b.shape for b in call.workload.output_buffers] == [
                program.graph.values[n].shape for n in call.writes
            ]
    assert set(program.graph.outputs) <= known


def test_a_step_that_loses_a_class_is_not_taken() -> None:
    x, w = value("x", 8, 4), value("w", 4, 4)
    b = GraphBuilder(["x", "w"])
    y = b.node("relu", b.node("matmul", x, w))
    graph = check_graph(Graph((x,), (w,), b.nodes, (y.name,)))

    def products_alone(workload: Workload) -> bool:
        return len(workload.stages) == 1 and workload.stages[0].reducer is not None

    assert kernels(compile_program(graph, everything)) == ["matmul relu"]
    assert kernels(compile_program(graph, nothing)) == ["matmul relu"]
    assert kernels(compile_program(graph, products_alone)) == ["matmul", "relu"]


def test_what_is_read_twice_has_a_kernel_of_its_own() -> None:
    x, w = value("x", 8, 4), value("w", 4, 4)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", x, w)
    out = b.node("add", b.node("matmul", y, w), y)
    assert kernels(compile_program(check_graph(Graph((x,), (w,), b.nodes, (out.name,))), everything)) == [
        "matmul",
        "matmul add",
    ]


def test_a_view_between_kernels_is_part_of_an_index() -> None:
    x, w = value("x", 2, 6, 8), value("w", 2, 8, 3)
    b = GraphBuilder(["x", "w"])
    turned = b.node("permute", b.node("relu", x), order=(0, 2, 1))
    y = b.node("softmax", b.node("matmul", w, b.node("slice", turned, dim=1, start=1, stop=4)), dim=2)
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything)
    assert kernels(program) == ["relu", "matmul", "softmax"]


def test_a_reshape_that_is_an_output_moves_no_data() -> None:
    x = value("x", 2, 6)
    b = GraphBuilder(["x"])
    y = b.node("reshape", b.node("relu", x), shape=(3, 4))
    program = compile_program(check_graph(Graph((x,), (), b.nodes, (y.name,))), everything)
    assert [type(c) for c in program.calls] == [KernelCall, ViewCall]
    assert program.arena.bytes == 0


def test_what_depends_on_constants_alone_is_prepared() -> None:
    x, w = value("x", 4, 4), value("w", 4, 4)
    b = GraphBuilder(["x", "w"])
    y = b.node("matmul", x, b.node("exp", w))
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything)
    assert program.recipe.outputs == ("exp",) and kernels(program) == ["matmul"]
    assert program.kernels[0].workload.constants


def test_sums_of_constants_are_prepared_though_their_reader_is_not() -> None:
    x, w = value("x", 5), value("w", 4, 5)
    b = GraphBuilder(["x", "w"])
    y = b.node("mul", x, b.node("sum", w, dims=(0,)))
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything)
    assert program.recipe.outputs == ("sum",) and kernels(program) == ["mul"]


def test_foreign_calls_stay_between_kernels() -> None:
    x = value("x", 4, 4)
    b = GraphBuilder(["x"])
    y = b.node("relu", x)
    call = {"target": "aten.cumsum.default", "arguments": [{"operand": 0}, 1], "keywords": {}}
    b.add(Node(FOREIGN, (y.name,), (value("sums", 4, 4),), call))
    z = b.node("exp", b.made["sums"].result)
    program = compile_program(check_graph(Graph((x,), (), b.nodes, (z.name,))), everything)
    assert [type(c) for c in program.calls] == [KernelCall, ForeignCall, KernelCall]
    assert program.arena.bytes == 0  # what a foreign call reads is a tensor of its own


def test_indices_beyond_the_limits_are_cut_by_kernels() -> None:
    x = value("x", 2, 3, 4, 5)
    b = GraphBuilder(["x"])
    y = x
    for _ in range(6):
        y = b.node("permute", b.node("reshape", y, shape=(5, 4, 3, 2)), order=(2, 0, 3, 1))
    y = b.node("add", b.node("relu", y), b.node("reshape", x, shape=y.shape))
    graph = check_graph(Graph((x,), (), b.nodes, (y.name,)))
    program = compile_program(graph, everything)
    assert len(program.kernels) > 1 and set(program.graph.outputs) == set(program.kernels[-1].writes)


def test_equal_blocks_are_one_task() -> None:
    x, w = value("x", 8, 8), value("w", 8, 8)
    b = GraphBuilder(["x", "w"])
    y = x
    for _ in range(3):
        y = b.node("relu", b.node("matmul", y, w))
    program = compile_program(check_graph(Graph((x,), (w,), b.nodes, (y.name,))), everything)
    assert [t.count for t in program.tasks.values()] == [3]
    renamed = GraphBuilder(["a", "w"])
    z = value("a", 8, 8)
    for _ in range(3):
        z = renamed.node("relu", renamed.node("matmul", z, w))
    other = check_graph(Graph((value("a", 8, 8),), (w,), renamed.nodes, (z.name,)))
    assert compile_program(other, everything).key == program.key
    assert compile_program(residual_block(), everything).key != program.key


def test_a_graph_that_is_not_well_formed_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="no value"):
        compile_program(Graph((value("x", 2),), (), (), ("y",)), everything)


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 12))
    spans = [sorted((draw(st.integers(0, 9)), draw(st.integers(0, 9)))) for _ in range(count)]
    return [Lifetime(f"v{n}", draw(st.integers(1, 500)), a, b) for n, (a, b) in enumerate(spans)]


@given(values=lifetimes())
def test_values_that_live_at_once_do_not_overlap(values: list[Lifetime]) -> None:
    arena = plan_arena(values)
    for n, a in enumerate(values):
        assert arena.offsets[a.name] % 64 == 0 and arena.offsets[a.name] + a.bytes <= arena.bytes
        for b in values[:n]:
            together = a.first <= b.last and b.first <= a.last
            apart = arena.offsets[a.name] + a.bytes <= arena.offsets[b.name]
            apart |= arena.offsets[b.name] + b.bytes <= arena.offsets[a.name]
            assert apart or not together


def test_a_product_of_permuted_heads_gets_a_class_before_it_gets_an_epilogue_that_none_takes() -> None:
    """The projection behind float32 attention in a ViT: the heads are stored in order, and the residual stays apart."""
    target = Target("cuda", "sm_90a", (), 132, 16)
    heads, residual = value("heads", 4, 12, 50, 64), value("x", 4, 50, 768)
    w, bias = value("w", 768, 768), value("bias", 768)
    b = GraphBuilder(["heads", "x", "w", "bias"])
    rows = b.node("reshape", b.node("permute", heads, order=(0, 2, 1, 3)), shape=(200, 768))
    y = b.node("matmul", rows, b.node("permute", w, order=(1, 0)), precision="tf32")
    y = b.node("add", residual, b.node("add", b.node("reshape", y, shape=(4, 50, 768)), bias))
    graph = check_graph(Graph((heads, residual), (w, bias), b.nodes, (y.name,)))
    program = compile_program(graph, lambda workload: has_class(workload, target), gpu=True)
    assert all(has_class(call.workload, target) for call in program.kernels)


def test_a_product_whose_rows_are_reduced_is_not_stored() -> None:
    """The nearest of some vectors, by the squares of their norms; few rows are left to two kernels."""
    target = Target("cuda", "sm_90a", (), 132, 16)
    found = []
    for rows, keep in ((512, False), (512, True), (16, False)):
        half = TensorType((rows, 64), float16)
        x, codes, norms = Value("x", half), Value("codes", TensorType((2048, 64), float16)), value("norms", 2048)
        b = GraphBuilder(["x", "codes", "norms"])
        product = b.node("matmul", x, b.node("permute", codes, order=(1, 0)))
        single = b.node("cast", product, dtype="float32")
        nearest = b.node("argmin", b.node("sub", norms, single), dim=1, keep=keep)
        graph = check_graph(Graph((x,), (codes, norms), b.nodes, (nearest.name,)))
        program = compile_program(graph, lambda workload: has_class(workload, target), gpu=True)
        assert all(has_class(call.workload, target) for call in program.kernels)
        found.append(len(program.kernels))
    assert found == [1, 1, 2]
