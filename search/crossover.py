"""Crossover and mutation make new candidates from the fastest ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .pool import CandidatePool

MUTATIONS = 1.5
"""How many knobs of a child change on average besides what it inherits."""
ANYWHERE = 0.25
"""The share of mutations that draw any value of the knob; the others step to a value nearby."""


def crossover(pool: CandidatePool, parents: Sequence[int], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to ``count`` legal candidates made from ``parents`` (best first), in random order; some may be known already.

    Two parents of one child belong to the same sketch. Better parents are drawn more often.
    """
    by_space: dict[int, list[tuple[int, int]]] = {}
    for rank, parent in enumerate(parents):
        space, row = pool.locate(parent)
        by_space.setdefault(space, []).append((rank, row))
    families = []
    for space, members in by_space.items():
        codes = pool.spaces[space].codes[[row for _, row in members]]
        weight = np.array([1.0 / (1 + rank) for rank, _ in members])
        sizes = np.array([len(k.values) for k in pool.spaces[space].knobs])
        share = max(1, round(count * len(members) / len(parents)))
        families.append(pool.rows_with(space, _children(codes, weight / weight.sum(), sizes, share, rng)))
    children = np.concatenate(families)
    rng.shuffle(children)
    return children


def _children(
    codes: NDArray[np.int16],
    weight: NDArray[np.float64],
    sizes: NDArray[np.int64],
    count: int,
    rng: np.random.Generator,
) -> NDArray[np.int16]:
    """int16[count, knobs]: uniform crossover of two rows of ``codes``, then mutation. The settings may be illegal."""
    mothers = codes[rng.choice(len(codes), count, p=weight)]
    fathers = codes[rng.choice(len(codes), count, p=weight)]
    children = np.where(rng.random(mothers.shape) < 0.5, mothers, fathers).astype(np.int64)
    mutated = rng.random(children.shape) < MUTATIONS / len(sizes)
    step = rng.choice(np.array([-2, -1, 1, 2]), children.shape, p=[0.1, 0.4, 0.4, 0.1])
    anywhere = rng.integers(0, sizes, children.shape)
    values = np.where(rng.random(children.shape) < ANYWHERE, anywhere, children + step)
    return np.clip(np.where(mutated, values, children), 0, sizes - 1).astype(np.int16)
