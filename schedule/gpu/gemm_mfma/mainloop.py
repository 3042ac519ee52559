"""Writes the kernel of a product on the matrix instructions (MFMA) of AMD's graphics processors.

A block of waves works on one tile of the result. In each k iteration all its threads load both operands to shared
memory, always with neighbours along ``k`` side by side, as the fragments of a lane lie. The waves share out the tile.
At the end the accumulators go through shared memory, so that whole rows of outputs are stored.
"""

from dataclasses import dataclass
from math import gcd

from ....core.dtypes import float32
from ....ir.buffer import Buffer, Layout, MemoryScope
from ....ir.expr import Broadcast, Expr, Load, const, index, minimum
from ....ir.gpu.mma import MFMA_ATOMS, WAVEFRONT_LANES, Mma
from ....ir.stmt import HardwareAxis, Kernel, LoopKind
from ...loop_nest.nest import KERNEL_NAME
from ...problems.gemm import Gemm, Operand
from ...tile.contiguous import contiguous_vector
from ...tile.names import FreshNameWriter
from ...tile.stage_body import vector_at
from ..gemm.tile_scheduler import TileScheduler
from ..gemm_mma.operands import copy_width
from ..split_k import TileSlice, reduce_tile
from .sizes import ATOM, ATOM_ROWS, PADDING, GemmMfmaSizes

GROUP_M = 8
"""Tiles along m that are scheduled before the next along n."""


def lower_gemm_mfma(gemm: Gemm, sizes: GemmMfmaSizes[int]) -> Kernel:
    """Return the kernel of one setting."""
    return _GemmMfmaWriter(gemm, sizes).kernel()


@dataclass(frozen=True, slots=True)
class _SharedOperand:
    """One operand of a k iteration in shared memory: ``tile`` is (place along ``axis``, place along k). ``width``:
    elements that a thread loads at a time, which are neighbours along ``k`` or along ``axis``."""

    load: Load
    tile: Buffer
    axis: str
    width: int
    along_k: bool


