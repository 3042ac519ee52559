"""Extremely randomised trees by scikit-learn."""

import io

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

_MISSING = -1.0
"""Stands for NaN: every real column is zero or more."""


class ForestModel:
    """ExtraTrees on the same columns. Its saved form is its training data, from which the same forest grows again:
    scikit-learn itself offers only pickles, which are code."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._forest: ExtraTreesRegressor | None = None
        self._learned: tuple[NDArray[np.float32], NDArray[np.float32], int] | None = None

    def fit(self, features: NDArray[np.float32], labels: NDArray[np.float32], *, seed: int) -> None:
        if len(labels) == 0:
            self._forest = self._learned = None
            return
        self._learned = (features.copy(), labels.copy(), seed)
        forest = ExtraTreesRegressor(
            n_estimators=48, min_samples_leaf=2, max_features=0.6, n_jobs=1, random_state=seed % (1 << 31)
        )
        forest.fit(_dense(features), labels, sample_weight=0.05 + labels)
        self._forest = forest

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._forest is None:
            return np.full(len(features), 0.5, dtype=np.float32)
        return np.asarray(self._forest.predict(_dense(features)), dtype=np.float32)

    def importance(self) -> NDArray[np.float32]:
        if self._forest is None:
            return np.zeros(0, dtype=np.float32)
        return np.asarray(self._forest.feature_importances_, dtype=np.float32)

    def to_bytes(self) -> bytes:
        if self._learned is None:
            return b""
        features, labels, seed = self._learned
        out = io.BytesIO()
        np.savez_compressed(out, features=features, labels=labels, seed=np.int64(seed))
        return out.getvalue()

    def restore(self, data: bytes) -> None:
        if not data:
            self._forest = self._learned = None
            return
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                features, labels, seed = arrays["features"], arrays["labels"], int(arrays["seed"])
        except Exception as error:
            raise ValueError(f"not a saved forest: {error}") from error
        self.fit(features, labels, seed=seed)


def _dense(features: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.nan_to_num(features, nan=_MISSING)
