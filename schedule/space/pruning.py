"""Pruning by a prior: which of many candidates an estimate likes best."""

from math import inf

import numpy as np

from .columns import Bools, Floats


def best_by_prior(prior: Floats, candidates: Bools, most: int, within: float = inf) -> Bools:
    """Return the ``most`` candidates of the least ``prior``, those equal to the last one included, bool[n].

    None of them is over ``within`` times the least. ``prior`` is a time for each row, float64[n]; ``candidates`` says
    which rows to choose from.
    """
    ordered = np.sort(prior[candidates])
    if not len(ordered):
        return candidates
    bound = min(float(ordered[min(most, len(ordered)) - 1]), float(ordered[0]) * within)
    return candidates & (prior <= bound)
