"""Search led by learned cost models: a Gaussian process, and trees once there are enough results."""

from collections.abc import Collection, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ...core.streams import stream
from ...core.trial import Prediction
from ...cost_model.dataset import experience_data, labels
from ...cost_model.models import new_model
from ..crossover import crossover
from ..improvement import FIRST, Improvement, compressed, logarithms
from ..seen import Results, Seen
from ..strategy import LOOK_AHEAD, Observation, SearchProblem

_TREES_FROM = 16
"""How many results the trees are trained on first, where there is no history."""
_SMOOTH_UNTIL = 64
"""So long the Gaussian process alone proposes: it needs fewer results than trees."""
_SMOOTH_SHARE, _RANDOM_SHARE = 0.5, 0.04
"""Later it has half of the proposals. A few are random; the others are the trees'."""
_PARENTS = 12
_CROSSOVER_SHARE = 0.5
_CHILDREN_PER_PICK = 3
"""Half of what the trees propose comes from crossover of the fastest candidates: of every three children, the trees
pick one. The top of their ranking alone gets stuck near the first good candidate."""
_OWN_WEIGHT = 4
"""How often a result of this task is repeated in the training data, where a result of an earlier task stands once."""
_TRUST = 0.04
"""How firmly a prior is believed at first: as firmly as after four results a tenth apart that bear it out."""
_GROWTH, _STEP = 1.25, 16
"""The trees are trained again once the results have grown by a quarter, at a multiple of the step."""


class ModelSearch:
    """Spaces are smooth along most knobs, where a Gaussian process finds what is good with few results; and they have
    lone settings that are far faster than their neighbours, which crossover and trees find. Each has its share.

        fewer than 3 results:  the least times by the prior; without one, a candidate near the centre of the pool
        none of them timed:    candidates far from those known
        fewer than 64:         the largest expected improvement over what the prior expects
        later:                 1/2 expected improvement, 1/4 children of the fastest that the trees choose,
                               1/4 the top of the trees' ranking, a few random ones

    Trees that have learned from earlier tasks lead from the first candidate on.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self._pool = problem.pool
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._model = new_model(problem.model)
        self._earlier = experience_data(problem.history, prior=problem.pool.policy.prior)
        self._smooth = Improvement(problem.pool, problem.seed)
        prior = problem.pool.prior_seconds
        self._prior = None if prior is None else np.log(prior, dtype=np.float64)
        self._scores: NDArray[np.float32] | None = None
        self._learned_from = -1
        self._predicts_from: int | None = None

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        if not count:
            return []
        told = len(self._seen.observations)
        rng = stream(self._seed, "model", told + len(pending))
        smooth = self._smooth_count(count, told, rng)
        chosen = self._improving(smooth, rng, pending)
        if told < _TREES_FROM and len(self._earlier[1]) == 0:
            return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])
        self._predicts_from = _learning_point(told)
        if len(chosen) < count:
            scores = self._ranking(self._predicts_from)
            rest = count - len(chosen) - int(rng.binomial(count - len(chosen), _RANDOM_SHARE / (1 - _SMOOTH_SHARE)))
            crossed = int(rng.binomial(rest, _CROSSOVER_SHARE))
            chosen += self._crossed(scores, crossed, rng, [*pending, *chosen])
            chosen += self._pick(scores, rest - crossed, [*pending, *chosen])
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def prediction(self, candidate: int) -> Prediction | None:
        if self._predicts_from is None:
            return None
        return Prediction(float(self._ranking(self._predicts_from)[candidate]), self._learned_from)

    def expected_improvement(self) -> float | None:
        results = self._seen.results
        if self._prior is None or len(results) < FIRST or not self._seen.best(1):
            return None
        return self._smooth.expected(results, LOOK_AHEAD, self._expected(results))

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)

    def _smooth_count(self, count: int, told: int, rng: np.random.Generator) -> int:
        """Return how many of ``count`` candidates the Gaussian process chooses."""
        if len(self._earlier[1]) == 0 and told < _SMOOTH_UNTIL:
            return count
        return int(rng.binomial(count, _SMOOTH_SHARE))

    def _improving(self, count: int, rng: np.random.Generator, pending: Collection[int]) -> list[int]:
        results = self._seen.results
        if len(results) >= FIRST and self._seen.best(1):
            return self._smooth.propose(results, sorted(pending), count, self._expected(results))
        if self._prior is not None and len(results) < FIRST:
            return self._pick(-self._prior, count, pending)
        chosen = list[int]()
        while len(chosen) < count and (free := self._seen.free([*pending, *chosen])).size:
            known = [*results.candidates, *sorted(pending), *chosen]
            chosen.append(self._smooth.first(known, rng, free))
        return chosen

    def _expected(self, results: Results) -> NDArray[np.float64] | None:
        """float64[pool]: what the prior expects of every candidate, relative to its best, as far as the results bear
        it out: the slope of their times over the prior, by ridge regression towards 1."""
        if self._prior is None:
            return None
        expected, z = compressed(self._prior), logarithms(results.seconds)
        here = expected[results.candidates]
        here, z = here - here.mean(), z - z.mean()
        slope = (here @ z + _TRUST) / (here @ here + _TRUST)
        return np.asarray(max(float(slope), 0.0) * expected)

    def _ranking(self, learn_from: int) -> NDArray[np.float32]:
        """float32[pool]: the scores by trees that have seen the first ``learn_from`` results of this task."""
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
        """Up to ``count`` new children of the fastest candidates, in the order of the trees' ranking."""
        parents = self._seen.best(_PARENTS)
        if count == 0 or len(parents) < 2:
            return []
        children = np.unique(crossover(self._pool, parents, _CHILDREN_PER_PICK * count, rng))
        return self._seen.fresh(children[np.argsort(-scores[children], kind="stable")], count, pending)

    def _pick(self, scores: NDArray[np.float32], count: int, pending: Collection[int]) -> list[int]:
        """Return the best ``count`` new candidates. No two of them differ in one knob alone while there are others."""
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
    """Return how many of ``told`` results the trees are trained on.

    It depends on the count alone, so that a resumed search ranks as an undisturbed one would.
    """
    point = 0
    while (following := max(point + _STEP, _STEP * ceil(point * _GROWTH / _STEP))) <= told:
        point = following
    return point
