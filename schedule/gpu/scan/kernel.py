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

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    Expr,
    Load,
    Select,
    Shuffle,
    ShuffleMode,
    index,
    maximum,
)
from ....ir.gpu.grid_barrier import GridBarrierArrive
from ....ir.rewrite import map_loads
from ....ir.stmt import Kernel
from ....te.functions import equal
from ....te.workload import Stage
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.scan import ScanProblem
from ...tile.masked_loads import replace_masked_loads
from ...tile.register_loads import allocate_registers
from ...tile.stage_body import scalar_at
from .lines import Lines, Loaded
from .sharing import PartExchange, SharedLines
from .sizes import ScanSizes


def scan_kernel(problem: ScanProblem, sizes: ScanSizes[int]) -> Kernel:
    """Return the kernel of one setting, which must be legal (see ``space``)."""
    return _ScanWriter(problem, sizes).kernel()


@dataclass(frozen=True, slots=True)
class _Before:
    """Where a thread learns what is before its part of a chunk: from the ``shared`` totals of segments, from the
    ``carry`` of the chunks before, and in a cooperative launch from other CTAs."""

    shared: Buffer | None
    carry: Buffer | None
    exchange: PartExchange | None


class _ScanWriter(SharedLines):
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
            exchange = None if parts is None else PartExchange(parts, self._scratch())
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

    # --- the scan of a chunk

    def _scan(self, lines: Lines, loaded: Loaded, chunk: Expr, known: _Before) -> None:
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
        self, lines: Lines, loaded: Loaded, values: Buffer, running: Buffer, n: Expr, position: Expr
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

    def _scan_lanes(self, lines: Lines, own: Buffer, totals: Buffer, v: Expr, before: Buffer, place: Expr) -> None:
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

    def _of_earlier(self, lines: Lines, value: Expr, distance: int) -> Shuffle:
        """Return the value of the lane that is ``distance`` before in the same segment; any value where there is
        none."""
        if self.p.along_rows:
            return Shuffle(ShuffleMode.INDEX, value, maximum(lines.lane - distance, index(0)), self.lanes)
        return Shuffle(ShuffleMode.INDEX, value, maximum(lines.warp_lane - distance * self.s.line_vectors, index(0)))

    def _of_last(self, lines: Lines, value: Expr) -> Shuffle:
        """Return the value of the last lane of the segment."""
        if self.p.along_rows:
            return Shuffle(ShuffleMode.INDEX, value, index(self.lanes - 1), self.lanes)
        return Shuffle(ShuffleMode.INDEX, value, lines.slot + (self.lanes - 1) * self.s.line_vectors)

    def _prefix(self, lines: Lines, totals: Buffer, chunk: Expr, known: _Before) -> Buffer | None:
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

    # --- outputs

    def _write(self, lines: Lines, loaded: Loaded, chunk: Expr, values: Buffer, before: Buffer) -> None:
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
