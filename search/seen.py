"""Which candidates a strategy knows already, and draws from the others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.trial import Timed
from .pool import CandidatePool
from .strategy import Observation


@dataclass(frozen=True)
class Results:
    """``candidates``: int64[n] in the order in which they were told, ``seconds``: float64[n], NaN for failures."""

    candidates: NDArray[np.int64]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.candidates)

    def first(self, count: int) -> "Results":
        return Results(self.candidates[:count], self.seconds[:count])


class Seen:
    """Keeps observations in order, and the candidates that are not among them."""

    def __init__(self, pool: CandidatePool) -> None:
        self._pool = pool
        self.observations: list[Observation] = []
        self._seconds: list[float] = []
        self.known: NDArray[np.bool_] = np.zeros(len(pool), dtype=np.bool_)

    def add(self, observations: Sequence[Observation]) -> None:
        self.observations.extend(observations)
        self._seconds += [o.outcome.seconds if isinstance(o.outcome, Timed) else float("nan") for o in observations]
        self.known[[o.candidate for o in observations]] = True

    @property
    def results(self) -> Results:
        """What is known as columns. Medians of samples are taken once: a search asks for all times at every turn."""
        return Results(np.array([o.candidate for o in self.observations], np.int64), np.array(self._seconds))

    def best(self, count: int) -> list[int]:
        """Return the ``count`` fastest candidates, fastest first; failures are never among them."""
        found = self.results
        order = np.lexsort((found.candidates, found.seconds))[:count]  # NaN comes last
        return [int(c) for c in found.candidates[order[~np.isnan(found.seconds[order])]]]

    def fresh(self, candidates: Iterable[int], count: int, taken: Iterable[int] = ()) -> list[int]:
        """Return the first ``count`` of ``candidates`` that are neither known nor in ``taken``, each once."""
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
        """Return all candidates that are neither known nor in ``taken``, in ascending order."""
        free = ~self.known
        free[list(taken)] = False
        return np.flatnonzero(free)

    def draw(self, count: int, rng: np.random.Generator, taken: Iterable[int] = ()) -> list[int]:
        """``count`` candidates at random that are neither known nor in ``taken`` (fewer when fewer are left)."""
        left = self.free(taken)
        return [int(c) for c in rng.choice(left, size=min(count, len(left)), replace=False)]
