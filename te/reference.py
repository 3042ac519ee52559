"""The reference: what a workload computes, in float64. Every kernel is compared with it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..core.errors import InvalidParameter
from ..ir.buffer import Buffer
from ..ir.rewrite import loads_of
from .contraction import contract, contract_groups, contraction_of, grouped_contraction_of
from .contraction_path import contraction_paths
from .evaluate import Array, Evaluator
from .join import Joined, join
from .phases import with_phases
from .scan import accumulate, scan_of, values_stage
from .scatter import scatter, scatter_of
from .slicing import Slicing, slice_of, slicing_of
from .sums_of_products import single_products
from .threads import thread_count
from .workload import Stage, Workload

_CHUNK = 1 << 17
"""How many points are evaluated at once. A few float64 arrays of this size stay in a core's cache."""

_LEAST_PART = 64
"""How many points of the result are computed together at least, since neighbours share cache lines."""

_WORTH_THREADS = 1 << 21
"""The number of points of a stage from which several threads share it."""

_SLICED = 1 << 22
"""Workloads are computed in slices where a tensor between inputs and outputs has more elements."""

_SLICE = 1 << 21
"""How many elements a slice of a tensor has at most, if dimensions enough can be cut: 16 MiB of float64, so that the
allocator takes the same memory for the next slice."""


def reference(workload: Workload, inputs: Mapping[str, Array], threads: int | None = None) -> dict[str, Array]:
    """Return the outputs by name, for a checked workload and its inputs by name, in the inputs' dtypes.

    Floats are computed and returned in float64: only constants and casts round to their dtype. Integers and bools are
    exact, wrap, and come in their own dtype. Sums of products run as matrix products, in the cheapest order
    (``te.contraction_path``, ``te.sums_of_products``), those of phases together (``te.phases``). Scans keep a running
    value, and terms of scatters are sorted. The rest is computed in chunks that stay in cache, on several threads where
    it is much. Where intermediates are large, slices of the whole workload are computed instead (``te.slicing``).
    ``threads`` of None means those that this process may run on, at most 16; their number changes at most the last
    digit of float64 sums. A tensor is dropped once nothing reads it any more. Raises InvalidParameter naming an input
    that is missing or has another shape or dtype.
    """
    workload = _as_products(workload)
    tensors = {t.name: _input(t, inputs) for t in workload.inputs}
    sliced = reference_slicing(workload)
    apart = frozenset() if sliced is None else sliced.dimensions.keys()
    stages = [stage for stage in workload.stages if stage.name not in apart]
    last = {load.buffer.name: n for n, stage in enumerate(stages) for load in loads_of(stage.body)}
    kept = {
        *workload.outputs,
        *(load.buffer.name for s in workload.stages if s.name in apart for load in loads_of(s.body)),
    }
    for n, stage in enumerate(stages):
        tensors[stage.name] = _stage(stage, tensors, threads)
        for name in [t for t in tensors if last.get(t, -1) <= n and t not in kept and t != stage.name]:
            del tensors[name]
    if sliced is not None:
        tensors |= _in_slices(workload, sliced, tensors, threads)
    return {name: tensors[name] for name in workload.outputs}


def _as_products(workload: Workload) -> Workload:
    """``workload``, or the same with axes for phases, such as those of a transposed convolution, which has larger
    products."""
    phased = with_phases(workload)
    return workload if phased is None or not any(map(contraction_of, phased.stages)) else phased


def reference_slicing(workload: Workload) -> Slicing | None:
    """Return the slices in which ``reference`` computes a static workload; None where it computes whole tensors."""
    if max((s.tensor.elements for s in workload.stages), default=0) <= _SLICED:
        return None
    found = slicing_of(workload)
    cut = [] if found is None else [workload.stage(name) for name in found.dimensions]
    large = any(stage.tensor.elements > _SLICED and stage.name not in workload.outputs for stage in cut)
    return found if large and all(map(_is_sliced, cut)) else None


