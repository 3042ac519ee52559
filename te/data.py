"""Random inputs for a workload."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.streams import stream
from ..ir.buffer import Buffer
from .workload import Workload

WIDE_INTEGERS = 1000
"""Integers of 32 bits and more are drawn from -1000 to 1000."""

_BLOCK = 1 << 22


def random_inputs(workload: Workload, seed: int) -> dict[str, NDArray[Any]]:
    """The inputs by name: floats uniform in [-1, 1), 8-bit integers over their range, wider ones from -1000 to 1000,
    bools even. An input depends on the seed and its position alone, not on its name or on the other inputs."""
    return {t.name: _drawn(t, stream(seed, "inputs", n)) for n, t in enumerate(workload.inputs)}


def _drawn(tensor: Buffer, draw: np.random.Generator) -> NDArray[Any]:
    dtype = tensor.dtype
    if dtype.is_bool:
        return draw.integers(0, 2, tensor.shape, dtype=np.uint8).astype(bool)
    if dtype.is_integer:
        if dtype.bits == 8:
            low, high = (-128, 128) if dtype.kind == "int" else (0, 256)
        else:
            low, high = -WIDE_INTEGERS, WIDE_INTEGERS + 1
        return np.asarray(draw.integers(low, high, tensor.shape)).astype(dtype.numpy)
    if dtype.bits == 64:
        return np.asarray(draw.random(tensor.shape) * 2.0 - 1.0)
    result = np.empty(tensor.elements, dtype.numpy)
    for start in range(0, tensor.elements, _BLOCK):  # in blocks: a narrow input never exists in a wide copy
        part = draw.random(min(_BLOCK, tensor.elements - start), dtype=np.float32)
        result[start : start + len(part)] = (part * np.float32(2.0) - np.float32(1.0)).astype(dtype.numpy)
    return result.reshape(tensor.shape)
