"""Whether the winner of an earlier search still holds: its schedule and the next best are measured again.

noise = 1 % at least, 10 % at most: the confidence intervals of the winner's two medians, and how much the
        machine's speed varied
ratio = winner now / winner before, each over the anchor's least time on its side
lead  = winner now / the fastest now

kept where lead <= 1 + noise and ratio <= 1 + noise; otherwise a search goes on from what was measured
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from ..core.retuning import RetuneVerdict
from ..core.schedule import Schedule
from ..core.trial import Timed, Trial, median_interval
from .drift import MOST as MOST_DRIFT
from .drift import noise as noise_of
from .tuner import Finished, Measure, closable

LEAST_NOISE, MOST_NOISE = 0.01, 0.1
"""Times of two sessions differ by the first though nothing has changed. On a machine where they differ by more than the
second, nothing is taken to hold."""


@dataclass(frozen=True, slots=True)
class WinnerComparison:
    """See ``core.retuning.Retuned``."""

    verdict: RetuneVerdict
    ratio: float | None
    lead: float | None
    noise: float


def compared(before: Sequence[Trial], now: Sequence[Trial]) -> WinnerComparison:
    """Compare the earlier trials of a task, the winner first, with trials of the same schedules now. A schedule that
    has no trial now has failed. The times of ``now`` are those of a re-measurement, where there was one."""
    winner = before[0]
    found = next((trial for trial in now if trial.schedule.key == winner.schedule.key), None)
    noise = LEAST_NOISE if found is None else _noise(winner, found, now)
    if found is None or not isinstance(found.outcome, Timed) or not isinstance(winner.outcome, Timed):
        return WinnerComparison(RetuneVerdict.FAILED, None, None, noise)
    fastest = min(trial.outcome.rank_seconds for trial in now if isinstance(trial.outcome, Timed))
    lead = found.outcome.rank_seconds / fastest
    ratio = _ratio(winner.outcome, found.outcome) / _slowdown(before, now)
    verdict = RetuneVerdict.KEPT
    if lead > 1 + noise:
        verdict = RetuneVerdict.OUTRANKED
    elif ratio > 1 + noise:
        verdict = RetuneVerdict.SLOWER
    return WinnerComparison(verdict, ratio, lead, noise)


def measured_again(
    schedules: Sequence[Schedule],
    measure: Measure,
    *,
    done: int,
    stopped: Callable[[], bool],
) -> Generator[Finished, None, bool]:
    """Yield a trial of each schedule, the ``done``-th trial of the task first; return whether all were measured before
    ``stopped`` said so. The consumer should record a trial before asking for the next one."""
    if not schedules:
        return True
    if stopped():
        return False
    with closing(closable(measure(schedules))) as found:
        for number, (_, trial) in enumerate(found):
            yield Finished(done + number, -1, trial, False)
            if number + 1 < len(schedules) and stopped():
                return False
    return True


def _ratio(before: Timed, now: Timed) -> float:
    """Now over before, by the same kind of samples: those of a re-measurement are taken on a chip in another state."""
    if before.final_samples and now.final_samples:
        return median(now.final_samples) / median(before.final_samples)
    return median(now.samples) / median(before.samples)


def _noise(winner: Trial, found: Trial, now: Sequence[Trial]) -> float:
    intervals = sum(_interval(trial) for trial in (winner, found))
    return min(MOST_NOISE, max(LEAST_NOISE, intervals + noise_of(now)))


def _interval(trial: Trial) -> float:
    outcome = trial.outcome
    return median_interval(outcome.final_samples or outcome.samples) if isinstance(outcome, Timed) else 0.0


def _slowdown(before: Sequence[Trial], now: Sequence[Trial]) -> float:
    """Return how much slower the machine is now, by the anchor; 1 where that is not known."""
    anchors = [[a for t in trials if (a := t.evidence.anchor_seconds) is not None] for trials in (before, now)]
    if not all(anchors):
        return 1.0
    return min(max(min(anchors[1]) / min(anchors[0]), 1 / MOST_DRIFT), MOST_DRIFT)
