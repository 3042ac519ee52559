"""Writes the kernel of a scatter: launches that sort the numbers of terms, and one that reduces them.

    for e in range(first[key], first[key + 1]):    acc += term(order[e])    # order[e] and terms of several e at a time
    Y[key] = epilogue(acc)

``threads_per_row`` threads share the columns of an element, each with ``vectors`` vectors. ``splits`` of such groups
share its terms: each has a part of them, and the parts are combined in their order. An element with many more terms
than others, such as a frequent word or a hub of a graph, is left to all groups of its block.
"""

from collections.abc import Callable, Iterator, Mapping
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
    Select,
    Unary,
    UnaryOp,
    index,
    maximum,
    minimum,
)
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.functions import equal
from ...loop_nest.nest import KERNEL_NAME
from ...problems.scatter import ScatterProblem
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from .sort import TermSort

LONG_TRIPS = 16
"""An element whose threads would load terms more often than this is reduced by the whole block."""


@dataclass(frozen=True, slots=True)
class ScatterSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``buckets``, ``vector_width``, ``threads_per_row``, ``vectors``, ``splits``, ``rows_per_cta``, ``unroll`` and
    ``split_rows`` are the knobs, the last of which says whether ``piece_terms``, the terms of a piece of an element
    that has a block of its own, is 0. ``chunks``: parts of the terms of a batch that are sorted side by side.
    ``row_parts``: into how many parts the columns of an element are cut. ``threads``, ``blocks``: those of the launch
    that reduces. ``registers``: estimated registers of a thread there. ``shared_bytes``: shared memory of a block
    there. ``resident``: how many blocks a multiprocessor runs at once, by that estimate.
    """

    buckets: Size
    vector_width: Size
    threads_per_row: Size
    vectors: Size
    splits: Size
    rows_per_cta: Size
    unroll: Size
    piece_terms: Size
    chunks: Size
    row_parts: Size
    threads: Size
    blocks: Size
    registers: Size
    shared_bytes: Size
    resident: Size


def scatter_kernel(problem: ScatterProblem, sizes: ScatterSizes) -> Kernel:
    """Return the kernel of one setting."""
    return _ScatterKernelWriter(problem, sizes).kernel()


class _ScatterKernelWriter:
    def __init__(self, problem: ScatterProblem, sizes: ScatterSizes) -> None:
        self.p, self.s = problem, sizes
        self.w = w = FreshNameWriter(problem.names)
        self.accumulation = problem.accumulation
        self.dtype = self.accumulation.accumulator_dtype
        self.sort = TermSort(w, problem, sizes.chunks, sizes.buckets)
        self.pieces: Buffer | None = None
        if sizes.piece_terms and problem.terms >= sizes.piece_terms:
            shape = (problem.batches, problem.terms // sizes.piece_terms, problem.columns)
            self.pieces = Buffer(w.fresh("pieces"), shape, self.dtype)

    def kernel(self) -> Kernel:
        self.sort.write()
        workspace = self.sort.workspace
        if self.pieces is not None:
            self._reduce_pieces(self.pieces)
            workspace += (self.pieces,)
        self._reduce()
        outputs = tuple(dict.fromkeys(self.p.workload.output_buffers))
        return Kernel(KERNEL_NAME, self.p.workload.inputs, outputs, workspace, self.w.finish())

    def _partials(self) -> Buffer | None:
        """Return where groups of threads leave what they have, if there are several."""
        s, groups = self.s, self.s.splits * self.s.rows_per_cta
        shape = (groups, s.vectors, s.vector_width, s.threads_per_row)
        return self.w.allocate("partials", shape, self.dtype, MemoryScope.SHARED) if groups > 1 else None

    def _reduce_pieces(self, pieces: Buffer) -> None:
        """The sorted terms are cut into pieces of as many. A block reduces one that belongs to one element."""
        w, s, p, count = self.w, self.s, self.p, pieces.shape[1]
        axes = [
            ("block", p.batches * count * s.row_parts, HardwareAxis.GRID_X),
            ("thread", s.threads, HardwareAxis.THREAD),
        ]
        with w.launch("reduce_pieces", axes, min_blocks=s.resident) as (block, thread):
            x, group = thread % s.threads_per_row, thread // s.threads_per_row
            number, part = block // s.row_parts, block % s.row_parts
            batch, piece = number // count, number % count
            partials, groups = self._partials(), s.splits * s.rows_per_cta
            begin, end = piece * s.piece_terms, (piece + 1) * s.piece_terms
            keys = w.allocate("keys", (2,), int32, MemoryScope.REGISTER)
            inside = Cast(Load(self.sort.first, (batch, index(self.sort.first.shape[1] - 1))), INDEX)
            for n, place in enumerate((begin, end - 1)):
                term = self._number(Load(self.sort.order, (batch, place)), p.terms)
                of_term = Select(end <= inside, self.sort.key(batch, term), index(-1))
                w.store(keys, (index(n),), Cast(of_term, int32))
            with w.when(Load(keys, (index(0),)) >= 0, equal(Load(keys, (index(0),)), Load(keys, (index(1),)))):
                key = self._number(Load(keys, (index(0),)), p.keys)
                at = {**axis_indices(batch, p.scatter.batch), **axis_indices(key, p.scatter.keys)}
                accumulators = self._new_accumulators()
                own = self._own_range((begin, end), (group, groups))
                self._add_terms(accumulators, at, batch, own, part, x)
                if partials is not None:
                    self._combine(partials, accumulators, group, index(0), groups, x)
                with w.when(equal(group, 0) if groups > 1 else None), w.unrolled("j", s.vectors) as j:
                    column, is_own = self._column(part, x, j)
                    with w.when(is_own), w.loop("lane", s.vector_width, LoopKind.VECTORIZED) as lane:
                        w.store(pieces, (batch, piece, column + lane), Load(accumulators, (j, lane)))

    def _reduce(self) -> None:
        w, s = self.w, self.s
        axes = [("block", s.blocks, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with w.launch(KERNEL_NAME, axes, min_blocks=s.resident) as (block, thread):
            x, group = thread % s.threads_per_row, thread // s.threads_per_row
            first_row, part = block // s.row_parts * s.rows_per_cta, block % s.row_parts
            partials = self._partials()
            row = first_row + group // s.splits
            at, exists = self._at_row(row)
            bounds = self._bounds(row)
            is_long = self._is_long(bounds)
            begin, end = self._range(bounds)
            ranges = None
            if is_long is not None:
                end = Select(is_long, begin, end)
                ranges = w.allocate("ranges", (s.rows_per_cta, 2), int32, MemoryScope.SHARED)
                with w.when(equal(thread % (s.threads_per_row * s.splits), 0)):
                    for n in (0, 1):
                        w.store(ranges, (group // s.splits, index(n)), Load(bounds, (index(n),)))
            own = self._own_range((begin, end), (group % s.splits, s.splits))
            accumulators = self._new_accumulators()
            self._add_terms(accumulators, at, self._batch(row), own, part, x)
            if s.splits > 1 and partials is not None:
                self._combine(partials, accumulators, group, group // s.splits * s.splits, s.splits, x)
            is_first = equal(group % s.splits, 0) if s.splits > 1 else None
            with w.when(exists, is_first, None if is_long is None else Unary(UnaryOp.NOT, is_long)):
                self._store(at, part, x, accumulators)
            if ranges is not None:
                self._reduce_long_rows(first_row, part, ranges, partials, group, x)

    def _reduce_long_rows(
        self, first_row: Expr, part: Expr, ranges: Buffer, partials: Buffer | None, group: Expr, x: Expr
    ) -> None:
        """Elements with many terms, one after the other, with all threads of the block."""
        w, s, groups = self.w, self.s, self.s.splits * self.s.rows_per_cta
        w.barrier()
        with w.loop("long_row", s.rows_per_cta) as number:
            row = first_row + number
            at, exists = self._at_row(row)
            bounds = w.allocate("long_bounds", (2,), int32, MemoryScope.REGISTER)
            for n in (0, 1):
                w.store(bounds, (index(n),), Load(ranges, (number, index(n))))
            with w.when(exists, self._is_long(bounds)):
                accumulators = self._new_accumulators()
                for own in self._around_pieces(accumulators, self._batch(row), bounds, (group, groups), part, x):
                    self._add_terms(accumulators, at, self._batch(row), own, part, x)
                if partials is not None:
                    self._combine(partials, accumulators, group, index(0), groups, x)
                with w.when(equal(group, 0) if groups > 1 else None):
                    self._store(at, part, x, accumulators)
                w.barrier()

    def _around_pieces(
        self, accumulators: Buffer, batch: Expr, bounds: Buffer, share: tuple[Expr, int], part: Expr, x: Expr
    ) -> Iterator[tuple[Expr, Expr]]:
        """Add the share of a group of threads of the pieces of an element, and yield its shares of the terms before and
        behind them."""
        begin, end = self._range(bounds)
        if self.pieces is None:
            yield self._own_range((begin, end), share)
            return
        each, pieces = self.s.piece_terms, self.pieces
        first = (begin + (each - 1)) // each
        last = maximum(first, end // each)
        yield self._own_range((begin, minimum(first * each, end)), share)
        own = self._own_range((first, last), share)

        def of_piece(here: Expr, u: Expr, column: Expr, lane: Expr) -> Expr:
            piece = minimum(minimum(here + u, own[1] - 1), index(pieces.shape[1] - 1))
            return Load(pieces, (batch, maximum(piece, index(0)), column + lane))

        with self._trips(own, pieces.shape[1]) as here:
            self._accumulate(accumulators, (here, own[1]), part, x, lambda *at: of_piece(here, *at))
        yield self._own_range((minimum(last * each, end), end), share)

    def _at_row(self, row: Expr) -> tuple[Mapping[str, Expr], Expr | None]:
        """Return the axes of batch and keys at a row that exists, and whether it is the one asked for; None where it
        surely is."""
        p = self.p
        rows = p.batches * p.keys
        exists = row < rows if rows % self.s.rows_per_cta else None
        key = self._row_within(row) % p.keys
        at = {**axis_indices(self._batch(row), p.scatter.batch), **axis_indices(key, p.scatter.keys)}
        return at, exists

    def _row_within(self, row: Expr) -> Expr:
        rows = self.p.batches * self.p.keys
        return minimum(row, index(rows - 1)) if rows % self.s.rows_per_cta else row

    def _batch(self, row: Expr) -> Expr:
        return self._row_within(row) // self.p.keys

    def _bounds(self, row: Expr) -> Buffer:
        """Return where the terms of a row begin and end, in registers."""
        bounds = self.w.allocate("bounds", (2,), int32, MemoryScope.REGISTER)
        place = self.sort.place(self._row_within(row) % self.p.keys)
        for n in (0, 1):
            self.w.store(bounds, (index(n),), Load(self.sort.first, (self._batch(row), place + n)))
        return bounds

    def _range(self, bounds: Buffer) -> tuple[Expr, Expr]:
        begin, end = (self._number(Load(bounds, (index(n),)), self.p.terms + 1) for n in (0, 1))
        return begin, maximum(begin, end)

    def _is_long(self, bounds: Buffer) -> Expr | None:
        """Return whether all threads of a block reduce a row together; None where no row has so many terms, and where
        they do in any case."""
        s = self.s
        most: int = LONG_TRIPS * s.unroll * s.splits
        if (self.pieces is None and s.rows_per_cta == 1) or most >= self.p.terms:
            return None
        begin, end = self._range(bounds)
        return most < end - begin

    def _column(self, part: Expr, x: Expr, vector: Expr) -> tuple[Expr, Expr | None]:
        """Return the first column of a vector that exists, and whether it is the thread's own; None where it surely
        is."""
        s = self.s
        vectors = self.p.columns // s.vector_width
        number = (part * s.vectors + vector) * s.threads_per_row + x
        if s.row_parts * s.vectors * s.threads_per_row == vectors:
            return number * s.vector_width, None
        return minimum(number, index(vectors - 1)) * s.vector_width, number < vectors

    def _at_column(self, at: Mapping[str, Expr], column: Expr, lane: Expr) -> Mapping[str, Expr]:
        """Return the axes of a stage at a lane of the vector that begins at ``column``."""
        rest = dict(axis_indices(column, self.p.scatter.rest))
        if self.p.lane_axis is not None:
            rest[self.p.lane_axis.name] = rest[self.p.lane_axis.name] + lane
        return {**at, **rest}

    def _own_range(self, terms: tuple[Expr, Expr], share: tuple[Expr, int]) -> tuple[Expr, Expr]:
        """Return where the terms of a group of threads begin and end: its share of those in a range ``terms``, given
        which group it is and of how many."""
        (begin, end), (number, groups) = terms, share
        if groups > 1:
            each = (end - begin + (groups - 1)) // groups
            begin, end = begin + number * each, minimum(begin + (number + 1) * each, end)
        own = self.w.allocate("own", (2,), int32, MemoryScope.REGISTER)
        for n, bound in enumerate((begin, end)):
            self.w.store(own, (index(n),), Cast(bound, int32))
        first, last = (self._number(Load(own, (index(n),)), self.p.terms + 1) for n in (0, 1))
        return first, last

    def _new_accumulators(self) -> Buffer:
        """Return accumulators of a thread, [vector, lane], without any term yet."""
        w, s = self.w, self.s
        accumulators = w.allocate("accumulators", (s.vectors, s.vector_width), self.dtype, MemoryScope.REGISTER)
        (identity,) = self.accumulation.identity
        with w.unrolled("j", s.vectors) as j, w.unrolled("lane", s.vector_width) as lane:
            w.store(accumulators, (j, lane), identity)
        return accumulators

    @contextmanager
    def _trips(self, own: tuple[Expr, Expr], most: int) -> Iterator[Expr]:
        """What is done with each ``unroll`` numbers of a range, which has ``most`` at most; give the first of them."""
        w, s, (begin, end) = self.w, self.s, own
        trips = (maximum(end - begin, index(0)) + (s.unroll - 1)) // s.unroll
        with w.loop("trip", -(-most // s.unroll)) as trip, w.when(trip < trips):
            yield begin + trip * s.unroll

    def _add_terms(
        self,
        accumulators: Buffer,
        at: Mapping[str, Expr],
        batch: Expr,
        terms: tuple[Expr, Expr],
        part: Expr,
        x: Expr,
    ) -> None:
        """Add the terms in a range."""
        w, s, p = self.w, self.s, self.p
        with self._trips(terms, p.terms) as here:
            numbers = w.allocate("numbers", (s.unroll,), int32, MemoryScope.REGISTER)
            with w.unrolled("u", s.unroll) as u:
                place = self._clamped(minimum(here + u, terms[1] - 1), p.terms)
                w.store(numbers, (u,), Load(self.sort.order, (batch, place)))

            def of_term(u: Expr, column: Expr, lane: Expr) -> Expr:
                term = self._number(Load(numbers, (u,)), p.terms)
                of = {**at, **axis_indices(term, p.scatter.stage.reduce_axes)}
                return scalar_at(p.scatter.term, self._at_column(of, column, lane))

            self._accumulate(accumulators, (here, terms[1]), part, x, of_term)

    def _accumulate(
        self,
        accumulators: Buffer,
        numbers: tuple[Expr, Expr],
        part: Expr,
        x: Expr,
        value_of: Callable[[Expr, Expr, Expr], Expr],
    ) -> None:
        """Add the next values of a range, at most ``unroll``; all of them are loaded first. ``value_of``: the value of
        one, given how many are before it, the first column of a vector and the lane."""
        w, s, (begin, end) = self.w, self.s, numbers
        values = w.allocate("values", (s.unroll, *accumulators.shape), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("u", s.unroll) as u, w.unrolled("j", s.vectors) as j:
            column, _ = self._column(part, x, j)
            with w.loop("lane", s.vector_width, LoopKind.VECTORIZED) as lane:
                value = value_of(u, column, lane)
                w.store(values, (u, j, lane), value if value.dtype == self.dtype else Cast(value, self.dtype))
        with (
            w.unrolled("u", s.unroll) as u,
            w.when(begin + u < end),
            w.unrolled("j", s.vectors) as j,
            w.unrolled("lane", s.vector_width) as lane,
        ):
            state = self.accumulation.combine([Load(accumulators, (j, lane))], [Load(values, (u, j, lane))])
            w.store(accumulators, (j, lane), state[0])

    def _combine(self, partials: Buffer, accumulators: Buffer, group: Expr, first: Expr, groups: int, x: Expr) -> None:
        """Combine the accumulators of ``groups`` from the ``first`` on, in their order, in the threads of that."""
        w, s = self.w, self.s
        with w.unrolled("j", s.vectors) as j, w.unrolled("lane", s.vector_width) as lane:
            w.store(partials, (group, j, lane, x), Load(accumulators, (j, lane)))
        w.barrier()
        with (
            w.when(Compare(CompareOp.EQ, group, first)),
            w.loop("other", groups - 1) as other,
            w.unrolled("j", s.vectors) as j,
            w.unrolled("lane", s.vector_width) as lane,
        ):
            partial = Load(partials, (first + (other + 1), j, lane, x))
            state = self.accumulation.combine([Load(accumulators, (j, lane))], [partial])
            w.store(accumulators, (j, lane), state[0])

    def _store(self, at: Mapping[str, Expr], part: Expr, x: Expr, accumulators: Buffer) -> None:
        w, s, stage = self.w, self.s, self.p.scatter.stage
        with w.unrolled("j", s.vectors) as j:
            column, is_own = self._column(part, x, j)
            for output in self.p.outputs:
                with w.when(is_own), w.loop("lane", s.vector_width, LoopKind.VECTORIZED) as lane:
                    total = self.accumulation.result([Load(accumulators, (j, lane))])
                    here = self._at_column(at, column, lane)
                    value = scalar_at(self.p.body_of(output, total), here)
                    w.store(output.tensor, [here[a.name] for a in stage.axes], value)

    def _number(self, value: Expr, count: int) -> Expr:
        """Return a loaded number, which is below ``count``, as an index."""
        return self._clamped(Cast(value, INDEX), count)

    def _clamped(self, number: Expr, count: int) -> Expr:
        return minimum(maximum(number, index(0)), index(count - 1))
