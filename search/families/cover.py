"""Chooses the schedules of a family.

    chosen = []
    until there are K, or the target is met:
        add the schedule that lowers the mean regret of the best chosen one most
        exchange chosen ones for others while that lowers it

The regret of a schedule where it has no time counts as ``MISSING``, so that shapes which nothing serves come first.
"""

import numpy as np
from numpy.typing import NDArray

MISSING = 1e3
"""Regret of a schedule at a shape where it was not timed: large, and yet one such shape is less than two."""


def covering_set(regret: NDArray[np.float64], most: int, target: float) -> list[int]:
    """Columns of ``regret`` float64[shapes, schedules]: as few as lead to a mean regret of at most ``target`` of the
    best of them at each shape, and at most ``most``."""
    costs = np.minimum(regret, MISSING)
    chosen: list[int] = []
    served = np.full(len(costs), MISSING)
    while len(chosen) < min(most, costs.shape[1]) and (not chosen or served.mean() > target):
        means = np.minimum(served[:, None], costs).mean(axis=0)
        means[chosen] = np.inf
        chosen = _exchanged(costs, [*chosen, int(means.argmin())])
        served = costs[:, chosen].min(axis=1)
    return sorted(chosen)


def _exchanged(costs: NDArray[np.float64], chosen: list[int]) -> list[int]:
    """``chosen`` after exchanges of one for another, each of which lowers the mean, until none does."""
    best = costs[:, chosen].min(axis=1).mean()
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            rest = costs[:, others].min(axis=1, initial=MISSING)
            means = np.minimum(rest[:, None], costs).mean(axis=0)
            means[others] = np.inf
            if means.min() < best - 1e-12:
                chosen = [*others, int(means.argmin())]
                best, improved = means.min(), True
    return chosen
