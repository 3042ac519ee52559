"""The memory of a launch: global and shared memory, whose accesses are checked for races, and private memory.

An element of shared memory is named by its *offset*: its position in the storage after the swizzle, padding included.
Elements that an asynchronous operation reads or writes are counted while it is in flight.
"""

from itertools import product

import numpy as np

from ..buffer import Buffer
from ..interpreter.memory import Array, BufferContents, computed
from .happens_before import AccessHistory, HappensBefore

WRITERS = "an asynchronous copy to it"
"""What may be writing an element while nothing may read it."""


def element_name(buffer: Buffer, flat: int) -> str:
    """Return the element numbered ``flat``, row-major, as ``name[i, j]``."""
    indices = []
    for extent in reversed(buffer.shape):
        indices.append(str(flat % extent))
        flat //= extent
    return f"{buffer.name}[{', '.join(reversed(indices))}]"


class GlobalMemory:
    """A parameter of the kernel, which lives through all launches; its ``contents`` hold it. Accesses to inputs are not
    checked, because inputs never change. ``history`` has the loads and stores of this launch, and ``atomics`` the
    reductions in place, as reads: they need no order among each other.

    ``_reads_in_flight`` counts the asynchronous copies in flight from each element, ``total_in_flight`` all of them.
    ``_stored_async`` is bool[elements]: what TmaStore statements of this launch wrote.
    """

    writers = WRITERS

    def __init__(self, contents: BufferContents) -> None:
        self.buffer = contents.buffer
        self.data = contents.data
        self.written = None if contents.written is None else contents.written_view.view(np.bool_)
        self.history: AccessHistory | None = None
        self.atomics: AccessHistory | None = None
        self.total_in_flight = 0
        self._reads_in_flight = np.zeros(0, dtype=np.int32)
        self._stored_async: Array | None = None

    def enter_launch(self) -> None:
        """A launch starts: all that was done before happened before it."""
        self.history = self.atomics = None
        self._stored_async = None

    def enter_chunk(self, order: HappensBefore) -> None:
        """A chunk of a launch starts."""
        if self.written is not None and self.history is None:
            self.history = AccessHistory(self.buffer.elements, order, 0)

    def count_reads(self, flat: Array, change: int) -> None:
        """``change`` more copies in flight read each of the elements."""
        if self.written is None:
            return  # an input never changes
        if not len(self._reads_in_flight):
            self._reads_in_flight = np.zeros(len(self.data), dtype=np.int32)
        np.add.at(self._reads_in_flight, flat, np.int32(change))
        self.total_in_flight += change * len(flat)

    def store_async(self, flat: Array) -> None:
        """Elements are stored asynchronously: they are there when the launch has ended."""
        if self._stored_async is None:
            self._stored_async = np.zeros(len(self.data), dtype=np.bool_)
        self._stored_async[flat] = True

    def is_copied(self, flat: Array) -> Array:
        """Return whether it is an asynchronous copy that forbids to access each element."""
        return np.ones(len(flat), dtype=np.bool_)

    def forbidden(self, flat: Array, writing: bool) -> Array | None:
        """Return which elements an asynchronous operation in flight forbids to read, or to write; None for none."""
        if self._stored_async is not None:
            reads = writing and bool(self.total_in_flight) and self._reads_in_flight[flat] > 0
            return self._stored_async[flat] | reads
        return self._reads_in_flight[flat] > 0 if self.total_in_flight and writing else None

    def name(self, flat: int) -> str:
        return element_name(self.buffer, flat)


