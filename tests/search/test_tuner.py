"""Budgets, cancellation and what the loop yields, on recorded measurements."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.budget import Budget, StopReason
from tilewright.core.errors import InvalidParameter, NotFound
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Timed, Trial
from tilewright.search.recorded import read_table
from tilewright.search.strategies.model import ModelSearch
from tilewright.search.strategies.random import RandomSearch
from tilewright.search.strategy import SearchProblem
from tilewright.search.tuner import Finished, tune
from tilewright.search.winners import Winner, winning_candidates

TABLE = read_table(Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv")


def steps(
    budget: Budget, *, clock: Callable[[], float] = lambda: 0.0, cancelled: Callable[[], bool] = lambda: False
) -> tuple[list[Finished], StopReason]:
    pool = TABLE.pool
    loop: Generator[Finished, None, StopReason] = tune(
        pool, RandomSearch(SearchProblem(pool, 1)), TABLE.measure, budget, clock=clock, cancelled=cancelled
    )
    done = []
    while True:
        try:
            done.append(next(loop))
        except StopIteration as stop:
            return done, stop.value


def test_the_table_holds_what_was_recorded() -> None:
    assert len(TABLE.space) == 4362
    first = TABLE.space.schedule(0)
    assert first["block_size_x"] == 16
    assert TABLE.outcomes[0] == Timed((3.875328e-3,))
    assert TABLE.cost_seconds[0] == pytest.approx((918.6 + 126.4 + 105.2) / 1000)


def test_trials_end_a_task_in_the_middle_of_a_batch() -> None:
    done, reason = steps(Budget(trials=13))
    assert (len(done), reason) == (13, StopReason.TRIALS)
    assert [f.sequence for f in done] == list(range(13))


def test_best_marks_every_improvement_and_nothing_else() -> None:
    done, _ = steps(Budget(trials=60))
    best = float("inf")
    for finished in done:
        outcome = finished.trial.outcome
        improves = isinstance(outcome, Timed) and outcome.seconds < best
        assert finished.is_best == improves
        if isinstance(outcome, Timed):
            best = min(best, outcome.seconds)


def test_seconds_end_a_task() -> None:
    ticks = iter(range(10_000))
    done, reason = steps(Budget(trials=1000, seconds=50), clock=lambda: float(next(ticks)))
    assert reason is StopReason.SECONDS
    assert 0 < len(done) < 60


def test_the_first_candidate_is_waited_for_when_the_seconds_are_spent() -> None:
    """It is the one expected to be the fastest; others are often compiled before it."""
    pool, ticks = TABLE.pool, iter(range(10_000))
    drawn: list[Schedule] = []

    def first_comes_last(schedules: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        stream = iter(schedules)
        early = next(stream)
        for position, schedule in enumerate(stream, start=1):
            drawn.append(schedule)
            yield position, next(TABLE.measure([schedule]))[1]
        yield 0, next(TABLE.measure([early]))[1]

    budget = Budget(trials=1000, seconds=50)
    strategy = RandomSearch(SearchProblem(pool, 1))
    done = list(tune(pool, strategy, first_comes_last, budget, clock=lambda: float(next(ticks))))
    assert done[-1].trial.schedule == pool.schedule(done[-1].candidate) and done[-1].trial.schedule not in drawn
    assert len(done) == len(drawn) + 1 < 60  # nothing more was drawn meanwhile


def test_stall_ends_a_task() -> None:
    done, reason = steps(Budget(trials=4000, stall=25))
    assert reason is StopReason.STALL
    assert not any(f.is_best for f in done[-25:])


def test_cancel_takes_effect_within_one_trial() -> None:
    done: list[int] = []
    pool = TABLE.pool
    for finished in tune(
        pool, RandomSearch(SearchProblem(pool, 1)), TABLE.measure, Budget(100), cancelled=lambda: len(done) >= 11
    ):
        done.append(finished.sequence)
    assert len(done) == 11


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(NotFound, match="recorded"):
        list(TABLE.measure([Schedule.of("convolution_kernel", 1, {"block_size_x": 17})]))


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidParameter, match="header"):
        read_table(path)


def test_what_a_cost_model_foretold_goes_with_the_trial() -> None:
    pool = TABLE.pool
    done = list(tune(pool, ModelSearch(SearchProblem(pool, 1, model="forest")), TABLE.measure, Budget(trials=40)))
    assert [f.prediction for f in done[:16]] == [None] * 16  # there is no model yet
    known = [f.prediction for f in done if f.prediction is not None]
    assert len(known) >= 16
    assert all(p.learned_from <= f.sequence for f in done if (p := f.prediction) is not None)
    assert sorted({p.learned_from for p in known})[0] == 16 and len({p.score for p in known}) > 8
    assert all(f.prediction is None for f in steps(Budget(trials=20))[0])


def test_given_candidates_come_before_those_of_the_strategy() -> None:
    pool = TABLE.pool
    loop = tune(pool, RandomSearch(SearchProblem(pool, 1)), TABLE.measure, Budget(12), first=[7, 3, 7])
    done = [finished.candidate for finished in loop]
    assert done[:2] == [7, 3] and len(set(done)) == 12
    trials = [Trial(pool.schedule(3), TABLE.outcomes[3])]
    loop = tune(pool, RandomSearch(SearchProblem(pool, 1)), TABLE.measure, Budget(4), resumed=trials, first=[3, 5])
    assert next(loop).candidate == 5  # 3 is known
    loop = tune(pool, RandomSearch(SearchProblem(pool, 1)), TABLE.measure, Budget(1), first=[9, 8])
    assert [finished.candidate for finished in loop] == [9]


def test_winners_of_the_most_similar_workloads_come_first() -> None:
    pool = TABLE.pool
    known = ((4, 10**6), (5, 10**9), (6, 2 * 10**6), (4, 1))
    winners = [Winner(pool.schedule(row), flops, 1000) for row, flops in known]
    winners.append(Winner(Schedule.of("another", 1, {}), 10**6, 1000))
    assert winning_candidates(pool, winners, 10**6, 1000) == [4, 6]
    assert winning_candidates(pool, winners, 10**9, 1000, most=3) == [5, 6, 4]


def test_a_winner_that_the_prior_holds_slow_is_not_tried() -> None:
    prior = np.full(len(TABLE.space), 2e-3, np.float32)
    prior[[3, 4]] = 1e-3, 1.05e-3
    pool = replace(TABLE, space=replace(TABLE.space, prior_seconds=prior)).pool
    winners = [Winner(pool.schedule(row), 10**6, 1000) for row in (5, 4, 3)]
    assert winning_candidates(pool, winners, 10**6, 1000) == [4, 3]
