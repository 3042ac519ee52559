"""Large products on the matrix instructions of warps, which all architectures from sm_80 on have.

All threads of a block start asynchronous copies of both operands into a ring of stages in shared memory, some steps
ahead of the products. Warps share out the tile of the result; each loads the fragments of the next 16 places of ``k``
while it multiplies those of the last, across the end of a step too. Copies are as wide as the rows of an operand are
aligned, 16 bytes at best; what begins at odd elements goes through registers, a step ahead of its store.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope, Swizzle
from ....ir.expr import WARP_LANES, Broadcast, Expr, Load, Ramp, Unary, UnaryOp, const, index, logical_and, minimum
from ....ir.gpu.async_copy import CopyAsync, CopyAsyncCommit, CopyAsyncWait
from ....ir.gpu.barrier import SyncScope
from ....ir.gpu.ldmatrix import LoadMatrix
from ....ir.gpu.mma import WARP_MMA_ATOMS, Mma
from ....ir.rewrite import substitute
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..gemm.repack import repack
from ..gemm.tile_scheduler import TileScheduler
from ..split_k import TileSlice, reduce_tile, store_outputs
from .operands import ATOM_K, ATOM_M, ATOM_N, SCALARS, piece_of, tile_pitch
from .sizes import PARTIAL_PADDING, GemmMmaSizes

UNROLLED = LoopKind.UNROLLED
GROUP_M = 8
"""Tiles along m that are scheduled before the next along n."""


def lower_mma(p: Gemm, name: str, s: GemmMmaSizes[int]) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


@dataclass(frozen=True, slots=True)
class _Tile:
    """One operand: (stage, row, column) in shared memory, rows along ``outer``, columns along ``inner``. ``piece``:
    elements of a copy. ``held``: registers by way of which it goes, (turn, element)."""

    load: Load
    ring: Buffer
    outer: str
    inner: str
    piece: int
    held: Buffer | None

    @property
    def along_k(self) -> bool:
        return self.inner == "k"


class _Program:
    def __init__(self, p: Gemm, name: str, s: GemmMmaSizes[int]) -> None:
        self.p, self.s, self.name = p, s, name
        self.dtype = p.a.load.buffer.dtype if p.a.load is not None else p.accumulator.dtype
        self.atom = next(
            a for a in WARP_MMA_ATOMS.values() if a.operand == self.dtype and (a.m, a.k) == (ATOM_M, ATOM_K)
        )
        self.steps = -(-p.k.extent // (s.split_k * s.block_k))
        self.ahead = max(s.stages - 1, 1)
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        s, w = self.s, self.w
        copies: tuple[Buffer, ...] = ()
        if s.repacked:
            self.p, copies = repack(w, self.p)
        p = self.p
        scheduler = TileScheduler(p, s.tile_m, s.tile_n, GROUP_M)
        bounds = [
            ("tile", scheduler.cluster_tiles, HardwareAxis.GRID_X),
            ("rank", s.split_k, HardwareAxis.CLUSTER),
            ("warp", s.warps_m * s.warps_n, HardwareAxis.WARP),
            ("lane", WARP_LANES, HardwareAxis.LANE),
        ]
        if s.split_k == 1:
            del bounds[1]
        with w.launch(self.name, bounds, min_blocks=s.ctas_per_sm) as axes:
            self.warp, self.lane = axes[-2], axes[-1]
            self.rank: Expr = axes[1] if s.split_k > 1 else index(0)
            self.thread = self.warp * WARP_LANES + self.lane
            self.at = scheduler.origin(axes[0], index(0))
            self.own_m = self.warp // s.warps_n * (s.atoms_m * ATOM_M) if s.warps_m > 1 else index(0)
            self.own_n = self.warp % s.warps_n * (s.atoms_n * ATOM_N) if s.warps_n > 1 else index(0)
            sums = w.allocate("sums", (s.atoms_m, 2 * s.atoms_n, 4), float32, MemoryScope.REGISTER)
            with w.scope():
                self._multiply(sums)
            with w.scope():
                if s.staged_epilogue:
                    self._stage_results(sums)
                else:
                    self._store_results(sums)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), copies, w.finish())

    # --- operands in shared memory

    def _tile(self, name: str, operand: Operand, axis: str, extent: int) -> _Tile:
        """Its ring. Eight rows at one column lie in different banks: by a swizzle, or by 16 bytes of padding where a
        row is no power of two."""
        s = self.s
        piece, along_k = piece_of(self.p, operand, axis)
        assert operand.load is not None
        rows, columns = (extent, s.block_k) if along_k else (s.block_k, extent)
        pitch = tile_pitch(columns)
        bits = columns.bit_length() - 1
        swizzle = Swizzle(min(bits - 3, 3), 3, max(bits, 6) - 3) if pitch == columns else None
        layout = Layout((rows * pitch, pitch, 1), swizzle)
        ring = self.w.allocate(name, (s.stages, rows, columns), self.dtype, MemoryScope.SHARED, layout)
        held = None
        if piece == 1:
            turns = -(-rows * columns // (SCALARS * s.threads))
            held = self.w.allocate(f"{name}_held", (turns, SCALARS), self.dtype, MemoryScope.REGISTER)
        outer, inner = (axis, "k") if along_k else ("k", axis)
        return _Tile(operand.load, ring, outer, inner, piece, held)

    def _copy(self, tile: _Tile, step: Expr, stage: Expr) -> None:
        """Start the asynchronous copies of a step to a stage. Where they would be beyond the end of ``k`` zeros arrive;
        of places beyond the others', anything that exists will do."""
        with self._dealt(tile, tile.piece) as (_, row, column):
            at = self._place(tile, step, row, column)
            mask = None if self._is_whole("k") else at["k"] < self.p.k.extent
            at[tile.outer] = self._clamped(at, tile.outer, 1)
            at[tile.inner] = self._clamped(at, tile.inner, tile.piece)
            indices = tuple(substitute(i, at) for i in tile.load.indices)
            self.w.emit(CopyAsync(tile.ring, (stage, row, column), tile.load.buffer, indices, tile.piece, mask))

    def _take(self, tile: _Tile, held: Buffer, step: Expr) -> None:
        """Load what is copied in a step into registers; zeros where it lies beyond the end."""
        w, buffer = self.w, tile.load.buffer
        end = self._place(tile, step, *(index(n) for n in tile.ring.shape[1:]))
        ragged = [axis for axis in dict.fromkeys(("k", tile.inner)) if not self._is_whole(axis)]
        whole = logical_and(*(end[axis] <= self._extent(axis) for axis in ragged)) if ragged else None
        with w.when(whole), self._dealt(tile, SCALARS) as (turn, row, column):
            at = self._place(tile, step, row, column)
            at[tile.outer] = self._clamped(at, tile.outer, 1)
            indices = tuple(vector_at(i, at, tile.inner, SCALARS) for i in tile.load.indices)
            w.store(held, (Broadcast(turn, SCALARS), Ramp(index(0), 1, SCALARS)), Load(buffer, indices))
        if whole is None:
            return
        with w.when(Unary(UnaryOp.NOT, whole)), self._dealt(tile, SCALARS) as (turn, row, column):
            at = self._place(tile, step, row, column)
            at[tile.outer] = self._clamped(at, tile.outer, 1)
            with w.loop("element", SCALARS, UNROLLED) as e:
                here = {**at, tile.inner: at[tile.inner] + e}
                inside = logical_and(*(here[axis] < self._extent(axis) for axis in ragged))
                w.store(held, (turn, e), Load(buffer, tuple(substitute(i, here) for i in tile.load.indices), inside))

    def _clamped(self, at: Mapping[str, Expr], axis: str, elements: int) -> Expr:
        """A place along ``m`` or ``n`` where a piece of so many elements begins; one along ``k`` as it is."""
        if axis == "k" or self._is_whole(axis):
            return at[axis]
        return minimum(at[axis], index((self._extent(axis) - 1) // elements * elements))

    def _put(self, tile: _Tile, held: Buffer, stage: Expr) -> None:
        """Store what was taken to a stage."""
        with self._dealt(tile, SCALARS) as (turn, row, column):
            place = (Broadcast(stage, SCALARS), Broadcast(row, SCALARS), Ramp(column, 1, SCALARS))
            self.w.store(tile.ring, place, Load(held, (Broadcast(turn, SCALARS), Ramp(index(0), 1, SCALARS))))

    @contextmanager
    def _dealt(self, tile: _Tile, piece: int) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Pieces of a step, dealt out to the threads of the block: the turn, row and column."""
        rows, columns, threads = *tile.ring.shape[1:], self.s.threads
        pieces = rows * columns // piece
        with self.w.loop("turn", -(-pieces // threads), UNROLLED) as turn:
            item = turn * threads + self.thread
            with self.w.when(item < pieces if pieces % threads else None):
                yield turn, item // (columns // piece), item % (columns // piece) * piece

    def _place(self, tile: _Tile, step: Expr, row: Expr, column: Expr) -> dict[str, Expr]:
        at = {**self.at, "k": (self.rank * self.steps + step) * self.s.block_k}
        return {**at, tile.outer: at[tile.outer] + row, tile.inner: at[tile.inner] + column}

    def _extent(self, axis: str) -> int:
        return {"m": self.p.m, "n": self.p.n, "k": self.p.k}[axis].extent

    def _is_whole(self, axis: str) -> bool:
        """Whether tiles end where the axis does."""
        s = self.s
        return self._extent(axis) % {"m": s.tile_m, "n": s.tile_n, "k": s.split_k * s.block_k}[axis] == 0

    # --- the products

    def _multiply(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        self.left = self._tile("left", self.p.a, "m", s.tile_m)
        self.right = self._tile("right", self.p.b, "n", s.tile_n)
        self.a = w.allocate("a", (2, s.atoms_m, 8), self.dtype, MemoryScope.REGISTER)
        self.b = w.allocate("b", (2, s.atoms_n, 8), self.dtype, MemoryScope.REGISTER)
        with w.loop("early", self.ahead, UNROLLED) as early:
            for tile in (self.left, self.right):
                self._fill(tile, early, early)
            w.emit(CopyAsyncCommit())
        with (
            w.loop("row", s.atoms_m, UNROLLED) as i,
            w.loop("column", 2 * s.atoms_n, UNROLLED) as j,
            w.loop("element", 4, UNROLLED) as e,
        ):
            w.store(sums, (i, j, e), const(0.0, float32))
        if self.steps > self.ahead:
            self._take_ahead(index(self.ahead))
        w.emit(CopyAsyncWait(self.ahead - 1))
        w.barrier()
        self._load(index(0), 0)
        with w.loop("step", self.steps) as step:
            self._step(sums, step)
        if s.staged_epilogue:  # in the place of the ring
            w.emit(CopyAsyncWait(0))
            w.barrier()

    def _step(self, sums: Buffer, step: Expr) -> None:
        """The products of a step, while the copies of one that is ``ahead`` are started. The last fragments loaded are
        the first of the next step (after the last one, what an earlier step left in its place)."""
        s, w = self.s, self.w
        pieces = s.block_k // ATOM_K
        for piece in range(pieces):
            if piece < pieces - 1:
                self._load(step % s.stages, piece + 1)
            elif self.steps > 1:
                w.emit(CopyAsyncWait(self.ahead - 1))
                w.barrier()
                self._load((step + 1) % s.stages, 0)
            if piece == 0:
                self._refill(step)
            with (
                w.loop("row", s.atoms_m, UNROLLED) as i,
                w.loop("column", s.atoms_n, UNROLLED) as j,
                w.loop("half", 2, UNROLLED) as h,
            ):
                now, zero = index(piece % 2), index(0)
                w.emit(Mma(self.atom.name, sums, (i, j * 2 + h, zero), self.a, (now, i, zero), self.b, (now, j, h * 4)))

    def _refill(self, step: Expr) -> None:
        """Fill the stage that the step before has left."""
        if self.steps <= self.ahead:
            return
        with self.w.when(step + self.ahead < self.steps):
            for tile in (self.left, self.right):
                if tile.held is None:
                    self._copy(tile, step + self.ahead, (step + self.ahead) % self.s.stages)
                else:
                    self._put(tile, tile.held, (step + self.ahead) % self.s.stages)
            self._take_ahead(step + self.ahead + 1)
        self.w.emit(CopyAsyncCommit())

    def _fill(self, tile: _Tile, step: Expr, stage: Expr) -> None:
        if tile.held is None:
            self._copy(tile, step, stage)
        else:
            self._take(tile, tile.held, step)
            self._put(tile, tile.held, stage)

    def _take_ahead(self, step: Expr) -> None:
        for tile in (self.left, self.right):
            if tile.held is not None:
                with self.w.when(step < self.steps):
                    self._take(tile, tile.held, step)

    def _load(self, stage: Expr, piece: int) -> None:
        """Load a warp's fragments of 16 places of ``k``."""
        s, w, low, high = self.s, self.w, self.lane % 8, self.lane // 8
        now = index(piece % 2)
        # of matrices of 8 by 8: the second lies along m in A, along k in B
        sides = (
            (self.left, self.a, s.atoms_m, self.own_m, high % 2, high // 2),
            (self.right, self.b, s.atoms_n, self.own_n, high // 2, high % 2),
        )
        for tile, fragments, count, own, across, along in sides:
            with w.loop("fragment", count, UNROLLED) as i:
                place, k = own + i * ATOM_M + across * 8, index(piece * ATOM_K) + along * 8
                source = (stage, place + low, k) if tile.along_k else (stage, k + low, place)
                w.emit(LoadMatrix(fragments, (now, i, index(0)), tile.ring, source, 4, not tile.along_k))

    # --- results

    @contextmanager
    def _pairs(self) -> Iterator[tuple[Expr, Expr, tuple[Expr, Expr], Expr]]:
        """Pairs of neighbouring sums of a lane: (m, n) within the tile, where they are, and the first of them there."""
        s, w = self.s, self.w
        with (
            w.loop("row", s.atoms_m, UNROLLED) as i,
            w.loop("column", 2 * s.atoms_n, UNROLLED) as j,
            w.loop("half", 2, UNROLLED) as half,
        ):
            m = self.own_m + i * ATOM_M + half * 8 + self.lane // 4
            n = self.own_n + j * 8 + self.lane % 4 * 2
            yield m, n, (i, j), half * 2

    def _store_results(self, sums: Buffer) -> None:
        w, p = self.w, self.p
        width = 2 if p.n.extent % 2 == 0 else 1
        with self._pairs() as (m, n, place, first), w.loop("side", 2 // width, UNROLLED) as side:
            at = {**self.at, "m": self.at["m"] + m, "n": self.at["n"] + n + side}
            inside = [at[axis] < self._extent(axis) for axis in ("m", "n") if not self._is_whole(axis)]
            with w.when(logical_and(*inside) if inside else None):
                store_outputs(w, p, at, sums, width, place, first + side)

    def _stage_results(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        layout = Layout((s.tile_n + PARTIAL_PADDING, 1))
        partials = w.allocate("partials", (s.tile_m, s.tile_n), float32, MemoryScope.SHARED, layout)
        with self._pairs() as (m, n, (i, j), first):
            value = Load(sums, (Broadcast(i, 2), Broadcast(j, 2), Ramp(first, 1, 2)))
            w.store(partials, (Broadcast(m, 2), Ramp(n, 1, 2)), value)
        w.barrier(SyncScope.CLUSTER if s.split_k > 1 else SyncScope.BLOCK)
        reduce_tile(
            w,
            TileSlice(self.p, self.at, self.rank, s.split_k, self.thread, s.threads),
            partials,
            gcd(self.p.n.extent, s.tile_n, 8),
        )
        if s.split_k > 1:
            w.barrier(SyncScope.CLUSTER)


def can_lower_mma(p: Gemm) -> bool:
    """Whether both operands are plain loads of one type that matrix instructions take."""
    a, b = p.a.load, p.b.load
    if a is None or b is None or p.accumulator.dtype != float32 or a.buffer.dtype != b.buffer.dtype:
        return False
    return any(atom.operand == a.buffer.dtype for atom in WARP_MMA_ATOMS.values())
