"""Writes the kernel of a permuting copy: what is contiguous along one axis becomes contiguous along another.

A block moves a tile through shared memory, so that both sides are accessed by vectors: the input along the axis ``i``
along which it is contiguous, the output along its own, ``j``. Elements of less than 4 bytes are packed, ``pack`` rows
to a word, so that shared memory is accessed by whole words::

    for k in unrolled(…):  for h in unrolled(pack):  x_regs[k, h, :] = X[j + h, i : i + load_width]
    for k in unrolled(…):  tile[j / pack, (i + e)*pack : +pack] = x_regs[k, :, e]
    barrier
    for k in unrolled(…):  Y[i, j : j + store_width] = epilogue(tile[(j + e) / pack, i*pack + (j + e) % pack])

Rows of the tile are padded by a word, or their chunks of 16 bytes are swizzled, so that a column is spread over the
banks of shared memory.

Where the rows of an output begin anywhere in memory, stores may be aligned: a tile has whole ``alignment`` elements
of each row, counted from the begin of the output. It begins up to ``alignment - 1`` elements further in front in some
rows than in others, so that it loads so many rows more::

    first = j - (offset of Y[i, j]) % alignment
    Y[i, first : first + store_width] = …

What lies in front of a row or behind it is left out, and the words there are stored by elements.

Where the rows of an input begin anywhere, too, no aligned vectors can be loaded, and loads of elements are many. Such a
tile may be copied as it is, by ``cp.async`` of ``copy_bytes``. Each row begins in shared memory at the same place of a
chunk as in the input (see ``tile_rows``), and columns are read by elements::

    for chunk of row j:  tile[place(j) // chunk * chunk + …] = X[j, …], asynchronously
    barrier
    Y[i, j : j + store_width] = epilogue(tile[place(j + e) + i])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

from ....core.dtypes import boolean
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.expr import Expr, Load, conjunction, const, index, logical_and
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.functions import negated
from ....te.workload import Axis
from ...loop_nest.nest import KERNEL_NAME, kernel_of
from ...problems.permute import Permute
from ...space.columns import Size
from ...tile.delinearize import axis_indices, delinearize
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import FreshNameWriter
from ...tile.stage_body import scalar_at
from ..l2_prefetch import L2Prefetch
from .tile_rows import RowSteps, input_offset, input_rows, shared_elements, shared_lead, tile_rows

CHUNK_BYTES = 16
"""Bytes of the widest access, and of what a swizzle moves as a whole."""
LINE_BYTES = 128
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class PermuteSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_in`` and ``tile_out``: elements of a tile along the axes along which the input and the output are contiguous.
    ``threads``: threads of a block. ``load_width`` and ``store_width``: elements of a thread's vectors of the input and
    of the output. ``copy_bytes``: bytes of an asynchronous copy to shared memory, 0 where threads load vectors.
    ``pack``: rows of the tile that share a word of shared memory. ``alignment``: of how many elements of
    the output's memory a tile has all or none, 0 where tiles end at the same place in every row. ``padding``: elements
    behind each row of a padded tile. ``tiles_out``: tiles along the output's axis. ``blocks``: thread blocks.
    ``shared_bytes``: shared memory of a block. ``thread_bytes``: bytes of the inputs that a thread moves.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate. ``min_blocks``: how many it must have room for; 0 says nothing.
    """

    tile_in: Size
    tile_out: Size
    threads: Size
    load_width: Size
    store_width: Size
    copy_bytes: Size
    pack: Size
    alignment: Size
    padding: Size
    tiles_out: Size
    blocks: Size
    shared_bytes: Size
    thread_bytes: Size
    registers: Size
    resident: Size
    min_blocks: Size


@dataclass(frozen=True, slots=True)
class PermuteOptions:
    """The knobs that are choices. ``swizzled``: whether the tile is swizzled, otherwise it is padded. ``along_input``:
    whether neighbouring blocks are neighbours along the input's contiguous axis, otherwise along the output's.
    ``evict_first``: the data need not stay in caches. ``prefetch``: blocks prefetch their tiles into L2."""

    swizzled: bool
    along_input: bool
    evict_first: bool
    prefetch: bool


