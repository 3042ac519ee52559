"""ONNX models (opsets 7 to 28) as graphs. The only file that imports onnx.

What can be known while a model is read is folded by onnx's own reference: shapes, and whatever is computed from them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ...core.dtypes import dtype_of_numpy
from ...core.errors import InvalidGraph, InvalidParameter
from ...graph.graph import Graph, GraphBuilder, Value, check_graph
from ...graph.operators.attributes import real_json
from ...graph.operators.operator import Array, TensorType
from ..aten.rule import NoRule
from ..weighted_graph import UnsupportedModel, WeightedGraph
from . import RULES
from .call import Call

OPSETS = range(7, 29)
_WITHOUT_EFFECT = {"storage_order", "stash_type", "saturate", "kernel_shape", "alpha", "beta", "momentum", "seed"}
"""Attributes that a rule may leave unread: they change nothing where it does."""

_EMPTY = {"CastLike", "Concat", "Split"}
"""Operators that may have operands or results without elements. No other can read such a result."""

_MOST_ROUNDS = 4
"""How often operators without a rule are written out by others, in which there may again be such."""

MAX_FOLDED = 1 << 16
"""The largest number of elements that a folded value may have. Larger ones are computed by the graph."""


def load_onnx(path: Path, dims: Mapping[str, int] | None = None) -> WeightedGraph:
    """Return the graph of the model in a file. Raises InvalidParameter for a file that is none, and what
    ``import_onnx`` raises."""
    try:
        model = onnx.load(path)
    except OSError as error:
        raise InvalidParameter(f"cannot read {path}: {error.strerror}", field="file") from error
    except Exception as error:  # protobuf has errors of its own
        raise InvalidParameter(f"{path.name} is no ONNX model: {error}", field="file") from error
    return import_onnx(model, dims)


def import_onnx(
    model: Any, dims: Mapping[str, int] | None = None, values: Mapping[str, Array] | None = None
) -> WeightedGraph:
    """Return the graph of ``model``, an ``onnx.ModelProto``.

    ``dims`` gives the extents of dimensions that the model names, ``values`` the data of inputs that are the same in
    every call, such as shapes. Raises UnsupportedModel that lists every operator which has no rule, InvalidParameter
    for a dimension that ``dims`` does not give, and InvalidGraph for a model that is not well formed.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset not in OPSETS:
        raise UnsupportedModel(f"opset {opset}; allowed: {OPSETS.start} to {OPSETS.stop - 1}", field="opset_import")
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    for _ in range(_MOST_ROUNDS):
        reader = _OnnxReader(model, opset, dims or {}, values or {})
        found = reader.run()
        if found is not None:
            return found
        expanded = _expanded(model, reader.refused_operators)
        if expanded is None:
            break
        model = expanded
    raise UnsupportedModel(f"no rule for: {', '.join(reader.refused)}", field="graph")


def _expanded(model: Any, operators: Sequence[str]) -> Any:
    """``model`` with those of ``operators`` written out that ONNX defines by others; None where it defines none."""
    before = {n.op_type for n in model.graph.node}
    model = _with_defaults(model, operators)
    names = [("", name) for name in operators]
    try:
        expanded = onnx.inliner.inline_selected_functions(model, names, inline_schema_functions=True)
    except RuntimeError:  # a type that onnx cannot tell, which a definition depends on
        return None
    return None if before <= {n.op_type for n in expanded.graph.node} else expanded


