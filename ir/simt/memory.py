"""The memory of a launch: buffers that threads share (global, shared) and buffers that each thread has to itself."""

from itertools import product

import numpy as np

from ..buffer import Buffer
from ..memory import Array, Cells, computed
from .happens_before import Order, Touches


def element_name(buffer: Buffer, flat: int) -> str:
    """``name[i, j]`` of the element numbered ``flat``, row-major."""
    indices = []
    for extent in reversed(buffer.shape):
        indices.append(str(flat % extent))
        flat //= extent
    return f"{buffer.name}[{', '.join(reversed(indices))}]"


class GlobalMemory:
    """A parameter of the kernel: lives through all launches; ``cells`` hold it. Inputs are not watched."""

    def __init__(self, cells: Cells) -> None:
        self.buffer = cells.buffer
        self.data = cells.data
        self.written = None if cells.written is None else cells.written_view.view(np.bool_)
        self.touches: Touches | None = None
        self.under_way = 0
        self._leaving = np.zeros(0, dtype=np.int32)  # asynchronous copies under way from an element
        self._landing: Array | None = None  # what this launch stores asynchronously

    def enter(self) -> None:
        """A launch starts: all that was done before is ordered."""
        self.touches = None
        self._landing = None

    def begin(self, order: Order) -> None:
        """A chunk of a launch starts."""
        if self.written is not None and self.touches is None:
            self.touches = Touches(self.buffer.elements, order, 0)

    def mark(self, flat: Array, change: int) -> None:
        """Count copies under way from elements."""
        if self.written is None:
            return  # an input never changes
        if not len(self._leaving):
            self._leaving = np.zeros(len(self.data), dtype=np.int32)
        np.add.at(self._leaving, flat, change)
        self.under_way += change * len(flat)

    def land(self, flat: Array) -> None:
        """Elements are stored asynchronously: they are there when the launch has ended."""
        if self._landing is None:
            self._landing = np.zeros(len(self.data), dtype=np.bool_)
        self._landing[flat] = True

    def copied(self, flat: Array) -> Array:
        """Whether it is a copy that makes elements busy."""
        return np.ones(len(flat), dtype=np.bool_)

    def busy(self, flat: Array, writing: bool) -> Array | None:
        """The elements that a copy under way forbids to read, or to write; None for none."""
        if self._landing is not None:
            return self._landing[flat] | (writing and bool(self.under_way) and self._leaving[flat] > 0)
        return self._leaving[flat] > 0 if self.under_way and writing else None

    def name(self, flat: int) -> str:
        return element_name(self.buffer, flat)


class SharedMemory:
    """One buffer of every block of a chunk, block after block, by places (see ``Layout``), padding included."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.span = buffer.span
        self.data: Array = np.zeros(0)
        self.written: Array | None = None
        self.touches: Touches | None = None
        self.landing = np.zeros(0, dtype=np.int32)  # asynchronous copies under way to a place
        self.under_way = 0
        self.leaving = np.zeros(0, dtype=np.int32)  # stores and products under way that read a place
        self.being_read = 0
        self._order: Order | None = None
        self._names: dict[int, tuple[int, ...]] = {}

    def begin(self, order: Order, blocks: int) -> None:
        """The buffer is entered; for the first time in a chunk, nothing is known of it."""
        if self._order is order:
            return
        self._order = order
        places = blocks * self.span
        self.data = np.zeros(places, dtype=computed(self.buffer.dtype))
        self.written = np.zeros(places, dtype=np.bool_)
        self.touches = Touches(places, order, 1)
        self.landing, self.leaving = np.zeros((2, places), dtype=np.int32)
        self.under_way = self.being_read = 0

    def forget(self, who: Array | None) -> None:
        """Nothing is written any more in the blocks of ``who`` (bool[blocks]). Who touched what is remembered: the
        storage is the same."""
        assert self.written is not None
        if who is None:
            self.written[:] = False
        else:
            self.written.reshape(-1, self.span)[who] = False

    def mark(self, flat: Array, change: int) -> None:
        """Count copies under way to places."""
        np.add.at(self.landing, flat, change)
        self.under_way += change * len(flat)

    def mark_read(self, flat: Array, change: int) -> None:
        """Count stores and products under way that read places."""
        np.add.at(self.leaving, flat, change)
        self.being_read += change * len(flat)

    def copied(self, flat: Array) -> Array:
        """Whether it is a copy to places that makes them busy."""
        found: Array = self.landing[flat] > 0
        return found

    def busy(self, flat: Array, writing: bool) -> Array | None:
        """The places that something under way forbids to touch; None for none."""
        if writing and self.being_read:
            return (self.landing[flat] > 0) | (self.leaving[flat] > 0)
        return self.landing[flat] > 0 if self.under_way else None

    def name(self, flat: int) -> str:
        """The element at a place, which may be in any block."""
        if self.buffer.layout is None:
            return element_name(self.buffer, flat % self.span)
        if not self._names:
            self._names = {place_of(self.buffer, i): i for i in product(*map(range, self.buffer.shape))}
        indices = self._names.get(flat % self.span)
        if indices is None:
            return f"the padding of {self.buffer.name} (place {flat % self.span})"
        return f"{self.buffer.name}[{', '.join(map(str, indices))}]"


def place_of(buffer: Buffer, indices: tuple[int, ...]) -> int:
    """Where an element of a buffer lies, in elements from its start."""
    place = sum(i * stride for i, stride in zip(indices, buffer.strides, strict=True))
    if buffer.layout is None or buffer.layout.swizzle is None:
        return place
    return buffer.layout.swizzle.place(place)


class PrivateMemory:
    """A buffer that every thread has to itself: ``data`` is [elements, threads].

    ``full`` says for each element that all threads have written it: nothing to look up.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.data: Array = np.zeros((0, 0))
        self.written: Array = np.zeros((0, 0), dtype=np.bool_)
        self.full: list[bool] = []

    def begin(self, threads: int) -> None:
        """A chunk of a launch starts."""
        self.data = np.zeros((self.buffer.elements, threads), dtype=computed(self.buffer.dtype))
        self.written = np.zeros((self.buffer.elements, threads), dtype=np.bool_)
        self.full = [False] * self.buffer.elements

    def forget(self, who: Array | None) -> None:
        """Nothing is written any more, in the threads of ``who``."""
        if who is None:
            self.written[:] = False
        else:
            self.written[:, who] = False
        self.full = [False] * self.buffer.elements

    def name(self, flat: int) -> str:
        return element_name(self.buffer, flat)
