"""Residuals of the prior by bagged trees of scikit-learn, or by a Gaussian process on few points, with their spread.

The spread of the trees is scaled so that nine of ten rows lie where nine of ten should, as the trees predict them that
have not seen them (out-of-bag calibration). Failed schedules have no time: a classifier learns from them what can be
timed.
"""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from .model import teaching
from .residual import Features, Floats, Residuals, dense, predicted, residuals_of

TREES = 48
FEW = 24
"""With fewer timed rows a Gaussian process takes the place of the trees."""
SPREAD_OF_NOTHING = 3.0
"""The spread before anything was learned: a factor of eight either way."""
LEAST_SPREAD = 0.02
NORMAL_90 = 1.645
"""So many standard deviations to either side hold 90 % of a normal distribution."""


@dataclass(frozen=True)
class _TrainedForest:
    """``calibration``: what the spread is multiplied by. ``validity``: None where nothing failed."""

    residuals: Residuals
    regressor: ExtraTreesRegressor | Pipeline
    calibration: float
    validity: ExtraTreesClassifier | None


class ForestModel:
    """See the module. Its saved form is its training data, from which the same model grows again: scikit-learn itself
    offers only pickles, which are code."""

    def __init__(self) -> None:
        self._learned: _TrainedForest | None = None
        self._data: tuple[Features, Features, int] | None = None

    def fit(self, features: Features, labels: NDArray[np.float32], *, seed: int) -> None:
        features, labels = teaching(features, labels)
        self._learned = self._data = None
        if (labels > 0).any():
            self._data = (features.copy(), labels.copy(), seed)
            self._learned = _learn(residuals_of(features, labels), seed % (1 << 31))

    def predict(self, features: Features) -> Features:
        return self.predict_with_spread(features)[0]

    def predict_with_spread(self, features: Features) -> tuple[Features, Features]:
        """(float32[n] as of ``predict``, float32[n]: the standard deviation of its log2)."""
        learned = self._learned
        if learned is None:
            return np.full(len(features), 0.5, np.float32), np.full(len(features), SPREAD_OF_NOTHING, np.float32)
        rows = dense(features[:, learned.residuals.columns])
        if isinstance(learned.regressor, ExtraTreesRegressor):
            residual, spread = _of_trees(learned.regressor, rows)
        else:
            residual, spread = learned.regressor.predict(rows, return_std=True)
        valid = 1.0 if learned.validity is None else learned.validity.predict_proba(rows)[:, 1]
        spread = learned.calibration * np.maximum(spread, LEAST_SPREAD)
        return predicted(features, residual, learned.residuals.levels, valid), spread.astype(np.float32)

    def importance(self) -> Features:
        if self._learned is None or not isinstance(self._learned.regressor, ExtraTreesRegressor):
            return np.zeros(0, np.float32)
        assert self._data is not None
        shares = np.zeros(self._data[0].shape[1], np.float32)
        shares[self._learned.residuals.columns] = self._learned.regressor.feature_importances_
        return shares

    def to_bytes(self) -> bytes:
        if self._data is None:
            return b""
        features, labels, seed = self._data
        out = io.BytesIO()
        np.savez_compressed(out, features=features, labels=labels, seed=np.int64(seed))
        return out.getvalue()

    def restore(self, data: bytes) -> None:
        if not data:
            self._learned = self._data = None
            return
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                features, labels, seed = arrays["features"], arrays["labels"], int(arrays["seed"])
        except Exception as error:
            raise ValueError(f"not a saved forest: {error}") from error
        self.fit(features, labels, seed=seed)


def _learn(found: Residuals, seed: int) -> _TrainedForest:
    rows, calibration = dense(found.features), 1.0
    if len(rows) < FEW:
        regressor = _gaussian_process(rows, found.values)
    else:
        regressor = ExtraTreesRegressor(
            TREES, min_samples_leaf=2, max_features=0.6, bootstrap=True, oob_score=True, random_state=seed
        ).fit(rows, found.values, sample_weight=found.weights)
        calibration = _calibration(regressor, rows, found.values)
    validity = None
    if not found.timed.all():
        validity = ExtraTreesClassifier(TREES, min_samples_leaf=2, max_features=0.6, random_state=seed)
        validity.fit(dense(found.every), found.timed)
    return _TrainedForest(found, regressor, calibration, validity)


def _gaussian_process(rows: Features, values: Floats) -> Pipeline:
    """Of a few length scales it has the likeliest: with so few points more is not to be known."""
    apart = pdist(StandardScaler().fit_transform(rows)) if len(rows) > 1 else np.ones(1)
    usual = max(float(np.median(apart)), 1e-3)
    found = []
    for factor in (0.5, 1.0, 2.0, 4.0):
        kernel = Matern(usual * factor, nu=2.5) + WhiteKernel(0.1)
        process = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True)
        found.append(make_pipeline(StandardScaler(), process).fit(rows, values))
    return max(found, key=lambda one: float(one[-1].log_marginal_likelihood_value_))


def _of_trees(forest: ExtraTreesRegressor, rows: Features) -> tuple[Floats, Floats]:
    """(float64[n] mean of the trees, float64[n] their standard deviation)."""
    total, squares = np.zeros(len(rows)), np.zeros(len(rows))
    for tree in forest.estimators_:
        found = tree.tree_.predict(rows)[:, 0]
        total += found
        squares += found**2
    mean = total / len(forest.estimators_)
    return mean, np.sqrt(np.maximum(squares / len(forest.estimators_) - mean**2, 0.0))


def _calibration(forest: ExtraTreesRegressor, rows: Features, values: Floats) -> float:
    _, spread = _of_trees(forest, rows)
    errors = np.abs(forest.oob_prediction_ - values) / np.maximum(spread, LEAST_SPREAD)
    return float(np.quantile(errors, 0.9)) / NORMAL_90
