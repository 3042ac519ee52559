"""Drift correction: times on a machine that became slower are scaled to the speed that it had at first.

A fixed kernel, the anchor, is timed beside every trial. While a processor warms up, or others use it too, the anchor
is slower and so is every candidate. Such a trial must not be forgotten, and search must not learn that its candidate is
slow. Records keep what was measured; search sees the corrected times.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from ..core.trial import Outcome, Timed, Trial

WINDOW = 5
"""How many anchors are looked at together. The least of them is the speed of the machine: any may be disturbed."""
NOISE = 0.04
"""Relative changes of the anchor up to this are noise."""
MOST = 2.0
"""The largest correction. What slows the anchor even more need not slow other kernels as much."""


@dataclass
class Drift:
    """The anchors of a task's trials so far: the first few and the last few."""

    _first: list[float] = field(default_factory=list)
    _last: list[float] = field(default_factory=list)

    def drift_corrected(self, trial: Trial) -> Outcome:
        """The outcome of the next trial, scaled to the speed of the first trials.

        It depends on this trial and on those before it alone, so that a resumed task sees the same outcomes.
        """
        anchor = trial.evidence.anchor_seconds
        if anchor is not None:
            self._last = [*self._last, anchor][-WINDOW:]
            self._first = [*self._first, anchor][:WINDOW]
        if not isinstance(trial.outcome, Timed) or anchor is None:
            return trial.outcome
        factor = min(self._first) / min(self._last)
        if abs(factor - 1) <= NOISE:
            return trial.outcome
        factor = min(max(factor, 1 / MOST), MOST)
        return replace(trial.outcome, samples=tuple(s * factor for s in trial.outcome.samples))


def drift_corrected(trials: Iterable[Trial]) -> Iterator[Outcome]:
    """The outcomes of a task's trials in their order, scaled to the speed of the first trials."""
    drift = Drift()
    for trial in trials:
        yield drift.drift_corrected(trial)


def noise(trials: Iterable[Trial]) -> float:
    """How much the speed of the machine varied: half the distance between the quartiles of the anchors, relative to
    their median. It is 0 for fewer than four anchors."""
    anchors = sorted(a for t in trials if (a := t.evidence.anchor_seconds) is not None)
    if len(anchors) < 4:
        return 0.0
    low, high = anchors[len(anchors) // 4], anchors[(3 * len(anchors)) // 4]
    return (high - low) / 2 / median(anchors)
