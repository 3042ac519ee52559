"""Residuals of the prior by the gradient-boosted trees of XGBoost."""

import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from .model import teaching
from .residual import Features, Floats, Residuals, predicted, residuals_of

_ROUNDS = 64
_PARAMETERS: dict[str, Any] = {
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.16,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "min_child_weight": 0.5,
    "nthread": 1,
}


@dataclass(frozen=True)
class _TrainedBoosters:
    """``width``: how many columns there were, of which ``columns`` vary. ``validity``: None where nothing failed."""

    width: int
    columns: NDArray[np.intp]
    levels: dict[bytes, float]
    residual: xgboost.Booster
    validity: xgboost.Booster | None


class XGBoostModel:
    """Squared error weighted by goodness, as in TVM's MetaSchedule (its gradient times the label): the order of the
    fast schedules matters, how slow a slow one is does not. ``threads`` rank. One thread learns, because on the few
    hundred rows of a task handing work around costs more than the work; beside compilers that holds for ranking too."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._learned: _TrainedBoosters | None = None

    def fit(self, features: Features, labels: NDArray[np.float32], *, seed: int) -> None:
        features, labels = teaching(features, labels)
        self._learned = None
        if (labels > 0).any():
            found = residuals_of(features, labels)
            self._learned = _TrainedBoosters(
                features.shape[1],
                found.columns,
                dict(found.levels),
                self._trained("reg:squarederror", found.features, found.values, found.weights, seed),
                None if found.timed.all() else self._validity(found, seed),
            )

    def predict(self, features: Features) -> Features:
        learned = self._learned
        if learned is None:
            return np.full(len(features), 0.5, dtype=np.float32)
        rows = np.ascontiguousarray(features[:, learned.columns])
        valid = 1.0 if learned.validity is None else _output(learned.validity, rows)
        return predicted(features, _output(learned.residual, rows), learned.levels, valid)

    def importance(self) -> Features:
        if self._learned is None:
            return np.zeros(0, dtype=np.float32)
        gains = np.zeros(self._learned.width, dtype=np.float32)
        for name, gain in self._learned.residual.get_score(importance_type="total_gain").items():
            gains[self._learned.columns[int(name.removeprefix("f"))]] = gain
        return gains / max(float(gains.sum()), 1e-30)

    def to_bytes(self) -> bytes:
        learned = self._learned
        if learned is None:
            return b""
        levels = {name.hex(): level for name, level in learned.levels.items()}
        validity = b"" if learned.validity is None else learned.validity.save_raw("ubj")
        out = io.BytesIO()
        np.savez_compressed(
            out,
            width=np.int64(learned.width),
            columns=learned.columns,
            levels=np.array(json.dumps(levels)),
            residual=np.frombuffer(learned.residual.save_raw("ubj"), np.uint8),
            validity=np.frombuffer(validity, np.uint8),
        )
        return out.getvalue()

    def restore(self, data: bytes) -> None:
        self._learned = None
        if not data:
            return
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                self._learned = _TrainedBoosters(
                    int(arrays["width"]),
                    arrays["columns"],
                    {bytes.fromhex(n): level for n, level in json.loads(str(arrays["levels"])).items()},
                    self._loaded(arrays["residual"]),
                    self._loaded(arrays["validity"]) if len(arrays["validity"]) else None,
                )
        except Exception as error:
            raise ValueError(
                f"not an XGBoost model: {str(error).splitlines()[0] if str(error) else error!r}"
            ) from error

    def _validity(self, found: Residuals, seed: int) -> xgboost.Booster:
        """Return what can be timed, learned from what could not."""
        return self._trained("binary:logistic", found.every, found.timed, np.ones(len(found.timed)), seed)

    def _trained(
        self, objective: str, rows: Features, goals: NDArray[Any], weights: Floats, seed: int
    ) -> xgboost.Booster:
        data = xgboost.DMatrix(rows, label=goals, weight=weights, nthread=1)
        base = float(np.clip(np.average(goals, weights=weights), 0.01, 0.99)) if objective[:3] == "bin" else 0.0
        parameters = {**_PARAMETERS, "objective": objective, "base_score": base, "seed": seed % (1 << 31)}
        booster = xgboost.Booster(parameters, [data])
        for turn in range(_ROUNDS):  # xgboost.train also looks for what watches it: a fifth of the time with few rows
            booster.update(data, turn)
        booster.set_param({"nthread": self._threads})
        return booster

    def _loaded(self, data: NDArray[np.uint8]) -> xgboost.Booster:
        booster = xgboost.Booster({"nthread": self._threads})
        booster.load_model(bytearray(data.tobytes()))
        return booster


def _output(booster: xgboost.Booster, rows: Features) -> Floats:
    return np.asarray(booster.inplace_predict(rows, missing=np.nan), dtype=np.float64)
