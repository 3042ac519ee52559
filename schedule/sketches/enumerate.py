"""All legal settings of some knobs, or a sample where there are too many."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from ..space import Knob
from .columns import Bools, Columns

MOST_TRIED = 3_000_000
"""Settings whose legality is worked out; a larger grid is sampled."""
CHUNK = 1 << 18

Codes = NDArray[np.int16]


def legal_codes(
    knobs: Sequence[Knob],
    legal: Callable[[Columns], Bools],
    defaults: Mapping[str, KnobValue],
    limit: int,
    draws: np.random.Generator,
) -> tuple[Codes, int]:
    """int16[n, knobs], n <= ``limit``, in the order of the grid, and how many legal settings there are (estimated
    from the sample when the grid is too large to try). Never empty: the first setting stands in when none is legal."""
    sizes = tuple(len(k.values) for k in knobs)
    grid = prod(sizes)
    if grid <= MOST_TRIED:
        numbers = np.arange(grid, dtype=np.int64)
    else:
        numbers = np.unique(draws.integers(0, grid, size=MOST_TRIED, dtype=np.int64))
    found = []
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        codes = np.stack(np.unravel_index(part, sizes), axis=1).astype(np.int16)
        found.append(codes[legal(Columns(tuple(knobs), codes, defaults))])
    codes = np.concatenate(found)
    total = len(codes) if len(numbers) == grid else round(len(codes) / len(numbers) * grid)
    if len(codes) > limit:
        codes = codes[np.sort(draws.permutation(len(codes))[:limit])]
    if not len(codes):
        return np.zeros((1, len(sizes)), dtype=np.int16), 1
    return codes, max(total, len(codes))