def slice_bytes(workload: Workload, sliced: Slicing) -> int:
    """Return how much memory the slices take that ``reference`` computes at once, on the threads it may use."""
    points = math.prod(sliced.extents)
    of_point = sum(8 * workload.stage(name).tensor.elements // points for name in sliced.dimensions)
    count = _slices_at_once(workload, sliced, None)
    return of_point * min(points, count * _points_of_slice(workload, sliced))


def _slices_at_once(workload: Workload, sliced: Slicing, threads: int | None) -> int:
    """Return how many threads compute a slice each. Where slices are large still, one after the other is computed by
    all threads."""
    return thread_count(threads) if sliced.points(workload) <= _SLICE else 1


def _points_of_slice(workload: Workload, sliced: Slicing) -> int:
    """Return how many points of the dimensions that are cut a slice has at most."""
    return max(1, _SLICE // sliced.points(workload))


def _is_sliced(stage: Stage) -> bool:
    """Return whether a part of the stage can be computed: it is a contraction, or is evaluated point by point."""
    if scatter_of(stage) is not None:
        return False
    if contraction_of(stage) is not None:
        return True
    if grouped_contraction_of(stage) is not None or contraction_paths(stage) or scan_of(stage) is not None:
        return False
    return stage in single_products(stage, {stage.name})


def _in_slices(
    workload: Workload, sliced: Slicing, tensors: Mapping[str, Array], threads: int | None
) -> dict[str, Array]:
    """Return the outputs of ``workload`` that are cut. ``tensors``: all others that they depend on."""
    stages = [stage for stage in workload.stages if stage.name in sliced.dimensions]
    contractions = {stage.name: contraction_of(stage) for stage in stages}
    results = {s.name: np.empty(s.tensor.shape, _dtype(s)) for s in stages if s.name in workload.outputs}
    count = _slices_at_once(workload, sliced, threads)
    inner = 1 if count > 1 else threads

    def compute(part: tuple[tuple[int, int], ...]) -> None:
        local, origins = dict(tensors), dict[str, tuple[int, ...]]()
        for stage in stages:
            box = slice_of(stage, sliced, part)
            contraction = contractions[stage.name]
            if contraction is not None:
                value = contract(contraction, local, inner, box, origins)
            else:
                value = _evaluated(stage, local, list(box.values()), inner, origins)
            local[stage.name], origins[stage.name] = value, tuple(start for start, _ in box.values())
            if stage.name in results:
                results[stage.name][tuple(slice(*r) for r in box.values())] = value

    parts = chunks(sliced.extents, _points_of_slice(workload, sliced))
    if count == 1:
        for part in parts:
            compute(part)
        return results
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(compute, part) for part in parts]:
            done.result()
    return results


def _input(tensor: Buffer, inputs: Mapping[str, Array]) -> Array:
    array = inputs.get(tensor.name)
    if array is None:
        raise InvalidParameter(
            f"input {tensor.name} is missing; given: {', '.join(inputs) or 'none'}", field=tensor.name
        )
    if tuple(array.shape) != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise InvalidParameter(
            f"input {tensor.name} is {array.dtype}{list(array.shape)}; needed: {tensor.dtype}{list(tensor.shape)}",
            field=tensor.name,
        )
    return np.ascontiguousarray(array).reshape(tensor.shape)


def _stage(stage: Stage, tensors: Mapping[str, Array], threads: int | None) -> Array:
    scattered = scatter_of(stage)
    if scattered is not None:
        return scatter(scattered, tensors)
    contraction = contraction_of(stage)
    if contraction is not None:
        return contract(contraction, tensors, threads)
    grouped = grouped_contraction_of(stage)
    if grouped is not None:
        return contract_groups(grouped, tensors, threads)
    paths = contraction_paths(stage, frozenset(tensors))
    if paths:
        known = dict(tensors)
        for inner in paths[0].stages:
            known[inner.name] = _stage(inner, known, threads)
        return known[stage.name]
    products = single_products(stage, {*tensors, stage.name, *(a.name for a in (*stage.axes, *stage.reduce_axes))})
    if stage not in products:
        known = dict(tensors)
        for part in products:
            known[part.name] = _stage(part, known, threads)
        return known[stage.name]
    scan = scan_of(stage)
    if scan is not None:
        return accumulate(scan, _stage(values_stage(scan), tensors, threads))
    return _evaluated(stage, tensors, [(0, a.extent) for a in stage.axes], threads, {})


def _evaluated(
    stage: Stage,
    tensors: Mapping[str, Array],
    box: Sequence[tuple[int, int]],
    threads: int | None,
    origins: Mapping[str, tuple[int, ...]],
) -> Array:
    """Return the part ``box`` of the stage's tensor, each point evaluated alone. ``box`` has (start, stop) for each
    axis."""
    extents = [stop - start for start, stop in box]
    result = np.empty(extents, _dtype(stage))
    points = math.prod(extents) * math.prod(a.extent for a in stage.reduce_axes)
    count = thread_count(threads) if extents and points >= _WORTH_THREADS else 1
    if count == 1:
        _fill(stage, tensors, result, box, box, origins)
        return result
    longest = extents.index(max(extents))
    first, last = box[longest]
    step = -(-(last - first) // count)
    boxes = [
        [*box[:longest], (start, min(start + step, last)), *box[longest + 1 :]] for start in range(first, last, step)
    ]
    with ThreadPoolExecutor(count) as pool:  # NumPy computes outside of the interpreter's lock
        for part in [pool.submit(_fill, stage, tensors, result, box, b, origins) for b in boxes]:
            part.result()
    return result


def _dtype(stage: Stage) -> np.dtype[Any]:
    return np.dtype(np.float64) if stage.tensor.dtype.is_float else stage.tensor.dtype.numpy


def _fill(
    stage: Stage,
    tensors: Mapping[str, Array],
    result: Array,
    whole: Sequence[tuple[int, int]],
    box: Sequence[tuple[int, int]],
    origins: Mapping[str, tuple[int, ...]],
) -> None:
    """Compute the part ``box`` of ``result``, which has the part ``whole`` of the stage's tensor."""
    names = [a.name for a in (*stage.axes, *stage.reduce_axes)]
    reduced = [a.extent for a in stage.reduce_axes]
    most = max(_LEAST_PART, _CHUNK // math.prod(reduced))
    with np.errstate(all="ignore"):  # here: the setting is a thread's own
        for part in chunks([stop - start for start, stop in box], most):
            place = tuple((start + a, start + b) for (start, _), (a, b) in zip(box, part, strict=True))
            shape = [stop - start for start, stop in place]
            joined: Joined | None = None
            for over in chunks(reduced, max(1, _CHUNK // math.prod(shape))):
                value = Evaluator(tensors, dict(zip(names, (*place, *over), strict=True)), origins)(stage.body)
                value = np.broadcast_to(value, [*shape, *(stop - start for start, stop in over)])
                if stage.reducer is None:
                    joined = Joined(value)
                else:
                    joined = join(stage.reducer, joined, value, over, _dtype(stage))
            assert joined is not None
            within = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(place, whole, strict=True))
            result[within] = joined.value if joined.position is None else joined.position


def chunks(extents: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Boxes of at most ``limit`` points that tile ``extents`` in row-major order, as (start, stop) per dimension."""
    if not extents:
        yield ()
        return
    inner = math.prod(extents[1:])
    step = max(1, limit // inner)
    for start in range(0, extents[0], step):
        stop = min(start + step, extents[0])
        for rest in chunks(extents[1:], limit if stop - start == 1 else inner):
            yield ((start, stop), *rest)
