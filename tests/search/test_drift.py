"""A machine that slows down: what search sees of it."""

from dataclasses import replace

import pytest

from tilewright.core.schedule import Schedule
from tilewright.core.trial import Evidence, Failed, Outcome, Reason, Timed, Trial, TrialStage
from tilewright.search.drift import NOISE, WINDOW, Drift, comparable_outcomes, drift_corrected, noise
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


def test_earlier_tasks_are_corrected_like_the_own_one() -> None:
    """The second task ran on a machine that was slower from its beginning; finals were played on a hot chip."""
    slow = [_trial(1.0 + n / 100, 1.3) for n in range(20)]
    hot = [_with_finals(trial, 1.1 - 0.02 * n) if n < 3 else trial for n, trial in enumerate(slow)]
    outcomes = list(comparable_outcomes([[_trial(1.0) for _ in range(20)], hot]))
    seconds = [o.seconds for o in outcomes if isinstance(o, Timed)]
    assert len(outcomes) == len(seconds) == 40
    assert seconds[20] > seconds[21] > seconds[22]  # as re-measurement ranks them, on the scale of all others
    assert seconds[20:] == pytest.approx([1.0 + n / 100 for n in range(20)], rel=0.05)
    assert all(not o.final_samples for o in outcomes if isinstance(o, Timed))


def _with_finals(trial: Trial, scale: float) -> Trial:
    assert isinstance(trial.outcome, Timed)
    return replace(trial, outcome=replace(trial.outcome, final_samples=(trial.outcome.seconds * scale,)))


def test_a_time_out_of_a_busy_machine_is_noise() -> None:
    late = Failed(TrialStage.CHECK, Reason.TIMEOUT)
    seen = [
        Drift().drift_corrected(Trial(Schedule.of("s", 1, {"n": 1}), late, evidence=Evidence(environment=found)))
        for found in ({"load_average_1min": 9.0, "processors": 4.0}, {"load_average_1min": 2.0, "processors": 4.0}, {})
    ]
    assert [o.reason for o in seen if isinstance(o, Failed)] == [Reason.NOISY, Reason.TIMEOUT, Reason.TIMEOUT]
