"""Simulated annealing: steps from one candidate to a neighbour, uphill too while the temperature is high."""

from collections.abc import Collection, Sequence

import numpy as np

from ...core.streams import stream
from ...core.trial import Timed
from ..encoding import Encoding
from ..seen import Seen
from ..strategy import Observation, SearchProblem

_FIRST = 8
"""How many random candidates come first; the chain begins at the fastest of them."""
_HOT, _COOLING = 0.5, 0.97
"""The temperature in units of log(seconds), and its factor from one result to the next."""
_NEIGHBOURS = 24
"""A step goes to one of so many candidates next to where the chain stands: those that differ in the fewest knobs."""


class Annealing:
    """The chain is found again from the results alone: a result moves it if it is faster, or with probability
    exp(-log(slower by) / temperature). Where every neighbour is known, it begins anew at a random candidate."""

    def __init__(self, problem: SearchProblem) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._points = Encoding.of(problem.pool).points(problem.pool)
        self._at: tuple[float, int] | None = None

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        told = len(self._seen.observations)
        rng = stream(self._seed, "annealing", told + len(pending))
        if told < _FIRST or self._at is None:
            return self._seen.draw(count, rng, pending)
        distance = np.abs(self._points - self._points[self._at[1]])
        away = np.count_nonzero(distance > 1e-6, axis=1) + distance.sum(axis=1)
        near = np.argpartition(away, min(_NEIGHBOURS, len(away) - 1))[: _NEIGHBOURS + 1]
        chosen = self._seen.fresh(rng.permutation(near), count, pending)
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            told = len(self._seen.observations)
            self._seen.add([observation])
            if not isinstance(observation.outcome, Timed):
                continue
            value = float(np.log(observation.outcome.seconds))
            heat = max(_HOT * _COOLING**told, 1e-3)
            uphill = 0.0 if told < _FIRST else float(stream(self._seed, "accept", told).random())
            climbs = self._at is not None and uphill > 0 and np.exp((self._at[0] - value) / heat) > uphill
            if self._at is None or value < self._at[0] or climbs:
                self._at = (value, observation.candidate)
