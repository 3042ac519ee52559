"""StableHLO modules as graphs: text, MLIR bytecode, or a portable artifact. It needs jax, whose parser it uses.

Arguments of the main function become inputs, and constants of the module become weights: a model whose weights are to
be packed is lowered as a function that closes over them. Functions that are called are read in place, and so is what
a loop or a branch does whose conditions are known. An operation without a rule stays a foreign call.
"""

import re
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters.mlir import make_ir_context

from ...core.dtypes import DTYPES
from ...core.errors import InvalidGraph, InvalidParameter
from ...graph.graph import FOREIGN, Graph, GraphBuilder, Node, Value, check_graph
from ...graph.operators.operator import Array, TensorType
from ...graph.reference import MOST_KNOWN, evaluate
from ..aten.rule import NoRule
from ..weighted_graph import UnsupportedModel, WeightedGraph
from . import RULES
from .call import HloCall, number_value, one_number

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i8": "int8", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "precision_config",
    "indices_are_sorted",
    "unique_indices",
    "compare_type",
    "result_accuracy",
    "algorithm",
}
"""Attributes that a rule may leave unread: they change nothing where it does, or allow roundings that nobody makes."""
_OF_SHARDING = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint"}
"""Custom calls that give their operand, on one device."""
_MOST_ROUNDS = 128
"""A loop of more rounds stays a foreign call."""
_LONGEST_BODY = 24
"""Operations of a region, at most, that a rule is told."""

Scope = MutableMapping[Any, Value]


class _Foreign(Exception):
    """A loop or a branch that is not known while the module is read."""


def load_stablehlo(path: Path, weights: Mapping[int, Array] | None = None) -> WeightedGraph:
    """Return the graph of the module in a file. Raises InvalidParameter for a file that is none, and what
    ``import_stablehlo`` raises."""
    return import_stablehlo(path.read_bytes(), weights, name=path.name)


def import_stablehlo(
    module: str | bytes, weights: Mapping[int, Array] | None = None, name: str = "the module"
) -> WeightedGraph:
    """Return the graph of the function ``main`` of a module, or of its only public one.

    ``module`` is MLIR text, bytecode or a portable artifact. ``weights`` has the data of arguments that stay the same
    from call to call, by their number; they become constants. Raises InvalidParameter for what is no module, and
    UnsupportedModel for a shape that is not known.
    """
    with make_ir_context() as context:
        try:
            parsed = _parsed(module, context)
        except (ir.MLIRError, ValueError) as error:
            raise InvalidParameter(f"{name} is no StableHLO module: {str(error)[:500]}", field="file") from error
        return _StablehloReader(parsed, weights or {}).run()


def _parsed(module: str | bytes, context: Any) -> Any:
    if isinstance(module, bytes) and module[:4] == b"ML\xefR":
        try:
            return stablehlo.deserialize_portable_artifact(context, module)
        except ValueError:
            return ir.Module.parse(module)  # bytecode of another kind
    return ir.Module.parse(module.decode() if isinstance(module, bytes) else module)


