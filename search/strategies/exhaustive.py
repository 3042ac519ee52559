"""Every candidate, in the order of the prior where there is one."""

from collections.abc import Collection, Sequence

import numpy as np

from ...core.streams import stream
from ..seen import Seen
from ..strategy import Observation, SearchProblem


class Exhaustive:
    """For pools that are small enough to be measured whole. The seed decides between candidates that the prior holds
    equal; without a prior that is all of them."""

    def __init__(self, problem: SearchProblem) -> None:
        self._seen = Seen(problem.pool)
        order = stream(problem.seed, "exhaustive").permutation(len(problem.pool))
        prior = problem.pool.prior_seconds
        self._order = order if prior is None else order[np.argsort(prior[order], kind="stable")]

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        return self._seen.fresh(self._order, count, pending)

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
