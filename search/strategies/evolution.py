"""Evolution: the fastest schedules so far are crossed and mutated."""

from collections.abc import Collection, Sequence

from ...core.streams import stream
from ..breeding import offspring
from ..seen import Seen
from ..strategy import Observation, Problem

_FIRST = 16
"""Random candidates before there are parents to speak of."""
_PARENTS = 12
_RANDOM_SHARE = 0.1


class Evolution:
    """Rank-weighted parents, uniform crossover between two of one sketch, then each knob moves with a small
    probability: usually a step to a neighbouring value, sometimes anywhere. A tenth of every batch is random."""

    def __init__(self, problem: Problem) -> None:
        self._pool = problem.pool
        self._seed = problem.seed
        self._seen = Seen(problem.pool)

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        told = len(self._seen.observations)
        rng = stream(self._seed, "evolution", told + len(pending))
        parents = self._seen.best(_PARENTS)
        chosen: list[int] = []
        if told >= _FIRST and len(parents) >= 2:
            wanted = count - int(rng.binomial(count, _RANDOM_SHARE))
            for _ in range(8):  # offspring are often illegal or known already
                children = offspring(self._pool, parents, 8 * count, rng)
                chosen += self._seen.fresh(children, wanted - len(chosen), [*pending, *chosen])
                if len(chosen) >= wanted:
                    break
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