class _StablehloReader:
    """It walks the operations. It is the ``ModuleReader`` of rules."""

    def __init__(self, module: Any, weights: Mapping[int, Array]) -> None:
        self._functions = {_text(f, "sym_name"): f for f in module.body.operations if "sym_name" in f.attributes}
        self._module = module  # it owns all that is walked
        self._given = weights
        self._builder = GraphBuilder()
        self._named: dict[str, Value] = {}
        self._known: dict[str, Array] = {}
        self._weights: dict[str, Array] = {}
        self._constants: list[Value] = []

    def run(self) -> WeightedGraph:
        main = self._main()
        inputs: list[Value] = []
        arguments: list[Value] = []
        for n, argument in enumerate(main.entry_block.arguments):
            kind = _type_of(argument.type)
            if n in self._given:
                array = self._given[n]
                if kind is None or tuple(array.shape) != kind.shape:
                    raise InvalidParameter(f"argument {n} is {kind}, its weight {list(array.shape)}", field="weights")
                arguments.append(self._constant(array.astype(kind.dtype.numpy), f"arg{n}"))
            else:
                arguments.append(self._add_name(Value(self._builder.name(f"arg{n}"), kind)))
                inputs.append(arguments[-1])
        results = self._block(main.entry_block, arguments, {})
        if not results:
            raise UnsupportedModel("the module has no results", field="main")
        outputs = {f"result{n}": value.name for n, value in enumerate(results)}
        read = {n for node in self._builder.nodes for n in node.operands} | set(outputs.values())
        used = tuple(v for v in self._constants if v.name in read)
        graph = Graph(tuple(inputs), used, self._builder.nodes, tuple(dict.fromkeys(outputs.values())))
        weights = {v.name: self._weights[v.name] for v in used}
        return WeightedGraph(check_graph(graph), weights, {v.name: v.name for v in inputs}, outputs)

    def _main(self) -> Any:
        public = [f for f in self._functions.values() if _text(f, "sym_visibility") in ("", "public")]
        found = self._functions.get("main") or (public[0] if len(public) == 1 else None)
        if found is None:
            raise InvalidParameter(f"a module with {len(public)} public functions, none called main", field="file")
        return found

    # What rules use

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        value = self._add_name(self._builder.node(op, *operands, **attributes))
        given = [self._known[o.name] for o in operands if o.name in self._known]
        if len(given) == len(operands) and value.elements <= MOST_KNOWN:
            self._known[value.name] = evaluate(self._builder.made[value.name], given)
        return value

    def known(self, value: Value) -> Array | None:
        return self._known.get(value.name)

    def maker(self, value: Value) -> Node | None:
        return self._builder.made.get(value.name)

    def named(self, name: str) -> Value:
        return self._named[name]

    def _add_name(self, value: Value) -> Value:
        self._named[value.name] = value
        return value

    def _constant(self, array: Array, stem: str = "constant") -> Value:
        kind = TensorType(array.shape, DTYPES[array.dtype.name])
        if stem == "constant" and (number := one_number(array)) is not None:
            return number_value(self, number, array.shape, kind.dtype)
        value = self._add_name(Value(self._builder.name(stem), kind))
        self._weights[value.name] = array
        self._constants.append(value)
        if array.size <= MOST_KNOWN and stem == "constant":
            self._known[value.name] = array.astype(np.float64) if kind.dtype.is_float else array
        return value

    # The walk

    def _block(self, block: Any, arguments: Sequence[Value], outer: Scope) -> list[Value]:
        """Return what a block returns."""
        scope: Scope = ChainMap(dict(zip(block.arguments, arguments, strict=True)), outer)
        for view in block.operations:
            op = view.operation
            operands = [scope[v] for v in op.operands]
            if op.name in ("func.return", "stablehlo.return"):
                return operands
            scope.update(zip(op.results, self._results(op, operands, scope), strict=True))
        return []

    def _results(self, op: Any, operands: list[Value], scope: Scope) -> Sequence[Value]:
        try:
            if op.name in ("func.call", "stablehlo.composite"):
                callee = op.attributes["callee" if op.name == "func.call" else "decomposition"].value
                return self._block(self._functions[callee].entry_block, operands, {})
            if op.name == "stablehlo.while":
                return self._loop(op, operands, scope)
            if op.name in ("stablehlo.case", "stablehlo.if"):
                return self._branch(op, operands, scope)
        except _Foreign:
            return self._foreign(op, scope)
        if op.name == "stablehlo.custom_call" and _text(op, "call_target_name") in _OF_SHARDING:
            return operands
        if op.name.startswith("sdy."):
            return operands[: len(op.results)]
        return self._by_rule(op, operands) or self._foreign(op, scope)

    def _loop(self, op: Any, values: list[Value], scope: Scope) -> Sequence[Value]:
        condition, body = (region.blocks[0] for region in op.regions)
        for _ in range(_MOST_ROUNDS + 1):
            (go,) = self._block(condition, values, scope)
            known = self._known.get(go.name)
            if known is None:
                raise _Foreign
            if not known.item():
                return values
            values = self._block(body, values, scope)
        raise _Foreign

    def _branch(self, op: Any, operands: list[Value], scope: Scope) -> Sequence[Value]:
        known = self._known.get(operands[0].name)
        if known is None:
            raise _Foreign
        count, place = len(op.regions), int(known.item())
        if op.name == "stablehlo.if":
            place = 1 - place
        return self._block(op.regions[place if 0 <= place < count else count - 1].blocks[0], [], scope)

    def _by_rule(self, op: Any, operands: list[Value]) -> Sequence[Value] | None:
        """Return the results that a rule gives; None where no rule covers the operation."""
        types = [_type_of(r.type) for r in op.results]
        results = tuple(t for t in types if t is not None)
        if len(results) < len(types) or not all(t.elements for t in results):
            return None
        try:
            if op.name == "stablehlo.constant":
                return [self._constant(_elements(op.attributes["value"], results[0]))]
            rule = RULES.get(op.name)
            if rule is None or any(v.type is None or not v.elements for v in operands):
                return None
            attributes = {name: _plain(op.attributes[name]) for name in op.attributes if ":" not in name}
            body = _body(op.regions[0]) if len(op.regions) else ""
            call = HloCall(op.name, tuple(operands), attributes, results, body, self)
            found = rule(call)
            values = [found] if isinstance(found, Value) else list(found)
        except (NoRule, InvalidGraph, InvalidParameter):
            return None
        unread = {n for n in attributes if not n.startswith(("mhlo.", "jax."))} - call.read - _WITHOUT_EFFECT
        if unread or [v.type for v in values] != types:
            return None
        return [self._folded(v) for v in values]

    def _folded(self, value: Value) -> Value:
        """``value`` as a number where it is known that all of its elements are one."""
        known, made = self._known.get(value.name), self._builder.made.get(value.name)
        if known is None or made is None or made.op == "full" or (number := one_number(known)) is None:
            return value
        return number_value(self, number, value.shape, value.dtype)

    def _foreign(self, op: Any, scope: Scope) -> Sequence[Value]:
        """Return a call of XLA, which gets the operation as a module of its own."""
        outside = _read_from_outside(op)
        text = _module_of(op, outside, self._functions)
        operands = [scope[v] for v in outside]
        names = tuple(dict.fromkeys(v.name for v in operands))
        results = tuple(Value(self._builder.name(op.name.rpartition(".")[2]), _type_of(r.type)) for r in op.results)
        if not results:
            return []
        target = op.name
        if op.name == "stablehlo.custom_call":
            target = f"custom_call.{_text(op, 'call_target_name')}"
        arguments = [{"operand": names.index(v.name)} for v in operands]
        node = Node(FOREIGN, names, results, {"target": target, "arguments": arguments, "keywords": {"module": text}})
        self._builder.add(node)
        for value in results:
            self._add_name(value)
        return results


