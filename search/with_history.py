"""Any strategy with history: it first measures what earlier tasks hold best, and goes on from there."""

from collections.abc import Collection, Sequence

from .seen import Seen
from .strategy import Observation, SearchProblem, Strategy
from .transfer import Transfer

_FIRST = 8
"""How many candidates come from earlier tasks."""


class BegunWithHistory:
    """A strategy that itself knows nothing of history, begun with candidates that are the best of earlier tasks."""

    def __init__(self, problem: SearchProblem, strategy: Strategy) -> None:
        self._strategy = strategy
        self._seen = Seen(problem.pool)
        self._first = Transfer(problem.pool, problem.history, problem.seed).cover(_FIRST)

    def ask(self, count: int, pending: Collection[int] = ()) -> list[int]:
        chosen = self._seen.fresh(self._first, count, pending)
        if len(chosen) == count:
            return chosen
        return chosen + self._strategy.ask(count - len(chosen), [*pending, *chosen])

    def tell(self, observations: Sequence[Observation]) -> None:
        self._seen.add(observations)
        self._strategy.tell(observations)
