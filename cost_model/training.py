"""Trains a model that is kept, and finds out whether it helps: on whole tasks that it has not seen, against the prior.

    held-out tasks ─ every STRIDE-th with enough rows, HELD_OUT at most ─▶ metrics of the model and of the prior alone
    all tasks ─▶ the model that is kept

Spread is the standard deviation of log2(predicted / measured) within held-out tasks. Its calibration is how many rows
of each held-out task lie within the 90 % band that the other ones give.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dataset import Experience, experience_data
from .metrics import ranking_metrics
from .model import FEATURE_VERSION
from .models import new_model
from .residual import predicted as predicted_by_prior

STRIDE, HELD_OUT, LEAST_ROWS = 3, 4, 8
NORMAL_90 = 1.645
TOLERATED = 0.01
"""A model helps where it ranks better than the prior, and the best of its first five is at most this much slower."""

Task = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Holds a cost model as bytes, with its metrics on tasks that it was not trained on. There are none of them where
    there were too few tasks to hold some out. ``helps`` among them is 1 where the model is to be used, else 0."""

    kind: str
    feature_version: int
    data: bytes
    records: int
    metrics: Mapping[str, float]


def train(kind: str, experiences: Sequence[Experience], seed: int) -> TrainedModel | None:
    """Train a model on everything; return None without any data."""
    tasks = [data for experience in experiences if len((data := experience_data([experience]))[1])]
    if not tasks:
        return None
    model = new_model(kind)
    model.fit(*_joined(tasks), seed=seed)
    metrics = {name: value for name, value in _metrics(kind, tasks, seed).items() if math.isfinite(value)}
    return TrainedModel(kind, FEATURE_VERSION, model.to_bytes(), sum(len(goals) for _, goals in tasks), metrics)


def _metrics(kind: str, tasks: Sequence[Task], seed: int) -> dict[str, float]:
    """Return the means over held-out tasks; empty where there are none."""
    fit_for = [n for n, (_, goals) in enumerate(tasks) if (goals > 0).sum() >= LEAST_ROWS]
    held_out = fit_for[::STRIDE][:HELD_OUT] if len(tasks) > 1 else []
    if not held_out:
        return {}
    model = new_model(kind)
    model.fit(*_joined([task for n, task in enumerate(tasks) if n not in held_out]), seed=seed)
    of_model, of_prior, errors = [], [], []
    for features, goals in (tasks[n] for n in held_out):
        found, timed = model.predict(features), goals > 0
        of_model.append({**ranking_metrics(found, goals), "mean_absolute_error": float(np.abs(found - goals).mean())})
        of_prior.append(ranking_metrics(predicted_by_prior(features, np.zeros(len(goals)), {}, 1.0), goals))
        error = np.log2(np.maximum(found[timed], 1e-6)) - np.log2(goals[timed])
        errors.append(np.abs(error - np.median(error)))
    ours, theirs = _means(of_model), {f"prior_{name}": value for name, value in _means(of_prior).items()}
    prior_correlation = np.nan_to_num(theirs["prior_rank_correlation"])
    better = ours["rank_correlation"] > prior_correlation
    close = ours["top_5_score"] >= np.nan_to_num(theirs["prior_top_5_score"]) - TOLERATED
    return {
        **ours,
        **theirs,
        **_calibration(errors),
        "held_out_tasks": float(len(held_out)),
        "helps": float(bool(better and close)),
    }


def _calibration(errors: Sequence[NDArray[np.float32]]) -> dict[str, float]:
    def spread(some: Sequence[NDArray[np.float32]]) -> float:
        return float(np.quantile(np.concatenate(some), 0.9)) / NORMAL_90

    covered = (
        [
            float((own <= NORMAL_90 * spread([e for e in errors if e is not own])).mean())
            for own in errors[: len(errors)]
        ]
        if len(errors) > 1
        else []
    )
    return {"spread_log2": spread(errors), "coverage_90": float(np.mean(covered)) if covered else math.nan}


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    columns = {name: [one[name] for one in found if math.isfinite(one[name])] for name in found[0]}
    return {name: float(np.mean(values)) if values else math.nan for name, values in columns.items()}


def _joined(tasks: Sequence[Task]) -> Task:
    return np.concatenate([features for features, _ in tasks]), np.concatenate([goals for _, goals in tasks])
