"""The least that a workload costs: arithmetic operations, and bytes moved. One with a dynamic dimension costs what it
does at its representative extent."""

from collections.abc import Mapping
from math import prod

from ..ir.expr import Binary, Compare, Expr, Load, Logic, Select, Unary
from ..ir.linear_form import affine_form
from ..ir.rewrite import free_variables, loads_of
from .contraction import contraction_of
from .contraction_path import contraction_paths
from .dynamic import at_representative
from .scan import scan_of
from .scatter import scatter_of
from .triton import TritonWorkload
from .workload import Stage, Workload

_SECTOR_BYTES = 32


def flops(workload: Workload) -> int:
    """Return how many arithmetic operations one run has, such as 2MNK for a matrix product.

    Every arithmetic node and math function of a body counts as one for each point, and so does each combination of a
    reduction. Arithmetic on axes alone, conditions, casts and loads count as nothing. A select costs as much as its
    dearer branch. A sum of products costs what the cheapest of its contraction paths does, and what its factors are
    made by counts once for each of their own points.
    """
    return sum(stage_flops(part) for stage in at_representative(workload).stages for part in cheapest_stages(stage))


def cheapest_stages(stage: Stage) -> tuple[Stage, ...]:
    """Return the stages that compute the tensor of ``stage`` with the fewest operations: those of a contraction path,
    or ``stage`` itself."""
    written: tuple[Stage, ...] = (stage,)
    return min(
        [written, *(path.stages for path in contraction_paths(stage))], key=lambda parts: sum(map(stage_flops, parts))
    )


def stage_points(stage: Stage) -> int:
    """Return at how many points the body of a stage is evaluated. A scan takes each value once, and so does a
    scatter."""
    reduced = () if scan_of(stage) is not None else stage.reduce_axes
    scatter = scatter_of(stage)
    return prod(a.extent for a in (*stage.axes, *reduced)) // (1 if scatter is None else scatter.key_count)


def stage_flops(stage: Stage) -> int:
    """Return the operations of one stage in the order that is written, counted as in ``flops``. A scan and a scatter
    combine each value once."""
    scan, scatter = scan_of(stage), scatter_of(stage)
    if scatter is not None:
        return stage_points(stage) * (_operations(scatter.term)[0] + 1)
    if scan is not None:
        return stage.tensor.elements * (_operations(scan.body)[0] + 1)
    extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    points = prod(extents.values())
    written = points * (_operations(stage.body)[0] + (stage.reducer is not None))
    product = contraction_of(stage)
    if product is None:
        return written
    factors = (product.left, product.right)
    own = (prod(extents[name] for name in free_variables(f) & extents.keys()) * _operations(f)[0] for f in factors)
    return min(written, 2 * points + sum(own))


def minimum_bytes(workload: Workload) -> int:
    """Return how many bytes cross the memory bus at least: what is read of each input is read once, and each output is
    written once. A load reads no more rows of its tensor than its indices have points, which are few in a slice with
    steps or in a gather from a large table. Along a row it reads whole sectors of 32 bytes. Nothing is known of a
    Triton kernel, so that it is 0."""
    if isinstance(workload, TritonWorkload):
        return 0
    workload = at_representative(workload)
    read = dict.fromkeys((tensor.name for tensor in workload.inputs), 0)
    for stage in workload.stages:
        extents = {a.name: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        for load in dict.fromkeys(e for e in loads_of(stage.body) if e.buffer.name in read):
            read[load.buffer.name] += _elements_read(load, extents)
    inputs = sum(min(tensor.elements, read[tensor.name]) * tensor.dtype.bytes for tensor in workload.inputs)
    return inputs + sum(tensor.bytes for tensor in workload.output_buffers)


def _elements_read(load: Load, extents: Mapping[str, int]) -> int:
    """Return how many elements a load reads at most. ``extents``: those of all axes."""
    if not load.indices:
        return 1
    *others, last = load.indices
    axes = frozenset().union(*map(free_variables, others))
    rows, form = prod(extents[name] for name in axes), affine_form(last)
    if form is None or any(abs(c) != 1 for c in form.coefficients.values()):
        points = rows * prod(extents[name] for name in free_variables(last) - axes)
        return min(rows * load.buffer.shape[-1], points * (_SECTOR_BYTES // load.dtype.bytes))
    return rows * prod(extents[name] for name in form.variables if name not in axes)


def _operations(expr: Expr) -> tuple[int, bool]:
    """Return the operations of ``expr``, and whether it reads a tensor. What reads none is arithmetic on axes, which
    costs nothing."""
    if isinstance(expr, Load):
        return 0, True
    below = [_operations(child) for child in expr.children]
    reads = any(r for _, r in below)
    match expr:
        case Compare() | Logic():
            return 0, reads
        case Select():
            return max(below[1][0], below[2][0]), reads
        case Binary() | Unary() if reads:
            return 1 + sum(n for n, _ in below), True
    return sum(n for n, _ in below), reads
