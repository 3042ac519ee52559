"""What orders the threads of a launch, and who touched an element since.

Time is a counter that every meeting of threads moves on. A thread's *epoch* at a level (launch, cluster, block, warp;
warpgroup where those meet) is the time at which it last met all others of that group; an access is ordered before one
that follows it by another thread exactly if it is older than the epoch of the smallest group that holds both. Threads
are numbered so that every group is a range of numbers; hence the lowest and the highest reader since a group's last
meeting tell whether anybody outside a smaller group has read.
"""

from dataclasses import dataclass

import numpy as np

from ..expr import WARP_LANES
from ..gpu import WARPGROUP_THREADS
from ..memory import Array

SHIFT = 36
"""Keys hold an epoch above, and a thread's number in the lowest ``SHIFT`` bits."""
_NUMBERS = (1 << SHIFT) - 1

NOBODY = -1
"""The writer of what no thread wrote."""


@dataclass(frozen=True, slots=True)
class Groups:
    """How threads are numbered: ``block``, ``cluster`` numbers make one of each. ``sizes``: from the widest group to
    the warp, of the next smaller group each."""

    block: int
    cluster: int
    sizes: tuple[int, ...]

    @staticmethod
    def of(threads: int, blocks: int, warpgroups: bool) -> "Groups":
        """For blocks of ``threads`` in clusters of ``blocks``; ``warpgroups``: whether those meet, too."""
        smaller = (WARPGROUP_THREADS, WARP_LANES) if warpgroups else (WARP_LANES,)
        block = -(-threads // smaller[0]) * smaller[0]
        wider = (block * blocks, block) if blocks > 1 else (block,)
        return Groups(block, block * blocks, (*wider, *smaller, 1))

    @property
    def block_level(self) -> int:
        return self.sizes.index(self.block) + 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """The end of a phase of an arrival barrier, which brought data. ``waited``: bool[threads], who has waited for it
    (changes as they do); ``block``: whose, within the chunk. Such data is written by ``-2 - number of the delivery``.
    """

    waited: Array
    block: int


class Order:
    """The epochs of the threads of one chunk. ``ids``: int64[threads], their numbers; ``levels``: from the widest
    group to the warp, each with the size of the next smaller group. ``known``: int64[threads, kinds, threads of a
    cluster], what arrival barriers told besides (see ``clocks``); None for nothing yet. ``fences``: when threads made
    what they had written visible to copy engine and matrix units: (time, bool[threads] or None for all)."""

    def __init__(self, ids: Array, groups: Groups, launch: int, now: int) -> None:
        self.ids = ids
        self.groups = groups
        self.now = now
        self.sizes = groups.sizes
        self.epochs = [np.full(len(ids), now, dtype=np.int64) for _ in self.sizes]
        self.epochs[0][:] = launch
        self.deliveries: list[Delivery] = []
        self.known: Array | None = None
        self.kinds = 1 if groups.cluster == groups.block else 2
        self.fences: list[tuple[int, Array | None]] = []
        self._keys: list[tuple[Array, Array, Array, int] | None] = [None] * len(self.sizes)

    @property
    def block_level(self) -> int:
        return self.groups.block_level

    @property
    def warp_level(self) -> int:
        return len(self.sizes) - 1

    def fence(self, who: Array | None) -> None:
        """What threads (of ``who``, bool[threads]) wrote before now may be read by copy engine and matrix units."""
        self.now += 1
        self.fences.append((self.now, who))

    def fenced(self, writer: Array, time: Array) -> Array:
        """The time of the first fence of the threads numbered ``writer`` after ``time``; -1 where there is none."""
        found = np.full(len(writer), -1, dtype=np.int64)
        first, places = time.min(initial=self.now), np.searchsorted(self.ids, writer)
        for moment, who in reversed(self.fences):
            if moment <= first:
                break
            found[(time < moment) & (True if who is None else who[places])] = moment
        return found

    def meet(self, level: int, who: Array | None) -> None:
        """All threads (of ``who``, bool[threads]) meet the others of their group at ``level``."""
        self.now += 1
        for k in range(level, len(self.sizes)):
            if who is None:
                self.epochs[k][:] = self.now
            else:
                self.epochs[k][who] = self.now
            self._keys[k] = None

    def keys(self, level: int) -> tuple[Array, Array, Array, int]:
        """(epoch key, key that is highest for the highest reader, key that is highest for the lowest, earliest
        epoch) of every thread."""
        found = self._keys[level]
        if found is None:
            base = self.epochs[level] << SHIFT
            found = self._keys[level] = (base, base + self.ids, base + (_NUMBERS - self.ids), int(base.min()) >> SHIFT)
        return found

    def clocks(self, who: Array) -> Array:
        """What the threads at the places ``who`` know: int64[who, kinds, threads of a cluster], the times up to which
        all that the others of their cluster did is ordered before now. The first kind is of what those wrote, the last
        of what they read; there is one for both where there are no clusters."""
        self.now += 1
        ids, size = self.ids[who], self.groups.cluster
        first = ids // size * size
        others = first[:, None] + np.arange(size)
        bound = np.broadcast_to(self.epochs[0][who][:, None], others.shape)
        for k in range(1, len(self.sizes)):
            same = ids[:, None] // self.sizes[k - 1] == others // self.sizes[k - 1]
            bound = np.where(same, self.epochs[k][who][:, None], bound)
        bounds = np.broadcast_to(bound[:, None], (len(who), self.kinds, size))
        if self.known is not None:
            bounds = np.maximum(bounds, self.known[who])
        clocks: Array = np.where((others == ids[:, None])[:, None], self.now, bounds)
        return clocks

    def learn(self, who: Array, clock: Array) -> None:
        """The threads at the places ``who`` now know what ``clock`` (as ``clocks`` gives) says, too."""
        if self.known is None:
            self.known = np.full((len(self.ids), self.kinds, self.groups.cluster), -1, dtype=np.int64)
        self.known[who] = np.maximum(self.known[who], clock)

    def told(self, who: Array, other: Array, *, reads: bool = False) -> Array:
        """Up to which time arrival barriers order what the threads numbered ``other`` wrote (or read), for those at the
        places ``who``; -1 for not at all."""
        if self.known is None:
            return np.full(len(who), -1, dtype=np.int64)
        size = self.groups.cluster
        same = self.ids[who] // size == other // size
        known: Array = np.where(same, self.known[who, -1 if reads else 0, other % size], -1)
        return known

    def unordered(self, who: Array, other: Array, time: Array, *, reads: bool = False) -> Array:
        """Whether writes (or reads) at ``time`` by the threads numbered ``other`` are not ordered before now, for the
        threads at the places ``who``."""
        ids = self.ids[who]
        bound = self.epochs[0][who]
        for k in range(1, len(self.sizes)):
            same = ids // self.sizes[k - 1] == other // self.sizes[k - 1]
            bound = np.where(same, self.epochs[k][who], bound)
        bound = np.maximum(bound, self.told(who, other, reads=reads))
        found: Array = (ids != other) & (time >= bound)
        for number in np.unique(other[other < NOBODY]).tolist():
            delivery, at = self.deliveries[-2 - number], np.flatnonzero(other == number)
            there = (ids[at] - self.ids[0]) // self.groups.block == delivery.block
            bound_there = np.where(there, self.epochs[self.block_level][who[at]], self.epochs[1][who[at]])
            found[at] = ~delivery.waited[who[at]] & (time[at] >= bound_there)
        return found


class Touches:
    """Who touched the elements of one memory. ``outer``: the widest level at which threads share it. ``products``: by
    number of the warpgroup in its block, when products of which it has awaited last read an element, and the number of
    the thread that speaks for it (int64[2, elements])."""

    def __init__(self, elements: int, order: Order, outer: int) -> None:
        self.outer = outer
        self.writer = np.full(elements, NOBODY, dtype=np.int64)
        self.time = np.full(elements, -1, dtype=np.int64)
        levels = len(order.sizes) - outer
        self.highest = np.zeros((levels, elements), dtype=np.int64)
        self.lowest = np.zeros((levels, elements), dtype=np.int64)
        self.read_time = np.full(elements, -1, dtype=np.int64)
        self.was_read = False
        self.products: dict[int, Array] = {}

    def written_by(self, order: Order, flat: Array, who: Array) -> int | None:
        """The position in ``flat`` of an element that another thread wrote with nothing ordering it before ``who``
        (places of threads)."""
        time = self.time[flat]
        recent = time >= order.keys(self.outer)[3]
        if not recent.any():
            return None
        at = np.flatnonzero(recent)
        bad = order.unordered(who[at], self.writer[flat[at]], time[at])
        return int(at[bad.argmax()]) if bad.any() else None

    def read_by(self, order: Order, flat: Array, who: Array) -> tuple[int, int] | None:
        """(position in ``flat``, number of the thread) of an element that another thread read, likewise."""
        for group in self.products.values():
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
            if not recent.any():
                continue
            at = np.flatnonzero(recent)
            size = order.sizes[level]
            mine = order.ids[who[at]] // size
            for reader in (highest[at] & _NUMBERS, _NUMBERS - (self.lowest[row][flat[at]] & _NUMBERS)):
                bad = (reader // size != mine) & (self.read_time[flat[at]] >= order.told(who[at], reader, reads=True))
                if bad.any():
                    first = int(bad.argmax())
                    return int(at[first]), int(reader[first])
        return None

    def note_read(self, order: Order, flat: Array, who: Array) -> None:
        self.was_read = True
        self.read_time[flat] = order.now
        for row, level in enumerate(range(self.outer, len(order.sizes))):
            _, high, low, _ = order.keys(level)
            np.maximum.at(self.highest[row], flat, high[who])
            np.maximum.at(self.lowest[row], flat, low[who])

    def note_products(self, order: Order, flat: Array, leaders: Array) -> None:
        """Note that products of the warpgroups whose first threads are at the places ``leaders`` read
        ``flat`` (int64[groups, elements]), and were awaited."""
        for places, reader in zip(flat, order.ids[leaders].tolist(), strict=True):
            group = reader % order.groups.block // WARPGROUP_THREADS
            if group not in self.products:
                self.products[group] = np.full((2, len(self.writer)), -1, dtype=np.int64)
            self.products[group][0, places] = order.now
            self.products[group][1, places] = reader

    def note_write(self, order: Order, flat: Array, who: Array) -> int | None:
        """Note that ``who`` write; the position of an element that two of them write at once. What was read before is
        ordered before this, and need not be looked at again."""
        ids = order.ids[who]
        for group in self.products.values():
            group[0, flat] = -1
        if self.was_read:
            self.highest[:, flat] = self.lowest[:, flat] = 0
        self.writer[flat] = ids
        self.time[flat] = order.now
        twice = self.writer[flat] != ids
        return int(twice.argmax()) if twice.any() else None
