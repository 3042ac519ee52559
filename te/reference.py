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
from .scan import accumulate, scan_of, values_stage
from .threads import thread_count
from .workload import Stage, Workload

_CHUNK = 1 << 17
"""How many points are evaluated at once. A few float64 arrays of this size stay in a core's cache."""

_LEAST_PART = 64
"""How many points of the result are computed together at least, since neighbours share cache lines."""

_WORTH_THREADS = 1 << 21
"""The number of points of a stage from which several threads share it."""


def reference(workload: Workload, inputs: Mapping[str, Array], threads: int | None = None) -> dict[str, Array]:
    """Return the outputs by name, for a checked workload and its inputs by name, in the inputs' dtypes.

    Floats are computed and returned in float64: only constants and casts round to their dtype. Integers and bools are
    exact, wrap, and come in their own dtype. Sums of products run as matrix products, in the cheapest order
    (``te.contraction_path``), and scans keep a running value. The rest is computed in chunks that stay in cache, on
    several threads where it is much. ``threads`` of None means those that this process may run on, at most 16; their
    number changes at most the last digit of float64 sums. A tensor is dropped once nothing reads it any more. Raises
    InvalidParameter naming an input that is missing or has another shape or dtype.
    """
    tensors = {t.name: _input(t, inputs) for t in workload.inputs}
    last = {load.buffer.name: n for n, stage in enumerate(workload.stages) for load in loads_of(stage.body)}
    for n, stage in enumerate(workload.stages):
        tensors[stage.name] = _stage(stage, tensors, threads)
        for name in [t for t in tensors if last.get(t, -1) <= n and t not in workload.outputs and t != stage.name]:
            del tensors[name]
    return {name: tensors[name] for name in workload.outputs}


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
    scan = scan_of(stage)
    if scan is not None:
        return accumulate(scan, _stage(values_stage(scan), tensors, threads))
    result = np.empty(stage.tensor.shape, _dtype(stage))
    extents = [a.extent for a in stage.axes]
    box = [(0, extent) for extent in extents]
    points = math.prod(extents) * math.prod(a.extent for a in stage.reduce_axes)
    count = thread_count(threads) if extents and points >= _WORTH_THREADS else 1
    if count == 1:
        _fill(stage, tensors, result, box)
        return result
    longest = extents.index(max(extents))
    step = -(-extents[longest] // count)
    boxes = [
        [*box[:longest], (start, min(start + step, extents[longest])), *box[longest + 1 :]]
        for start in range(0, extents[longest], step)
    ]
    with ThreadPoolExecutor(count) as pool:  # NumPy computes outside of the interpreter's lock
        for part in [pool.submit(_fill, stage, tensors, result, b) for b in boxes]:
            part.result()
    return result


def _dtype(stage: Stage) -> np.dtype[Any]:
    return np.dtype(np.float64) if stage.tensor.dtype.is_float else stage.tensor.dtype.numpy


def _fill(stage: Stage, tensors: Mapping[str, Array], result: Array, box: Sequence[tuple[int, int]]) -> None:
    """Compute the part ``box`` of the stage's tensor ``result``. ``box`` has (start, stop) for each axis."""
    names = [a.name for a in (*stage.axes, *stage.reduce_axes)]
    reduced = [a.extent for a in stage.reduce_axes]
    most = max(_LEAST_PART, _CHUNK // math.prod(reduced))
    with np.errstate(all="ignore"):  # here: the setting is a thread's own
        for part in chunks([stop - start for start, stop in box], most):
            place = tuple((start + a, start + b) for (start, _), (a, b) in zip(box, part, strict=True))
            shape = [stop - start for start, stop in place]
            joined: Joined | None = None
            for over in chunks(reduced, max(1, _CHUNK // math.prod(shape))):
                value = Evaluator(tensors, dict(zip(names, (*place, *over), strict=True)))(stage.body)
                value = np.broadcast_to(value, [*shape, *(stop - start for start, stop in over)])
                if stage.reducer is None:
                    joined = Joined(value)
                else:
                    joined = join(stage.reducer, joined, value, over, _dtype(stage))
            assert joined is not None
            result[tuple(slice(*r) for r in place)] = joined.value if joined.position is None else joined.position


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
