"""What every cost model promises."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.core.streams import stream
from tilewright.cost_model.metrics import pairwise_accuracy, rank_correlation, top_score
from tilewright.cost_model.models import MODELS, new_model

LEARNERS = [name for name in MODELS if name != "constant"]


def problem(rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A smooth function of three of eight columns, some entries of another missing."""
    rng = stream(seed, "problem")
    features = rng.random((rows, 8), dtype=np.float32) * 8
    labels = np.exp(-((features[:, 0] - 3) ** 2) / 9 - (features[:, 1] - features[:, 2]) ** 2 / 20)
    features[rng.random(rows) < 0.1, 7] = np.nan
    return features, labels.astype(np.float32)


@pytest.mark.parametrize("name", MODELS)
def test_predicts_one_finite_number_a_row_before_and_after_learning(name: str) -> None:
    model = new_model(name)
    features, labels = problem(100, 0)
    before = model.predict(features)
    assert before.shape == (100,) and before.dtype == np.float32 and len(np.unique(before)) == 1
    model.fit(features, labels, seed=1)
    assert np.isfinite(model.predict(features)).all()


@pytest.mark.parametrize("name", LEARNERS)
def test_ranks_what_it_has_not_seen(name: str) -> None:
    model = new_model(name)
    model.fit(*problem(256, 0), seed=1)
    features, labels = problem(400, 9)
    predicted = model.predict(features)
    assert pairwise_accuracy(predicted, labels) > 0.8
    assert top_score(predicted, labels, 10) > 0.9


@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_bring_back_the_same_predictions(name: str) -> None:
    model, twin = new_model(name), new_model(name)
    model.fit(*problem(128, 0), seed=5)
    twin.restore(model.to_bytes())
    features, _ = problem(64, 2)
    assert np.array_equal(model.predict(features), twin.predict(features))


@pytest.mark.parametrize("name", MODELS)
def test_learning_repeats_and_forgets(name: str) -> None:
    features, labels = problem(128, 0)
    a, b = new_model(name), new_model(name)
    a.fit(*problem(64, 7), seed=2)
    a.fit(features, labels, seed=5)
    b.fit(features, labels, seed=5)
    assert np.array_equal(a.predict(features), b.predict(features))
    a.fit(features[:0], labels[:0], seed=5)
    assert len(np.unique(a.predict(features))) == 1


@pytest.mark.parametrize("name", MODELS)
def test_junk_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        new_model(name).restore(b"junk that no model wrote")


@pytest.mark.parametrize("name", MODELS)
def test_importance_names_the_columns_that_count(name: str) -> None:
    model = new_model(name)
    assert len(model.importance()) == 0
    features, labels = problem(256, 0)
    model.fit(features, labels, seed=1)
    restored = new_model(name)
    restored.restore(model.to_bytes())
    for shares in (model.importance(), restored.importance()):
        if name in LEARNERS:
            assert shares.shape == (8,) and shares.sum() == pytest.approx(1, abs=1e-5)
            assert set(np.argsort(-shares)[:3]) == {0, 1, 2}
        else:
            assert len(shares) == 0


def test_rank_correlation_is_spearmans() -> None:
    from scipy.stats import spearmanr  # it takes a third of a second to load, in every process of a run

    rng = stream(3, "ranks")
    a, b = rng.integers(0, 9, 40).astype(np.float32), rng.integers(0, 9, 40).astype(np.float32)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation(a, np.zeros(40, np.float32)))
