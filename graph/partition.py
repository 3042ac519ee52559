"""A graph cut into calls: kernels of one workload each, views that cost nothing, and foreign calls.

Nodes are visited from the last to the first. A node joins the kernel that reads it where nothing else reads it, the
kernel keeps at most one anchor or reduction, and no kernel class is lost by it:

    matmul -> add residual -> relu      one kernel: the anchor takes its pointwise followers as an epilogue
    add -> layer_norm -> cast           one kernel: rows are computed together
    permute, expand, slice, pad …       part of the indices of what reads them
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.errors import InvalidWorkload
from ..te.workload import Workload
from .attention import independent_of_data, scores_before, views_to_store
from .graph import Graph, Node
from .operators import OPERATORS, Kind
from .region import WrittenRegion, alias_of, is_view, joins_permuted, write_workload

MOST_NODES = 48
"""How many nodes a kernel may have."""

_MOVING = ("concatenate", "flip", "identity", "pad", "permute", "reshape", "slice")
"""Views that show no element twice."""
_REORDERING = ("permute", "reshape", "slice")
"""Those that an anchor may have behind it, so that its kernel stores what they show."""
_REDUCTIONS = ("argmax", "argmin", "max", "mean", "min", "prod", "sum")
"""Those that a product may have behind it, so that its kernel stores nothing else."""

Fits = Callable[[Workload], bool]
"""Whether a sketch of a kernel class takes a workload on the target at hand: not just the generic sketch."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel. ``reads`` and ``writes`` name the value for each input and each output of ``workload``. ``nodes`` are
    the results of the nodes that it computes."""

    workload: Workload
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViewCall:
    """``value`` has the elements of ``of`` from number ``offset`` on in their order, in another shape: no data are
    moved."""

    value: str
    of: str
    offset: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True)
class JoinCall:
    """The elements of ``value`` are those of ``parts``, one behind the other: whatever computes a part writes it where
    it belongs, and no data are moved. ``offsets``: the number of the first element of each part."""

    value: str
    parts: tuple[str, ...]
    offsets: tuple[int, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.parts

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True)
class InPlace:
    """What moves no data. ``parts``: slices that lie within what they are slices of, and where. ``joins``:
    concatenations whose parts are written in their place, by their results."""

    parts: Mapping[str, int] = field(default_factory=dict)
    joins: Mapping[str, JoinCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignCall:
    """A node that the library of the model computes."""

    node: Node

    @property
    def reads(self) -> tuple[str, ...]:
        return self.node.operands

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.node.results)


Call = KernelCall | ViewCall | JoinCall | ForeignCall


@dataclass(slots=True)
class _GraphRegion:
    """A kernel while it grows. ``nodes``: from the last to the first."""

    nodes: list[Node]
    main: Node | None = None
    """The anchor or the reduction, of which there is at most one."""
    elements: set[int] = field(default_factory=set)
    """The numbers of elements that a pointwise node may have."""

    @property
    def output(self) -> Node:
        return self.nodes[0]

    def with_node(self, node: Node, graph: Graph) -> "_GraphRegion":
        """Return the region with ``node`` before the others."""
        if OPERATORS[node.op].kind in (Kind.POINTWISE, Kind.VIEW):
            return _GraphRegion([*self.nodes, node], self.main, self.elements | {node.result.elements})
        read = {graph.values[name].elements for name in node.operands}
        grown = {max(read)} if OPERATORS[node.op].kind is Kind.REDUCTION else set()
        return _GraphRegion([*self.nodes, node], node, self.elements | {node.result.elements} | grown)


def has_channels_last(node: Node) -> bool:
    """Return whether a node is a convolution or a pool over data with channels last."""
    if node.op == "convolution":
        return OPERATORS[node.op].values(node.attributes).flag("channels_last")
    if node.op in ("max_pool", "average_pool"):
        kernel = OPERATORS[node.op].values(node.attributes).integers("kernel")
        return len(kernel) > 1 and kernel[-1] == 1
    return False


def _is_added_across(graph: Graph, node: Node) -> bool:
    """Return whether a node is a permutation that moves the last dimension, and pointwise nodes alone read it."""
    if node.op != "permute" or node.result.shape[-1:] == (1,):
        return False
    order = OPERATORS["permute"].values(node.attributes).integers("order")
    readers = [r for r in graph.readers[node.name] for r in (graph.readers[r.name] if r.op == "reshape" else [r])]
    pointwise = all(not r.is_foreign and OPERATORS[r.op].kind is Kind.POINTWISE for r in readers)
    return pointwise and order[-1] != len(order) - 1


def partition(graph: Graph, fits: Fits, in_place: InPlace | None = None) -> tuple[Call, ...]:
    """Return the calls that compute ``graph``, in order."""
    return _Partition(graph, fits, in_place or InPlace()).calls()


@dataclass(frozen=True, slots=True)
class _Either:
    """The names in either of two sets."""

    first: set[str]
    second: set[str]

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.second


class _Partition:
    def __init__(self, graph: Graph, fits: Fits, in_place: InPlace) -> None:
        self.graph = graph
        self._fits = fits
        self._in_place = in_place
        given = {v.name for v in (*graph.inputs, *graph.constants)}
        foreign = [n for n in graph.nodes if n.is_foreign]
        read = {name for n in foreign for name in n.operands}
        self.stored = given | {v.name for n in foreign for v in n.results} | set(graph.kept) | read
        # Kernels for windows over channels-last data take no indices but those of a border.
        before = {name for n in graph.nodes if has_channels_last(n) for name in self._views_before(n)}
        self.stored |= {name for name in before if graph.producers[name].op != "pad"}
        # No strides give the elements of a reshape that joins permuted dimensions, and those of a permutation may lie
        # far apart, as those of a table of biases for each head do: of constants they are computed once.
        fixed = [n for n in graph.nodes if n.name in graph.fixed]
        self.stored |= {n.name for n in fixed if joins_permuted(graph, n) or _is_added_across(graph, n)}
        joined = [n.name for n in graph.nodes if n.op == "concatenate"]
        self.stored |= {name for name in joined if name in graph.fixed or self._is_reduced(name)}
        self.stored |= set(in_place.parts) | {name for c in in_place.joins.values() for name in (c.value, *c.parts)}
        self.regions: list[_GraphRegion] = []
        self._region_of: dict[str, _GraphRegion] = {}
        self._written: dict[tuple[str, ...], WrittenRegion | None] = {}
        self._positions = {n.name: p for p, n in enumerate(graph.nodes)}
        self._computed = {n.name for n in graph.nodes if not is_view(n)}

    def _is_reduced(self, name: str) -> bool:
        """Return whether a reduction reads a value or a reshape of it: kernels for rows and columns read one tensor at
        each place."""
        return any(
            OPERATORS[r.op].kind is Kind.REDUCTION
            or (alias_of(self.graph, r.name) is not None and self._is_reduced(r.name))
            for r in self.graph.readers[name]
            if not r.is_foreign
        )

    def calls(self) -> tuple[Call, ...]:
        """Grow the regions, and write what they are."""
        for node in reversed(self.graph.nodes):
            self._attend(node)
            self._crop(node)
            self._reduce(node)
        self._written.clear()  # what reads an attention may have been written before its output was stored
        for node in reversed(self.graph.nodes):
            computed = not node.is_foreign and self._is_computed(node)
            if computed and node.name not in self._region_of and not self._joined(node):
                self._start(node)
        for region in list(self.regions):
            self._store_operands(region)
        found: list[tuple[int, Call]] = []
        todo = list(self.regions)
        for region in todo:
            written = self._write(region) or self._write_in_steps(region)
            if written is None:
                raise InvalidWorkload(f"{region.output.op} is beyond the limits of a kernel", field=region.output.name)
            todo.extend(self.regions[len(todo) :])
            names = tuple(n.name for n in self._sorted(region))
            call = KernelCall(written.workload, written.reads, written.writes, names)
            found.append((self._positions[region.output.name], call))
        for node in self.graph.nodes:
            if node.is_foreign:
                found.append((self._positions[node.name], ForeignCall(node)))
            elif node.name in self._in_place.parts:
                offset = self._in_place.parts[node.name]
                found.append((self._positions[node.name], ViewCall(node.name, node.operands[0], offset)))
            elif node.name in self._in_place.joins:
                found.append((self._positions[node.name], self._in_place.joins[node.name]))
            elif node.name in self.stored and self._alias(node) is not None:
                found.append((self._positions[node.name], ViewCall(node.name, self._root(node.name))))
        return self._needed([call for _, call in sorted(found, key=lambda f: f[0])])

    def _needed(self, calls: Sequence[Call]) -> tuple[Call, ...]:
        """Return the calls whose results are read, and all foreign ones."""
        needed = set(self.graph.kept)
        kept: list[Call] = []
        for call in reversed(calls):
            if isinstance(call, ForeignCall) or not needed.isdisjoint(call.writes):
                needed.update(call.reads)
                kept.append(call)
        return tuple(reversed(kept))

    def _views_before(self, node: Node) -> Iterator[str]:
        """Yield the views of other elements or in another order that the operands of a node are, reshaped or not."""
        for name in node.operands:
            while name not in self.stored and (before := alias_of(self.graph, name)) is not None:
                name = before
            producer = self.graph.producers.get(name)
            if name not in self.stored and producer is not None and is_view(producer):
                yield name

    def _alias(self, node: Node) -> str | None:
        return alias_of(self.graph, node.name)

    def _root(self, name: str) -> str:
        """Return the stored value that a reshape has the elements of."""
        before = alias_of(self.graph, name)
        assert before is not None
        while before not in self.stored:
            before = alias_of(self.graph, before)
            assert before is not None
        return before

    def _is_computed(self, node: Node) -> bool:
        """Return whether a node needs a kernel: it is no view, or a view that must be stored and is no reshape. What a
        stored reshape has the elements of is stored as well."""
        if not is_view(node):
            return True
        if node.name in self._in_place.joins:
            return False
        if node.name in self._in_place.parts:
            self.stored.add(node.operands[0])
            return False
        alias = self._alias(node)
        if node.name in self.stored and alias is not None:
            self.stored.add(alias)
        return node.name in self.stored and alias is None

    def _readers(self, name: str) -> Iterator[Node | None]:
        """Yield the nodes of kernels that read a value, through views that are not stored. None stands for a reader
        outside of all kernels."""
        if name in self.stored and name not in self._region_of:
            yield None
        for reader in self.graph.readers[name]:
            if reader.is_foreign:
                yield None
            elif reader.name in self._region_of:
                yield reader
            elif is_view(reader):
                if reader.name in self.stored:
                    yield None
                yield from self._readers(reader.name)

    def _start(self, node: Node) -> None:
        region = _GraphRegion([], None).with_node(node, self.graph)
        self.regions.append(region)
        self._region_of[node.name] = region
        self.stored.add(node.name)

    def _joined(self, node: Node) -> bool:
        """Return whether ``node`` has become part of the region that reads it."""
        readers = list(self._readers(node.name))
        regions = {id(self._region_of[r.name]): self._region_of[r.name] for r in readers if r is not None}
        if None in readers or len(regions) != 1 or is_view(node):
            return False
        region = next(iter(regions.values()))
        if node in region.nodes:
            return True
        if len(region.nodes) >= MOST_NODES or not self._may_join(node, region, [r for r in readers if r is not None]):
            return False
        grown = region.with_node(node, self.graph)
        if grown.main is not None and not self._keeps_class(region, node, grown):
            return False
        region.nodes, region.main, region.elements = grown.nodes, grown.main, grown.elements
        self._region_of[node.name] = region
        return True

    def _attend(self, node: Node) -> None:
        """Make a product of a softmax the output of an attention, which has all that is before it up to the product of
        the scores, where a kernel class takes that. A select of its elements is part of it, and so is the order in
        which its one reader wants the dimensions. Where keys are a concatenation, such as a cache with the newest ones,
        or rows of windows of an image, these are stored for it."""
        inner = scores_before(self.graph, node)
        if not inner:
            return
        products = [n for n in (node, *inner) if n.op == "matmul"]
        views = {name for n in products for name in views_to_store(self.graph, n, self.stored)}
        masks = (name for n in inner if n.op == "where" for name in n.operands[:1])
        numbers = independent_of_data(self.graph, masks)
        for stored in (set(), views) if views else (set(),):
            for behind in self._behind_attention(node):
                region = _GraphRegion([])
                for n in (*behind, node, *inner, *numbers):
                    region = region.with_node(n, self.graph)
                if self._fits_with_stored(region, stored):
                    for name in stored:
                        self._start(self.graph.producers[name])
                    self.regions.append(region)
                    self._region_of |= {n.name: region for n in region.nodes if n not in numbers}
                    self.stored.add(region.output.name)
                    return

    def _behind_attention(self, node: Node) -> Iterator[list[Node]]:
        """Yield what may be one kernel with a product of a softmax, the most first: a permutation, and a select of its
        elements, which leaves out queries that see no key."""
        readers = [] if node.name in self.graph.kept else self.graph.readers[node.name]
        select = readers[0] if len(readers) == 1 and readers[0].op == "where" else None
        for last in (select, node) if select is not None and select.result.type == node.result.type else (node,):
            permuted, between = self._permuted_by(last), [last] if last is not node else []
            yield from ([permuted, *between], between) if permuted is not None else (between,)

    def _crop(self, node: Node) -> None:
        """Make the part that is read of a convolution the output of its kernel, with the pointwise nodes and the views
        between them, where a kernel class takes that."""
        if node.op != "convolution":
            return
        found, inside, whole, cropped = [node], {node.name}, list[Node](), False
        while inside.isdisjoint(self.graph.kept):
            readers = (r for name in inside for r in self.graph.readers[name] if r.name not in inside)
            outside = {r.name: r for r in readers}
            node = min(outside.values(), key=lambda r: self._positions[r.name])
            is_moved = node.op in _REORDERING
            if is_moved and len(outside) > 1:
                break
            if not is_moved and (cropped or node.is_foreign or OPERATORS[node.op].kind is not Kind.POINTWISE):
                break
            cropped |= node.op == "slice"
            inside.add(node.name)
            if not is_moved or alias_of(self.graph, node.name) is None:
                found.append(node)
            if cropped:
                whole = list(found)
        if not whole:
            return
        computed, region = [n for n in whole[:-1] if not is_view(n)], _GraphRegion([])
        for n in (whole[-1], *reversed(computed)):
            region = region.with_node(n, self.graph)
        self._written.clear()
        if self._may_fit(region):
            self.regions.append(region)
            self._region_of |= {n.name: region for n in region.nodes}
            self.stored.add(region.output.name)

    def _reduce(self, node: Node) -> None:
        """Make a reduction of a product one kernel with the product and the pointwise nodes between them, where a
        kernel class takes that, so that the product is not stored."""
        if node.op not in _REDUCTIONS:
            return
        found, region = self._from_anchor(node), _GraphRegion([])
        for n in found:
            region = region.with_node(n, self.graph)
        if not found or found[-1].op != "matmul" or any(n.name in self.stored for n in found[1:]):
            return
        self._written.clear()
        if self._may_fit(region):
            self.regions.append(region)
            self._region_of |= {n.name: region for n in region.nodes}
            self.stored.add(region.output.name)

    def _fits_with_stored(self, region: _GraphRegion, views: set[str]) -> bool:
        """Return whether a kernel class takes a region where ``views`` are stored. They are then, and otherwise not."""
        self.stored |= views
        self._written.clear()
        written = self._write(region)
        fits = written is not None and self._fits(written.workload)
        if not fits:
            self.stored -= views
            self._written.clear()
        return fits

    def _permuted_by(self, node: Node) -> Node | None:
        """Return the permutation that alone reads a node, through reshapes too."""
        while node.name not in self.graph.kept and len(readers := self.graph.readers[node.name]) == 1:
            (node,) = readers
            if node.op == "permute":
                return node
            if node.is_foreign or alias_of(self.graph, node.name) is None:
                return None
        return None

    def _may_join(self, node: Node, region: _GraphRegion, readers: list[Node]) -> bool:
        kind, elements = OPERATORS[node.op].kind, node.result.elements
        if kind is not Kind.POINTWISE:
            if node.name in self.graph.fixed and region.output.name not in self.graph.fixed:
                return False  # it is computed once for each set of weights
            if region.main is not None:
                return self._is_second_sum(node, region.main) and self._fits_with(region, node)
            return elements == region.output.result.elements
        if elements not in region.elements:
            if not all(self._is_moved(node, r) for r in readers) or not self._fits_with(region, node):
                return False
            return not is_view(region.output) or not self._belongs_to_anchor(node, region)
        main = region.main
        if main is None and is_view(region.output):
            return not self._belongs_to_anchor(node, region)
        if main is None or all(r is not main for r in readers):
            return True
        return OPERATORS[main.op].kind is Kind.REDUCTION and not self._from_anchor(node)

    def _is_second_sum(self, node: Node, main: Node) -> bool:
        """Return whether two products have the same left operand and shape, so that one kernel may have both sums."""
        same = node.op == main.op == "matmul" and node.result.type == main.result.type
        return same and node.operands[0] == main.operands[0]

    def _fits_with(self, region: _GraphRegion, node: Node) -> bool:
        """Return whether a kernel class takes a region with ``node``."""
        written = self._write(region.with_node(node, self.graph))
        return written is not None and self._fits(written.workload)

    def _is_moved(self, node: Node, reader: Node) -> bool:
        """Return whether a pointwise reader, or a concatenation that is stored, uses each element of ``node`` once at
        most, behind views that only move elements, such as one half of a concatenation."""
        for between in self.graph.readers[node.name]:
            if between is reader:
                if reader.op != "concatenate" and reader.result.elements != node.result.elements:
                    return False
            elif between.op not in _MOVING or not self._is_moved(between, reader):
                return False
        return OPERATORS[reader.op].kind is Kind.POINTWISE or reader.op == "concatenate"

    def _belongs_to_anchor(self, node: Node, region: _GraphRegion) -> bool:
        """Return whether a kernel class takes a pointwise node as the epilogue of an anchor, and not also ``region``, a
        stored view that reads it."""
        epilogue = _GraphRegion([])
        for n in self._from_anchor(node):
            epilogue, region = epilogue.with_node(n, self.graph), region.with_node(n, self.graph)
        if not epilogue.nodes:
            return False
        return not self._may_fit(region) and self._may_fit(epilogue)

    def _from_anchor(self, node: Node) -> list[Node]:
        """Return a pointwise node that could be part of the epilogue of an anchor, which is worth more, and what is
        before it up to the anchor; nothing for any other node."""
        for name in node.operands:
            while len(self.graph.readers[name]) == 1 and (alias := alias_of(self.graph, name)) is not None:
                name = alias
            before = self.graph.producers.get(name)
            if before is None or before.is_foreign or len(self.graph.readers[name]) > 1:
                continue
            kind = OPERATORS[before.op].kind
            if kind is Kind.ANCHOR:
                return [node, before]
            if kind is Kind.POINTWISE and (found := self._from_anchor(before)):
                return [node, *found]
        return []

    def _keeps_class(self, region: _GraphRegion, node: Node, grown: _GraphRegion) -> bool:
        """Return whether a kernel class takes the grown region, or takes neither part of it. Views before its anchor
        may be stored for that, as they will be."""
        if self._may_fit(grown):
            return True
        parts = (region, _GraphRegion([]).with_node(node, self.graph))
        return self._write(grown) is not None and not any(self._may_fit(p) for p in parts if p.main is not None)

    def _may_fit(self, region: _GraphRegion) -> bool:
        """Return whether a kernel class takes a region as it is, or where the views before its anchor are stored."""
        written = self._write(region)
        if written is not None and self._fits(written.workload):
            return True
        views = set() if region.main is None else set(self._views_before(region.main))
        if not views:
            return False
        stored, known = set(self.stored), self._written
        self._written = {}
        fits = self._fits_with_stored(region, views)
        self.stored, self._written = stored, known
        return fits

    def _store_operands(self, region: _GraphRegion) -> None:
        """Store the views that an anchor or a reduction reads where no class takes it otherwise, and one does then."""
        main = region.main
        if main is None:
            return
        views = set(self._views_before(main))
        before = self._write(region)
        if not views or (before is not None and self._fits(before.workload)):
            return
        if self._fits_with_stored(region, views):
            for name in views:
                self._start(self.graph.producers[name])
                self._join_to_anchor(self.graph.producers[name])

    def _join_to_anchor(self, view: Node) -> None:
        """Have the kernel of an anchor store ``view``, a region of its own, in the place of its result, where nothing
        else reads that, and where a kernel class takes it."""
        if view.op not in _REORDERING:
            return
        (name,) = view.operands
        while self._is_moved_alone(name) and is_view(producer := self.graph.producers[name]):
            name = producer.operands[0]
        region = self._region_of.get(name)
        if region is None or region.output.name != name or region.main is None or not self._is_moved_alone(name):
            return
        if OPERATORS[region.main.op].kind is not Kind.ANCHOR or view.result.elements > region.output.result.elements:
            return
        joined = replace(region, nodes=[view, *region.nodes])
        self._written.clear()
        if self._may_fit(joined):
            self.regions.remove(self._region_of[view.name])
            region.nodes = joined.nodes
            self._region_of[view.name] = region
            self.stored.discard(name)

    def _is_moved_alone(self, name: str) -> bool:
        """Return whether a computed value has one reader, which only moves its elements."""
        readers = self.graph.readers[name]
        moved = name in self.graph.producers and name not in self.graph.kept and len(readers) == 1
        return moved and readers[0].op in _REORDERING

    def _write_in_steps(self, region: _GraphRegion) -> WrittenRegion | None:
        """Give each node of a region, and each view that they read, a kernel of its own, because the region would go
        beyond the limits of ``te``. The region keeps its output."""
        first, *rest = region.nodes
        alone = _GraphRegion([]).with_node(first, self.graph)
        region.nodes, region.main, region.elements = alone.nodes, alone.main, alone.elements
        for node in rest:
            self._start(node)
        for name in dict.fromkeys(name for node in (first, *rest) for name in node.operands):
            while name not in self.stored and (before := alias_of(self.graph, name)) is not None:
                name = before
            if name not in self.stored:
                self._start(self.graph.producers[name])
        self._written.clear()
        return self._write(region)

    def _sorted(self, region: _GraphRegion) -> list[Node]:
        return sorted(region.nodes, key=lambda n: self._positions[n.name])

    def _write(self, region: _GraphRegion) -> WrittenRegion | None:
        """Return the workload of a region; None where it would go beyond the limits of ``te``."""
        nodes = self._sorted(region)
        key = tuple(n.name for n in nodes)
        if key not in self._written:
            # What has no region yet will be stored, or be part of a region that is stored.
            stored = _Either(self.stored, self._computed)
            try:
                self._written[key] = write_workload(self.graph, nodes, [region.output.name], stored)
            except InvalidWorkload:
                self._written[key] = None
        return self._written[key]
