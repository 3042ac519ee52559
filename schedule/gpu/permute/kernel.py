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
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import log2, prod

from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Var, index, logical_and
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis, Stage
from ...loop_nest.nest import KERNEL_NAME
from ...problems.permute import Permute
from ...space.columns import Size
from ...tile.delinearize import axis_indices
from ...tile.masked_loads import MaskedLoad, replace_masked_loads
from ...tile.names import NameSupply
from ...tile.stage_body import scalar_at
from ..l2_prefetch import L2Prefetch

CHUNK_BYTES = 16
"""Bytes of the widest access, and of what a swizzle moves as a whole."""


@dataclass(frozen=True, slots=True)
class PermuteSizes:
    """What a setting of the knobs implies; columns for a space, plain ints for one setting.

    ``tile_in`` and ``tile_out``: elements of a tile along the axes along which the input and the output are contiguous.
    ``threads``: threads of a block. ``load_width`` and ``store_width``: elements of a thread's vectors of the input and
    of the output. ``pack``: rows of the tile that share a word of shared memory. ``blocks``: thread blocks.
    ``shared_bytes``: shared memory of a block. ``thread_bytes``: bytes of the inputs that a thread moves.
    ``registers``: estimated registers of a thread. ``resident``: how many blocks a multiprocessor runs at once, by that
    estimate.
    """

    tile_in: Size
    tile_out: Size
    threads: Size
    load_width: Size
    store_width: Size
    pack: Size
    blocks: Size
    shared_bytes: Size
    thread_bytes: Size
    registers: Size
    resident: Size


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
    """The kernel of one setting."""
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
        self.names = NameSupply({b.name for b in buffers} | {a.name for a in problem.axes})
        self.w = Writer()

    def kernel(self) -> Kernel:
        problem, w, s = self.problem, self.w, self.sizes
        tiles_in = Axis("tile_in#", -(-problem.input_extent // s.tile_in))
        tiles_out = Axis("tile_out#", -(-problem.output_extent // s.tile_out))
        fastest_last = (tiles_out, tiles_in) if self.options.along_input else (tiles_in, tiles_out)
        grid = [*problem.batch_axes, *fastest_last]
        bounds = [
            (self.names.fresh("block"), prod(a.extent for a in grid), HardwareAxis.GRID_X),
            (self.names.fresh("thread"), s.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds, evict_first=self.evict_first) as (block, thread):
            batch = dict(axis_indices(block, grid))
            position = _Position(batch, batch.pop(tiles_in.name), batch.pop(tiles_out.name))
            self._prefetch(block, thread, position)
            tiles = [self._allocate_tile(r) for r in problem.transposed_loads]
            for masked, tile in zip(problem.transposed_loads, tiles, strict=True):
                self._load_tile(masked, tile, thread, position)
            w.barrier()
            self._store_outputs(tiles, thread, position)
        outputs = tuple(dict.fromkeys(problem.workload.output_buffers))
        return Kernel(KERNEL_NAME, problem.workload.inputs, outputs, (), w.finish())

    def _prefetch(self, block: Expr, thread: Expr, position: _Position) -> None:
        """Prefetch the block's tile into L2 where it is a whole one. Its lines come sooner than by the threads' own
        loads, each of which asks for a part of a line (by 1 % on an H200)."""
        problem, s = self.problem, self.sizes
        if problem.input_extent % s.tile_in or problem.output_extent % s.tile_out or not self.options.prefetch:
            return
        prefetch = L2Prefetch(self.w, (thread, s.threads), (block, 1), 1)
        for masked in problem.transposed_loads:

            def first_element(_: Expr, row: Expr, load: Load = masked.load) -> tuple[Expr, ...]:
                point = self._point(position, (index(0), s.load_width), (row, 1))[0]
                return tuple(scalar_at(i, point) for i in load.indices)

            prefetch.own(self.names.fresh("prefetch"), masked.load.buffer, s.tile_out, s.tile_in, first_element)

    def _allocate_tile(self, masked: MaskedLoad) -> Buffer:
        """Shared memory of ``tile_out / pack`` rows of ``tile_in`` words, each word of ``pack`` elements."""
        s, dtype = self.sizes, masked.load.dtype
        name = self.names.fresh(f"{masked.load.buffer.name}_tile")
        row_elements = s.pack * s.tile_in
        swizzle, stride = None, row_elements + s.pack
        if self.options.swizzled:
            base = round(log2(CHUNK_BYTES // dtype.bytes))
            swizzle, stride = Swizzle(3, base, round(log2(s.tile_in * s.store_width)) - base), row_elements
        shape = (s.tile_out // s.pack, row_elements)
        return self.w.allocate(name, shape, dtype, MemoryScope.SHARED, Layout((stride, 1), swizzle))

    def _load_tile(self, masked: MaskedLoad, tile: Buffer, thread: Expr, position: _Position) -> None:
        """Load the tile by vectors along the input's axis, all of a thread before the first goes to shared memory."""
        w, s = self.w, self.sizes
        vectors_of_row = s.tile_in // s.load_width
        total = s.tile_out // s.pack * vectors_of_row
        count = -(-total // s.threads)
        name = self.names.fresh(f"{masked.load.buffer.name}_regs")
        held = w.allocate(name, (count, s.pack, s.load_width), masked.load.dtype, MemoryScope.REGISTER)
        with self._unrolled("k", count) as k:
            vector, row, exists = self._share(k, thread, vectors_of_row, total)
            with w.when(exists), self._unrolled("h", s.pack) as h:
                point, inside = self._point(position, (vector, s.load_width), (row * s.pack + h, 1))
                with w.when(inside), w.loop(self.names.fresh("v"), s.load_width, LoopKind.VECTORIZED) as v:
                    inner = self.problem.input_axes[-1].name
                    w.store(held, (k, h, v), scalar_at(masked.load, {**point, inner: point[inner] + v}))
        with self._unrolled("k", count) as k:
            vector, row, exists = self._share(k, thread, vectors_of_row, total)
            _, inside = self._point(position, (vector, s.load_width), (row * s.pack, 1))
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
        with self._unrolled("e", width * pack // count) as e:
            with w.loop(self.names.fresh("v"), count, LoopKind.VECTORIZED) as v:
                element = e * (count // pack) + v // pack if pack > 1 else e * count + v
                value = Load(held, (k, v % pack if pack > 1 else index(0), element))
                w.store(tile, (row, start + e * count + v), value)

    def _store_outputs(self, tiles: Sequence[Buffer], thread: Expr, position: _Position) -> None:
        """Load columns of the tiles from shared memory, and store the outputs by vectors along their axis."""
        problem, w, s = self.problem, self.w, self.sizes
        vectors_of_column = s.tile_out // s.store_width
        total = s.tile_in * vectors_of_column
        with self._unrolled("k", -(-total // s.threads)) as k:
            vector, column, exists = self._share(k, thread, vectors_of_column, total)
            point, inside = self._point(position, (column, 1), (vector, s.store_width))
            with w.when(exists), w.when(inside):
                columns: list[Buffer] = []
                for masked, tile in zip(problem.transposed_loads, tiles, strict=True):
                    name = self.names.fresh(f"{masked.load.buffer.name}_column")
                    columns.append(w.allocate(name, (s.store_width,), masked.load.dtype, MemoryScope.REGISTER))
                    with self._unrolled("e", s.store_width // s.pack) as e:
                        row = vector * (s.store_width // s.pack) + e
                        with w.loop(self.names.fresh("v"), s.pack, LoopKind.VECTORIZED) as v:
                            w.store(columns[-1], (e * s.pack + v,), Load(tile, (row, column * s.pack + v)))
                for stage in problem.stages:
                    self._store(stage, point, columns)

    def _store(self, stage: Stage, point: Mapping[str, Expr], columns: Sequence[Buffer]) -> None:
        """Store one vector of an output; ``columns`` hold what was loaded for it."""
        inner = self.problem.output_axes[-1].name
        with self.w.loop(self.names.fresh("v"), self.sizes.store_width, LoopKind.VECTORIZED) as v:
            loads = zip(self.problem.transposed_loads, columns, strict=True)
            values: dict[MaskedLoad, Expr] = {r: Load(b, (v,)) for r, b in loads}
            here = {**point, inner: point[inner] + v}
            indices = tuple(here[a.name] for a in self.problem.axes)
            self.w.store(stage.tensor, indices, scalar_at(replace_masked_loads(stage.body, values), here))

    def _share(self, k: Expr, thread: Expr, vectors_of_line: int, total: int) -> tuple[Expr, Expr, Expr | None]:
        """Where vector number ``k`` of a thread lies: which of the vectors of its line it is, and which line that is.
        The third value is the condition that it is one of the ``total`` vectors of the tile (None: it always is)."""
        number = k * self.sizes.threads + thread
        exists = None if total % self.sizes.threads == 0 else number < total
        return number % vectors_of_line, number // vectors_of_line, exists

    def _point(
        self, position: _Position, along_input: tuple[Expr, int], along_output: tuple[Expr, int]
    ) -> tuple[dict[str, Expr], Expr | None]:
        """A point of the outputs inside the block's tile, given as (number, unit) along both contiguous axes, and the
        condition that it lies inside the outputs (None: it always does)."""
        problem, s = self.problem, self.sizes
        point, inside = dict(position.batch), []
        sides = (
            (problem.input_axes, problem.input_extent, s.tile_in, position.tile_in, along_input),
            (problem.output_axes, problem.output_extent, s.tile_out, position.tile_out, along_output),
        )
        for axes, whole, extent, tile, (number, unit) in sides:
            flat = tile * (extent // unit) + number
            if whole % extent:
                inside.append(flat < whole // unit)
            in_units = [*axes[:-1], Axis(axes[-1].name, axes[-1].extent // unit)]
            point |= axis_indices(flat, in_units)
            point[axes[-1].name] = point[axes[-1].name] * unit
        return point, logical_and(*inside) if inside else None

    def _unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh(name), extent, LoopKind.UNROLLED)
