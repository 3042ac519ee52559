"""Which candidates a strategy knows already, and draws from the others."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.trial import Timed
from .pool import CandidatePool
from .strategy import Observation


class Seen:
    """Observations in order, and the candidates not among them."""

    def __init__(self, pool: CandidatePool) -> None:
        self._pool = pool
        self.observations: list[Observation] = []
        self.known: NDArray[np.bool_] = np.zeros(len(pool), dtype=np.bool_)

    def add(self, observations: Sequence[Observation]) -> None:
        self.observations.extend(observations)
        self.known[[o.candidate for o in observations]] = True

    def best(self, count: int) -> list[int]:
        """The ``count`` fastest candidates, fastest first; failures are never among them."""
        timed = [(o.outcome.seconds, o.candidate) for o in self.observations if isinstance(o.outcome, Timed)]
        return [candidate for _, candidate in sorted(timed)[:count]]

    def fresh(self, candidates: Iterable[int], count: int, taken: Iterable[int] = ()) -> list[int]:
        """The first ``count`` of ``candidates`` that are neither known nor in ``taken``, each once."""
        chosen: list[int] = []
        used = set(taken)
        for candidate in candidates:
            if len(chosen) == count:
                break
            if not self.known[candidate] and candidate not in used:
                chosen.append(int(candidate))
                used.add(int(candidate))
        return chosen

    def free(self, taken: Iterable[int] = ()) -> NDArray[np.int64]:
        """All candidates that are neither known nor in ``taken``, in ascending order."""
        free = ~self.known
        free[list(taken)] = False
        return np.flatnonzero(free)

    def draw(self, count: int, rng: np.random.Generator, taken: Iterable[int] = ()) -> list[int]:
        """``count`` candidates at random that are neither known nor in ``taken`` (fewer when fewer are left)."""
        left = self.free(taken)
        return [int(c) for c in rng.choice(left, size=min(count, len(left)), replace=False)]
