"""What models learn beyond the prior, on recorded products of an H200."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.core.streams import stream
from tilewright.core.trial import Failed, Outcome, Reason, Timed, TrialStage
from tilewright.cost_model.dataset import Experience, experience_data
from tilewright.cost_model.features import PLACES
from tilewright.cost_model.forest import ForestModel
from tilewright.cost_model.metrics import pairwise_accuracy, ranking_metrics, top_score
from tilewright.cost_model.models import new_model
from tilewright.cost_model.similarity import Situation, distance, nearest
from tilewright.cost_model.training import train
from tilewright.search.pool import CandidatePool
from tilewright.te.operators import OPERATORS
from tilewright.tests.cost_model.recorded_products import experience

NAMES = (
    "llama-3-8b-qkv-256x6144x4096",
    "llama-3-8b-out-512x4096x4096",
    "llama-3-70b-qkv-4096x1280x8192",
    "qwen2.5-7b-qkv-2048x4608x3584",
)
ROWS = 350


def tasks() -> list[Experience]:
    return [experience(name, ROWS) for name in NAMES]


@pytest.mark.parametrize("kind", ["xgboost", "forest"])
def test_what_other_shapes_taught_ranks_a_shape_better_than_its_prior(kind: str) -> None:
    model, (features, goals) = new_model(kind), experience_data(tasks()[-1:])
    model.fit(*experience_data(tasks()[:-1]), seed=1)
    ours = pairwise_accuracy(model.predict(features), goals)
    assert ours > pairwise_accuracy(-features[:, PLACES["prior.nanoseconds"]], goals) + 0.02
    assert top_score(model.predict(features), goals, 8) > 0.98
    again = new_model(kind)
    again.restore(model.to_bytes())
    assert np.array_equal(again.predict(features), model.predict(features))


@pytest.mark.parametrize("rows", [12, 64])
def test_a_few_rows_correct_the_prior_with_an_honest_spread(rows: int) -> None:
    """A Gaussian process learns from a dozen, trees from more; copies of rows make nothing more certain."""
    features, goals = experience_data(tasks()[:1])
    order = stream(0, "rows").permutation(len(goals))
    seen, rest = order[:rows], order[rows:]
    model, copied = ForestModel(), ForestModel()
    model.fit(features[seen], goals[seen] / goals[seen].max(), seed=1)
    found, spread = model.predict_with_spread(features[rest])
    error = np.log2(found / goals[rest])
    covered = float((np.abs(error - np.median(error)) < 1.645 * spread).mean())
    assert 0.7 < covered < 0.99
    assert pairwise_accuracy(found, goals[rest]) > pairwise_accuracy(
        -features[rest, PLACES["prior.nanoseconds"]], goals[rest]
    )
    four_times = np.repeat(seen, 4)
    copied.fit(features[four_times], goals[four_times] / goals[seen].max(), seed=1)
    assert float(np.median(copied.predict_with_spread(features[rest])[1])) > 0.5 * float(np.median(spread))


@pytest.mark.parametrize("kind", ["xgboost", "forest"])
def test_failures_teach_what_can_be_timed(kind: str) -> None:
    features, goals = experience_data(tasks()[:1])
    broken = features[:, PLACES["knob.mma_n"]] > np.log2(1 + 128)
    model = new_model(kind)
    model.fit(features[::2], np.where(broken, 0, goals)[::2].astype(np.float32), seed=1)
    found = model.predict(features[1::2])
    assert found[broken[1::2]].max() < found[~broken[1::2]].max() / 2
    assert float(np.median(found[broken[1::2]])) < 0.1


def test_a_model_is_kept_with_what_it_is_worth_on_tasks_that_it_has_not_seen() -> None:
    good = train("xgboost", tasks(), 1)
    assert good is not None and good.records == 4 * ROWS
    found = good.metrics
    assert found["helps"] == 1 and found["held_out_tasks"] == 2
    assert found["rank_correlation"] > found["prior_rank_correlation"]
    assert set(ranking_metrics(np.ones(2, "f4"), np.ones(2, "f4"))) <= set(found)
    assert 0.6 < found["coverage_90"] <= 1 and 0.01 < found["spread_log2"] < 1

    def shuffled(task: Experience, number: int) -> Experience:
        order = stream(number, "shuffled").permutation(len(task.results))
        outcomes = [task.results[n][1] for n in order]
        return replace(task, results=[(s, o) for (s, _), o in zip(task.results, outcomes, strict=True)])

    senseless = [shuffled(task, n) if n % 3 else task for n, task in enumerate(tasks())]
    bad = train("xgboost", senseless, 1)
    assert bad is not None and bad.metrics["helps"] == 0
    alone = train("xgboost", tasks()[:1], 1)
    assert alone is not None and not alone.metrics and train("xgboost", [], 1) is None


def test_a_model_corrects_the_prior_of_a_pool_and_keeps_its_scale() -> None:
    target = tasks()[-1]
    model = new_model("xgboost")
    model.fit(*experience_data(tasks()[:-1]), seed=1)
    alone, led = (CandidatePool.of(target.workload, target.device, seed=0, model=m) for m in (None, model))
    before, after = alone.prior_seconds, led.prior_seconds
    assert before is not None and after is not None and after.shape == before.shape
    assert np.exp(np.log(after).mean()) == pytest.approx(float(np.exp(np.log(before).mean())), rel=1e-3)
    assert not np.array_equal(np.argsort(before), np.argsort(after))
    assert np.array_equal(alone.features, led.features, equal_nan=True)


def test_outcomes_of_machines_teach_nothing() -> None:
    lost = [
        Failed(TrialStage.TIME, Reason.NOISY),
        Failed(TrialStage.COMPILE, Reason.WORKER_LOST),
        Failed(TrialStage.COMPILE, Reason.TIMEOUT),
    ]
    task = tasks()[0]
    outcomes: list[Outcome] = [Timed((2e-5,)), Failed(TrialStage.CHECK, Reason.TIMEOUT), *lost]
    results = [(task.results[n][0], outcome) for n, outcome in enumerate(outcomes)]
    features, goals = experience_data([replace(task, results=results)])
    assert goals.tolist() == [1.0, 0.0] and len(features) == 2
    for kind in ("xgboost", "forest"):
        model, without = new_model(kind), new_model(kind)
        more = np.concatenate([features, features[:1]])
        model.fit(more, np.array([1, 0, np.nan], np.float32), seed=0)
        without.fit(features, goals, seed=0)
        assert np.array_equal(model.predict(features), without.predict(features))


def test_relatives_are_similar_and_measured_alike() -> None:
    task = tasks()[0]
    here = Situation(task.workload, task.device, "t", "cold-v2")
    half = Situation(
        OPERATORS["linear"].workload(
            {"rows": 128, "inputs": 4096, "outputs": 6144, "bias": False, "dtype": "bfloat16"}
        ),
        task.device,
        "t",
        "cold-v2",
    )
    other_device = replace(here, device=replace(task.device, name="another"))
    softmax = replace(here, workload=OPERATORS["softmax"].workload({"rows": 64, "columns": 64}))
    others = [softmax, replace(here, profile="warm-v2"), other_device, half, replace(here, toolchain_key="u"), here]
    assert [number for _, number in nearest(here, others)] == [5, 4, 2, 3]
    assert distance(here, replace(here, profile="cold-v1")) > 0
