"""What a workload computes: the truth that every kernel is compared with."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..core.errors import InvalidParameter
from ..ir.buffer import Buffer
from .contraction import contract, contraction_of
from .evaluate import Array, Evaluator
from .workload import Reducer, Stage, Workload

_CHUNK = 1 << 17
"""Points evaluated at once: a few arrays of this many float64 stay in a core's cache."""

_COMBINE = {Reducer.SUM: np.add, Reducer.MAX: np.maximum, Reducer.MIN: np.minimum}


def reference(workload: Workload, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name, for a checked workload and its inputs by name, in the inputs' dtypes.

    Floats are computed and returned in float64: only constants and casts round to their dtype. Integers and bools
    are exact, wrap, and come in their own dtype. Sums of products run as matrix products, the rest in chunks that
    stay in cache. Raises InvalidParameter naming an input that is missing or has another shape or dtype.
    """
    tensors = {t.name: _input(t, inputs) for t in workload.inputs}
    with np.errstate(all="ignore"):
        for stage in workload.stages:
            tensors[stage.name] = _stage(stage, tensors)
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


def _stage(stage: Stage, tensors: Mapping[str, Array]) -> Array:
    contraction = contraction_of(stage)
    if contraction is not None:
        return contract(contraction, tensors)
    dtype = np.dtype(np.float64) if stage.tensor.dtype.is_float else stage.tensor.dtype.numpy
    result = np.full(stage.tensor.shape, _identity(stage), dtype)
    axes = (*stage.axes, *stage.reduce_axes)
    extents = [a.extent for a in axes]
    rank = len(stage.axes)
    for chunk in chunks(extents, _CHUNK):
        value = Evaluator(tensors, {a.name: r for a, r in zip(axes, chunk, strict=True)})(stage.body)
        place = tuple(slice(*r) for r in chunk[:rank])
        if stage.reducer is None:
            result[place] = value
            continue
        value = np.broadcast_to(value, [stop - start for start, stop in chunk])
        combine = _COMBINE[stage.reducer]
        part = combine.reduce(value, axis=tuple(range(rank, len(axes))), dtype=dtype)
        result[place] = combine(result[place], part)
    return result


def _identity(stage: Stage) -> float | int:
    if stage.reducer not in (Reducer.MAX, Reducer.MIN):
        return 0
    dtype = stage.tensor.dtype
    low, high = (-math.inf, math.inf) if dtype.is_float else dtype.integer_range
    return low if stage.reducer is Reducer.MAX else high


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