def _text(op: Any, name: str) -> str:
    return op.attributes[name].value if name in op.attributes else ""


def _type_of(kind: Any) -> TensorType | None:
    """Return the type of a tensor; None for one that only foreign calls can read."""
    if not isinstance(kind, ir.RankedTensorType):
        return None
    if not kind.has_static_shape:
        raise UnsupportedModel(f"{kind} has a dimension that is not known", field="shape")
    name = _DTYPES.get(str(kind.element_type))
    return None if name is None else TensorType(tuple(kind.shape), DTYPES[name])


def _elements(attribute: Any, kind: TensorType) -> Array:
    """Return the data of a constant."""
    if attribute.is_splat:
        value = attribute.get_splat_value().value
        return np.full(kind.shape, value, kind.dtype.numpy)
    if kind.dtype.is_float and kind.dtype.bits == 16:  # no buffer has them, but the text does
        text = str(attribute).partition("dense<")[2].rpartition(">")[0]
        if text.startswith('"0x'):
            return np.frombuffer(bytes.fromhex(text[3:-1]), kind.dtype.numpy).reshape(kind.shape)
        words = re.findall(r"0x[0-9A-F]+|[-+0-9.eE]+", text.rpartition(":")[0])
        values = [np.array(int(w, 16), np.uint16).view(kind.dtype.numpy) if w[:2] == "0x" else float(w) for w in words]
        return np.array(values, kind.dtype.numpy).reshape(kind.shape)
    return np.array(attribute).astype(kind.dtype.numpy, copy=False).reshape(kind.shape)


