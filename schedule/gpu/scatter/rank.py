"""Ranks terms within their buckets, in the order of their numbers, with what all threads of a block know of theirs.

    ranks[term]              = counts[warp, bucket] + lanes of the bucket before this one
    counts[warp, bucket]    += lanes of the bucket
    counts[warp, bucket]     = begin[bucket] + counts of warps before      # once all terms of the block are ranked
    place of a term          = counts[warp, bucket] + ranks[term]

Each warp has counts of its own, and 32 neighbouring terms at a time. The last lane of each bucket among them counts
them all, so that no two threads write one count. (``match.any`` gives the same lanes in one instruction, but takes
longer where these have many values: with it, launches that sort took an H200 28 us and not 18.)
"""

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Cast, Expr, Load, Ramp, Select, Shuffle, ShuffleMode, const, index, maximum, minimum
from ....ir.gpu.barrier import SyncScope
from ....te.functions import equal
from ...tile.names import FreshNameWriter

COUNTS = 8192
"""How many counts all warps of a block have, at most."""
MOST_ITEMS = 4
"""How many terms a thread has at a time, at most."""
BEFORE = 64
"""A lane counts those of its bucket, and times this those before itself."""
VECTOR = 4
"""Numbers that a thread reads from shared memory at once."""


def ranking_block(terms: int, buckets: int, most_warps: int) -> tuple[int, int]:
    """Return how many warps a block has that ranks about so many terms, and how many terms a thread has at a time."""
    warps = min(most_warps, COUNTS // buckets, max(4, -(-terms // WARP_LANES)))
    return warps, min(MOST_ITEMS, max(1, -(-terms // (warps * WARP_LANES))))


class TermRanks:
    """What a block ranks terms with. ``begin``: int32[buckets + 1] in shared memory, where the next terms of each
    bucket begin."""

    def __init__(self, w: FreshNameWriter, warp: Expr, lane: Expr, warps: int, items: int, buckets: int) -> None:
        self._w, self._warp, self._lane = w, warp, lane
        self.warps, self.items, self.buckets = warps, items, buckets
        self.threads = warps * WARP_LANES
        self.round = self.threads * items
        self.begin = w.allocate("begin", (buckets + 1,), int32, MemoryScope.SHARED)
        self._counts = w.allocate("warp_counts", (warps, buckets), int32, MemoryScope.SHARED)
        self._staged = w.allocate("staged", (warps, items, WARP_LANES), int32, MemoryScope.SHARED)
        self._totals = w.allocate("warp_totals", (warps,), int32, MemoryScope.SHARED)
        self._own = w.allocate("own", (items,), int32, MemoryScope.REGISTER)
        self._ranks = w.allocate("ranks", (items,), int32, MemoryScope.REGISTER)

    @property
    def thread(self) -> Expr:
        return self._warp * WARP_LANES + self._lane

    def place(self, item: Expr) -> Expr:
        """Return the number of a thread's item in its round."""
        return (self._warp * self.items + item) * WARP_LANES + self._lane

    def set_bucket(self, item: Expr, bucket: Expr) -> None:
        """Say of which bucket an item is; -1 for none."""
        self._w.store(self._own, (item,), Cast(bucket, int32))

    def bucket(self, item: Expr) -> Expr:
        return Load(self._own, (item,))

    def count(self) -> None:
        """Count the items of this round in their warps, and rank them there."""
        w, warp, lane = self._w, self._warp, self._lane
        w.barrier(SyncScope.WARP)
        with w.shared_out("bucket", self.buckets, WARP_LANES, lane) as bucket:
            w.store(self._counts, (warp, bucket), int32_of(0))
        with w.unrolled("item", self.items) as item:
            w.store(self._staged, (warp, item, lane), self.bucket(item))
        w.barrier(SyncScope.WARP)
        is_last = w.allocate("is_last", (self.items,), int32, MemoryScope.REGISTER)
        same = w.allocate("same", (), int32, MemoryScope.REGISTER)
        vector = w.allocate("vector", (VECTOR,), int32, MemoryScope.REGISTER)
        with w.unrolled("item", self.items) as item:
            w.store(same, (), int32_of(0))
            with w.unrolled("others", WARP_LANES // VECTOR) as others:
                w.store(vector, (_ramp(index(0)),), Load(self._staged, (warp, item, _ramp(others * VECTOR))))
                with w.unrolled("n", VECTOR) as n:
                    weight = Select(others * VECTOR + n < lane, int32_of(BEFORE + 1), int32_of(1))
                    is_same = equal(Load(vector, (n,)), self.bucket(item))
                    w.store(same, (), Load(same, ()) + Select(is_same, weight, int32_of(0)))
            before = Load(same, ()) // BEFORE
            w.store(self._ranks, (item,), before)
            w.store(is_last, (item,), Load(same, ()) - before * (BEFORE + 1))
        with w.unrolled("item", self.items) as item:
            known = Load(self._counts, (warp, self._within(item)))
            w.store(self._ranks, (item,), Load(self._ranks, (item,)) + known)
            w.barrier(SyncScope.WARP)
            with w.when(self.bucket(item) >= 0, equal(Load(is_last, (item,)), 1)):
                w.store(self._counts, (warp, self._within(item)), Load(self._ranks, (item,)) + int32_of(1))
            w.barrier(SyncScope.WARP)

    def add_counts(self) -> None:
        """``begin`` grows by what all warps have counted, and their counts become where the items of each begin."""
        w = self._w
        w.barrier()
        with w.shared_out("bucket", self.buckets, self.threads, self.thread) as bucket:
            counted = w.allocate("counted", (self.warps,), int32, MemoryScope.REGISTER)
            total = w.allocate("total", (), int32, MemoryScope.REGISTER)
            with w.unrolled("other", self.warps) as other:
                w.store(counted, (other,), Load(self._counts, (other, bucket)))
            w.store(total, (), Load(self.begin, (bucket,)))
            with w.unrolled("other", self.warps) as other:
                w.store(self._counts, (other, bucket), Load(total, ()))
                w.store(total, (), Load(total, ()) + Load(counted, (other,)))
            w.store(self.begin, (bucket,), Load(total, ()))
        w.barrier()

    def rank(self, item: Expr, starts: Buffer | None = None) -> Expr:
        """Return where an item belongs that is of some bucket, counted from ``starts`` of its bucket on."""
        own = self._within(item)
        rank = Load(self._counts, (self._warp, own)) + Load(self._ranks, (item,))
        return rank if starts is None else Load(starts, (own,)) + rank

    def scan(self, values: Buffer) -> None:
        """Each of the ``buckets + 1`` values in shared memory becomes the sum of those before it."""
        w, lane, count = self._w, self._lane, self.buckets + 1
        each = -(-count // self.threads)
        loaded = w.allocate("loaded", (each,), int32, MemoryScope.REGISTER)
        own, part, other = (w.allocate(n, (), int32, MemoryScope.REGISTER) for n in ("own_sum", "part", "other"))
        w.barrier()
        w.store(own, (), int32_of(0))
        with w.unrolled("n", each) as n:
            place = self.thread * each + n
            found = Load(values, (minimum(place, index(count - 1)),))
            w.store(loaded, (n,), Select(place < count, found, int32_of(0)))
            w.store(own, (), Load(own, ()) + Load(loaded, (n,)))
        w.store(part, (), Load(own, ()))
        for distance in (1, 2, 4, 8, 16):
            w.store(other, (), Shuffle(ShuffleMode.INDEX, Load(part, ()), maximum(lane - distance, index(0))))
            w.store(part, (), Load(part, ()) + Select(lane >= distance, Load(other, ()), int32_of(0)))
        with w.when(equal(lane, WARP_LANES - 1)):
            w.store(self._totals, (self._warp,), Load(part, ()))
        w.barrier()
        w.store(part, (), Load(part, ()) - Load(own, ()))
        with w.unrolled("before", self.warps) as before:
            total = Load(self._totals, (before,))
            w.store(part, (), Load(part, ()) + Select(before < self._warp, total, int32_of(0)))
        with w.unrolled("n", each) as n:
            place = self.thread * each + n
            with w.when(place < count):
                w.store(values, (place,), Load(part, ()))
            w.store(part, (), Load(part, ()) + Load(loaded, (n,)))
        w.barrier()

    def _within(self, item: Expr) -> Expr:
        return minimum(maximum(Cast(self.bucket(item), INDEX), index(0)), index(self.buckets - 1))


def int32_of(value: int) -> Expr:
    return const(value, int32)


def _ramp(base: Expr) -> Expr:
    return Ramp(base, 1, VECTOR)
