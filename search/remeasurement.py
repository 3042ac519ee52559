"""Re-measurement: the fastest candidates of a task are timed again, interleaved, and ranked by that.

The best of many single measurements is partly the luckiest one. The candidates that may be the fastest are therefore
timed again under equal conditions. Those that cannot be told from the fastest get the same rank. Among equals the key
of the schedule decides, so that two searches that found the same candidates choose the same one. On GPUs each sample is
the mean of one on a hot chip and one on a rested chip; ``workers.timing.RemeasureRules`` says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.trial import Outcome, Timed, median_interval

MOST = 16
"""How many candidates are measured again at most."""
REMEASURED_WITHIN = 0.06
"""A candidate that was slower than the fastest by more than this share is not measured again."""
QUIET, MOST_REPETITIONS = 0.05, 4
"""One repetition suffices where the speed of the machine varies by less than the first; at most the second are made."""
DISTURBED_SPREAD = 0.2
"""A repetition in which the quartiles of half of the candidates are further apart than this (relative) is disturbed."""
TIE = 0.002
"""Medians that differ by less than this share are equal. Where the confidence interval of the fastest is wider, that
counts."""


def worth_remeasuring(outcomes: Sequence[Outcome], noise: float = 0.0) -> list[int]:
    """Return the positions of the candidates to measure again, fastest first; empty where there is nothing to decide.

    ``noise`` is the share by which the machine's speed varied: single times may be off by as much either way.
    """
    timed = sorted((o.rank_seconds, n) for n, o in enumerate(outcomes) if isinstance(o, Timed))
    chosen = [n for seconds, n in timed[:MOST] if seconds <= timed[0][0] * (1 + REMEASURED_WITHIN + 2 * noise)]
    return chosen if len(chosen) > 1 else []


def rounds_for(noise: float) -> int:
    """Return how many repetitions are made. All of their samples count, since a noisy machine is slow for a second at a
    time."""
    return min(MOST_REPETITIONS, 1 + int(noise / QUIET))


def is_disturbed(played: Sequence[tuple[float, ...]]) -> bool:
    """Return whether the machine disturbed a repetition: what it gave for half of the candidates is too far apart."""
    spreads = sorted(Timed(samples).spread for samples in played if samples)
    return bool(spreads) and spreads[len(spreads) // 2] > DISTURBED_SPREAD


def ranked(outcomes: Sequence[Outcome], samples: Mapping[int, tuple[float, ...]]) -> dict[int, Timed]:
    """Return the outcomes that re-measurement changes, by position.

    Candidates with ``samples`` (position -> seconds) are ranked by them, and no other candidate is ranked before them.
    A position without samples failed when it was measured again.
    """
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
