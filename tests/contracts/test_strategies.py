"""What every strategy promises, on a recorded space: legal, fresh, seeded, resumable, and it ends."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tilewright.core.budget import Budget, StopReason
from tilewright.core.trial import Failed, Reason, Timed, Trial, TrialStage
from tilewright.cost_model.dataset import Experience
from tilewright.cost_model.models import MODELS
from tilewright.runtime.devices import device_infos
from tilewright.search.pool import CandidatePool
from tilewright.search.recorded import Recorded, read_table
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategy import Observation, SearchProblem
from tilewright.search.tuner import Finished, tune
from tilewright.te.operators import OPERATORS

TABLE = Path(__file__).parents[1] / "data" / "hub_convolution_milo__A100.csv"
PAIRS = [(s, m) for s in STRATEGIES for m in (MODELS if s == "model" else ["xgboost"])]
every = pytest.mark.parametrize(("strategy", "model"), PAIRS)
UNLED, PEERS = ("random", "exhaustive"), ("tpe", "gaussian")
"""What does not follow what was found; what other systems do."""


@cache
def recorded() -> Recorded:
    return read_table(TABLE)


def run(strategy: str, model: str, trials: int, seed: int = 0, resumed: Sequence[Trial] = ()) -> list[Finished]:
    pool = recorded().pool
    problem = SearchProblem(pool, seed, model=model)
    return list(tune(pool, STRATEGIES[strategy](problem), recorded().measure, Budget(trials), resumed=resumed))


@cache
def undisturbed(strategy: str, model: str) -> list[Finished]:
    """64 trials, for the tests that ask something of a whole run."""
    return run(strategy, model, 64)


@every
def test_never_asks_twice_and_stays_in_the_pool(strategy: str, model: str) -> None:
    asked = [f.candidate for f in undisturbed(strategy, model)]
    assert len(set(asked)) == 64
    assert all(0 <= c < len(recorded().space) for c in asked)


@every
def test_a_seed_repeats_and_another_differs(strategy: str, model: str) -> None:
    first = [f.candidate for f in run(strategy, model, 40, seed=3)]
    assert first == [f.candidate for f in run(strategy, model, 40, seed=3)]
    assert first != [f.candidate for f in run(strategy, model, 40, seed=4)]


@every
def test_resuming_from_the_records_goes_on_as_if_undisturbed(strategy: str, model: str) -> None:
    whole = undisturbed(strategy, model)
    rest = run(strategy, model, 64, resumed=[f.trial for f in whole[:40]])
    assert [f.candidate for f in rest] == [f.candidate for f in whole[40:]]
    assert [f.sequence for f in rest] == list(range(40, 64))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_history_leads_the_first_candidates(strategy: str) -> None:
    """The history is a fortieth of the same table: the first eight have one of its fastest 2 %."""
    results = [(recorded().space.schedule(row), recorded().outcomes[row]) for row in range(0, 4362, 40)]
    history = (Experience(OPERATORS["matmul"].workload({"m": 1, "n": 1, "k": 1}), device_infos()[0], results),)
    fast = sorted(o.seconds for o in recorded().outcomes if isinstance(o, Timed))[87]
    pool = recorded().pool
    chosen = STRATEGIES[strategy](SearchProblem(pool, 0, history))
    asked = chosen.ask(8)
    chosen.tell([Observation(c, recorded().outcomes[c]) for c in asked])
    assert len(set(asked)) == 8 and len(chosen.ask(3)) == 3
    if strategy != "model":  # its trees learn from sketches of ours alone
        assert min(o.seconds for c in asked if isinstance(o := recorded().outcomes[c], Timed)) <= fast


@every
def test_exhausts_a_small_pool_and_stops(strategy: str, model: str) -> None:
    space = recorded().space
    small = type(space)(space.sketch, space.version, space.knobs, space.codes[:30])
    pool = CandidatePool([small])
    steps = tune(pool, STRATEGIES[strategy](SearchProblem(pool, 0, model=model)), recorded().measure, Budget(1000))
    seen = []
    while True:
        try:
            seen.append(next(steps).candidate)
        except StopIteration as stop:
            assert stop.value is StopReason.EXHAUSTED
            break
    assert sorted(seen) == list(range(30))


@every
def test_survives_a_pool_where_everything_fails(strategy: str, model: str) -> None:
    chosen = STRATEGIES[strategy](SearchProblem(recorded().pool, 0, model=model))
    for _ in range(4):
        batch = chosen.ask(10)
        assert len(batch) == 10
        chosen.tell([Observation(c, Failed(TrialStage.COMPILE, Reason.COMPILE_ERROR, "no")) for c in batch])


@pytest.mark.parametrize(("strategy", "model"), [p for p in PAIRS if p[0] not in UNLED + PEERS and p[1] != "constant"])
def test_beats_random_search_at_equal_trials(strategy: str, model: str) -> None:
    """Mean over five seeds of (optimum / best of 120 trials), exactly repeatable."""
    seeds = range(5)
    assert sum(quality(strategy, model, s) for s in seeds) > sum(quality("random", "constant", s) for s in seeds)


@cache
def quality(strategy: str, model: str, seed: int) -> float:
    outcomes = [f.trial.outcome for f in run(strategy, model, 120, seed)]
    return recorded().best_seconds / min(o.seconds for o in outcomes if isinstance(o, Timed))
