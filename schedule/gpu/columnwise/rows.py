"""The rows of one thread: which ones it takes, how they are loaded, and how they are accumulated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import Expr, Load, Var, index, maximum, minimum
from ....ir.linear_form import affine_form
from ...problems.columnwise import reduced_axis
from ...problems.row_axes import column_axis
from ...problems.rowwise import ComputedTensor
from ...tile.accumulation import store_state
from ...tile.contiguous import contiguous_vector
from ...tile.delinearize import delinearize
from ...tile.stage_body import scalar_at
from ..l2_prefetch import L2Prefetch
from .writer import ColumnwiseWriter, State


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows of one thread: ``first``, then every ``step``-th one below ``stop``. ``fewest`` and ``most`` are the
    fewest and the most rows that any split has, for all its threads together."""

    first: Expr
    step: int
    stop: Expr
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class ThreadRows:
    """What a thread does with its rows. ``outer`` is the flat index of the outer axes, ``first_column`` the first
    column of the CTA, and ``split`` says which split the CTA has."""

    writer: ColumnwiseWriter
    outer: Expr
    first_column: Expr
    split: Expr
    thread: Expr
    _of_columns: dict[Load, Buffer] = field(default_factory=dict)
    """What the thread's columns need for all their rows, in registers: one element a column."""

    def accumulated(self) -> list[list[Buffer]]:
        """Return the state of each reduction over the thread's rows: each number of it is a vector, one element a
        column.

        while a whole step of ``unroll`` rows is left for every split: load them all, then accumulate them, and write
            the elementwise outputs that read no result
        while rows are left: the same, with a test for each row
        """
        states = self._initial_states()
        with self._columns("") as column:
            self._each_step("", partial(self._accumulate_rows, states, column))
        return states

    def write_elements(self, results: Mapping[str, Buffer]) -> None:
        """Go through the rows again, which the caches have now, and write the elementwise outputs. ``results``: what
        each reduction gives for the thread's columns, in registers."""
        with self._columns("element_") as column:
            self._each_step("element_", partial(self._write_rows, results, column))

    @contextmanager
    def _columns(self, name: str) -> Iterator[Expr]:
        """What is written inside is done by threads that have columns, with what these need for all their rows. Gives
        the first column of the thread."""
        s, w, p = self.writer.sizes, self.writer.w, self.writer.problem
        column = self._vector_begin() - self.shift()
        end: Expr = index(p.column_count)
        if s.shifted:
            end = minimum(end, self.first_column + s.columns_per_cta)
        with w.when(column < end if p.column_count % s.columns_per_cta or s.shifted else None):
            self._load_columns(f"{name}of_column", column)
            yield column

    def _vector_begin(self) -> Expr:
        """Return the first column of the thread's vector, were it not shifted."""
        return self.first_column + self.thread % self.writer.sizes.threads_x * self.writer.sizes.vector

    def shift(self) -> Expr:
        """Return how many elements the rows of the thread begin after a multiple of the vector's width in memory; 0
        where vectors are not shifted."""
        s = self.writer.sizes
        return self._first_element() % s.vector if s.shifted else index(0)

    def _rows(self) -> RowRange:
        return rows_of(self.writer, self.split, self.thread // self.writer.sizes.threads_x)

    def _first_element(self) -> Expr:
        """Return the number of the first element of the thread's first row among all elements."""
        p = self.writer.problem
        return (self.outer * p.reduced_count + self._rows().first) * p.column_count

    def _each_step(self, name: str, step: Callable[[str, Expr, int, Expr | None], None]) -> None:
        """``step`` for each ``unroll`` rows of the thread: it is given a name, the first row, how far they are apart,
        and where they end, if some of them may not exist."""
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        rows = self._rows()
        whole = max(rows.fewest - self._may_pass_the_end, 0) // s.rows_per_step
        if whole:
            with w.loop(writer.name(f"{name}whole"), whole) as n:
                step(f"{name}whole", rows.first + n * (rows.step * s.unroll), rows.step, None)
        left = -(-rows.most // s.threads_y) - whole * s.unroll
        if left > 0:
            with w.loop(writer.name(f"{name}rest"), -(-left // s.unroll)) as n:
                step(f"{name}rest", rows.first + (n + whole) * (rows.step * s.unroll), rows.step, rows.stop)

    def _load_columns(self, name: str, column: Expr) -> None:
        """Load what does not depend on the row once, before all rows."""
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        for n, load in enumerate(writer.problem.column_loads):
            buffer = w.allocate(writer.name(f"{name}{n}"), (s.vector,), load.dtype, MemoryScope.REGISTER)
            self._of_columns[load] = buffer
            if s.shifted:
                last = index(writer.problem.column_count - 1)
                with w.unrolled(writer.name(f"{name}{n}_v"), s.vector) as v:
                    own = minimum(maximum(column + v, index(0)), last)  # others are in no row, and nobody needs them
                    axes = writer.kept_axes(self.outer, own, index(0))
                    w.store(buffer, (v,), Load(load.buffer, tuple(scalar_at(i, axes) for i in load.indices)))
            else:
                axes = writer.kept_axes(self.outer, column, index(0))
                at = tuple(scalar_at(i, axes) for i in load.indices)
                w.store(
                    buffer, contiguous_vector((index(0),), s.vector), Load(load.buffer, contiguous_vector(at, s.vector))
                )

    def _initial_states(self) -> list[list[Buffer]]:
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        states = [
            [
                w.allocate(writer.name(f"accumulator{n}_{k}"), (s.vector,), d, MemoryScope.REGISTER)
                for k, d in enumerate(how.state_dtypes)
            ]
            for n, how in enumerate(writer.accumulations)
        ]
        with w.unrolled(writer.name("identity"), s.vector) as v:
            for state, how in zip(states, writer.accumulations, strict=True):
                for buffer, identity in zip(state, how.identity, strict=True):
                    w.store(buffer, (v,), identity)
        return states

    def _load_rows(self, name: str, column: Expr, first: Expr, step: int, stop: Expr | None) -> dict[str, Buffer]:
        """Load ``unroll`` rows from ``first`` on, ``step`` apart, into registers. Where ``stop`` is given, only those
        below it."""
        writer, s, w, p = self.writer, self.writer.sizes, self.writer.w, self.writer.problem
        loaded = {
            b.name: w.allocate(writer.name(f"{name}_rows{n}"), (s.unroll, s.vector), b.dtype, MemoryScope.REGISTER)
            for n, b in enumerate(p.inputs)
        }
        with w.unrolled(writer.name(f"{name}_load"), s.unroll) as u:
            row = first + u * step
            with w.when(None if stop is None else row < stop):
                for n, b in enumerate(p.inputs):
                    if s.shifted:
                        self._load_shifted(f"{name}_{n}", loaded[b.name], u, b, row, last=stop is not None)
                    else:
                        w.store(
                            loaded[b.name],
                            contiguous_vector((u, index(0)), s.vector),
                            Load(b, contiguous_vector(self._element(row, column), s.vector)),
                        )
        return loaded

    @property
    def _may_pass_the_end(self) -> bool:
        """Return whether the last vector of the very last row may end behind the inputs. Then that row is among the
        rest of the rows, which are tested anyway."""
        s, p = self.writer.sizes, self.writer.problem
        return bool(s.shifted and p.outer_count * p.reduced_count * p.column_count % s.vector)

    def _load_shifted(self, name: str, registers: Buffer, u: Expr, source: Buffer, row: Expr, *, last: bool) -> None:
        """Load a shifted vector of a row. Elements in front of the row and behind it belong to other rows. They are
        accumulated, too, in columns that nobody reads. ``last``: the row may be the very last one."""
        writer, s, w = self.writer, self.writer.sizes, self.writer.w
        start, count = self._first_element(), source.elements
        # Written like this, all terms but the quotient are provably multiples of the vector.
        begin = start // s.vector * s.vector + (row - self._rows().first) * writer.problem.column_count
        begin = begin + self._vector_begin()
        last = last and self._may_pass_the_end
        with w.when(begin <= count - s.vector if last else None):
            with w.vectorized(writer.name(f"{name}_vector"), s.vector) as v:
                w.store(registers, (u, v), Load(source, delinearize(begin + v, source.shape)))
        if last:
            with (
                w.when(begin > count - s.vector),
                w.unrolled(writer.name(f"{name}_last"), s.vector) as v,
            ):
                at = delinearize(minimum(begin + v, index(count - 1)), source.shape)
                w.store(registers, (u, v), Load(source, at))

    def _element(self, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Return the indices of an element of the inputs."""
        p = self.writer.problem
        return (*delinearize(self.outer, p.outer), *delinearize(row, p.reduced), *delinearize(column, p.columns))

    def _axes(self, row: Expr, column: Expr, v: Expr) -> dict[str, Expr]:
        """Axis -> its index, at element ``v`` of the vector of a row."""
        rows = {reduced_axis(n): i for n, i in enumerate(delinearize(row, self.writer.problem.reduced))}
        return self.writer.kept_axes(self.outer, column, v) | rows

    def _accumulate_rows(
        self, states: Sequence[State], column: Expr, name: str, first: Expr, step: int, stop: Expr | None
    ) -> None:
        """Load rows, all of them first, then accumulate them."""
        writer, s, w, p = self.writer, self.writer.sizes, self.writer.w, self.writer.problem
        loaded = self._load_rows(name, column, first, step, stop)
        mapped = self._output_registers(name, p.mapped_outputs)
        with w.unrolled(writer.name(f"{name}_accumulate"), s.unroll) as u:
            row = first + u * step
            with w.when(None if stop is None else row < stop):
                with w.unrolled(writer.name(f"{name}_v"), s.vector) as v:
                    axes = self._axes(row, column, v)
                    for reduction, how, state in zip(p.reductions, writer.accumulations, states, strict=True):
                        value = self._value(reduction.body, axes, loaded, u, v)
                        store_state(w, state, (v,), how.accumulate([Load(b, (v,)) for b in state], value, row))
                    for computed, buffer in zip(p.mapped_outputs, mapped, strict=True):
                        w.store(buffer, (v,), self._value(computed.body, axes, loaded, u, v))
                self._store_outputs(p.mapped_outputs, mapped, row, column)

    def _write_rows(
        self, results: Mapping[str, Buffer], column: Expr, name: str, first: Expr, step: int, stop: Expr | None
    ) -> None:
        """Load rows, all of them first, then write what is computed from them."""
        writer, s, w, p = self.writer, self.writer.sizes, self.writer.w, self.writer.problem
        loaded = self._load_rows(name, column, first, step, stop)
        outputs = self._output_registers(name, p.later_outputs)
        with w.unrolled(writer.name(f"{name}_write"), s.unroll) as u:
            row = first + u * step
            with w.when(None if stop is None else row < stop):
                with w.unrolled(writer.name(f"{name}_v"), s.vector) as v:
                    axes = self._axes(row, column, v)
                    for computed, buffer in zip(p.later_outputs, outputs, strict=True):
                        w.store(buffer, (v,), self._value(computed.body, axes, loaded, u, v, results))
                self._store_outputs(p.later_outputs, outputs, row, column)

    def _output_registers(self, name: str, outputs: Sequence[ComputedTensor]) -> list[Buffer]:
        """Registers for a vector of each output."""
        writer, shape = self.writer, (self.writer.sizes.vector,)
        return [
            writer.w.allocate(writer.name(f"{name}_output{n}"), shape, c.tensor.dtype, MemoryScope.REGISTER)
            for n, c in enumerate(outputs)
        ]

    def _store_outputs(
        self, outputs: Sequence[ComputedTensor], registers: Sequence[Buffer], row: Expr, column: Expr
    ) -> None:
        """Store a vector of each output from its registers."""
        s, w = self.writer.sizes, self.writer.w
        for computed, buffer in zip(outputs, registers, strict=True):
            there = contiguous_vector(self._element(row, column), s.vector)
            w.store(computed.tensor, there, Load(buffer, contiguous_vector((index(0),), s.vector)))

    def _value(
        self,
        body: Expr,
        axes: Mapping[str, Expr],
        loaded: Mapping[str, Buffer],
        u: Expr,
        v: Expr,
        results: Mapping[str, Buffer] = MappingProxyType({}),
    ) -> Expr:
        """Return the value of ``body`` at ``axes``. Inputs are in registers: element ``v`` of row ``u`` of ``loaded``;
        ``results`` have an element for each column."""
        own_column = affine_form(Var(column_axis(len(self.writer.problem.columns) - 1)))

        def from_registers(load: Load) -> Expr:
            if load in self._of_columns:
                return Load(self._of_columns[load], (v,))
            if load.buffer.name in results:
                return Load(results[load.buffer.name], (v,))
            last = affine_form(load.indices[-1]) if load.indices else None
            return Load(loaded[load.buffer.name], (u, v)) if load.buffer.name in loaded and last == own_column else load

        return scalar_at(body, axes, from_registers)


def rows_of(writer: ColumnwiseWriter, split: Expr, y: Expr) -> RowRange:
    """Return the rows of the ``y``-th thread of a column in one split."""
    s, count = writer.sizes, writer.problem.reduced_count
    if s.striped:
        step = s.threads_y * s.splits
        fewest, most = count // step * s.threads_y, -(-count // step) * s.threads_y
        return RowRange(split * s.threads_y + y, step, index(count), fewest, most)
    share = -(-count // s.splits)
    fewest = count - (s.splits - 1) * share
    begin = split * share
    stop = begin + share if fewest == share else minimum(begin + share, index(count))
    return RowRange(begin + y, s.threads_y, stop, fewest, share)


def tile_of(writer: ColumnwiseWriter, block: Expr) -> tuple[Expr, Expr]:
    """Return the flat index of the outer axes, and the first column, of a CTA (or of a cluster). As among rows, the
    first one has the last columns where these are only reduced (see ``rowwise.kernel``), except in clusters, where that
    takes more registers than there are for two CTAs."""
    s, p = writer.sizes, writer.problem
    tiles_across = -(-p.column_count // s.columns_per_cta)
    tile = block if s.splits == 1 or s.in_cluster else block // s.splits
    tile = tile if p.elementwise_outputs or s.in_cluster else index(p.outer_count * tiles_across - 1) - tile
    if p.outer_count == 1:
        return index(0), tile * s.columns_per_cta
    return tile // tiles_across, tile % tiles_across * s.columns_per_cta


def prefetch_rows(writer: ColumnwiseWriter, block: Expr, blocks: int, thread: Expr) -> None:
    """Prefetch the first rows of all threads of a CTA to L2, where every CTA has whole steps and whole columns."""
    s, p = writer.sizes, writer.problem
    if s.shifted or p.column_count % s.columns_per_cta or rows_of(writer, index(0), index(0)).fewest < s.rows_per_step:
        return

    def first_element(at: Expr, number: Expr) -> tuple[Expr, ...]:
        outer, first_column = tile_of(writer, at)
        rows = rows_of(writer, at % s.splits if s.splits > 1 else index(0), number % s.threads_y)
        row = rows.first + number // s.threads_y * rows.step
        return (*delinearize(outer, p.outer), *delinearize(row, p.reduced), *delinearize(first_column, p.columns))

    prefetch = L2Prefetch(writer.w, (thread, s.threads), (block, blocks), s.prefetching_ctas)
    for n, b in enumerate(p.inputs):
        prefetch.own(writer.name(f"prefetched{n}"), b, s.rows_per_step, s.columns_per_cta, first_element)