def _with_defaults(model: Any, operators: Sequence[str]) -> Any:
    """``model`` in which nodes of these operators have all attributes that have a default, as definitions need them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    opset = next(o.version for o in copy.opset_import if o.domain in ("", "ai.onnx"))
    for node in copy.graph.node:
        if node.op_type in operators and onnx.defs.has(node.op_type):
            given = {a.name for a in node.attribute}
            known = onnx.defs.get_schema(node.op_type, opset).attributes.values()
            node.attribute.extend(a.default_value for a in known if a.default_value.name and a.name not in given)
    return copy


class _OnnxReader:
    def __init__(self, model: Any, opset: int, dims: Mapping[str, int], given: Mapping[str, Array]) -> None:
        self._model = model
        self._opset = opset
        self._dims = dims
        self._given = given
        self._builder = GraphBuilder()
        self._values: dict[str, Value] = {}
        self._known: dict[str, Array] = {}
        self._weights: dict[str, Array] = {}
        self._constants: list[Value] = []
        self._missing: set[str] = set()
        self.refused: dict[str, None] = {}
        self.refused_operators: list[str] = []

    def run(self) -> WeightedGraph | None:
        """Return the graph; None where operators have been refused. Raises InvalidGraph where it is not well formed."""
        graph = self._model.graph
        self._known |= {t.name: _elements(t) for t in graph.initializer}
        self._known |= self._given
        inputs: dict[str, str] = {}
        for i in graph.input:
            if i.name not in self._known:
                self._values[i.name] = value = Value(self._builder.name(i.name), self._input_type(i))
                inputs[i.name] = value.name
        for node in graph.node:
            self._node(node)
        if self.refused:
            return None
        outputs = {o.name: self._value(o.name).name for o in graph.output}
        given = tuple(v for v in self._values.values() if v.name in inputs.values())
        read = {n for node in self._builder.nodes for n in node.operands} | set(outputs.values())
        used = tuple(v for v in self._constants if v.name in read)
        found = Graph(given, used, self._builder.nodes, tuple(dict.fromkeys(outputs.values())))
        weights = {v.name: self._weights[v.name] for v in used}
        return WeightedGraph(check_graph(found), weights, inputs, outputs)

    def _input_type(self, info: Any) -> TensorType:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise UnsupportedModel(f"{info.name} is no tensor of a known rank", field=info.name)
        shape: list[int] = []
        for d in tensor.shape.dim:
            if d.HasField("dim_value"):
                shape.append(d.dim_value)
            elif d.dim_param in self._dims:
                shape.append(self._dims[d.dim_param])
            else:
                name = d.dim_param or "without a name"
                raise InvalidParameter(f"{info.name} has a dimension {name}; dims must give it", field="dims")
        return TensorType(tuple(shape), self._dtype(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))))

    def _dtype(self, dtype: "np.dtype[Any]") -> Any:
        try:
            return dtype_of_numpy(dtype)
        except InvalidParameter as error:
            raise UnsupportedModel(error.message, field="dtype") from error

    def _value(self, name: str) -> Value:
        """Return the value called ``name`` in the model. What is known becomes a number or a constant."""
        if name not in self._values:
            if name not in self._known:
                raise InvalidGraph(f"no node of the model computes {name!r}", field=name)
            array = self._known[name]
            kind = TensorType(array.shape, self._dtype(array.dtype))
            flat = array.ravel()
            if array.size == 1:
                dtype, number = kind.dtype, flat[0].item()
                given = bool(number) if dtype.is_bool else int(number) if dtype.is_integer else float(number)
                self._values[name] = self._builder.node(
                    "full", shape=array.shape, value=real_json(given), dtype=dtype.name
                )
            else:
                self._values[name] = value = Value(self._builder.name(name), kind)
                self._weights[value.name] = array
                self._constants.append(value)
        return self._values[name]

    def _node(self, node: Any) -> None:
        if node.op_type == "Shape" and node.input[0] in self._values:
            shape = self._values[node.input[0]].shape
            start, end = (_attributes(node).get(n) for n in ("start", "end"))
            self._known[node.output[0]] = np.array(shape[start:end], np.int64)
        elif node.op_type == "Size" and node.input[0] in self._values:
            self._known[node.output[0]] = np.array(self._values[node.input[0]].elements, np.int64)
        elif node.op_type == "If" and node.input[0] in self._known:
            self._branch(node)
        elif all(not n or n in self._known for n in node.input) and self._folded(node):
            return
        elif unknown := [n for n in node.input if n and n not in self._known and n not in self._values]:
            for name in unknown:
                if name not in self._missing:
                    message = (
                        f"{node.op_type} {node.name}".rstrip() + f" reads {name!r}, which no node before it computes"
                    )
                    raise InvalidGraph(message, field=name)
            self._missing.update(node.output)
        else:
            self._by_rule(node)

    def _folded(self, node: Any) -> bool:
        """Return whether the results of a node, all of whose inputs are known, have become known."""
        given = {n: self._known[n] for n in node.input if n}
        if sum(a.size for a in given.values()) > MAX_FOLDED or node.op_type.startswith("Random"):
            return False
        if node.op_type == "DequantizeLinear" and given[node.input[0]].ndim > 1:  # products take quantised weights
            return False
        try:
            names = [onnx.helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                     for n, a in given.items()]  # fmt: skip
            outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
            graph = helper.make_graph([node], "folded", names, outputs)
            part = helper.make_model(graph, opset_imports=self._model.opset_import)
            results = ReferenceEvaluator(part).run(None, given)
        except Exception:  # the reference does not have every operator: the graph computes it, or it is refused
            return False
        if not all(isinstance(r, np.ndarray | np.generic) and np.size(r) <= MAX_FOLDED for r in results):
            return False
        self._known |= {n: np.asarray(r) for n, r in zip([n for n in node.output if n], results, strict=True)}
        return True

    def _refuse(self, node: Any, reason: str) -> None:
        self.refused[reason] = None
        self.refused_operators.append(node.op_type)
        self._missing.update(node.output)

    def _branch(self, node: Any) -> None:
        """A conditional whose condition is known: the nodes of the branch that is taken."""
        taken = _attributes(node)["then_branch" if self._known[node.input[0]].ravel()[0] else "else_branch"]
        self._known |= {t.name: _elements(t) for t in taken.initializer}
        for part in taken.node:
            self._node(part)
        for name, result in zip(node.output, taken.output, strict=True):
            if result.name in self._known:
                self._known[name] = self._known[result.name]
            elif result.name in self._values:
                self._values[name] = self._values[result.name]
            else:
                self._missing.add(name)

    def _constant(self, array: Array) -> Value:
        """Return a constant of the graph."""
        value = Value(self._builder.name("constant"), TensorType(array.shape, self._dtype(array.dtype)))
        self._weights[value.name] = array
        self._constants.append(value)
        return value

    def _by_rule(self, node: Any) -> None:
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        used = [n for n in node.output if n]
        try:
            if rule is None:
                raise NoRule("no rule")
            values = tuple(self._value(n) if n else None for n in node.input)
            data = [v for n, v in zip(node.input, values, strict=True) if n not in self._known]
            if node.op_type not in _EMPTY and any(v is not None and v.elements == 0 for v in data):
                raise NoRule("an input has no elements")
            known = tuple(self._known.get(n) for n in node.input)
            call = Call(node.op_type, self._opset, values, known, _attributes(node), len(used), self._builder,
                        self._constant)  # fmt: skip
            found = rule(call)
            defaults = _defaults(node.op_type, self._opset)
            given = {name for name, value in call.attributes.items() if name not in defaults or value != defaults[name]}
            if unread := given - call.read - _WITHOUT_EFFECT:
                raise NoRule(f"with {', '.join(sorted(unread))}")
            if node.op_type not in _EMPTY and any(
                v.elements == 0 for v in ([found] if isinstance(found, Value) else found)
            ):
                raise NoRule("a result has no elements")
        except (NoRule, InvalidGraph, InvalidParameter) as error:
            self._refuse(node, f"{node.op_type} ({error})" if str(error) != "no rule" else node.op_type)
            return
        results = [found] if isinstance(found, Value) else list(found)
        if len(results) < len(used):
            self._refuse(node, f"{node.op_type} with {len(used)} outputs")
            return
        self._values |= dict(zip(node.output, results, strict=False))


def _elements(tensor: Any) -> Array:
    """Return the elements of an initializer. Raises InvalidGraph where it does not hold what it says."""
    try:
        found: Array = numpy_helper.to_array(tensor)
    except Exception as error:  # a file that is missing, too few bytes, an unknown dtype: each has an error of its own
        raise InvalidGraph(f"the initializer {tensor.name} cannot be read: {error}", field=tensor.name) from error
    return found


def _attributes(node: Any) -> dict[str, Any]:
    return _named(node.attribute)


@cache
def _defaults(op: str, opset: int) -> Mapping[str, Any]:
    """Return what attributes of an operator are where they are left out: those that say so change nothing."""
    known = onnx.defs.get_schema(op, opset).attributes.values()
    return _named(a.default_value for a in known if a.default_value.name)


def _named(attributes: Iterable[Any]) -> dict[str, Any]:
    found = {a.name: helper.get_attribute_value(a) for a in attributes}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
