"""What a cost model is: features in, a relative speed out."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FEATURE_VERSION = 4
"""Grows whenever a column of ``features`` changes its place or meaning; models of another version are not loaded."""


class CostModel(Protocol):
    """Learns how good schedules are, from 0 (failed, or endlessly slow) to 1 (the best of its task)."""

    def fit(self, features: NDArray[np.float32], labels: NDArray[np.float32], *, seed: int) -> None:
        """Replace what was learned. ``features``: float32[n, columns], NaN = missing; ``labels``: float32[n] in 0..1,
        NaN for a row that teaches nothing; n may be 0. Equal arguments give equal predictions."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a score of each row, float32[n]. A higher one is better; all are equal before anything was learned."""
        ...

    def importance(self) -> NDArray[np.float32]:
        """Return how much each column counts, float32[columns], which adds up to 1. It is empty before anything was
        learned. With trees it is the gain of all splits on the column."""
        ...

    def to_bytes(self) -> bytes:
        """Return what ``restore`` needs: data (UBJSON, arrays), never code."""
        ...

    def restore(self, data: bytes) -> None:
        """Become the model that ``to_bytes`` was called on. Raises ValueError for anything else."""
        ...


def teaching(
    features: NDArray[np.float32], labels: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the rows that have a label."""
    known = ~np.isnan(labels)
    return (features, labels) if known.all() else (features[known], labels[known])
