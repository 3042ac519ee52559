"""Values of many steps, as loops over time have them, in the memory of one: a step reads its part of the inputs where
it lies, and writes its part of the results where it belongs.

    x[t], x.unbind(0)      no index into x, which would be another one in each step: equal steps share a kernel
    stack(h_0, h_1, …)     no copies

A part must begin at a multiple of 16 bytes, as kernels expect of what they read. ``passes.steps`` gives graphs the form
that is found here.
"""

from math import prod

from .graph import Graph
from .operators import OPERATORS, Kind
from .partition import Call, InPlace, JoinCall, KernelCall
from .passes.steps import MANY, after_products, leaves_of, slices_of_steps
from .region import alias_of

_ALIGNMENT_BYTES = 16
_MOST_COPIES = 2
"""So many results of the graph may be parts of a value: each is copied."""


def steps_in_place(graph: Graph) -> InPlace:
    """Return the slices and the concatenations of ``graph`` that need no copies."""
    return InPlace(_parts(graph), _joins(graph))


def is_in_place(calls: tuple[Call, ...]) -> bool:
    """Return whether every part of a concatenation without copies is written by a kernel."""
    written = {name for c in calls if isinstance(c, KernelCall) for name in c.writes}
    return all(written.issuperset(c.parts) for c in calls if isinstance(c, JoinCall))


def _parts(graph: Graph) -> dict[str, int]:
    """Return the slices that lie within what they are slices of, and the number of the first element of each."""
    found: dict[str, int] = {}
    for (of, d, _), slices in slices_of_steps(graph).items():
        value = graph.values[of]
        in_one_piece = prod(value.shape[:d]) == 1
        aligned = all(one.offset * value.dtype.bytes % _ALIGNMENT_BYTES == 0 for one in slices)
        seen = any(one.node.name in graph.kept or one.node.name in graph.fixed for one in slices)
        if in_one_piece and aligned and not seen:
            found |= {one.node.name: one.offset for one in slices}
    return found


def _joins(graph: Graph) -> dict[str, JoinCall]:
    """Return the concatenations whose parts are computed behind products, by their results."""
    found: dict[str, JoinCall] = {}
    taken: set[str] = set()
    joined = [n for n in reversed(graph.nodes) if n.op == "concatenate" and n.name not in graph.fixed]
    after = after_products(graph) if joined else frozenset[str]()
    for node in joined:
        d = OPERATORS["concatenate"].values(node.attributes).integer("dim")
        leaves, inner = leaves_of(graph, node, d)
        if node.name in taken or len(leaves) < MANY or prod(node.result.shape[:d]) > 1:
            continue
        parts, offsets, at = list[str](), list[int](), 0
        for name in leaves:
            offsets.append(at)
            at += graph.values[name].elements
            while (before := alias_of(graph, name)) is not None:
                name = before
            parts.append(name)
        own = set(parts)
        aligned = all(n * node.result.dtype.bytes % _ALIGNMENT_BYTES == 0 for n in offsets)
        apart = len(own) == len(parts) and not own & taken
        computed = after.issuperset(own) and all(OPERATORS[graph.producers[n].op].kind is not Kind.VIEW for n in own)
        if aligned and apart and computed and len(own & set(graph.kept)) <= _MOST_COPIES:
            found[node.name] = JoinCall(node.name, tuple(parts), tuple(offsets))
            taken |= own | inner
    return found
