"""Whether the winner of an earlier search still holds, by what was measured again."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from tilewright.core.errors import InvalidParameter
from tilewright.core.retuning import Retuned, RetuneVerdict, Retuning
from tilewright.core.schedule import Schedule
from tilewright.core.trial import Clocks, Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.search.retuning import LEAST_NOISE, MOST_NOISE, compared, measured_again

FAILED = Failed(TrialStage.COMPILE, Reason.COMPILE_ERROR, "no")


def trial(number: int, seconds: float, *, anchor: float | None = None, spread: float = 0.0) -> Trial:
    samples = tuple(seconds * (1 + spread * step) for step in (-1, -0.5, 0, 0.5, 1))
    schedule = Schedule.of("some", 1, {"tile": number})
    return Trial(schedule, Timed(samples), Clocks(), Evidence(anchor_seconds=anchor))


BEFORE = [trial(1, 1.0), trial(2, 1.1), trial(3, 1.5)]


def test_a_winner_that_is_first_and_as_fast_as_before_is_kept() -> None:
    found = compared(BEFORE, [trial(3, 1.4), trial(1, 1.005), trial(2, 1.0)])
    assert found.verdict is RetuneVerdict.KEPT and found.noise == LEAST_NOISE  # 0.5 % is no change
    assert found.lead == pytest.approx(1.005) and found.ratio == pytest.approx(1.005)
    assert compared(BEFORE, [trial(1, 0.5), trial(2, 0.6)]).verdict is RetuneVerdict.KEPT  # faster: no search


def test_a_winner_that_others_overtake_or_that_is_slower_or_gone_is_not_kept() -> None:
    assert compared(BEFORE, [trial(1, 1.0), trial(2, 0.9)]).verdict is RetuneVerdict.OUTRANKED
    assert compared(BEFORE, [trial(1, 1.2), trial(2, 1.3)]).verdict is RetuneVerdict.SLOWER
    for gone in ([trial(2, 1.1)], [replace(trial(1, 1.0), outcome=FAILED), trial(2, 1.1)], []):
        found = compared(BEFORE, gone)
        assert (found.verdict, found.ratio, found.lead) == (RetuneVerdict.FAILED, None, None)


def test_noise_counts_up_to_a_bound() -> None:
    noisy = [trial(1, 1.05, spread=0.08), trial(2, 1.0)]
    found = compared(BEFORE, noisy)
    assert found.verdict is RetuneVerdict.KEPT and 0.05 < found.noise <= MOST_NOISE
    worse = compared(BEFORE, [trial(1, 1.2, spread=0.5), trial(2, 1.0)])
    assert worse.verdict is RetuneVerdict.OUTRANKED and worse.noise == MOST_NOISE


def test_a_machine_that_is_slower_as_a_whole_does_not_make_a_winner_slower() -> None:
    before = [trial(1, 1.0, anchor=1e-3), trial(2, 1.1, anchor=1e-3)]
    slow = [trial(1, 1.3, anchor=1.3e-3), trial(2, 1.5, anchor=1.4e-3)]
    found = compared(before, slow)
    assert found.verdict is RetuneVerdict.KEPT and found.ratio == pytest.approx(1.0)
    assert compared(before, [trial(1, 1.3, anchor=1e-3)]).verdict is RetuneVerdict.SLOWER


def test_times_of_unequal_measurements_are_not_compared() -> None:
    remeasured = replace(BEFORE[0], outcome=Timed((1.0,) * 5, 1, (1.2,) * 5))
    assert compared([remeasured], [trial(1, 1.0)]).ratio == pytest.approx(1.0)
    again = replace(BEFORE[0], outcome=Timed((1.3,) * 5, 1, (1.2,) * 5))
    assert compared([remeasured], [again]).ratio == pytest.approx(1.0)


def test_measuring_again_stops_when_it_is_told_to() -> None:
    schedules = [one.schedule for one in BEFORE]
    drawn: list[Schedule] = []

    def measure(given: Iterable[Schedule]) -> Iterator[tuple[int, Trial]]:
        for number, schedule in enumerate(given):
            drawn.append(schedule)
            yield number, BEFORE[number]

    steps = measured_again(schedules, measure, done=4, stopped=lambda: len(drawn) == 2)
    found = []
    with pytest.raises(StopIteration) as end:
        while True:
            found.append(next(steps))
    assert [step.sequence for step in found] == [4, 5] and drawn == schedules[:2]
    assert end.value.value is False
    with pytest.raises(StopIteration) as end:
        next(measured_again([], measure, done=0, stopped=lambda: True))
    assert end.value.value is True


def test_what_is_asked_for_and_found_is_plain_data() -> None:
    with pytest.raises(InvalidParameter, match="65 runners-up; allowed: 1 to 64"):
        Retuning(65)
    asked = Retuning(3, "ab" * 32)
    assert Retuning(**asked.to_json()) == asked  # type: ignore[arg-type]
    found = Retuned(RetuneVerdict.SLOWER, 4, 1.2, 1.0, 0.02, 7, "cd" * 32, 1e-3, 64, 12.5)
    assert Retuned.from_json(found.to_json()) == found
