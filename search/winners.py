"""Tasks of one job help each other: what was best for the tasks that are most alike is measured first."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from ..core.schedule import Schedule
from .pool import CandidatePool

MOST = 2
"""How many winners of other tasks are measured first at most."""
NEAR = 1.1
"""Where there is a prior, it has to hold a winner at most so many times as slow as the best candidate: what it holds
slower seldom won again."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The best schedule of a task so far. ``flops`` and ``minimum_bytes`` are those of its workload."""

    schedule: Schedule
    flops: int
    minimum_bytes: int


def winning_candidates(
    pool: CandidatePool, winners: Sequence[Winner], flops: int, minimum_bytes: int, most: int = MOST
) -> list[int]:
    """Return the candidates of ``pool`` that won elsewhere, those of the most similar workloads first, at most
    ``most``.

    Two workloads are alike as their operations and bytes are, in ratio. Winners that are not legal here are left out,
    and those that the prior does not hold ``NEAR`` the best.
    """

    def distance(winner: Winner) -> float:
        return abs(log((1 + winner.flops) / (1 + flops))) + abs(log((1 + winner.minimum_bytes) / (1 + minimum_bytes)))

    legal = (pool.candidate_of(winner.schedule) for winner in sorted(winners, key=distance))
    found, prior = [candidate for candidate in legal if candidate is not None], pool.prior_seconds
    if prior is not None:
        found = [candidate for candidate in found if prior[candidate] <= NEAR * prior.min()]
    return list(dict.fromkeys(found))[:most]
