"""Search that begins with what earlier tasks found, under a guard: a cold search has its share from early on."""

from collections.abc import Collection, Sequence

import numpy as np

from ...core.streams import stream
from ...core.trial import Prediction
from ..gaussian_process import Floats
from ..improvement import Improvement, logarithms
from ..seen import Seen
from ..strategy import Observation, Predicts, Problem, Strategy
from ..transfer import Transfer

_COVER = 4
"""So many candidates come first that are the best for some earlier task; no result is needed for them. It is at least
what a Gaussian process needs."""
_ALONE = 16
"""Until there are so many results the cold search proposes nothing, unless the earlier tasks disagree with them."""
_LEAST_COLD, _MOST_COLD = 0.5, 0.85
"""The share of the cold search afterwards: where earlier tasks order the results perfectly, and where not at all."""
_LATE = 64
"""From so many results on it is the greatest anyhow: the task's own results say more by now, and the cold search has
trees and crossover, which find lone settings that no earlier task has."""


class WarmSearch:
    """
    first:  candidates that are the best of some source, each adding most to those before
    then:   expected improvement under a Gaussian process whose mean is what the sources say, so that it learns
            only how this task differs from them
    guard:  sources count by their rank agreement with the results; after 16 results every other candidate is the
            cold search's, which is told everything, and more where the sources agree less; after 64, most
    """

    def __init__(self, problem: Problem, cold: Strategy) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._cold = cold
        self._transfer = Transfer(problem.pool, problem.history, problem.seed)
        self._first = self._transfer.cover(2 * _COVER)
        self._smooth = Improvement(problem.pool, problem.seed, self._transfer.points)

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        results = self._seen.observations
        if not len(self._transfer):
            return self._cold.ask(count, pending)
        if len(results) < _COVER or not self._seen.best(1):
            chosen = self._seen.fresh(self._first, count, pending)
            return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])
        candidates, z = [o.candidate for o in results], logarithms(results)
        share = self._cold_share(candidates, z)
        cold = int(stream(self._seed, "guard", len(results) + len(pending)).binomial(count, share))
        expected = self._transfer.expected(candidates, z)
        chosen = self._smooth.propose(results, sorted(pending), count - cold, expected)
        return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
        self._cold.tell(observations)

    def prediction(self, candidate: int) -> Prediction | None:
        return self._cold.prediction(candidate) if isinstance(self._cold, Predicts) else None

    def _cold_share(self, candidates: Sequence[int], z: Floats) -> float:
        if len(candidates) < _ALONE:
            return 0.0
        if len(candidates) >= _LATE:
            return _MOST_COLD
        agreement = float(np.clip(self._transfer.agreement(candidates, z).max(), 0.0, 1.0))
        return _MOST_COLD + (_LEAST_COLD - _MOST_COLD) * agreement
