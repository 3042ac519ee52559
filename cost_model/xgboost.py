"""Gradient-boosted trees by XGBoost."""

import numpy as np
import xgboost
from numpy.typing import NDArray

_ROUNDS = 64


class XGBoostModel:
    """Squared error weighted by goodness, as in TVM's MetaSchedule (its gradient times the label): the order of the
    fast schedules matters, how slow a slow one is does not. ``threads`` rank; one thread learns, because on the few
    hundred rows of a task handing work around costs more than the work."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._booster: xgboost.Booster | None = None

    def fit(self, features: NDArray[np.float32], labels: NDArray[np.float32], *, seed: int) -> None:
        if len(labels) == 0:
            self._booster = None
            return
        data = xgboost.DMatrix(features, label=labels, weight=0.05 + labels, nthread=1)
        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": 6,
            "eta": 0.16,
            "subsample": 0.8,
            "colsample_bytree": 0.7,
            "min_child_weight": 0.5,
            "base_score": float(np.mean(labels)),
            "nthread": 1,
            "seed": seed % (1 << 31),
        }
        self._booster = xgboost.train(parameters, data, num_boost_round=_ROUNDS)
        self._booster.set_param({"nthread": self._threads})

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._booster is None:
            return np.full(len(features), 0.5, dtype=np.float32)
        return np.asarray(self._booster.inplace_predict(features, missing=np.nan), dtype=np.float32)

    def importance(self) -> NDArray[np.float32]:
        if self._booster is None:
            return np.zeros(0, dtype=np.float32)
        gains = np.zeros(self._booster.num_features(), dtype=np.float32)
        for name, gain in self._booster.get_score(importance_type="total_gain").items():
            gains[int(name.removeprefix("f"))] = gain
        return gains / max(float(gains.sum()), 1e-30)

    def to_bytes(self) -> bytes:
        return b"" if self._booster is None else bytes(self._booster.save_raw("ubj"))

    def restore(self, data: bytes) -> None:
        if not data:
            self._booster = None
            return
        booster = xgboost.Booster({"nthread": self._threads})
        try:
            booster.load_model(bytearray(data))
        except xgboost.core.XGBoostError as error:
            raise ValueError(f"not an XGBoost model: {str(error).splitlines()[0]}") from error
        self._booster = booster
