"""Search that begins with what earlier tasks found, under a guard: a cold search has its share from early on."""

from collections.abc import Collection, Sequence

import numpy as np

from ...core.streams import stream
from ...core.trial import Prediction
from ..gaussian_process import Floats
from ..improvement import Improvement, logarithms
from ..seen import Seen
from ..stacking import Stacking
from ..strategy import Observation, Predicts, Problem, Strategy
from ..transfer import Transfer

_COVER = 4
"""So many candidates come first that are the best for some earlier task; no result is needed for them. It is at least
what a Gaussian process needs."""
_STACKED_FROM, _STACKED = 8, 0.75
"""From so many results on the stacked trees have this share of what is not the cold search's."""
_COLD_FROM = 16
"""Until there are so many results the cold search proposes nothing."""
_LEAST_COLD, _MOST_COLD = 0.2, 0.6
"""The share of the cold search afterwards: where earlier tasks order the results perfectly, and where not at all."""


class WarmSearch:
    """
    first:  candidates that are the best of some source, each adding most to those before
    then:   expected improvement under a Gaussian process whose mean is what the sources say, so that it learns
            only how this task differs from them
    from 8: trees that learn from the results where each source is right (``stacking``)
    guard:  sources count by their rank agreement with the results; after 16 results a fifth of the candidates is the
            cold search's, which is told everything, and more where the sources agree less
    """

    def __init__(self, problem: Problem, cold: Strategy) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._cold = cold
        self._transfer = Transfer(problem.pool, problem.history, problem.seed)
        self._first = self._transfer.cover(2 * _COVER)
        self._stacking = Stacking(self._transfer, problem.model, problem.seed)
        self._smooth = Improvement(problem.pool, problem.seed, self._transfer.points)

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        if not len(self._transfer):
            return self._cold.ask(count, pending)
        results = self._seen.results
        if len(results) < _COVER or not self._seen.best(1):
            chosen = self._seen.fresh(self._first, count, pending)
            return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])
        z = logarithms(results.seconds)
        agreement = self._transfer.agreement(results.candidates, z)
        rng = stream(self._seed, "guard", len(results) + len(pending))
        cold = int(rng.binomial(count, _cold_share(len(results), agreement)))
        stacked = int(rng.binomial(count - cold, _STACKED if len(results) >= _STACKED_FROM else 0.0))
        chosen = self._stacking.propose(self._seen, pending, stacked)
        smooth = count - cold - stacked
        expected = self._transfer.expected(results.candidates, z, agreement) if smooth else None
        chosen += self._smooth.propose(results, sorted([*pending, *chosen]), smooth, expected)
        return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
        self._cold.tell(observations)

    def prediction(self, candidate: int) -> Prediction | None:
        cold = self._cold.prediction(candidate) if isinstance(self._cold, Predicts) else None
        return cold if self._stacking.prediction(candidate) is None else self._stacking.prediction(candidate)


def _cold_share(told: int, agreement: Floats) -> float:
    """The share of the cold search after so many results."""
    if told < _COLD_FROM:
        return 0.0
    return _MOST_COLD + (_LEAST_COLD - _MOST_COLD) * float(np.clip(agreement.max(), 0.0, 1.0))
