"""Chooses the schedules of a family.

    chosen = []
    until there are K, or the target is met:
        add the schedule that lowers the cost most
        exchange chosen ones for others while that lowers it
    exchange pairs while that lowers it

The cost is the mean regret of the best chosen schedule at each shape. A mean of squares, and weights of one over the
extents, were tried on two recorded sweeps with random thirds of their shapes held out: there the plain mean had the
lowest mean and 95th percentile of both together.

The regret of a schedule where it has no time counts as ``MISSING``, so that shapes which nothing serves come first.
"""

import numpy as np
from numpy.typing import NDArray

MISSING = 1e3
"""Regret of a schedule at a shape where it was not timed: large, and yet one such shape is less than two."""
LEAST_SHARE = 1e-9
"""An exchange must lower the cost by this share of it: less is rounding."""

Floats = NDArray[np.float64]


def covering_set(regret: Floats, most: int, target: float) -> list[int]:
    """Columns of ``regret`` float64[shapes, schedules]: few that lead to a mean regret of at most ``target`` of the
    best of them at each shape, and at most ``most``."""
    regret = np.minimum(regret, MISSING)
    costs, chosen = regret, list[int]()
    while len(chosen) < min(most, regret.shape[1]) and (not chosen or regret[:, chosen].min(axis=1).mean() > target):
        chosen = _exchanged(costs, _grown(costs, chosen, len(chosen) + 1))
    return sorted(_pairs_exchanged(costs, chosen))


def _grown(costs: Floats, chosen: list[int], count: int) -> list[int]:
    """``chosen`` and those that lower the cost most when they are added one after the other, ``count`` in all."""
    while len(chosen) < count:
        served = costs[:, chosen].min(axis=1, initial=MISSING)
        means = np.minimum(served[:, None], costs).mean(axis=0)
        means[chosen] = np.inf
        chosen = [*chosen, int(means.argmin())]
    return chosen


def _exchanged(costs: Floats, chosen: list[int]) -> list[int]:
    """``chosen`` after exchanges of one for another, each of which lowers the cost, until none does."""
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            found = _grown(costs, chosen[:place] + chosen[place + 1 :], len(chosen))
            if _lower(costs, found, chosen):
                chosen, improved = found, True
    return chosen


def _pairs_exchanged(costs: Floats, chosen: list[int]) -> list[int]:
    """``chosen`` after exchanges of two at a time, each followed by those of one, until none lowers the cost. Only
    pairs are tried of which one would serve a shape if the other did not: others are exchanged one by one as well."""
    improved = len(chosen) > 1
    while improved:
        improved = False
        first, second = np.argsort(costs[:, chosen], axis=1, kind="stable")[:, :2].T.tolist()
        for pair in sorted(set(map(frozenset, zip(first, second, strict=True))), key=sorted):
            kept = [column for place, column in enumerate(chosen) if place not in pair]
            found = _exchanged(costs, _grown(costs, kept, len(chosen)))
            if _lower(costs, found, chosen):
                chosen, improved = found, True
                break
    return chosen


def _lower(costs: Floats, found: list[int], chosen: list[int]) -> bool:
    after, before = (costs[:, columns].min(axis=1).mean() for columns in (found, chosen))
    return bool(after < before * (1 - LEAST_SHARE))
