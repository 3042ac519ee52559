"""Gaussian process regression over a fixed set of points, to which observations are added one by one.

    k(x, x') = a * matern52(|(x - x') / l|),  noise b;  a, b and a length l for each column: the most likely ones (MAP)
    L L' = k(X, X) + b,  V = L^-1 k(X, points),  mean = (L^-1 y)' V,  variance = a - sum of V^2

V grows by a row for each observation, so that an observation costs O(points * observations) instead of a new
factorisation. ``focus`` leaves fewer points to look at; others can still be observed.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

Floats = NDArray[np.float64]
Points = NDArray[np.float32]
BLAS = ThreadpoolController().select(user_api="blas")
"""On matrices of this size its threads cost more than they bring, most of all beside compilers: 6 ms a candidate."""
_T = TypeVar("_T", np.float32, np.float64)

_LENGTH, _LENGTH_SPREAD = 0.6, 0.8
"""Columns lie in 0..1. The logarithm of a length is normal around that of 0.6 * columns^(1/4)."""
_NOISE = 1e-3
"""Of variance 1, what the logarithm of the noise is normal around."""
_JITTER = 1e-6
_STEPS = 12


class GaussianProcess:
    """Values are expected to have about mean 0 and variance 1."""

    _count: int
    _variance: Points
    _solved: Points
    _factor: Floats
    _rows: NDArray[np.int64]
    _looked_at: NDArray[np.int64]

    def __init__(self, points: Points) -> None:
        """``points``: float32[n, columns] in 0..1."""
        columns = points.shape[1]
        self._points = points
        self._typical = np.log(_LENGTH) + np.log(max(columns, 1)) / 4
        self._start = np.array([*[self._typical] * columns, 0.0, np.log(_NOISE)])
        self.lengths, self.scale, self.noise = np.exp(self._start[:-2]), 1.0, _NOISE
        self._condition(np.zeros(0, np.int64))

    def learn(self, rows: NDArray[np.int64], values: Floats, at: NDArray[np.int64]) -> None:
        """Choose the most likely lengths, scale and noise for ``values`` of ``rows``, and forget all observations but
        those of the rows ``at``."""
        bounds = [(-3.0, 4.0)] * (len(self._start) - 2) + [(-3.0, 3.0), (-12.0, -1.0)]
        args = (self._points[rows].astype(np.float64), values)
        found = minimize(
            self._loss, self._start, args, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}, bounds=bounds
        ).x
        self.lengths, self.scale, self.noise = np.exp(found[:-2]), float(np.exp(found[-2])), float(np.exp(found[-1]))
        self._condition(at)

    def __len__(self) -> int:
        """Return how many observations there are."""
        return self._count

    def observe(self, row: int) -> None:
        """Add an observation of a point, whether it is looked at or not."""
        self._add(np.array([row]))

    def focus(self, places: NDArray[np.int64]) -> None:
        """Look at these of the points looked at alone, until lengths are learned again."""
        self._looked_at = self._looked_at[places]
        self._variance, solved = self._variance[places], self._solved
        self._solved = np.empty((len(solved), len(places)), np.float32)
        self._solved[: self._count] = solved[: self._count, places]

    def forget(self, count: int) -> None:
        """Forget all observations after the first ``count``."""
        self._variance += np.sum(self._solved[count : self._count] ** 2, axis=0)
        self._count = count

    def posterior(self, values: Floats) -> tuple[Points, Points]:
        """(mean, standard deviation) of the points looked at, where the observations are ``values`` in their order."""
        left = self._solve(values)
        mean = left.astype(np.float32) @ self._solved[: self._count]
        return mean, np.sqrt(np.maximum(self._variance, 1e-9))

    def mean_at(self, points: Points, values: Floats) -> Points:
        """Return the mean of other ``points``, float32[n]. That costs less than to look at them."""
        rows = self._observed()
        weights = cho_solve((self._factor[: self._count, : self._count], True), values, check_finite=False)
        scaled = (points / self.lengths).astype(np.float32)
        squared = np.sum(scaled**2, axis=1)[:, None] + self._squares[rows] - 2 * scaled @ self._scaled[rows].T
        kernel = self.scale * _matern(np.sqrt(5 * np.maximum(squared, 0)))
        return np.asarray(kernel @ weights.astype(np.float32), np.float32)

    def mean(self, values: Floats, row: int) -> float:
        """Return the mean of one point, whether it is looked at or not."""
        known = self._solve(self._covariance(self._observed(), np.array([row]))[:, 0])
        return float(np.dot(self._solve(values), known))

    def _solve(self, right: Floats | Points) -> Floats:
        factor = self._factor[: self._count, : self._count]
        return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False), np.float64)

    def _observed(self) -> NDArray[np.int64]:
        return self._rows[: self._count]

    def _covariance(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> Points:
        squared = self._squares[rows][:, None] + self._squares[others] - 2 * self._scaled[rows] @ self._scaled[others].T
        return np.asarray(self.scale * _matern(np.sqrt(5 * np.maximum(squared, 0))), np.float32)

    def _condition(self, rows: NDArray[np.int64]) -> None:
        self._scaled = (self._points / self.lengths).astype(np.float32)
        self._squares = np.sum(self._scaled**2, axis=1)
        self._count = 0
        self._looked_at = np.arange(len(self._points))
        self._rows = np.zeros(len(rows) + 32, np.int64)
        self._factor = np.zeros((len(rows) + 32, len(rows) + 32))
        self._solved = np.empty((len(rows) + 32, len(self._points)), np.float32)
        self._variance = np.full(len(self._points), self.scale, np.float32)
        if len(rows):
            self._add(rows)

    def _add(self, rows: NDArray[np.int64]) -> None:
        begin, end = self._count, self._count + len(rows)
        if end > len(self._factor):
            room = 2 * end
            factor, solved = np.zeros((room, room)), np.empty((room, len(self._looked_at)), np.float32)
            factor[:begin, :begin], solved[:begin] = self._factor[:begin, :begin], self._solved[:begin]
            self._factor, self._solved, self._rows = factor, solved, np.resize(self._rows, room)
        covariance = self._covariance(rows, self._looked_at)
        known = self._solve(self._covariance(self._observed(), rows)).T
        own = self._covariance(rows, rows).astype(np.float64)
        diagonal = _cholesky(own - known @ known.T + (self.noise + _JITTER) * np.eye(len(rows)))
        self._factor[begin:end, :begin], self._factor[begin:end, begin:end] = known, diagonal
        open_part = covariance - known.astype(np.float32) @ self._solved[:begin]
        self._solved[begin:end] = solve_triangular(diagonal, open_part, lower=True, check_finite=False)
        self._variance -= np.sum(self._solved[begin:end] ** 2, axis=0)
        self._rows[begin:end], self._count = rows, end

    def _loss(self, theta: Floats, points: Floats, values: Floats) -> tuple[float, Floats]:
        """Return the negative logarithm of the posterior density of ``theta``, and its gradient."""
        lengths, scale, noise = np.exp(theta[:-2]), np.exp(theta[-2]), np.exp(theta[-1])
        scaled = points / lengths
        squares = np.sum(scaled**2, axis=1)
        distance = np.sqrt(5 * np.maximum(squares[:, None] + squares - 2 * scaled @ scaled.T, 0))
        kernel = scale * _matern(distance)
        factor = _cholesky(kernel + (noise + _JITTER) * np.eye(len(points)))
        weights = cho_solve((factor, True), values, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(len(points)), check_finite=False)
        slope = 0.5 * (inverse - np.outer(weights, weights))
        by_length = slope * (scale * 5 / 3 * (1 + distance) * np.exp(-distance))
        gradient = np.empty_like(theta)
        gradient[:-2] = 2 * (by_length.sum(axis=0) @ scaled**2 - np.sum(scaled * (by_length @ scaled), axis=0))
        gradient[-2], gradient[-1] = np.sum(slope * kernel), noise * np.trace(slope)
        off = theta - self._start
        off[:-2] /= _LENGTH_SPREAD
        loss = 0.5 * values @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        off[:-2] /= _LENGTH_SPREAD
        return float(loss), gradient + off


def _matern(distance: NDArray[_T]) -> NDArray[_T]:
    """Return the Matern kernel of smoothness 5/2 of sqrt(5) times a distance."""
    return np.asarray((1 + distance + distance * distance / 3) * np.exp(-distance), distance.dtype)


def _cholesky(matrix: Floats) -> Floats:
    """Return the lower factor. Rounding may leave a matrix not positive definite; then its diagonal grows until it
    is."""
    for jitter in (0.0, 1e-5, 1e-3, 1e-1):
        try:
            return np.asarray(np.linalg.cholesky(matrix + jitter * np.eye(len(matrix))), np.float64)
        except np.linalg.LinAlgError:
            continue
    return np.diag(np.sqrt(np.maximum(np.diag(matrix), 1e-3)))
