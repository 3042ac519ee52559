"""A search begins where the prior points, and leaves a prior that its results do not bear out. Warm searches weigh it
among what earlier tasks say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.core.budget import Budget
from tilewright.core.trial import Timed
from tilewright.cost_model.dataset import Experience
from tilewright.runtime.devices import device_infos
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategies.model import ModelSearch
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import tune
from tilewright.te.operators import OPERATORS

TABLE = read_table(Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv")
SECONDS = np.array([o.seconds if isinstance(o, Timed) else 1.0 for o in TABLE.outcomes])


def with_prior(prior: NDArray[np.float64]) -> Recorded:
    return replace(TABLE, space=replace(TABLE.space, prior_seconds=prior.astype(np.float32)))


def times(table: Recorded, trials: int, seed: int) -> list[float]:
    """What a search measures, in order, relative to the best of the table."""
    found = tune(table.pool, ModelSearch(SearchProblem(table.pool, seed)), table.measure, Budget(trials=trials))
    outcomes = [step.trial.outcome for step in found]
    return [o.seconds / TABLE.best_seconds if isinstance(o, Timed) else np.inf for o in outcomes]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_good_prior_is_followed_from_the_first_trial(seed: int) -> None:
    blur = np.random.default_rng(seed).normal(0.0, 0.1, len(SECONDS))
    measured = times(with_prior(3.0 * SECONDS * np.exp(blur)), 8, seed)
    assert measured[0] < 1.5
    assert min(measured) < 1.1 < min(times(TABLE, 8, seed))


def test_the_first_batch_by_a_prior_is_fast_and_differs_in_more_than_one_knob() -> None:
    table = with_prior(SECONDS)
    first = ModelSearch(SearchProblem(table.pool, 1)).ask(8)
    assert len(first) == 8 and SECONDS[first].max() < np.quantile(SECONDS, 0.05)
    rows = [dict(table.space.schedule(row).knobs) for row in first]
    assert min(sum(a[k] != b[k] for k in a) for n, a in enumerate(rows) for b in rows[:n]) > 1


def test_less_is_expected_where_a_prior_was_borne_out_and_nothing_without_one() -> None:
    def expected(table: Recorded, trials: int) -> float | None:
        strategy = ModelSearch(SearchProblem(table.pool, 1))
        list(tune(table.pool, strategy, table.measure, Budget(trials)))
        return strategy.expected_improvement()

    right, wrong = expected(with_prior(SECONDS), 16), expected(with_prior(1e-6 / SECONDS), 16)
    assert right is not None and wrong is not None and 0 <= right < wrong
    assert expected(TABLE, 16) is None and expected(with_prior(SECONDS), 2) is None


def test_a_prior_that_is_the_wrong_way_round_is_left() -> None:
    table = with_prior(1e-6 / SECONDS)
    assert min(times(table, 60, 1)) < 2.0 < times(table, 1, 1)[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_good_prior_leads_a_warm_search_whose_earlier_task_misleads(seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(len(SECONDS))[:200]
    results = [(TABLE.space.schedule(int(r)), Timed((1e-6 / float(SECONDS[r]),))) for r in rows]
    history = (Experience(OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1}), device_infos()[0], results),)

    def best(table: Recorded) -> float:
        warm = STRATEGIES["warm"](SearchProblem(table.pool, seed, history))
        steps = tune(table.pool, warm, table.measure, Budget(trials=12))
        outcomes = [step.trial.outcome for step in steps]
        return min(o.seconds / TABLE.best_seconds for o in outcomes if isinstance(o, Timed))

    blur = np.random.default_rng(seed).normal(0.0, 0.1, len(SECONDS))
    assert best(with_prior(SECONDS * np.exp(blur))) < 1.3 < best(TABLE)
