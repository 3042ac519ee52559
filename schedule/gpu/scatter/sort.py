"""Sorts the numbers of terms by the element that they belong to: a stable counting sort without atomics.

    count_terms    counts[chunk, bucket] = how many terms of the chunk belong to elements of the bucket
    fill_buckets   order[first[bucket] + counts of chunks before + …] = number of a term, in ascending order
    sort_buckets   the same for the elements of each bucket, where a bucket has several

A thread stands for each bucket, or for each element of one. It goes through all terms of its block, which lie in shared
memory, and takes those of its own in their order. So a block with n threads has n times the work of reading its terms
once. With about as many buckets as a bucket has elements that is little: 32,768 terms of 50,000 elements are compared
with 256 buckets and then with 196 elements.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Cast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    const,
    index,
    logical_and,
    maximum,
    minimum,
)
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis, LoopKind
from ...problems.scatter import ScatterProblem
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter

LANES = 4
"""Terms that a thread reads from shared memory at once."""
COUNTS = 32
"""Counts of chunks that a thread loads before it adds up the first."""
ROUND = 2048
"""Terms of a bucket that lie in shared memory at a time."""


@dataclass(frozen=True)
class TermSort:
    """The launches that sort, and what they leave: ``first`` is int32[batches, keys + 1], where the terms of each
    element begin in ``order``, int32[batches, terms]. ``chunks``: into how many parts the terms of a batch are cut.
    ``buckets``: how many buckets elements are in, at most a thread block's threads; as many as elements, or a bucket
    has at most as many elements as a block threads."""

    w: FreshNameWriter
    problem: ScatterProblem
    chunks: int
    buckets: int
    first: Buffer
    order: Buffer

    @property
    def chunk(self) -> int:
        """How many terms a chunk has, the last one perhaps fewer."""
        return -(-self.problem.terms // self.chunks)

    @property
    def bucket_keys(self) -> int:
        return -(-self.problem.keys // self.buckets)

    @property
    def is_direct(self) -> bool:
        """Whether each element has a bucket of its own."""
        return self.bucket_keys == 1

    def write(self) -> tuple[Buffer, ...]:
        """Write the launches. Return the buffers that these share."""
        w, p = self.w, self.problem
        counts = Buffer(w.fresh("counts"), (p.batches, self.chunks, self.buckets), int32)
        self._count(counts)
        if self.is_direct:
            self._fill(counts, self.first, self.order)
            return (counts, self.first, self.order)
        bucket_first = Buffer(w.fresh("bucket_first"), (p.batches, self.buckets + 1), int32)
        bucket_order = Buffer(w.fresh("bucket_order"), (p.batches, p.terms), int32)
        self._fill(counts, bucket_first, bucket_order)
        self._sort_buckets(bucket_first, bucket_order)
        return (counts, bucket_first, bucket_order, self.first, self.order)

    def _key(self, batch: Expr, term: Expr) -> Expr:
        """Return the element of a term that exists, -1 for none."""
        s = self.problem.scatter
        at = {**axis_indices(batch, s.batch), **axis_indices(term, s.stage.reduce_axes)}
        return Select(substitute(s.is_inside, at), substitute(s.key, at), index(-1))

    def _count(self, counts: Buffer) -> None:
        w, threads = self.w, _whole_warps(self.buckets)
        axes = [
            ("chunk", self.problem.batches * self.chunks, HardwareAxis.GRID_X),
            ("bucket", threads, HardwareAxis.THREAD),
        ]
        with w.launch("count_terms", axes) as (block, thread):
            batch, chunk = block // self.chunks, block % self.chunks
            staged = self._staged_buckets(batch, chunk, thread, threads)
            count = _counter(w, "count")
            with _own_terms(w, staged, thread, None):
                count.set(count.value + _int32(1))
            with w.when(thread < self.buckets):
                w.store(counts, (batch, chunk, thread), count.value)

    def _fill(self, counts: Buffer, first: Buffer, order: Buffer) -> None:
        """A thread knows how many terms there are of buckets before its own, and how many of its own in chunks before
        this one."""
        w, threads, p = self.w, _whole_warps(self.buckets), self.problem
        axes = [("chunk", p.batches * self.chunks, HardwareAxis.GRID_X), ("bucket", threads, HardwareAxis.THREAD)]
        with w.launch("fill_buckets", axes) as (block, thread):
            batch, chunk = block // self.chunks, block % self.chunks
            total, before = _counter(w, "total"), _counter(w, "before")
            own = minimum(thread, index(self.buckets - 1))
            loaded = w.allocate("loaded", (COUNTS,), int32, MemoryScope.REGISTER)
            with w.loop("round", -(-self.chunks // COUNTS)) as turn:
                with w.unrolled("n", COUNTS) as n:
                    other = turn * COUNTS + n
                    count = Load(counts, (batch, minimum(other, index(self.chunks - 1)), own))
                    exists = logical_and(other < self.chunks, thread < self.buckets)
                    w.store(loaded, (n,), Select(exists, count, _int32(0)))
                with w.unrolled("n", COUNTS) as n:
                    count = Load(loaded, (n,))
                    total.set(total.value + count)
                    before.set(before.value + Select(turn * COUNTS + n < chunk, count, _int32(0)))
            begin = self._sum_before(thread, threads, total.value)
            with w.when(logical_and(Compare(CompareOp.EQ, chunk, index(0)), thread < self.buckets)):
                w.store(first, (batch, thread), begin.value)
                with w.when(Compare(CompareOp.EQ, thread, index(self.buckets - 1))):
                    w.store(first, (batch, index(self.buckets)), begin.value + total.value)
            begin.set(begin.value + before.value)
            staged = self._staged_buckets(batch, chunk, thread, threads)
            with _own_terms(w, staged, thread, None) as place:
                w.store(order, (batch, self._within(begin.value)), Cast(chunk * self.chunk + place, int32))
                begin.set(begin.value + _int32(1))

    def _staged_buckets(self, batch: Expr, chunk: Expr, thread: Expr, threads: int) -> Buffer:
        """Return the buckets of the terms of a chunk in shared memory, -1 for those of none."""
        w, p = self.w, self.problem
        room = -(-self.chunk // LANES) * LANES
        staged = w.allocate("staged", (room,), int32, MemoryScope.SHARED)
        with w.loop("n", -(-room // threads), LoopKind.SERIAL) as n:
            place = n * threads + thread
            term = chunk * self.chunk + place
            key = self._key(batch, minimum(term, index(p.terms - 1)))
            exists = logical_and(place < self.chunk, term < p.terms, key >= 0)
            with w.when(place < room):
                w.store(staged, (place,), Cast(Select(exists, key // self.bucket_keys, index(-1)), int32))
        w.barrier()
        return staged

    def _sort_buckets(self, bucket_first: Buffer, bucket_order: Buffer) -> None:
        w, p, threads = self.w, self.problem, _whole_warps(self.bucket_keys)
        axes = [("block", p.batches * self.buckets, HardwareAxis.GRID_X), ("key", threads, HardwareAxis.THREAD)]
        with w.launch("sort_buckets", axes) as (block, thread):
            batch, bucket = block // self.buckets, block % self.buckets
            bounds = w.allocate("bounds", (2,), int32, MemoryScope.REGISTER)
            for n in (0, 1):
                w.store(bounds, (index(n),), Load(bucket_first, (batch, bucket + n)))
            begin, end = (self._within(Load(bounds, (index(n),)), last=1) for n in (0, 1))
            length = maximum(end - begin, index(0))
            keys = w.allocate("keys", (ROUND,), int32, MemoryScope.SHARED)
            numbers = w.allocate("numbers", (ROUND,), int32, MemoryScope.SHARED)
            number = w.allocate("number", (), int32, MemoryScope.REGISTER)

            @contextmanager
            def rounds(name: str) -> Iterator[Expr]:
                """What is done with the terms in shared memory in each round, given how many they are."""
                with w.loop(name, -(-p.terms // ROUND)) as turn, w.when(turn < (length + (ROUND - 1)) // ROUND):
                    left = minimum(length - turn * ROUND, index(ROUND))
                    with w.loop("n", -(-ROUND // threads)) as n:
                        place = n * threads + thread
                        with w.when(place < minimum((left + (LANES - 1)) // LANES * LANES, index(ROUND))):
                            own = Load(bucket_order, (batch, self._within(begin + turn * ROUND + place)))
                            w.store(number, (), Select(place < left, own, _int32(0)))
                            key = self._key(batch, self._within(Load(number, ()))) - bucket * self.bucket_keys
                            w.store(keys, (place,), Cast(Select(place < left, key, index(-1)), int32))
                            w.store(numbers, (place,), Load(number, ()))
                    w.barrier()
                    yield left
                    w.barrier()

            count = _counter(w, "count")
            with rounds("counted") as left, _own_terms(w, keys, thread, left):
                count.set(count.value + _int32(1))
            place = self._sum_before(thread, threads, count.value)
            place.set(place.value + Cast(begin, int32))
            key = bucket * self.bucket_keys + thread
            with w.when(logical_and(thread < self.bucket_keys, key < p.keys)):
                w.store(self.first, (batch, key), place.value)
                with w.when(Compare(CompareOp.EQ, key, index(p.keys - 1))):
                    w.store(self.first, (batch, index(p.keys)), place.value + count.value)
            with rounds("sorted") as left, _own_terms(w, keys, thread, left) as own:
                w.store(self.order, (batch, self._within(place.value)), Load(numbers, (own,)))
                place.set(place.value + _int32(1))

    def _sum_before(self, thread: Expr, threads: int, value: Expr) -> "_Counter":
        """Return the sum of the values of the threads before this one."""
        w = self.w
        values = w.allocate("values", (threads,), int32, MemoryScope.SHARED)
        w.store(values, (thread,), value)
        w.barrier()
        total = _counter(w, "begin")
        vector = w.allocate("vector", (LANES,), int32, MemoryScope.REGISTER)
        with w.loop("others", threads // LANES) as others:
            w.store(vector, (_ramp(),), Load(values, (Ramp(others * LANES, 1, LANES),)))
            with w.unrolled("n", LANES) as n:
                is_before = others * LANES + n < thread
                total.set(total.value + Select(is_before, Load(vector, (n,)), _int32(0)))
        return total

    def _within(self, number: Expr, last: int = 0) -> Expr:
        """Return a loaded or computed number as an index of ``order``, which it is inside of; with ``last`` it may be
        the end."""
        wide = number if number.dtype == INDEX else Cast(number, INDEX)
        return minimum(maximum(wide, index(0)), index(self.problem.terms - 1 + last))


@contextmanager
def _own_terms(w: FreshNameWriter, staged: Buffer, own: Expr, count: Expr | None) -> Iterator[Expr]:
    """What a thread does with each of the terms in shared memory that are its ``own``, given their place there.
    ``count``: how many there are, if not all; those behind them up to a whole vector are nobody's."""
    vector = w.allocate("vector", (LANES,), int32, MemoryScope.REGISTER)
    number = Cast(own, int32)
    with w.loop("vectors", staged.shape[0] // LANES) as vectors:
        with w.when(None if count is None else vectors < (count + (LANES - 1)) // LANES):
            w.store(vector, (_ramp(),), Load(staged, (Ramp(vectors * LANES, 1, LANES),)))
            with w.unrolled("n", LANES) as n:
                with w.when(Compare(CompareOp.EQ, Load(vector, (n,)), number)):
                    yield vectors * LANES + n


@dataclass(frozen=True, slots=True)
class _Counter:
    """An int32 in a register of each thread."""

    w: FreshNameWriter
    buffer: Buffer

    @property
    def value(self) -> Expr:
        return Load(self.buffer, ())

    def set(self, value: Expr) -> None:
        self.w.store(self.buffer, (), value)


def _counter(w: FreshNameWriter, name: str) -> _Counter:
    """Return one that is 0 at first."""
    counter = _Counter(w, w.allocate(name, (), int32, MemoryScope.REGISTER))
    counter.set(_int32(0))
    return counter


def _int32(value: int) -> Expr:
    return const(value, int32)


def _ramp() -> Expr:
    return Ramp(index(0), 1, LANES)


def _whole_warps(threads: int) -> int:
    return -(-threads // 32) * 32
