"""How long a launch takes: adaptive samples, stopped as soon as they are good enough or plainly hopeless."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.trial import Timed, median_interval

_TOLERATED_WAIT_SECONDS = 50e-6
_TOLERATED_WAIT_SHARE = 0.02
DISTURBED_SPREAD = 0.2
"""Quartiles of quiet samples are nearer to one another (relative)."""


@dataclass(frozen=True, slots=True)
class TimingRules:
    """``sample_seconds``: launches are bunched until a sample lasts this long, so that the clock and the call cost
    nothing. ``spread``: sampling ends once the 95 % confidence interval of the median is this narrow (relative).
    ``hopeless_ratio``: a first clean sample this many times slower than the incumbent ends it. Three clean samples end
    it if each is ``slower_ratio`` times slower or more, or if all are behind by more than ``behind`` (relative) and by
    three times the noise that they show. ``noisy_spread``: quartiles further apart than this (relative) in the end are
    no measurement. Sampling normally lasts ``most_seconds``. While there are fewer than ``least_samples`` clean
    samples, or they are noisy, it may last ``extended_seconds``. Three samples are the least, but a kernel that used
    ``slow_seconds`` may stop at one. The launches of a sample are a multiple of ``launch_step``, and at most
    ``most_launches``."""

    sample_seconds: float = 1e-3
    least_samples: int = 7
    most_samples: int = 60
    most_seconds: float = 0.06
    extended_seconds: float = 0.5
    slow_seconds: float = 5.0
    spread: float = 0.02
    hopeless_ratio: float = 3.0
    slower_ratio: float = 3.0
    behind: float = 2.0
    noisy_spread: float = 1.0
    most_launches: int = 100_000
    launch_step: int = 1


@dataclass(frozen=True, slots=True)
class RemeasureRules:
    """``sample_seconds``, ``most_launches``, ``launch_step``: as in TimingRules. Rounds end after ``most_seconds``, or
    after ``most_rounds``, but there are at least ``least_rounds``. ``rest_seconds``: how long the device rests before
    each sample of a second half; 0: there is no second half. It has as many rounds as the first, and there is time for
    both in ``most_seconds``. Work without a break makes a graphics processor hot, and it settles at the lower clock
    that its power allows. What is fastest then need not be on a rested one, and kernels are run on both."""

    sample_seconds: float = 2e-3
    least_rounds: int = 5
    most_rounds: int = 31
    most_seconds: float = 1.5
    most_launches: int = 100_000
    launch_step: int = 1
    rest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of the timer: ``launches`` launches took ``seconds`` in all, in which the kernel's threads stood ready
    without a processor for ``waiting_seconds``, added up, because of other work of the machine."""

    seconds: float
    launches: int = 1
    waiting_seconds: float = 0.0

    @property
    def per_launch(self) -> float:
        return self.seconds / self.launches

    @property
    def waiting_share(self) -> float:
        return self.waiting_seconds / self.seconds

    @property
    def is_clean(self) -> bool:
        """Whether it waited no longer than the wake-ups of its own threads explain."""
        return self.waiting_seconds <= _TOLERATED_WAIT_SECONDS + _TOLERATED_WAIT_SHARE * self.seconds


@dataclass(frozen=True, slots=True)
class Timing:
    """What sampling gave. ``seconds``: what it took, of which ``launched_seconds`` in launches. ``noisy``: the samples
    do not agree even after the extension. ``hopeless``: stopped early."""

    timed: Timed
    disturbed: int
    taken: int
    seconds: float
    launched_seconds: float
    noisy: bool
    hopeless: bool

    @property
    def is_disturbed(self) -> bool:
        """Whether the time may be the machine's as much as the kernel's: fewer than half of the samples were clean, or
        those that count are far apart, whatever the counters of the machine say."""
        return 2 * self.disturbed > self.taken or self.timed.spread > DISTURBED_SPREAD


Timer = Callable[[int], Sample]
"""Launches back to back -> what they took in all."""


def take_samples(timer: Timer, rules: TimingRules, *, incumbent_seconds: float | None = None) -> Timing:
    """Warm up, choose the launches per sample, and sample.

    ``timed`` has the samples that the machine did not disturb, or, where those are fewer than ``least_samples``, that
    many of the least disturbed. A kernel slower than ``sample_seconds`` is warmed up by a single launch.
    """
    began = time.perf_counter()
    launched, estimate = _warm_up(timer, rules)
    spent = launched
    launches = _launches(rules.sample_seconds / estimate, rules)
    taken: list[Sample] = []
    while True:
        taken.append(timer(launches))
        launched += taken[-1].seconds
        spent = max(spent + taken[-1].seconds, time.perf_counter() - began)  # what the timer does besides counts, too
        disturbed = sum(not s.is_clean for s in taken)
        timed = Timed(tuple(s.per_launch for s in _least_disturbed(taken, rules.least_samples)), launches)
        if incumbent_seconds is not None and _is_hopeless(taken, incumbent_seconds, rules):
            return Timing(timed, disturbed, len(taken), spent, launched, noisy=False, hopeless=True)
        enough = len(taken) - disturbed >= rules.least_samples
        if enough and median_interval(timed.samples) <= rules.spread:
            break
        settled = enough and timed.spread <= rules.noisy_spread
        if (len(taken) >= 3 or spent >= rules.slow_seconds) and _is_spent(spent, len(taken), settled, rules):
            break
    noisy = timed.spread > rules.noisy_spread
    return Timing(timed, disturbed, len(taken), spent, launched, noisy=noisy, hopeless=False)


