"""The happens-before order of the threads of a launch, and the access history that races are found by.

Time is a counter that every synchronisation of threads moves on. The *epoch* of a thread at a level (launch, cluster,
block, warpgroup where those synchronise, warp) is the time at which it last synchronised with all others of that group.
An access by another thread happened before now exactly if it is older than the epoch of the smallest group that holds
both. Mbarriers order single threads besides: what they order is kept as vector clocks.

Threads are numbered so that every group is a range of numbers. Hence the lowest and the highest reader since the last
synchronisation of a group tell whether any thread outside of a smaller group has read.
"""

from dataclasses import dataclass

import numpy as np

from ..expr import WARP_LANES
from ..gpu.barrier import WARPGROUP_THREADS
from ..interpreter.memory import Array

SHIFT = 36
"""A key holds an epoch, and the number of a thread in its lowest ``SHIFT`` bits."""
_NUMBERS = (1 << SHIFT) - 1

_SPARE_CLOCKS = 64
"""How many vector clocks may be kept that no thread has any more."""

NO_WRITER = -1
"""The writer of an element that no thread wrote. Numbers below it stand for completed phases of mbarriers."""


@dataclass(frozen=True, slots=True)
class ThreadHierarchy:
    """How threads are numbered. ``block`` and ``cluster`` say how many numbers each of them has. ``sizes`` goes from
    the widest group to the warp; each is the size of the next smaller group."""

    block: int
    cluster: int
    sizes: tuple[int, ...]

    @staticmethod
    def of(threads: int, blocks: int, warpgroups: bool) -> "ThreadHierarchy":
        """Return the hierarchy of blocks of ``threads`` in clusters of ``blocks``. ``warpgroups`` says whether
        warpgroups synchronise, too."""
        smaller = (WARPGROUP_THREADS, WARP_LANES) if warpgroups else (WARP_LANES,)
        block = -(-threads // smaller[0]) * smaller[0]
        wider = (block * blocks, block) if blocks > 1 else (block,)
        return ThreadHierarchy(block, block * blocks, (*wider, *smaller, 1))

    @property
    def block_level(self) -> int:
        return self.sizes.index(self.block) + 1


@dataclass(frozen=True, slots=True)
class PhaseCompletion:
    """The end of a phase of an mbarrier that brought data.

    ``waited`` is bool[threads]: who has waited for the phase, which changes as they do. ``block`` is the block of the
    mbarrier within the chunk. The writer of such data is ``-2 - number of the completion``.
    """

    waited: Array
    block: int


class HappensBefore:
    """What is ordered among the threads of one chunk.

    ``ids`` is int64[threads]: the numbers of the threads. ``epochs`` has an int64[threads] for each level, from the
    widest group to the warp. ``fences`` lists the proxy fences: (time, bool[threads] or None for all threads).

    ``_clocks`` is int64[clocks, kinds, threads of a cluster]: the vector clocks that mbarriers brought (see
    ``vector_clock``). Most threads of a warp have the same one: ``_clock`` is int64[threads], its number.
    """

    def __init__(self, ids: Array, groups: ThreadHierarchy, launch: int, now: int) -> None:
        self.ids = ids
        self.groups = groups
        self.now = now
        self.sizes = groups.sizes
        self.epochs = [np.full(len(ids), now, dtype=np.int64) for _ in self.sizes]
        self.epochs[0][:] = launch
        self.completions: list[PhaseCompletion] = []
        self.kinds = 1 if groups.cluster == groups.block else 2
        self._clocks: Array = np.full((1, self.kinds, groups.cluster), -1, dtype=np.int64)
        self._clock = np.zeros(len(ids), dtype=np.int64)
        self._most_clocks = _SPARE_CLOCKS
        self._acquired = False
        self.fences: list[tuple[int, Array | None]] = []
        self._keys: list[tuple[Array, Array, Array, int] | None] = [None] * len(self.sizes)

    @property
    def block_level(self) -> int:
        return self.groups.block_level

    @property
    def warp_level(self) -> int:
        return len(self.sizes) - 1

    def synchronise(self, level: int, who: Array | None) -> None:
        """All threads (those of ``who``, bool[threads]) synchronise with the others of their group at ``level``."""
        self.now += 1
        for k in range(level, len(self.sizes)):
            if who is None:
                self.epochs[k][:] = self.now
            else:
                self.epochs[k][who] = self.now
            self._keys[k] = None

    def synchronise_launch(self, time: int) -> None:
        """All threads of the launch synchronised at ``time``, which may be earlier than now."""
        self.now += 1
        for k, epoch in enumerate(self.epochs):
            np.maximum(epoch, time, out=epoch)
            self._keys[k] = None

    def fence(self, who: Array | None) -> None:
        """What all threads (those of ``who``, bool[threads]) wrote before now may be read by the asynchronous proxy."""
        self.now += 1
        self.fences.append((self.now, who))

    def fenced(self, writer: Array, time: Array) -> Array:
        """Return when the threads numbered ``writer`` first fenced after ``time``; -1 where they did not."""
        found = np.full(len(writer), -1, dtype=np.int64)
        first, positions = time.min(initial=self.now), np.searchsorted(self.ids, writer)
        for moment, who in reversed(self.fences):
            if moment <= first:
                break
            found[(time < moment) & (True if who is None else who[positions])] = moment
        return found

    def keys(self, level: int) -> tuple[Array, Array, Array, int]:
        """Return (epoch key, key that is highest for the highest reader, key that is highest for the lowest, earliest
        epoch) of every thread."""
        found = self._keys[level]
        if found is None:
            base = self.epochs[level] << SHIFT
            found = self._keys[level] = (base, base + self.ids, base + (_NUMBERS - self.ids), int(base.min()) >> SHIFT)
        return found

    def vector_clock(self, who: Array) -> Array:
        """Return the joined vector clock of the threads at the positions ``who``: int64[kinds, threads of a cluster].

        Each entry is the time up to which all that one thread of the cluster did happened before now. The first kind is
        of what it wrote, the last of what it read; where there are no clusters one kind stands for both.
        """
        self.now += 1
        ids, size = self.ids[who], self.groups.cluster
        epochs = [epoch[who] for epoch in self.epochs]
        first = run_starts(ids // self.sizes[-2], self._clock[who], *epochs)  # the threads of a run know the same
        others = ids[first, None] // size * size + np.arange(size)
        bound = np.broadcast_to(epochs[0][first, None], others.shape)
        for k in range(1, len(self.sizes)):
            same = ids[first, None] // self.sizes[k - 1] == others // self.sizes[k - 1]
            bound = np.where(same, epochs[k][first, None], bound)
        clocks = np.maximum(bound[:, None], self._clocks[self._clock[who[first]]])
        clock: Array = clocks.max(axis=0)
        clock[:, ids % size] = self.now
        return clock

    def acquire(self, who: Array, clock: Array) -> None:
        """The threads at the positions ``who`` join ``clock``, one of ``vector_clock``, to their own."""
        self._acquired = True
        held, number = np.unique(self._clock[who], return_inverse=True)
        self._clock[who] = len(self._clocks) + number
        self._clocks = np.concatenate([self._clocks, np.maximum(self._clocks[held], clock)])
        if len(self._clocks) > self._most_clocks:
            held, self._clock = np.unique(self._clock, return_inverse=True)
            self._clocks, self._most_clocks = self._clocks[held], 2 * len(held) + _SPARE_CLOCKS

    def acquired_until(self, who: Array, other: Array, *, reads: bool = False) -> Array:
        """Return up to which time mbarriers order what the threads numbered ``other`` wrote (or read) before what those
        at the positions ``who`` do now; -1 for not at all."""
        if not self._acquired:
            return np.full(len(who), -1, dtype=np.int64)
        size = self.groups.cluster
        same = self.ids[who] // size == other // size
        known: Array = np.where(same, self._clocks[self._clock[who], -1 if reads else 0, other % size], -1)
        return known

    def unordered(self, who: Array, other: Array, time: Array, *, reads: bool = False) -> Array:
        """Return whether writes (or reads) at ``time`` by the threads numbered ``other`` did not happen before what the
        threads at the positions ``who`` do now."""
        first = run_starts(who, other, time)
        if 2 * len(first) < len(who):
            found = self._unordered(who[first], other[first], time[first], reads)
            return np.repeat(found, np.diff(first, append=len(who)))
        return self._unordered(who, other, time, reads)

    def _unordered(self, who: Array, other: Array, time: Array, reads: bool) -> Array:
        ids = self.ids[who]
        bound = self.epochs[0][who]
        for k in range(1, len(self.sizes)):
            same = ids // self.sizes[k - 1] == other // self.sizes[k - 1]
            bound = np.where(same, self.epochs[k][who], bound)
        if self._acquired:
            bound = np.maximum(bound, self.acquired_until(who, other, reads=reads))
        found: Array = (ids != other) & (time >= bound)
        if other.min(initial=NO_WRITER) == NO_WRITER:
            return found
        for number in (-2 - np.flatnonzero(np.bincount(-2 - other[other < NO_WRITER]))).tolist():
            completion, at = self.completions[-2 - number], np.flatnonzero(other == number)
            there = (ids[at] - self.ids[0]) // self.groups.block == completion.block
            bound_there = np.where(there, self.epochs[self.block_level][who[at]], self.epochs[1][who[at]])
            found[at] = ~completion.waited[who[at]] & (time[at] >= bound_there)
        return found


def run_starts(*columns: Array) -> Array:
    """Return the positions at which any of the columns differs from the position before; the first is one."""
    differs = np.zeros(len(columns[0]), dtype=np.bool_)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


class AccessHistory:
    """Who last wrote and who read the elements of one memory.

    ``outer`` is the widest level at which threads share the memory. ``wgmma_reads`` has an int64[2, elements] for each
    warpgroup of a block, by its number: when the youngest WarpgroupMma that it has awaited read an element, and the
    number of the thread that stands for the warpgroup. For each warp that issues TensorMemoryMma it has, by -1 less the
    number of the warp, when the youngest of them read an element, and the completion that brought its end as a writer.
    """

    def __init__(self, elements: int, order: HappensBefore, outer: int) -> None:
        self.outer = outer
        self.writer = np.full(elements, NO_WRITER, dtype=np.int64)
        self.time = np.full(elements, -1, dtype=np.int64)
        levels = len(order.sizes) - outer
        self.highest = np.zeros((levels, elements), dtype=np.int64)
        self.lowest = np.zeros((levels, elements), dtype=np.int64)
        self.read_time = np.full(elements, -1, dtype=np.int64)
        self.was_read = False
        self.wgmma_reads: dict[int, Array] = {}

    def racing_writer(self, order: HappensBefore, flat: Array, who: Array) -> int | None:
        """Return the position in ``flat`` of an element that another thread wrote, where that did not happen before
        what the threads at the positions ``who`` do now."""
        time = self.time[flat]
        recent = time >= order.keys(self.outer)[3]
        if not np.count_nonzero(recent):
            return None
        at = np.flatnonzero(recent)
        bad = order.unordered(who[at], self.writer[flat[at]], time[at])
        return int(at[bad.argmax()]) if np.count_nonzero(bad) else None

    def racing_reader(self, order: HappensBefore, flat: Array, who: Array) -> tuple[int, int] | None:
        """Return (position in ``flat``, number of the thread) of an element that another thread read, likewise."""
        for group in self.wgmma_reads.values():
            time, reader = group[:, flat]
            at = np.flatnonzero(time >= 0)
            bad = order.unordered(who[at], reader[at], time[at], reads=True)
            if bad.any():
                first = int(at[bad.argmax()])
                return first, int(reader[first])
        if not self.was_read:
            return None
        for row, level in enumerate(range(self.outer, len(order.sizes))):
            highest = self.highest[row][flat]
            recent = highest >= order.keys(level)[0][who]
            if level == 0:  # a reader may have arrived at the barrier of the grid, and read before it waited
                recent |= (highest > 0) & (self.read_time[flat] >= order.epochs[0][who])
            if not np.count_nonzero(recent):
                continue
            at = np.flatnonzero(recent)
            size = order.sizes[level]
            mine = order.ids[who[at]] // size
            for reader in (highest[at] & _NUMBERS, _NUMBERS - (self.lowest[row][flat[at]] & _NUMBERS)):
                acquired = order.acquired_until(who[at], reader, reads=True)
                bad = (reader // size != mine) & (self.read_time[flat[at]] >= acquired)
                if bad.any():
                    first = int(bad.argmax())
                    return int(at[first]), int(reader[first])
        return None

    def record_read(self, order: HappensBefore, flat: Array, who: Array) -> None:
        """The threads at the positions ``who`` read the elements ``flat``."""
        self.was_read = True
        self.read_time[flat] = order.now
        for row, level in enumerate(range(self.outer, len(order.sizes))):
            _, high, low, _ = order.keys(level)
            np.maximum.at(self.highest[row], flat, high[who])
            np.maximum.at(self.lowest[row], flat, low[who])

    def record_wgmma_reads(self, order: HappensBefore, flat: Array, leaders: Array) -> None:
        """The warpgroups whose first threads are at the positions ``leaders`` have awaited WarpgroupMma statements that
        read ``flat`` (int64[warpgroups, elements])."""
        for elements, reader in zip(flat, order.ids[leaders].tolist(), strict=True):
            group = reader % order.groups.block // WARPGROUP_THREADS
            if group not in self.wgmma_reads:
                self.wgmma_reads[group] = np.full((2, len(self.writer)), -1, dtype=np.int64)
            self.wgmma_reads[group][0, elements] = order.now
            self.wgmma_reads[group][1, elements] = reader

    def record_tcgen05_reads(self, flat: Array, warp: int, completion: int, time: int) -> None:
        """TensorMemoryMma that a warp of the block issued have read ``flat``. They ended at ``time``, by a completion
        of a phase."""
        if -1 - warp not in self.wgmma_reads:
            self.wgmma_reads[-1 - warp] = np.full((2, len(self.writer)), -1, dtype=np.int64)
        self.wgmma_reads[-1 - warp][0, flat] = time
        self.wgmma_reads[-1 - warp][1, flat] = -2 - completion

    def record_write(self, order: HappensBefore, flat: Array, who: Array) -> int | None:
        """The threads at the positions ``who`` write the elements ``flat``. Return the position of an element
        that two of them write at once. Reads of before happened before this write, and need not be looked at again."""
        ids = order.ids[who]
        for group in self.wgmma_reads.values():
            group[0, flat] = -1
        if self.was_read:
            self.highest[:, flat] = self.lowest[:, flat] = 0
        self.writer[flat] = ids
        self.time[flat] = order.now
        twice = self.writer[flat] != ids
        return int(twice.argmax()) if np.count_nonzero(twice) else None