class _GemmMfmaWriter:
    def __init__(self, gemm: Gemm, sizes: GemmMfmaSizes[int]) -> None:
        assert gemm.a.load is not None
        self.gemm, self.s = gemm, sizes
        self.dtype = gemm.a.load.buffer.dtype
        self.atom = next(a for a in MFMA_ATOMS.values() if a.operand == self.dtype)
        self.w = FreshNameWriter(gemm.names)

    def kernel(self) -> Kernel:
        gemm, s, w = self.gemm, self.s, self.w
        scheduler = TileScheduler(gemm, s.tile_m, s.tile_n, GROUP_M)
        axes = [("tile", scheduler.cluster_tiles, HardwareAxis.GRID_X), ("thread", s.threads, HardwareAxis.THREAD)]
        with w.launch(KERNEL_NAME, axes) as (tile, self.thread):
            wave, self.lane = self.thread // WAVEFRONT_LANES, self.thread % WAVEFRONT_LANES
            self.at = scheduler.origin(tile, index(0))
            self.wave_m = wave // s.waves_n * (s.atoms_m * ATOM) if s.waves_m > 1 else index(0)
            self.wave_n = wave % s.waves_n * (s.atoms_n * ATOM) if s.waves_n > 1 else index(0)
            shape = (s.atoms_m, s.atoms_n, ATOM_ROWS)
            accumulators = w.allocate("accumulators", shape, float32, MemoryScope.REGISTER)
            with w.scope():
                self._mainloop(accumulators)
            with w.scope():
                self._epilogue(accumulators)
        return Kernel(KERNEL_NAME, gemm.inputs, tuple(r.tensor for r in gemm.results), (), w.finish())

    # --- operands

    def _allocate(self, name: str, operand: Operand, axis: str, extent: int) -> _SharedOperand:
        assert operand.load is not None
        width, along_k = copy_width(self.gemm, operand, axis)
        layout = Layout((self.s.block_k + PADDING, 1))
        tile = self.w.allocate(name, (extent, self.s.block_k), self.dtype, MemoryScope.SHARED, layout)
        return _SharedOperand(operand.load, tile, axis, width, along_k)

    def _copy(self, operand: _SharedOperand, k_iter: Expr) -> None:
        """Copy a k iteration to shared memory. Beyond the end of ``k`` zeros arrive. Beyond the end of the other axis
        its last elements do, and nobody stores what is made of them."""
        w, s, (rows, block_k), width = self.w, self.s, operand.tile.shape, operand.width
        vectors = rows * block_k // width
        with w.shared_out("vector", vectors, s.threads, self.thread, LoopKind.UNROLLED) as vector:
            if operand.along_k:
                row, k = vector // (block_k // width), vector % (block_k // width) * width
            else:
                k, row = vector // (rows // width), vector % (rows // width) * width
            loaded = w.allocate("loaded", (width,), self.dtype, MemoryScope.REGISTER)
            self._load(operand, loaded, row, k_iter * s.block_k + k)
            if operand.along_k:
                value = Load(loaded, contiguous_vector((index(0),), width))
                w.store(operand.tile, contiguous_vector((row, k), width), value)
            else:
                with w.unrolled("element", width) as e:
                    w.store(operand.tile, (row + e, k), Load(loaded, (e,)))

    def _load(self, operand: _SharedOperand, loaded: Buffer, row: Expr, k: Expr) -> None:
        w, gemm, axis, width = self.w, self.gemm, operand.axis, operand.width
        extent, tile = (gemm.m.extent, self.s.tile_m) if axis == "m" else (gemm.n.extent, self.s.tile_n)
        here = self.at[axis] + row
        if extent % tile:
            here = minimum(here, index(extent - (1 if operand.along_k else width)))
        at = {**self.at, axis: here, "k": k}
        all_of_it = contiguous_vector((index(0),), width)
        inside = k < gemm.k.extent if gemm.k.extent % self.s.block_k else None
        if inside is not None:
            w.store(loaded, all_of_it, _spread(const(0.0, self.dtype), width))
        with w.when(inside):
            w.store(loaded, all_of_it, vector_at(operand.load, at, "k" if operand.along_k else axis, width))

    # --- the main loop

    def _mainloop(self, accumulators: Buffer) -> None:
        s, w = self.s, self.w
        with w.unrolled("atom_m", s.atoms_m) as i, w.unrolled("atom_n", s.atoms_n) as j:
            zeros = _spread(const(0.0, float32), ATOM_ROWS)
            w.store(accumulators, contiguous_vector((i, j, index(0)), ATOM_ROWS), zeros)
        staged_a = self._allocate("staged_a", self.gemm.a, "m", s.tile_m)
        staged_b = self._allocate("staged_b", self.gemm.b, "n", s.tile_n)
        with w.loop("k_iter", s.k_iters) as k_iter:
            w.barrier()  # all waves have read what the iteration before copied
            self._copy(staged_a, k_iter)
            self._copy(staged_b, k_iter)
            w.barrier()
            with w.unrolled("k_atom", s.block_k // self.atom.k) as k_atom:
                a = self._fragments("a", staged_a.tile, self.wave_m, s.atoms_m, k_atom)
                b = self._fragments("b", staged_b.tile, self.wave_n, s.atoms_n, k_atom)
                with w.unrolled("atom_m", s.atoms_m) as i, w.unrolled("atom_n", s.atoms_n) as j:
                    zero = index(0)
                    w.emit(Mma(self.atom.name, accumulators, (i, j, zero), a, (i, zero), b, (j, zero)))
        w.barrier()

    def _fragments(self, name: str, tile: Buffer, first: Expr, atoms: int, k_atom: Expr) -> Buffer:
        """Return what this lane holds of ``atoms`` times 16 rows, for the places of ``k`` that one instruction
        takes."""
        w, elements = self.w, self.atom.elements("a")
        fragments = w.allocate(name, (atoms, elements), self.dtype, MemoryScope.REGISTER)
        with w.unrolled("fragment", atoms) as i:
            source = (first + i * ATOM + self.lane % ATOM, k_atom * self.atom.k + self.lane // ATOM * elements)
            value = Load(tile, contiguous_vector(source, elements))
            w.store(fragments, contiguous_vector((i, index(0)), elements), value)
        return fragments

    # --- the epilogue

    def _epilogue(self, accumulators: Buffer) -> None:
        s, w, gemm = self.s, self.w, self.gemm
        layout = Layout((s.tile_n + PADDING, 1))
        staged = w.allocate("staged", (s.tile_m, s.tile_n), float32, MemoryScope.SHARED, layout)
        with (
            w.unrolled("atom_m", s.atoms_m) as i,
            w.unrolled("atom_n", s.atoms_n) as j,
            w.unrolled("row", ATOM_ROWS) as row,
        ):
            m = self.wave_m + i * ATOM + self.lane // ATOM * ATOM_ROWS + row
            n = self.wave_n + j * ATOM + self.lane % ATOM
            w.store(staged, (m, n), Load(accumulators, (i, j, row)))
        w.barrier()
        own = TileSlice(gemm, self.at, index(0), 1, self.thread, s.threads)
        reduce_tile(w, own, staged, gcd(gemm.n.extent, s.tile_n, 8))


def can_use_mfma(gemm: Gemm) -> bool:
    """Return whether both operands are plain loads of one type that MFMA takes."""
    a, b = gemm.a.load, gemm.b.load
    if a is None or b is None or gemm.accumulator.dtype != float32 or a.buffer.dtype != b.buffer.dtype:
        return False
    return any(atom.operand == a.buffer.dtype for atom in MFMA_ATOMS.values())


def _spread(value: Expr, lanes: int) -> Expr:
    return Broadcast(value, lanes) if lanes > 1 else value
