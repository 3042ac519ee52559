"""A portfolio: several strategies share the trials, and those that find improvements get more."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.streams import stream
from ...core.trial import Timed
from ..strategy import Observation, SearchProblem, Strategy

_BLOCK = 32
"""Shares change after so many trials. They follow from the blocks before the last one, whose results are all there."""
_FLOOR = 0.1
"""The least share of a member."""


class Portfolio:
    """Every member is told every result. Trial n belongs to a member that is drawn by n and by the shares of its block,
    so that a resumed search knows it from the results alone. A share grows with how often the member's trials were
    faster than all before them."""

    def __init__(self, problem: SearchProblem, members: Sequence[Strategy]) -> None:
        self._seed = problem.seed
        self._members = tuple(members)
        self._best = float("inf")
        self._improved: list[bool] = []
        self._shares: list[NDArray[np.float64]] = []

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        chosen: list[int] = []
        first = len(self._improved) + len(pending)
        for n in range(first, first + count):
            chosen += self._members[self._member(n)].ask(1, [*pending, *chosen])
        return chosen

    def tell(self, observations: Sequence[Observation]) -> None:
        for observation in observations:
            seconds = observation.outcome.seconds if isinstance(observation.outcome, Timed) else float("inf")
            self._improved.append(seconds < self._best)
            self._best = min(self._best, seconds)
        for member in self._members:
            member.tell(observations)

    def _member(self, n: int) -> int:
        """Return the place of the member that trial ``n`` belongs to."""
        while len(self._shares) <= n // _BLOCK:
            self._shares.append(self._next_share())
        share = self._shares[n // _BLOCK]
        return int(stream(self._seed, "portfolio", n).choice(len(share), p=share))

    def _next_share(self) -> NDArray[np.float64]:
        """float64[members] for the block after those that have shares."""
        tried, improved = np.ones(len(self._members)), np.ones(len(self._members))
        for trial in range(max(len(self._shares) - 1, 0) * _BLOCK):
            member = self._member(trial)
            tried[member] += 1
            improved[member] += self._improved[trial]
        rate = improved / tried
        return np.asarray(_FLOOR + (1 - _FLOOR * len(rate)) * rate / rate.sum())
