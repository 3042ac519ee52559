"""New candidates from good ones: crossed and mutated settings."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .pool import Pool


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
