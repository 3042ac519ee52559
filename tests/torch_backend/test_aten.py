"""Every operator of graphs by torch, against its reference."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.graph.graph import Graph, GraphBuilder, Value, check_graph  # noqa: E402
from tilewright.graph.operators import OPERATORS  # noqa: E402
from tilewright.graph.operators.operator import Case  # noqa: E402
from tilewright.graph.reference import graph_reference  # noqa: E402
from tilewright.torch_backend.aten import evaluate  # noqa: E402

CASES = [(name, n) for name, operator in OPERATORS.items() for n in range(len(operator.cases))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_torch_computes_what_the_reference_does(name: str, number: int) -> None:
    case: Case = OPERATORS[name].cases[number]
    inputs = [Value(f"x{n}", kind) for n, kind in enumerate(case.operands)]
    b = GraphBuilder([v.name for v in inputs])
    y = b.node(name, *inputs, **case.attributes)
    graph = check_graph(Graph(tuple(inputs), (), b.nodes, (y.name,)))
    random = np.random.default_rng(0)
    data = {
        v.name: random.random(v.shape).astype(v.dtype.numpy)
        if v.dtype.is_float
        else random.integers(0, 2, v.shape).astype(v.dtype.numpy)
        for v in inputs
    }
    (expected,) = graph_reference(graph, data).values()
    tensors = [torch.from_numpy(a) for a in data.values()]
    found = evaluate(b.nodes[0], [t.double() if t.is_floating_point() else t for t in tensors], wide=name != "cast")
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
