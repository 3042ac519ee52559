"""Lines that several CTAs share: what they find of their parts, and how they hand it to each other (see ``kernel``)."""

from dataclasses import dataclass

from ....core.dtypes import int64
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Expr,
    Load,
    Select,
    const,
    index,
    logical_and,
    maximum,
    minimum,
)
from ....ir.gpu.flagged import MOST_PEEKED, FlaggedLoad, FlaggedPeek, FlaggedStore, flagged_words
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.stmt import HardwareAxis
from ....te.functions import equal
from ..block_reduce import butterfly, halvings
from .lines import LineChunks, Lines

REDUCED = "reduce_parts"
"""The launch that reduces the parts of lines, ahead of the one that scans them, has this name."""

CLEARED, CLEARING_THREADS = "clear_parts", 256
"""The launch that clears the words of parts has this name, and so many threads a block."""


@dataclass(frozen=True, slots=True)
class PartExchange:
    """``parts``: workspace with what the CTAs that share lines have found. ``scratch``: shared memory in which a CTA
    combines it."""

    parts: Buffer
    scratch: Buffer | None


class SharedLines(LineChunks):
    """What the CTAs that share lines do for each other."""

    def _parts(self) -> Buffer:
        """Workspace for what CTAs know of their parts of lines, or with a cooperative launch of each chunk."""
        s = self.s
        lines = s.blocks // s.ctas_per_line * s.line_vectors * self.width
        parts = s.ctas_per_line * s.chunks if s.cooperative or s.look_back else s.ctas_per_line - 1
        shape = (lines, parts) if self.p.along_rows else (parts, lines)
        if s.look_back:
            kinds = 2 if s.single_pass else 1  # the sum of a chunk, and that of all until its end
            return Buffer(self.w.fresh("parts"), (*shape, kinds * flagged_words(self.dtype)), int64)
        return Buffer(self.w.fresh("parts"), shape, self.dtype)

    def _part(self, lines: Lines, v: Expr, number: Expr) -> tuple[Expr, ...]:
        """Return where the workspace has part ``number`` of line ``v`` of a thread, or the first word of it."""
        line = lines.first + v
        place = (line, number) if self.p.along_rows else (number, line)
        return (*place, index(0)) if self.s.look_back else place

    def _write_clearing(self, parts: Buffer) -> None:
        """The launch that clears all words."""
        words = Buffer(parts.name, (parts.elements,), int64)
        blocks = -(-parts.elements // CLEARING_THREADS)
        bounds = [("block", blocks, HardwareAxis.GRID_X), ("thread", CLEARING_THREADS, HardwareAxis.THREAD)]
        with self.w.launch(CLEARED, bounds) as (block, thread):
            word = block * CLEARING_THREADS + thread
            with self.w.when(word < parts.elements if parts.elements % CLEARING_THREADS else None):
                self.w.store(words, (word,), const(0, int64))

    def _clear(self, lines: Lines, parts: Buffer) -> None:
        """Clear the words of all chunks of the CTA, so that they have no flags."""
        s, w = self.s, self.w
        with w.shared_out("cleared", s.chunks, s.line_threads, lines.rank) as chunk, self._lines_of_thread() as v:
            *place, first = self._part(lines, v, self._number(lines, chunk))
            with w.unrolled("word", parts.shape[-1]) as word:
                w.store(parts, (*place, first + word), const(0, int64))

    def _scratch(self) -> Buffer | None:
        """Shared memory in which the segments of a line exchange a value; None where there is one segment."""
        s = self.s
        shape = (s.segments, s.line_vectors * self.width)
        return self.w.allocate("scratch", shape, self.dtype, MemoryScope.SHARED) if s.segments > 1 else None

    def _write_reduction(self, parts: Buffer) -> None:
        """The launch that reduces the parts of all CTAs but the last one of each line."""
        w, s = self.w, self.s
        with self._launch(REDUCED, s.ctas_per_line - 1) as lines:
            scratch = self._scratch()
            own = self._register("own", self.width)
            with self._lines_of_thread() as v:
                w.store(own, (v,), self.how.identity[0])
            with self._each_chunk(lines) as (chunk, loaded), w.unrolled("item", s.items) as n:
                position = self._position(lines, chunk, n)
                with w.when(self._inside(position)), w.unrolled("v", s.vector) as v:
                    line = (index(0),) if self.p.along_rows else (v,)
                    value = self._value(lines, loaded, n, position, self._element(v))
                    w.store(own, line, self.how.accumulate([Load(own, line)], value, index(0))[0])
            self._store_part(lines, parts, self._of_line(lines, own, scratch), lines.cta)

    def _store_part(self, lines: Lines, parts: Buffer, whole: Buffer, number: Expr) -> None:
        with self.w.when(equal(lines.rank, 0)), self._lines_of_thread() as v:
            place, value = self._part(lines, v, number), Load(whole, (v,))
            if self.s.look_back:
                self.w.emit(FlaggedStore(parts, place, value))
            else:
                self.w.store(parts, place, value)

    def _of_line(self, lines: Lines, own: Buffer, scratch: Buffer | None) -> Buffer:
        """Return what the values ``own`` of all threads of each line combine to, in the same order in every thread."""
        s, w = self.s, self.w
        step = 1 if self.p.along_rows else s.line_vectors
        with self._lines_of_thread() as v:
            butterfly(w, "other", [own], self.how.combine, [n * step for n in halvings(self.lanes)], (v,))
        if scratch is None:
            return own
        whole = self._register("whole", self.width)
        place = lines.slot * self.width
        first = equal(lines.lane, 0) if self.lanes > 1 else None
        with w.when(first), self._lines_of_thread() as v:
            w.store(scratch, (lines.segment, place + v), Load(own, (v,)))
        w.barrier()
        with self._lines_of_thread() as v:
            w.store(whole, (v,), Load(scratch, (index(0), place + v)))
        with w.unrolled("number", s.segments - 1) as n, self._lines_of_thread() as v:
            w.store(whole, (v,), self._combined(Load(whole, (v,)), Load(scratch, (n + 1, place + v))))
        return whole

    def _of_ctas_before(self, lines: Lines, exchange: PartExchange, number: Expr) -> Buffer:
        """Return what the parts before part ``number`` combine to: those of the other CTAs, one of each."""
        s, w, others = self.s, self.w, self.s.ctas_per_line - 1
        own, count = self._register("own", self.width), -(-others // s.line_threads)
        with self._lines_of_thread() as v:
            w.store(own, (v,), self.how.identity[0])

        def part_of(n: Expr) -> tuple[Expr, Expr]:
            """Return a part that the thread adds up, and whether it is there."""
            term = n * s.line_threads + lines.rank
            part = number + term - others
            exists = part >= 0 if others % s.line_threads == 0 else logical_and(term < others, part >= 0)
            return maximum(minimum(part, number - 1), index(0)), exists

        words, peeked = flagged_words(self.dtype), None
        if s.look_back and self.p.along_rows and 1 < count * words <= MOST_PEEKED:
            peeked = w.allocate("peeked", (count, self.width, words), int64, MemoryScope.REGISTER)
            with w.unrolled("peek", count) as n:
                there, exists = part_of(n)
                with w.when(exists), self._lines_of_thread() as v:
                    place = self._part(lines, v, there)
                    w.emit(FlaggedPeek(peeked, (n, v, index(0)), exchange.parts, place, words))
        with w.unrolled("part", count) as n:
            there, exists = part_of(n)
            with self._lines_of_thread() as v:
                place = self._part(lines, v, there)
                if s.look_back:
                    seen = () if peeked is None else (n, v, index(0))
                    awaited = self._register("awaited", 1)
                    w.store(awaited, (index(0),), self.how.identity[0])
                    with w.when(exists):
                        w.emit(FlaggedLoad(awaited, (index(0),), exchange.parts, place, peeked, seen))
                    value: Expr = Load(awaited, (index(0),))
                else:  # no branch, so that all loads are under way at once
                    value = Select(exists, Load(exchange.parts, place), self.how.identity[0])
                w.store(own, (v,), self._combined(Load(own, (v,)), value))
        return self._of_line(lines, own, exchange.scratch)

    def _exchange(
        self, lines: Lines, chunk: Expr, exchange: PartExchange, prefix: Buffer, whole: Buffer, carry: Buffer
    ) -> None:
        """Tell the other CTAs what a chunk combines to. ``prefix``, what is before a segment in the chunk, grows by
        what is before the chunk."""
        w, number = self.w, self._number(lines, chunk)
        if self.s.single_pass:
            self._store_part(lines, exchange.parts, whole, number)
            self._look_back(lines, number, exchange, prefix, whole)
            return
        if self.s.look_back:
            with w.when(equal(chunk, 0)):
                w.emit(GridBarrierWait())  # all words are clear
            self._store_part(lines, exchange.parts, whole, number)
        else:
            self._store_part(lines, exchange.parts, whole, number)
            w.emit(GridBarrierArrive())
            w.emit(GridBarrierWait())
        between = self._of_ctas_before(lines, exchange, number)
        with self._lines_of_thread() as v:
            w.store(carry, (v,), self._combined(Load(carry, (v,)), Load(between, (v,))))
            w.store(prefix, (v,), self._combined(Load(carry, (v,)), Load(prefix, (v,))))
            w.store(carry, (v,), self._combined(Load(carry, (v,)), Load(whole, (v,))))

    def _look_back(self, lines: Lines, number: Expr, exchange: PartExchange, prefix: Buffer, whole: Buffer) -> None:
        """``prefix`` grows by what is before chunk ``number``, and all that is until its end is stored with a flag."""
        s, w, words, zero = self.s, self.w, flagged_words(self.dtype), index(0)
        own, count = self._register("own", self.width), s.window // s.line_threads
        with self._lines_of_thread() as v:
            w.store(own, (v,), self.how.identity[0])

        def place_of(n: Expr, v: Expr) -> tuple[tuple[Expr, ...], Expr]:
            """Return the words of a part that the thread adds up, and whether there is such a part."""
            term = n * s.line_threads + lines.rank
            *place, _ = self._part(lines, v, number + term - s.window)
            return (*place, Select(equal(term, 0), index(words), zero)), number + term >= s.window

        peeked = None
        if self.p.along_rows and 1 < count * words <= MOST_PEEKED:
            peeked = w.allocate("peeked", (count, self.width, words), int64, MemoryScope.REGISTER)
            with w.unrolled("peek", count) as n, self._lines_of_thread() as v:
                place, exists = place_of(n, v)
                with w.when(exists):
                    w.emit(FlaggedPeek(peeked, (n, v, zero), exchange.parts, place, words))
        with w.unrolled("part", count) as n, self._lines_of_thread() as v:
            place, exists = place_of(n, v)
            awaited = self._register("awaited", 1)
            w.store(awaited, (zero,), self.how.identity[0])
            with w.when(exists):
                seen = () if peeked is None else (n, v, zero)
                w.emit(FlaggedLoad(awaited, (zero,), exchange.parts, place, peeked, seen))
            w.store(own, (v,), self._combined(Load(own, (v,)), Load(awaited, (zero,))))
        before = self._of_line(lines, own, exchange.scratch)
        with w.when(equal(lines.rank, 0)), self._lines_of_thread() as v:
            *at, _ = self._part(lines, v, number)
            until = self._combined(Load(before, (v,)), Load(whole, (v,)))
            w.emit(FlaggedStore(exchange.parts, (*at, index(words)), until))
        with self._lines_of_thread() as v:
            w.store(prefix, (v,), self._combined(Load(before, (v,)), Load(prefix, (v,))))
