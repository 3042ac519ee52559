"""A Gaussian process by scikit-learn with expected improvement, to compare with."""

import warnings
from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import ndtr
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from ...core.streams import stream
from ...core.trial import Timed
from ..encoding import Encoding
from ..gaussian_process import Floats
from ..seen import Seen
from ..strategy import Observation, SearchProblem

_FIRST = 10
"""How many random candidates come first."""
_LOOKED_AT = 4096
"""Expected improvement is computed for so many candidates, drawn at random where there are more."""
_STEP, _FITTED_TO = 16, 128
"""The kernel is fitted anew after so many results, to the first 128 at most; in between its parameters stay."""


class GaussianSearch:
    """Searches by the textbook loop of Bayesian optimisation. Its cost grows with the cube of the results: it is meant
    for budgets of some hundreds."""

    def __init__(self, problem: SearchProblem) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)
        self._points = Encoding.of(problem.pool).points(problem.pool).astype(np.float64)
        self._fitted: tuple[int, object] | None = None

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        told = len(self._seen.observations)
        rng = stream(self._seed, "gaussian", told + len(pending))
        if told < _FIRST or not self._seen.best(1):
            return self._seen.draw(count, rng, pending)
        free = self._seen.free(pending)
        if not len(free):
            return []
        if len(free) > _LOOKED_AT:
            free = rng.choice(free, _LOOKED_AT, replace=False)
        values = self._values(told)
        process = GaussianProcessRegressor(self._kernel(told), optimizer=None, normalize_y=True, alpha=1e-8)
        process.fit(self._points[[o.candidate for o in self._seen.observations]], values)
        mean, deviation = process.predict(self._points[free], return_std=True)
        deviation = np.maximum(deviation, 1e-12)
        u = (values.min() - mean) / deviation
        gain = deviation * (u * ndtr(u) + np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi))
        return [int(c) for c in free[np.argsort(-gain, kind="stable")[:count]]]

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)

    def _values(self, count: int) -> Floats:
        """float64[count]: the logarithm of seconds; a failure counts as the slowest."""
        outcomes = [o.outcome for o in self._seen.observations[:count]]
        logs = np.array([np.log(o.seconds) if isinstance(o, Timed) else np.nan for o in outcomes])
        return np.where(np.isnan(logs), np.nanmax(logs) if np.isfinite(logs).any() else 0.0, logs)

    def _kernel(self, told: int) -> object:
        """Return the kernel as fitted to the first results, a multiple of the step: it depends on the count alone."""
        count = min(max(_STEP * (told // _STEP), _FIRST), _FITTED_TO)
        if self._fitted is None or self._fitted[0] != count:
            kernel = ConstantKernel() * Matern(np.full(self._points.shape[1], 0.6), (0.05, 50.0), nu=2.5)
            process = GaussianProcessRegressor(kernel + WhiteKernel(1e-3, (1e-6, 0.3)), normalize_y=True, alpha=1e-8)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                process.fit(self._points[[o.candidate for o in self._seen.observations[:count]]], self._values(count))
            self._fitted = (count, process.kernel_)
        return self._fitted[1]
