"""Who meets again, and what that changes."""

from collections.abc import Sequence
from typing import Any, cast

from tilewright.core.schedule import Schedule
from tilewright.core.trial import Failed, Outcome, Reason, Timed, Trial, TrialStage
from tilewright.search.remeasurement import (
    MOST,
    MOST_REPETITIONS,
    REMEASURED_WITHIN,
    ranked,
    rounds_for,
    worth_remeasuring,
)
from tilewright.service import wiring

BROKEN = Failed(TrialStage.CHECK, Reason.WRONG_RESULT)


def around(seconds: float) -> tuple[float, ...]:
    return tuple(seconds * f for f in (0.9999, 1.0, 1.0001, 0.9998, 1.0002, 1.0, 1.0))


def test_what_is_measured_again_is_nearly_the_fastest_and_in_order() -> None:
    outcomes: list[Outcome] = [
        Timed((1.05,)),
        BROKEN,
        Timed((1.0,)),
        Timed((1.0 + REMEASURED_WITHIN + 0.01,)),
        Timed((1.01,)),
    ]
    assert worth_remeasuring(outcomes) == [2, 4, 0]
    assert len(worth_remeasuring([Timed((1.0,))] * 40)) == MOST


def test_on_a_noisy_machine_more_may_be_the_fastest() -> None:
    outcomes: list[Outcome] = [Timed((1.0,)), Timed((1.3,)), Timed((1.5,))]
    assert (
        worth_remeasuring(outcomes) == []
        and worth_remeasuring(outcomes, 0.15) == [0, 1]
        and worth_remeasuring(outcomes, 0.25) == [0, 1, 2]
    )
    assert [rounds_for(noise) for noise in (0.0, 0.04, 0.12, 9.0)] == [1, 1, 3, MOST_REPETITIONS]


def test_one_alone_plays_no_final() -> None:
    assert (
        worth_remeasuring([]) == worth_remeasuring([BROKEN]) == worth_remeasuring([Timed((1.0,)), Timed((2.0,))]) == []
    )


def test_the_final_turns_the_order_round() -> None:
    changed = ranked([Timed((1.0,)), Timed((1.01,))], {0: around(1.2), 1: around(1.1)})
    assert changed[1].rank_seconds < changed[0].rank_seconds == changed[0].seconds
    assert changed[0].samples == (1.0,) and changed[0].final_samples == around(1.2)


def test_those_it_cannot_tell_apart_get_the_same_rank_and_keep_their_own_time() -> None:
    changed = ranked(
        [Timed((1.0,)), Timed((1.01,)), Timed((1.02,))], {0: around(1.001), 1: around(1.0), 2: around(1.1)}
    )
    assert changed[0].rank_seconds == changed[1].rank_seconds == changed[1].seconds < changed[0].seconds
    assert changed[2].rank_seconds == changed[2].seconds


def test_nobody_who_was_not_there_comes_before_those_who_were() -> None:
    outcomes: list[Outcome] = [Timed((1.0,)), Timed((1.001,)), Timed((1.002,)), BROKEN, Timed((3.0,))]
    changed = ranked(outcomes, {0: around(1.2), 1: around(1.3), 2: ()})
    assert set(changed) == {0, 1, 2}
    assert changed[2].rank_seconds == changed[1].rank_seconds and changed[2].seconds == 1.002
    assert ranked(outcomes, {0: (), 1: ()}) == {}


def test_playing_it_again_changes_nothing_but_the_samples() -> None:
    outcomes: list[Timed] = [Timed((1.0,)), Timed((1.01,)), Timed((1.02,))]
    samples = {0: around(1.05), 1: around(1.0), 2: around(1.0)}
    once = ranked(outcomes, samples)
    again = ranked([once[n] for n in range(3)], samples)
    assert again == once


class Machine:
    """Plays finals: the next of ``noises`` is how far apart the samples of a repetition are."""

    def __init__(self, *noises: float) -> None:
        self.noises, self.played = list(noises), 0

    def remeasure(self, workload: object, schedules: Sequence[Schedule]) -> list[tuple[float, ...]]:
        noise = self.noises[min(self.played, len(self.noises) - 1)]
        self.played += 1
        return [tuple((1.0 + 0.02 * int(s["n"])) * (1 + noise * k) for k in range(5)) for s in schedules]


def trial(n: int, seconds: float) -> Trial:
    return Trial(Schedule.of("s", 1, {"n": n}), Timed((seconds,)))


def test_a_repetition_that_the_machine_disturbed_is_made_again_and_does_not_count() -> None:
    trials, nothing = [trial(0, 1.03), trial(1, 1.0)], cast(Any, None)
    noisy_once, quiet, always = Machine(0.3, 0.001), Machine(0.001), Machine(0.3)
    found = wiring.remeasure(nothing, cast(Any, noisy_once), trials)
    assert noisy_once.played == 2 and len(found[0].final_samples) == 5 and found[0].spread < 0.01
    assert found[0].rank_seconds < found[1].rank_seconds
    wiring.remeasure(nothing, cast(Any, quiet), trials)
    assert quiet.played == 1
    found = wiring.remeasure(nothing, cast(Any, always), trials)
    assert always.played == MOST_REPETITIONS and len(found[0].final_samples) == 5 * MOST_REPETITIONS
    assert found[0].spread > 0.2  # and the record says so
