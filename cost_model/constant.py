"""The null model: every schedule is as good as any other."""

import numpy as np
from numpy.typing import NDArray


class ConstantModel:
    """Learns nothing and predicts 0.5, so that a search led by it measures at random."""

    def fit(self, features: NDArray[np.float32], labels: NDArray[np.float32], *, seed: int) -> None:
        pass

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full(len(features), 0.5, dtype=np.float32)

    def importance(self) -> NDArray[np.float32]:
        return np.zeros(0, dtype=np.float32)

    def to_bytes(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        if data:
            raise ValueError("a constant model has no state")