def interleaved_samples(
    timers: Sequence[Timer],
    rules: RemeasureRules,
    begin: Callable[[int], None],
    rest: Callable[[float], None] = time.sleep,
) -> list[tuple[float, ...]]:
    """Seconds of a launch by each timer, one sample of each in every round. Every other round goes backwards, and every
    pair of rounds begins at another timer: where one stands among the others favours nobody. ``begin`` is told which
    timer is next. Of the rounds that the machine disturbed, only as many are kept as ``least_rounds`` asks for.

    With ``rest_seconds`` the same rounds are played again, in which the device rests before every sample (``rest`` is
    told how long) and is woken by launches that do not count. What is returned is then the mean of the n-th sample
    without and the n-th with a rest.
    """
    began = time.perf_counter()
    launches, waking, seconds = [], [], 0.0
    for n, timer in enumerate(timers):
        begin(n)
        _, estimate = _warm_up(timer, rules)
        launches.append(_launches(rules.sample_seconds / estimate, rules))
        waking.append(_launches(rules.sample_seconds / 2 / estimate, rules))
        seconds += rules.rest_seconds + (2 * launches[n] + waking[n]) * estimate
    most = rules.most_rounds
    if rules.rest_seconds:  # the halves have as many rounds: how many there is time for must be known before
        most = min(most, max(rules.least_rounds, int(rules.most_seconds / seconds)))
    taken: list[list[Sample]] = [[] for _ in timers]
    played = 0
    while played < most and (played < rules.least_rounds or time.perf_counter() - began < rules.most_seconds):
        for n in _order(played, len(timers)):
            begin(n)
            taken[n].append(timers[n](launches[n]))
        played += 1
    for number in range(played if rules.rest_seconds else 0):
        for n in _order(number, len(timers)):
            begin(n)
            rest(rules.rest_seconds)
            timers[n](waking[n])
            taken[n][number] = _both(taken[n][number], timers[n](launches[n]))
    return [tuple(s.per_launch for s in _least_disturbed(samples, rules.least_rounds)) for samples in taken]


def _order(number: int, count: int) -> list[int]:
    """Whose turn it is, one after the other, in a round."""
    shift = number // 2 % count
    order = [*range(shift, count), *range(shift)]
    return order if number % 2 == 0 else order[::-1]


def _both(first: Sample, second: Sample) -> Sample:
    """Return two samples of as many launches as one, whose launches take the mean."""
    waiting_seconds = first.waiting_seconds + second.waiting_seconds
    return Sample(first.seconds + second.seconds, first.launches + second.launches, waiting_seconds)


def _warm_up(timer: Timer, rules: TimingRules | RemeasureRules) -> tuple[float, float]:
    """(seconds spent, seconds per launch): doubles the launches until they last half a sample."""
    spent, launches = 0.0, 1
    while True:
        seconds = timer(launches).seconds
        spent += seconds
        if seconds >= rules.sample_seconds / 2 or launches >= rules.most_launches:
            return spent, max(seconds / launches, 1e-9)
        grow = rules.sample_seconds / max(seconds, 1e-9)
        launches = _launches(max(2 * launches, launches * min(grow, 64.0)), rules)


def _launches(wanted: float, rules: TimingRules | RemeasureRules) -> int:
    """``wanted`` launches, as far as the rules allow."""
    steps = max(1, math.ceil(wanted / rules.launch_step))
    return min(steps * rules.launch_step, rules.most_launches)


def _least_disturbed(taken: Sequence[Sample], least: int) -> list[Sample]:
    """Return the clean samples; filled up to ``least`` with those that waited the smallest share of their time. In
    order."""
    clean = sum(s.is_clean for s in taken)
    ranks = sorted(range(len(taken)), key=lambda n: (not taken[n].is_clean, taken[n].waiting_share))
    return [taken[n] for n in sorted(ranks[: max(clean, least)])]


def _is_hopeless(taken: Sequence[Sample], incumbent_seconds: float, rules: TimingRules) -> bool:
    """One clean sample over the limit will do; of disturbed ones, which may be slow for other reasons, three. Three
    clean ones say enough of a kernel that is merely slower: a race that it cannot win any more."""
    clean = [s.per_launch for s in taken if s.is_clean]
    ratio = min(s.per_launch for s in taken) / incumbent_seconds
    if (clean or len(taken) >= 3) and ratio > rules.hopeless_ratio:
        return True
    if len(clean) < 3:
        return False
    noise = (max(clean) - min(clean)) / min(clean)
    return ratio > min(rules.slower_ratio, 1 + rules.behind + 3 * noise)


def _is_spent(spent: float, taken: int, settled: bool, rules: TimingRules) -> bool:
    """Return whether to stop although the median is not sure yet; samples that are too few or disagree earn extra
    time."""
    if settled:
        return spent >= rules.most_seconds or taken >= rules.most_samples
    return spent >= rules.extended_seconds or taken >= 4 * rules.most_samples
