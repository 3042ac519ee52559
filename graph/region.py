"""Some nodes of a graph as one workload: a stage for each reduction, and for each value that is used more than once."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from ..core.dtypes import DType
from ..core.precision import IEEE
from ..ir.expr import Expr
from ..te.build import Tensor, cast, placeholder, reads, workload
from ..te.workload import Workload
from .graph import Graph, Node, Value
from .operators import OPERATORS, Kind
from .operators.operator import Element, GraphOperand, stored
from .operators.views import reshape_groups


@dataclass(frozen=True, slots=True)
class WrittenRegion:
    """``reads`` and ``writes`` name the value of the graph for each input and for each output of ``workload``. The
    shape of an input may differ from that of its value, but not the number of its elements."""

    workload: Workload
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def is_view(node: Node) -> bool:
    """Return whether a node computes nothing, so that it can be part of the indices of its readers."""
    return not node.is_foreign and OPERATORS[node.op].kind is Kind.VIEW


def write_workload(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], stored_values: Container[str]
) -> WrittenRegion:
    """Return the workload that computes ``outputs``, results of ``nodes``, from values that are stored.

    ``nodes`` stand in the order of the graph; views that they read need not be among them. Inputs that depend on
    constants alone are constants of the workload, unless all inputs do. Raises InvalidWorkload where the expression
    goes beyond the limits of ``te``.
    """
    writer = _RegionWriter(graph, {n.name for n in nodes}, stored_values)
    for node in nodes:
        writer.add(node, keep=node.name in outputs)
    results = [writer.output(graph.values[name]) for name in outputs]
    inputs = _inputs_of(results)
    fixed = [t for t in inputs if writer.origin[t] in graph.fixed]
    precisions = [str(node.attributes["precision"]) for node in nodes if "precision" in node.attributes]
    precision = precisions[0] if precisions else IEEE
    written = workload(results, inputs, fixed if len(fixed) < len(inputs) else [], precision=precision)
    return WrittenRegion(written, tuple(writer.origin[t] for t in inputs), tuple(outputs))


class _RegionWriter:
    def __init__(self, graph: Graph, region: set[str], stored_values: Container[str]) -> None:
        self._graph = graph
        self._region = region
        self._stored = stored_values
        self._operands: dict[str, GraphOperand] = {}
        self._placeholders: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self.origin: dict[Tensor, str] = {}

    def add(self, node: Node, *, keep: bool) -> None:
        """Write one node of the region."""
        operator = OPERATORS[node.op]
        operands = [self._operand(name) for name in node.operands]
        result = operator.build(operands, operator.values(node.attributes))
        used = self._uses(node.name)
        if not isinstance(result, Tensor) and not keep and used > 1 and node.op not in ("cast", "full"):
            result = _stored(result, node.result.shape, node.op)
        if not keep and node.result.dtype.bits == 16 and self._is_factor(node):
            result = _rounded(result, node.result.dtype)
        self._operands[node.name] = result

    def _is_factor(self, node: Node) -> bool:
        """Return whether a product of the region takes a value, as attention takes weights: rounded to its dtype."""
        readers = (r for r in self._graph.readers[node.name] if r.name in self._region)
        return any(OPERATORS[r.op].kind is Kind.ANCHOR for r in readers)

    def output(self, value: Value) -> Tensor:
        """Return the stage of an output, in the dtype of the value."""
        result = self._operands[value.name]
        if isinstance(result, Tensor) and result.stage is not None and result.dtype == value.dtype:
            return result
        return _stored(result, value.shape, "y", value.dtype)

    def _operand(self, name: str) -> GraphOperand:
        if name not in self._operands:
            root, shape = name, self._graph.values[name].shape
            while not self._is_stored(root) and root not in self._region and (before := alias_of(self._graph, root)):
                root = before
            if self._is_stored(root):
                return self._placeholder(root, shape)
            node = self._graph.producers[name]
            operator = OPERATORS[node.op]
            operands = [self._operand(n) for n in node.operands]
            self._operands[name] = operator.build(operands, operator.values(node.attributes))
        return self._operands[name]

    def _is_stored(self, name: str) -> bool:
        return name in self._stored and name not in self._region

    def _placeholder(self, root: str, shape: tuple[int, ...]) -> Tensor:
        key = (root, shape)
        if key not in self._placeholders:
            tensor = replace(placeholder(shape, self._graph.values[root].dtype, "x"), named=False)
            self._placeholders[key], self.origin[tensor] = tensor, root
        return self._placeholders[key]

    def _uses(self, name: str) -> int:
        """Return how often the nodes of the region use an element of a value, through views too."""
        total = 0
        for reader in self._graph.readers[name]:
            if reader.name in self._region:
                total += OPERATORS[reader.op].uses
            elif is_view(reader) and not self._is_stored(reader.name):
                total += self._uses(reader.name)
        return total


def alias_of(graph: Graph, name: str) -> str | None:
    """Return the value that has the same elements in the same order as ``name``, which is a reshape of it; None where
    ``name`` is none."""
    node = graph.producers.get(name)
    return node.operands[0] if node is not None and node.op in ("reshape", "identity") else None


def joins_permuted(graph: Graph, node: Node) -> bool:
    """Return whether a node is a reshape that makes one dimension of several which a permutation has put side by
    side."""
    before = graph.producers.get(node.operands[0]) if node.op == "reshape" else None
    if before is None or before.op != "permute":
        return False
    order, old = OPERATORS["permute"].values(before.attributes).integers("order"), before.result.shape
    for joined, _ in reshape_groups(old, node.result.shape):
        long = [order[d] for d in joined if old[d] > 1]
        if long != list(range(long[0], long[0] + len(long)) if long else []):
            return True
    return False


def _stored(result: GraphOperand, shape: tuple[int, ...], name: str, dtype: DType | None = None) -> Tensor:
    body: Callable[..., Expr] = lambda *at: result[at] if dtype is None else cast(result[at], dtype)  # noqa: E731
    return stored(shape, body, name)


def _rounded(value: GraphOperand, dtype: DType) -> GraphOperand:
    return Element(value.shape, dtype, lambda at: cast(value[at], dtype))


def _inputs_of(results: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs that ``results`` are computed from, in the order in which they are met."""
    seen: dict[Tensor, None] = {}
    todo = list(reversed(results))
    while todo:
        tensor = todo.pop()
        if tensor not in seen:
            seen[tensor] = None
            todo.extend(reversed(reads(tensor)))
    return [t for t in seen if t.stage is None]
