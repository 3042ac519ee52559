"""Sampling stops when it knows enough, when it is hopeless, and when it will never know."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from tilewright.core.streams import stream
from tilewright.core.trial import median_interval
from tilewright.workers.settings import Deadlines, settings_for
from tilewright.workers.timing import RemeasureRules, Sample, TimingRules, interleaved_samples, take_samples
from tilewright.workers.wire import final_from_json, rules_to_json

RULES = TimingRules()
RACE = TimingRules(behind=0.1)


class Clock:
    """A timer whose launches take ``seconds`` each, times the next of ``factors``, of which they wait the next of the
    shares ``waits``; it remembers its calls."""

    def __init__(self, seconds: float, factors: list[float] | None = None, waits: list[float] | None = None) -> None:
        self.seconds = seconds
        self.factors = factors or [1.0]
        self.waits = waits or [0.0]
        self.calls: list[int] = []

    def __call__(self, launches: int) -> Sample:
        n = len(self.calls)
        self.calls.append(launches)
        seconds = self.seconds * launches * self.factors[n % len(self.factors)]
        return Sample(seconds, launches, waiting_seconds=self.waits[n % len(self.waits)] * seconds)


@pytest.mark.parametrize("seconds", [1e-7, 3e-6, 1e-4, 5e-4, 2e-3, 0.02])
def test_a_steady_kernel_gets_the_fewest_samples_of_a_millisecond_or_more(seconds: float) -> None:
    clock = Clock(seconds)
    timing = take_samples(clock, RULES)
    assert len(timing.timed.samples) == RULES.least_samples
    assert timing.timed.seconds == pytest.approx(seconds)
    assert timing.timed.launches_per_sample * seconds >= RULES.sample_seconds * 0.999
    assert not timing.noisy and not timing.hopeless


def test_warming_up_does_not_run_a_slow_kernel_more_than_once() -> None:
    clock = Clock(0.02)
    take_samples(clock, RULES)
    assert clock.calls == [1] * (1 + RULES.least_samples)


def test_a_hopeless_kernel_is_sampled_once() -> None:
    clock = Clock(0.5)
    timing = take_samples(clock, RULES, incumbent_seconds=0.1)
    assert timing.hopeless and timing.timed.samples == (0.5,)
    assert len(clock.calls) == 2


def test_one_disturbed_sample_makes_no_kernel_hopeless() -> None:
    clock = Clock(1e-3, [1.0, 9.0, 1.0], [0.0, 0.9, 0.0])
    assert not take_samples(clock, RULES, incumbent_seconds=1e-3).hopeless
    assert len(take_samples(Clock(9e-3, [1.0], [0.9]), RULES, incumbent_seconds=1e-3).timed.samples) == 3


def test_of_a_kernel_that_is_plainly_slower_three_clean_samples_will_do() -> None:
    rules = TimingRules(slower_ratio=1.25)
    timing = take_samples(Clock(1.4e-3, [1.0, 9.0, 1.0], [0.0, 0.9, 0.0]), rules, incumbent_seconds=1e-3)
    assert timing.hopeless and not timing.noisy and timing.timed.seconds == pytest.approx(1.4e-3)
    assert len(timing.timed.samples) - timing.disturbed >= 3
    assert not take_samples(Clock(1.2e-3), rules, incumbent_seconds=1e-3).hopeless
    assert not take_samples(Clock(1.4e-3, [1.0, 0.8, 1.0]), rules, incumbent_seconds=1e-3).hopeless


def test_a_kernel_near_the_incumbent_is_sampled_fully() -> None:
    timing = take_samples(Clock(1.08e-3), RACE, incumbent_seconds=1e-3)
    assert not timing.hopeless and len(timing.timed.samples) >= RULES.least_samples


def test_a_race_ends_after_three_samples_where_the_noise_does_not_explain_the_gap() -> None:
    quiet = take_samples(Clock(1.2e-3, [1.0, 1.01, 1.0]), RACE, incumbent_seconds=1e-3)
    assert quiet.hopeless and len(quiet.timed.samples) == 3 and quiet.timed.seconds == pytest.approx(1.2e-3, rel=0.02)
    noisy = take_samples(Clock(1.2e-3, [1.0, 1.1, 1.05]), RACE, incumbent_seconds=1e-3)
    assert not noisy.hopeless and len(noisy.timed.samples) >= RULES.least_samples


def test_samples_that_are_far_apart_are_disturbed_whatever_the_counters_say() -> None:
    assert not take_samples(Clock(1e-3, [1.0, 1.02]), RULES).is_disturbed
    apart = take_samples(Clock(1e-3, [1.0, 1.8, 1.1, 1.9]), RULES)
    assert apart.disturbed == 0 and apart.timed.spread > 0.3 and apart.is_disturbed
    assert take_samples(Clock(1e-3, [1.0], [0.0, 0.5, 0.5]), RULES).is_disturbed


def test_a_very_slow_kernel_may_stop_at_one_sample_and_a_slow_one_at_three() -> None:
    assert len(take_samples(Clock(6.0), RULES).timed.samples) == 1
    assert len(take_samples(Clock(1.0), RULES).timed.samples) == 3


def test_unsteady_samples_are_continued_until_the_time_is_up() -> None:
    factors = [1.0 + 0.5 * float(x) for x in stream(1, "factors").random(97)]
    timing = take_samples(Clock(1e-3, factors), RULES)
    assert len(timing.timed.samples) > RULES.least_samples
    assert timing.seconds < RULES.most_seconds + 4e-3
    assert not timing.noisy


def test_disturbed_samples_are_left_out_once_enough_clean_ones_were_had() -> None:
    timing = take_samples(Clock(1e-3, [1.0, 9.0], [0.0, 0.9]), RULES)
    assert timing.timed.samples == pytest.approx([1e-3] * len(timing.timed.samples))
    assert timing.disturbed > 0


def test_where_all_samples_are_disturbed_the_least_disturbed_count() -> None:
    timing = take_samples(Clock(1e-3, [1.0, 3.0, 7.0], [0.2, 0.7, 0.9]), RULES)
    assert timing.timed.samples == pytest.approx([1e-3] * RULES.least_samples)
    assert timing.disturbed > RULES.least_samples
    assert RULES.most_seconds < timing.seconds < RULES.extended_seconds + 8e-3


def test_samples_that_never_agree_are_noisy() -> None:
    timing = take_samples(Clock(1e-3, [1.0, 1.0, 5.0, 9.0, 9.0]), RULES)
    assert timing.noisy and timing.seconds > RULES.most_seconds


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """The true median of exp(normal) is 1; its 95 % interval, of which we get half the width, must hold it."""
    draw = stream(0, "coverage")
    covered = 0
    for _ in range(400):
        samples = np.exp(0.1 * draw.standard_normal(25))
        ordered = np.sort(samples)
        covered += bool(ordered[25 // 2 - 5] <= 1.0 <= ordered[25 // 2 + 5])
        assert 0.0 < median_interval(list(map(float, samples))) < 0.5
    assert covered > 0.93 * 400


def test_finalists_take_turns_in_every_round_whatever_their_place() -> None:
    order: list[int] = []
    clocks = [Clock(1e-3), Clock(2e-3), Clock(5e-6)]
    rules = RemeasureRules(most_rounds=6)
    samples = interleaved_samples(clocks, rules, order.append)
    assert [s[0] for s in samples] == pytest.approx([1e-3, 2e-3, 5e-6])
    assert all(len(s) == 6 for s in samples)
    rounds = [order[3 + 3 * n : 6 + 3 * n] for n in range(6)]
    assert all(sorted(r) == [0, 1, 2] for r in rounds) and {r[0] for r in rounds} == {0, 1, 2}
    assert clocks[2].calls[-1] == 400


def test_a_final_of_slow_kernels_has_its_least_rounds_and_drops_the_disturbed() -> None:
    samples = interleaved_samples([Clock(1.0, waits=[0.0, 0.5])], RemeasureRules(most_seconds=0.0), lambda n: None)
    assert len(samples[0]) == RemeasureRules().least_rounds


def test_who_is_faster_rested_by_more_than_it_is_slower_hot_wins_the_final() -> None:
    """What wakes the device is a hundred times slower here, and must not count."""
    rules = RemeasureRules(most_rounds=7, most_seconds=60.0, rest_seconds=0.01)
    steady = Clock(1e-3, [1.0] * 8 + [100.0, 1.0] * 7)
    bursts = Clock(1e-3, [1.0] + [1.02] * 7 + [100.0, 0.94] * 7)
    samples = interleaved_samples([steady, bursts], rules, lambda n: None, lambda seconds: None)
    assert samples[0] == pytest.approx([1e-3] * 7) and samples[1] == pytest.approx([0.98e-3] * 7)
    assert len(steady.calls) == len(bursts.calls) == 1 + 7 + 2 * 7


def test_the_rested_rounds_are_those_without_a_rest_again_and_every_turn_begins_with_a_rest() -> None:
    turns: list[int | float] = []
    rules = RemeasureRules(most_rounds=6, rest_seconds=0.01)
    interleaved_samples([Clock(1e-3), Clock(2e-3), Clock(5e-6)], rules, turns.append, turns.append)
    hot, rested = turns[3 : 3 + 18], turns[3 + 18 :]
    assert hot[:6] == [0, 1, 2, 2, 1, 0] and hot[6:9] == [1, 2, 0]
    assert rested == [word for n in hot for word in (n, 0.01)]


def test_a_final_with_rests_has_as_many_rounds_as_there_is_time_for() -> None:
    """A turn of each half takes the rest, two samples of 2 ms and half of one: 16 of them 0.24 s."""

    def rounds(contestants: int, seconds: float, most_seconds: float) -> int:
        rests: list[float] = []
        rules = RemeasureRules(most_seconds=most_seconds, rest_seconds=0.01)
        samples = interleaved_samples([Clock(seconds) for _ in range(contestants)], rules, lambda n: None, rests.append)
        assert len(rests) == contestants * len(samples[0]) and len({len(s) for s in samples}) == 1
        return len(samples[0])

    assert rounds(16, 1e-3, 60.1 * 0.24) == RemeasureRules().most_rounds
    assert rounds(16, 1e-3, 12.1 * 0.24) == 12
    assert rounds(2, 1e-3, 12.1 * 0.24) == RemeasureRules().most_rounds
    assert rounds(16, 1.0, 3.0) == RemeasureRules().least_rounds


@pytest.mark.parametrize(("most_launches", "waking", "sampled"), [(100_000, 128, 256), (64, 64, 64)])
def test_launches_that_wake_are_whole_steps_and_no_more_than_allowed(
    most_launches: int, waking: int, sampled: int
) -> None:
    clock = Clock(1e-5)
    rules = RemeasureRules(most_rounds=5, rest_seconds=0.01, launch_step=64, most_launches=most_launches)
    samples = interleaved_samples([clock], rules, lambda n: None, lambda seconds: None)
    assert clock.calls[-15:] == [sampled] * 5 + [waking, sampled] * 5
    assert samples[0] == pytest.approx([1e-5] * 5)


def test_a_sample_that_was_disturbed_takes_its_counterpart_along() -> None:
    factors = [1.0, *[1.0, 2.0, 3.0, 4.0], *[9.0, 5.0, 9.0, 6.0, 9.0, 7.0, 9.0, 8.0]]
    waits = [0.0, *[0.9, 0.0, 0.0, 0.0], *[0.9, 0.0, 0.9, 0.0, 0.9, 0.9, 0.9, 0.0]]
    rules = RemeasureRules(least_rounds=2, most_rounds=4, most_seconds=60.0, rest_seconds=0.01)
    samples = interleaved_samples([Clock(1e-3, factors, waits)], rules, lambda n: None, lambda seconds: None)
    assert samples[0] == pytest.approx([4e-3, 6e-3])


def test_finals_rest_on_graphics_processors_and_never_on_the_host() -> None:
    assert settings_for("cuda", Deadlines()).final.rest_seconds > 0
    rests: list[float] = []
    clock = Clock(1e-3)
    interleaved_samples([clock], settings_for("llvm", Deadlines()).final, lambda n: None, rests.append)
    assert rests == [] and clock.calls == [1] + [2] * RemeasureRules().most_rounds


def test_rules_of_a_final_cross_to_a_child() -> None:
    rules = settings_for("cuda", Deadlines()).final
    assert final_from_json(json.loads(json.dumps(rules_to_json(rules)))) == rules
    without = {name: value for name, value in asdict(rules).items() if name != "rest_seconds"}
    assert final_from_json(without).rest_seconds == 0.0
