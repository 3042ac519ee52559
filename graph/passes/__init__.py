"""Passes: functions from a graph to a graph that computes the same. ``simplify_graph`` runs them in their order."""

from collections.abc import Callable

from ..graph import Graph
from .batch_norm import fold_batch_norm
from .channels_last import use_channels_last
from .cleanup import drop_identities, drop_unused, join_equal, repeat_casts
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
CHANNELS_LAST: tuple[Callable[[Graph], Graph], ...] = (
    use_channels_last,
    drop_identities,
    sink_reshapes,
    drop_identities,
    join_equal,
    repeat_casts,
    drop_unused,
)


def simplify_graph(graph: Graph, *, channels_last: bool = False) -> Graph:
    """``graph`` after all passes; with ``channels_last`` also those that make channels the last dimension of what
    convolutions and pools read."""
    for run in (*PASSES, *CHANNELS_LAST) if channels_last else PASSES:
        graph = run(graph)
    return graph
