"""Search that begins with what earlier tasks found, under a guard: a cold search has its share from early on."""

from collections.abc import Collection, Sequence

import numpy as np

from ...core.streams import stream
from ...core.trial import Prediction
from ..gaussian_process import Floats
from ..improvement import Improvement, learning_point, logarithms
from ..seen import Results, Seen
from ..stacking import Stacking
from ..strategy import ExpectsImprovement, Observation, Predicts, SearchProblem, Strategy
from ..transfer import Transfer

_COVER = 4
"""So many candidates come first that are the best for some earlier task; no result is needed for them. It is at least
what a Gaussian process needs."""
_STACKED_FROM, _STACKED = 8, 0.75
"""From so many results on the stacked trees have this share of what is not the cold search's."""
_JOINED_FROM, _JOINED = 16, 0.5
"""From so many results on the sources are columns of the Gaussian process too, and it has this share."""
_AGREEMENT_GROWTH = 1.1
"""The sources are weighed again whenever the results have grown by so much."""
_COLD_FROM = 16
"""Until there are so many results the cold search proposes nothing."""
_LEAST_COLD, _MOST_COLD = 0.1, 0.3
"""The share of the cold search afterwards: where earlier tasks order the results perfectly, and where not at all."""


class WarmSearch:
    """
    first:  candidates that are the best of some source, each adding most to those before
    then:   expected improvement under a Gaussian process whose mean is what the sources say, so that it learns
            only how this task differs from them
    from 8: trees that learn from the results where each source is right (``stacking``)
    from 16: what every source says is a column of the process too, so that it learns the same smoothly; what the trees
            propose, its mean ranks too
    guard:  sources count by their rank agreement with the results; after 16 results a tenth of the candidates is the
            cold search's, which is told everything, and more where the sources agree less
    """

    def __init__(self, problem: SearchProblem, cold: Strategy) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._cold = cold
        self._transfer = Transfer(problem.pool, problem.history, problem.seed)
        self._first = self._transfer.cover(2 * _COVER)
        self._stacking = Stacking(self._transfer, problem.model, problem.seed)
        self._pool = problem.pool
        self._smooth = Improvement(problem.pool, problem.seed)
        self._joined: Improvement | None = None
        self._weighed_from = -1

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        if not len(self._transfer):
            return self._cold.ask(count, pending)
        results = self._seen.results
        if len(results) < _COVER or not self._seen.best(1):
            chosen = self._seen.fresh(self._first, count, pending)
            return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])
        if self._joined is None and len(results) >= _JOINED_FROM:
            self._joined = Improvement(self._pool, self._seed, self._transfer.columns)
        agreement, expected = self._weighed(results)
        rng = stream(self._seed, "guard", len(results) + len(pending))
        cold = int(rng.binomial(count, _cold_share(len(results), agreement)))
        stacked = int(rng.binomial(count - cold, _stacked_share(len(results))))
        ranking = self._joined.ranking(results, expected) if self._joined and stacked else None
        chosen = self._stacking.propose(self._seen, pending, stacked, ranking)
        smooth = self._joined or self._smooth
        chosen += smooth.propose(results, sorted([*pending, *chosen]), count - cold - stacked, expected)
        return chosen + self._cold.ask(count - len(chosen), [*pending, *chosen])

    def _weighed(self, results: Results) -> tuple[Floats, Floats]:
        """(the agreement of every source, what they expect of every candidate)."""
        point = learning_point(len(results), _AGREEMENT_GROWTH)
        if self._weighed_from != point:
            known = results.first(point)
            z = logarithms(known.seconds)
            self._agreement = self._transfer.agreement(known.candidates, z)
            self._expected = self._transfer.expected(known.candidates, z, self._agreement)
            self._weighed_from = point
        return self._agreement, self._expected

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
        self._cold.tell(observations)

    def prediction(self, candidate: int) -> Prediction | None:
        stacked = self._stacking.prediction(candidate)
        if stacked is not None or not isinstance(self._cold, Predicts):
            return stacked
        return self._cold.prediction(candidate)

    def expected_improvement(self) -> float | None:
        return self._cold.expected_improvement() if isinstance(self._cold, ExpectsImprovement) else None


def _stacked_share(told: int) -> float:
    """Return the share of the stacked trees in what is not the cold search's."""
    if told >= _JOINED_FROM:
        return 1 - _JOINED
    return _STACKED if told >= _STACKED_FROM else 0.0


def _cold_share(told: int, agreement: Floats) -> float:
    """Return the share of the cold search after so many results."""
    if told < _COLD_FROM:
        return 0.0
    return _MOST_COLD + (_LEAST_COLD - _MOST_COLD) * float(np.clip(agreement.max(), 0.0, 1.0))
