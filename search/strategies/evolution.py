"""Evolution: crossover and mutation of the fastest schedules so far."""

from collections.abc import Collection, Sequence

from ...core.streams import stream
from ..crossover import crossover
from ..seen import Seen
from ..strategy import Observation, SearchProblem

_FIRST = 16
"""How many random candidates come before the first crossover."""
_PARENTS = 12
_RANDOM_SHARE = 0.1


class Evolution:
    """Parents are drawn by rank, two of one sketch are crossed knob by knob, and each knob then mutates with a small
    probability: usually to a neighbouring value, sometimes to any. A tenth of every batch is random."""

    def __init__(self, problem: SearchProblem) -> None:
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
            for _ in range(8):  # crossover are often illegal or known already
                children = crossover(self._pool, parents, 8 * count, rng)
                chosen += self._seen.fresh(children, wanted - len(chosen), [*pending, *chosen])
                if len(chosen) >= wanted:
                    break
        return chosen + self._seen.draw(count - len(chosen), rng, [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
