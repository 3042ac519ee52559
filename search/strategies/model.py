"""Search led by a learned cost model that ranks the whole pool in one go."""

from collections.abc import Collection, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ...core.streams import stream
from ...cost_model.dataset import experience_data, labels
from ...cost_model.models import new_model
from ..breeding import offspring
from ..seen import Seen
from ..strategy import Observation, Problem

_FIRST = 16
"""Random candidates before a model without history is believed."""
_RANDOM_SHARE = 0.15
_PARENTS = 12
_BRED_SHARE = 0.5
_BROOD = 3
"""Of what is not random, half are children of the fastest so far, one of three by the model's ranking. The top of the
ranking alone gets stuck beside the first good candidate (120 trials on four recorded spaces, 8 seeds: 0.92 of the
optimum alone, 0.96 with children; with the forest 0.87 and 0.93)."""
_OWN_WEIGHT = 4
"""How many times a result of this task counts against one of earlier tasks."""
_GROWTH, _STEP = 1.25, 8
"""The model learns again once the results have grown by a quarter, at a multiple of the step."""


class ModelSearch:
    """Each batch is the top of the ranking, thinned so that near-duplicates do not crowd it, plus children of the
    fastest and some random ones.

    The model learns from the records of earlier tasks before anything is measured (then the first batch is led by
    it already) and again whenever this task has new results.
    """

    def __init__(self, problem: Problem) -> None:
        self._pool = problem.pool
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._model = new_model(problem.model)
        self._earlier = experience_data(problem.history)
        self._scores: NDArray[np.float32] | None = None
        self._learned_from = -1

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        told = len(self._seen.observations)
        rng = stream(self._seed, "model", told + len(pending))
        if told < _FIRST and len(self._earlier[1]) == 0:
            return self._seen.draw(count, rng, pending)
        scores = self._ranking(_learning_point(told))
        explore = int(rng.binomial(count, _RANDOM_SHARE if told >= _FIRST else 2 * _RANDOM_SHARE))
        chosen = self._bred(scores, int(rng.binomial(count - explore, _BRED_SHARE)), rng, pending)
        chosen += self._pick(scores, count - explore - len(chosen), [*pending, *chosen])
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)

    def _ranking(self, learn_from: int) -> NDArray[np.float32]:
        """float32[pool]: the scores by a model that has seen the first ``learn_from`` results of this task."""
        if self._scores is None or self._learned_from != learn_from:
            features, goals = self._earlier
            if learn_from:
                results = self._seen.observations[:learn_from]
                own = self._pool.features[[o.candidate for o in results]]
                repeat = _OWN_WEIGHT if len(goals) else 1
                features = np.concatenate([features, *[own] * repeat])
                goals = np.concatenate([goals, *[labels([o.outcome for o in results])] * repeat])
            self._model.fit(features, goals, seed=self._seed)
            self._scores = self._model.predict(self._pool.features)
            self._learned_from = learn_from
        return self._scores

    def _bred(
        self, scores: NDArray[np.float32], count: int, rng: np.random.Generator, pending: Collection[int]
    ) -> list[int]:
        """Up to ``count`` fresh children of the fastest so far, those first that the model ranks first."""
        parents = self._seen.best(_PARENTS)
        if count == 0 or len(parents) < 2:
            return []
        children = np.unique(offspring(self._pool, parents, _BROOD * count, rng))
        return self._seen.fresh(children[np.argsort(-scores[children], kind="stable")], count, pending)

    def _pick(self, scores: NDArray[np.float32], count: int, pending: Collection[int]) -> list[int]:
        """The best ``count`` fresh candidates, no two of them equal in all but one knob while others are to be had."""
        taken = self._seen.known.copy()
        taken[list(pending)] = True
        scores = np.where(taken, -np.inf, scores)
        shortlist = np.argpartition(-scores, min(16 * count, len(scores) - 1))[: 16 * count]
        shortlist = shortlist[np.argsort(-scores[shortlist], kind="stable")]
        chosen: list[int] = []
        for candidate in shortlist:
            if len(chosen) == count:
                break
            if not taken[candidate] and all(self._differ(int(candidate), other) > 1 for other in chosen):
                chosen.append(int(candidate))
        return chosen + self._seen.fresh(shortlist, count - len(chosen), [*pending, *chosen])

    def _differ(self, a: int, b: int) -> int:
        """In how many knobs two candidates differ; many when their sketches do."""
        (space_a, row_a), (space_b, row_b) = self._pool.locate(a), self._pool.locate(b)
        if space_a != space_b:
            return 99
        codes = self._pool.spaces[space_a].codes
        return int((codes[row_a] != codes[row_b]).sum())


def _learning_point(told: int) -> int:
    """How many of ``told`` results the model learns from: a function of the count alone, so that a resumed search
    ranks as an undisturbed one would."""
    point = 0
    while (following := max(point + _STEP, _STEP * ceil(point * _GROWTH / _STEP))) <= told:
        point = following
    return point
