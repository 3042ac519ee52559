"""Rewrites graphs. A pass takes a graph and gives one that computes the same, in a form that kernel classes take.

Each file holds the passes of one topic, and ``PASSES`` is their order. ``simplify_graph`` runs them.
"""

from collections.abc import Callable
from functools import partial

from ..graph import Graph
from .batch_norm import fold_batch_norm
from .channels_last import use_channels_last
from .cleanup import drop_identities, drop_unused, join_equal, repeat_casts
from .diagonals import multiply_by_diagonals
from .few_channels import store_few_channels
from .large_windows import split_large_windows
from .log_softmax import pick_before_log_softmax, pick_first
from .long_rows import split_long_rows
from .norms import find_layer_norms, find_rms_norms, find_softmax, join_instances
from .odd_channels import align_channels
from .odd_columns import fold_odd_columns
from .permutes import join_rows, multiply_as_stored, sink_permutes
from .pixels_at_once import compute_pixels_at_once
from .products import split_batches, split_long_sums
from .quantised import multiply_quantised
from .reductions import keep_no_dims, split_group_norms, split_reductions, split_softmax
from .reshapes import permute_long_dims, raise_splits, sink_reshapes, sink_through_norms
from .scans import find_scans, split_scans
from .scores import scale_scores
from .steps import join_before_products, join_steps_first, multiply_steps_at_once, put_steps_first
from .subpixels import use_subpixels

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    drop_identities,
    drop_unused,
    join_equal,
    multiply_quantised,
    multiply_by_diagonals,
    put_steps_first,
    multiply_steps_at_once,
    join_steps_first,
    join_before_products,
    find_scans,
    fold_batch_norm,
    pick_first,
    pick_before_log_softmax,
    sink_reshapes,
    drop_identities,
    join_equal,
    drop_unused,
)
FOR_CPUS: tuple[Callable[[Graph], Graph], ...] = (
    join_equal,
    find_layer_norms,
    find_softmax,
    *PASSES,
    use_subpixels,
    use_channels_last,
    multiply_as_stored,
    split_scans,
    drop_identities,
    sink_reshapes,
    drop_identities,
    join_equal,
    drop_unused,
)
FOR_GPUS: tuple[Callable[[Graph], Graph], ...] = (
    join_equal,
    find_layer_norms,
    find_rms_norms,
    find_softmax,
    join_instances,
    *PASSES,
    scale_scores,
    permute_long_dims,
    drop_identities,
    split_batches,
    join_rows,
    drop_identities,
    multiply_as_stored,
    sink_permutes,
    sink_reshapes,
    drop_identities,
    raise_splits,
    partial(use_subpixels, gpu=True),
    split_large_windows,
    partial(use_channels_last, gpu=True),
    multiply_as_stored,
    split_group_norms,
    keep_no_dims,
    split_long_sums,
    split_long_rows,
    split_reductions,
    fold_odd_columns,
    partial(split_scans, gpu=True),
    drop_identities,
    sink_through_norms,
    sink_reshapes,
    align_channels,
    compute_pixels_at_once,
    store_few_channels,
    drop_identities,
    join_equal,
    repeat_casts,
    split_softmax,
    drop_unused,
)


def simplify_graph(graph: Graph, *, gpu: bool = False) -> Graph:
    """``graph`` after all passes, which give it the forms that kernel classes for processors take, or with ``gpu``
    those for GPUs."""
    for run in FOR_GPUS if gpu else FOR_CPUS:
        graph = run(graph)
    return graph
