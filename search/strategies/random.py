"""Uniform random search without replacement: the baseline that every other strategy must beat."""

from collections.abc import Collection, Sequence

from ...core.streams import stream
from ..seen import Seen
from ..strategy import Observation, SearchProblem


class RandomSearch:
    """Every legal schedule is equally likely to be next."""

    def __init__(self, problem: SearchProblem) -> None:
        self._seed = problem.seed
        self._seen = Seen(problem.pool)

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        drawn = len(self._seen.observations) + len(pending)
        return self._seen.draw(count, stream(self._seed, "random", drawn), pending)

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
