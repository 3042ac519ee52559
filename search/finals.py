"""The final of a task: its fastest candidates are timed again, interleaved, and ranked by that.

What was timed once each is ranked by luck as much as by speed: the first of many is the luckiest. So those that may
be the fastest meet again under equal conditions. Those the final cannot tell from its fastest get the same rank, and
among equals the schedule's key decides, wherever trials are ranked: two searches that found the same candidates
choose the same one. On graphics processors every sample of it is the mean of one on a hot and one on a rested chip
(``workers.timing.FinalRules`` says why).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.trial import Outcome, Timed, median_interval

MOST = 16
"""Finalists at most."""
BAND = 0.06
"""Who was this much slower than the fastest (relative) is not among them."""
QUIET, MOST_PLAYS = 0.05, 4
"""A final is played once where the speed of the machine varies by less (relative), else up to so many times."""
TIE = 0.002
"""Medians this close (relative) are equal, or closer than the interval of the fastest where that is wider."""


def finalists(outcomes: Sequence[Outcome], noise: float = 0.0) -> list[int]:
    """Positions of those that take part, fastest first; empty where there is nothing to decide. ``noise``: by how much
    (relative) the machine's speed varied meanwhile: so far may single times be off, either way."""
    timed = sorted((o.rank_seconds, n) for n, o in enumerate(outcomes) if isinstance(o, Timed))
    chosen = [n for seconds, n in timed[:MOST] if seconds <= timed[0][0] * (1 + BAND + 2 * noise)]
    return chosen if len(chosen) > 1 else []


def plays(noise: float) -> int:
    """How often a final is played, all samples counting: phases in which a noisy machine is slow last for a second."""
    return min(MOST_PLAYS, 1 + int(noise / QUIET))


def ranked(outcomes: Sequence[Outcome], samples: Mapping[int, tuple[float, ...]]) -> dict[int, Timed]:
    """The outcomes that a final changes, by position: those with ``samples`` of it are ranked by them, and no other
    before them. Positions without any samples failed in the final."""
    met = {
        n: replace(_timed(outcomes[n]), final_samples=found, final_rank_seconds=None)
        for n, found in samples.items()
        if found
    }
    if not met:
        return {}
    fastest = min(met.values(), key=lambda t: t.seconds)
    tie = fastest.seconds * (1 + max(TIE, median_interval(fastest.final_samples)))
    for n, timed in met.items():
        if fastest.seconds < timed.seconds <= tie:
            met[n] = replace(timed, final_rank_seconds=fastest.seconds)
    last = max(t.rank_seconds for t in met.values())
    others = {n: o for n, o in enumerate(outcomes) if isinstance(o, Timed) and n not in met and o.rank_seconds < last}
    return {**met, **{n: replace(o, final_rank_seconds=last) for n, o in others.items()}}


def _timed(outcome: Outcome) -> Timed:
    assert isinstance(outcome, Timed)  # finalists are
    return outcome
