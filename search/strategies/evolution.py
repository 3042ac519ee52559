"""Evolution: the fastest schedules so far are crossed and mutated."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.streams import stream
from ..pool import Pool
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


def offspring(pool: Pool, parents: Sequence[int], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to ``count`` legal candidates bred from ``parents`` (best first), in random order, possibly known ones."""
    by_space: dict[int, list[tuple[int, int]]] = {}
    for rank, parent in enumerate(parents):
        space, row = pool.locate(parent)
        by_space.setdefault(space, []).append((rank, row))
    families = []
    for space, members in by_space.items():
        codes = pool.spaces[space].codes[[row for _, row in members]]
        weight = np.array([1.0 / (1 + rank) for rank, _ in members])
        share = max(1, round(count * len(members) / len(parents)))
        families.append(pool.rows_with(space, _breed(codes, weight / weight.sum(), pool, space, share, rng)))
    children = np.concatenate(families)
    rng.shuffle(children)
    return children


def _breed(
    codes: NDArray[np.int16], weight: NDArray[np.float64], pool: Pool, space: int, count: int, rng: np.random.Generator
) -> NDArray[np.int16]:
    """int16[count, knobs], legal or not."""
    sizes = np.array([len(k.values) for k in pool.spaces[space].knobs])
    mothers = codes[rng.choice(len(codes), count, p=weight)]
    fathers = codes[rng.choice(len(codes), count, p=weight)]
    children = np.where(rng.random(mothers.shape) < 0.5, mothers, fathers).astype(np.int64)
    moved = rng.random(children.shape) < 1.5 / len(sizes)
    step = rng.choice(np.array([-2, -1, 1, 2]), children.shape, p=[0.1, 0.4, 0.4, 0.1])
    anywhere = rng.integers(0, sizes, children.shape)
    target = np.where(rng.random(children.shape) < 0.25, anywhere, children + step)
    children = np.where(moved, target, children)
    return np.clip(children, 0, sizes - 1).astype(np.int16)
