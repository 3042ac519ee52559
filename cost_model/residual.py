"""What the analytic prior leaves to be learned.

    score(row)    = log2(best seconds of its task / its seconds), 0 for the best of a task
    prior(row)    = -log2(estimated nanoseconds) of the sketch's analytic prior; 0 where there is none
    residual(row) = score - prior - level, where level is the median of score - prior over the task
    prediction    = 2 ^ (prior + trust * learned residual + level) * probability that the row can be timed
    trust         = 1 for rows of a task that was learned from, else n / (n + 1) after n tasks: what one shape alone has
                    taught need not hold for another

A model of residuals that has learned little ranks like the prior. What it learns of one shape holds for others, because
the speed of the device and the size of the workload are in the prior already. Features say which task a row is of, so
that rows of many tasks can be learned from together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import COLUMNS, DEVICE_COLUMNS, PLACES, PRIOR, WORKLOAD_COLUMNS

Features = NDArray[np.float32]
Floats = NDArray[np.float64]

MISSING = -1.0
"""Stands for NaN: every real column is zero or more."""
SLOWEST = -6.0
"""Scores below this are cut: how slow a slow schedule is does not matter."""
FASTEST = 1.0
"""Scores above this are cut: nothing is known to be more than twice as fast as the best."""
TASK_COLUMNS = len(WORKLOAD_COLUMNS) + len(DEVICE_COLUMNS)
"""The first columns say which task a row is of."""


@dataclass(frozen=True)
class Residuals:
    """What can be learned from rows with labels. ``columns``: those that vary, which alone say something. ``features``:
    float32[n, columns], with NaN, of the rows that were timed, each once; ``values``: float64[n], their residuals;
    ``weights``: float64[n], more for the faster ones and for those that were given repeatedly. ``levels``: the
    constants of the tasks. ``every`` and ``timed``: all rows in these columns, and which of them were timed."""

    columns: NDArray[np.intp]
    features: Features
    values: Floats
    weights: Floats
    levels: Mapping[bytes, float]
    every: Features
    timed: NDArray[np.bool_]


def residuals_of(features: Features, labels: NDArray[np.float32]) -> Residuals:
    """``labels``: float32[n] from 0 (failed) to 1, none of them NaN, at least one of them above 0."""
    features, labels, counts = _distinct(features, labels)
    timed = labels > 0
    score = np.maximum(np.log2(labels[timed], dtype=np.float64), SLOWEST)
    levels, values = dict[bytes, float](), score - prior_scores(features[timed])
    for name, rows in _tasks(features[timed]):
        levels[name] = float(np.median(values[rows]))
        values[rows] -= levels[name]
    columns = np.flatnonzero(np.ptp(dense(features), axis=0) > 0)
    if not len(columns):
        columns = np.arange(1)
    every = np.ascontiguousarray(features[:, columns])
    weights = counts[timed] * (0.05 + labels[timed])
    return Residuals(columns, every[timed], values, weights, levels, every, timed)


def predicted(features: Features, residual: Floats, levels: Mapping[bytes, float], valid: Floats | float) -> Features:
    """Return relative speeds, float32[n]. The best row of a task that nothing is known of has 1."""
    prior, trust = prior_scores(features), len(levels) / (len(levels) + 1)
    score = prior + residual
    for name, rows in _tasks(features):
        if name in levels:
            score[rows] += levels[name]
        else:
            score[rows] = prior[rows] + trust * residual[rows]
            score[rows] -= float(score[rows].max(initial=-np.inf))
    return np.asarray(2.0 ** np.clip(score, SLOWEST, FASTEST) * valid, dtype=np.float32)


def prior_scores(features: Features) -> Floats:
    """Return -log2 of the estimated nanoseconds, float64[n]. It is 0 where there is no estimate."""
    if features.shape[1] != len(COLUMNS):
        return np.zeros(len(features))
    return -np.nan_to_num(features[:, PLACES[PRIOR.name]].astype(np.float64))


def dense(features: Features) -> Features:
    """Return the features with ``MISSING`` in the place of NaN."""
    return np.ascontiguousarray(np.nan_to_num(features, nan=MISSING), dtype=np.float32)


def _tasks(features: Features) -> list[tuple[bytes, NDArray[np.intp]]]:
    """Return the rows of each task, with what tells it from others."""
    rows = np.arange(len(features))
    if features.shape[1] != len(COLUMNS) or not len(features):
        return [(b"", rows)]
    named = dense(features[:, :TASK_COLUMNS])
    if (named == named[0]).all():
        return [(named[0].tobytes(), rows)]
    _, first, inverse = np.unique(named, axis=0, return_index=True, return_inverse=True)
    return [(named[at].tobytes(), rows[inverse.ravel() == n]) for n, at in enumerate(first)]


def _distinct(
    features: Features, labels: NDArray[np.float32]
) -> tuple[Features, NDArray[np.float32], NDArray[np.int64]]:
    """Return each row once, with how often it stands there. What was left out of bag must not be in the bag as a
    copy."""
    rows = np.ascontiguousarray(np.column_stack([dense(features), labels]), dtype=np.float32)
    whole = rows.view([("", np.void, rows.strides[0])]).ravel()
    _, first, counts = np.unique(whole, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    return features[first[order]], labels[first[order]], counts[order]
