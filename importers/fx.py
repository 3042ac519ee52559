"""FX graphs of ATen operators, as AOTAutograd and torch.export make them, as graphs. The only file that imports torch.

What torch promises about strides is kept: a tensor that is dense in another order of its dimensions (channels last, a
transposed weight) becomes a dense value and a permutation, for inputs and for outputs.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from ..core.dtypes import DTYPES, DType
from ..core.errors import InvalidGraph, InvalidParameter, TilewrightError
from ..core.keys import JSON
from ..core.precision import IEEE
from ..graph.graph import FOREIGN, Graph, GraphBuilder, Node, Value, check_graph
from ..graph.operators.operator import Array, TensorType
from ..graph.reference import known_value
from ..te.limits import MAX_RANK
from .aten import RULES, NoRule

_OF_LAYOUT = ("aten.as_strided", "aten.view.dtype", "aten.set_", "aten.resize")
"""Operators whose result depends on the strides of their operand."""
_INTO = ("aten.slice_scatter.default", "aten.as_strided_scatter.default")
"""Operators that give their first operand with the second one somewhere in it: as it is where that has no elements."""
_OF_TRACE = ("aten._assert_tensor_metadata.default",)
"""Operators without a result that check what is known when a model is traced."""


class UnsupportedGraph(TilewrightError):
    """A graph that cannot be written as data: a call with an argument that is no tensor, number or text."""

    code = "UNSUPPORTED_GRAPH"


@dataclass(frozen=True)
class ImportedInput:
    """An argument of the model: ``value`` is the value that ``argument.permute(order)`` is given for, None for an
    argument that is no tensor. Where ``order`` is None it must be copied to be dense. ``constant``: whether the value
    is a constant of the graph."""

    value: str | None
    order: tuple[int, ...] | None = None
    constant: bool = False

    @cached_property
    def in_order(self) -> bool:
        """Whether the argument itself is given, not a permutation of it."""
        return self.order is None or list(self.order) == sorted(self.order)


@dataclass(frozen=True, slots=True)
class OutputView:
    """Where a result lies in another one, or in an argument, whose position is ``base``: its shape, its strides, and
    how many elements of ``base`` are before its first one. AOTAutograd reads where a part of an argument begins."""

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    in_argument: bool = False


@dataclass(frozen=True, slots=True)
class ImportedOutput:
    """A result of the model: ``value.permute(order)``, copied to ``strides`` where ``order`` is None. Where it is not,
    ``strides`` say what the dimensions of one element have; None leaves them as they are. Where ``value`` is None the
    result is ``view`` if there is one, else ``constant``. ``memory``: results with one number were traced to lie in one
    memory, and those without a number in that of an argument."""

    value: str | None
    order: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    constant: Any = None
    memory: int | None = None
    view: OutputView | None = None


@dataclass(frozen=True)
class ImportedModel:
    """A graph, and how the arguments and results of the model belong to its values. ``attributes`` are the tensors that
    the traced module itself holds: constants of the graph that are no arguments."""

    graph: Graph
    inputs: tuple[ImportedInput, ...]
    outputs: tuple[ImportedOutput, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    foreign: tuple[str, ...] = ()
    """The operators that stayed foreign, each once, in order."""


@dataclass(frozen=True, slots=True)
class TorchPrecisions:
    """The roundings that torch allows itself for float32 (``core.precision``)."""

    products: str = IEEE
    convolutions: str = IEEE


def import_fx(
    module: Any,
    static: Sequence[int] = (),
    values: Mapping[Any, Any] | None = None,
    device: torch.device | None = None,
    precisions: TorchPrecisions | None = None,
) -> ImportedModel:
    """Return the graph of ``module``, a ``torch.fx.GraphModule`` of ATen operators with concrete shapes in
    ``meta["val"]``.

    ``static`` are the positions of the arguments that stay the same from call to call: they become constants.
    ``values`` gives the concrete value of each node where those in ``meta`` are symbolic. An operator without a rule
    stays a foreign call, and so does one that is not wholly on ``device``. ``precisions`` are by default those that
    torch has set now. Raises UnsupportedGraph where a call cannot
    be written as data, or where a shape is symbolic.
    """
    device = device or torch.device("cpu")
    return _Importer(module, frozenset(static), values, device, precisions or torch_precisions(device)).run()


def torch_precisions(device: torch.device) -> TorchPrecisions:
    """Return what the flags of torch for TF32 say now of float32 on ``device``. Before torch 2.9 they were one flag for
    each kind of operator, which now raises an error where the new ones differ from each other."""
    if device.type != "cuda":
        return _precisions(IEEE, IEEE)
    chosen = getattr(torch._C, "_get_fp32_precision_getter", None)  # properties of torch.backends take microseconds
    if chosen is None:
        flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return _precisions(*("tf32" if allowed else IEEE for allowed in flags))
    return _precisions(*("tf32" if chosen("cuda", kind) == "tf32" else IEEE for kind in ("matmul", "conv")))


@cache
def _precisions(products: str, convolutions: str) -> TorchPrecisions:
    """Return one object for equal settings: they are compared in every call of a model."""
    return TorchPrecisions(products, convolutions)


def dense_order(tensor: Any) -> tuple[int, ...] | None:
    """Return the order of dimensions in which ``tensor`` is dense and row-major; None where there is none."""
    rank = tensor.dim()
    if tensor.is_contiguous():
        return tuple(range(rank))
    order = sorted(range(rank), key=lambda d: (-tensor.stride(d), d))
    expected = 1
    for d in reversed(order):
        if tensor.shape[d] != 1 and tensor.stride(d) != expected:
            return None
        expected *= tensor.shape[d]
    return tuple(order)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the order that undoes ``order``."""
    return tuple(list(order).index(d) for d in range(len(order)))


