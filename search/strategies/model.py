"""Search led by a learned cost model that scores the whole pool at once."""

from collections.abc import Collection, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ...core.streams import stream
from ...core.trial import Prediction
from ...cost_model.dataset import experience_data, labels
from ...cost_model.models import new_model
from ..crossover import crossover
from ..seen import Seen
from ..strategy import Observation, Problem

_FIRST = 16
"""How many random candidates a model without history is trained on first."""
_RANDOM_SHARE = 0.15
_PARENTS = 12
_CROSSOVER_SHARE = 0.5
_CHILDREN_PER_PICK = 3
"""Half of what is not random comes from crossover of the fastest candidates: of every three children, the model picks
one. The top of the model's ranking alone gets stuck near the first good candidate. With 120 trials on four recorded
spaces and 8 seeds it reached 0.92 of the optimum alone and 0.96 with crossover; with the forest 0.87 and 0.93."""
_OWN_WEIGHT = 4
"""How often a result of this task is repeated in the training data, where a result of an earlier task stands once."""
_GROWTH, _STEP = 1.25, 8
"""The model is trained again once the results have grown by a quarter, at a multiple of the step."""


class ModelSearch:
    """Each batch has the top of the model's ranking without near-duplicates, children of the fastest candidates, and
    some random ones.

    The model is trained on the records of earlier tasks before anything is measured, where there are such records: it
    leads the first batch already. It is trained again as this task gets results.
    """

    def __init__(self, problem: Problem) -> None:
        self._pool = problem.pool
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._model = new_model(problem.model)
        self._earlier = experience_data(problem.history, prior=problem.pool.policy.prior)
        self._scores: NDArray[np.float32] | None = None
        self._learned_from = -1

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        told = len(self._seen.observations)
        rng = stream(self._seed, "model", told + len(pending))
        if told < _FIRST and len(self._earlier[1]) == 0:
            return self._first_candidates(count, rng, pending)
        scores = self._ranking(_learning_point(told))
        explore = int(rng.binomial(count, _RANDOM_SHARE if told >= _FIRST else 2 * _RANDOM_SHARE))
        chosen = self._crossed(scores, int(rng.binomial(count - explore, _CROSSOVER_SHARE)), rng, pending)
        chosen += self._pick(scores, count - explore - len(chosen), [*pending, *chosen])
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def prediction(self, candidate: int) -> Prediction | None:
        if self._scores is None:
            return None
        return Prediction(float(self._scores[candidate]), self._learned_from)

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)

    def _first_candidates(self, count: int, rng: np.random.Generator, pending: Collection[int]) -> list[int]:
        """Candidates before there is a model: random ones where the space is pruned, since all are promising there.

        Of a whole space most candidates are the best by the prior, where there is a prior.
        """
        prior = self._pool.prior_seconds
        if self._pool.policy.prune or prior is None:
            return self._seen.draw(count, rng, pending)
        explore = int(rng.binomial(count, 2 * _RANDOM_SHARE))
        chosen = self._pick(-prior, count - explore, pending)
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

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

    def _crossed(
        self, scores: NDArray[np.float32], count: int, rng: np.random.Generator, pending: Collection[int]
    ) -> list[int]:
        """Up to ``count`` new children of the fastest candidates, in the order of the model's ranking."""
        parents = self._seen.best(_PARENTS)
        if count == 0 or len(parents) < 2:
            return []
        children = np.unique(crossover(self._pool, parents, _CHILDREN_PER_PICK * count, rng))
        return self._seen.fresh(children[np.argsort(-scores[children], kind="stable")], count, pending)

    def _pick(self, scores: NDArray[np.float32], count: int, pending: Collection[int]) -> list[int]:
        """The best ``count`` new candidates. No two of them differ in one knob alone while there are others."""
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
        """In how many knobs two candidates differ. It is 99 for candidates of different sketches."""
        (space_a, row_a), (space_b, row_b) = self._pool.locate(a), self._pool.locate(b)
        if space_a != space_b:
            return 99
        codes = self._pool.spaces[space_a].codes
        return int((codes[row_a] != codes[row_b]).sum())


def _learning_point(told: int) -> int:
    """How many of ``told`` results the model is trained on.

    It depends on the count alone, so that a resumed search ranks as an undisturbed one would.
    """
    point = 0
    while (following := max(point + _STEP, _STEP * ceil(point * _GROWTH / _STEP))) <= told:
        point = following
    return point
