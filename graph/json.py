"""Graphs as JSON, both ways. The form is closed and bounded.

    {"inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}], "constants": [...],
     "nodes": [{"op": "relu", "operands": ["x"], "results": [{"name": "y", ...}], "attributes": {}}],
     "outputs": ["y"], "updates": [["state", "y"]]}

A value that only foreign calls can read has a name alone.
"""

from collections.abc import Mapping

from ..core.dtypes import dtype_named
from ..core.errors import InvalidGraph, InvalidParameter
from ..core.keys import JSON, content_key
from ..te.limits import MAX_RANK
from .graph import Graph, Node, Value, check_graph, in_order
from .limits import MAX_ATTRIBUTE_DEPTH, MAX_ATTRIBUTE_ITEMS, MAX_OPERANDS, MAX_TEXT, MAX_VALUES
from .operators import OPERATORS
from .operators.operator import TensorType


def graph_to_json(graph: Graph) -> dict[str, JSON]:
    """``graph`` as JSON values. A checked graph comes back equal from ``graph_from_json``."""
    return {
        "inputs": [_value_json(v) for v in graph.inputs],
        "constants": [_value_json(v) for v in graph.constants],
        "nodes": [_node_json(n) for n in graph.nodes],
        "outputs": list(graph.outputs),
        "updates": [list(pair) for pair in graph.updates],
    }


def graph_key(graph: Graph) -> str:
    """64 hexadecimal digits: the SHA-256 of the graph's canonical JSON with all names erased.

    Two checked graphs have one key exactly when they differ in names alone.
    """
    return content_key(erased_json(graph))


def erased_json(graph: Graph) -> dict[str, JSON]:
    """``graph_to_json`` with numbers in the place of names."""
    names = {v.name: f"v{n}" for n, v in enumerate(in_order(graph))}

    def value(v: Value) -> Value:
        return Value(names[v.name], v.type)

    nodes = (
        Node(n.op, tuple(names[o] for o in n.operands), tuple(map(value, n.results)), n.attributes) for n in graph.nodes
    )
    return graph_to_json(
        Graph(
            tuple(map(value, graph.inputs)),
            tuple(map(value, graph.constants)),
            tuple(nodes),
            tuple(names[o] for o in graph.outputs),
            tuple((names[a], names[b]) for a, b in graph.updates),
        )
    )


def _value_json(value: Value) -> dict[str, JSON]:
    if value.type is None:
        return {"name": value.name}
    return {"name": value.name, "dtype": value.dtype.name, "shape": list(value.shape)}


def _node_json(node: Node) -> dict[str, JSON]:
    return {
        "op": node.op,
        "operands": list(node.operands),
        "results": [_value_json(v) for v in node.results],
        "attributes": {name: _plain(value) for name, value in node.attributes.items()},
    }


def _plain(value: object) -> JSON:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def graph_from_json(data: object) -> Graph:
    """Return the checked graph that ``data`` (JSON values as Python's ``json`` gives them) describes.

    Raises InvalidGraph, and nothing else, for whatever is no legal graph; its ``field`` is a JSON pointer.
    """
    top = _object(data, "", ("inputs", "constants", "nodes", "outputs", "updates"))
    inputs = [_value(v, f"/inputs/{n}") for n, v in enumerate(_list(top["inputs"], "/inputs", MAX_VALUES))]
    constants = [_value(v, f"/constants/{n}") for n, v in enumerate(_list(top["constants"], "/constants", MAX_VALUES))]
    nodes = [_node(v, f"/nodes/{n}") for n, v in enumerate(_list(top["nodes"], "/nodes", MAX_VALUES))]
    outputs = [_text(v, f"/outputs/{n}") for n, v in enumerate(_list(top["outputs"], "/outputs", MAX_VALUES))]
    updates = []
    for n, pair in enumerate(_list(top["updates"], "/updates", MAX_VALUES)):
        names = [_text(v, f"/updates/{n}/{k}") for k, v in enumerate(_list(pair, f"/updates/{n}", 2))]
        if len(names) != 2:
            raise InvalidGraph("an update is two names", field=f"/updates/{n}")
        updates.append((names[0], names[1]))
    return check_graph(Graph(tuple(inputs), tuple(constants), tuple(nodes), tuple(outputs), tuple(updates)))


