"""Writes the launches of a scan. A CTA does this with its lines, or its part of them, chunk by chunk:

    load the vectors of the chunk to registers (those of the first one, or with two stages those of the next one)
    every thread: scan its elements
    the lanes of a line: scan their sums by shuffles, rows item after item; all of them know the sum of their segment
    store the sums of all segments in shared memory; barrier; every thread adds up those before its own, and the carry
    combine each element with the prefix of its vector; compute the outputs and store them
    the carry becomes the sum of all segments

Where several CTAs share a line (``LineSplit``), a carry also has what is before the chunks of a CTA:

    reduce_then_scan    a launch before has stored the sum of the part of each CTA; each thread adds up some of those
                        before its own CTA, and all threads combine what they found
    cooperative         neighbouring chunks belong to different CTAs, which store the sums of their chunks ahead
                        of a barrier of the grid; each then adds up those behind its own last chunk and before this one
    decoupled_lookback  the same sums, but each of them has a flag, and nobody waits for those that it does not add up
    single_pass         a CTA has one chunk. It adds up the sums of a window before it, the first of which is that of
                        all chunks until there, and stores that of all until its own

In a reversed scan the same threads take the elements from the other end, so that vectors stay contiguous.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ....core.dtypes import int64
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    WARP_LANES,
    Expr,
    Load,
    Select,
    Shuffle,
    ShuffleMode,
    const,
    index,
    logical_and,
    maximum,
    minimum,
)
from ....ir.gpu.flagged import MOST_PEEKED, FlaggedLoad, FlaggedPeek, FlaggedStore, flagged_words
from ....ir.gpu.grid_barrier import GridBarrierArrive, GridBarrierWait
from ....ir.rewrite import map_loads
from ....ir.stmt import HardwareAxis, Kernel
from ....te.functions import equal
from ....te.workload import Axis, Stage
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.scan import ScanProblem
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, load_registers
from ...tile.stage_body import scalar_at
from ..block_reduce import butterfly, halvings
from .sizes import ScanSizes

REDUCED = "reduce_parts"
"""The launch that reduces the parts of lines, ahead of the one that scans them, has this name."""

CLEARED, CLEARING_THREADS = "clear_parts", 256
"""The launch that clears the words of parts has this name, and so many threads a block."""

Loaded = Mapping[MaskedLoad, RegisterLoad]
"""What the masked loads of a problem are in registers."""


def scan_kernel(problem: ScanProblem, sizes: ScanSizes[int]) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``space``)."""
    return _ScanWriter(problem, sizes).kernel()


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a thread. ``at``: the indices of the other axes than the scanned one, at the first of them.
    ``exists``: whether what it computes is to be stored; None: it is. ``slot``: where its lines are among those of the
    CTA. ``rank``: its number among the threads that share them. ``segment``: which segment of a chunk it has a part of.
    ``lane``: its number among the lanes that share the segment, and ``warp_lane`` in its warp. ``cta``: the number of
    the CTA among those that share the lines. ``first``: the number of the first line, also of one that does not exist.
    """

    at: Mapping[str, Expr]
    exists: Expr | None
    slot: Expr
    rank: Expr
    segment: Expr
    lane: Expr
    warp_lane: Expr
    cta: Expr
    first: Expr


@dataclass(frozen=True, slots=True)
class _Exchange:
    """``parts``: workspace with what the CTAs that share lines have found. ``scratch``: shared memory in which a CTA
    combines it."""

    parts: Buffer
    scratch: Buffer | None


@dataclass(frozen=True, slots=True)
class _Before:
    """Where a thread learns what is before its part of a chunk: from the ``shared`` totals of segments, from the
    ``carry`` of the chunks before, and in a cooperative launch from other CTAs."""

    shared: Buffer | None
    carry: Buffer | None
    exchange: _Exchange | None


class _ScanWriter:
    def __init__(self, problem: ScanProblem, sizes: ScanSizes[int]) -> None:
        self.p, self.s = problem, sizes
        buffers = (*problem.workload.inputs, *(stage.tensor for stage in problem.outputs))
        taken = {b.name for b in buffers} | {a.name for a in problem.axes}
        self.w = FreshNameWriter(taken)
        self.how = problem.accumulation
        self.dtype = self.how.accumulator_dtype
        self.width = 1 if problem.along_rows else sizes.vector
        """How many lines a thread has."""
        self.lanes = sizes.line_threads // sizes.segments
        """How many lanes share a segment."""
        large = [b.name for b in buffers if b.elements >= problem.result.elements]
        self.evict_first = tuple(dict.fromkeys(large))

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        parts = self._parts() if s.ctas_per_line > 1 else None
        twice = parts is not None and not s.cooperative and not s.look_back
        if parts is not None and s.single_pass:
            self._write_clearing(parts)
        if parts is not None and twice:
            self._write_reduction(parts)
        # What the launch before has read last is still in L2, so that it is read first.
        with self._launch(KERNEL_NAME, s.ctas_per_line, self.evict_first, backwards=twice) as lines:
            shared = None
            if s.segments > 1:
                slots = 2 if s.chunks > 1 else 1
                shape = (slots, s.segments, s.line_vectors * self.width)
                shared = w.allocate("totals", shape, self.dtype, MemoryScope.SHARED)
            exchange = None if parts is None else _Exchange(parts, self._scratch())
            if parts is not None and s.look_back and s.cooperative:
                self._clear(lines, parts)
                w.emit(GridBarrierArrive())
            carry = None
            if s.chunks > 1 or exchange is not None:
                carry = self._register("carry", self.width)
                first = self._of_ctas_before(lines, exchange, lines.cta) if exchange is not None and twice else None
                with self._lines_of_thread() as v:
                    w.store(carry, (v,), self.how.identity[0] if first is None else Load(first, (v,)))
            before = _Before(shared, carry, None if twice else exchange)
            with self._each_chunk(lines) as (chunk, loaded):
                self._scan(lines, loaded, chunk, before)
        workspace = () if parts is None else (parts,)
        return kernel_of(p.workload, w.finish(), workspace)

    @contextmanager
    def _launch(
        self, name: str, ctas_per_line: int, evict_first: tuple[str, ...] = (), *, backwards: bool = False
    ) -> Iterator[_Lines]:
        """A launch of so many CTAs for the same lines. ``backwards``: the first CTA has the last part of the last
        lines."""
        s = self.s
        ctas = s.blocks // s.ctas_per_line * ctas_per_line
        bounds = [("block", ctas, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with self.w.launch(name, bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first) as (block, thread):
            yield self._lines(index(ctas - 1) - block if backwards else block, thread, ctas_per_line)

    @contextmanager
    def _each_chunk(self, lines: _Lines) -> Iterator[tuple[Expr, Loaded]]:
        """A block of statements for each chunk of the lines of a CTA, and what its body loads."""
        p, s, w = self.p, self.s, self.w
        if s.chunks == 1:
            loaded = self._registers(p.body_loads)
            self._load(loaded, lines, index(0))
            yield index(0), loaded
            return
        ahead: Loaded = {}
        if s.stages > 1:
            ahead = self._registers(p.body_loads)
            self._load(ahead, lines, index(0))
        with w.loop("chunk", s.chunks) as chunk:
            loaded = self._registers(p.body_loads)
            if s.stages > 1:
                self._copy(ahead, loaded, lines, chunk)
                with w.when(chunk + 1 < s.chunks):
                    self._load(ahead, lines, chunk + 1)
            else:
                self._load(loaded, lines, chunk)
            yield chunk, loaded

    # --- lines that several CTAs share

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

    def _part(self, lines: _Lines, v: Expr, number: Expr) -> tuple[Expr, ...]:
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

    def _clear(self, lines: _Lines, parts: Buffer) -> None:
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

    def _store_part(self, lines: _Lines, parts: Buffer, whole: Buffer, number: Expr) -> None:
        with self.w.when(equal(lines.rank, 0)), self._lines_of_thread() as v:
            place, value = self._part(lines, v, number), Load(whole, (v,))
            if self.s.look_back:
                self.w.emit(FlaggedStore(parts, place, value))
            else:
                self.w.store(parts, place, value)

    def _of_line(self, lines: _Lines, own: Buffer, scratch: Buffer | None) -> Buffer:
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

    def _of_ctas_before(self, lines: _Lines, exchange: _Exchange, number: Expr) -> Buffer:
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

    # --- where things are

    def _lines(self, block: Expr, thread: Expr, ctas_per_line: int) -> _Lines:
        p, s = self.p, self.s
        across = s.line_vectors
        cta: Expr = index(0)
        if ctas_per_line > 1:
            block, cta = block // ctas_per_line, block % ctas_per_line
        if p.along_rows:
            slot, rank = (thread // s.line_threads, thread % s.line_threads) if across > 1 else (index(0), thread)
            number, count = block * across + slot if across > 1 else block, p.lines
        else:
            slot, rank = thread % across, thread // across
            number, count = block * across + slot, p.lines // s.vector
        segment = rank // self.lanes if s.segments > 1 else index(0)
        lane = rank % self.lanes if s.segments > 1 else rank
        first = number * self.width if self.width > 1 else number
        exists = None if count % s.line_vectors == 0 else number < count
        number = number if exists is None else minimum(number, index(count - 1))
        others = [a for a in p.axes if a != p.axis]
        if not p.along_rows:
            others = [Axis(a.name, a.extent // s.vector) if a == p.lane_axis else a for a in others]
        at = dict(axis_indices(number, others))
        if not p.along_rows and s.vector > 1:
            at[p.lane_axis.name] = at[p.lane_axis.name] * s.vector
        return _Lines(at, exists, slot, rank, segment, lane, thread % WARP_LANES, cta, first)

    def _position(self, lines: _Lines, chunk: Expr, item: Expr) -> Expr:
        """Return how many elements of a line are scanned before the first one of an item."""
        s = self.s
        if self.p.along_rows:
            first = item * (self.lanes * s.vector) + lines.lane * s.vector
            first = first + lines.segment * (s.chunk // s.segments) if s.segments > 1 else first
        else:
            first = lines.rank * s.items + item
        return first + self._number(lines, chunk) * s.chunk if s.chunks * s.ctas_per_line > 1 else first

    def _number(self, lines: _Lines, chunk: Expr) -> Expr:
        """Return which chunk of a line a chunk of the CTA is."""
        s = self.s
        if s.ctas_per_line == 1:
            return chunk
        return chunk * s.ctas_per_line + lines.cta if s.cooperative else lines.cta * s.chunks + chunk

    def _point(self, lines: _Lines, position: Expr) -> dict[str, Expr]:
        """Return the point at which the vector of an item begins in memory."""
        own = self.s.vector if self.p.along_rows else 1
        place = index(self.p.length - own) - position if self.p.reverse else position
        return {**lines.at, self.p.axis.name: place}

    def _inside(self, position: Expr) -> Expr | None:
        """Return whether an item exists; None where all of them do."""
        s = self.s
        exact = s.chunk * s.chunks * s.ctas_per_line == self.p.length
        return None if exact else position < self.p.length

    def _element(self, v: Expr) -> Expr:
        """Return the place in memory order of the element of a vector that is scanned as number ``v``."""
        return index(self.s.vector - 1) - v if self.p.reverse and self.p.along_rows else v

    # --- registers

    def _register(self, name: str, *shape: int) -> Buffer:
        return self.w.allocate(name, shape, self.dtype, MemoryScope.REGISTER)

    def _registers(self, loads: tuple[MaskedLoad, ...]) -> Loaded:
        lane = self.p.lane_axis.name
        return {m: allocate_registers(self.w, m, (self.s.items,), lane, self.s.vector) for m in loads}

    def _load(self, loaded: Loaded, lines: _Lines, chunk: Expr) -> None:
        with self.w.unrolled("load", self.s.items) as n:
            position = self._position(lines, chunk, n)
            with self.w.when(self._inside(position)):
                self._load_item(loaded, (n,), self._point(lines, position))

    def _load_item(self, loaded: Loaded, prefix: tuple[Expr, ...], at: Mapping[str, Expr]) -> None:
        for registers in loaded.values():
            load_registers(self.w, registers, prefix, at, self.p.lane_axis.name, self.s.vector)

    def _copy(self, source: Loaded, target: Loaded, lines: _Lines, chunk: Expr) -> None:
        with self.w.unrolled("copied", self.s.items) as n:
            # What a CTA has loaded first may not exist where CTAs share lines, so that nothing is in its registers.
            inside = self._inside(self._position(lines, chunk, n)) if self.s.ctas_per_line > 1 else None
            with self.w.when(inside):
                self._copy_item(source, target, n)

    def _copy_item(self, source: Loaded, target: Loaded, n: Expr) -> None:
        for masked, registers in source.items():
            with self.w.unrolled("v", self.s.vector if registers.vector else 1) as v:
                at = (n, v) if registers.vector else (n,)
                self.w.store(target[masked].buffer, at, Load(registers.buffer, at))

    @contextmanager
    def _lines_of_thread(self) -> Iterator[Expr]:
        """A block of statements for each line of a thread."""
        with self.w.unrolled("v", self.width) as v:
            yield v

    def _combined(self, a: Expr, b: Expr) -> Expr:
        return self.how.combine([a], [b])[0]

    # --- the scan of a chunk

    def _scan(self, lines: _Lines, loaded: Loaded, chunk: Expr, known: _Before) -> None:
        s, w = self.s, self.w
        along_rows = self.p.along_rows
        values = self._register("values", s.items, s.vector)
        totals = self._register("segment_total", self.width)
        before = self._register("before", s.items if along_rows else self.width)
        own = self._register("own", self.width)
        with self._lines_of_thread() as v:
            w.store(totals, (v,), self.how.identity[0])
            w.store(own, (v,), self.how.identity[0])
        with w.unrolled("item", s.items) as n:
            if along_rows:
                w.store(own, (index(0),), self.how.identity[0])
            self._scan_item(lines, loaded, values, own, n, self._position(lines, chunk, n))
            if along_rows:
                self._scan_lanes(lines, own, totals, index(0), before, n)
        if not along_rows:
            with self._lines_of_thread() as v:
                self._scan_lanes(lines, own, totals, v, before, v)
        prefix = self._prefix(lines, totals, chunk, known)
        if prefix is not None:
            with w.unrolled("place", before.shape[0]) as n:
                line = index(0) if along_rows else n
                w.store(before, (n,), self._combined(Load(prefix, (line,)), Load(before, (n,))))
        self._write(lines, loaded, chunk, values, before)

    def _scan_item(
        self, lines: _Lines, loaded: Loaded, values: Buffer, running: Buffer, n: Expr, position: Expr
    ) -> None:
        """Scan the elements of an item, or along columns one element of each line, on from ``running``."""
        s, w, inside = self.s, self.w, self._inside(position)
        if inside is not None:
            with w.unrolled("v", s.vector) as v:
                w.store(values, (n, v), self.how.identity[0])
        with w.when(inside), w.unrolled("v", s.vector) as v:
            element = self._element(v)
            value = self._value(lines, loaded, n, position, element)
            line = (index(0),) if self.p.along_rows else (v,)
            if self.p.exclusive:
                held = self._register("held")
                w.store(held, (), self.how.accumulate([Load(running, line)], value, index(0))[0])
                w.store(values, (n, element), Load(running, line))
                w.store(running, line, Load(held, ()))
            else:
                w.store(running, line, self.how.accumulate([Load(running, line)], value, index(0))[0])
                w.store(values, (n, element), Load(running, line))

    def _value(self, lines: _Lines, loaded: Loaded, n: Expr, position: Expr, element: Expr) -> Expr:
        """Return the value to combine of an element of item ``n``."""
        lane_axis, at = self.p.lane_axis.name, self._point(lines, position)
        here = {**at, lane_axis: at[lane_axis] + element}
        known = {m: loaded[self.p.loads[m]].value((n,), element) for m in self.p.loads if self.p.loads[m] in loaded}
        return scalar_at(replace_masked_loads(self.p.body, known), here)

    def _scan_lanes(self, lines: _Lines, own: Buffer, totals: Buffer, v: Expr, before: Buffer, place: Expr) -> None:
        """What is before the part of each lane in its segment, of line ``v`` of a thread; the total of the segment
        grows by the parts of all lanes."""
        w, part, total = self.w, Load(own, (v,)), Load(totals, (v,))
        if self.lanes == 1:
            w.store(before, (place,), total)
            w.store(totals, (v,), self._combined(total, part))
            return
        other = self._register("other")
        distance = 1
        while distance < self.lanes:
            w.store(other, (), self._of_earlier(lines, part, distance))
            w.store(own, (v,), Select(lines.lane >= distance, self._combined(Load(other, ()), part), part))
            distance *= 2
        w.store(other, (), self._of_earlier(lines, part, 1))
        w.store(before, (place,), Select(lines.lane >= 1, self._combined(total, Load(other, ())), total))
        w.store(other, (), self._of_last(lines, part))
        w.store(totals, (v,), self._combined(total, Load(other, ())))

    def _of_earlier(self, lines: _Lines, value: Expr, distance: int) -> Shuffle:
        """Return the value of the lane that is ``distance`` before in the same segment; any value where there is
        none."""
        if self.p.along_rows:
            return Shuffle(ShuffleMode.INDEX, value, maximum(lines.lane - distance, index(0)), self.lanes)
        return Shuffle(ShuffleMode.INDEX, value, maximum(lines.warp_lane - distance * self.s.line_vectors, index(0)))

    def _of_last(self, lines: _Lines, value: Expr) -> Shuffle:
        """Return the value of the last lane of the segment."""
        if self.p.along_rows:
            return Shuffle(ShuffleMode.INDEX, value, index(self.lanes - 1), self.lanes)
        return Shuffle(ShuffleMode.INDEX, value, lines.slot + (self.lanes - 1) * self.s.line_vectors)

    def _prefix(self, lines: _Lines, totals: Buffer, chunk: Expr, known: _Before) -> Buffer | None:
        """Return what is before the segment of a thread; None where nothing is. The carry becomes what is before the
        next chunk of the CTA."""
        s, w, shared, carry = self.s, self.w, known.shared, known.carry
        if shared is None and carry is None:
            return None
        prefix, whole = self._register("prefix", self.width), self._register("whole", self.width)
        with self._lines_of_thread() as v:
            start = self.how.identity[0] if carry is None or known.exchange is not None else Load(carry, (v,))
            w.store(prefix, (v,), start)
            w.store(whole, (v,), start)
        if shared is None:
            with self._lines_of_thread() as v:
                w.store(whole, (v,), self._combined(Load(whole, (v,)), Load(totals, (v,))))
        else:
            slot = chunk % 2 if s.chunks > 1 else index(0)
            first = equal(lines.lane, 0) if self.lanes > 1 else None
            place = lines.slot * self.width
            with w.when(first), self._lines_of_thread() as v:
                w.store(shared, (slot, lines.segment, place + v), Load(totals, (v,)))
            w.barrier()
            with w.unrolled("number", s.segments) as number, self._lines_of_thread() as v:
                own = equal(number, lines.segment)
                w.store(prefix, (v,), Select(own, Load(whole, (v,)), Load(prefix, (v,))))
                w.store(whole, (v,), self._combined(Load(whole, (v,)), Load(shared, (slot, number, place + v))))
        if carry is not None and known.exchange is not None:
            self._exchange(lines, chunk, known.exchange, prefix, whole, carry)
        elif carry is not None:
            with self._lines_of_thread() as v:
                w.store(carry, (v,), Load(whole, (v,)))
        return prefix

    def _exchange(
        self, lines: _Lines, chunk: Expr, exchange: _Exchange, prefix: Buffer, whole: Buffer, carry: Buffer
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

    def _look_back(self, lines: _Lines, number: Expr, exchange: _Exchange, prefix: Buffer, whole: Buffer) -> None:
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

    # --- outputs

    def _write(self, lines: _Lines, loaded: Loaded, chunk: Expr, values: Buffer, before: Buffer) -> None:
        """The outputs of a chunk. ``before``: what is before each item, or along columns before all of a thread's."""
        p, s, w = self.p, self.s, self.w
        with w.unrolled("item", s.items) as n:
            position = self._position(lines, chunk, n)
            at = self._point(lines, position)
            conditions = [c for c in (self._inside(position), lines.exists) if c is not None]
            with w.when(*conditions):
                lane = p.lane_axis.name
                later = {m: allocate_registers(w, m, (), lane, s.vector) for m in p.later_loads}
                self._load_item(later, (), at)
                with w.unrolled("v", s.vector) as v:
                    start = Load(before, (n if p.along_rows else v,))
                    w.store(values, (n, v), self._combined(start, Load(values, (n, v))))
                for stage in p.outputs:
                    self._store(stage, loaded, later, values, n, at)

    def _store(
        self, stage: Stage, loaded: Loaded, later: Loaded, values: Buffer, n: Expr, at: Mapping[str, Expr]
    ) -> None:
        p, lane = self.p, self.p.lane_axis.name
        with self.w.vectorized("v", self.s.vector) as v:
            here = {**at, lane: at[lane] + v}
            known = {
                given: loaded[m].value((n,), v) if m in loaded else later[m].value((), v)
                for given, m in p.loads.items()
            }
            result = self.how.result([Load(values, (n, v))])
            body = replace_masked_loads(stage.body, known)
            body = map_loads(body, lambda load: result if load.buffer == p.result else load)
            self.w.store(stage.tensor, tuple(here[a.name] for a in stage.axes), scalar_at(body, here))
