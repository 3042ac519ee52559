"""Sorts the numbers of terms by the element that they belong to: a stable counting sort without atomics.

    count_terms    counts[chunk, bucket] = how many terms of the chunk belong to elements of the bucket
    fill_buckets   order[first[bucket] + counts of chunks before + …] = number of a term, in ascending order
    sort_buckets   the same for the elements of each bucket, where a bucket has several

Element ``key`` is number ``key // buckets`` of bucket ``key % buckets``, so that neighbours, which are often as
frequent, are in different ones. ``rank`` says how a block ranks its terms.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ....core.dtypes import INDEX, int32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Cast, Expr, Load, Ramp, Select, index, maximum, minimum
from ....ir.rewrite import substitute
from ....te.functions import all_of, any_of, equal
from ....te.scatter import usual_count
from ...problems.scatter import ScatterProblem
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ..launch_axes import warp_axes
from .rank import VECTOR, TermRanks, int32_of, ranking_block

MOST_SHARES = 16
"""How many threads share the counts of a vector of buckets, at most."""
MOST_WARPS, BUCKET_WARPS = 16, 8
"""Warps of a block that sorts a chunk, at most, and of one that sorts a bucket: of these, a multiprocessor has
several."""
LOADED_COUNTS = 16
"""Vectors of counts that a thread loads before it adds up the first."""

Sum = Callable[[Expr], Expr]
"""A sum for a bucket."""


class TermSort:
    """The launches that sort, and what they leave: ``order`` is int32[batches, terms]. The terms of an element are
    those from ``first[batch, place]`` to ``first[batch, place + 1]``, where ``place`` is that of the element."""

    def __init__(self, w: FreshNameWriter, problem: ScatterProblem, chunks: int, buckets: int) -> None:
        """``chunks``: into how many parts the terms of a batch are cut. ``buckets``: how many buckets elements are in;
        as many as elements, or fewer."""
        self.w, self.p, self.chunks, self.buckets = w, problem, chunks, buckets
        self.chunk, self.bucket_keys = -(-problem.terms // chunks), -(-problem.keys // buckets)
        self._chunk_block = ranking_block(self.chunk, buckets, MOST_WARPS)
        self._row = -(-buckets // VECTOR) * VECTOR
        batches, places = problem.batches, buckets * self.bucket_keys
        self._counts = self._global("counts", batches, chunks, self._row)
        self.first = self._global("first", batches, places + 1)
        self.order = self._global("order", batches, problem.terms)
        self.workspace: tuple[Buffer, ...] = (self._counts, self.first, self.order)

    def _global(self, name: str, *shape: int) -> Buffer:
        return Buffer(self.w.fresh(name), shape, int32)

    def place(self, key: Expr) -> Expr:
        """Return the number of an element in the order in which terms are sorted."""
        return key if self.bucket_keys == 1 else key % self.buckets * self.bucket_keys + key // self.buckets

    def write(self) -> None:
        self._count()
        if self.bucket_keys == 1:  # each element has a bucket of its own
            self._fill(self.first, self.order)
            return
        first = self._global("bucket_first", self.p.batches, self.buckets + 1)
        order = self._global("bucket_order", self.p.batches, self.p.terms)
        self._fill(first, order)
        self._sort_buckets(first, order)
        self.workspace += (first, order)

    def key(self, batch: Expr, term: Expr) -> Expr:
        """Return the element of a term that exists, -1 for none."""
        s = self.p.scatter
        at = {**axis_indices(batch, s.batch), **axis_indices(term, s.stage.reduce_axes)}
        return Select(substitute(s.is_inside, at), substitute(s.key, at), index(-1))

    @contextmanager
    def _launch(
        self, name: str, part: str, parts: int, block: tuple[int, int], buckets: int
    ) -> Iterator[tuple[Expr, Expr, TermRanks]]:
        """A launch with a block for each of ``parts`` parts of each batch. ``block``: its warps, and how many terms a
        thread has at a time. Give the numbers of batch and part, and what ranks."""
        warps, items = block
        axes = warp_axes(self.p.batches * parts, warps, block=part)
        with self.w.launch(name, axes) as (number, warp, lane):
            yield number // parts, number % parts, TermRanks(self.w, warp, lane, warps, items, buckets)

    @contextmanager
    def _rounds_of_chunk(self, batch: Expr, chunk: Expr, ranks: TermRanks, *, loaded: bool = False) -> Iterator[Expr]:
        """What is done with each round of the terms of a chunk, once they are counted; give the number of the first.
        ``loaded``: their buckets are known, where there is one round."""
        with self.w.loop("round", self._chunk_rounds(ranks)) as turn:
            if not loaded:
                self._load_buckets(batch, chunk, ranks, turn)
            ranks.count()
            ranks.add_counts()
            yield chunk * self.chunk + turn * ranks.round

    def _chunk_rounds(self, ranks: TermRanks) -> int:
        return -(-self.chunk // ranks.round)

    def _load_buckets(self, batch: Expr, chunk: Expr, ranks: TermRanks, turn: Expr) -> None:
        w, p = self.w, self.p
        with w.unrolled("item", ranks.items) as item:
            place = turn * ranks.round + ranks.place(item)
            term = chunk * self.chunk + place
            key = self.key(batch, minimum(term, index(p.terms - 1)))
            exists = all_of(place < self.chunk, term < p.terms, key >= 0)
            ranks.set_bucket(item, Select(exists, key % self.buckets, index(-1)))

    def _count(self) -> None:
        w = self.w
        with self._launch("count_terms", "chunk", self.chunks, self._chunk_block, self.buckets) as (
            batch,
            chunk,
            ranks,
        ):
            with w.shared_out("bucket", self.buckets, ranks.threads, ranks.thread) as bucket:
                w.store(ranks.begin, (bucket,), int32_of(0))
            with self._rounds_of_chunk(batch, chunk, ranks):
                pass
            with w.shared_out("bucket", self._row, ranks.threads, ranks.thread) as bucket:
                total = Load(ranks.begin, (minimum(bucket, index(self.buckets - 1)),))
                w.store(self._counts, (batch, chunk, bucket), total)

    def _fill(self, first: Buffer, order: Buffer) -> None:
        """Terms of a bucket begin behind those of buckets before it, and behind those of chunks before this one."""
        w = self.w
        with self._launch("fill_buckets", "chunk", self.chunks, self._chunk_block, self.buckets) as (
            batch,
            chunk,
            ranks,
        ):
            loaded = self._chunk_rounds(ranks) == 1
            if loaded:  # while counts are on their way
                self._load_buckets(batch, chunk, ranks, index(0))
            total, before = self._sums_of_chunks(batch, chunk, ranks)
            with w.shared_out("bucket", self.buckets + 1, ranks.threads, ranks.thread) as bucket:
                w.store(ranks.begin, (bucket,), total(bucket))
            ranks.scan(ranks.begin)
            with w.when(equal(chunk, 0)):
                with w.shared_out("bucket", self.buckets + 1, ranks.threads, ranks.thread) as bucket:
                    w.store(first, (batch, bucket), Load(ranks.begin, (bucket,)))
            with w.shared_out("bucket", self.buckets, ranks.threads, ranks.thread) as bucket:
                w.store(ranks.begin, (bucket,), Load(ranks.begin, (bucket,)) + before(bucket))
            rounds = self._rounds_of_chunk(batch, chunk, ranks, loaded=loaded)
            with rounds as start, w.unrolled("item", ranks.items) as item:
                with w.when(ranks.bucket(item) >= 0):
                    w.store(order, (batch, self.within(ranks.rank(item))), Cast(start + ranks.place(item), int32))

    def _sums_of_chunks(self, batch: Expr, chunk: Expr, ranks: TermRanks) -> tuple[Sum, Sum]:
        """Return how many terms of a bucket there are, and how many in chunks before this one; 0 for the bucket behind
        the last."""
        w, vectors = self.w, self._row // VECTOR
        shares = max(1, min(MOST_SHARES, ranks.threads // vectors, self.chunks))
        each = -(-self.chunks // shares)
        at_once = min(LOADED_COUNTS, each)
        sums = w.allocate("sums", (2, shares, self._row), int32, MemoryScope.SHARED)
        with w.shared_out("vector", shares * vectors, ranks.threads, ranks.thread) as number:
            share, place = number // vectors, Ramp(number % vectors * VECTOR, 1, VECTOR)
            loaded = w.allocate("loaded", (at_once, VECTOR), int32, MemoryScope.REGISTER)
            own = w.allocate("own_sums", (2, VECTOR), int32, MemoryScope.REGISTER)
            lanes = Ramp(index(0), 1, VECTOR)
            for kind in (0, 1):
                with w.unrolled("lane", VECTOR) as lane:
                    w.store(own, (index(kind), lane), int32_of(0))
            with w.loop("turn", -(-each // at_once)) as turn:
                with w.unrolled("n", at_once) as n:
                    other = minimum((turn * at_once + n) * shares + share, index(self.chunks - 1))
                    w.store(loaded, (n, lanes), Load(self._counts, (batch, other, place)))
                for kind, end in enumerate((index(self.chunks), chunk)):
                    with w.unrolled("n", at_once) as n, w.unrolled("lane", VECTOR) as lane:
                        is_one = (turn * at_once + n) * shares + share < end
                        found = Select(is_one, Load(loaded, (n, lane)), int32_of(0))
                        w.store(own, (index(kind), lane), Load(own, (index(kind), lane)) + found)
            for kind in (0, 1):
                w.store(sums, (index(kind), share, place), Load(own, (index(kind), lanes)))
        w.barrier()

        def sum_(kind: int) -> Sum:
            def of(bucket: Expr) -> Expr:
                total = w.allocate("sum", (), int32, MemoryScope.REGISTER)
                w.store(total, (), int32_of(0))
                with w.unrolled("share", shares) as share:
                    own = Load(sums, (index(kind), share, minimum(bucket, index(self.buckets - 1))))
                    w.store(total, (), Load(total, ()) + own)
                return Select(bucket < self.buckets, Load(total, ()), int32_of(0))

            return of

        return sum_(0), sum_(1)

    def _sort_buckets(self, bucket_first: Buffer, bucket_order: Buffer) -> None:
        """The terms of a bucket are counted in rounds, and ranked in rounds again, where one is not enough."""
        w, p, count = self.w, self.p, self.bucket_keys + 1
        block = ranking_block(usual_count(p.terms, self.buckets), self.bucket_keys, BUCKET_WARPS)
        with self._launch("sort_buckets", "bucket", self.buckets, block, self.bucket_keys) as (batch, bucket, ranks):
            bounds = w.allocate("bounds", (2,), int32, MemoryScope.REGISTER)
            for n in (0, 1):
                w.store(bounds, (index(n),), Load(bucket_first, (batch, bucket + n)))
            begin, end = (self.within(Load(bounds, (index(n),)), last=1) for n in (0, 1))
            length = maximum(end - begin, index(0))
            numbers = w.allocate("numbers", (ranks.items,), int32, MemoryScope.REGISTER)
            starts = w.allocate("starts", (count,), int32, MemoryScope.SHARED)

            def count_round(turn: Expr) -> None:
                with w.unrolled("item", ranks.items) as item:
                    place = turn * ranks.round + ranks.place(item)
                    number = Load(bucket_order, (batch, self.within(begin + place)))
                    w.store(numbers, (item,), Select(place < length, number, int32_of(0)))
                with w.unrolled("item", ranks.items) as item:
                    key = self.key(batch, self.within(Load(numbers, (item,))))
                    exists = all_of(turn * ranks.round + ranks.place(item) < length, key >= 0)
                    ranks.set_bucket(item, Select(exists, key // self.buckets, index(-1)))
                ranks.count()
                ranks.add_counts()

            @contextmanager
            def rounds(name: str) -> Iterator[Expr]:
                with w.loop(name, -(-p.terms // ranks.round)) as turn:
                    with w.when(turn < (length + (ranks.round - 1)) // ranks.round):
                        yield turn

            with w.shared_out("key", count, ranks.threads, ranks.thread) as key:
                w.store(ranks.begin, (key,), int32_of(0))
            with rounds("counted") as turn:
                count_round(turn)
            with w.shared_out("key", count, ranks.threads, ranks.thread) as key:
                w.store(starts, (key,), Load(ranks.begin, (key,)))
                w.store(ranks.begin, (key,), int32_of(0))
            ranks.scan(starts)
            with w.shared_out("key", count, ranks.threads, ranks.thread) as key:
                start = Cast(begin, int32) + Load(starts, (key,))
                is_end = all_of(equal(key, self.bucket_keys), equal(bucket, self.buckets - 1))
                with w.when(any_of(key < self.bucket_keys, is_end)):
                    w.store(self.first, (batch, bucket * self.bucket_keys + key), start)
            with rounds("sorted") as turn:
                with w.when(length > ranks.round):
                    count_round(turn)
                with w.unrolled("item", ranks.items) as item, w.when(ranks.bucket(item) >= 0):
                    start = ranks.rank(item, starts)
                    place = self.within(begin + Cast(start, INDEX))
                    w.store(self.order, (batch, place), Load(numbers, (item,)))

    def within(self, number: Expr, last: int = 0) -> Expr:
        """Return a loaded or computed number as an index of ``order``, which it is inside of; with ``last`` it may be
        the end."""
        wide = number if number.dtype == INDEX else Cast(number, INDEX)
        return minimum(maximum(wide, index(0)), index(self.p.terms - 1 + last))
