"""Reductions over NumPy arrays in chunks: how the reference combines the results of its chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .evaluate import Array
from .workload import Reducer

COMBINE: dict[Reducer, "np.ufunc"] = {
    Reducer.SUM: np.add,
    Reducer.PROD: np.multiply,
    Reducer.MAX: np.maximum,
    Reducer.MIN: np.minimum,
}
"""The function that combines two values. For positions it combines the values that they stand for."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of a part of a reduction: a value for each point, and for argmax and argmin its position too."""

    value: Array
    position: Array | None = None


def join(
    reducer: Reducer, before: Joined | None, terms: Array, ranges: Sequence[tuple[int, int]], dtype: np.dtype[Any]
) -> Joined:
    """``before`` combined with further ``terms``, whose last dimensions are the reduction ``ranges`` (start, stop).

    Chunks must come in increasing order, since argmax and argmin take the first of equal values. ``dtype`` is what
    values are accumulated in; for positions it is their own dtype.
    """
    axes = tuple(range(terms.ndim - len(ranges), terms.ndim))
    if not reducer.is_position:
        combine = COMBINE[reducer]
        part = combine.reduce(terms, axis=axes, dtype=dtype)
        return Joined(part if before is None else combine(before.value, part))
    find = np.argmax if reducer is Reducer.ARGMAX else np.argmin
    local = np.asarray(find(terms, axis=-1))
    value = np.take_along_axis(terms, local[..., None], axis=-1)[..., 0]
    position = (local + ranges[0][0]).astype(dtype)
    if before is None:
        return Joined(value, position)
    better = value > before.value if reducer is Reducer.ARGMAX else value < before.value
    assert before.position is not None
    return Joined(np.where(better, value, before.value), np.where(better, position, before.position))
