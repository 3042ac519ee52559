"""Passes: functions from a graph to a graph that computes the same. ``simplify_graph`` runs them in their order."""

from collections.abc import Callable

from ..graph import Graph
from .batch_norm import fold_batch_norm
from .cleanup import drop_identities, drop_unused, join_equal
from .reshapes import sink_reshapes

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    drop_identities,
    drop_unused,
    join_equal,
    fold_batch_norm,
    sink_reshapes,
    drop_identities,
    join_equal,
    drop_unused,
)


def simplify_graph(graph: Graph) -> Graph:
    """``graph`` after all passes."""
    for run in PASSES:
        graph = run(graph)
    return graph
