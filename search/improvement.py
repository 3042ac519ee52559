"""Expected improvement: the candidate that a Gaussian process expects to gain most by.

    z = log(seconds / best seconds), its slow tail compressed; a failure counts as the slowest
    z - expected is what the process learns: `expected` is what is known beforehand, 0 where nothing is
    gain(x) = E[max(least z - z(x), 0)] under the process; candidates that are pending count with their mean

Lengths are learned again whenever the results have grown by 40 %.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ..core.streams import stream
from .encoding import Encoding
from .gaussian_process import BLAS, Floats, GaussianProcess, Points
from .pool import CandidatePool
from .seen import Results

_TAIL = 0.5
"""What is slower than the best by a factor over exp(0.5) differs little: the order of the fast ones matters."""
_BOLD = 2.0
"""Every other candidate is chosen with the standard deviation doubled: a process that learned its lengths from few
results is too sure of itself, and stays near the first good candidate."""
_GROWTH = 1.4
_MOST, _LENGTHS_FROM = 256, 64
"""How many results the process is conditioned on when it learns, and chooses its lengths from: the fastest half of that
many and a random half of the others."""
_POINTS = 12_288
"""In a larger pool the process looks at so many candidates, sampled anew whenever it learns."""
_LOOKED_AT = 2048
"""Until it learns again it looks at so many alone: those of which it expected most when it had learned."""
FIRST = 3
"""With fewer results there is no process."""


class Improvement:
    """Proposes candidates of a pool. Proposals depend on the seed, the results and what is pending alone."""

    def __init__(self, pool: CandidatePool, seed: int, beside: NDArray[np.float32] | None = None) -> None:
        """``beside``: float32[pool, columns] of what the process sees beside the settings."""
        self._pool, self._seed = pool, seed
        self.points = Encoding.of(pool, alignment=True).points(pool)
        if beside is not None:
            self.points = np.concatenate([self.points, beside], axis=1)
        self._learned_from = self._seen = -1

    def first(self, known: Sequence[int], rng: np.random.Generator, free: NDArray[np.int64]) -> int:
        """Return a candidate to begin with: one near the centre of the pool, then far from all that are ``known``."""
        if not known:
            distance = np.sum((self.points[free] - self.points[free].mean(axis=0)) ** 2, axis=1)
            central = np.argsort(distance, kind="stable")[: max(20, len(free) // 50)]
            return int(free[rng.choice(central)])
        drawn = rng.choice(free, min(50, len(free)), replace=False)
        apart = np.min(np.sum((self.points[drawn][:, None] - self.points[known][None]) ** 2, axis=2), axis=1)
        return int(drawn[apart.argmax()])

    def propose(
        self,
        results: Results,
        pending: Collection[int],
        count: int,
        expected: Floats | None = None,
    ) -> list[int]:
        """Up to ``count`` candidates, none of ``results`` or ``pending``. ``results`` has a valid time and at least
        FIRST entries; ``expected``: float[pool]."""
        if not count:
            return []
        with BLAS.limit(limits=1):
            return self._proposed(results, pending, count, expected)[0]

    def expected(self, results: Results, count: int, expected: Floats | None = None) -> float:
        """Return the share of the least time that the next ``count`` proposals gain in the mean of the process: the sum
        of what is expected of those that are not bold. Arguments as of ``propose``."""
        with BLAS.limit(limits=1):
            return self._proposed(results, (), count, expected)[1]

    def ranking(self, results: Results, expected: Floats | None = None) -> tuple[NDArray[np.int64], Floats]:
        """Return the candidates that the process looks at, int64[n], and which z it expects of each, float64[n].
        Arguments as of ``propose``."""
        offset = np.zeros(len(self._pool)) if expected is None else expected
        with BLAS.limit(limits=1):
            scaled, middle, spread = self._scaled(results, offset)
            mean, _ = self._process.posterior(scaled)
        return self._looked_at, middle + spread * mean + offset[self._looked_at]

    def _scaled(self, results: Results, offset: Floats) -> tuple[Floats, float, float]:
        """Learn and observe what is new; return what the process observed, and the middle and spread that it was scaled
        by."""
        point = learning_point(len(results))
        if self._learned_from != point:
            self._learn(results.first(point), offset)
        self._observe(results)
        values = (logarithms(results.seconds) - offset[results.candidates])[self._kept]
        middle, spread = float(values.mean()), max(float(values.std()), 1e-3)
        return (values - middle) / spread, middle, spread

    def _proposed(
        self, results: Results, pending: Collection[int], count: int, expected: Floats | None
    ) -> tuple[list[int], float]:
        """Return the proposals, and what is expected of those that are not bold."""
        offset = np.zeros(len(self._pool)) if expected is None else expected
        scaled, middle, spread = self._scaled(results, offset)
        limit = -(middle + offset[self._looked_at]) / spread  # the best of all results has z = 0
        taken = np.zeros(len(self._pool), np.bool_)
        taken[results.candidates] = True
        taken[list(pending)] = True
        own, chosen, expectation = len(self._process), list[int](), 0.0
        for candidate in pending:
            scaled = self._impute(candidate, scaled)
        while len(chosen) < count and not taken[self._looked_at].all():
            if chosen:
                scaled = self._impute(chosen[-1], scaled)
            bold = (len(results) + len(pending) + len(chosen)) % 2
            gain = self._gain(scaled, limit, _BOLD if bold else 1.0)
            place = int(np.where(taken[self._looked_at], -1.0, gain).argmax())
            best = int(self._looked_at[place])
            expectation += 0.0 if bold else float(gain[place] * spread)
            taken[best] = True
            chosen.append(best)
        self._process.forget(own)
        return chosen, expectation

    def _gain(self, scaled: Floats, limit: Floats, bold: float) -> Points:
        """float32[looked at]: the expected improvement, the standard deviation being ``bold`` times as large."""
        mean, deviation = self._process.posterior(scaled)
        deviation = bold * deviation
        u = (limit - mean) / deviation
        return np.asarray(deviation * (u * ndtr(u) + np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)))

    def _observe(self, results: Results) -> None:
        """Add what is new since the process learned, as far as it looks at those candidates."""
        for n in range(self._seen, len(results)):
            place = int(self._place[results.candidates[n]])
            if place >= 0:
                self._kept.append(n)
                self._process.observe(place)
        self._seen = len(results)

    def _impute(self, candidate: int, scaled: Floats) -> Floats:
        place = int(self._place[candidate])
        if place < 0:
            return scaled
        mean = self._process.mean(scaled, place)
        self._process.observe(place)
        return np.append(scaled, mean)

    def _learn(self, results: Results, offset: Floats) -> None:
        rng = stream(self._seed, "improvement", len(results))
        z = logarithms(results.seconds) - offset[results.candidates]
        self._kept = [int(n) for n in _few(np.argsort(z, kind="stable"), _MOST, rng)]
        self._choose_members(results, rng)
        places = self._place[results.candidates[self._kept]]
        middle, spread = z[self._kept].mean(), max(z[self._kept].std(), 1e-3)
        values = (z[self._kept] - middle) / spread
        few = _few(np.argsort(values, kind="stable"), _LENGTHS_FROM, rng)
        self._process.learn(places[few], values[few], places)
        self._looked_at = self._members
        if len(self._members) > _LOOKED_AT:
            gain = self._gain(values, -(middle + offset[self._members]) / spread, _BOLD)
            gain[self._place[results.candidates]] = -1.0  # all of them are members
            most = np.sort(np.argpartition(-gain, _LOOKED_AT)[:_LOOKED_AT])
            self._process.focus(most)
            self._looked_at = self._members[most]
        self._learned_from = self._seen = len(results)

    def _choose_members(self, results: Results, rng: np.random.Generator) -> None:
        if len(self._pool) <= _POINTS:
            if self._learned_from >= 0:
                return
            self._members = np.arange(len(self._pool))
        else:
            drawn = rng.choice(len(self._pool), _POINTS, replace=False)
            self._members = np.unique(np.concatenate([drawn, results.candidates]))
        self._place = np.full(len(self._pool), -1)
        self._place[self._members] = np.arange(len(self._members))
        self._process = GaussianProcess(self.points[self._members])


def learning_point(told: int, growth: float = _GROWTH) -> int:
    """From how many of ``told`` results is learned; it depends on the count alone, for a resumed search."""
    point = FIRST
    while (following := max(point + 1, int(point * growth))) <= told:
        point = following
    return point


def logarithms(seconds: Floats) -> Floats:
    """Return z of every result, float64[n]. NaN seconds are failures. It is 0 where there are only failures."""
    z = np.log(seconds)
    if np.isnan(z).all():
        return np.zeros(len(z))
    return compressed(np.where(np.isnan(z), np.nanmax(z), z))


def compressed(logarithms: Floats) -> Floats:
    """Logarithms of seconds relative to the least, the slow tail compressed."""
    return np.asarray(_TAIL * np.log1p((logarithms - logarithms.min()) / _TAIL))


def _few(order: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Of rows from the best to the worst: all, or ``most`` of them, half of these the best."""
    if len(order) <= most:
        return order
    return np.concatenate([order[: most // 2], rng.choice(order[most // 2 :], most - most // 2, replace=False)])
