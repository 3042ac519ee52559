"""A machine that slows down: what search sees of it."""

import pytest

from tilewright.core.schedule import Schedule
from tilewright.core.trial import Evidence, Failed, Outcome, Reason, Timed, Trial, TrialStage
from tilewright.search.drift import NOISE, WINDOW, drift_corrected, noise
from tilewright.search.remeasurement import worth_remeasuring

FAILED = Failed(TrialStage.CHECK, Reason.WRONG_RESULT)


def _trial(seconds: float, speed: float = 1.0, anchor: float | None = 1e-5, outcome: Outcome | None = None) -> Trial:
    """A trial on a machine where everything takes ``speed`` times as long."""
    evidence = Evidence(anchor_seconds=None if anchor is None else anchor * speed)
    return Trial(Schedule.of("s", 1, {"n": 1}), outcome or Timed((seconds * speed,)), evidence=evidence)


def _seconds(trials: list[Trial]) -> list[float]:
    return [o.seconds for o in drift_corrected(trials) if isinstance(o, Timed)]


def test_times_of_a_slow_phase_are_those_of_the_first() -> None:
    trials = [_trial(1.0, speed) for speed in (1.0, 1.3, 1.0) for _ in range(20)]
    seen = _seconds(trials)
    settled = [*range(20), *range(20 + WINDOW, 40), *range(40 + WINDOW, 60)]
    assert all(seen[n] == pytest.approx(1.0) for n in settled)


def test_the_fastest_reaches_the_final_though_it_came_in_a_slow_phase() -> None:
    trials = [_trial(1.1) for _ in range(10)] + [_trial(1.2, 1.3) for _ in range(10)] + [_trial(1.0, 1.3)]
    assert 20 not in worth_remeasuring([t.outcome for t in trials])
    assert worth_remeasuring(list(drift_corrected(trials))) == []  # alone in front: nothing to decide
    assert min(range(21), key=lambda n: _seconds(trials)[n]) == 20


def test_noise_of_the_anchor_changes_nothing() -> None:
    trials = [_trial(1.0, anchor=1e-5 * (1 + NOISE / 3 * (-1) ** n)) for n in range(40)]
    trials[17] = _trial(1.0, anchor=3e-5)  # interrupted
    assert _seconds(trials) == [1.0] * 40


def test_what_comes_later_changes_nothing_that_was_seen() -> None:
    trials = [_trial(1.0 + n / 100, 1.0 + n / 50) for n in range(30)]
    assert list(drift_corrected(trials))[:17] == list(drift_corrected(trials[:17]))


def test_failures_and_trials_without_an_anchor_stay_as_they_are() -> None:
    trials = [_trial(1.0), _trial(2.0, anchor=None), _trial(1.0, 5.0, outcome=FAILED)]
    assert list(drift_corrected(trials)) == [t.outcome for t in trials]


def test_an_anchor_gone_wild_is_not_believed() -> None:
    trials = [_trial(1.0) for _ in range(5)] + [_trial(1.0, anchor=1e-2) for _ in range(10)]
    assert min(_seconds(trials)) == 0.5


def test_the_noise_of_a_machine_is_that_of_its_anchors() -> None:
    assert noise([_trial(1.0) for _ in range(40)]) == 0.0
    assert noise([_trial(1.0, 1.0 + 0.4 * (n % 2)) for n in range(40)]) == pytest.approx(0.2, rel=0.2)
    assert noise([_trial(1.0), _trial(1.0, 9.0)]) == noise([_trial(1.0, anchor=None)] * 9) == 0.0
