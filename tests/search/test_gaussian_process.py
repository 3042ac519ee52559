"""The Gaussian process against scikit-learn's, and what transfer and the encoding say on a recorded space."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from tilewright.core.streams import stream
from tilewright.core.trial import Timed
from tilewright.cost_model.dataset import Experience
from tilewright.cost_model.metrics import rank_correlation
from tilewright.runtime.devices import device_infos
from tilewright.schedule.space.knob import Knob
from tilewright.schedule.space.space import Space
from tilewright.search.encoding import Encoding
from tilewright.search.gaussian_process import GaussianProcess
from tilewright.search.improvement import FIRST, Improvement, learning_point, logarithms
from tilewright.search.pool import CandidatePool
from tilewright.search.recorded import read_table
from tilewright.search.seen import Seen
from tilewright.search.stacking import Stacking
from tilewright.search.strategy import Observation
from tilewright.search.transfer import Transfer
from tilewright.te.operators import OPERATORS

TABLE = read_table(Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv")


def test_the_posterior_is_that_of_another_implementation() -> None:
    rng = stream(1, "points")
    points = rng.random((60, 3)).astype(np.float32)
    values = np.sin(5 * points[:24, 0]).astype(np.float64) + points[:24, 1] ** 2
    values = ((values - values.mean()) / values.std()).astype(np.float64)
    process = GaussianProcess(points)
    rows = np.arange(20)
    process.learn(rows, values[:20], rows)
    kernel = ConstantKernel(process.scale) * Matern(process.lengths, nu=2.5) + WhiteKernel(process.noise)
    peer = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-6)
    for known in (20, 24, 20):
        while len(process) < known:
            process.observe(len(process))
        process.forget(known)
        mean, deviation = process.posterior(values[:known])
        other, spread = peer.fit(points[:known], values[:known]).predict(points, return_std=True)
        np.testing.assert_allclose(mean, other, atol=3e-3)
        np.testing.assert_allclose(deviation**2, spread**2 - process.noise, atol=3e-3)
    assert process.lengths[2] > 2 * process.lengths[0]  # the last column does not matter


def test_lengths_follow_the_slope_of_the_likelihood() -> None:
    rng = stream(3, "points")
    points, values = rng.integers(4, size=(30, 4)) / 3, rng.normal(size=30)  # some points are equal
    process = GaussianProcess(points.astype(np.float32))
    theta = rng.normal(scale=0.3, size=6) - [0, 0, 0, 0, 0, 4]  # logarithms of four lengths, the scale and the noise
    numeric = approx_fprime(theta, lambda t: process._loss(t, points, values)[0], 1e-6)
    np.testing.assert_allclose(process._loss(theta, points, values)[1], numeric, rtol=1e-3, atol=1e-3)


def test_a_focused_process_says_the_same_of_what_it_still_looks_at() -> None:
    rng = stream(2, "points")
    points = rng.random((300, 3)).astype(np.float32)
    values = rng.normal(size=24)
    whole, focused = GaussianProcess(points), GaussianProcess(points)
    looked_at = np.arange(100, 160)
    for process in (whole, focused):
        process.learn(np.arange(20), values[:20], np.arange(20))
    focused.focus(looked_at)
    for row in (20, 21, 150, 280):
        assert focused.mean(values[: len(whole)], row) == pytest.approx(
            whole.posterior(values[: len(whole)])[0][row], abs=1e-3
        )
        whole.observe(row)
        focused.observe(row)
    for known in (24, 22):
        for process in (whole, focused):
            process.forget(known)
        for one, other in zip(focused.posterior(values[:known]), whole.posterior(values[:known]), strict=True):
            np.testing.assert_allclose(one, other[looked_at], atol=1e-3)


def test_learning_points_depend_on_the_count_alone_and_grow() -> None:
    points = [learning_point(n) for n in range(FIRST, 400)]
    assert points == sorted(points) and all(p <= n for p, n in zip(points, range(FIRST, 400), strict=True))
    assert 10 < len(set(points)) < 30


def test_expected_improvement_finds_the_top_of_a_smooth_space_soon() -> None:
    """Within 40 results on average among the best 2 % of the table; random search needs 50 for one of them."""
    ranks = np.argsort(np.argsort([o.seconds if isinstance(o, Timed) else np.inf for o in TABLE.outcomes]))
    reached = []
    for seed in range(4):
        search, seen = Improvement(TABLE.pool, seed), Seen(TABLE.pool)
        asked = stream(seed, "first").choice(4362, 4, replace=False).tolist()
        while len(seen.observations) < 40:
            seen.add([Observation(c, TABLE.outcomes[c]) for c in asked])
            asked = search.propose(seen.results, (), 4)
            assert len(set(asked)) == 4 and not seen.known[asked].any()
        reached.append(min(ranks[seen.results.candidates]))
    assert np.mean(reached) < 0.02 * 4362, reached


def test_settings_keep_their_order_and_what_is_not_in_the_pool_has_no_point() -> None:
    encoding = Encoding.of(TABLE.pool, alignment=True)
    points = encoding.points(TABLE.pool)
    assert points.min() == 0 and points.max() == 1 and points.shape == (4362, encoding.width)
    schedule = TABLE.space.schedule(77)
    assert np.array_equal(encoding.rows([schedule])[0][0], points[77])
    name, column = encoding.columns[0][0], 0
    by_value = sorted(zip(TABLE.space.column(name).tolist(), points[:, column].tolist(), strict=True))
    assert [p for _, p in by_value] == sorted(p for _, p in by_value)
    strange = type(schedule)(schedule.sketch, 1, ((name, 10_000), *schedule.knobs[1:]))
    another = type(schedule)("another", 1, schedule.knobs)
    assert encoding.rows([strange, schedule, another])[1].tolist() == [False, True, False]


def test_knobs_of_which_few_values_are_powers_of_two_also_say_what_divides_them() -> None:
    values = {"rows": (0, 8, 12, 18, 20), "columns": (32, 64, 96), "odd": (3, 5, 7), "name": ("a", "b")}
    knobs = tuple(Knob(name, found, name) for name, found in values.items())
    codes = np.array([[place % len(found) for found in values.values()] for place in range(5)], np.int16)
    encoding = Encoding.of(CandidatePool([Space("made_up", 1, knobs, codes, {}, len(codes))]), alignment=True)
    assert [name for name, _ in encoding.columns] == ["rows", "rows", "columns", "odd", "name"]
    divisors = encoding.columns[1][1]
    assert divisors == {0: 1.0, 8: 1.0, 12: 0.5, 18: 0.0, 20: 0.5}


@pytest.mark.parametrize("step", [2, 20])
def test_a_source_that_disagrees_loses_its_weight(step: int) -> None:
    rows = range(0, 4362, step)
    timed = [(TABLE.space.schedule(r), o) for r in rows if isinstance(o := TABLE.outcomes[r], Timed)]
    inverse = [(s, Timed((1 / o.seconds,))) for s, o in timed]
    workload, device = OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1}), device_infos()[0]
    transfer = Transfer(TABLE.pool, [Experience(workload, device, timed), Experience(workload, device, inverse)], 0)
    own = [r for r in range(7, 4362, 150) if isinstance(TABLE.outcomes[r], Timed)]
    z = np.log([o.seconds for r in own if isinstance(o := TABLE.outcomes[r], Timed)])
    agreement = transfer.agreement(np.array(own), z)
    assert np.ptp(transfer.agreement(np.zeros(0, np.int64), np.zeros(0))) == 0
    assert agreement[0] > 0.75 and agreement[1] < 0
    expected = transfer.expected(np.array(own), z, agreement)
    assert np.corrcoef(expected[own], z)[0, 1] > 0.8


def test_a_few_results_of_sources_order_all_candidates() -> None:
    workload, device = OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1}), device_infos()[0]
    history = []
    for seed in range(2):
        rows = np.random.default_rng(seed).choice(len(TABLE.space), 150, replace=False)
        results = tuple((TABLE.space.schedule(int(r)), TABLE.outcomes[int(r)]) for r in rows)
        history.append(Experience(workload, device, results))
    transfer = Transfer(TABLE.pool, history, 0)
    seconds = np.array([o.seconds if isinstance(o, Timed) else 1.0 for o in TABLE.outcomes])
    for source in transfer.sources:
        assert rank_correlation(source, seconds) > 0.8
    assert seconds[transfer.cover(8)].min() < 0.6 * np.median(seconds)


def test_stacked_trees_find_where_a_source_is_right() -> None:
    """Each of two sources is right for half of the settings and wrong for the others."""
    workload, device = OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1}), device_infos()[0]
    half = TABLE.space.codes[:, 0] <= np.median(TABLE.space.codes[:, 0])
    seconds = np.array([o.seconds if isinstance(o, Timed) else np.nan for o in TABLE.outcomes])
    history = []
    for right in (half, ~half):
        told = np.where(right, seconds, np.nanmin(seconds) * np.nanmax(seconds) / seconds)
        results = [(TABLE.space.schedule(int(r)), Timed((told[r],))) for r in np.flatnonzero(~np.isnan(told))]
        history.append(Experience(workload, device, results))
    transfer = Transfer(TABLE.pool, history, 0)
    seen = Seen(TABLE.pool)
    seen.add([Observation(int(c), TABLE.outcomes[c]) for c in stream(0, "known").choice(4362, 40, replace=False)])
    chosen = Stacking(transfer, "xgboost", 0).propose(seen, (), 20)
    z = logarithms(seen.results.seconds)
    agreement = transfer.agreement(seen.results.candidates, z)
    expected = transfer.expected(seen.results.candidates, z, agreement)
    best_expected = seen.fresh(np.argsort(expected), 20)
    assert len(set(chosen)) == 20 and not seen.known[chosen].any()
    assert np.nanmedian(seconds[chosen]) < 0.7 * np.nanmedian(seconds[best_expected])
    ranked = Improvement(TABLE.pool, 0, transfer.columns).ranking(seen.results, expected)
    assert rank_correlation(ranked[1], seconds[ranked[0]]) > 0.5
    both = Stacking(transfer, "xgboost", 0).propose(seen, (), 20, ranked)
    assert len(set(both)) == 20 and not seen.known[both].any()
    assert np.nanmedian(seconds[both]) < np.nanmedian(seconds[chosen])