def _view_of(tensor: Any, base: int, other: Any) -> OutputView | None:
    """Return where ``tensor`` lies in ``other``, which is dense; None where it is all of it, or not within it."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    offset = tensor.storage_offset() - other.storage_offset()
    end = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    parts = tensor.numel() and (dense_order(tensor) is None or tensor.numel() < other.numel())
    inside = tensor.dtype == other.dtype and offset >= 0 and end < other.numel()
    return OutputView(base, shape, strides, offset) if parts and inside else None


def _part_of(tensor: Any, base: int, argument: Any) -> OutputView | None:
    """Return where ``tensor`` lies in an argument; None where it is all of it in a dense order."""
    whole = tensor.numel() == argument.numel() and dense_order(tensor) is not None
    if whole or tensor.numel() == 0 or tensor.dtype != argument.dtype:
        return None
    offset = tensor.storage_offset() - argument.storage_offset()
    return OutputView(base, tuple(tensor.shape), tuple(tensor.stride()), offset, in_argument=True)


def _memory_of(tensor: Any) -> Any:
    """Return what stands for the memory that a traced tensor lies in; None for anything else."""
    strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    return tensor.untyped_storage()._cdata if strided else None


def type_of(tensor: Any) -> TensorType | None:
    """Return the type of a tensor; None for one that only foreign calls can read."""
    dtype = DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or tensor.dim() > MAX_RANK or tensor.layout is not torch.strided:
        return None
    if not all(type(extent) is int for extent in tensor.shape):
        raise UnsupportedGraph(f"a tensor of symbolic shape {tuple(tensor.shape)}", field="shape")
    return TensorType(tuple(tensor.shape), dtype)


class _Importer:
    """It walks the nodes. While a rule runs, it is the ``Emitter`` of that rule."""

    def __init__(
        self,
        module: Any,
        static: frozenset[int],
        values: Mapping[Any, Any] | None,
        device: torch.device,
        precisions: TorchPrecisions,
    ) -> None:
        self._module = module
        self._device = device
        self.precision, self.convolution_precision = precisions.products, precisions.convolutions
        self._traced = values
        self._static = static
        self._builder = GraphBuilder()
        self._found: dict[Any, Any] = {}  # a node of FX -> its value, a list of values, or a plain object
        self._inputs: list[Value] = []
        self._constants: list[Value] = []
        self._attributes: list[tuple[str, Any]] = []
        self._arguments: list[ImportedInput] = []
        self._updates: list[tuple[str, str]] = []
        self._foreign: dict[str, None] = {}
        self._result: Any = None
        self.target = ""

    # What rules use

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._result.shape)

    @property
    def dtype(self) -> DType:
        return self.dtype_of(self._result.dtype)

    def node(self, op: str, *operands: Value, **attributes: object) -> Value:
        return self._builder.node(op, *operands, **attributes)

    def common(self, *arguments: Any) -> DType:
        given = [
            torch.empty((1,) * min(len(a.shape), 1), dtype=getattr(torch, a.dtype.name), device="meta")
            if isinstance(a, Value)
            else a
            for a in arguments
        ]
        return self.dtype_of(torch.result_type(*given))

    def expanded_from(self, value: Value) -> Value:
        made = self._builder.made
        if value.name not in made or made[value.name].op != "expand":
            return value
        (name,) = made[value.name].operands
        given = made[name].results if name in made else (*self._inputs, *self._constants)
        return next((v for v in given if v.name == name), value)

    def known(self, value: Value) -> Array | None:
        return known_value(self._builder, value)

    def dtype_of(self, given: Any) -> DType:
        found = DTYPES.get(str(given).removeprefix("torch."))
        if found is None:
            raise NoRule(f"the dtype {given}")
        return found

    # The walk

    def _meta(self, node: Any) -> Any:
        """Return what the trace knows of a node: a fake tensor, a list of them, or a number."""
        return node.meta.get("val") if self._traced is None else self._traced.get(node)

    def run(self) -> ImportedModel:
        outputs: tuple[ImportedOutput, ...] = ()
        for node in self._module.graph.nodes:
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "get_attr":
                    self._attribute(node)
                case "call_function":
                    self._call(node)
                case "output":
                    outputs = self._outputs(node.args[0])
                case _:
                    raise UnsupportedGraph(f"a node {node.op} of the traced graph", field=node.name)
        kept = tuple(o.value for o in outputs if o.value is not None)
        graph = Graph(tuple(self._inputs), tuple(self._constants), self._builder.nodes, kept, tuple(self._updates))
        return ImportedModel(
            check_graph(graph), tuple(self._arguments), outputs, tuple(self._attributes), tuple(self._foreign)
        )

    def _placeholder(self, node: Any) -> None:
        given = self._meta(node)
        position = len(self._arguments)
        if not isinstance(given, torch.Tensor):
            self._found[node] = given
            self._arguments.append(ImportedInput(None))
            return
        overwritten = any(str(u.target) == "aten.copy_.default" and u.args[0] is node for u in node.users)
        constant = position in self._static and not overwritten
        name, order = self._bring_in(node, given, self._constants if constant else self._inputs)
        self._arguments.append(ImportedInput(name, order, constant))

    def _attribute(self, node: Any) -> None:
        tensor = self._module
        for part in node.target.split("."):
            tensor = getattr(tensor, part)
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedGraph(f"the attribute {node.target} is no tensor", field=node.name)
        name, order = self._bring_in(node, tensor, self._constants)
        dense = tensor.contiguous() if order is None else tensor.permute(order)
        self._attributes.append((name, dense.detach()))

    def _bring_in(self, node: Any, tensor: Any, into: list[Value]) -> tuple[str, tuple[int, ...] | None]:
        """Return a new value of the graph for ``tensor``, and the order in which its memory is dense."""
        kind = type_of(tensor)
        order = dense_order(tensor) if kind is not None else tuple(range(tensor.dim()))
        if kind is not None and order is not None:
            kind = TensorType(tuple(kind.shape[d] for d in order), kind.dtype)
        value = Value(self._builder.name(node.name), kind)
        into.append(value)
        if kind is not None and order is not None and list(order) != sorted(order):
            self._found[node] = self.node("permute", value, order=inverse(order))
        else:
            self._found[node] = value
        return value.name, order

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            if node.users:
                self._found[node] = self._found[node.args[0]][node.args[1]]
            return
        known = self._meta(node)
        if isinstance(known, bool | int | float):  # arithmetic on shapes
            self._found[node] = known
            return
        self.target = str(node.target)
        if self.target == "aten.copy_.default" and self._overwrites(node):
            return
        if self.target in _INTO and self._meta(node.args[1]).numel() == 0:
            self._found[node] = self._found[node.args[0]]
            return
        self._found[node] = self._strided_anew(node) or self._by_rule(node) or self._foreign_call(node)

    def _overwrites(self, node: Any) -> bool:
        """Return whether the node overwrites an input when all else is done; it is noted then."""
        target, source = self._found[node.args[0]], self._found[node.args[1]]
        if node.args[0].op != "placeholder":
            return False
        made = self._builder.made.get(target.name)
        root = target if made is None else self._builder_value(made.operands[0])
        if root.type is None or source.type is None or root not in self._inputs:
            raise UnsupportedGraph(f"{node.args[0]} is overwritten", field=node.name)
        self._result = self._meta(node)
        if source.dtype != target.dtype:
            source = self.node("cast", source, dtype=target.dtype.name)
        if source.shape != target.shape:
            source = self.node("expand", source, shape=target.shape)
        self._found[node] = source
        if made is not None:
            order = made.attributes["order"]
            assert isinstance(order, tuple)
            source = self.node("permute", source, order=inverse([int(str(d)) for d in order]))
        self._updates.append((root.name, source.name))
        return True

    def _builder_value(self, name: str) -> Value:
        return next(v for v in (*self._inputs, *self._constants) if v.name == name)

    def _strided_anew(self, node: Any) -> Value | None:
        """Return what ``as_strided`` shows of a dense tensor, where that is all of it in a dense order; None for any
        other call. A mean over images with channels last calls it to have their strides."""
        if self.target != "aten.as_strided.default":
            return None
        given, shown = self._meta(node.args[0]), self._meta(node)
        old, new = dense_order(given), dense_order(shown)
        whole = shown.numel() == given.numel() > 0 and shown.storage_offset() == given.storage_offset()
        if old is None or new is None or not whole or type_of(given) is None or type_of(shown) is None:
            return None
        flat = self.node("permute", self._found[node.args[0]], order=old)
        return self.node("permute", self.node("reshape", flat, shape=[shown.shape[d] for d in new]), order=inverse(new))

    def _by_rule(self, node: Any) -> Any:
        """Return the value, or the list of values, that a rule gives; None where no rule covers the call."""
        rule = RULES.get(self.target)
        results = self._meta(node)
        several = isinstance(results, tuple | list)
        self._result = results[0] if several and results else results
        if rule is None or not isinstance(self._result, torch.Tensor):
            return None
        try:
            arguments, keywords = self._given(node)
            found = rule(self, *arguments, **keywords)
            values = [found] if isinstance(found, Value) else list(found)
            wanted = [type_of(r) for r in (results if several else [results])[: len(values)]]
        except (NoRule, InvalidGraph, InvalidParameter, TypeError, IndexError, KeyError, AttributeError):
            return None
        used = {u.args[1] for u in node.users if u.target is operator.getitem and u.users} if several else {0}
        if [v.type for v in values] != wanted or not all(isinstance(n, int) and n < len(values) for n in used):
            return None
        return values if several else values[0]

    def _given(self, node: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, with values for tensors. Raises NoRule where one has no element, or a dtype of its
        own."""

        def resolved(a: Any) -> Any:
            if isinstance(a, torch.fx.Node):
                found = self._found[a]
                if isinstance(found, Value) and (found.type is None or found.elements == 0):
                    raise NoRule(f"{found.name}")
                return found
            if isinstance(a, list | tuple):
                return [resolved(v) for v in a if not (joins and self._meta(v).numel() == 0)]
            return a

        joins = self.target == "aten.cat.default"
        devices = {self._meta(n).device for n in node.all_input_nodes if isinstance(self._meta(n), torch.Tensor)}
        if self._result.numel() == 0 or {self._result.device, *devices} != {self._device}:
            raise NoRule("no elements, or another device")
        return [resolved(a) for a in node.args], {k: resolved(a) for k, a in node.kwargs.items()}

    def _foreign_call(self, node: Any) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedGraph(f"a call of {node.target}", field=node.name)
        if self.target.startswith(_OF_LAYOUT) and not self._meta(node.args[0]).is_contiguous():
            raise UnsupportedGraph(f"{self.target} of a tensor that is not dense", field=node.name)
        operands: list[str] = []
        attributes: dict[str, JSON] = {
            "target": self.target,
            "arguments": [self._as_json(a, operands) for a in node.args],
            "keywords": {k: self._as_json(a, operands) for k, a in node.kwargs.items()},
        }
        results = self._meta(node)
        if results is None and operands and self.target not in _OF_TRACE:
            attributes["effect"] = True
        several = isinstance(results, tuple | list)
        given = list(results) if several else [results]
        values = [
            Value(self._builder.name(node.name), type_of(r) if isinstance(r, torch.Tensor) else None)
            for r in (given or [None])
        ]
        self._builder.add(Node(FOREIGN, tuple(operands), tuple(values), attributes))
        self._foreign[self.target] = None
        return values if several else values[0]

    def _as_json(self, a: Any, operands: list[str]) -> JSON:
        if isinstance(a, torch.fx.Node):
            a = self._found[a]
        if isinstance(a, Value):
            if a.name not in operands:
                operands.append(a.name)
            return {"operand": operands.index(a.name)}
        if isinstance(a, float) and (a != a or a in (float("inf"), float("-inf"))):
            return {"float": str(a)}
        if isinstance(a, complex):
            return {"complex": str(a)}
        if a is None or isinstance(a, bool | int | float | str):
            return a
        if isinstance(a, list | tuple):
            return [self._as_json(v, operands) for v in a]
        for kind, name in ((torch.dtype, "dtype"), (torch.memory_format, "memory_format"), (torch.layout, "layout")):
            if isinstance(a, kind):
                return {name: str(a).removeprefix("torch.")}
        if isinstance(a, torch.device):
            return {"device": str(a)}
        raise UnsupportedGraph(f"an argument {type(a).__name__} of {self.target}", field="arguments")

    def _outputs(self, given: Sequence[Any]) -> tuple[ImportedOutput, ...]:
        """Return the results. One that is a part of another, or shows its elements more than once, lies in its memory:
        callers may overwrite either."""
        whole: dict[Any, tuple[int, Any]] = {}
        tensors = [self._meta(a) if isinstance(a, torch.fx.Node) else None for a in given]
        nodes = self._module.graph.nodes
        arguments: dict[Any, tuple[int, Any]] = {}
        for n, argument in enumerate(self._meta(node) for node in nodes if node.op == "placeholder"):
            arguments.setdefault(_memory_of(argument), (n, argument))
        held = [_memory_of(self._meta(node)) for node in nodes if node.op == "get_attr"]
        numbers: dict[Any, int | None] = dict.fromkeys([*arguments, *held])
        for n, tensor in enumerate(tensors):
            numbers.setdefault(_memory_of(tensor), n)
            if isinstance(tensor, torch.Tensor) and type_of(tensor) is not None and dense_order(tensor) is not None:
                memory = _memory_of(tensor)
                if memory not in whole or tensor.numel() > whole[memory][1].numel():
                    whole[memory] = n, tensor
        found: list[ImportedOutput] = []
        for a, tensor in zip(given, tensors, strict=True):
            memory = _memory_of(tensor)
            view = _part_of(tensor, *arguments[memory]) if memory is not None and memory in arguments else None
            view = _view_of(tensor, *whole[memory]) if view is None and memory in whole else view
            output = self._output(a) if view is None else ImportedOutput(None, view=view)
            found.append(replace(output, memory=numbers[memory]))
        return tuple(found)

    def _output(self, a: Any) -> ImportedOutput:
        found = self._found[a] if isinstance(a, torch.fx.Node) else a
        if not isinstance(found, Value):
            if not (found is None or isinstance(found, bool | int | float)):
                raise UnsupportedGraph(f"an output {type(found).__name__}", field="outputs")
            return ImportedOutput(None, constant=found)
        tensor = self._meta(a)
        if found.type is None or not isinstance(tensor, torch.Tensor):
            return ImportedOutput(found.name, tuple(range(tensor.dim())) if isinstance(tensor, torch.Tensor) else ())
        order, strides = dense_order(tensor), tuple(tensor.stride())
        if order is None or list(order) == sorted(order):
            return ImportedOutput(found.name, order, strides)
        return ImportedOutput(self.node("permute", found, order=order).name, inverse(order), strides)