def _value(data: object, at: str) -> Value:
    if isinstance(data, dict) and set(data) == {"name"}:
        return Value(_text(data["name"], f"{at}/name"), None)
    found = _object(data, at, ("name", "dtype", "shape"))
    shape = _list(found["shape"], f"{at}/shape", MAX_RANK)
    for d, extent in enumerate(shape):
        if not isinstance(extent, int) or isinstance(extent, bool):
            raise InvalidGraph(f"expected a whole number, given {_shown(extent)}", field=f"{at}/shape/{d}")
    try:
        dtype = dtype_named(_text(found["dtype"], f"{at}/dtype"))
    except InvalidParameter as error:
        raise InvalidGraph(error.message, field=f"{at}/dtype") from error
    return Value(_text(found["name"], f"{at}/name"), TensorType(tuple(n for n in shape if isinstance(n, int)), dtype))


def _node(data: object, at: str) -> Node:
    found = _object(data, at, ("op", "operands", "results", "attributes"))
    operands = _list(found["operands"], f"{at}/operands", MAX_OPERANDS)
    results = _list(found["results"], f"{at}/results", MAX_OPERANDS)
    attributes = found["attributes"]
    if not isinstance(attributes, dict):
        raise InvalidGraph(f"attributes are an object, not {_shown(attributes)}", field=f"{at}/attributes")
    _check_attributes(attributes, f"{at}/attributes")
    op = _text(found["op"], f"{at}/op")
    if op in OPERATORS:
        try:
            attributes = dict(OPERATORS[op].values(attributes).values)
        except InvalidParameter as error:
            raise InvalidGraph(error.message, field=f"{at}/attributes/{error.field}") from error
    return Node(
        op,
        tuple(_text(v, f"{at}/operands/{n}") for n, v in enumerate(operands)),
        tuple(_value(v, f"{at}/results/{n}") for n, v in enumerate(results)),
        attributes,
    )


def _check_attributes(attributes: Mapping[str, object], at: str) -> None:
    """Raise InvalidGraph where attributes hold what is no JSON, or too much."""
    items = 0
    todo: list[tuple[object, int]] = [(dict(attributes), 0)]
    while todo:
        value, depth = todo.pop()
        items += 1
        if items > MAX_ATTRIBUTE_ITEMS or depth > MAX_ATTRIBUTE_DEPTH:
            raise InvalidGraph("attributes with too many values, or nested too deep", field=at)
        if isinstance(value, dict):
            todo.extend((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list | tuple):
            todo.extend((part, depth + 1) for part in value)
        elif isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise InvalidGraph(f"a text of {len(value)} characters; allowed: {MAX_TEXT}", field=at)
        elif isinstance(value, float) and value - value != 0:
            raise InvalidGraph("infinities and NaN are no JSON", field=at)
        elif value is not None and not isinstance(value, bool | int | float):
            raise InvalidGraph(f"{_shown(value)} is no JSON", field=at)


def _object(data: object, at: str, members: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(data, dict):
        raise InvalidGraph(f"expected an object, given {_shown(data)}", field=at or "/")
    missing = [name for name in members if name not in data]
    unknown = [name for name in data if name not in members]
    if missing or unknown:
        wrong = f"{missing[0]} is missing" if missing else f"{_shown(unknown[0])} is unknown"
        raise InvalidGraph(f"{wrong}; needed: {', '.join(members)}", field=f"{at}/{(missing or members)[0]}")
    return data


def _list(data: object, at: str, most: int) -> list[object]:
    if not isinstance(data, list) or len(data) > most:
        raise InvalidGraph(f"expected a list of at most {most}, given {_shown(data)}", field=at)
    return data


def _text(data: object, at: str) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise InvalidGraph(f"expected a text of at most {MAX_TEXT} characters, given {_shown(data)}", field=at)
    return data


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
