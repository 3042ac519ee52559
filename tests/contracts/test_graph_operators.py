"""Every operator of graphs: its type rule, its NumPy form and its tensor expression say the same."""

from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.core.dtypes import DType, float32
from tilewright.core.errors import InvalidGraph, InvalidParameter
from tilewright.graph.graph import Graph, Node, Value, check_graph
from tilewright.graph.operators import OPERATORS
from tilewright.graph.operators.operator import Case, TensorType
from tilewright.graph.region import write_workload
from tilewright.te.reference import reference


def cases() -> Iterator[tuple[str, Case]]:
    for name, operator in OPERATORS.items():
        yield from ((name, case) for case in operator.cases)


def drawn(kind: TensorType, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    dtype: DType = kind.dtype
    if dtype.is_bool:
        return draw.integers(0, 2, kind.shape).astype(bool)
    if dtype.is_integer:
        return draw.integers(-9, 10, kind.shape).astype(dtype.numpy)
    return draw.uniform(-1, 1, kind.shape).astype(dtype.numpy)


def node_of(name: str, case: Case) -> Graph:
    operator = OPERATORS[name]
    inputs = tuple(Value(f"x{n}", t) for n, t in enumerate(case.operands))
    result = Value("y", operator.result(case.operands, case.attributes))
    node = Node(name, tuple(v.name for v in inputs), (result,), case.attributes)
    return check_graph(Graph(inputs, (), (node,), ("y",)))


IDS = [f"{name}-{n}" for n, (name, _) in enumerate(cases())]


@pytest.mark.parametrize(("name", "case"), list(cases()), ids=IDS)
def test_the_three_forms_agree(name: str, case: Case) -> None:
    operator, graph = OPERATORS[name], node_of(name, case)
    given = [drawn(t, n) for n, t in enumerate(case.operands)]
    wide = [a.astype(np.float64) if t.dtype.is_float else a for a, t in zip(given, case.operands, strict=True)]
    expected = operator.evaluate(wide, operator.values(case.attributes))
    result = graph.values["y"]
    assert expected.shape == result.shape
    assert expected.dtype == (np.float64 if result.dtype.is_float else result.dtype.numpy)

    written = write_workload(graph, graph.nodes, ("y",), frozenset(v.name for v in graph.inputs))
    arrays = {f"x{n}": a for n, a in enumerate(given)}
    inputs = {
        b.name: arrays[read].reshape(b.shape) for b, read in zip(written.workload.inputs, written.reads, strict=True)
    }
    found = next(iter(reference(written.workload, inputs).values())).reshape(result.shape)
    unit = 2.0**-10 if any(t.dtype.bits == 16 for t in (*case.operands, result.tensor)) else 1e-6
    np.testing.assert_allclose(found, expected, rtol=unit, atol=unit)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_case_and_refuses_what_it_does_not_take(name: str) -> None:
    operator = OPERATORS[name]
    assert operator.name == name and operator.cases and operator.summary
    case = operator.cases[0]
    with pytest.raises(InvalidParameter, match="has no attribute"):
        operator.result(case.operands, {**case.attributes, "colour": 1})
    with pytest.raises(InvalidGraph, match="operands"):
        operator.result([TensorType((1,), float32)] * 200, case.attributes)
    for attribute in operator.attributes:
        if attribute.required:
            rest = {k: v for k, v in case.attributes.items() if k != attribute.name}
            with pytest.raises(InvalidParameter, match=attribute.name):
                operator.result(case.operands, rest)