class SharedMemory:
    """One buffer of every block of a chunk, block after block, by offset.

    ``writes_in_flight`` and ``reads_in_flight`` are int32[offsets]: how many asynchronous copies in flight write each
    element, and how many TmaStore, WarpgroupMma and TensorMemoryMma statements in flight read it. The totals count all
    of them.
    """

    writers = WRITERS

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.span = buffer.span
        self.data: Array = np.zeros(0)
        self.written: Array | None = None
        self.history: AccessHistory | None = None
        self.atomics: AccessHistory | None = None
        self.writes_in_flight = np.zeros(0, dtype=np.int32)
        self.total_writes_in_flight = 0
        self.reads_in_flight = np.zeros(0, dtype=np.int32)
        self.total_reads_in_flight = 0
        self._order: HappensBefore | None = None
        self._names: dict[int, tuple[int, ...]] = {}

    def enter(self, order: HappensBefore, blocks: int) -> None:
        """The allocation is entered. When that is for the first time in a chunk, nothing is known of the memory."""
        if self._order is order:
            return
        self._order = order
        elements = blocks * self.span
        self.data = np.zeros(elements, dtype=computed(self.buffer.dtype))
        self.written = np.zeros(elements, dtype=np.bool_)
        self.history, self.atomics = AccessHistory(elements, order, 1), None
        self.writes_in_flight, self.reads_in_flight = np.zeros((2, elements), dtype=np.int32)
        self.total_writes_in_flight = self.total_reads_in_flight = 0

    def forget(self, who: Array | None) -> None:
        """From now on nothing counts as written in the blocks of ``who`` (bool[blocks]). The access history stays,
        because the storage is the same."""
        assert self.written is not None
        if who is None:
            self.written[:] = False
        else:
            self.written.reshape(-1, self.span)[who] = False

    def count_writes(self, flat: Array, change: int) -> None:
        """``change`` more asynchronous copies in flight write each of the elements."""
        np.add.at(self.writes_in_flight, flat, np.int32(change))  # 50 times as fast as with an int, which is cast
        self.total_writes_in_flight += change * len(flat)

    def count_reads(self, flat: Array, change: int) -> None:
        """``change`` more TmaStore, WarpgroupMma or TensorMemoryMma statements in flight read each of the elements."""
        np.add.at(self.reads_in_flight, flat, np.int32(change))
        self.total_reads_in_flight += change * len(flat)

    def is_copied(self, flat: Array) -> Array:
        """Return whether it is an asynchronous copy that forbids to access each element."""
        found: Array = self.writes_in_flight[flat] > 0
        return found

    def forbidden(self, flat: Array, writing: bool) -> Array | None:
        """Return which elements an asynchronous operation in flight forbids to read, or to write; None for none."""
        if writing and self.total_reads_in_flight:
            return (self.writes_in_flight[flat] > 0) | (self.reads_in_flight[flat] > 0)
        return self.writes_in_flight[flat] > 0 if self.total_writes_in_flight else None

    def name(self, flat: int) -> str:
        """Return the element at an offset, in whichever block it is."""
        if self.buffer.layout is None:
            return element_name(self.buffer, flat % self.span)
        if not self._names:
            self._names = {offset_of(self.buffer, i): i for i in product(*map(range, self.buffer.shape))}
        indices = self._names.get(flat % self.span)
        if indices is None:
            return f"the padding of {self.buffer.name} (offset {flat % self.span})"
        return f"{self.buffer.name}[{', '.join(map(str, indices))}]"


class TensorMemory(SharedMemory):
    """One buffer in the tensor memory of every block of a chunk, block after block.

    ``allocated`` is bool[blocks]. ``issuer`` is int64[elements]: the number of the thread whose TensorMemoryMma last
    wrote each element, -1 for none.
    """

    writers = "a tcgen05.mma that accumulates in it"

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer)
        self.allocated = np.zeros(0, dtype=np.bool_)
        self.issuer = np.zeros(0, dtype=np.int64)

    def enter(self, order: HappensBefore, blocks: int) -> None:
        if self._order is not order:
            self.allocated = np.zeros(blocks, dtype=np.bool_)
            self.issuer = np.full(blocks * self.span, -1, dtype=np.int64)
        super().enter(order, blocks)


def offset_of(buffer: Buffer, indices: tuple[int, ...]) -> int:
    """Return where an element of a buffer lies, in elements from its start."""
    offset = sum(i * stride for i, stride in zip(indices, buffer.strides, strict=True))
    if buffer.layout is None or buffer.layout.swizzle is None:
        return offset
    return buffer.layout.swizzle.offset(offset)


class PrivateMemory:
    """A buffer that every thread has for itself: ``data`` is [elements, threads].

    ``full`` says for each element whether all threads have written it, so that nothing need be looked up.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.data: Array = np.zeros((0, 0))
        self.written: Array = np.zeros((0, 0), dtype=np.bool_)
        self.full: list[bool] = []

    def enter(self, threads: int) -> None:
        """The allocation is entered for the first time in a chunk."""
        self.data = np.zeros((self.buffer.elements, threads), dtype=computed(self.buffer.dtype))
        self.written = np.zeros((self.buffer.elements, threads), dtype=np.bool_)
        self.full = [False] * self.buffer.elements

    def forget(self, who: Array | None) -> None:
        """From now on nothing counts as written in the threads of ``who``."""
        if who is None:
            self.written[:] = False
        else:
            self.written[:, who] = False
        self.full = [False] * self.buffer.elements

    def name(self, flat: int) -> str:
        return element_name(self.buffer, flat)
