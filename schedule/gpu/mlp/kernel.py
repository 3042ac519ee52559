"""Layers of products in one launch: a block has some rows and all columns of them, from the first layer to the last.

Weights stream through a ring in shared memory, those of the next layer already while the one before is worked on; what
comes in lies in shared memory whole, but for a single layer, where it streams too. Warps share out the columns. So the
sums of a row lie in the registers of one block: its statistics are reduced there, and what the next layer multiplies
takes the place of what came in. The blocks of a cluster may share out the columns of one layer: then each reads a part
of the weights, and more rows fit.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.expr import (
    WARP_LANES,
    Binary,
    Broadcast,
    Compare,
    CompareOp,
    Expr,
    Load,
    Ramp,
    Select,
    Var,
    const,
    index,
    logical_and,
    minimum,
)
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import WARP_MMA_ATOMS, Mma
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...loop_nest.nest import identity
from ...problems.gemm import flat_steps
from ...problems.mlp import PIECE_BYTES, Layer, Layers, Statistic, vectors_of
from ...tile.naming import NamingWriter
from ...tile.stage_body import vector_at
from ..skinny.mma_mainloop import COLUMNS, DEPTH, PIECE, ROWS, tile_pitch
from .row_reduce import QUAD, RowReducer

UNROLLED = LoopKind.UNROLLED


@dataclass(frozen=True, slots=True)
class LayerSetting:
    """``rows``: times 16 rows of a block. ``warps``: of a block, which share out the columns. ``chunk``: places of
    ``k`` that arrive together. ``stages``: how many such pieces the ring holds. ``cluster``: blocks that share out the
    columns, of a single layer. ``resident``: blocks meant for a multiprocessor at once."""

    rows: int
    warps: int
    chunk: int
    stages: int
    cluster: int
    resident: int

    @property
    def block_m(self) -> int:
        return self.rows * ROWS

    @property
    def threads(self) -> int:
        return self.warps * WARP_LANES


def lower_layers(p: Layers, name: str, s: LayerSetting) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


class _Program:
    def __init__(self, p: Layers, name: str, s: LayerSetting) -> None:
        self.p, self.s, self.name = p, s, name
        self.atom = next(
            a for a in WARP_MMA_ATOMS.values() if a.operand == p.dtype and (a.m, a.n, a.k) == (ROWS, COLUMNS, DEPTH)
        )
        self.along_k, self.streams = lies_along_k(p), len(p.layers) == 1
        self.steps = [-(-layer.k.extent // s.chunk) for layer in p.layers]
        self.first_steps = [sum(self.steps[:n]) for n in range(len(p.layers))]
        total = sum(self.steps)
        self.ahead = total if s.stages >= total else s.stages - 1
        self.w = NamingWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = [
            ("block", -(-p.m.extent // s.block_m), HardwareAxis.GRID_X),
            ("rank", s.cluster, HardwareAxis.CLUSTER),
            ("warp", s.warps, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.cluster == 1:
            del bounds[1]
        with w.launch(self.name, bounds, min_blocks=s.resident) as axes:
            self.warp, self.lane = axes[-2:]
            self.rank: Expr = axes[1] if s.cluster > 1 else index(0)
            self.row = axes[0] * s.block_m
            self.thread = self.warp * WARP_LANES + self.lane
            self._allocate()
            self._begin()
            for number in range(len(p.layers)):
                with w.scope():
                    self._layer(number)
            if s.cluster > 1:
                w.barrier(SyncScope.CLUSTER)  # others may still read what this block found
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    # --- shared memory

    def _allocate(self) -> None:
        p, s, w = self.p, self.s, self.w
        widest = max(self.columns(layer) for layer in p.layers)
        lines, columns = (widest, s.chunk) if self.along_k else (s.chunk, widest)
        self.ring = self._tiles("ring", (s.stages, lines, columns))
        held = (s.stages, s.block_m, s.chunk) if self.streams else (1, s.block_m, max(self.steps) * s.chunk)
        self.a = self._tiles("tokens", held)
        self.vectors = [
            {
                load: w.allocate(
                    f"{load.buffer.name}_near", (self.columns(layer),), load.buffer.dtype, MemoryScope.SHARED
                )
                for load in vectors_of(p, layer)
            }
            for layer in p.layers
        ]
        self.reducer = RowReducer(w, s.rows, s.warps, s.cluster, self.warp, self.lane)

    def columns(self, layer: Layer) -> int:
        """Of a layer, how many a block has."""
        return layer.n.extent // self.s.cluster

    def first(self, layer: Layer) -> Expr:
        """The first column that this block has."""
        return self.rank * self.columns(layer)

    def _tiles(self, name: str, shape: tuple[int, int, int]) -> Buffer:
        """Tiles of rows; eight rows at one column lie in different banks."""
        _, rows, columns = shape
        pitch = tile_pitch(columns)
        swizzle = Swizzle(3, 3, columns.bit_length() - 4) if pitch == columns else None
        return self.w.allocate(name, shape, self.p.dtype, MemoryScope.SHARED, Layout((rows * pitch, pitch, 1), swizzle))

    def _begin(self) -> None:
        """Start the copies of what comes in, of vectors, and of the weights of the first steps."""
        p, w = self.p, self.w
        if not self.streams:
            self._copy_tokens(index(0), index(0), self.steps[0] * self.s.chunk)
        for layer, vectors in zip(p.layers, self.vectors, strict=True):
            for load, near in vectors.items():
                elements = PIECE_BYTES // near.dtype.bytes
                with self._pieces("vector_copy", 1, near.shape[0] // elements) as (_, column):
                    place = column * elements
                    source = tuple(substitute(i, {"n": self.first(layer) + place}) for i in load.indices)
                    w.emit(CopyAsync(near, (place,), load.buffer, source, elements))
        for number, first in enumerate(self.first_steps):
            early = min(self.steps[number], self.ahead - first)
            if early > 0:
                with w.loop("early", early) as step:
                    self._copy(number, step, step + first)
                    w.emit(CopyAsyncCommit())

    def _copy_tokens(self, k: Expr, stage: Expr, places: int) -> None:
        """Start the copies of so many places of what comes in, from ``k`` on."""
        p, s = self.p, self.s
        load = p.a.load
        assert load is not None
        with self._pieces("token_copy", s.block_m, places // PIECE) as (row, column):
            at = {"m": self.row + row, "k": k + column * PIECE}
            inside: list[Expr] = [Compare(CompareOp.LT, at["m"], index(p.m.extent))] if p.m.extent % s.block_m else []
            inside += self._inside_k(0, at["k"])
            source = tuple(substitute(i, at) for i in load.indices)
            mask = logical_and(*inside) if inside else None
            self.w.emit(CopyAsync(self.a, (stage, row, column * PIECE), load.buffer, source, PIECE, mask))

    @contextmanager
    def _pieces(self, name: str, rows: int, pieces: int) -> Iterator[tuple[Expr, Expr]]:
        """Rows of pieces dealt out to all threads: (row, piece)."""
        w, s = self.w, self.s
        rounds = -(-rows * pieces // s.threads)
        with w.loop(name, rounds, UNROLLED) as turn:
            item = turn * s.threads + self.thread
            spare = rounds * s.threads > rows * pieces
            with w.when(Compare(CompareOp.LT, item, index(rows * pieces)) if spare else None):
                yield (item // pieces, item % pieces) if rows > 1 else (index(0), item)

    def _copy(self, number: int, step: Expr, count: Expr) -> None:
        """Start the copies of one step of a layer; ``count``: its number among all steps."""
        layer, s = self.p.layers[number], self.s
        if self.streams:
            self._copy_tokens(step * s.chunk, count % s.stages, s.chunk)
        load = layer.b.load
        assert load is not None
        lines, columns = (self.columns(layer), s.chunk) if self.along_k else (s.chunk, self.columns(layer))
        with self._pieces("weight_copy", lines, columns // PIECE) as (line, piece):
            n, k = (line, piece * PIECE) if self.along_k else (piece * PIECE, line)
            at = {"n": self.first(layer) + n, "k": step * s.chunk + k}
            inside = self._inside_k(number, at["k"])
            source = tuple(substitute(i, at) for i in load.indices)
            target = (count % s.stages, line, piece * PIECE)
            mask = logical_and(*inside) if inside else None
            self.w.emit(CopyAsync(self.ring, target, load.buffer, source, PIECE, mask))

    def _inside_k(self, number: int, k: Expr) -> list[Expr]:
        extent = self.p.layers[number].k.extent
        return [Compare(CompareOp.LT, k, index(extent))] if extent % self.s.chunk else []

    # --- a layer

    def _layer(self, number: int) -> None:
        s, w = self.s, self.w
        work = _Work(self, number)
        with (
            w.loop("zero_row", s.rows, UNROLLED) as i,
            w.loop("zero_tile", work.tiles, UNROLLED) as j,
            w.loop("zero_sum", 4, UNROLLED) as e,
        ):
            w.store(work.sums, (i, j, e), const(0.0, float32))
        with w.loop("step", self.steps[number]) as step:
            count = step + self.first_steps[number]
            w.emit(CopyAsyncWait(self.ahead - 1))
            w.barrier()
            self._refill(number, step)
            w.emit(CopyAsyncCommit())
            work.multiply(step, count % s.stages)
        for statistic in work.layer.statistics:
            work.reduce(statistic)
        if work.layer.value is None:
            work.store_results()
            return
        if not work.layer.statistics or s.warps == 1:
            w.barrier()  # what came in has been read
        work.pass_on(work.layer.value)

    def _refill(self, number: int, step: Expr) -> None:
        """Start the copies of the step that is ``ahead`` of this one, in whichever layer that is."""
        first, w = self.first_steps[number] + self.ahead, self.w
        last = first + self.steps[number] - 1
        for other, start in enumerate(self.first_steps):
            end = start + self.steps[other] - 1
            if end < first or start > last:
                continue
            inside = [Compare(CompareOp.GE, step, index(start - first))] if start > first else []
            inside += [Compare(CompareOp.LE, step, index(end - first))] if end < last else []
            with w.when(logical_and(*inside) if inside else None):
                self._copy(other, step + (first - start), step + first)


class _Work:
    """What a warp does of one layer: its sums, of all rows and ``tiles`` times 8 columns."""

    def __init__(self, program: _Program, number: int) -> None:
        self.program, self.p, self.s, self.w = program, program.p, program.s, program.w
        self.layer, self.near = self.p.layers[number], program.vectors[number]
        self.warp, self.lane, self.reducer = program.warp, program.lane, program.reducer
        self.first = program.first(self.layer)
        self.last_tile = program.columns(self.layer) // COLUMNS - 1
        self.tiles = -(-(self.last_tile + 1) // self.s.warps)
        self.padded = self.tiles * self.s.warps > self.last_tile + 1
        self.sums = self.w.allocate("sums", (self.s.rows, self.tiles, 4), float32, MemoryScope.REGISTER)
        self.found: dict[str, Buffer] = {}

    def _tile(self, j: Expr) -> Expr:
        """A tile of the warp; beyond the last one that again, whose sums do not count then."""
        tile = self.warp * self.tiles + j
        return minimum(tile, index(self.last_tile)) if self.padded else tile

    def _counts(self, j: Expr) -> list[Expr]:
        return [Compare(CompareOp.LE, self.warp * self.tiles + j, index(self.last_tile))] if self.padded else []

    def multiply(self, step: Expr, stage: Expr) -> None:
        """Add the products of one step to the sums."""
        s, w, program, zero = self.s, self.w, self.program, index(0)
        low, high = self.lane % 8, self.lane // 8
        with w.loop("pair", s.chunk // (2 * DEPTH), UNROLLED) as pair:
            a = w.allocate("a", (s.rows, 2, 8), self.p.dtype, MemoryScope.REGISTER)
            with w.loop("a_row", s.rows, UNROLLED) as i, w.loop("a_half", 2, UNROLLED) as h:
                k = pair * (2 * DEPTH) + h * DEPTH + high // 2 * 8
                row = i * ROWS + high % 2 * 8 + low
                source = (stage, row, k) if program.streams else (zero, row, step * s.chunk + k)
                w.emit(LoadMatrix(a, (i, h, zero), program.a, source, 4))
            with w.loop("tile", self.tiles, UNROLLED) as j:
                b = w.allocate("b", (8,), self.p.dtype, MemoryScope.REGISTER)
                n, k = self._tile(j) * COLUMNS, pair * (2 * DEPTH) + high * 8
                place = (stage, n + low, k) if program.along_k else (stage, k + low, n)
                w.emit(LoadMatrix(b, (zero,), program.ring, place, 4, not program.along_k))
                with w.loop("half", 2, UNROLLED) as h, w.loop("row", s.rows, UNROLLED) as i:
                    w.emit(Mma(program.atom.name, self.sums, (i, j, zero), a, (i, h, zero), b, (h * 4,)))

    # --- what becomes of the sums

    def _at(self, row: Expr, j: Expr) -> dict[str, Expr]:
        """The place of a pair of neighbours; beyond the last row that again."""
        m = self.program.row + row
        if self.p.m.extent % self.s.block_m:
            m = minimum(m, index(self.p.m.extent - 1))
        return {"m": m, "n": self.first + self._tile(j) * COLUMNS + self.lane % QUAD * 2}

    def _pair(self, body: Expr, at: Mapping[str, Expr], i: Expr, half: Expr, j: Expr) -> Expr:
        """``body`` at two neighbours from ``at`` on."""
        return vector_at(body, at, "n", 2, self._loads(at, i, half, j))

    def _loads(self, at: Mapping[str, Expr], i: Expr, half: Expr, j: Expr) -> Callable[[Load], Expr]:
        place = Var("n") - at["n"] + half * 2

        def load(e: Load) -> Expr:
            if e.buffer.name == self.layer.accumulator.name:
                return Load(self.sums, (i, j, place))
            if e.buffer.name in self.found:
                return Load(self.found[e.buffer.name], (i, half))
            return Load(self.near[e], (Var("n") - self.first,)) if e in self.near else e

        return load

    def reduce(self, statistic: Statistic) -> None:
        """Every lane gets a statistic of each of its rows."""
        w, op = self.w, statistic.combine
        value = w.allocate(statistic.tensor.name, (self.s.rows, 2), float32, MemoryScope.REGISTER)
        nothing = identity(op, float32)
        with self.reducer.lines() as (i, half, row):
            w.store(value, (i, half), nothing)
            with w.loop("column", self.tiles, UNROLLED) as j:
                pair = w.allocate("pair", (2,), float32, MemoryScope.REGISTER)
                at = self._at(row, j)
                w.store(pair, (Ramp(index(0), 1, 2),), self._pair(statistic.body, at, i, half, j))
                term: Expr = Binary(op, Load(pair, (index(0),)), Load(pair, (index(1),)))
                for counts in self._counts(j):
                    term = Select(counts, term, nothing)
                w.store(value, (i, half), Binary(op, Load(value, (i, half)), term))
        self.reducer.reduce(op, value)
        self.found[statistic.tensor.name] = value

    def pass_on(self, value: Expr) -> None:
        """What the next layer multiplies, in place of what came in."""
        w = self.w
        with self.reducer.lines() as (i, half, row), w.loop("column", self.tiles, UNROLLED) as j:
            at, counts = self._at(row, j), self._counts(j)
            place = (Broadcast(index(0), 2), Broadcast(row, 2), Ramp(at["n"], 1, 2))
            with w.when(logical_and(*counts) if counts else None):
                w.store(self.program.a, place, self._pair(value, at, i, half, j))

    def store_results(self) -> None:
        w, p = self.w, self.p
        with self.reducer.lines() as (i, half, row), w.loop("column", self.tiles, UNROLLED) as j:
            at, inside = {**self._at(row, j), "m": self.program.row + row}, self._counts(j)
            if p.m.extent % self.s.block_m:
                inside.append(Compare(CompareOp.LT, at["m"], index(p.m.extent)))
            with w.when(logical_and(*inside) if inside else None):
                for result in p.results:
                    indices = [vector_at(at_, at, "n", 2) for at_ in result.indices]
                    place = [at_.value if isinstance(at_, Broadcast) else at_ for at_ in indices]
                    w.store(result.tensor, place, self._pair(result.value, at, i, half, j))


def lies_along_k(p: Layers) -> bool:
    """Whether the weights lie along ``k``, not along ``n``."""
    return p.layers[0].b.k == 1


def can_lower_layers(p: Layers) -> bool:
    """Whether all operands are plain loads of one type that matrix instructions take, in rows of whole copies along
    ``k``, the weights of all layers along ``k`` or along ``n``, and what is passed on is of that type."""
    weights = [layer.b for layer in p.layers]
    operands = [p.a, *weights]
    loads = [o.load for o in operands if o.load is not None]
    if len(loads) < len(operands) or any(load.buffer.dtype != loads[0].buffer.dtype for load in loads):
        return False
    if not any(a.operand == p.dtype for a in WARP_MMA_ATOMS.values()):
        return False
    if any(layer.value is not None and layer.value.dtype != p.dtype for layer in p.layers):
        return False
    whole = all(layer.n.extent % COLUMNS == 0 and layer.k.extent % PIECE == 0 for layer in p.layers)
    strides = [(p.a.k, p.a.row), *((o.k, o.row) if lies_along_k(p) else (o.row, o.k) for o in weights)]
    return whole and all(
        inner == 1 and outer % PIECE == 0 and flat_steps(load).constant % PIECE == 0
        for (inner, outer), load in zip(strides, loads, strict=True)
    )
