"""Compares what a cost model foretold with what was measured."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from ..cost_model.metrics import rank_correlation
from ..db.dashboard_rows import PredictedRow
from .dashboard_views import PredictedPoint, RoundView

MOST_POINTS = 400


def rounds_of(rows: Sequence[PredictedRow], best_at: Sequence[float | None]) -> tuple[RoundView, ...]:
    """Return the rounds of a task. ``best_at[i]`` is the least seconds of the task's first ``i`` trials."""
    found = []
    for learned_from, group in groupby(rows, key=lambda row: row.learned_from):
        members = list(group)
        points = points_of(members, best_at)
        found.append(
            RoundView(
                learned_from,
                len(members),
                len(points),
                correlation_of(points),
                _mean([point.predicted for point in points]),
                _mean([point.measured for point in points]),
            )
        )
    return tuple(found)


def points_of(rows: Sequence[PredictedRow], best_at: Sequence[float | None]) -> list[PredictedPoint]:
    """Return the trials that were timed, with their measured scores. What was foretold before anything of the task was
    known has no scale of its own: it is compared with the fastest trial of all."""
    points = []
    for row in rows:
        best = best_at[min(row.learned_from, len(best_at) - 1)] or best_at[-1]
        if row.seconds is not None and best is not None:
            points.append(PredictedPoint(row.score, best / row.seconds, row.sequence, row.learned_from))
    return points


def correlation_of(points: Sequence[PredictedPoint]) -> float | None:
    """Return Spearman's rank correlation of predicted with measured scores; None for fewer than three points, or where
    one side is constant."""
    predicted, measured = (np.array(side) for side in ([p.predicted for p in points], [p.measured for p in points]))
    found = rank_correlation(predicted, measured)
    return None if len(points) < 3 or math.isnan(found) else found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
