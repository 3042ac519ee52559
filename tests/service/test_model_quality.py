"""What a cost model foretold, compared with what was measured."""

import pytest

from tilewright.db.dashboard_rows import PredictedRow
from tilewright.service.model_quality import correlation_of, points_of, rounds_of

BEST_AT = [None, 4.0, 4.0, 2.0, 2.0, 1.0]
"""The least seconds of the first 0, 1, 2, … trials."""


def test_scores_are_relative_to_what_was_known_then() -> None:
    rows = [PredictedRow(2, 0.5, 2, 8.0), PredictedRow(3, 0.9, 2, None), PredictedRow(4, 0.8, 4, 1.0)]
    first, last = points_of(rows, BEST_AT)
    assert (first.measured, last.measured) == (0.5, 2.0)  # the last one was twice as fast as all that was known
    rounds = rounds_of(rows, BEST_AT)
    assert [(one.learned_from, one.trials, one.timed) for one in rounds] == [(2, 2, 1), (4, 1, 1)]
    assert rounds[0].rank_correlation is None and rounds[0].predicted == 0.5
    (before,) = points_of([PredictedRow(0, 0.5, 0, 4.0)], BEST_AT)
    assert before.measured == 0.25  # nothing of the task was known: the fastest of all is the scale


def test_the_rank_correlation_is_spearmans() -> None:
    def of(*pairs: tuple[float, float]) -> float | None:
        rows = [PredictedRow(i, predicted, 5, 1.0 / measured) for i, (predicted, measured) in enumerate(pairs)]
        return correlation_of(points_of(rows, BEST_AT))

    assert of((1, 10), (2, 20), (3, 300)) == pytest.approx(1.0)
    assert of((1, 3), (2, 2), (3, 1)) == pytest.approx(-1.0)
    assert of((1, 1), (2, 2), (3, 3), (4, 3)) == pytest.approx(0.9486832980505138)  # ties share their mean rank
    assert of((1, 1), (2, 2)) is None and of((1, 1), (1, 2), (1, 3)) is None
