"""The score of the community's methodology for comparing tuners (Willemsen et al., FGCS 2024), on recorded tables.

    target   = optimum + 0.05 * (median - optimum)
    baseline = expected value of random search without replacement: after M evaluations of N valid configurations it
               stands at place round(M (N + 1) / (M + 1)) of the list from the slowest to the fastest
    budget   = evaluations until the baseline reaches the target * median seconds of an evaluation
    F(t)     = ranks of the best so far, of all runs together, fitted over time by isotonic regression in bags of runs
    P(t)     = (baseline(t) - F(t)) / (baseline(t) - optimum): 0 is random search, 1 is the optimum
    score    = mean of P over equally spaced times, from the moment when the baseline is 1 % of the way

Seconds of an evaluation include what the strategy took to propose it. ``by_evaluations`` charges every evaluation the
same instead. This follows the package ``autotuning_methodology`` 1.1.0, whose bags come from an unseeded generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from sklearn.ensemble import BaggingRegressor
from sklearn.isotonic import IsotonicRegression

from tilewright.core.trial import Timed
from tilewright.search.recorded import Recorded

Floats = NDArray[np.float64]

START, END = 0.01, 0.95
"""The part of the way from the median to the optimum that the baseline has gone where the score begins and ends."""
POINTS = 1000


@dataclass(frozen=True)
class Run:
    """One search: best seconds so far after every evaluation (NaN before the first valid one), and when that was."""

    seconds: Floats
    best: Floats

    @property
    def evaluations(self) -> "Run":
        """The same with every evaluation charged one second."""
        return Run(np.arange(1.0, len(self.best) + 1), self.best)


@dataclass(frozen=True)
class Scale:
    """What scores on one table are relative to. ``by_evaluations``: an evaluation counts one second."""

    table: Recorded
    by_evaluations: bool = False

    @cached_property
    def _times(self) -> Floats:
        return np.array([o.seconds if isinstance(o, Timed) else np.nan for o in self.table.outcomes])

    @cached_property
    def sorted_times(self) -> Floats:
        """Valid times in ascending order."""
        return np.sort(self._times[~np.isnan(self._times)])

    @cached_property
    def _costs(self) -> Floats:
        return np.ones(len(self._times)) if self.by_evaluations else self.table.cost_seconds

    @property
    def optimum(self) -> float:
        return float(self.sorted_times[0])

    def evaluations_to(self, part: float) -> int:
        """Evaluations until the baseline has gone ``part`` of the way from the median to the optimum."""
        descending = self.sorted_times[::-1]
        target = self.optimum + (float(np.median(descending)) - self.optimum) * (1 - part)
        place = int(np.argmax(descending <= target))
        if descending[place] == self.optimum:
            place -= 1
        return ceil(place / (len(descending) + 1 - place))

    @cached_property
    def evaluations(self) -> tuple[int, int]:
        """At the start and at the end of what is scored."""
        return self.evaluations_to(START), self.evaluations_to(END)

    @cached_property
    def seconds(self) -> Floats:
        """float64[POINTS], the times at which the score looks."""
        median = float(np.median(self._costs))
        first, last = self.evaluations
        return np.linspace(first * median, last * median, POINTS)

    @cached_property
    def baseline(self) -> Floats:
        """float64[POINTS], the expected best of random search."""
        valid = ~np.isnan(self._times)
        cost = float(self._costs[valid].mean())
        if not valid.all():
            cost += float((~valid).mean() * self._costs[~valid].mean())
        counts = np.round(np.maximum(self.seconds / cost, 1)).astype(int)
        number = len(self.sorted_times)
        places = [min(number - 1, round(m * (number + 1) / (m + 1))) for m in counts]
        draws = self.sorted_times[::-1][places]
        x, first = np.unique(counts, return_index=True)
        if len(x) < 2:
            return np.asarray(draws)
        return np.asarray(PchipInterpolator(x, draws[first])(np.linspace(counts[0], counts[-1], POINTS)))

    def performance(self, runs: Sequence[Run], seed: int = 0, bags: bool = True) -> Floats:
        """float64[POINTS], P(t) of all runs together. Without ``bags`` the regression is fitted once, which differs
        little and is much faster."""
        if self.by_evaluations:
            runs = [run.evaluations for run in runs]
        points = sum(len(run.best) for run in runs)
        margin = 0.1 + 0.25 * len(runs) / points
        low, high = self.seconds[0] * (1 - margin), self.seconds[-1] * (1 + margin)
        x, best = np.concatenate([r.seconds for r in runs]), np.concatenate([r.best for r in runs])
        kept = (x >= low) & (x <= high) & ~np.isnan(best)
        ranks = np.searchsorted(self.sorted_times, best[kept]).astype(np.float64)
        fit = IsotonicRegression(increasing=False, y_min=ranks.min(), y_max=ranks.max(), out_of_bounds="clip")
        if bags:
            number = max(len(runs), 3)
            drawn = max(int(len(ranks) / np.sqrt(number)), 1)
            fit = BaggingRegressor(fit, n_estimators=number, max_samples=drawn, random_state=seed)
        predicted = fit.fit(x[kept, None], ranks).predict(self.seconds[:, None])
        found = self.sorted_times[np.clip(np.round(predicted).astype(int), 0, len(self.sorted_times) - 1)]
        return np.asarray((self.baseline - found) / (self.baseline - self.optimum))

    def score(self, runs: Sequence[Run], seed: int = 0, bags: bool = True) -> float:
        return float(self.performance(runs, seed, bags).mean())

    def evaluations_within(self, run: Run, excess: float) -> float:
        """Evaluations until a run is within ``excess`` of the optimum; infinity if it never was."""
        hits = np.flatnonzero(run.best <= (1 + excess) * self.optimum)
        return float(hits[0] + 1) if len(hits) else float("inf")
