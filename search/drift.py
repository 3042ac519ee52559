"""Times on a machine that became slower, as it was at first: by the anchor that is timed beside every trial.

A processor that warms up, or that others use too, slows everything down for a while. What was measured then must be
neither forgotten nor learned from as if it were slow. Records keep what was measured; search sees the steadied times.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from ..core.trial import Outcome, Timed, Trial

WINDOW = 5
"""Anchors of which the least is the speed of the machine: any may have been interrupted."""
NOISE = 0.04
"""Relative changes of the anchor that mean nothing."""
MOST = 2.0
"""Beyond this factor the anchor is not believed: what slows it so far need not slow kernels alike."""


@dataclass
class Drift:
    """What the anchors of a task's trials have said so far."""

    _first: list[float] = field(default_factory=list)
    _last: list[float] = field(default_factory=list)

    def steadied(self, trial: Trial) -> Outcome:
        """The outcome of the next trial at the speed of the first ones. A function of this trial and those before it:
        a task that is taken up again sees the same."""
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


def steadied(trials: Iterable[Trial]) -> Iterator[Outcome]:
    """The outcomes of a task's trials, in their order, at the speed of the first ones."""
    drift = Drift()
    for trial in trials:
        yield drift.steadied(trial)


def noise(trials: Iterable[Trial]) -> float:
    """By how much the speed of the machine varied: half the distance of the quartiles of the anchors, relative to their
    median; 0 of less than four."""
    anchors = sorted(a for t in trials if (a := t.evidence.anchor_seconds) is not None)
    if len(anchors) < 4:
        return 0.0
    low, high = anchors[len(anchors) // 4], anchors[(3 * len(anchors)) // 4]
    return (high - low) / 2 / median(anchors)
