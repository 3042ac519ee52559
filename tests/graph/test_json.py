"""Graphs as JSON: closed, bounded, and the same graph on the way back."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_graphs import graphs, residual_block
from tilewright.core.dtypes import float32
from tilewright.core.errors import InvalidGraph
from tilewright.graph.graph import FOREIGN, Graph, Node, Value, check_graph
from tilewright.graph.json import graph_from_json, graph_key, graph_to_json
from tilewright.graph.operators.operator import TensorType


def with_foreign() -> Graph:
    x = Value("x", TensorType((3, 4), float32))
    results = (Value("top", TensorType((3, 2), float32)), Value("rest", None))
    call = {"target": "aten.topk.default", "arguments": [{"operand": 0}, 2], "keywords": {}}
    return check_graph(Graph((x,), (), (Node(FOREIGN, ("x",), results, call),), ("top",), ()))


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_a_graph_comes_back_equal(graph: Graph) -> None:
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_foreign_nodes_and_updates_come_back_equal() -> None:
    x = Value("x", TensorType((3, 4), float32))
    for graph in (with_foreign(), Graph((x,), (), (), ("x",), (("x", "x"),)), residual_block()):
        assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_the_key_forgets_names_and_nothing_else() -> None:
    data: Any = graph_to_json(residual_block())
    renamed = json.loads(json.dumps(data).replace('"relu"', '"r"').replace('"op": "r"', '"op": "relu"'))
    assert renamed != data and graph_key(graph_from_json(renamed)) == graph_key(residual_block())
    data["outputs"] = ["relu"]
    assert graph_key(graph_from_json(data)) != graph_key(residual_block())


JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 70,
    0.5,
    float("nan"),
    "",
    "x",
    "no such thing",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    "y" * 5000,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return found + [p for key, value in pairs for p in places(value, (*path, key))]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_broken_description_is_refused_by_one_error(data: st.DataObject) -> None:
    graph: Any = json.loads(json.dumps(graph_to_json(data.draw(st.sampled_from([residual_block(), with_foreign()])))))
    *way, last = data.draw(st.sampled_from(places(graph)))
    parent = graph
    for key in way:
        parent = parent[key]
    parent[last] = data.draw(st.sampled_from(JUNK))
    try:
        check_graph(graph_from_json(graph))
    except InvalidGraph as error:
        assert error.message and error.field


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("outputs"), "outputs is missing"),
        (lambda d: d.update(weights=[1.0]), "unknown"),
        (lambda d: d["nodes"][0].update(op="conv"), "is no operator"),
        (lambda d: d["nodes"][0]["attributes"].update(stride=[0, 0]), "stride"),
        (lambda d: d["nodes"][0]["attributes"].update(colour=1), "no attribute"),
        (lambda d: d["nodes"][0].update(operands=["relu"]), "takes|stands before"),
        (lambda d: d["constants"][0].update(data=[1.0]), "unknown"),
        (lambda d: d["nodes"][0]["results"][0].update(shape=[1]), "gives"),
        (lambda d: d["outputs"].append("nothing"), "no value"),
        (lambda d: d["updates"].append(["w0", "relu"]), "cannot overwrite"),
    ],
)
def test_errors_say_what_is_wrong(change: Any, message: str) -> None:
    data: Any = json.loads(json.dumps(graph_to_json(residual_block())))
    change(data)
    with pytest.raises(InvalidGraph, match=message):
        graph_from_json(data)
