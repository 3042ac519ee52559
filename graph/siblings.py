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
from .partition import Call, Fits, KernelCall
from .region import is_view, write_workload

_REACH = 8
"""How many calls behind a kernel its siblings are looked for."""
_SMALL = 1 << 16
"""Up to so many elements the launch of a kernel costs more than what it does: such kernels need little in common."""


def join_siblings(graph: Graph, calls: Sequence[Call], fits: Fits) -> tuple[Call, ...]:
    """``calls`` with kernels joined two by two, where a kernel class takes both together. They reduce the same value,
    or compute outputs of one shape; or the second one reads what the first one computes, and both are small or of one
    shape. Products stay alone, but for small ones one behind the other; so do convolutions, and what is computed once
    for each set of weights."""
    found = list(calls)
    computed = _Computed(
        {v.name for v in (*graph.inputs, *graph.constants)}
        | {v.name for node in graph.nodes if not is_view(node) for v in node.results}
        | {name for c in calls for name in c.writes},
        {node.name: place for place, node in enumerate(graph.nodes)},
        Counter(name for c in calls for name in set(c.reads)),
    )
    n = 0
    while n < len(found):
        for m in range(n + 1, min(n + 1 + _REACH, len(found))):
            place = _place(found, n, m)
            joined = None if place is None else _joined(graph, computed, found, n, m, fits)
            if place is not None and joined is not None:
                for before in (found[n], found[m]):
                    computed.reads.subtract(set(before.reads))
                computed.reads.update(set(joined.reads))
                del found[m], found[n]
                found.insert(place, joined)
                break
        else:
            n += 1
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Computed:
    """``stored``: the values that are no views, and those that calls write. ``places``: where each node stands in the
    graph, by its name. ``reads``: how many calls read a value."""

    stored: set[str]
    places: Mapping[str, int]
    reads: Counter[str]


def _place(calls: Sequence[Call], n: int, m: int) -> int | None:
    """Return where a kernel may stand that is call ``n`` and call ``m`` in one, once these two are gone; None for
    nowhere."""
    between = calls[n + 1 : m]
    if not any(name in c.writes for c in between for name in calls[m].reads):
        return n
    return m - 1 if not any(name in c.reads for c in between for name in calls[n].writes) else None


def _joined(graph: Graph, computed: _Computed, calls: Sequence[Call], n: int, m: int, fits: Fits) -> KernelCall | None:
    """Return two calls as one kernel; None where they are not alike, or where no kernel class takes them together."""
    first, second = calls[n], calls[m]
    if not isinstance(first, KernelCall) or not isinstance(second, KernelCall) or not _is_alike(graph, first, second):
        return None
    names = sorted({*first.nodes, *second.nodes}, key=computed.places.__getitem__)
    nodes = tuple(graph.producers[name] for name in names)
    own = Counter([*set(first.reads), *set(second.reads)])
    outputs = tuple(
        name for name in (*first.writes, *second.writes) if name in graph.kept or computed.reads[name] > own[name]
    )
    try:
        written = write_workload(graph, nodes, outputs, computed.stored)
    except InvalidWorkload:
        return None
    same = set(written.reads) <= {*first.reads, *second.reads} - set(first.writes)
    if not same or not fits(written.workload):
        return None
    return KernelCall(written.workload, written.reads, written.writes, tuple(names))


def _is_alike(graph: Graph, first: KernelCall, second: KernelCall) -> bool:
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
    largest = max((graph.values[name].elements, name) for name in first.reads)[1]
    return one_shape and bool(mains[0]) and bool(mains[1]) and largest in common


def _are_layers(graph: Graph, first: KernelCall, second: KernelCall) -> bool:
    """Return whether two kernels are products by constants, the second one of what the first one computes, and all of
    their weights together are small: then a thread block can go through all layers with its rows."""
    anchors = [graph.producers[n] for c in (first, second) for n in c.nodes]
    anchors = [n for n in anchors if OPERATORS[n.op].kind is Kind.ANCHOR]
    weights = {n.operands[1] for n in anchors}
    if any(n.op != "matmul" for n in anchors) or not weights <= graph.fixed or first.writes[0] not in second.reads:
        return False
    small = all(graph.values[name].elements <= _SMALL for c in (first, second) for name in (*c.reads, *c.writes))
    return small and sum(graph.values[name].elements for name in weights) <= _SMALL


def _is_same_rows(graph: Graph, first: KernelCall, second: KernelCall) -> bool:
    """Return whether ``second`` goes on with the rows of ``first``, so that one kernel keeps them. One of the two
    reduces the rows. ``second`` reads them again with what they were reduced to, such as to divide by it, or it reduces
    what ``first`` made of them."""
    reduced = [Kind.REDUCTION in _mains(graph, call) for call in (first, second)]
    largest = max((graph.values[name].elements, name) for name in first.reads)[1]
    elements = graph.values[largest].elements
    if any(graph.values[name].elements > elements for call in (first, second) for name in (*call.reads, *call.writes)):
        return False
    whole = any(graph.values[name].elements == elements for name in first.writes if name in second.reads)
    return (reduced[0] and largest in second.reads) or (all(reduced) and whole)


def _mains(graph: Graph, call: KernelCall) -> set[Kind]:
    """Return which kinds of nodes there are in a kernel beside pointwise ones and views."""
    return {OPERATORS[graph.producers[n].op].kind for n in call.nodes} - {Kind.POINTWISE, Kind.VIEW}
