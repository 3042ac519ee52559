"""The memory of the interpreter: what is in each buffer, which elements were written, and by which iteration."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float16
from ..buffer import Buffer

Array = NDArray[Any]

_NARROW = {d.name: d.numpy for d in (float16, bfloat16, float8_e4m3fn, float8_e5m2)}


def computed(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy dtype in which values of ``dtype`` are computed: float32 for narrower floats, else the dtype
    itself."""
    return np.dtype(np.float32) if dtype.name in _NARROW else dtype.numpy


def _scalar_rounding(narrow: np.dtype[Any]) -> Callable[[Any], Any]:
    return lambda value: np.float32(narrow.type(value))


def _vector_rounding(narrow: np.dtype[Any]) -> Callable[[Array], Array]:
    return lambda value: value.astype(narrow).astype(np.float32)


def _to_tf32(value: Array) -> Array:
    """Round to 10 bits of mantissa, to nearest, ties away from zero, as ``cvt.rna.tf32.f32`` does."""
    single = np.asarray(value, np.float32)
    rounded = ((single.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(single), single, rounded)


SCALAR_ROUNDING: dict[str, Callable[[Any], Any]] = {
    **{name: _scalar_rounding(narrow) for name, narrow in _NARROW.items()},
    "tfloat32": lambda value: np.float32(_to_tf32(np.asarray(value))),
}
"""How a computed number is rounded where it is stored. Only dtypes that are computed wider are listed."""

VECTOR_ROUNDING: dict[str, Callable[[Array], Array]] = {
    **{name: _vector_rounding(narrow) for name, narrow in _NARROW.items()},
    "tfloat32": _to_tf32,
}
"""The same for vectors."""


class BufferContents:
    """The elements of one buffer, row-major. ``written`` has one byte per element. It is None for inputs, which are all
    written."""

    def __init__(self, buffer: Buffer, contents: Array | None = None) -> None:
        self.buffer = buffer
        self.data: Array
        self.written: bytearray | None = None
        if contents is None:
            self.data = np.zeros(buffer.elements, dtype=computed(buffer.dtype))
            self.written = bytearray(buffer.elements)
            self.written_view: Array = np.frombuffer(self.written, dtype=np.uint8)
        else:
            self.data = np.ascontiguousarray(contents).reshape(-1).astype(computed(buffer.dtype))

    def forget(self) -> None:
        """From now on nothing counts as written."""
        assert self.written is not None
        self.written[:] = bytes(len(self.written))

    def result(self) -> Array:
        """Return the contents in the buffer's own shape and dtype."""
        return self.data.astype(self.buffer.dtype.numpy).reshape(self.buffer.shape)

    def element_name(self, flat: int) -> str:
        """Return the element number ``flat`` as ``name[i, j]``."""
        indices = []
        for extent, stride in zip(self.buffer.shape, self.buffer.strides, strict=True):
            indices.append(str(flat // stride % extent))
        return f"{self.buffer.name}[{', '.join(indices)}]"


@dataclass
class LoopRaceDetector:
    """Which iterations of one parallel loop read and wrote which elements.

    Iterations are numbered through all runs of the loop. Those below ``first`` belong to earlier runs, which have
    ended. Two different readers of an element are enough to remember: one of them is not the iteration that writes
    next.
    """

    loop: str
    current: int = 0
    first: int = 0
    writers: dict[str, list[int]] = field(default_factory=dict)
    readers: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def add(self, buffer: Buffer) -> None:
        """Watch the elements of ``buffer``."""
        self.writers[buffer.name] = [-1] * buffer.elements
        self.readers[buffer.name] = ([-1] * buffer.elements, [-1] * buffer.elements)

    def enter(self) -> None:
        """The loop starts a new run."""
        self.first = self.current + 1

    def note_read(self, name: str, flat: int) -> bool:
        """Note a read by the current iteration. False where another iteration of this run wrote the element."""
        now, writer = self.current, self.writers[name][flat]
        one, two = self.readers[name]
        if one[flat] < self.first:
            one[flat] = now
        elif one[flat] != now:
            two[flat] = now
        return writer == now or writer < self.first

    def note_write(self, name: str, flat: int) -> bool:
        """Note a write by the current iteration. False where another iteration of this run read or wrote the
        element."""
        now, first = self.current, self.first
        one, two = self.readers[name]
        others = (self.writers[name][flat], one[flat], two[flat])
        self.writers[name][flat] = now
        return all(other == now or other < first for other in others)
