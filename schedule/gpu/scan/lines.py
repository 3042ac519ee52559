"""The lines of a thread, chunk by chunk: where their elements are, and how they come to registers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import (
    WARP_LANES,
    Expr,
    Load,
    index,
    minimum,
)
from ....ir.stmt import HardwareAxis
from ....te.workload import Axis
from ...problems.scan import ScanProblem
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.register_loads import RegisterLoad, allocate_registers, load_registers
from ...tile.stage_body import scalar_at
from .sizes import ScanSizes

Loaded = Mapping[MaskedLoad, RegisterLoad]
"""What the masked loads of a problem are in registers."""


@dataclass(frozen=True, slots=True)
class Lines:
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


class LineChunks:
    """What all parts of a scan do with the lines of a thread."""

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

    @contextmanager
    def _launch(
        self, name: str, ctas_per_line: int, evict_first: tuple[str, ...] = (), *, backwards: bool = False
    ) -> Iterator[Lines]:
        """A launch of so many CTAs for the same lines. ``backwards``: the first CTA has the last part of the last
        lines."""
        s = self.s
        ctas = s.blocks // s.ctas_per_line * ctas_per_line
        bounds = [("block", ctas, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with self.w.launch(name, bounds, min_blocks=s.min_ctas_per_sm, evict_first=evict_first) as (block, thread):
            yield self._lines(index(ctas - 1) - block if backwards else block, thread, ctas_per_line)

    @contextmanager
    def _each_chunk(self, lines: Lines) -> Iterator[tuple[Expr, Loaded]]:
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

    # --- where things are

    def _lines(self, block: Expr, thread: Expr, ctas_per_line: int) -> Lines:
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
        return Lines(at, exists, slot, rank, segment, lane, thread % WARP_LANES, cta, first)

    def _position(self, lines: Lines, chunk: Expr, item: Expr) -> Expr:
        """Return how many elements of a line are scanned before the first one of an item."""
        s = self.s
        if self.p.along_rows:
            first = item * (self.lanes * s.vector) + lines.lane * s.vector
            first = first + lines.segment * (s.chunk // s.segments) if s.segments > 1 else first
        else:
            first = lines.rank * s.items + item
        return first + self._number(lines, chunk) * s.chunk if s.chunks * s.ctas_per_line > 1 else first

    def _number(self, lines: Lines, chunk: Expr) -> Expr:
        """Return which chunk of a line a chunk of the CTA is."""
        s = self.s
        if s.ctas_per_line == 1:
            return chunk
        return chunk * s.ctas_per_line + lines.cta if s.cooperative else lines.cta * s.chunks + chunk

    def _point(self, lines: Lines, position: Expr) -> dict[str, Expr]:
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

    def _load(self, loaded: Loaded, lines: Lines, chunk: Expr) -> None:
        with self.w.unrolled("load", self.s.items) as n:
            position = self._position(lines, chunk, n)
            with self.w.when(self._inside(position)):
                self._load_item(loaded, (n,), self._point(lines, position))

    def _load_item(self, loaded: Loaded, prefix: tuple[Expr, ...], at: Mapping[str, Expr]) -> None:
        for registers in loaded.values():
            load_registers(self.w, registers, prefix, at, self.p.lane_axis.name, self.s.vector)

    def _copy(self, source: Loaded, target: Loaded, lines: Lines, chunk: Expr) -> None:
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

    def _value(self, lines: Lines, loaded: Loaded, n: Expr, position: Expr, element: Expr) -> Expr:
        """Return the value to combine of an element of item ``n``."""
        lane_axis, at = self.p.lane_axis.name, self._point(lines, position)
        here = {**at, lane_axis: at[lane_axis] + element}
        known = {m: loaded[self.p.loads[m]].value((n,), element) for m in self.p.loads if self.p.loads[m] in loaded}
        return scalar_at(replace_masked_loads(self.p.body, known), here)
