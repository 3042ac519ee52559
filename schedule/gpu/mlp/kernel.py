"""Writes the kernel of ``cuda_mlp``: layers of products on mma.sync in one launch.

A block has some rows and all columns of them, from the first layer to the last. So the accumulators of a row lie in the
registers of one block: its statistics are reduced there, and the A of the next layer takes the place of this one's.

    cp.async of A, of the vectors along n, and of B for the first tiles of k
    for each layer:
        for each tile of k:
            wait until the tile has arrived; barrier
            cp.async of B for the tile that is ``distance`` further on, be it of the next layer
            ldmatrix of A and B; mma.sync
        for each statistic:  reduce it over the lanes, the warps and the cluster
        the A of the next layer to shared memory, or the outputs to global memory

B streams through a circular buffer in shared memory. A lies there as a whole; that of a single layer streams too. The
warps of a block divide the columns. So may the blocks of a cluster, for a single layer: then each block reads a part of
B, and there is room for more rows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ....core.dtypes import float32
from ....ir.buffer import Buffer, MemoryScope
from ....ir.expr import WARP_LANES, Binary, Broadcast, Expr, Load, Ramp, Select, Var, conjunction, const, index, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import Mma
from ....ir.rewrite import substitute
from ....ir.stmt import Kernel, LoopKind
from ...loop_nest.nest import KERNEL_NAME, identity
from ...problems.gemm import element_form
from ...problems.mlp import COPY_BYTES, Mlp, MlpLayer, RowStatistic, column_vectors_of
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..block_reduce import QUAD, FragmentRowReducer
from ..launch_axes import warp_axes
from ..skinny.mma_tiles import ATOM_K, ATOM_M, ATOM_N, COPY_ELEMENTS, mma_atom_of, tile_layout
from .sizes import MlpSizes, b_is_k_major, streams_a


def lower_mlp(p: Mlp, s: MlpSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _MlpWriter(p, s).kernel()


class _MlpWriter:
    """``distance`` is how many tiles of ``k`` are copied before the first is multiplied: all of them, if there are
    stages for all."""

    def __init__(self, p: Mlp, s: MlpSizes[int]) -> None:
        self.p, self.s = p, s
        atom = mma_atom_of(p.dtype)
        assert atom is not None
        self.atom = atom
        self.b_is_k_major, self.streams_a = b_is_k_major(p), streams_a(p)
        self.k_tiles = [-(-layer.k.extent // s.tile_k) for layer in p.layers]
        self.first_tiles = [sum(self.k_tiles[:n]) for n in range(len(p.layers))]
        self.distance = s.k_tiles if s.stages >= s.k_tiles else s.stages - 1
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        bounds = warp_axes(s.blocks_m, s.warps_n, s.cluster_n)
        with w.launch(KERNEL_NAME, bounds, min_blocks=s.ctas_per_sm) as axes:
            self.warp, self.lane = axes[-2:]
            self.rank: Expr = axes[1] if s.cluster_n > 1 else index(0)
            self.first_row = axes[0] * s.block_m
            self.thread = self.warp * WARP_LANES + self.lane
            self._allocate()
            self._prologue()
            for number in range(len(p.layers)):
                with w.scope():
                    self._layer(number)
            if s.cluster_n > 1:
                w.barrier(SyncScope.CLUSTER)  # others may still read this block's statistics
        return Kernel(KERNEL_NAME, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    # --- shared memory

    def _allocate(self) -> None:
        p, s, w = self.p, self.s, self.w
        b_tile = (s.block_n, s.tile_k) if self.b_is_k_major else (s.tile_k, s.block_n)
        self.b_stages = self._tiles("b_stages", (s.stages, *b_tile))
        a_shape = (s.stages, s.block_m, s.tile_k) if self.streams_a else (1, s.block_m, max(self.k_tiles) * s.tile_k)
        self.a = self._tiles("a_tiles", a_shape)
        self.vectors = [
            {
                load: w.allocate(
                    f"{load.buffer.name}_near", (self.columns(layer),), load.buffer.dtype, MemoryScope.SHARED
                )
                for load in column_vectors_of(p, layer)
            }
            for layer in p.layers
        ]
        self.reducer = FragmentRowReducer(w, s.atoms_m, s.warps_n, s.cluster_n, self.warp, self.lane)

    def columns(self, layer: MlpLayer) -> int:
        """Return how many columns of a layer a block has."""
        return layer.n.extent // self.s.cluster_n

    def first_column(self, layer: MlpLayer) -> Expr:
        """Return the first column of a layer that this block has."""
        return self.rank * self.columns(layer)

    def _tiles(self, name: str, shape: tuple[int, int, int]) -> Buffer:
        return self.w.allocate(name, shape, self.p.dtype, MemoryScope.SHARED, tile_layout(shape))

    def _prologue(self) -> None:
        """Start the copies of A, of the vectors along ``n``, and of B for the first tiles of ``k``."""
        p, w = self.p, self.w
        if not self.streams_a:
            self._copy_a(index(0), index(0), self.k_tiles[0] * self.s.tile_k)
        for layer, vectors in zip(p.layers, self.vectors, strict=True):
            for load, near in vectors.items():
                elements = COPY_BYTES // near.dtype.bytes
                with self._divided("vector_copy", 1, near.shape[0] // elements) as (_, vector):
                    n = vector * elements
                    source = tuple(substitute(i, {"n": self.first_column(layer) + n}) for i in load.indices)
                    w.emit(CopyAsync(near, (n,), load.buffer, source, elements))
        for number, first in enumerate(self.first_tiles):
            early = min(self.k_tiles[number], self.distance - first)
            if early > 0:
                with w.loop("prologue", early) as k_tile:
                    self._copy(number, k_tile, k_tile + first)
                    w.emit(CopyAsyncCommit())

    def _copy_a(self, k: Expr, stage: Expr, elements: int) -> None:
        """Start the copies of so many elements of every row of A, from ``k`` on."""
        p, s = self.p, self.s
        load = p.a.load
        assert load is not None
        with self._divided("a_copy", s.block_m, elements // COPY_ELEMENTS) as (row, vector):
            at = {"m": self.first_row + row, "k": k + vector * COPY_ELEMENTS}
            inside: list[Expr] = [at["m"] < p.m.extent] if p.m.extent % s.block_m else []
            inside += self._inside_k(0, at["k"])
            source = tuple(substitute(i, at) for i in load.indices)
            to = (stage, row, vector * COPY_ELEMENTS)
            self.w.emit(CopyAsync(self.a, to, load.buffer, source, COPY_ELEMENTS, conjunction(*inside)))

    @contextmanager
    def _divided(self, name: str, rows: int, vectors: int) -> Iterator[tuple[Expr, Expr]]:
        """The vectors of some rows divided among all threads: (row, vector)."""
        with self.w.shared_out(name, rows * vectors, self.s.threads, self.thread, LoopKind.UNROLLED) as item:
            yield (item // vectors, item % vectors) if rows > 1 else (index(0), item)

    def _copy(self, number: int, k_tile: Expr, count: Expr) -> None:
        """Start the copies of one tile of ``k`` of a layer; ``count`` is its number among the tiles of all layers."""
        layer, s = self.p.layers[number], self.s
        if self.streams_a:
            self._copy_a(k_tile * s.tile_k, count % s.stages, s.tile_k)
        load = layer.b.load
        assert load is not None
        rows, columns = (self.columns(layer), s.tile_k) if self.b_is_k_major else (s.tile_k, self.columns(layer))
        with self._divided("b_copy", rows, columns // COPY_ELEMENTS) as (row, vector):
            n, k = (row, vector * COPY_ELEMENTS) if self.b_is_k_major else (vector * COPY_ELEMENTS, row)
            at = {"n": self.first_column(layer) + n, "k": k_tile * s.tile_k + k}
            inside = self._inside_k(number, at["k"])
            source = tuple(substitute(i, at) for i in load.indices)
            to = (count % s.stages, row, vector * COPY_ELEMENTS)
            self.w.emit(CopyAsync(self.b_stages, to, load.buffer, source, COPY_ELEMENTS, conjunction(*inside)))

    def _inside_k(self, number: int, k: Expr) -> list[Expr]:
        extent = self.p.layers[number].k.extent
        return [k < extent] if extent % self.s.tile_k else []

    # --- a layer

    def _layer(self, number: int) -> None:
        s, w = self.s, self.w
        layer = _MlpLayerWriter(self, number)
        with (
            w.unrolled("zero_m", s.atoms_m) as i,
            w.unrolled("zero_n", layer.atoms_n) as j,
            w.unrolled("zero_element", 4) as e,
        ):
            w.store(layer.accumulators, (i, j, e), const(0.0, float32))
        with w.loop("k_tile", self.k_tiles[number]) as k_tile:
            count = k_tile + self.first_tiles[number]
            w.emit(CopyAsyncWait(self.distance - 1))
            w.barrier()
            self._refill(number, k_tile)
            w.emit(CopyAsyncCommit())
            layer.multiply(k_tile, count % s.stages)
        for statistic in layer.layer.statistics:
            layer.reduce(statistic)
        if layer.layer.value is None:
            layer.store_outputs()
            return
        if not layer.layer.statistics or s.warps_n == 1:
            w.barrier()  # all warps have read this layer's A
        layer.store_next_a(layer.layer.value)

    def _refill(self, number: int, k_tile: Expr) -> None:
        """Start the copies of the tile of ``k`` that is ``distance`` further on, in whichever layer that is."""
        first, w = self.first_tiles[number] + self.distance, self.w
        last = first + self.k_tiles[number] - 1
        for other, start in enumerate(self.first_tiles):
            end = start + self.k_tiles[other] - 1
            if end < first or start > last:
                continue
            inside = [k_tile >= start - first] if start > first else []
            inside += [k_tile <= end - first] if end < last else []
            with w.when(*inside):
                self._copy(other, k_tile + (first - start), k_tile + first)


class _MlpLayerWriter:
    """What a warp does for one layer: all rows of the block, and ``atoms_n`` times 8 columns. Where the columns are not
    divided evenly, a warp repeats the last 8 columns, and drops what it computes for them again."""

    def __init__(self, writer: _MlpWriter, number: int) -> None:
        self.writer, self.p, self.s, self.w = writer, writer.p, writer.s, writer.w
        self.layer, self.near = self.p.layers[number], writer.vectors[number]
        self.warp, self.lane, self.reducer = writer.warp, writer.lane, writer.reducer
        self.first_column = writer.first_column(self.layer)
        self.last_atom = writer.columns(self.layer) // ATOM_N - 1
        self.atoms_n = -(-(self.last_atom + 1) // self.s.warps_n)
        self.uneven = self.atoms_n * self.s.warps_n > self.last_atom + 1
        shape = (self.s.atoms_m, self.atoms_n, 4)
        self.accumulators = self.w.allocate("accumulators", shape, float32, MemoryScope.REGISTER)
        self.statistics: dict[str, Buffer] = {}

    def _atom(self, j: Expr) -> Expr:
        """Return the number of one of the warp's atoms along ``n``; beyond the last one that again."""
        atom = self.warp * self.atoms_n + j
        return minimum(atom, index(self.last_atom)) if self.uneven else atom

    def _counts(self, j: Expr) -> list[Expr]:
        """Return the condition that an atom along ``n`` is no repetition."""
        return [self.warp * self.atoms_n + j <= self.last_atom] if self.uneven else []

    def multiply(self, k_tile: Expr, stage: Expr) -> None:
        """Add the products of one tile of ``k`` to the accumulators."""
        s, w, writer, zero = self.s, self.w, self.writer, index(0)
        low, high = self.lane % 8, self.lane // 8
        with w.unrolled("k_pair", s.tile_k // (2 * ATOM_K)) as pair:
            a = w.allocate("a", (s.atoms_m, 2, 8), self.p.dtype, MemoryScope.REGISTER)
            with w.unrolled("a_atom", s.atoms_m) as i, w.unrolled("a_half", 2) as h:
                k = pair * (2 * ATOM_K) + h * ATOM_K + high // 2 * 8
                row = i * ATOM_M + high % 2 * 8 + low
                source = (stage, row, k) if writer.streams_a else (zero, row, k_tile * s.tile_k + k)
                w.emit(LoadMatrix(a, (i, h, zero), writer.a, source, 4))
            with w.unrolled("atom_n", self.atoms_n) as j:
                b = w.allocate("b", (8,), self.p.dtype, MemoryScope.REGISTER)
                n, k = self._atom(j) * ATOM_N, pair * (2 * ATOM_K) + high * 8
                source = (stage, n + low, k) if writer.b_is_k_major else (stage, k + low, n)
                w.emit(LoadMatrix(b, (zero,), writer.b_stages, source, 4, not writer.b_is_k_major))
                with w.unrolled("half", 2) as h, w.unrolled("atom_m", s.atoms_m) as i:
                    w.emit(Mma(writer.atom.name, self.accumulators, (i, j, zero), a, (i, h, zero), b, (h * 4,)))

    # --- the epilogue

    def _at(self, row: Expr, j: Expr) -> dict[str, Expr]:
        """Return the indices of the first of two neighbouring accumulators. Beyond the last row they are those of the
        last."""
        m = self.writer.first_row + row
        if self.p.m.extent % self.s.block_m:
            m = minimum(m, index(self.p.m.extent - 1))
        return {"m": m, "n": self.first_column + self._atom(j) * ATOM_N + self.lane % QUAD * 2}

    def _pair(self, body: Expr, at: Mapping[str, Expr], i: Expr, half: Expr, j: Expr) -> Expr:
        """``body`` at two neighbours from ``at`` on."""
        return vector_at(body, at, "n", 2, self._loads(at, i, half, j))

    def _loads(self, at: Mapping[str, Expr], i: Expr, half: Expr, j: Expr) -> Callable[[Load], Expr]:
        """Return what stands for the loads of a body: accumulators and statistics in registers, vectors in shared
        memory."""
        element = Var("n") - at["n"] + half * 2

        def load(e: Load) -> Expr:
            if e.buffer.name == self.layer.accumulator.name:
                return Load(self.accumulators, (i, j, element))
            if e.buffer.name in self.statistics:
                return Load(self.statistics[e.buffer.name], (i, half))
            return Load(self.near[e], (Var("n") - self.first_column,)) if e in self.near else e

        return load

    def reduce(self, statistic: RowStatistic) -> None:
        """Every lane gets a statistic of each of its rows."""
        w, op = self.w, statistic.combine
        value = w.allocate(statistic.tensor.name, (self.s.atoms_m, 2), float32, MemoryScope.REGISTER)
        nothing = identity(op, float32)
        with self.reducer.rows() as (i, half, row):
            w.store(value, (i, half), nothing)
            with w.unrolled("column", self.atoms_n) as j:
                pair = w.allocate("pair", (2,), float32, MemoryScope.REGISTER)
                at = self._at(row, j)
                w.store(pair, (Ramp(index(0), 1, 2),), self._pair(statistic.body, at, i, half, j))
                term: Expr = Binary(op, Load(pair, (index(0),)), Load(pair, (index(1),)))
                for counts in self._counts(j):
                    term = Select(counts, term, nothing)
                w.store(value, (i, half), Binary(op, Load(value, (i, half)), term))
        self.reducer.reduce(op, value)
        self.statistics[statistic.tensor.name] = value

    def store_next_a(self, value: Expr) -> None:
        """Store the A of the next layer in shared memory, in place of this one's."""
        w = self.w
        with self.reducer.rows() as (i, half, row), w.unrolled("column", self.atoms_n) as j:
            at, counts = self._at(row, j), self._counts(j)
            to = (Broadcast(index(0), 2), Broadcast(row, 2), Ramp(at["n"], 1, 2))
            with w.when(*counts):
                w.store(self.writer.a, to, self._pair(value, at, i, half, j))

    def store_outputs(self) -> None:
        """Store the outputs of the last layer in global memory."""
        w, p = self.w, self.p
        with self.reducer.rows() as (i, half, row), w.unrolled("column", self.atoms_n) as j:
            at, inside = {**self._at(row, j), "m": self.writer.first_row + row}, self._counts(j)
            if p.m.extent % self.s.block_m:
                inside.append(at["m"] < p.m.extent)
            with w.when(*inside):
                for result in p.results:
                    indices = [vector_at(i_, at, "n", 2) for i_ in result.indices]
                    to = [i_.value if isinstance(i_, Broadcast) else i_ for i_ in indices]
                    w.store(result.tensor, to, self._pair(result.value, at, i, half, j))


def can_lower_mlp(p: Mlp) -> bool:
    """Return whether all operands are plain loads of one type that mma.sync takes, in rows that are whole vectors of 16
    bytes: A K-major, B of all layers K-major or of all N-major. Later layers' A must be of that type too."""
    all_b = [layer.b for layer in p.layers]
    operands = [p.a, *all_b]
    loads = [o.load for o in operands if o.load is not None]
    if len(loads) < len(operands) or any(load.buffer.dtype != loads[0].buffer.dtype for load in loads):
        return False
    if mma_atom_of(p.dtype) is None:
        return False
    if any(layer.value is not None and layer.value.dtype != p.dtype for layer in p.layers):
        return False
    whole = all(layer.n.extent % ATOM_N == 0 and layer.k.extent % COPY_ELEMENTS == 0 for layer in p.layers)
    strides = [(p.a.k, p.a.row), *((o.k, o.row) if b_is_k_major(p) else (o.row, o.k) for o in all_b)]
    return whole and all(
        inner == 1 and outer % COPY_ELEMENTS == 0 and element_form(load).constant % COPY_ELEMENTS == 0
        for (inner, outer), load in zip(strides, loads, strict=True)
    )