_NUMBERS = (stablehlo.DotDimensionNumbers, stablehlo.ConvDimensionNumbers, stablehlo.GatherDimensionNumbers,
            stablehlo.ScatterDimensionNumbers)  # fmt: skip
_WORDS = (stablehlo.ComparisonDirectionAttr, stablehlo.ComparisonTypeAttr)


def _plain(attribute: Any) -> Any:
    """Return an attribute as a number, a text, a list, an array, or an object with lists."""
    for kind in _NUMBERS:
        if kind.isinstance(attribute):
            return kind(attribute)
    for kind in _WORDS:
        if kind.isinstance(attribute):
            return kind(attribute).value
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseBoolArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return np.array(attribute).tolist()
    return str(attribute)


def _body(region: Any) -> str:
    """Return what a region computes, as text in which arguments are numbers; empty where it is long."""
    (block,) = region.blocks
    names = {argument: str(n) for n, argument in enumerate(block.arguments)}
    lines: list[str] = []
    for view in block.operations:
        op = view.operation
        if len(lines) > _LONGEST_BODY or len(op.regions) or not all(v in names for v in op.operands):
            return ""
        name = op.name.rpartition(".")[2]
        if name == "compare":
            name += f".{_plain(op.attributes['comparison_direction'])}"
        text = f"{name}({','.join(names[v] for v in op.operands)})"
        if name == "return":
            lines.append(text)
            continue
        names[op.results[0]] = f"%{len(lines)}"
        lines.append(f"%{len(lines)}={text}")
    return ";".join(lines)


def _read_from_outside(op: Any) -> list[Any]:
    """Return the values that an operation and its regions read from before it. XLA wants constants inside of
    regions."""
    found: dict[Any, None] = dict.fromkeys(op.operands)

    def walk(regions: Any, inside: set[Any]) -> None:
        for block in (b for region in regions for b in region.blocks):
            inside = inside | set(block.arguments)
            for view in block.operations:
                inner = view.operation
                found.update(dict.fromkeys(v for v in inner.operands if v not in inside and not _is_constant(v)))
                walk(inner.regions, inside)
                inside |= set(inner.results)

    walk(op.regions, set())
    return list(found)


def _is_constant(value: Any) -> bool:
    return isinstance(value.owner, ir.Operation | ir.OpView) and value.owner.name == "stablehlo.constant"


def _module_of(op: Any, outside: Sequence[Any], functions: Mapping[str, Any]) -> str:
    """Return a module whose main function is one operation of the values that it reads."""
    called: dict[str, None] = {}

    def move(part: Any, to: Mapping[Any, Any], inside: bool) -> None:
        """Let an operation and its regions read the arguments of the new function, and constants of their own."""
        for n, value in enumerate(part.operands):
            if inside and _is_constant(value):
                with ir.InsertionPoint(part):
                    part.operands[n] = value.owner.clone().results[0]
            elif value in to:
                part.operands[n] = to[value]
        for attribute in (a for a in ("callee", "decomposition") if a in part.attributes):
            called[part.attributes[attribute].value] = None
        for block in (b for region in part.regions for b in region.blocks):
            for view in list(block.operations):
                move(view.operation, to, True)

    with ir.Location.unknown(op.context):
        module = ir.Module.create()
        kind = ir.FunctionType.get([v.type for v in outside], [r.type for r in op.results])
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", kind)
            block = main.add_entry_block()
            with ir.InsertionPoint(block):
                copy = op.clone()
                func.ReturnOp(list(copy.results))
            move(copy, dict(zip(outside, block.arguments, strict=True)), False)
            done: set[str] = set()
            while rest := [name for name in called if name not in done]:
                for name in rest:
                    move(functions[name].operation.clone(), {}, False)
                    done.add(name)
    return str(module)
