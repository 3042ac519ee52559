"""Joins kernels that read the same, or one of which reads the other, to one kernel with several outputs.

Such are the mean and the variance of rows, the greatest elements and where they are, what overwrites small buffers, and
the layers of a small multilayer perceptron.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import InvalidWorkload
from .graph import Graph
from .operators import OPERATORS, Kind
from .partition import Call, Fits, KernelCall, ViewCall
from .region import is_view, write_workload

_REACH = 8
"""How many calls behind a kernel its siblings are looked for."""
_SMALL = 1 << 16
"""Up to so many elements the launch of a kernel costs more than what it does: such kernels need little in common."""


def join_siblings(graph: Graph, calls: Sequence[Call], fits: Fits) -> tuple[Call, ...]:
    """``calls`` with kernels joined two by two, where a kernel class takes both together. They reduce the same value,
    or compute outputs of one shape; or the second one reads what the first one computes, and both are small or of one
    shape, or the second one reduces a map. Products stay alone, but for small ones one behind the other; so do
    convolutions, and what is computed once for each set of weights.

    Many that are alike in a row, as in a loop that a trace has written out, are written once for all of them: twice as
    many as before each time, and half as many where no class takes them."""
    found = list(calls)
    computed = _Computed(
        {v.name for v in (*graph.inputs, *graph.constants)}
        | {v.name for node in graph.nodes if not is_view(node) for v in node.results}
        | {name for c in calls for name in c.writes},
        {node.name: place for place, node in enumerate(graph.nodes)},
        Counter(name for c in calls for name in set(c.reads)),
    )
    n, refused, most, grows = 0, 0, 1, True
    while n < len(found):
        if not isinstance(found[n], KernelCall):
            n += 1
            continue
        end = n + 2 * (most + _REACH)
        plan = _planned(graph, computed, found[n:end], refused, most)
        if not plan.joins:
            n, refused, most, grows = n + 1, 0, 1, True
            continue
        written = _written(graph, computed, plan, fits)
        if written is not None:
            computed.reads.subtract(name for c in found[n:end] for name in set(c.reads))
            computed.reads.update(name for c in written for name in set(c.reads))
            found[n:end] = written
            refused, most = 0, 2 * most if grows else most
        elif plan.joins > 1:
            most, grows = plan.joins // 2, False
        else:
            refused, most, grows = plan.last, 1, False
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Computed:
    """``stored``: the values that are no views, and those that calls write. ``places``: where each node stands in the
    graph, by its name. ``reads``: how many calls read a value."""

    stored: set[str]
    places: Mapping[str, int]
    reads: Counter[str]


@dataclass(frozen=True, slots=True)
class _Joint:
    """``parts`` as one kernel that is not written yet: what it reads, writes and computes."""

    parts: tuple[KernelCall, ...]
    reads: frozenset[str]
    writes: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _JoinPlan:
    """``calls`` after so many ``joins``. ``last``: how far behind the first call the other one stood in the last of
    them."""

    calls: Sequence[Call | _Joint]
    joins: int = 0
    last: int = 0


def _planned(graph: Graph, computed: _Computed, calls: Sequence[Call], refused: int, most: int) -> _JoinPlan:
    """Return a plan that joins the first call with others that are alike, ``most`` times at most. The first time,
    ``refused`` calls behind it are not looked at. Where what is joined must stand behind others, the next one of these
    becomes the first call."""
    found: list[Call | _Joint] = list(calls)
    plan, n = _JoinPlan(calls), 0
    while plan.joins < most:
        while isinstance(found[n], ViewCall) and n < most:
            n += 1
        first = found[n]
        for m in range(n + 1 if plan.joins else refused + 1, min(n + _REACH + 1, len(found))):
            other, place = found[m], _place(found, n, m)
            if (
                isinstance(first, KernelCall | _Joint)
                and isinstance(other, KernelCall | _Joint)
                and place is not None
                and _is_alike(graph, first, other)
            ):
                break
        else:
            return plan
        del found[m], found[n]
        found.insert(place, _joint(graph, computed, first, other))
        plan = _JoinPlan(tuple(found), plan.joins + 1, m)
    return plan


def _place(calls: Sequence[Call | _Joint], n: int, m: int) -> int | None:
    """Return where a kernel may stand that is call ``n`` and call ``m`` in one, once these two are gone; None for
    nowhere."""
    between = calls[n + 1 : m]
    if not any(name in c.writes for c in between for name in calls[m].reads):
        return n
    return m - 1 if not any(name in c.reads for c in between for name in calls[n].writes) else None


def _joint(graph: Graph, computed: _Computed, first: KernelCall | _Joint, second: KernelCall | _Joint) -> _Joint:
    parts = tuple(p for c in (first, second) for p in ((c,) if isinstance(c, KernelCall) else c.parts))
    own = Counter(name for part in parts for name in set(part.reads))
    return _Joint(
        parts,
        frozenset({*first.reads, *second.reads} - {*first.writes}),
        tuple(n for n in (*first.writes, *second.writes) if n in graph.kept or computed.reads[n] > own[n]),
        (*first.nodes, *second.nodes),
    )


def _written(graph: Graph, computed: _Computed, plan: _JoinPlan, fits: Fits) -> list[Call] | None:
    """Return the calls of a plan; None where no kernel class takes a kernel, or where one reads something else than it
    was planned to."""
    found: list[Call] = []
    for call in plan.calls:
        if isinstance(call, _Joint):
            names = sorted(call.nodes, key=computed.places.__getitem__)
            nodes = [graph.producers[name] for name in names]
            try:
                written = write_workload(graph, nodes, call.writes, computed.stored)
            except InvalidWorkload:
                return None
            read = frozenset(written.reads)
            same = read == call.reads or (plan.joins == 1 and read <= call.reads)
            if not same or not fits(written.workload):
                return None
            call = KernelCall(written.workload, written.reads, written.writes, tuple(names))
        found.append(call)
    return found


def _is_alike(graph: Graph, first: KernelCall | _Joint, second: KernelCall | _Joint) -> bool:
    mains = [_mains(graph, c) for c in (first, second)]
    if any(name in graph.fixed for c in (first, second) for name in c.writes):
        return False
    if Kind.ANCHOR in mains[0] | mains[1]:
        return mains == [{Kind.ANCHOR}] * 2 and _are_layers(graph, first, second)
    written = [graph.values[c.writes[0]] for c in (first, second)]
    one_shape = written[0].shape == written[1].shape
    small = all(graph.values[name].elements <= _SMALL for c in (first, second) for name in (*c.reads, *c.writes))
    common = set(first.reads) & set(second.reads)
    if any(name in first.writes for name in second.reads):
        return one_shape or small or _is_same_rows(graph, first, second)
    if not mains[0] and not mains[1]:
        return one_shape and (small or bool(common))
    largest = max(graph.values[name].elements for name in first.reads)
    shared = any(graph.values[name].elements == largest for name in common)
    return one_shape and bool(mains[0]) and bool(mains[1]) and shared


def _are_layers(graph: Graph, first: KernelCall | _Joint, second: KernelCall | _Joint) -> bool:
    """Return whether two kernels are products by constants, the second one of what the first one computes, and all of
    their weights together are small: then a thread block can go through all layers with its rows."""
    anchors = [graph.producers[n] for c in (first, second) for n in c.nodes]
    anchors = [n for n in anchors if OPERATORS[n.op].kind is Kind.ANCHOR]
    weights = {n.operands[1] for n in anchors}
    if any(n.op != "matmul" for n in anchors) or not weights <= graph.fixed or first.writes[0] not in second.reads:
        return False
    small = all(graph.values[name].elements <= _SMALL for c in (first, second) for name in (*c.reads, *c.writes))
    return small and sum(graph.values[name].elements for name in weights) <= _SMALL


def _is_same_rows(graph: Graph, first: KernelCall | _Joint, second: KernelCall | _Joint) -> bool:
    """Return whether ``second`` goes on with the rows of ``first``, so that one kernel keeps them. One of the two
    reduces the rows. ``second`` reads them again with what they were reduced to, such as to divide by it, or it reduces
    what ``first`` made of them, as a map or with a reduction of its own."""
    reduced = [Kind.REDUCTION in _mains(graph, call) for call in (first, second)]
    is_map = not _mains(graph, first)
    largest = max((graph.values[name].elements, name) for name in first.reads)[1]
    elements = graph.values[largest].elements
    if any(graph.values[name].elements > elements for call in (first, second) for name in (*call.reads, *call.writes)):
        return False
    whole = any(graph.values[name].elements == elements for name in first.writes if name in second.reads)
    return (reduced[0] and largest in second.reads) or (reduced[1] and whole and (reduced[0] or is_map))


def _mains(graph: Graph, call: KernelCall | _Joint) -> set[Kind]:
    """Return which kinds of nodes there are in a kernel beside pointwise ones and views."""
    return {OPERATORS[graph.producers[n].op].kind for n in call.nodes} - {Kind.POINTWISE, Kind.VIEW}
