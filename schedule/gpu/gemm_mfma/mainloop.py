"""Products on the matrix instructions of waves, which AMD's processors have.

A block of waves takes a tile of the result. Step by step along ``k`` all its threads bring both operands to shared
memory, always with neighbours along ``k`` side by side, as the fragments of a lane lie; waves share out the tile. At
the end the sums go through shared memory, so that whole rows of results are stored.
"""

from dataclasses import dataclass
from math import gcd

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, const, index, minimum
from ....ir.gpu.mma import MFMA_ATOMS, WAVEFRONT_LANES, Mma
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...problems.gemm import Gemm, Operand
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..gemm.tile_scheduler import TileScheduler
from ..gemm_mma.operands import piece_of
from ..split_k import TileSlice, reduce_tile
from .sizes import ATOM, ATOM_ROWS, PADDING, GemmMfmaSizes

UNROLLED = LoopKind.UNROLLED
GROUP_M = 8
"""Tiles along m that are scheduled before the next along n."""


def lower_waves(p: Gemm, name: str, s: GemmMfmaSizes[int]) -> Kernel:
    """The kernel of one setting."""
    return _Program(p, name, s).kernel()


@dataclass(frozen=True, slots=True)
class _Tile:
    """One operand: (place along its own axis, place along k) in shared memory. ``piece``: elements that a thread loads
    at a time, along k or not."""

    load: Load
    memory: Buffer
    axis: str
    piece: int
    along_k: bool


