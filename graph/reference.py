"""What a graph computes, by NumPy in float64. Passes are checked with it, and so is everything that runs a graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import InvalidGraph, InvalidParameter
from .graph import Graph, GraphBuilder, Node, Value
from .operators import OPERATORS
from .operators.operator import Array

ForeignEvaluator = Callable[[Node, Sequence[Array]], Sequence[Array]]


_STEPS = frozenset(("ceil", "floor", "round", "sign", "trunc"))
"""Operators on floats that jump, beside those whose results are integers or truth values."""


def graph_reference(
    graph: Graph,
    given: Mapping[str, Array],
    foreign: ForeignEvaluator | None = None,
    *,
    decide_as_rounded: bool = False,
) -> dict[str, Array]:
    """Return the outputs, and the values that overwrite inputs, by name. ``given`` has the inputs and constants by
    name.

    Floats are computed and returned in float64: only casts round. ``decide_as_rounded``: what a step is taken of, such
    as the logarithms that give the bucket of a position, is rounded to its dtype after each node, so that steps lie
    where a library has them. ``foreign`` computes foreign nodes. Raises InvalidParameter for an input that is missing
    or has another shape, and InvalidGraph for a foreign node where ``foreign`` is None.
    """
    rounded = _decisive(graph) if decide_as_rounded else frozenset[str]()
    values: dict[str, Array] = {}
    for value in (*graph.inputs, *graph.constants):
        array = given.get(value.name)
        if array is None or tuple(array.shape) != value.shape:
            shape = "missing" if array is None else list(array.shape)
            raise InvalidParameter(f"{value.name} is {shape}; needed: {value.type}", field=value.name)
        values[value.name] = array.astype(np.float64) if value.dtype.is_float else array
    for node in graph.nodes:
        operands = [values[name] for name in node.operands]
        if node.is_foreign:
            if foreign is None:
                raise InvalidGraph(f"{node.attributes['target']} has no reference", field=node.name)
            values.update(zip((v.name for v in node.results), foreign(node, operands), strict=True))
        else:
            found = evaluate(node, operands)
            values[node.name] = _rounded(found, node.result) if node.name in rounded else found
    return {name: values[name] for name in values if name in graph.kept}


def _decisive(graph: Graph) -> frozenset[str]:
    """Return the floats that a step is taken of, directly or through other floats."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        decides = not node.is_foreign and (node.op in _STEPS or not node.result.dtype.is_float)
        if decides or any(v.name in found for v in node.results):
            found.update(
                n for n in node.operands if graph.values[n].type is not None and graph.values[n].dtype.is_float
            )
    return frozenset(found)


def _rounded(array: Array, value: Value) -> Array:
    """Floats rounded to the dtype of ``value``, as float64; anything else as it is."""
    return array.astype(value.dtype.numpy).astype(np.float64) if value.dtype.is_float else array


def evaluate(node: Node, operands: Sequence[Array]) -> Array:
    """Return the result of a node that is not foreign."""
    operator = OPERATORS[node.op]
    result: np.ndarray[Any, Any] = operator.evaluate(operands, operator.values(node.attributes))
    return result


MOST_KNOWN = 1 << 14
"""The largest number of elements of a value that is computed while a model is read."""


def known_value(builder: GraphBuilder, value: Value) -> Array | None:
    """Return the elements of a value that depends on no input and no constant, and has at most ``MOST_KNOWN`` of them;
    None for any other. Floats are rounded to their dtypes."""
    node = builder.made.get(value.name)
    if node is None or node.is_foreign or value.elements > MOST_KNOWN:
        return None
    operands = [
        known_value(builder, builder.made[name].result) if name in builder.made else None for name in node.operands
    ]
    found = [o for o in operands if o is not None]
    return _rounded(evaluate(node, found), value) if len(found) == len(operands) else None