def permute_kernel(problem: Permute, sizes: PermuteSizes, options: PermuteOptions) -> Kernel:
    """Return the kernel of one setting."""
    return _PermuteKernelWriter(problem, sizes, options).kernel()


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a block's tile lies: ``batch`` is the point of the batch axes (axis name -> index), ``tile_in`` and
    ``tile_out`` are the numbers of the tile along the two contiguous axes."""

    batch: Mapping[str, Expr]
    tile_in: Expr
    tile_out: Expr


class _PermuteKernelWriter:
    def __init__(self, problem: Permute, sizes: PermuteSizes, options: PermuteOptions) -> None:
        self.problem = problem
        self.sizes = sizes
        self.options = options
        buffers = (*problem.workload.inputs, *(s.tensor for s in problem.stages))
        moved = {r.load.buffer.name for r in problem.transposed_loads} | {s.name for s in problem.stages}
        self.evict_first = tuple(b.name for b in buffers if b.name in moved) if options.evict_first else ()
        self.w = FreshNameWriter({b.name for b in buffers} | {a.name for a in problem.axes})
        self.checked = False
        """Whether accesses beyond an edge are tested for."""

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        tiles_in = Axis("tile_in#", -(-problem.input_extent // s.tile_in))
        tiles_out = Axis("tile_out#", s.tiles_out)
        fastest_last = (tiles_out, tiles_in) if self.options.along_input else (tiles_in, tiles_out)
        grid = [*problem.batch_axes, *fastest_last]
        bounds = [
            ("block", prod(a.extent for a in grid), HardwareAxis.GRID_X),
            ("thread", s.threads, HardwareAxis.THREAD),
        ]
        moved = [r.load.buffer.name for r in problem.transposed_loads]
        with w.launch(
            KERNEL_NAME,
            bounds,
            min_blocks=s.min_blocks,
            evict_first=self.evict_first,
            prefetch_lines=moved,
        ) as (block, thread):
            batch = dict(axis_indices(block, grid))
            position = _Position(batch, batch.pop(tiles_in.name), batch.pop(tiles_out.name))
            self._prefetch(block, thread, position)
            tiles = [self._allocate_tile(r) for r in problem.transposed_loads]
            is_whole = self._is_whole(position)
            if is_whole != const(False, boolean):
                with w.when(is_whole):
                    self._move(tiles, thread, position)
            if is_whole is not None:
                self.checked = True
                with w.when(negated(is_whole)):
                    self._move(tiles, thread, position)
        return kernel_of(problem.workload, w.finish())

    def _is_whole(self, position: _Position) -> Expr | None:
        """Return whether nothing that the block loads or stores is beyond an edge; None where that holds for all
        blocks. What is beyond is tested for in the other blocks alone: a test for each access costs as much as the
        access."""
        problem, s = self.problem, self.sizes
        conditions: list[Expr] = []
        if problem.input_extent % s.tile_in:
            conditions.append(position.tile_in < problem.input_extent // s.tile_in)
        if problem.output_extent % s.tile_out or s.alignment:
            conditions.append(position.tile_out < problem.output_extent // s.tile_out)
        if s.alignment:
            conditions.append(position.tile_out >= 1)
        if s.copy_bytes:
            conditions += [self._has_whole_chunks(r, position) for r in problem.transposed_loads]
        least_in, least_out = s.tile_in, s.tile_out * (2 if s.alignment else 1)
        if problem.input_extent < least_in or problem.output_extent < least_out:
            return const(False, boolean)
        return conjunction(*conditions)

    def _has_whole_chunks(self, masked: MaskedLoad, position: _Position) -> Expr:
        """Return a condition under which no chunk that a whole tile touches ends behind the input."""
        s, offset = self.sizes, input_offset(masked)
        last = sum(max(0, offset.coefficient(a.name)) * (a.extent - 1) for a in self.problem.output_axes)
        begin = self._input_place(masked, position) + last
        end: Expr = begin + (s.tile_in + s.copy_bytes // masked.load.dtype.bytes)
        return end <= masked.load.buffer.elements

    def _move(self, tiles: Sequence[Buffer], thread: Expr, position: _Position) -> None:
        """Move the block's tile through shared memory."""
        for masked, tile in zip(self.problem.transposed_loads, tiles, strict=True):
            if self.sizes.copy_bytes:
                self._copy_tile(masked, tile, thread, position)
            else:
                self._load_tile(masked, tile, thread, position)
        if self.sizes.copy_bytes:
            self.w.emit(CopyAsyncCommit())
            self.w.emit(CopyAsyncWait(0))
        self.w.barrier()
        self._store_outputs(tiles, thread, position)

    def _prefetch(self, block: Expr, thread: Expr, position: _Position) -> None:
        """Prefetch the block's tile into L2 where it is a whole one. Its lines come sooner than by the threads' own
        loads, each of which asks for a part of a line (by 1 % on an H200)."""
        problem, s = self.problem, self.sizes
        uneven = problem.input_extent % s.tile_in or problem.output_extent % s.tile_out or s.alignment
        if uneven or s.copy_bytes or not self.options.prefetch:
            return
        prefetch = L2Prefetch(self.w, (thread, s.threads), (block, 1), 1)
        for masked in problem.transposed_loads:

            def first_element(_: Expr, row: Expr, load: Load = masked.load) -> tuple[Expr, ...]:
                point = self._loaded_point(position, (index(0), s.load_width), row)[0]
                return tuple(scalar_at(i, point) for i in load.indices)

            prefetch.own("prefetch", masked.load.buffer, s.tile_out, s.tile_in, first_element)

    def _allocate_tile(self, masked: MaskedLoad) -> Buffer:
        """Shared memory of ``tile_out / pack`` rows of ``tile_in`` words, each word of ``pack`` elements. Where stores
        are aligned there are ``alignment / pack`` rows more. Tiles that are copied are ``shared_elements`` long."""
        s, dtype = self.sizes, masked.load.dtype
        name = f"{masked.load.buffer.name}_tile"
        if s.copy_bytes:
            chunk, rows = s.copy_bytes // dtype.bytes, self._shared_rows(masked)
            elements = shared_elements(rows, s.tile_out, s.alignment, chunk)
            return self.w.allocate(name, (elements,), dtype, MemoryScope.SHARED)
        row_elements = s.pack * s.tile_in
        swizzle, stride = None, row_elements + s.padding
        if self.options.swizzled:
            base = round(log2(CHUNK_BYTES // dtype.bytes))
            swizzle, stride = Swizzle(3, base, round(log2(s.tile_in * s.store_width)) - base), row_elements
        shape = ((s.tile_out + s.alignment) // s.pack, row_elements)
        return self.w.allocate(name, shape, dtype, MemoryScope.SHARED, Layout((stride, 1), swizzle))

    def _shared_rows(self, masked: MaskedLoad) -> RowSteps:
        s = self.sizes
        return tile_rows(self.problem, masked, s.tile_in, s.copy_bytes // masked.load.dtype.bytes)

    @property
    def _period(self) -> int:
        """Rows that are a multiple of those of all steps, and as many as a tile may begin in front of its place."""
        extent, alignment = self.problem.output_extent, int(self.sizes.alignment)
        return -(-alignment // extent) * extent

    def _input_place(self, masked: MaskedLoad, position: _Position) -> Expr:
        """Return where the tile's first column of row 0 of the whole input lies in it."""
        offset = input_offset(masked)
        place: Expr = index(offset.constant) + position.tile_in * int(self.sizes.tile_in)
        for name, i in position.batch.items():
            place = place + i * offset.coefficient(name)
        return place

    def _shared_place(self, masked: MaskedLoad, row: Expr, position: _Position) -> Expr:
        """Return where the first element of a ``row`` of the whole input lies in the tile, which differs by whole
        chunks from where it lies in the input."""
        s, rows, chunk = self.sizes, self._shared_rows(masked), self.sizes.copy_bytes // masked.load.dtype.bytes
        first = position.tile_out * int(s.tile_out)
        begin = self._input_place(masked, position) + input_rows(self.problem, masked).begin(first, self._period)
        lead = begin % int(chunk) + int(shared_lead(rows, s.alignment, chunk))
        return rows.begin(row, self._period) - rows.begin(first, self._period) + lead

    def _copy_tile(self, masked: MaskedLoad, tile: Buffer, thread: Expr, position: _Position) -> None:
        """Start to copy the aligned chunks that hold the tile: ``tile_in / chunk`` of each row, then one more of each,
        so that a thread has the same chunk of all its rows."""
        s = self.sizes
        chunk = s.copy_bytes // masked.load.dtype.bytes
        rows = s.tile_out + s.alignment
        for first, count in ((0, s.tile_in // chunk), (s.tile_in // chunk, 1)):
            steps = -(-rows * count // s.threads)
            with self.w.loop("k", steps, LoopKind.SERIAL if self.checked else LoopKind.UNROLLED) as k:
                number, row, exists = self._share(k, thread, count, rows * count)
                with self.w.when(exists):
                    self._copy_chunk(masked, tile, number + first, row, position)

    def _copy_chunk(self, masked: MaskedLoad, tile: Buffer, number: Expr, row: Expr, position: _Position) -> None:
        """Start to copy a chunk of a ``row`` of the tile. The elements of a last chunk that is none are copied one by
        one."""
        s, w, source = self.sizes, self.w, masked.load.buffer
        chunk = s.copy_bytes // masked.load.dtype.bytes
        flat = position.tile_out * s.tile_out - s.alignment + row
        begins = input_rows(self.problem, masked).begin_by_axes(flat, self._period)
        place = self._input_place(masked, position) + begins
        begin = (place // chunk + number) * chunk
        target = (self._shared_place(masked, flat, position) // chunk + number) * chunk
        inside = whole = None
        if self.checked:
            columns = self.problem.input_extent - position.tile_in * s.tile_in
            inside = logical_and(flat >= 0, flat < self.problem.output_extent, begin - place < columns)
            whole = begin + chunk <= source.elements
        with w.when(inside):
            with w.when(whole):
                w.emit(CopyAsync(tile, (target,), source, delinearize(begin, source.shape), chunk))
            if whole is not None:
                with w.when(negated(whole)), w.loop("e", chunk) as e:
                    with w.when(begin + e < source.elements):
                        w.store(tile, (target + e,), Load(source, delinearize(begin + e, source.shape)))

    def _cell(self, masked: MaskedLoad, row: Expr, column: Expr, position: _Position) -> tuple[Expr, ...]:
        """Return where the element at a ``row`` and a ``column`` of the tile is in shared memory."""
        s = self.sizes
        if s.copy_bytes:
            flat = position.tile_out * s.tile_out - s.alignment + row
            return (self._shared_place(masked, flat, position) + column,)
        return (row // s.pack, column * s.pack + row % s.pack)

    def _load_tile(self, masked: MaskedLoad, tile: Buffer, thread: Expr, position: _Position) -> None:
        """Load the tile by vectors along the input's axis, all of a thread before the first goes to shared memory."""
        w, s = self.w, self.sizes
        vectors_of_row = s.tile_in // s.load_width
        total = (s.tile_out + s.alignment) // s.pack * vectors_of_row
        count = -(-total // s.threads)
        name = f"{masked.load.buffer.name}_regs"
        held = w.allocate(name, (count, s.pack, s.load_width), masked.load.dtype, MemoryScope.REGISTER)
        with self.w.unrolled("k", count) as k:
            vector, row, exists = self._share(k, thread, vectors_of_row, total)
            if self.checked and self.problem.output_extent % s.pack:  # the last word has fewer rows
                with self.w.unrolled("h", s.pack) as h, self.w.unrolled("v", s.load_width) as v:
                    w.store(held, (k, h, v), const(0, held.dtype))
            with w.when(exists), self.w.unrolled("h", s.pack) as h:
                point, inside = self._loaded_point(position, (vector, s.load_width), row * s.pack + h)
                with w.when(inside), w.vectorized("v", s.load_width) as v:
                    inner = self.problem.input_axes[-1].name
                    w.store(held, (k, h, v), scalar_at(masked.load, {**point, inner: point[inner] + v}))
        with self.w.unrolled("k", count) as k:
            vector, row, exists = self._share(k, thread, vectors_of_row, total)
            _, inside = self._loaded_point(position, (vector, s.load_width), row * s.pack)
            with w.when(exists), w.when(inside):
                self._store_shared(tile, held, k, row, vector)

    def _store_shared(self, tile: Buffer, held: Buffer, k: Expr, row: Expr, vector: Expr) -> None:
        """Store the vectors of ``pack`` rows to shared memory with their elements interleaved: a word at a time, or 16
        bytes at a time where the tile is swizzled."""
        w, pack, width = self.w, self.sizes.pack, self.sizes.load_width
        count = min(pack * width, CHUNK_BYTES // tile.dtype.bytes) if self.options.swizzled else pack
        if pack == 1:
            count = width
        start = vector * (width * pack)
        with self.w.unrolled("e", width * pack // count) as e:
            with w.vectorized("v", count) as v:
                element = e * (count // pack) + v // pack if pack > 1 else e * count + v
                value = Load(held, (k, v % pack if pack > 1 else index(0), element))
                w.store(tile, (row, start + e * count + v), value)

    def _store_outputs(self, tiles: Sequence[Buffer], thread: Expr, position: _Position) -> None:
        """Load columns of the tiles from shared memory, and store the outputs by vectors along their axis. Where tiles
        are copied, warps take a line of each column, so that banks do not depend on the length of columns."""
        s = self.sizes
        vectors_of_column = s.tile_out // s.store_width
        total = s.tile_in * vectors_of_column
        store = self._store_aligned if s.alignment else self._store_vector
        line = LINE_BYTES // (s.store_width * self.problem.stages[0].tensor.dtype.bytes)
        run = min(line, vectors_of_column) if s.copy_bytes else vectors_of_column
        with self.w.unrolled("k", -(-total // s.threads)) as k:
            vector, column, exists = self._share(k, thread, run, total)
            if run < vectors_of_column:
                vector, column = column // s.tile_in * run + vector, column % s.tile_in
            with self.w.when(exists):
                store(tiles, vector, column, position)

    def _store_vector(self, tiles: Sequence[Buffer], vector: Expr, column: Expr, position: _Position) -> None:
        """Store the outputs at vector number ``vector`` of a ``column`` of the tile."""
        w, s = self.w, self.sizes
        point, inside = self._point(position, (column, 1), (vector, s.store_width))
        with w.when(inside):
            columns = self._allocate_columns(tiles, s.store_width)
            for held, tile, masked in zip(columns, tiles, self.problem.transposed_loads, strict=True):
                with self.w.unrolled("e", s.store_width // s.pack) as e:
                    row = (vector * (s.store_width // s.pack) + e) * s.pack
                    with w.vectorized("v", s.pack) as v:
                        *outer, first = self._cell(masked, row, column, position)
                        w.store(held, (e * s.pack + v,), Load(tile, (*outer, first + v)))
            inner = self.problem.output_axes[-1].name
            with w.vectorized("v", s.store_width) as v:
                self._store({**point, inner: point[inner] + v}, columns, v)

    def _store_aligned(self, tiles: Sequence[Buffer], vector: Expr, column: Expr, position: _Position) -> None:
        """Store the outputs at vector number ``vector`` of a ``column`` of the tile, counted from where the tile begins
        in this row of the outputs. A vector that is only partly inside the row is stored by elements."""
        problem, w, s = self.problem, self.w, self.sizes
        point, inside = self._input_point(position, (column, 1))
        point = {**position.batch, **point}
        strides = dict(zip((a.name for a in problem.axes), problem.stages[0].tensor.strides, strict=True))
        row = sum((i * strides[name] for name, i in point.items()), start=index(0))
        begin = (row + position.tile_out * s.tile_out) // s.alignment * s.alignment
        first, slot = begin - row + vector * s.store_width, s.alignment - row % s.alignment + vector * s.store_width

        def store(element: Expr, count: int) -> None:
            columns = self._allocate_columns(tiles, count)
            for held, shared, masked in zip(columns, tiles, problem.transposed_loads, strict=True):
                for e in range(count):
                    w.store(held, (index(e),), Load(shared, self._cell(masked, slot + element + e, column, position)))
            with w.vectorized("v", count) as v:
                self._store({**point, **axis_indices(first + element + v, problem.output_axes)}, columns, v)

        with w.when(inside):
            whole = logical_and(first >= 0, first + (s.store_width - 1) < problem.output_extent)
            with w.when(whole if self.checked else None):
                store(index(0), s.store_width)
            if s.store_width > 1 and self.checked:
                with w.when(negated(whole)), self.w.unrolled("e", s.store_width) as e:
                    with w.when(first + e >= 0, first + e < problem.output_extent):
                        store(e, 1)

    def _allocate_columns(self, tiles: Sequence[Buffer], count: int) -> list[Buffer]:
        """Registers for ``count`` elements of each input."""
        loads = self.problem.transposed_loads
        return [
            self.w.allocate(f"{m.load.buffer.name}_column", (count,), t.dtype, MemoryScope.REGISTER)
            for m, t in zip(loads, tiles, strict=True)
        ]

    def _store(self, point: Mapping[str, Expr], columns: Sequence[Buffer], element: Expr) -> None:
        """Store each output at ``point``, from number ``element`` of what ``columns`` hold."""
        loads = zip(self.problem.transposed_loads, columns, strict=True)
        values: dict[MaskedLoad, Expr] = {r: Load(b, (element,)) for r, b in loads}
        indices = tuple(point[a.name] for a in self.problem.axes)
        for stage in self.problem.stages:
            self.w.store(stage.tensor, indices, scalar_at(replace_masked_loads(stage.body, values), point))

    def _share(self, k: Expr, thread: Expr, vectors_of_line: int, total: int) -> tuple[Expr, Expr, Expr | None]:
        """Return where vector number ``k`` of a thread lies: which of the vectors of its line it is, and which line
        that is. The third value is the condition that it is one of the ``total`` vectors of the tile (None: it always
        is)."""
        number = k * self.sizes.threads + thread
        exists = None if total % self.sizes.threads == 0 else number < total
        return number % vectors_of_line, number // vectors_of_line, exists

    def _loaded_point(
        self, position: _Position, along_input: tuple[Expr, int], row: Expr
    ) -> tuple[dict[str, Expr], Expr | None]:
        """``_point`` of what is loaded into a ``row`` of the tile. Where stores are aligned, the tile has ``alignment``
        rows in front of its place."""
        s, problem = self.sizes, self.problem
        if not s.alignment:
            return self._point(position, along_input, (row, 1))
        point, inside = self._input_point(position, along_input)
        flat = position.tile_out * s.tile_out - s.alignment + row
        point = {**position.batch, **point, **axis_indices(flat, problem.output_axes)}
        if not self.checked:
            return point, None
        return point, conjunction(flat >= 0, flat < problem.output_extent, inside)

    def _point(
        self, position: _Position, along_input: tuple[Expr, int], along_output: tuple[Expr, int]
    ) -> tuple[dict[str, Expr], Expr | None]:
        """Return a point of the outputs inside the block's tile, given as (number, unit) along both contiguous axes,
        and the condition that it lies inside the outputs (None: it always does, or that is not tested)."""
        point, inside = self._input_point(position, along_input)
        axes, tile = self.problem.output_axes, self.sizes.tile_out
        ahead, fits = self._along(axes, tile, position.tile_out, along_output)
        conditions = [c for c in (inside, fits) if c is not None]
        return {**position.batch, **point, **ahead}, conjunction(*conditions)

    def _input_point(self, position: _Position, along: tuple[Expr, int]) -> tuple[Mapping[str, Expr], Expr | None]:
        return self._along(self.problem.input_axes, self.sizes.tile_in, position.tile_in, along)

    def _along(
        self, axes: Sequence[Axis], extent: int, tile: Expr, place: tuple[Expr, int]
    ) -> tuple[Mapping[str, Expr], Expr | None]:
        """Return the indices of ``axes`` at a ``place`` in a ``tile`` of ``extent`` elements along them."""
        number, unit = place
        flat, whole = tile * (extent // unit) + number, prod(a.extent for a in axes)
        in_units = [*axes[:-1], Axis(axes[-1].name, axes[-1].extent // unit)]
        point = dict(axis_indices(flat, in_units))
        point[axes[-1].name] = point[axes[-1].name] * unit
        return point, flat < whole // unit if whole % extent and self.checked else None