class _Program:
    def __init__(self, p: Gemm, name: str, s: GemmMfmaSizes[int]) -> None:
        assert p.a.load is not None
        self.p, self.s, self.name = p, s, name
        self.dtype = p.a.load.buffer.dtype
        self.atom = next(a for a in MFMA_ATOMS.values() if a.operand == self.dtype)
        self.w = FreshNameWriter(p.names)

    def kernel(self) -> Kernel:
        p, s, w = self.p, self.s, self.w
        scheduler = TileScheduler(p, s.tile_m, s.tile_n, GROUP_M)
        bounds = [("tile", scheduler.cluster_tiles, HardwareAxis.GRID_X), ("t", s.threads, HardwareAxis.THREAD)]
        with w.launch(self.name, bounds) as (tile, self.thread):
            wave, self.lane = self.thread // WAVEFRONT_LANES, self.thread % WAVEFRONT_LANES
            self.at = scheduler.origin(tile, index(0))
            self.own_m = wave // s.waves_n * (s.atoms_m * ATOM) if s.waves_m > 1 else index(0)
            self.own_n = wave % s.waves_n * (s.atoms_n * ATOM) if s.waves_n > 1 else index(0)
            sums = w.allocate("sums", (s.atoms_m, s.atoms_n, ATOM_ROWS), float32, MemoryScope.REGISTER)
            with w.scope():
                self._multiply(sums)
            with w.scope():
                self._finish(sums)
        return Kernel(self.name, p.inputs, tuple(r.tensor for r in p.results), (), w.finish())

    # --- operands

    def _tile(self, name: str, operand: Operand, axis: str, extent: int) -> _Tile:
        assert operand.load is not None
        piece, along_k = piece_of(self.p, operand, axis)
        layout = Layout((self.s.block_k + PADDING, 1))
        memory = self.w.allocate(name, (extent, self.s.block_k), self.dtype, MemoryScope.SHARED, layout)
        return _Tile(operand.load, memory, axis, piece, along_k)

    def _bring(self, tile: _Tile, step: Expr) -> None:
        """Global to shared memory. Beyond the end of ``k`` zeros arrive; beyond the other axis what stands at its end,
        whose products nobody stores."""
        w, s, (rows, depth) = self.w, self.s, tile.memory.shape
        pieces = rows * depth // tile.piece
        with w.loop("turn", -(-pieces // s.threads), UNROLLED) as turn:
            item = turn * s.threads + self.thread
            with w.when(item < pieces if pieces % s.threads else None):
                if tile.along_k:
                    row, k = item // (depth // tile.piece), item % (depth // tile.piece) * tile.piece
                else:
                    k, row = item // (rows // tile.piece), item % (rows // tile.piece) * tile.piece
                held = w.allocate("held", (tile.piece,), self.dtype, MemoryScope.REGISTER)
                self._load(tile, held, row, step * s.block_k + k)
                if tile.along_k:
                    w.store(
                        tile.memory,
                        contiguous_vector((row, k), tile.piece),
                        Load(held, contiguous_vector((index(0),), tile.piece)),
                    )
                else:
                    with w.loop("element", tile.piece, UNROLLED) as e:
                        w.store(tile.memory, (row + e, k), Load(held, (e,)))

    def _load(self, tile: _Tile, held: Buffer, row: Expr, k: Expr) -> None:
        w, p, axis = self.w, self.p, tile.axis
        extent, size = (p.m.extent, self.s.tile_m) if axis == "m" else (p.n.extent, self.s.tile_n)
        place = self.at[axis] + row
        if extent % size:
            place = minimum(place, index(extent - (1 if tile.along_k else tile.piece)))
        at = {**self.at, axis: place, "k": k}
        run = contiguous_vector((index(0),), tile.piece)
        inside = k < p.k.extent if p.k.extent % self.s.block_k else None
        if inside is not None:
            w.store(held, run, _spread(const(0.0, self.dtype), tile.piece))
        with w.when(inside):
            w.store(held, run, vector_at(tile.load, at, "k" if tile.along_k else axis, tile.piece))

    # --- products

    def _multiply(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        with w.loop("row", s.atoms_m, UNROLLED) as i, w.loop("column", s.atoms_n, UNROLLED) as j:
            w.store(sums, contiguous_vector((i, j, index(0)), ATOM_ROWS), _spread(const(0.0, float32), ATOM_ROWS))
        tiles = (
            self._tile("left", self.p.a, "m", s.tile_m),
            self._tile("right", self.p.b, "n", s.tile_n),
        )
        with w.loop("step", -(-self.p.k.extent // s.block_k)) as step:
            w.barrier()  # everybody has read what the last step brought
            for tile in tiles:
                self._bring(tile, step)
            w.barrier()
            with w.loop("part", s.block_k // self.atom.k, UNROLLED) as part:
                a = self._fragments("a", tiles[0].memory, self.own_m, s.atoms_m, part)
                b = self._fragments("b", tiles[1].memory, self.own_n, s.atoms_n, part)
                with w.loop("row", s.atoms_m, UNROLLED) as i, w.loop("column", s.atoms_n, UNROLLED) as j:
                    zero = index(0)
                    w.emit(Mma(self.atom.name, sums, (i, j, zero), a, (i, zero), b, (j, zero)))
        w.barrier()

    def _fragments(self, name: str, memory: Buffer, own: Expr, count: int, part: Expr) -> Buffer:
        """What this lane holds of ``count`` times 16 rows, at the places of ``k`` that an instruction takes."""
        w, run = self.w, self.atom.elements("a")
        held = w.allocate(name, (count, run), self.dtype, MemoryScope.REGISTER)
        with w.loop("fragment", count, UNROLLED) as i:
            place = (own + i * ATOM + self.lane % ATOM, part * self.atom.k + self.lane // ATOM * run)
            w.store(held, contiguous_vector((i, index(0)), run), Load(memory, contiguous_vector(place, run)))
        return held

    # --- the end

    def _finish(self, sums: Buffer) -> None:
        s, w = self.s, self.w
        layout = Layout((s.tile_n + PADDING, 1))
        partials = w.allocate("partials", (s.tile_m, s.tile_n), float32, MemoryScope.SHARED, layout)
        with (
            w.loop("row", s.atoms_m, UNROLLED) as i,
            w.loop("column", s.atoms_n, UNROLLED) as j,
            w.loop("element", ATOM_ROWS, UNROLLED) as e,
        ):
            m = self.own_m + i * ATOM + self.lane // ATOM * ATOM_ROWS + e
            n = self.own_n + j * ATOM + self.lane % ATOM
            w.store(partials, (m, n), Load(sums, (i, j, e)))
        w.barrier()
        reduce_tile(
            w,
            TileSlice(self.p, self.at, index(0), 1, self.thread, s.threads),
            partials,
            gcd(self.p.n.extent, s.tile_n, 8),
        )


def can_lower_waves(p: Gemm) -> bool:
    """Whether both operands are plain loads of one type that matrix instructions take."""
    a, b = p.a.load, p.b.load
    if a is None or b is None or p.accumulator.dtype != float32 or a.buffer.dtype != b.buffer.dtype:
        return False
    return any(atom.operand == a.buffer.dtype for atom in MFMA_ATOMS.values())


def _spread(value: Expr, lanes: int) -> Expr:
    return Broadcast(value, lanes) if lanes > 1 else value
