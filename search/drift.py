"""Drift correction: times on a machine that became slower are scaled to the speed that it had at first.

A fixed kernel, the anchor, is timed beside every trial. While a processor warms up, or others use it too, the anchor
is slower and so is every candidate. Such a trial must not be forgotten, and search must not learn that its candidate is
slow. Records keep what was measured; search sees the corrected times. What a search learns from earlier tasks is
corrected in the same way. A time-out while more processes wanted to run than there are processors says nothing of a
schedule: search sees it as noise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeGuard

from ..core.trial import Failed, Outcome, Reason, Timed, Trial

WINDOW = 5
"""How many anchors are looked at together. The least of them is the speed of the machine: any may be disturbed."""
NOISE = 0.04
"""Relative changes of the anchor up to this are noise."""
MOST = 2.0
"""The largest correction. What slows the anchor even more need not slow other kernels as much."""

BUSY = 1.5
"""A machine is busy where so many times as many processes want to run as it has processors."""


@dataclass
class Drift:
    """The anchors of a task's trials so far: the first few, of the unit that took the first trial, and the last few of
    each unit. So times of all units are scaled to the speed of one."""

    _first: list[float] = field(default_factory=list)
    _last: dict[str | None, list[float]] = field(default_factory=dict)
    _unit: str | None = None

    def drift_corrected(self, trial: Trial) -> Outcome:
        """Return the outcome of the next trial, scaled to the speed of the first trials.

        It depends on this trial and on those before it alone, so that a resumed task sees the same outcomes.
        """
        anchor = trial.evidence.anchor_seconds
        if anchor is not None:
            self._unit = trial.unit if not self._last else self._unit
            self._last[trial.unit] = [*self._last.get(trial.unit, ()), anchor][-WINDOW:]
            if trial.unit == self._unit:
                self._first = [*self._first, anchor][:WINDOW]
        if isinstance(trial.outcome, Failed):
            return _excused(trial, trial.outcome)
        if anchor is None:
            return trial.outcome
        factor = min(self._first) / min(self._last[trial.unit])
        if abs(factor - 1) <= NOISE:
            return trial.outcome
        factor = min(max(factor, 1 / MOST), MOST)
        return replace(trial.outcome, samples=tuple(s * factor for s in trial.outcome.samples))


def drift_corrected(trials: Iterable[Trial]) -> Iterator[Outcome]:
    """Yield the outcomes of a task's trials in their order, scaled to the speed of the first trials."""
    drift = Drift()
    for trial in trials:
        yield drift.drift_corrected(trial)


def comparable_outcomes(tasks: Iterable[Sequence[Trial]]) -> Iterator[Outcome]:
    """Yield the outcomes of earlier tasks of one identity, each task's trials in their order: scaled to the speed of
    the first trials of the first task, and all by the same kind of measurement.

    Re-measurement times the fastest on a chip in another state. Its samples say which of them is faster, so that they
    count, but scaled as a whole to the samples that were taken before, which all other trials have too.
    """
    first: list[float] = []
    for trials in tasks:
        drift = Drift(list(first))
        outcomes = [drift.drift_corrected(trial) for trial in trials]
        first = first or drift._first
        scale = median(ratios) if (ratios := [_final_ratio(o) for o in outcomes if _was_remeasured(o)]) else 1.0
        for outcome in outcomes:
            if _was_remeasured(outcome):
                samples = tuple(s / scale for s in outcome.final_samples)
                outcome = replace(outcome, samples=samples, final_samples=(), final_rank_seconds=None)
            yield outcome


def _was_remeasured(outcome: Outcome) -> TypeGuard[Timed]:
    return isinstance(outcome, Timed) and bool(outcome.final_samples)


def _final_ratio(outcome: Timed) -> float:
    return median(outcome.final_samples) / median(outcome.samples)


def _excused(trial: Trial, failed: Failed) -> Outcome:
    """Return the failure as search sees it: a time-out of a busy machine is noise."""
    found = trial.evidence.environment
    busy = found.get("load_average_1min", 0.0) > BUSY * found.get("processors", float("inf"))
    return replace(failed, reason=Reason.NOISY) if failed.reason is Reason.TIMEOUT and busy else failed


def noise(trials: Iterable[Trial]) -> float:
    """Return how much the speed of the machine varied: half the distance between the quartiles of the anchors, relative
    to their median. It is 0 for fewer than four anchors."""
    anchors = sorted(a for t in trials if (a := t.evidence.anchor_seconds) is not None)
    if len(anchors) < 4:
        return 0.0
    low, high = anchors[len(anchors) // 4], anchors[(3 * len(anchors)) // 4]
    return (high - low) / 2 / median(anchors)
