"""Which settings of a space a test tries, when it tries a few: those that share as few values of knobs as can be."""

import numpy as np
from numpy.typing import NDArray

from tilewright.schedule.space.space import Space


def various_rows(space: Space, rows: NDArray[np.int64], count: int) -> list[int]:
    """Return ``count`` of ``rows`` (all, where there are fewer). Each has the most values of knobs that none before it
    has, and is the first such one; once all values were there, all of them count as new again."""
    codes = space.codes[rows].astype(np.int64)
    values = codes.max(axis=0, initial=0) + 1
    numbers = codes + np.cumsum(values) - values  # one number for each value of each knob
    missing, chosen = np.ones(values.sum(), dtype=bool), list[int]()
    for _ in range(min(count, len(rows))):
        new = missing[numbers].sum(axis=1)
        new[chosen] = -1
        if new.max() == 0:
            missing[:] = True
        chosen.append(int(new.argmax()))
        missing[numbers[chosen[-1]]] = False
    return [int(row) for row in rows[chosen]]
