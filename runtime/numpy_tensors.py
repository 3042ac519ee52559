"""NumPy arrays as the tensors of a program (``runtime.tensor_library``)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import DType, dtype_of_numpy
from ..core.errors import InvalidGraph
from ..graph.graph import Node
from ..graph.operators.operator import TensorType
from .tensor_library import Capture, Guard

Array = NDArray[Any]


class NumpyTensors:
    """Arrays do not count their changes: what constants are packed into is made anew only when they move."""

    def __init__(self, foreign: Callable[[Node], Callable[[Sequence[Array]], Sequence[Array]]] | None = None) -> None:
        """``foreign`` gives the function that computes a foreign node; NumPy itself has none."""
        self._foreign = foreign

    def allocator(self, kind: TensorType) -> Callable[[], Array]:
        return partial(np.empty, kind.shape, kind.dtype.numpy)

    def buffer(self, nbytes: int) -> Array:
        block = np.empty(nbytes + 64, np.uint8)
        start = -self.address(block) % 64
        return block[start : start + nbytes]

    def view_of(self, buffer: Array, offset: int, kind: TensorType) -> Array:
        size = kind.elements * kind.dtype.bytes
        return buffer[offset : offset + size].view(kind.dtype.numpy).reshape(kind.shape)

    def address(self, tensor: Array) -> int:
        return int(tensor.ctypes.data)

    def guard(self, tensors: Sequence[Array], positions: Sequence[int]) -> Guard:
        held = list(zip(positions, tensors, strict=True))  # an array that is held does not move
        return lambda given: all(given[n] is tensor for n, tensor in held)

    def on_device(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stream(self) -> int:
        return 0

    def is_captured(self) -> bool:
        return False

    def capture(self) -> Capture | None:
        return None

    def wait(self) -> None:
        """Nothing is put off on a processor."""

    def type_of(self, tensor: Array) -> TensorType:
        return TensorType(tensor.shape, dtype_of_numpy(tensor.dtype))

    def is_dense(self, tensor: Array) -> bool:
        return bool(tensor.flags.c_contiguous)

    def dense_copy(self, tensor: Array) -> Array:
        return tensor.copy(order="C")

    def reshaped(self, tensor: Array, shape: tuple[int, ...], offset: int = 0) -> Array:
        return tensor.reshape(-1)[offset : offset + prod(shape)].reshape(shape)

    def to_numpy(self, tensor: Array) -> Array:
        return tensor

    def from_numpy(self, array: Array, dtype: DType) -> Array:
        return array.astype(dtype.numpy)

    def overwrite(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target[...] = source

    def foreign(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        if self._foreign is None:
            raise InvalidGraph(f"{node.attributes['target']} is no function of NumPy", field=node.name)
        return self._foreign(node)
