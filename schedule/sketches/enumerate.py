"""All legal settings of some knobs, or a sample where there are too many."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import KnobValue
from ..space import Knob
from .columns import Bools, Columns

MOST_TRIED = 2_000_000
"""Settings whose legality is worked out; of more a sample is taken."""
CHUNK = 1 << 16
"""Rows handled at a time: their columns stay in the cache."""

Codes = NDArray[np.int16]
Legal = Callable[[Columns], Bools]


def legal_codes(
    knobs: tuple[Knob, ...],
    first: Sequence[str],
    legal_first: Legal,
    legal: Legal,
    defaults: Mapping[str, KnobValue],
    limit: int,
    draws: np.random.Generator,
) -> tuple[Codes, int]:
    """int16[n, knobs], n <= ``limit``, and how many legal settings there are (an estimate where not all are tried).

    ``legal_first`` depends on the knobs ``first`` alone: combinations of theirs that fail it are never joined with
    the other knobs, which keeps large grids small. Never empty: the first setting stands in when none is legal.
    """
    sizes = [len(k.values) for k in knobs]
    early = [i for i, k in enumerate(knobs) if k.name in first]
    late = [i for i in range(len(knobs)) if i not in early]
    heads = _grid(len(knobs), early, sizes, np.arange(prod(sizes[i] for i in early)))
    heads = heads[legal_first(Columns(knobs, heads, defaults))]
    tails = _grid(len(knobs), late, sizes, np.arange(prod(sizes[i] for i in late)))
    pairs = len(heads) * len(tails)
    if pairs <= MOST_TRIED:
        numbers = np.arange(pairs, dtype=np.int64)
    else:
        numbers = np.unique(draws.integers(0, pairs, size=MOST_TRIED, dtype=np.int64))
    found = [np.zeros((0, len(knobs)), dtype=np.int16)]
    for start in range(0, len(numbers), CHUNK):
        head, tail = np.divmod(numbers[start : start + CHUNK], max(len(tails), 1))
        codes = heads[head] + tails[tail]
        found.append(codes[legal(Columns(knobs, codes, defaults))])
    codes = np.concatenate(found)
    if not len(codes):
        return np.zeros((1, len(sizes)), dtype=np.int16), 1
    total = len(codes) if len(numbers) == pairs else round(len(codes) / len(numbers) * pairs)
    if len(codes) > limit:
        codes = codes[np.sort(draws.permutation(len(codes))[:limit])]
    return codes, max(total, len(codes))


def all_settings(knobs: tuple[Knob, ...]) -> Columns:
    """Every combination of the knobs' values, legal or not."""
    sizes = [len(k.values) for k in knobs]
    return Columns(knobs, _grid(len(knobs), range(len(knobs)), sizes, np.arange(prod(sizes))), {})


def grid_codes(knobs: Sequence[Knob]) -> Codes:
    """int16[n, knobs]: every setting, legal or not."""
    sizes = [len(k.values) for k in knobs]
    return _grid(len(knobs), list(range(len(knobs))), sizes, np.arange(prod(sizes)))


def _grid(width: int, positions: Sequence[int], sizes: Sequence[int], numbers: NDArray[np.int64]) -> Codes:
    """int16[n, width]: the numbered settings of the knobs in ``positions``, 0 for the others."""
    codes = np.zeros((len(numbers), width), dtype=np.int16)
    for position in reversed(positions):
        numbers, codes[:, position] = np.divmod(numbers, sizes[position])
    return codes
