"""Transposing copies for graphics processors: what is contiguous along one axis is wanted contiguous along another.

A block moves a tile through shared memory, so that both sides are accessed by vectors: the input along its contiguous
axis ``i``, the output along its own, ``j``. Elements of less than 4 bytes change places in words of ``group`` rows::

    for k in unrolled(…):  for h in unrolled(group):  x_held[k, h, :] = X[j + h, i : i + vector]
    for k in unrolled(…):  tile[j / group, (i + e)*group : +group] = x_held[k, :, e]
    barrier
    for k in unrolled(…):  Y[i, j : j + vector] = epilogue(tile[(j + e) / group, i*group + (j + e) % group])

Lines of the tile are padded by a word, or chunks of 16 bytes exchanged (swizzled), so that columns spread over banks.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from ....core.schedule import KnobValue
from ....core.target import Target
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.build import Writer
from ....ir.expr import Expr, Load, Var, index, logical_and
from ....ir.linear_form import LinearForm
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ....te.workload import Axis, Stage, Workload
from ...loop_nest.nest import KERNEL_NAME
from ...problems.outputs import reads_at_places_read, resolved_outputs
from ...space.columns import Bools, Columns, Ints
from ...space.knob import Knob, Quantity
from ...tile.delinearize import places
from ...tile.register_reads import Names, flat_offset
from ...tile.stage_body import Read, reads_of, value_at, with_reads
from ...tile_sketch import Plan, TileSketch
from ..l2_prefetch import L2Prefetch
from ..occupancy import MOST_BLOCKS, limits_of
from ..quantities import GPU_QUANTITIES, gpu_columns

MAX_VECTOR_BYTES = 16
WORD_BYTES = 4
LEAST_TILE = 64
"""Elements of source by sink below which there is nothing to move through shared memory."""
SOURCE_BYTES, SINK_BYTES = (128, 256), (128, 256)
"""Bytes that lie side by side in a tile of the input, and of the output, in elements of the input's size (measured: of
tiles from 64 to 512 bytes either way, these hold the best)."""
SPARE_REGISTERS = 16
"""Registers for addresses and constants, roughly (from compiled kernels)."""
MAX_HELD_BYTES = 256
"""Bytes of the input that a thread takes into registers at once."""
WASTE = 1.3
"""How much larger than the shape its tiles may be in all, where smaller ones would fit better."""

QUANTITIES = (
    *GPU_QUANTITIES,
    Quantity("read_bytes", "B", "bytes of the input that lie side by side in a tile"),
    Quantity("write_bytes", "B", "bytes of the output that lie side by side in a tile"),
    Quantity("thread_bytes", "B", "bytes of the input that a thread moves"),
)


@dataclass(frozen=True)
class PermutePlan(Plan):
    """``turned``: the reads that go through shared memory. ``source``: the axes of the outputs along which those are
    contiguous, as if they were one; ``target_axes``: those along which the outputs are; ``others``: the rest."""

    workload: Workload
    target: Target
    stages: tuple[Stage, ...]
    turned: tuple[Read, ...]
    source: tuple[Axis, ...]
    sink: tuple[Axis, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.stages[0].axes

    @property
    def others(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a not in self.source and a not in self.sink)

    @property
    def bytes(self) -> int:
        """Of an element of the input; the widest, where there are several inputs."""
        return max(r.load.dtype.bytes for r in self.turned)

    @property
    def extents(self) -> tuple[int, int]:
        """How long source and sink are."""
        return prod(a.extent for a in self.source), prod(a.extent for a in self.sink)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        sources, sinks = self._tiles()
        return (
            Knob("vector", self._vectors(), "neighbouring elements that a thread reads, and writes, at once"),
            Knob("tile_source", sources, "elements of a tile along the contiguous axis of the input"),
            Knob("tile_sink", sinks, "elements of a tile along the contiguous axis of the output"),
            Knob("threads", (256, 512, 128), "threads of a block"),
            Knob("layout", ("pad", "swizzle"), "what keeps columns of the tile out of one bank"),
            Knob("order", ("source", "sink"), "along which axis of the tile neighbouring blocks follow one another"),
            Knob("stream", (0, 1), "whether caches need not keep what passes"),
        )

    def _tiles(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents of tiles worth trying; where one side is short, the other is the longer for it."""
        source, sink = self.extents
        sources, sinks = (_fitting(b, self.bytes, n) for b, n in ((SOURCE_BYTES, source), (SINK_BYTES, sink)))
        longer = (
            max(1, SINK_BYTES[0] // (sinks[-1] * self.bytes)),
            max(1, SOURCE_BYTES[0] // (sources[-1] * self.bytes)),
        )
        return (
            _fitting([b * longer[0] for b in SOURCE_BYTES], self.bytes, source),
            _fitting([b * longer[1] for b in SINK_BYTES], self.bytes, sink),
        )

    def _vectors(self) -> tuple[int, ...]:
        most = max(self.bytes, max(s.tensor.dtype.bytes for s in self.stages))
        longest = max(_vector(MAX_VECTOR_BYTES, self.source), _vector(MAX_VECTOR_BYTES, self.sink))
        return tuple(v for v in (16, 8, 4, 2, 1) if v * most <= MAX_VECTOR_BYTES and v <= longest)[:2]

    def shape(self, vector: Ints) -> tuple[Ints, Ints, Ints]:
        """Elements that a thread reads at once, and writes, and rows that share a word; of every setting."""
        read = np.array([_vector(int(v), self.source) for v in vector], np.int64)
        write = np.array([_vector(int(v), self.sink) for v in vector], np.int64)
        group = np.array([_group(self.bytes, int(w)) for w in write], np.int64)
        return read, write, group

    def _sizes(self, columns: Columns) -> tuple[Ints, Ints, Ints]:
        """Blocks, bytes of shared memory, and bytes of the input that a thread moves."""
        rows, cells = columns.ints("tile_sink"), columns.ints("tile_source")
        source, sink = self.extents
        blocks = -(-source // cells) * -(-sink // rows) * prod(a.extent for a in self.others)
        padded = np.where(columns.flags("layout", "pad"), cells + 1, cells)
        shared = sum(r.load.dtype.bytes for r in self.turned) * rows * padded
        moved = sum(r.load.dtype.bytes for r in self.turned) * rows * cells // columns.ints("threads")
        return blocks, shared, moved

    def legal(self, columns: Columns) -> Bools:
        rows, cells, threads = columns.ints("tile_sink"), columns.ints("tile_source"), columns.ints("threads")
        vector = columns.ints("vector")
        read, write, group = self.shape(vector)
        blocks, shared, moved = self._sizes(columns)
        (source, sink), (sources, sinks) = self.extents, self._tiles()
        least = (cells == sources[0]) & (rows == sinks[0])
        even = (rows // group * (cells // read)) % threads + (cells * (rows // write)) % threads == 0
        area = -(-source // cells) * cells * (-(-sink // rows) * rows)
        smallest = -(-source // sources[0]) * sources[0] * (-(-sink // sinks[0]) * sinks[0])
        sensible = (area <= WASTE * smallest) & even & (threads != 128)
        chunk, swizzled = MAX_VECTOR_BYTES // self.bytes, columns.flags("layout", "swizzle")
        spread = (group * read >= chunk) & (rows // write >= 8) & (cells >= 8 * chunk // group)
        # Shorter vectors do as well where they fit, hardly ever better: they are tried without the other variations.
        plain = ~swizzled & columns.flags("stream", 0)
        repeats = (vector != self._vectors()[0]) & ~(plain & self._shorter(vector))
        fits = limits_of(self.target).resident_blocks(threads, self._registers(columns), shared) >= 1
        fits &= (~swizzled | spread) & (moved <= MAX_HELD_BYTES) & (blocks <= MOST_BLOCKS)
        legal: Bools = fits & (sensible | (least & (even | (threads == 128)))) & ~repeats
        return legal

    def _shorter(self, vector: Ints) -> Bools:
        """Whether a vector comes down to other accesses than the longest one does."""
        first = np.array(self._vectors()[:1])
        other: Bools = np.any([a != b for a, b in zip(self.shape(vector), self.shape(first), strict=True)], axis=0)
        return other

    def _registers(self, columns: Columns) -> Ints:
        return SPARE_REGISTERS + self._sizes(columns)[2] // 4

    def derive(self, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
        blocks, shared, moved = self._sizes(columns)
        rows, cells = columns.ints("tile_sink"), columns.ints("tile_source")
        common = gpu_columns(
            limits_of(self.target),
            self.target.threads,
            blocks=blocks,
            threads=columns.ints("threads"),
            registers=self._registers(columns),
            shared=shared,
            wanted=moved,
        )
        return {
            **common,
            "read_bytes": (cells * self.bytes).astype(np.float64),
            "write_bytes": (rows * self.stages[0].tensor.dtype.bytes).astype(np.float64),
            "thread_bytes": moved.astype(np.float64),
        }

    def lower(self, setting: Mapping[str, KnobValue]) -> Kernel:
        return _Program(self, setting).kernel()


def _vector(most: int, axes: Sequence[Axis]) -> int:
    """The longest vector, a power of two up to ``most``, that the innermost of ``axes`` is made of."""
    return next(v for v in (16, 8, 4, 2, 1) if v <= most and axes[-1].extent % v == 0)


def _group(size: int, write: int) -> int:
    """Rows that share a word."""
    return max(1, min(WORD_BYTES // size, write)) if size < WORD_BYTES else 1


def _fitting(bytes_of_tiles: Sequence[int], size: int, extent: int) -> tuple[int, ...]:
    """Tile extents, in elements of ``size`` bytes, worth trying along an axis; the next power of two, at least 4, where
    the axis is shorter than they are."""
    found = tuple(n for n in (b // size for b in bytes_of_tiles) if n < 2 * extent)
    return found or (max(4, 1 << (extent - 1).bit_length()),)


class _Program:
    """The kernel of one setting."""

    def __init__(self, plan: PermutePlan, setting: Mapping[str, KnobValue]) -> None:
        self.plan = plan
        self.cells, self.rows, self.threads = (int(setting[k]) for k in ("tile_source", "tile_sink", "threads"))
        shape = plan.shape(np.array([int(setting["vector"])], np.int64))
        self.read, self.write, self.group = (int(n[0]) for n in shape)
        self.swizzled, self.order = setting["layout"] == "swizzle", str(setting["order"])
        buffers = (*plan.workload.inputs, *(s.tensor for s in plan.stages))
        moved = {r.load.buffer.name for r in plan.turned} | {s.name for s in plan.stages}
        self.evict_first = tuple(b.name for b in buffers if b.name in moved) if setting["stream"] else ()
        self.names = Names({b.name for b in buffers} | {a.name for a in plan.axes})
        self.w = Writer()
        self.source, self.sink = plan.extents

    def kernel(self) -> Kernel:
        plan, w = self.plan, self.w
        tiles = {"source": -(-self.source // self.cells), "sink": -(-self.sink // self.rows)}
        first, second = ("sink", "source") if self.order == "source" else ("source", "sink")
        counted = [*plan.others, Axis(f"{first}#", tiles[first]), Axis(f"{second}#", tiles[second])]
        bounds = [
            (self.names.fresh("block"), prod(a.extent for a in counted), HardwareAxis.GRID_X),
            (self.names.fresh("thread"), self.threads, HardwareAxis.THREAD),
        ]
        with w.launch(KERNEL_NAME, bounds, evict_first=self.evict_first) as (block, thread):
            at = dict(places(block, counted))
            i0, j0 = at.pop("source#"), at.pop("sink#")
            self._ask(block, thread, at, i0, j0)
            tiles_of = [self._tile(r) for r in plan.turned]
            for read, tile in zip(plan.turned, tiles_of, strict=True):
                self._fill(read, tile, thread, at, i0, j0)
            w.barrier()
            self._drain(tiles_of, thread, at, i0, j0)
        outputs = tuple(dict.fromkeys(plan.workload.output_buffers))
        return Kernel(KERNEL_NAME, plan.workload.inputs, outputs, (), w.finish())

    def _ask(self, block: Expr, thread: Expr, at: Mapping[str, Expr], i0: Expr, j0: Expr) -> None:
        """For the lines of the block's tile, where it is a whole one: they come sooner than by the threads' own loads,
        which ask for a piece of each (by 1 % on an H200)."""
        if self.source % self.cells or self.sink % self.rows or not limits_of(self.plan.target).clusters:
            return
        ask = L2Prefetch(self.w, (thread, self.threads), (block, 1), 1)
        for read in self.plan.turned:

            def place(_: Expr, row: Expr, load: Load = read.load) -> tuple[Expr, ...]:
                point = self._point(at, i0, j0, (index(0), self.read), (row, 1))[0]
                return tuple(value_at(i, point) for i in load.indices)

            ask.own(self.names.fresh("asked"), read.load.buffer, self.rows, self.cells, place)

    def _tile(self, read: Read) -> Buffer:
        """Shared memory of ``rows / group`` lines of ``cells`` words of ``group`` elements."""
        dtype, group = read.load.dtype, self.group
        name = self.names.fresh(f"{read.load.buffer.name}_tile")
        width = group * self.cells
        swizzle = None
        if self.swizzled:
            base = round(log2(MAX_VECTOR_BYTES // dtype.bytes))
            swizzle = Swizzle(3, base, round(log2(self.cells * self.write)) - base)
        layout = Layout((width if self.swizzled else width + group, 1), swizzle)
        return self.w.allocate(name, (self.rows // group, width), dtype, MemoryScope.SHARED, layout)

    def _fill(self, read: Read, tile: Buffer, thread: Expr, at: Mapping[str, Expr], i0: Expr, j0: Expr) -> None:
        """Read the tile by vectors along the source, all before the first is put down."""
        w, group = self.w, self.group
        chunks = self.cells // self.read
        total = self.rows // group * chunks
        count = -(-total // self.threads)
        name = self.names.fresh(f"{read.load.buffer.name}_held")
        held = w.allocate(name, (count, group, self.read), read.load.dtype, MemoryScope.REGISTER)
        with self._unrolled("k", count) as k:
            chunk, row, some = self._places(k, thread, chunks, total)
            with w.when(some), self._unrolled("h", group) as h:
                point, inside = self._point(at, i0, j0, (chunk, self.read), (row * group + h, 1))
                with w.when(inside), w.loop(self.names.fresh("v"), self.read, LoopKind.VECTORIZED) as v:
                    inner = self.plan.source[-1].name
                    w.store(held, (k, h, v), value_at(read.load, {**point, inner: point[inner] + v}))
        with self._unrolled("k", count) as k:
            chunk, row, some = self._places(k, thread, chunks, total)
            _, inside = self._point(at, i0, j0, (chunk, self.read), (row * group, 1))
            with w.when(some), w.when(inside):
                self._put(tile, held, k, row, chunk)

    def _put(self, tile: Buffer, held: Buffer, k: Expr, row: Expr, chunk: Expr) -> None:
        """Put down the vectors of ``group`` rows, their elements by turns: a word, or all of 16 bytes, at a time."""
        w, group = self.w, self.group
        count = min(group * self.read, MAX_VECTOR_BYTES // tile.dtype.bytes) if self.swizzled else group
        if group == 1:
            count = self.read
        start = chunk * (self.read * group)
        with self._unrolled("e", self.read * group // count) as e:
            with w.loop(self.names.fresh("v"), count, LoopKind.VECTORIZED) as v:
                element = e * (count // group) + v // group if group > 1 else e * count + v
                value = Load(held, (k, v % group if group > 1 else index(0), element))
                w.store(tile, (row, start + e * count + v), value)

    def _drain(self, tiles: Sequence[Buffer], thread: Expr, at: Mapping[str, Expr], i0: Expr, j0: Expr) -> None:
        """Read columns of the tiles, and write the outputs by vectors along the sink."""
        plan, w, group = self.plan, self.w, self.group
        chunks = self.rows // self.write
        total = self.cells * chunks
        with self._unrolled("k", -(-total // self.threads)) as k:
            chunk, cell, some = self._places(k, thread, chunks, total)
            point, inside = self._point(at, i0, j0, (cell, 1), (chunk, self.write))
            with w.when(some), w.when(inside):
                turned: list[Buffer] = []
                for read, tile in zip(plan.turned, tiles, strict=True):
                    name = self.names.fresh(f"{read.load.buffer.name}_turned")
                    turned.append(w.allocate(name, (self.write,), read.load.dtype, MemoryScope.REGISTER))
                    with self._unrolled("e", self.write // group) as e:
                        row = chunk * (self.write // group) + e
                        with w.loop(self.names.fresh("v"), group, LoopKind.VECTORIZED) as v:
                            w.store(turned[-1], (e * group + v,), Load(tile, (row, cell * group + v)))
                for stage in plan.stages:
                    self._store(stage, point, turned)

    def _store(self, stage: Stage, point: Mapping[str, Expr], turned: Sequence[Buffer]) -> None:
        inner = self.plan.sink[-1].name
        with self.w.loop(self.names.fresh("v"), self.write, LoopKind.VECTORIZED) as v:
            values: dict[Read, Expr] = {r: Load(b, (v,)) for r, b in zip(self.plan.turned, turned, strict=True)}
            here = {**point, inner: point[inner] + v}
            indices = tuple(here[a.name] for a in self.plan.axes)
            self.w.store(stage.tensor, indices, value_at(with_reads(stage.body, values), here))

    def _places(self, k: Expr, thread: Expr, chunks: int, total: int) -> tuple[Expr, Expr, Expr | None]:
        """Which of ``chunks`` pieces of a line, and which line, thread and turn ``k`` have, and the condition that they
        have one of the ``total``."""
        number = k * self.threads + thread
        return number % chunks, number // chunks, None if total % self.threads == 0 else number < total

    def _point(
        self, at: Mapping[str, Expr], i0: Expr, j0: Expr, source: tuple[Expr, int], sink: tuple[Expr, int]
    ) -> tuple[dict[str, Expr], Expr | None]:
        """The point of the outputs at places (number, unit) in the tile, and the condition that there is such a one."""
        point, inside = dict(at), []
        sides = ((self.plan.source, self.cells, i0, source), (self.plan.sink, self.rows, j0, sink))
        for axes, extent, tile, (number, unit) in sides:
            whole = prod(a.extent for a in axes)
            place = tile * (extent // unit) + number
            if whole % extent:
                inside.append(place < whole // unit)
            counted = [*axes[:-1], Axis(axes[-1].name, axes[-1].extent // unit)]
            point |= places(place, counted)
            point[axes[-1].name] = point[axes[-1].name] * unit
        return point, logical_and(*inside) if inside else None

    def _unrolled(self, name: str, extent: int) -> AbstractContextManager[Var]:
        return self.w.loop(self.names.fresh(name), extent, LoopKind.UNROLLED)


def _plan(workload: Workload, target: Target) -> PermutePlan | None:
    stages = resolved_outputs(workload)
    if stages is None or any(reads_at_places_read(s) for s in stages):
        return None
    axes = [a for a in stages[0].axes if a.extent > 1]
    if len(axes) < 2:
        return None
    reads = tuple(dict.fromkeys(r for s in stages for r in reads_of(s.body)))
    offsets = {r: flat_offset(r.load) for r in reads}
    found: dict[Read, LinearForm] = {}
    for read, offset in offsets.items():
        if offset is None:
            return None
        if offset.coefficient(axes[-1].name) not in (0, 1):
            found[read] = offset
    if not found or any(r.guard is not None for r in found):
        return None
    inner = {a.name for a in axes[:-1] if all(o.coefficient(a.name) == 1 for o in found.values())}
    if len(inner) != 1:
        return None
    last = next(n for n, a in enumerate(axes) if a.name in inner)
    source, sink = _merged(axes, last, found.values()), _merged(axes, len(axes) - 1, found.values())
    if set(source) & set(sink) or prod(a.extent for a in (*source, *sink)) < LEAST_TILE:
        return None
    return PermutePlan(workload, target, stages, tuple(found), source, sink)


def _merged(axes: Sequence[Axis], last: int, offsets: Iterable[LinearForm]) -> tuple[Axis, ...]:
    """The axes up to number ``last`` that inputs and outputs go through as if they were one."""
    first = last
    known = tuple(offsets)
    while first > 0 and all(
        o.coefficient(axes[first - 1].name) == o.coefficient(axes[first].name) * axes[first].extent for o in known
    ):
        first -= 1
    return tuple(axes[first : last + 1])


CUDA_PERMUTE = TileSketch("cuda_permute", 3, QUANTITIES, _plan)
